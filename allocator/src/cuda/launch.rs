//! What a kernel takes, and its launch.

use std::ffi::c_void;
use std::ops::Range;

use super::error::CudaError;
use super::kernel_error::KernelError;
use super::module::Function;
use super::streams::CudaStreams;
use super::table::Extent;
use crate::caching::buffer::Buffer;
use crate::caching::pinned::PinnedBuffer;
use crate::stream::Stream;

/// A kernel as its source declares it.
///
/// # Examples
/// ```
/// use lowtide_allocator::cuda::{Kernel, Parameter};
///
/// // extern "C" __global__ void scale(float* y, const float* x, unsigned long long len, float by)
/// const SCALE: Kernel = Kernel {
///     name: "scale",
///     parameters: &[Parameter::Write, Parameter::Read, Parameter::U64, Parameter::F32],
/// };
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Its name in the image, which `extern "C"` keeps as it is in the source.
    pub name: &'static str,
    /// What it takes, in order.
    pub parameters: &'static [Parameter],
}

/// One parameter of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parameter {
    /// A pointer to memory that it only reads.
    Read,
    /// A pointer to memory that it writes, or reads and writes.
    Write,
    /// `int`.
    I32,
    /// `unsigned`.
    U32,
    /// `long long`.
    I64,
    /// `unsigned long long`.
    U64,
    /// `float`.
    F32,
    /// `double`.
    F64,
    /// A structure that is as many 64-bit words long, for sizes and strides.
    Words(usize),
    /// A structure of as many `float`.
    Floats(usize),
    /// A structure of as many pointers, each to memory that it only reads or to memory that it
    /// writes.
    Pointers(usize),
}

impl Parameter {
    pub(super) fn size_bytes(self) -> usize {
        match self {
            Parameter::I32 | Parameter::U32 | Parameter::F32 => 4,
            Parameter::Words(len) | Parameter::Pointers(len) => 8 * len,
            Parameter::Floats(len) => 4 * len,
            _ => 8,
        }
    }

    /// Where it lies when what comes before it ends at `end`.
    pub(super) fn offset_after(self, end: usize) -> usize {
        end.next_multiple_of(match self {
            Parameter::I32 | Parameter::U32 | Parameter::F32 | Parameter::Floats(_) => 4,
            _ => 8,
        })
    }
}

