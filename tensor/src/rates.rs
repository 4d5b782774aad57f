//! Rates of devices by class of operation, from which simulated time is computed.

use crate::cost::{Cost, OpClass};

/// The speed of a device at one class of operations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Arithmetic operations per second, counted as in [`Cost::flops`].
    pub flops_per_second: f64,
    /// Bytes per second from and to memory, each operand once.
    pub bytes_per_second: f64,
    /// Seconds that every operation takes in addition, even the smallest.
    pub launch_seconds: f64,
}

/// The rates of a device.
///
/// An operation takes the longer of two times, for its arithmetic and for its bytes, plus the time
/// of its launch: `max(flops / rate, bytes / bandwidth) + launch`.
///
/// ```
/// use lowtide_tensor::{Cost, OpClass, Rate, Rates};
///
/// let nominal = Rates::nominal(1e9, 1e9);
/// let slow = Rate { launch_seconds: 1e-6, ..nominal.of(OpClass::Product) };
/// let rates = nominal.with(OpClass::Product, slow);
/// let cost = Cost { class: OpClass::Product, flops: 2e3, bytes: 1e3 };
/// assert_eq!(rates.seconds(cost), 2e-6 + 1e-6);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    by_class: [Rate; OpClass::ALL.len()],
}

impl Rates {
    /// Equal rates for every class, and launches that cost nothing: good for comparing plans with
    /// each other, not for predicting seconds.
    pub const fn nominal(flops_per_second: f64, bytes_per_second: f64) -> Self {
        let rate = Rate { flops_per_second, bytes_per_second, launch_seconds: 0.0 };
        Rates { by_class: [rate; OpClass::ALL.len()] }
    }

    /// These rates, with another rate for one class.
    #[must_use]
    pub fn with(mut self, class: OpClass, rate: Rate) -> Self {
        self.by_class[class as usize] = rate;
        self
    }

    /// These rates, with another rate for copies from and to other devices.
    #[must_use]
    pub const fn with_link(mut self, bytes_per_second: f64) -> Self {
        self.by_class[OpClass::Transfer as usize].bytes_per_second = bytes_per_second;
        self
    }

    /// The rate of a class.
    pub fn of(&self, class: OpClass) -> Rate {
        self.by_class[class as usize]
    }

    /// The seconds that an operation of this cost takes.
    pub fn seconds(&self, cost: Cost) -> f64 {
        let rate = self.of(cost.class);
        let arithmetic = cost.flops / rate.flops_per_second;
        arithmetic.max(cost.bytes / rate.bytes_per_second) + rate.launch_seconds
    }
}

/// Work of one class that was launched on a simulated device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SimulatedWork {
    /// Number of operations.
    pub launch_count: u64,
    /// Arithmetic operations of all kernels.
    pub flops: f64,
    /// Bytes that all kernels move.
    pub bytes: f64,
    /// Time of the operations by the rates of the device.
    pub seconds: f64,
}

impl SimulatedWork {
    /// Adds an operation.
    pub(crate) fn add(&mut self, cost: Cost, seconds: f64) {
        self.launch_count += 1;
        self.flops += cost.flops;
        self.bytes += cost.bytes;
        self.seconds += seconds;
    }

    /// Adds the work since `begin`, `times` times more.
    pub(crate) fn repeat_since(&mut self, begin: &SimulatedWork, times: usize) {
        self.launch_count += (self.launch_count - begin.launch_count) * times as u64;
        self.flops += (self.flops - begin.flops) * times as f64;
        self.bytes += (self.bytes - begin.bytes) * times as f64;
        self.seconds += (self.seconds - begin.seconds) * times as f64;
    }
}
