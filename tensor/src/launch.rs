//! The one launch path: every operation on every device goes through [`Device::launch`].

use std::cell::RefCell;
use std::panic::Location;
use std::sync::{Arc, RwLockReadGuard, RwLockWriteGuard};

use crate::cost::Cost;
use crate::cpu::Cpu;
use crate::cpu::tiles::Order;
#[cfg(feature = "cuda")]
use crate::cuda::{Cuda, CudaOperands, OnCuda};
use crate::device::{Backend, Device};
use crate::dtype::{DType, Element};
use crate::error::{Result, TensorError};
use crate::layout::Layout;
use crate::operand_view::{View, ViewMut};
#[cfg(feature = "cuda")]
use crate::spec::DeviceKind;
use crate::storage::Storage;
use crate::tensor::Tensor;

/// One operation's inner loop, on each kind of device.
///
/// The operation checks shapes, allocates its result and its workspace, and hands a kernel to
/// [`Device::launch`]; the kernel only computes. Users implement this trait for operations of their
/// own. NVIDIA devices refuse a kernel without a half for NVIDIA devices, with an error that names
/// the kernel.
pub trait Kernel: Sized {
    /// The operation's name, as errors show it.
    fn name(&self) -> &'static str;

    /// The cost of one run. The simulated device asks for nothing else.
    fn cost(&self) -> Cost;

    /// Computes on the CPU. Operands come in the order in which they were given to
    /// [`Device::launch`].
    ///
    /// # Errors
    /// Errors that depend on values, such as a class index out of range. A kernel has to find such
    /// an error before it writes to a tensor that existed before the operation.
    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()>;

    /// `Ok` if an NVIDIA device has a kernel for these operands. [`Device::launch`] asks before it
    /// calls [`Kernel::cuda`]. A simulated NVIDIA device asks as well, so that a plan fails where
    /// its run would.
    ///
    /// # Errors
    /// `NoKernel` when there is none.
    #[cfg(feature = "cuda")]
    fn check_cuda(&self, operands: &CudaOperands<'_>) -> Result<()> {
        let _ = operands;
        Err(TensorError::NoKernel { op: self.name(), device: "cuda" })
    }

    /// Enqueues the kernel on an NVIDIA device, without waiting for it. The operands have passed
    /// [`Kernel::check_cuda`].
    ///
    /// # Errors
    /// Errors of the driver; `NoKernel` if only the libraries of this machine can decide, and they
    /// lack the operation.
    #[cfg(feature = "cuda")]
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let _ = (cuda, operands);
        Err(TensorError::NoKernel { op: self.name(), device: "cuda" })
    }
}

/// A [`Kernel`] of this crate that has a half for NVIDIA devices, in the `cuda.rs` of its folder.
/// The methods are as in [`Kernel`].
pub(crate) trait FullKernel: OnCuda + Sized {
    fn name(&self) -> &'static str;
    fn cost(&self) -> Cost;
    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()>;
}

/// Empty in builds without NVIDIA devices.
#[cfg(not(feature = "cuda"))]
pub(crate) trait OnCuda {}

#[cfg(not(feature = "cuda"))]
impl<K> OnCuda for K {}

impl<K: FullKernel> Kernel for K {
    fn name(&self) -> &'static str {
        FullKernel::name(self)
    }

    fn cost(&self) -> Cost {
        FullKernel::cost(self)
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        FullKernel::cpu(self, cpu, operands)
    }

    #[cfg(feature = "cuda")]
    fn check_cuda(&self, operands: &CudaOperands<'_>) -> Result<()> {
        OnCuda::check(self, operands)
    }

    #[cfg(feature = "cuda")]
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        OnCuda::cuda(self, cuda, operands)
    }
}

/// The operands of a launched kernel, locked for as long as it runs.
pub struct Operands<'a> {
    reads: &'a [&'a Tensor],
    writes: &'a [&'a Tensor],
    /// True at `i` once `writes[i]` has been handed out.
    taken: Vec<bool>,
}

