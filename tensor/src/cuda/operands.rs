//! The operands of a kernel that is enqueued: where they are, not what they hold.

use std::ops::Range;

use lowtide_allocator::Buffer;

use crate::cuda::gate::Argument;
use crate::dtype::DType;
use crate::layout::Layout;
use crate::tensor::Tensor;

/// The operands of a kernel, locked while it is enqueued, in the order in which they were given to
/// [`Device::launch`](crate::Device::launch).
pub struct CudaOperands<'a> {
    pub(crate) reads: &'a [&'a Tensor],
    pub(crate) writes: &'a [&'a Tensor],
}

/// An operand in the device's memory.
#[derive(Clone, Copy)]
pub struct DeviceOperand<'a>(&'a Tensor);

impl<'a> CudaOperands<'a> {
    /// The `index`-th operand that is read.
    pub fn read(&self, index: usize) -> DeviceOperand<'a> {
        DeviceOperand(self.reads[index])
    }

    /// The `index`-th operand that is written.
    pub fn write(&self, index: usize) -> DeviceOperand<'a> {
        DeviceOperand(self.writes[index])
    }

    /// How many operands are written.
    pub fn write_count(&self) -> usize {
        self.writes.len()
    }

    /// How many operands are read.
    pub fn read_count(&self) -> usize {
        self.reads.len()
    }
}

impl<'a> DeviceOperand<'a> {
    /// The block that it is in.
    pub fn block(&self) -> &'a Buffer {
        self.0.storage().buffer()
    }

    /// From its first element to the end of the last one, in bytes of the block.
    pub fn bytes(&self) -> Range<usize> {
        let (layout, size_bytes) = (self.0.layout(), self.dtype().size_bytes());
        // The offset of a view without elements may lie anywhere: row 1 of [2, 0] is at 1.
        let start = if layout.span_len() == 0 { 0 } else { layout.offset() * size_bytes };
        start..start + layout.span_len() * size_bytes
    }

    /// It as memory that a kernel only reads.
    pub fn to_read(&self) -> Argument<'a> {
        Argument::read(self.block(), self.bytes())
    }

    /// It as memory that a kernel writes.
    pub fn to_write(&self) -> Argument<'a> {
        Argument::write(self.block(), self.bytes())
    }

    /// What follows its `element`-th place in memory, as memory that a kernel only reads.
    pub(crate) fn to_read_from(self, element: usize) -> Argument<'a> {
        Argument::read(self.block(), self.bytes_from(element))
    }

    /// What follows its `element`-th place in memory, as memory that a kernel writes.
    pub(crate) fn to_write_from(self, element: usize) -> Argument<'a> {
        Argument::write(self.block(), self.bytes_from(element))
    }

    /// From its `element`-th place in memory to its end, in bytes of the block.
    pub(crate) fn bytes_from(&self, element: usize) -> Range<usize> {
        let Range { start, end } = self.bytes();
        // An operand without elements has no places.
        end.min(start + element * self.dtype().size_bytes())..end
    }

    /// Its shape and strides, in elements; the offset is that of [`DeviceOperand::bytes`].
    pub fn layout(&self) -> &'a Layout {
        self.0.layout()
    }

    /// Its element type.
    pub fn dtype(&self) -> DType {
        self.0.dtype()
    }
}
