//! Devices: where tensors live and kernels run. The CPU computes; the simulated device runs the
//! same code and makes the same allocations, but has no memory and no values; see `cuda/` for
//! NVIDIA devices.

use std::collections::BTreeMap;
use std::fmt::{self, Debug, Display};
use std::panic::Location;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

#[cfg(feature = "cuda")]
use lowtide_allocator::cuda::CudaDevice;
use lowtide_allocator::{
    CachingAllocator, Category, CategoryScope, HostSource, PinnedCache, SimSource, SimStreams,
    Simulation, Stream,
};

use crate::cpu::Cpu;
#[cfg(feature = "cuda")]
use crate::cuda::{Cuda, CudaOptions};
use crate::error::TensorError;
use crate::launch::{Cost, OpClass};
use crate::rates::{Rates, SimulatedWork};
use crate::storage::Storage;

/// The stream on which an NVIDIA device, or a simulated one, copies from and to the host; kernels
/// run on the default one.
pub(crate) const COPIES: Stream = Stream::new(1).expect("there are 64");

/// Pages of host memory on every system.
const HOST_PAGE_BYTES: usize = 64 << 10;

/// Pages of NVIDIA devices: what the driver says of all there are today.
const CUDA_PAGE_BYTES: usize = 2 << 20;

/// What the allocator of a real device has, but for the second one of a process and later ones.
const MAPPINGS_MAX: usize = 1 << 14;

/// What is taken for granted outside the allocator of an NVIDIA device that is not there.
const CUDA_OUTSIDE_BYTES: usize = 768 << 20;

/// A cheap handle to a device; all handles of one device share its allocator.
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    allocator: CachingAllocator,
    backend: Backend,
    /// What [`Device::spec`] says instead of nominal rates.
    rates: Option<Rates>,
    mapped_bytes: Arc<AtomicUsize>,
}

pub(crate) enum Backend {
    Cpu(Cpu),
    #[cfg(feature = "cuda")]
    Cuda(Box<Cuda>),
    Sim(Box<Sim>),
}

/// How to set up a CPU device.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuOptions {
    /// The device behaves and reports as one with this much memory; all of the machine's
    /// memory if absent.
    pub budget_bytes: Option<usize>,
    /// Threads that compute, the caller included; one per core if absent.
    pub threads: Option<usize>,
    /// How fast it is, which decides the time of plans and nothing else; nominal if absent.
    pub rates: Option<Rates>,
}

/// What computes, or what a simulated device stands for: decides the workspace of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// The processor of a machine.
    Cpu,
    /// An NVIDIA device.
    Cuda,
}

/// A device to pretend: what of a machine decides about allocations and time.
#[derive(Clone, Copy, Debug)]
pub struct SimSpec {
    /// What it stands for.
    pub kind: DeviceKind,
    /// Memory of the device.
    pub capacity_bytes: usize,
    /// What of it is not for tensors: on an NVIDIA device the context, kernels, libraries, and a
    /// reserve for what these load later.
    pub outside_bytes: usize,
    /// In what steps memory is reserved, which decides the peak: a power of two, at least 512.
    pub page_bytes: usize,
    /// How many mappings show pages at a second address: see [`CachingAllocator::mappings_max`].
    pub mappings_max: usize,
    /// Threads that compute; decides the workspace of attention.
    pub threads: usize,
    /// Whether products and convolutions of f32 are of tf32 on an NVIDIA device, as
    /// `Products::Library(Precision::Tf32)` asks for; decides the workspace of convolutions.
    pub tf32: bool,
    /// What simulated time is made of.
    pub rates: Rates,
}

impl SimSpec {
    /// A device like this machine's CPU, with nominal rates: 40 Gflop/s per thread, 10 GB/s.
    /// Good for comparing plans with each other, not for predicting seconds.
    pub fn like_this_machine(capacity_bytes: usize) -> Self {
        let threads = available_threads();
        SimSpec {
            kind: DeviceKind::Cpu,
            capacity_bytes,
            outside_bytes: 0,
            page_bytes: HOST_PAGE_BYTES,
            mappings_max: if cfg!(target_os = "linux") { MAPPINGS_MAX } else { 0 },
            threads,
            tf32: false,
            rates: Rates::nominal(40e9 * threads as f64, 10e9),
        }
    }