impl<'a> Operands<'a> {
    /// The number of operands that are read.
    pub fn read_count(&self) -> usize {
        self.reads.len()
    }

    /// The element type of the `index`-th operand that is read.
    pub(crate) fn read_dtype(&self, index: usize) -> DType {
        self.reads[index].dtype()
    }

    /// The number of operands that are written.
    pub fn write_count(&self) -> usize {
        self.writes.len()
    }

    /// The element type of the `index`-th operand that is written.
    pub(crate) fn write_dtype(&self, index: usize) -> DType {
        self.writes[index].dtype()
    }

    /// The order in which the `index`-th operand that is written lies in memory.
    pub(crate) fn write_order(&self, index: usize) -> Order {
        Order::of(self.writes[index].layout())
    }

    /// The `index`-th operand that is read.
    ///
    /// # Panics
    /// When `T` is not its element type: a bug in the operation.
    #[expect(unsafe_code, reason = "the one place where locked memory becomes a slice to read")]
    pub fn read<T: Element>(&self, index: usize) -> View<'a, T> {
        let tensor = self.reads[index];
        let (start, layout) = pointer::<T>(tensor);
        // SAFETY: a shared slice needs memory that is valid, aligned, initialised and not written:
        // 1. `pointer` checked type, alignment and that the span ends inside the buffer;
        // 2. buffers hold plain numbers from the start (the source hands out zeroed pages), and
        //    so do files;
        // 3. the storage's lock is held for 'a, and `check_launch` proved that no write operand of
        //    this launch touches the span.
        let data = unsafe { std::slice::from_raw_parts(start, layout.span_len()) };
        View::new(data, layout)
    }

    /// The `index`-th operand that is written, once.
    ///
    /// # Panics
    /// When `T` is not its element type or it is asked for twice: a bug in the operation.
    #[expect(unsafe_code, reason = "the one place where locked memory becomes a slice to write")]
    pub fn write<T: Element>(&mut self, index: usize) -> ViewMut<'a, T> {
        let was_taken = std::mem::replace(&mut self.taken[index], true);
        assert!(!was_taken, "write operand {index} was taken already");
        let tensor = self.writes[index];
        let (start, layout) = pointer::<T>(tensor);
        // SAFETY: as in `read`, and unique: 1. the storage's lock is held for writing, and
        // `check_launch` refused a storage that is mapped; 2. `check_launch` proved that no other
        // operand touches the span; 3. `taken` lets this slice exist once.
        let data = unsafe { std::slice::from_raw_parts_mut(start, layout.span_len()) };
        ViewMut::new(data, layout)
    }
}

/// The first element of `tensor` in host memory, and its layout counted from there.
fn pointer<T: Element>(tensor: &Tensor) -> (*mut T, Layout) {
    const { assert!(size_of::<T>() == T::DTYPE.size_bytes()) };
    assert_eq!(tensor.dtype(), T::DTYPE, "a kernel asked for the wrong element type");
    let layout = *tensor.layout();
    let storage = tensor.storage();
    let (base, size_bytes) = match storage.mapped() {
        Some(mapped) => (Some(mapped.pointer()), mapped.size_bytes()),
        None => (storage.buffer().as_ptr(), storage.buffer().size_bytes()),
    };
    let base = base.expect("kernels run only where memory is").cast::<T>();
    assert!(base.is_aligned(), "buffers are aligned for every element type");
    if layout.span_len() == 0 {
        // The offset of a view without elements may lie anywhere: row 1 of [2, 0] is at 1.
        return (base.as_ptr(), layout);
    }
    let end_bytes = (layout.offset() + layout.span_len()) * size_of::<T>();
    assert!(end_bytes <= size_bytes, "a layout of {end_bytes} bytes leaves its buffer");
    (base.as_ptr().wrapping_add(layout.offset()), layout)
}

