//! The one launch path: every operation on every device goes through [`Device::launch`].

use std::fmt::{self, Display};
use std::panic::Location;
use std::sync::{Arc, RwLockReadGuard, RwLockWriteGuard};

use crate::cpu::Cpu;
use crate::cpu::tiles::Order;
#[cfg(feature = "cuda")]
use crate::cuda::{Cuda, CudaOperands};
#[cfg(feature = "cuda")]
use crate::device::DeviceKind;
use crate::device::{Backend, Device};
use crate::dtype::{DType, Element};
use crate::error::TensorError;
use crate::layout::{Layout, Shape};
use crate::storage::Storage;
use crate::tensor::Tensor;

/// Operations whose speed is limited by the same thing, so that one measured rate is that of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OpClass {
    /// Matrix products.
    Product,
    /// Convolutions and their gradients.
    Convolution,
    /// Those with strides, or with few pixels in a plane of the result.
    CoarseConvolution,
    /// Attention and its gradients.
    Attention,
    /// What computes each element by itself, casts and fills; what is of no other class.
    #[default]
    Elementwise,
    /// Sums, softmax and losses: what makes fewer of many elements.
    Reduction,
    /// Normalisation and its gradients: several passes over the operands.
    Normalization,
    /// Pooling and its gradients.
    Pooling,
    /// What looks elements up, places or sorts them.
    Indexing,
    /// Random numbers, dropout.
    Random,
    /// What an optimizer does to parameters.
    Update,
    /// What only moves elements, to another place of the same memory.
    Copy,
    /// What moves elements to the memory of another device: their bytes count once.
    Transfer,
}

impl OpClass {
    /// All of them.
    pub const ALL: [OpClass; 13] = [
        OpClass::Product,
        OpClass::Convolution,
        OpClass::CoarseConvolution,
        OpClass::Attention,
        OpClass::Elementwise,
        OpClass::Reduction,
        OpClass::Normalization,
        OpClass::Pooling,
        OpClass::Indexing,
        OpClass::Random,
        OpClass::Update,
        OpClass::Copy,
        OpClass::Transfer,
    ];
}

/// What reports and files call it.
impl Display for OpClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OpClass::Product => "product",
            OpClass::Convolution => "convolution",
            OpClass::CoarseConvolution => "coarse convolution",
            OpClass::Attention => "attention",
            OpClass::Elementwise => "elementwise",
            OpClass::Reduction => "reduction",
            OpClass::Normalization => "normalization",
            OpClass::Pooling => "pooling",
            OpClass::Indexing => "indexing",
            OpClass::Random => "random",
            OpClass::Update => "update",
            OpClass::Copy => "copy",
            OpClass::Transfer => "transfer",
        })
    }
}

/// What a kernel does to the machine, for the simulated device's time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// What limits its speed.
    pub class: OpClass,
    /// Arithmetic operations; a multiply-add counts two.
    pub flops: f64,
    /// Bytes moved from and to memory, each operand once.
    pub bytes: f64,
}

/// One operation's inner loop, on each kind of device.
///
/// The operation checks shapes, allocates its result and its workspace, and hands a kernel to
/// [`Device::launch`]; the kernel only computes. Users implement it for operations of their own.
pub trait Kernel: Sized {
    /// The operation's name, as errors show it.
    fn name(&self) -> &'static str;

    /// What running it costs. The simulated device does nothing else.
    fn cost(&self) -> Cost;

    /// Computes on the CPU. Operands come in the order in which they were given to
    /// [`Device::launch`].
    ///
    /// # Errors
    /// What only the values can show, such as a class index out of range, before it writes to a
    /// tensor that existed before the operation.
    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<(), TensorError>;

    /// Whether an NVIDIA device has a kernel for these operands. [`Device::launch`] asks before it
    /// calls [`Kernel::cuda`]. A simulated NVIDIA device asks as well, so that a plan fails where
    /// its run would.
    ///
    /// # Errors
    /// `NoKernel` when there is none.
    #[cfg(feature = "cuda")]
    fn check_cuda(&self, operands: &CudaOperands<'_>) -> Result<(), TensorError> {
        let _ = operands;
        Err(TensorError::NoKernel { op: self.name(), device: "cuda" })
    }

