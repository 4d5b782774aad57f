//! An operand of a kernel that is enqueued: a place in the device's memory, not its values.

use std::ops::Range;

use lowtide_allocator::Buffer;

use super::gate::Argument;
use crate::dtype::DType;
use crate::layout::Layout;

/// An operand in the device's memory.
#[derive(Clone, Copy)]
pub struct DeviceOperand<'a> {
    pub(super) block: &'a Buffer,
    pub(super) layout: &'a Layout,
    pub(super) dtype: DType,
}

impl<'a> DeviceOperand<'a> {
    /// The block that holds the operand.
    pub fn block(&self) -> &'a Buffer {
        self.block
    }

    /// The range from the first element to the end of the last one, in bytes of the block.
    pub fn bytes(&self) -> Range<usize> {
        let (layout, size_bytes) = (self.layout, self.dtype.size_bytes());
        // The offset of a view without elements may lie anywhere: row 1 of [2, 0] is at 1.
        let start = if layout.span_len() == 0 { 0 } else { layout.offset() * size_bytes };
        start..start + layout.span_len() * size_bytes
    }

    /// The operand as memory that a kernel only reads.
    pub fn to_read(&self) -> Argument<'a> {
        Argument::read(self.block, self.bytes())
    }

    /// The operand as memory that a kernel writes.
    pub fn to_write(&self) -> Argument<'a> {
        Argument::write(self.block, self.bytes())
    }

    /// The memory from the `element`-th place on, which a kernel only reads.
    pub(crate) fn to_read_from(self, element: usize) -> Argument<'a> {
        Argument::read(self.block, self.bytes_from(element))
    }

    /// The memory from the `element`-th place on, which a kernel writes.
    pub(crate) fn to_write_from(self, element: usize) -> Argument<'a> {
        Argument::write(self.block, self.bytes_from(element))
    }

    /// The range from the `element`-th place to the end, in bytes of the block.
    pub(crate) fn bytes_from(&self, element: usize) -> Range<usize> {
        let Range { start, end } = self.bytes();
        // An operand without elements has no places.
        end.min(start + element * self.dtype.size_bytes())..end
    }

    /// Shape and strides, in elements. The offset is the start of [`DeviceOperand::bytes`].
    pub fn layout(&self) -> &'a Layout {
        self.layout
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }
}