/// A held lock of a launch, released when it is dropped.
#[expect(dead_code, reason = "guards are held, not looked at")]
enum Guard<'a> {
    Read(RwLockReadGuard<'a, ()>),
    Write(RwLockWriteGuard<'a, ()>),
}

impl Device {
    /// Runs `kernel` over the operands: locks each distinct storage once, in address order, for
    /// writing where any operand writes; bumps the versions of the storages that are written.
    ///
    /// On a simulated device only the kernel's cost is added up.
    ///
    /// # Errors
    /// Operands on other devices, a destination that is frozen or that overlaps another operand
    /// or itself, and errors of the kernel; `InUse` inside a kernel, for an operand that the kernel
    /// writes, or reads and the launch would write, or that another thread uses.
    #[track_caller]
    pub fn launch(&self, kernel: impl Kernel, reads: &[&Tensor], writes: &[&Tensor]) -> Result<()> {
        let site = Location::caller();
        self.check_launch(kernel.name(), reads, writes)?;
        self.check_kernel(&kernel, reads, writes)?;
        let outcome = match self.backend() {
            Backend::Sim(sim) => {
                await_copies(reads, writes)?;
                sim.advance(kernel.cost(), self.rates());
                Ok(())
            }
            Backend::Cpu(cpu) => {
                let _locks = lock(kernel.name(), reads, writes)?;
                let taken = vec![false; writes.len()];
                kernel.cpu(cpu, &mut Operands { reads, writes, taken })
            }
            #[cfg(feature = "cuda")]
            Backend::Cuda(cuda) => {
                let _locks = lock(kernel.name(), reads, writes)?;
                cuda.retried(|| await_copies(reads, writes))?;
                kernel.cuda(cuda, &CudaOperands { reads, writes })
            }
        };
        // A kernel that fails has not written, so that an operand in place stays as it was.
        outcome.map_err(|error| error.called_by(site))?;
        for tensor in writes {
            tensor.storage().note_write(site);
        }
        Ok(())
    }

    /// `Ok` if the device, or the device that it stands for, has a kernel for these operands.
    pub(crate) fn check_kernel(
        &self,
        kernel: &impl Kernel,
        reads: &[&Tensor],
        writes: &[&Tensor],
    ) -> Result<()> {
        #[cfg(feature = "cuda")]
        if self.kind() == DeviceKind::Cuda {
            return kernel.check_cuda(&CudaOperands { reads, writes });
        }
        let _ = (kernel, reads, writes);
        Ok(())
    }

    /// Checks the operands. [`Device::launch`] makes these checks before it runs a kernel.
    #[track_caller]
    pub(crate) fn check_launch(
        &self,
        op: &'static str,
        reads: &[&Tensor],
        writes: &[&Tensor],
    ) -> Result<()> {
        let site = Location::caller();
        if let Some(other) = reads.iter().chain(writes).find(|tensor| tensor.device() != self) {
            return Err(TensorError::devices(op, self, other.device()));
        }
        if writes.iter().any(|write| write.storage().is_frozen()) {
            return Err(TensorError::Frozen { op, site });
        }
        if writes.iter().any(|write| write.is_mapped()) {
            return Err(TensorError::ReadOnly { op, site });
        }
        let repeats = writes.iter().any(|write| write.layout().repeats_elements());
        if repeats || overlap(reads, writes) {
            return Err(TensorError::Overlap { op, site });
        }
        Ok(())
    }
}

/// Makes the compute stream wait for operands that are still on their way from the host.
#[track_caller]
fn await_copies(reads: &[&Tensor], writes: &[&Tensor]) -> Result<()> {
    let mut operands = reads.iter().chain(writes);
    Ok(operands.try_for_each(|tensor| tensor.storage().await_copy())?)
}

/// The elements of an operand that a launch touches. Ordered by storage, then by start.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Span {
    storage: usize,
    start: usize,
    end: usize,
    is_written: bool,
}

