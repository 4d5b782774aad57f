//! Devices: where tensors live and kernels run. The CPU computes; the simulated device runs the
//! same code and makes the same allocations, but has no memory and no values; see `cuda/` for
//! NVIDIA devices.

use std::fmt::{self, Debug};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lowtide_allocator::{
    CachingAllocator, Category, CategoryScope, HostSource, PinnedCache, SimSource, SimStreams,
    Stream,
};

use crate::accelerator::Accelerator;
use crate::copy_stream::COPIES;
use crate::cost::OpClass;
use crate::cpu::Cpu;
#[cfg(feature = "cuda")]
use crate::cuda::Cuda;
use crate::error::{DeviceLabel, TensorError};
use crate::rates::{Rates, SimulatedWork};
use crate::sim::{Assumption, Sim};
use crate::spec::{DeviceKind, SimSpec, available_threads};

/// A cheap handle to a device; all handles of one device share its allocator.
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    allocator: CachingAllocator,
    backend: Backend,
    /// The device as it was opened. [`Device::spec`] asks the allocator for capacity and pages.
    spec: SimSpec,
    mapped_bytes: Arc<AtomicUsize>,
}

/// The part of a device that computes.
pub(crate) enum Backend {
    Cpu(Cpu),
    #[cfg(feature = "cuda")]
    Cuda(Box<Cuda>),
    Sim(Box<Sim>),
}