    /// A device like an NVIDIA H100 (SXM): pages of 2 MiB, as every device of today has, and the
    /// rates of its data sheet for f32: 67 Tflop/s, 3.35 TB/s, 64 GB/s from and to the host. What
    /// lies outside is an assumption:
    /// 512 MiB of context, kernels and libraries, and 256 MiB of reserve; less on a device of less
    /// than 12 GiB.
    pub fn like_cuda(capacity_bytes: usize) -> Self {
        SimSpec {
            kind: DeviceKind::Cuda,
            outside_bytes: CUDA_OUTSIDE_BYTES.min(capacity_bytes / 16),
            page_bytes: CUDA_PAGE_BYTES,
            mappings_max: MAPPINGS_MAX,
            threads: 1,
            rates: Rates::nominal(67e12, 3.35e12).with_link(64e9),
            ..SimSpec::like_this_machine(capacity_bytes)
        }
    }
}

/// The simulated device's state beside its allocator.
pub(crate) struct Sim {
    spec: SimSpec,
    /// The real device's blocks to adopt, when this simulates one in mid-run.
    simulation: Option<Simulation>,
    /// By the real storage's address.
    simulated_copies: Mutex<BTreeMap<usize, SimulatedPair>>,
    time: Mutex<SimulatedTime>,
    assumptions: Mutex<Vec<Assumption>>,
}

/// The time of everything launched on a simulated device.
#[derive(Clone, Copy, Default)]
pub(crate) struct SimulatedTime {
    seconds: f64,
    by_class: [SimulatedWork; OpClass::ALL.len()],
}

/// A real storage and what stands for it in a simulation. The handle to the real one keeps its
/// address from being given to a storage that came later.
struct SimulatedPair {
    _real: Weak<Storage>,
    simulated: Weak<Storage>,
}

/// A value that code under simulation went on with, instead of one that only computing can give.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Assumption {
    /// What was read.
    pub value: f64,
    /// Where it was read.
    pub site: &'static Location<'static>,
}

impl Sim {
    fn new(spec: SimSpec, simulation: Option<Simulation>) -> Self {
        Sim {
            spec,
            simulation,
            simulated_copies: Mutex::default(),
            time: Mutex::default(),
            assumptions: Mutex::default(),
        }
    }

    pub(crate) fn advance(&self, cost: Cost) {
        let seconds = self.spec.rates.seconds(cost);
        let mut time = locked(&self.time);
        time.seconds += seconds;
        time.by_class[cost.class as usize].add(cost, seconds);
    }

    pub(crate) fn time(&self) -> SimulatedTime {
        *locked(&self.time)
    }

    /// Adds what was launched since `begin`, `times` times more.
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

    /// The storage that stands for `real` here: adopted the first time, shared afterwards.
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
            Some(mapped) => Storage::of_mapped(buffer, device.clone(), mapped.on(device)),
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

fn available_threads() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

impl Device {
    /// The CPU of this machine.
    ///
    /// # Errors
    /// When the address space for the budget cannot be reserved.
    pub fn cpu(options: CpuOptions) -> Result<Self, TensorError> {
        let source = match options.budget_bytes {
            Some(budget_bytes) => HostSource::with_capacity(budget_bytes),
            None => HostSource::system(),
        };
        let cpu = Cpu::new(options.threads.unwrap_or_else(available_threads).max(1));
        let allocator = CachingAllocator::new(source)?;
        let (backend, rates) = (Backend::Cpu(cpu), options.rates);
        Ok(Device(Arc::new(Inner { allocator, backend, rates, mapped_bytes: Arc::default() })))
    }

    /// The NVIDIA device of this number, from 0.
    ///
    /// # Errors
    /// `Cuda` with what was looked for and where, when there is no driver, no such device or no
    /// context to be had.
    #[cfg(feature = "cuda")]
    pub fn cuda(index: usize, options: CudaOptions) -> Result<Self, TensorError> {
        Self::cuda_on(&CudaDevice::open(index)?, options)
    }

    /// An NVIDIA device of a driver that was found elsewhere.
    ///
    /// # Errors
    /// `Cuda` when the driver refuses.
    #[cfg(feature = "cuda")]
    pub fn cuda_on(device: &CudaDevice, options: CudaOptions) -> Result<Self, TensorError> {
        let (cuda, allocator) = Cuda::on(device, options)?;
        Ok(Self::new(allocator, Backend::Cuda(Box::new(cuda))))
    }