/// True if a destination may touch another operand. Spans are sorted by their starts, so that the
/// time is not quadratic in the parameters that an optimizer updates at once.
pub(crate) fn overlap(reads: &[&Tensor], writes: &[&Tensor]) -> bool {
    let span = |tensor: &Tensor, is_written| {
        let span = tensor.layout().span();
        let storage = Arc::as_ptr(tensor.storage()).addr();
        Span { storage, start: span.start, end: span.end, is_written }
    };
    let mut spans: Vec<Span> = writes.iter().map(|tensor| span(tensor, true)).collect();
    spans.extend(reads.iter().map(|tensor| span(tensor, false)));
    spans.retain(|span| span.start < span.end);
    spans.sort_unstable();
    // The largest ends so far in one storage, of all spans and of written spans.
    let (mut storage, mut end_of_any, mut end_of_writes) = (0, 0, 0);
    spans.iter().any(|span| {
        if span.storage != storage {
            (storage, end_of_any, end_of_writes) = (span.storage, 0, 0);
        }
        let overlaps = span.start < if span.is_written { end_of_any } else { end_of_writes };
        end_of_any = end_of_any.max(span.end);
        if span.is_written {
            end_of_writes = end_of_writes.max(span.end);
        }
        overlaps
    })
}

/// A lock that a launch needs.
struct Wanted<'a> {
    storage: &'a Storage,
    is_written: bool,
}

impl Wanted<'_> {
    fn address(&self) -> usize {
        std::ptr::from_ref(self.storage).addr()
    }
}

thread_local! {
    /// The storages that launches of this thread hold, by address, and true where one writes. Not
    /// empty while a kernel runs that may launch others.
    static HELD: RefCell<Vec<(usize, bool)>> = const { RefCell::new(Vec::new()) };
}

/// The locks of one launch. Dropping them takes their storages off [`HELD`].
struct Locks<'a> {
    guards: Vec<Guard<'a>>,
}

impl Drop for Locks<'_> {
    fn drop(&mut self) {
        // A launch inside a kernel ends before the kernel does, so its storages are the last ones.
        HELD.with_borrow_mut(|held| held.truncate(held.len() - self.guards.len()));
    }
}

/// Locks each distinct storage once. The common order makes concurrent launches free of deadlock.
/// A kernel that launches others holds its own operands meanwhile, out of that order: what it needs
/// is taken at once or not at all.
///
/// # Errors
/// `InUse` inside a kernel, for a storage that this thread writes, or reads and now would write, or
/// that another thread has locked.
#[track_caller]
fn lock<'a>(op: &'static str, reads: &[&'a Tensor], writes: &[&'a Tensor]) -> Result<Locks<'a>> {
    let want = |tensor: &&'a Tensor, is_written| Wanted { storage: tensor.storage(), is_written };
    let mut wanted: Vec<Wanted<'_>> = writes.iter().map(|tensor| want(tensor, true)).collect();
    wanted.extend(reads.iter().map(|tensor| want(tensor, false)));
    // Writers sort before readers of the same storage, so that `dedup` keeps the stronger lock.
    wanted.sort_by_key(|wanted| (wanted.address(), !wanted.is_written));
    wanted.dedup_by_key(|wanted| wanted.address());
    let site = Location::caller();
    let mut locks = Locks { guards: Vec::with_capacity(wanted.len()) };
    let outer = HELD.with_borrow(|held| held.clone());
    for Wanted { storage, is_written } in wanted {
        let address = std::ptr::from_ref(storage).addr();
        let of_outer = outer.iter().find(|(held, _)| *held == address);
        let guard = match (of_outer, outer.is_empty(), is_written) {
            // The kernel that launches this one holds the lock until both have run.
            (Some((_, false)), _, false) => continue,
            (Some(_), _, _) => None,
            (None, true, true) => Some(Guard::Write(storage.lock_write())),
            (None, true, false) => Some(Guard::Read(storage.lock_read())),
            (None, false, true) => storage.try_lock_write().map(Guard::Write),
            (None, false, false) => storage.try_lock_read().map(Guard::Read),
        };
        locks.guards.push(guard.ok_or(TensorError::InUse { op, site })?);
        HELD.with_borrow_mut(|held| held.push((address, is_written)));
    }
    Ok(locks)
}
