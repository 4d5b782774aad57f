//! Kernels as their sources declare them, and the arguments of a launch.

use std::ops::Range;

use lowtide_allocator::{Buffer, PinnedBuffer};

/// A kernel as its source declares it.
///
/// # Examples
/// ```
/// use lowtide_tensor::cuda::gate::{Parameter, Signature};
///
/// // extern "C" __global__ void scale(float* y, const float* x, unsigned long long len, float by)
/// const SCALE: Signature = Signature {
///     name: "scale",
///     parameters: &[Parameter::Write, Parameter::Read, Parameter::U64, Parameter::F32],
/// };
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature {
    /// Name of the kernel in the image, which is the name in the source because of `extern "C"`.
    pub name: &'static str,
    /// Parameters of the kernel, in order.
    pub parameters: &'static [Parameter],
}

/// Largest number of bytes of arguments that every driver takes for a launch.
const ARGUMENT_BYTES_MAX: usize = 4096;

impl Signature {
    /// Bytes of all arguments of a launch.
    pub(super) fn argument_bytes(&self) -> usize {
        let end = |end, parameter: &Parameter| parameter.offset_after(end) + parameter.size_bytes();
        self.parameters.iter().fold(0, end)
    }

    /// True if the arguments fit a launch.
    pub(super) fn fits_a_launch(&self) -> bool {
        self.argument_bytes() <= ARGUMENT_BYTES_MAX
    }
}

/// One parameter of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parameter {
    /// A pointer to memory that the kernel only reads.
    Read,
    /// A pointer to memory that the kernel writes, or reads and writes.
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
    /// A structure of this number of 64-bit words, for sizes and strides.
    Words(usize),
    /// A structure of this number of `float`.
    Floats(usize),
    /// A structure of this number of pointers, each to memory that the kernel only reads or to
    /// memory that the kernel writes.
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

    /// The offset of the argument for this parameter, after arguments that end at `end`.
    pub(super) fn offset_after(self, end: usize) -> usize {
        end.next_multiple_of(match self {
            Parameter::I32 | Parameter::U32 | Parameter::F32 | Parameter::Floats(_) => 4,
            _ => 8,
        })
    }
}

/// The argument of a launch for a [`Parameter`].
#[derive(Clone, Copy, Debug)]
pub enum Argument<'a> {
    /// Bytes of a block that the kernel only reads: the block, the first byte and the end.
    Read(&'a Buffer, usize, usize),
    /// Bytes of a block that the kernel writes.
    Write(&'a Buffer, usize, usize),
    /// A page-locked block that the kernel writes: it has one address for host and device.
    WritePinned(&'a PinnedBuffer),
    /// An absent block. The kernel gets a null pointer.
    Nothing,
    /// An argument for [`Parameter::I32`].
    I32(i32),
    /// An argument for [`Parameter::U32`].
    U32(u32),
    /// An argument for [`Parameter::I64`].
    I64(i64),
    /// An argument for [`Parameter::U64`].
    U64(u64),
    /// An argument for [`Parameter::F32`].
    F32(f32),
    /// An argument for [`Parameter::F64`].
    F64(f64),
    /// An argument for [`Parameter::Words`].
    Words(&'a [u64]),
    /// An argument for [`Parameter::Floats`].
    Floats(&'a [f32]),
    /// An argument for [`Parameter::Pointers`]: memory or [`Argument::Nothing`] for each pointer.
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

    pub(super) fn fits(&self, parameter: Parameter) -> bool {
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

/// The threads of a launch, and the memory that they share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Blocks in x, y and z. Without blocks a launch does nothing.
    pub blocks: [u32; 3],
    /// Threads of each block in x, y and z.
    pub threads: [u32; 3],
    /// Bytes of shared memory of each block, in addition to the bytes that the kernel declares.
    pub shared_bytes: u32,
}

impl Grid {
    /// A grid of blocks and threads in one row.
    pub fn row(blocks: u32, threads: u32) -> Grid {
        Grid { blocks: [blocks, 1, 1], threads: [threads, 1, 1], shared_bytes: 0 }
    }
}