/// Options of a CPU device.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuOptions {
    /// Memory that the device reports and enforces; all memory of the machine if absent.
    pub budget_bytes: Option<usize>,
    /// Number of threads that compute, the caller included; one per core if absent.
    pub threads: Option<usize>,
    /// Rates of the device, which only the time of plans depends on; nominal rates if absent.
    pub rates: Option<Rates>,
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
        let like = SimSpec::like_this_machine(allocator.capacity_bytes());
        let (threads, rates) = (cpu.threads(), options.rates.unwrap_or(like.rates));
        Ok(Self::new(allocator, Backend::Cpu(cpu), SimSpec { threads, rates, ..like }))
    }

    /// A simulated device: same code, same allocations, no memory.
    ///
    /// # Errors
    /// None today; the signature is like the signatures of the other devices.
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
        Ok(Self::new(allocator, Backend::Sim(Box::new(Sim::new(None))), spec))
    }

    pub(crate) fn new(allocator: CachingAllocator, backend: Backend, spec: SimSpec) -> Self {
        Device(Arc::new(Inner { allocator, backend, spec, mapped_bytes: Arc::default() }))
    }

    /// A simulated device in exactly the state of this device: the same live blocks at the same
    /// places, the same cache, charges, statistics and capacity. [`crate::Tensor::simulated_copy`]
    /// finds the copies of this device's tensors. Tensors that are not asked for stay allocated.
    pub fn simulate(&self) -> Device {
        let (simulation, spec) = (self.0.allocator.simulate(), self.spec());
        let allocator = simulation.allocator().clone();
        let sim = Sim::new(Some(simulation));
        Self::new(allocator, Backend::Sim(Box::new(sim)), spec)
    }

    /// The specification of an empty device like this one, for [`Device::sim`].
    pub fn spec(&self) -> SimSpec {
        if self.is_simulated() {
            return self.0.spec;
        }
        let statistics = self.0.allocator.statistics();
        let capacity_bytes = statistics.capacity_bytes.saturating_add(self.outside_bytes());
        let (page_bytes, mappings_max) = (statistics.page_bytes, self.allocator().mappings_max());
        SimSpec { capacity_bytes, page_bytes, mappings_max, ..self.0.spec }
    }

    /// Memory of the device that is not for tensors: see [`SimSpec::outside_bytes`].
    pub fn outside_bytes(&self) -> usize {
        self.0.spec.outside_bytes
    }

    /// The allocator that all of this device's tensors come from.
    pub fn allocator(&self) -> &CachingAllocator {
        &self.0.allocator
    }

    /// Bytes of tensors that lie in [mapped files](crate::Tensor::from_mapped), which the allocator
    /// does not count.
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

    /// True if this device has no values.
    pub fn is_simulated(&self) -> bool {
        matches!(self.0.backend, Backend::Sim(_))
    }

    /// The kind of machine that computes here, or that this simulated device stands for.
    pub fn kind(&self) -> DeviceKind {
        self.0.spec.kind
    }

    /// True if products and convolutions of f32 round their factors to tf32, which has 11 of the 24
    /// binary digits: on an NVIDIA device with this option.
    pub fn is_in_tf32(&self) -> bool {
        self.kind() == DeviceKind::Cuda && self.0.spec.tf32
    }

    /// Number of threads that compute; on a simulated device, the number in its specification.
    pub fn threads(&self) -> usize {
        self.0.spec.threads
    }

    /// Time of everything launched on a simulated device, by [`SimSpec::rates`]; 0 on real devices.
    pub fn simulated_seconds(&self) -> f64 {
        self.simulation().map_or(0.0, |sim| sim.time().seconds)
    }

    /// Work of one class launched on a simulated device; nothing on real devices.
    pub fn simulated_work(&self, class: OpClass) -> SimulatedWork {
        self.simulation().map_or_else(SimulatedWork::default, |sim| sim.time().of(class))
    }

    /// Values that simulated code assumed; empty on real devices.
    pub fn assumptions(&self) -> Vec<Assumption> {
        self.simulation().map_or_else(Vec::new, Sim::assumptions)
    }

    /// The state of a simulated device; `None` on real devices.
    pub(crate) fn simulation(&self) -> Option<&Sim> {
        match self.backend() {
            Backend::Sim(sim) => Some(sim),
            _ => None,
        }
    }

    /// The name of this device in errors.
    pub(crate) fn label(&self) -> DeviceLabel {
        let name = match self.kind() {
            _ if self.is_simulated() => "sim",
            DeviceKind::Cpu => "cpu",
            DeviceKind::Cuda => "cuda",
        };
        DeviceLabel { name, capacity_bytes: self.0.allocator.capacity_bytes() }
    }

    /// True if copies from and to the host run while kernels run.
    pub(crate) fn copies_beside(&self) -> bool {
        self.kind() == DeviceKind::Cuda
    }

    /// Page-locked memory of the host for a ring of buffers of `size_bytes` together, and the
    /// stream to allocate the buffers for. Copies to this device read the buffers directly. `None`
    /// on devices whose copies are the host's work. The memory is outside the budget of the device.
    /// A simulated device, which copies nothing, gets ordinary memory.
    ///
    /// # Errors
    /// The driver has no such memory.
    pub fn page_locked_ring(
        &self,
        size_bytes: usize,
    ) -> Result<Option<(PinnedCache, Stream)>, TensorError> {
        if let Some(accelerator) = self.accelerator() {
            return Ok(Some((accelerator.ring(size_bytes)?, COPIES)));
        }
        if !self.copies_beside() {
            return Ok(None);
        }
        let memory = HostSource::with_capacity(size_bytes);
        Ok(Some((PinnedCache::new(memory, SimStreams::new())?, COPIES)))
    }

    /// Makes copies wait for all work that was enqueued so far.
    #[track_caller]
    pub(crate) fn order_copies(&self) -> Result<(), TensorError> {
        if self.copies_beside() {
            self.retried(|| Ok(self.0.allocator.wait(COPIES, Stream::DEFAULT)?))?;
        }
        Ok(())
    }

    /// Makes a call of the driver; see [`Accelerator::retry`]. On devices without a driver the call
    /// is made once.
    pub(crate) fn retried<T>(
        &self,
        mut call: impl FnMut() -> Result<T, TensorError>,
    ) -> Result<T, TensorError> {
        let Some(accelerator) = self.accelerator() else { return call() };
        let mut made = None;
        accelerator.retry(&mut || {
            made = Some(call()?);
            Ok(())
        })?;
        Ok(made.expect("the call was made"))
    }

    /// The services of an NVIDIA device; `None` on others.
    pub(crate) fn accelerator(&self) -> Option<&dyn Accelerator> {
        match self.backend() {
            #[cfg(feature = "cuda")]
            Backend::Cuda(cuda) => Some(&**cuda),
            Backend::Cpu(_) | Backend::Sim(_) => None,
        }
    }

    /// The rates by which a simulated device counts time.
    pub(crate) fn rates(&self) -> &Rates {
        &self.0.spec.rates
    }

    pub(crate) fn backend(&self) -> &Backend {
        &self.0.backend
    }
}

impl TensorError {
    /// The error `Device` for two tensors.
    pub fn devices(op: &'static str, left: &Device, right: &Device) -> Self {
        TensorError::Device { op, left: left.label(), right: right.label() }
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