/// What a launch gives for a [`Parameter`].
#[derive(Clone, Copy, Debug)]
pub enum Argument<'a> {
    /// Bytes of a block that the kernel only reads: the block, the first byte and the end.
    Read(&'a Buffer, usize, usize),
    /// Bytes of a block that the kernel writes.
    Write(&'a Buffer, usize, usize),
    /// A page-locked block that the kernel writes: it has one address for host and device.
    WritePinned(&'a PinnedBuffer),
    /// No memory, where a kernel may do without some: it gets a null pointer.
    Nothing,
    /// For [`Parameter::I32`].
    I32(i32),
    /// For [`Parameter::U32`].
    U32(u32),
    /// For [`Parameter::I64`].
    I64(i64),
    /// For [`Parameter::U64`].
    U64(u64),
    /// For [`Parameter::F32`].
    F32(f32),
    /// For [`Parameter::F64`].
    F64(f64),
    /// For [`Parameter::Words`].
    Words(&'a [u64]),
    /// For [`Parameter::Floats`].
    Floats(&'a [f32]),
    /// For [`Parameter::Pointers`]: memory, or none, for each of them.
    Pointers(&'a [Argument<'a>]),
}

impl<'a> Argument<'a> {
    /// Bytes of a block that the kernel only reads.
    pub fn read(block: &'a Buffer, range: Range<usize>) -> Argument<'a> {
        Argument::Read(block, range.start, range.end)
    }

    /// Bytes of a block that the kernel writes, or reads and writes.
    pub fn write(block: &'a Buffer, range: Range<usize>) -> Argument<'a> {
        Argument::Write(block, range.start, range.end)
    }

    fn fits(&self, parameter: Parameter) -> bool {
        match (self, parameter) {
            (Argument::Nothing, Parameter::Read | Parameter::Write)
            | (Argument::Read(..), Parameter::Read)
            | (Argument::Write(..) | Argument::WritePinned(_), Parameter::Write)
            | (Argument::I32(_), Parameter::I32)
            | (Argument::U32(_), Parameter::U32)
            | (Argument::I64(_), Parameter::I64)
            | (Argument::U64(_), Parameter::U64)
            | (Argument::F32(_), Parameter::F32)
            | (Argument::F64(_), Parameter::F64) => true,
            (Argument::Words(words), Parameter::Words(len)) => words.len() == len,
            (Argument::Floats(floats), Parameter::Floats(len)) => floats.len() == len,
            (Argument::Pointers(all), Parameter::Pointers(len)) => {
                all.len() == len && all.iter().all(Argument::is_memory)
            }
            _ => false,
        }
    }

    fn is_memory(&self) -> bool {
        self.fits(Parameter::Read) || self.fits(Parameter::Write)
    }
}

/// How many threads a launch runs, and what they share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Blocks in x, y and z. Without blocks a launch does nothing.
    pub blocks: [u32; 3],
    /// Threads of each block in x, y and z.
    pub threads: [u32; 3],
    /// Shared memory of each block beside what the kernel declares.
    pub shared_bytes: u32,
}

impl Grid {
    /// Blocks and threads in one row.
    pub fn row(blocks: u32, threads: u32) -> Grid {
        Grid { blocks: [blocks, 1, 1], threads: [threads, 1, 1], shared_bytes: 0 }
    }
}

/// Bytes of arguments that fit a launch: what every driver takes.
const ARGUMENT_BYTES_MAX: usize = 4096;

/// Where arguments for these parameters end.
fn end_bytes(parameters: &[Parameter]) -> usize {
    let end = |end, parameter: &Parameter| parameter.offset_after(end) + parameter.size_bytes();
    parameters.iter().fold(0, end)
}

/// Whether arguments for these parameters fit a launch.
pub(super) fn can_be_packed(parameters: &[Parameter]) -> bool {
    end_bytes(parameters) <= ARGUMENT_BYTES_MAX
}

/// Arguments as the driver takes them: each at a multiple of its own size.
struct Packed {
    words: Vec<u64>,
    len: usize,
    /// The memory that they name.
    extents: Vec<Extent>,
}

impl Packed {
    /// Room for arguments of these parameters.
    fn new(parameters: &[Parameter]) -> Packed {
        let words = vec![0; end_bytes(parameters).div_ceil(8)];
        Packed { words, len: 0, extents: Vec::new() }
    }

    fn push(&mut self, value: u64, size_bytes: usize) {
        let offset = self.len.next_multiple_of(size_bytes);
        // The words are little-endian on every machine that has such a device.
        self.words[offset / 8] |= value << (8 * (offset % 8));
        self.len = offset + size_bytes;
    }

    fn push_memory(&mut self, address: u64, size_bytes: usize, is_written: u64) {
        self.push(address, 8);
        let size_bytes = size_bytes as u64;
        self.extents.push(Extent { address, size_bytes, is_written });
    }
}

impl CudaStreams {
    /// Enqueues a launch of a kernel.
    ///
    /// What the arguments are is compared with what the kernel was declared to take, and blocks
    /// with what belongs to the device.
    ///
    /// # Errors
    /// An argument is of another kind than its parameter or is outside its block, or the driver
    /// refused. Work that fails while it runs is told by a later call of any kind.
    ///
    /// # Streams
    /// As for copies: blocks of other streams are to be told, and their streams waited for.
    ///
    /// # Safety
    /// 1. The kernel has the parameters that were declared; drivers since CUDA 12.4 are asked, for
    ///    others it is up to the caller. 2. With these arguments and this grid it uses no memory
    ///    but its own and the bytes of the blocks that it is given, and writes only those that are
    ///    given to be written: it could reach what the driver keeps page-locked for the host.
    /// 3. A page-locked block that it is given is of a [`CudaHostSource`](super::CudaHostSource),
    ///    and the host does not touch it until it has waited for the stream.
    pub unsafe fn launch(
        &self,
        stream: Stream,
        function: &Function,
        grid: Grid,
        arguments: &[Argument<'_>],
    ) -> Result<(), KernelError> {
        let kernel = function.name();
        if function.device().context() != self.device().context() {
            return Err(KernelError::OtherDevice { kernel });
        }
        let packed = self.pack(function, arguments)?;
        if grid.blocks.contains(&0) {
            return Ok(());
        }
        let queue = self.queue(stream).map_err(|cause| KernelError::Call { kernel, cause })?;
        let ([bx, by, bz], [tx, ty, tz]) = (grid.blocks, grid.threads);
        let mut len = packed.len;
        // CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE and CU_LAUNCH_PARAM_END.
        let extra: [*mut c_void; 5] = [
            std::ptr::without_provenance_mut(1),
            packed.words.as_ptr().cast_mut().cast(),
            std::ptr::without_provenance_mut(2),
            (&raw mut len).cast(),
            std::ptr::null_mut(),
        ];
        let handle = function.handle();
        let call = self.device().call("cuLaunchKernel", |table| {
            if let Some(extents) = table.extents {
                // SAFETY: the function reads that many extents, and is the pretend driver's.
                unsafe { extents(packed.extents.as_ptr(), packed.extents.len()) };
            }
            let (shared, none, extra) = (grid.shared_bytes, std::ptr::null(), extra.as_ptr());
            // SAFETY: 1. the function is of this device and its module is loaded. 2. The driver
            // copies the arguments, whose address and length `extra` tells, before it returns.
            // 3. What the kernel does with them is the caller's promise.
            unsafe { (table.launch)(handle, bx, by, bz, tx, ty, tz, shared, queue, none, extra) }
        });
        call.map_err(|cause| KernelError::Call { kernel, cause })
    }

    fn pack(&self, function: &Function, arguments: &[Argument<'_>]) -> Result<Packed, KernelError> {
        let (kernel, parameters) = (function.name(), function.parameters());
        let wrong = |index: usize| {
            let expected = parameters.get(index).copied();
            KernelError::WrongArgument { kernel, index, expected }
        };
        if arguments.len() != parameters.len() {
            return Err(wrong(arguments.len().min(parameters.len())));
        }
        let mut packed = Packed::new(parameters);
        for (index, (argument, &parameter)) in arguments.iter().zip(parameters).enumerate() {
            if !argument.fits(parameter) {
                return Err(wrong(index));
            }
            let pushed = self.push(&mut packed, argument);
            pushed.map_err(|cause| KernelError::Call { kernel, cause })?;
        }
        Ok(packed)
    }

    fn push(&self, packed: &mut Packed, argument: &Argument<'_>) -> Result<(), CudaError> {
        match *argument {
            Argument::Read(block, start, end) => {
                let (address, size_bytes) = self.place(block, start..end)?;
                packed.push_memory(address, size_bytes, 0);
            }
            Argument::Write(block, start, end) => {
                let (address, size_bytes) = self.place(block, start..end)?;
                packed.push_memory(address, size_bytes, 1);
            }
            Argument::WritePinned(pinned) => {
                let block = pinned.block();
                packed.push_memory(block.address(), block.size_bytes(), 1);
            }
            Argument::Nothing => packed.push(0, 8),
            Argument::I32(value) => packed.push(u64::from(value.cast_unsigned()), 4),
            Argument::U32(value) => packed.push(u64::from(value), 4),
            Argument::I64(value) => packed.push(value.cast_unsigned(), 8),
            Argument::U64(value) => packed.push(value, 8),
            Argument::F32(value) => packed.push(u64::from(value.to_bits()), 4),
            Argument::F64(value) => packed.push(value.to_bits(), 8),
            Argument::Words(words) => words.iter().for_each(|&word| packed.push(word, 8)),
            Argument::Floats(floats) => {
                floats.iter().for_each(|float| packed.push(u64::from(float.to_bits()), 4));
            }
            Argument::Pointers(all) => {
                all.iter().try_for_each(|memory| self.push(packed, memory))?;
            }
        }
        Ok(())
    }
}