    /// Enqueues the same on an NVIDIA device, without waiting for it. The operands have passed
    /// [`Kernel::check_cuda`].
    ///
    /// # Errors
    /// What the driver reports; `NoKernel` where only the libraries of this machine decide.
    #[cfg(feature = "cuda")]
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<(), TensorError> {
        let _ = (cuda, operands);
        Err(TensorError::NoKernel { op: self.name(), device: "cuda" })
    }
}

/// The operands of a launched kernel, locked for as long as it runs.
pub struct Operands<'a> {
    reads: &'a [&'a Tensor],
    writes: &'a [&'a Tensor],
    /// Whether `writes[i]` has been handed out.
    taken: Vec<bool>,
}

impl<'a> Operands<'a> {
    /// How many operands are read.
    pub fn read_count(&self) -> usize {
        self.reads.len()
    }

    /// The element type of the `index`-th operand that is read.
    pub(crate) fn read_dtype(&self, index: usize) -> DType {
        self.reads[index].dtype()
    }

    /// How many operands are written.
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
        View { data, layout }
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
        // SAFETY: as in `read`, and unique: 1. the storage's lock is held for writing, and it is
        // not mapped, which `check_launch` refused;
        // 2. `check_launch` proved that no other operand touches the span; 3. `taken` lets this
        // slice exist once.
        let data = unsafe { std::slice::from_raw_parts_mut(start, layout.span_len()) };
        ViewMut { data, layout }
    }
}

/// The first element of `tensor` in host memory, and its layout counted from there.
fn pointer<T: Element>(tensor: &Tensor) -> (*mut T, Layout) {
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

/// Elements to read: a slice from the first to the last one touched, and how they lie in it.
#[derive(Clone, Copy)]
pub struct View<'a, T> {
    data: &'a [T],
    layout: Layout,
}

impl<'a, T> View<'a, T> {
    /// One value under `shape`, or nothing where that has no elements.
    pub(crate) fn repeated(value: &'a T, shape: Shape) -> Self {
        let layout = Layout::contiguous(Shape::new(&[]));
        let layout = layout.expand(shape).expect("one element stretches to every shape");
        View { data: std::slice::from_ref(value), layout }
    }

    /// From the first element to the last one touched.
    pub fn data(&self) -> &'a [T] {
        self.data
    }

    /// The shape and strides inside [`View::data`].
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The elements in row-major order.
    ///
    /// # Panics
    /// When they are not contiguous; the operation has to see to that.
    pub fn slice(&self) -> &'a [T] {
        assert!(self.layout.is_contiguous(), "the operation promised a contiguous operand");
        self.data
    }
}

/// Elements to write; see [`View`].
pub struct ViewMut<'a, T> {
    data: &'a mut [T],
    layout: Layout,
}

impl<'a, T> ViewMut<'a, T> {
    /// From the first element to the last one touched.
    pub fn data(&mut self) -> &mut [T] {
        self.data
    }

    /// The shape and strides inside [`ViewMut::data`].
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// From the first element to the last one touched, for as long as the kernel runs.
    pub(crate) fn into_data(self) -> &'a mut [T] {
        self.data
    }

    /// The elements in row-major order.
    ///
    /// # Panics
    /// When they are not contiguous; the operation has to see to that.
    pub fn slice(self) -> &'a mut [T] {
        assert!(self.layout.is_contiguous(), "the operation promised a contiguous operand");
        self.data
    }
}