    /// A simulated device: same code, same allocations, no memory.
    ///
    /// # Errors
    /// None today; the signature is that of the other devices.
    pub fn sim(spec: SimSpec) -> Result<Self, TensorError> {
        let inside_bytes = spec.capacity_bytes.saturating_sub(spec.outside_bytes);
        let mut source = SimSource::with_capacity(inside_bytes)
            .page_bytes(spec.page_bytes)
            .mappings_max(spec.mappings_max)
            .outside_bytes(spec.outside_bytes);
        if spec.kind == DeviceKind::Cuda {
            source = source.streams(&SimStreams::new());
        }
        let allocator = CachingAllocator::new(source)?;
        Ok(Self::new(allocator, Backend::Sim(Box::new(Sim::new(spec, None)))))
    }

    fn new(allocator: CachingAllocator, backend: Backend) -> Self {
        Device(Arc::new(Inner { allocator, backend, rates: None, mapped_bytes: Arc::default() }))
    }

    /// A simulated device in exactly this one's state: the same live blocks at the same places,
    /// the same cache, charges, statistics and capacity. [`crate::Tensor::simulated_copy`] finds
    /// this device's tensors there; what is not asked for stays allocated.
    pub fn simulate(&self) -> Device {
        let simulation = self.0.allocator.simulate();
        let allocator = simulation.allocator().clone();
        let backend = Backend::Sim(Box::new(Sim::new(self.spec(), Some(simulation))));
        Self::new(allocator, backend)
    }

    /// What [`Device::sim`] needs for a device like this one, with nothing on it yet.
    pub fn spec(&self) -> SimSpec {
        let statistics = self.0.allocator.statistics();
        let like = match self.backend() {
            Backend::Sim(sim) => return sim.spec,
            Backend::Cpu(_) => SimSpec::like_this_machine,
            #[cfg(feature = "cuda")]
            Backend::Cuda(_) => SimSpec::like_cuda,
        };
        let (threads, outside_bytes) = (self.threads(), self.outside_bytes());
        let capacity_bytes = statistics.capacity_bytes.saturating_add(outside_bytes);
        let (page_bytes, mappings_max) = (statistics.page_bytes, self.allocator().mappings_max());
        let like = like(capacity_bytes);
        let rates = self.0.rates.unwrap_or(like.rates);
        let tf32 = self.is_in_tf32();
        SimSpec { threads, tf32, outside_bytes, page_bytes, mappings_max, rates, ..like }
    }

    /// What of the device's memory is not for tensors: see [`SimSpec::outside_bytes`].
    pub fn outside_bytes(&self) -> usize {
        match self.backend() {
            Backend::Sim(sim) => sim.spec.outside_bytes,
            Backend::Cpu(_) => 0,
            #[cfg(feature = "cuda")]
            Backend::Cuda(cuda) => cuda.outside_bytes(),
        }
    }

    /// The allocator that all of this device's tensors come from.
    pub fn allocator(&self) -> &CachingAllocator {
        &self.0.allocator
    }

