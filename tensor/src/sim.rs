//! The state of a simulated device beside its allocator: time, assumptions, simulated copies of
//! tensors.

use std::collections::BTreeMap;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use lowtide_allocator::Simulation;

use crate::cost::{Cost, OpClass};
use crate::device::Device;
use crate::rates::{Rates, SimulatedWork};
use crate::storage::Storage;

/// The simulated device's state beside its allocator.
pub(crate) struct Sim {
    /// The real device's blocks to adopt, when this simulates one in mid-run.
    simulation: Option<Simulation>,
    /// Simulated storages by the address of the real storage.
    simulated_copies: Mutex<BTreeMap<usize, SimulatedPair>>,
    time: Mutex<SimulatedTime>,
    assumptions: Mutex<Vec<Assumption>>,
}

/// The time of everything launched on a simulated device.
#[derive(Clone, Copy, Default)]
pub(crate) struct SimulatedTime {
    pub(crate) seconds: f64,
    by_class: [SimulatedWork; OpClass::ALL.len()],
}

impl SimulatedTime {
    /// The work of one class.
    pub(crate) fn of(&self, class: OpClass) -> SimulatedWork {
        self.by_class[class as usize]
    }
}

/// A real storage and its simulated copy. The weak handle keeps the address of the real storage
/// from being given to a later storage.
struct SimulatedPair {
    _real: Weak<Storage>,
    simulated: Weak<Storage>,
}

/// A value that simulated code assumed, because only a real computation gives the value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Assumption {
    /// The value that was read.
    pub value: f64,
    /// The place in the program that read it.
    pub site: &'static Location<'static>,
}

impl Sim {
    pub(crate) fn new(simulation: Option<Simulation>) -> Self {
        Sim {
            simulation,
            simulated_copies: Mutex::default(),
            time: Mutex::default(),
            assumptions: Mutex::default(),
        }
    }

    pub(crate) fn advance(&self, cost: Cost, rates: &Rates) {
        let seconds = rates.seconds(cost);
        let mut time = locked(&self.time);
        time.seconds += seconds;
        time.by_class[cost.class as usize].add(cost, seconds);
    }

    pub(crate) fn time(&self) -> SimulatedTime {
        *locked(&self.time)
    }

    /// Adds the work that was launched since `begin`, `times` times more.
    pub(crate) fn repeat_since(&self, begin: &SimulatedTime, times: usize) {
        let mut time = locked(&self.time);
        time.seconds += (time.seconds - begin.seconds) * times as f64;
        for (work, begin) in time.by_class.iter_mut().zip(&begin.by_class) {
            work.repeat_since(begin, times);
        }
    }

    pub(crate) fn assume(&self, value: f64, site: &'static Location<'static>) {
        let mut assumptions = locked(&self.assumptions);
        let assumption = Assumption { value, site };
        if !assumptions.contains(&assumption) {
            assumptions.push(assumption);
        }
    }

    pub(crate) fn assumptions(&self) -> Vec<Assumption> {
        locked(&self.assumptions).clone()
    }

    /// The simulated copy of `real` on this device: adopted the first time, shared afterwards.
    pub(crate) fn simulated_copy(
        &self,
        real: &Arc<Storage>,
        device: &Device,
    ) -> Option<Arc<Storage>> {
        let mut copies = locked(&self.simulated_copies);
        let address = Arc::as_ptr(real).addr();
        if let Some(copies) = copies.get(&address) {
            return copies.simulated.upgrade();
        }
        let buffer = self.simulation.as_ref()?.adopt(real.buffer())?;
        let copy = Arc::new(match real.mapped() {
            Some(mapped) => {
                let mapped = mapped.counted_by(device.mapped_count());
                Storage::of_mapped(buffer, device.clone(), mapped)
            }
            None => Storage::new(buffer, device.clone()),
        });
        copy.set_frozen(real.is_frozen());
        copy.set_arriving(real.is_arriving());
        let pair = SimulatedPair { _real: Arc::downgrade(real), simulated: Arc::downgrade(&copy) };
        copies.insert(address, pair);
        Some(copy)
    }
}

// The maps and counters are consistent at every unlock, so a poisoned lock is taken over.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