/// A held lock of a launch; dropping it releases it.
#[expect(dead_code, reason = "guards are held, not looked at")]
enum Guard<'a> {
    Read(RwLockReadGuard<'a, ()>),
    Write(RwLockWriteGuard<'a, ()>),
}

impl Device {
    /// Runs `kernel` over the operands: locks each distinct storage once, in address order, for
    /// writing where any operand writes; bumps the versions of what is written.
    ///
    /// On a simulated device only the kernel's cost is added up.
    ///
    /// # Errors
    /// Operands on other devices, a destination that is frozen or that overlaps another operand
    /// or itself, and what the kernel reports.
    #[track_caller]
    pub fn launch(
        &self,
        kernel: impl Kernel,
        reads: &[&Tensor],
        writes: &[&Tensor],
    ) -> Result<(), TensorError> {
        let site = Location::caller();
        self.check_launch(kernel.name(), reads, writes)?;
        let outcome = match self.backend() {
            Backend::Sim(sim) => {
                #[cfg(feature = "cuda")]
                if self.kind() == DeviceKind::Cuda {
                    kernel.check_cuda(&CudaOperands { reads, writes })?;
                }
                await_copies(reads, writes)?;
                sim.advance(kernel.cost());
                Ok(())
            }
            Backend::Cpu(cpu) => {
                let _guards = lock(reads, writes);
                let taken = vec![false; writes.len()];
                kernel.cpu(cpu, &mut Operands { reads, writes, taken })
            }
            #[cfg(feature = "cuda")]
            Backend::Cuda(cuda) => {
                let operands = CudaOperands { reads, writes };
                kernel.check_cuda(&operands)?;
                let _guards = lock(reads, writes);
                cuda.retried(|| await_copies(reads, writes))?;
                kernel.cuda(cuda, &operands)
            }
        };
        // A kernel that fails has not written, so that what is in place stays as it was.
        outcome.map_err(|error| error.called_by(site))?;
        for tensor in writes {
            tensor.storage().note_write(site);
        }
        Ok(())
    }

    /// What [`Device::launch`] checks before it runs a kernel.
    #[track_caller]
    pub(crate) fn check_launch(
        &self,
        op: &'static str,
        reads: &[&Tensor],
        writes: &[&Tensor],
    ) -> Result<(), TensorError> {
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

/// Makes the stream that computes wait for what is still on its way from the host.
#[track_caller]
fn await_copies(reads: &[&Tensor], writes: &[&Tensor]) -> Result<(), TensorError> {
    let mut operands = reads.iter().chain(writes);
    Ok(operands.try_for_each(|tensor| tensor.storage().await_copy())?)
}

/// Whether a destination may touch another operand. Sorted by where they start, so that the time
/// is not quadratic in the parameters that an optimizer updates at once.
pub(crate) fn overlap(reads: &[&Tensor], writes: &[&Tensor]) -> bool {
    let of = |tensors: &[&Tensor], is_write: bool| -> Vec<(usize, usize, usize, bool)> {
        let span = |tensor: &&Tensor| {
            let span = tensor.layout().span();
            (Arc::as_ptr(tensor.storage()).addr(), span.start, span.end, is_write)
        };
        tensors.iter().map(span).filter(|&(_, start, end, _)| start < end).collect()
    };
    let mut spans = of(writes, true);
    spans.extend(of(reads, false));
    spans.sort_unstable();
    // In the storage at hand: where what has been seen ends, and what of it is written.
    let (mut storage, mut ends) = (0, [0; 2]);
    spans.iter().any(|&(of, start, end, is_write)| {
        if of != storage {
            (storage, ends) = (of, [0; 2]);
        }
        let [end_of_any, end_of_writes] = ends;
        let overlaps = start < if is_write { end_of_any } else { end_of_writes };
        ends = [end_of_any.max(end), if is_write { end_of_writes.max(end) } else { end_of_writes }];
        overlaps
    })
}

/// Locks each distinct storage once. The common order makes concurrent launches free of deadlock.
fn lock<'a>(reads: &[&'a Tensor], writes: &[&'a Tensor]) -> Vec<Guard<'a>> {
    let of = |tensors: &[&'a Tensor], write: bool| -> Vec<(&'a Storage, bool)> {
        tensors.iter().map(|tensor| (&**tensor.storage(), write)).collect()
    };
    let mut wanted = of(writes, true);
    wanted.extend(of(reads, false));
    // Writers sort before readers of the same storage, so that `dedup` keeps the stronger lock.
    wanted.sort_by_key(|&(storage, write)| (std::ptr::from_ref(storage).addr(), !write));
    wanted.dedup_by(|later, kept| std::ptr::eq(later.0, kept.0));
    let guard = |(storage, write): (&'a Storage, bool)| match write {
        true => Guard::Write(storage.lock_write()),
        false => Guard::Read(storage.lock_read()),
    };
    wanted.into_iter().map(guard).collect()
}