    /// Bytes of tensors that lie in [mapped files](crate::Tensor::from_mapped): no part of the
    /// allocator's.
    pub fn mapped_bytes(&self) -> usize {
        self.0.mapped_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn mapped_count(&self) -> &Arc<AtomicUsize> {
        &self.0.mapped_bytes
    }

    /// Attributes allocations to `category` until the scope ends.
    pub fn category(&self, category: Category) -> CategoryScope {
        self.0.allocator.category(category)
    }

    /// Whether this device has no values.
    pub fn is_simulated(&self) -> bool {
        matches!(self.0.backend, Backend::Sim(_))
    }

    /// What computes here, or what this simulated device stands for.
    pub fn kind(&self) -> DeviceKind {
        match self.backend() {
            Backend::Cpu(_) => DeviceKind::Cpu,
            #[cfg(feature = "cuda")]
            Backend::Cuda(_) => DeviceKind::Cuda,
            Backend::Sim(sim) => sim.spec.kind,
        }
    }

    /// Whether products and convolutions of f32 round their factors to tf32, which has 11 of the 24
    /// binary digits; on an NVIDIA device that was asked to.
    pub fn is_in_tf32(&self) -> bool {
        match self.backend() {
            Backend::Cpu(_) => false,
            #[cfg(feature = "cuda")]
            Backend::Cuda(cuda) => cuda.is_in_tf32(),
            Backend::Sim(sim) => sim.spec.kind == DeviceKind::Cuda && sim.spec.tf32,
        }
    }

    /// Threads that compute; a simulated device pretends as many as its specification says.
    pub fn threads(&self) -> usize {
        match self.backend() {
            Backend::Cpu(cpu) => cpu.threads(),
            #[cfg(feature = "cuda")]
            Backend::Cuda(_) => 1,
            Backend::Sim(sim) => sim.spec.threads,
        }
    }

    /// Time of everything launched on a simulated device, by [`SimSpec::rates`]; 0 on real ones.
    pub fn simulated_seconds(&self) -> f64 {
        match self.backend() {
            Backend::Sim(sim) => locked(&sim.time).seconds,
            _ => 0.0,
        }
    }

    /// What was launched on a simulated device of this class; nothing on real ones.
    pub fn simulated_work(&self, class: OpClass) -> SimulatedWork {
        match self.backend() {
            Backend::Sim(sim) => locked(&sim.time).by_class[class as usize],
            _ => SimulatedWork::default(),
        }
    }

    /// Values that simulated code went on with; empty on real devices.
    pub fn assumptions(&self) -> Vec<Assumption> {
        match self.backend() {
            Backend::Sim(sim) => locked(&sim.assumptions).clone(),
            _ => Vec::new(),
        }
    }

    /// What errors call it.
    pub(crate) fn label(&self) -> DeviceLabel {
        let name = match self.backend() {
            Backend::Cpu(_) => "cpu",
            #[cfg(feature = "cuda")]
            Backend::Cuda(_) => "cuda",
            Backend::Sim(_) => "sim",
        };
        DeviceLabel { name, capacity_bytes: self.0.allocator.capacity_bytes() }
    }

    /// Whether copies from and to the host run beside what computes.
    pub(crate) fn copies_beside(&self) -> bool {
        self.kind() == DeviceKind::Cuda
    }

    /// Memory of the host that copies to this device read themselves, for a ring of buffers of so
    /// many bytes together, and the stream to allocate them for; `None` where copies are the
    /// host's work. It is outside the budget of the device. For a simulated device, which copies
    /// nothing, it is ordinary memory.
    ///
    /// # Errors
    /// The driver has no such memory.
    pub fn page_locked_ring(
        &self,
        size_bytes: usize,
    ) -> Result<Option<(PinnedCache, Stream)>, TensorError> {
        match self.backend() {
            #[cfg(feature = "cuda")]
            Backend::Cuda(cuda) => Ok(Some((cuda.ring(size_bytes)?, COPIES))),
            Backend::Sim(_) if self.copies_beside() => {
                let memory = HostSource::with_capacity(size_bytes);
                Ok(Some((PinnedCache::new(memory, SimStreams::new())?, COPIES)))
            }
            _ => Ok(None),
        }
    }

    /// Makes copies wait for all that was enqueued so far.
    #[track_caller]
    pub(crate) fn order_copies(&self) -> Result<(), TensorError> {
        if self.copies_beside() {
            self.retried(|| Ok(self.0.allocator.wait(COPIES, Stream::DEFAULT)?))?;
        }
        Ok(())
    }

    /// Makes a call of the driver; see [`Cuda::retried`]. Other devices have none that could be
    /// short of memory.
    pub(crate) fn retried<T>(
        &self,
        mut call: impl FnMut() -> Result<T, TensorError>,
    ) -> Result<T, TensorError> {
        match self.backend() {
            #[cfg(feature = "cuda")]
            Backend::Cuda(cuda) => cuda.retried(call),
            _ => call(),
        }
    }

    pub(crate) fn backend(&self) -> &Backend {
        &self.0.backend
    }
}

/// What a device is called in errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLabel {
    /// `cpu`, `cuda` or `sim`.
    pub name: &'static str,
    /// What its allocator may hand out.
    pub capacity_bytes: usize,
}

impl Display for DeviceLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} bytes)", self.name, self.capacity_bytes)
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Device {}

impl Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DeviceLabel { name, capacity_bytes } = self.label();
        write!(f, "Device({name}, {capacity_bytes} bytes)")
    }
}
