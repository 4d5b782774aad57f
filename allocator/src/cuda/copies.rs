//! Filling and copying blocks of a device.

use std::ffi::c_void;
use std::ops::Range;

use super::error::CudaError;
use super::streams::CudaStreams;
use crate::caching::buffer::Buffer;
use crate::caching::pinned::PinnedBuffer;
use crate::stream::Stream;

/// Copies and fills of the bytes of blocks, enqueued on a stream.
///
/// # Streams
/// A block that is used on another stream than its own needs a [`Buffer::record_use`], and the
/// other stream has to wait for earlier work on the block.
impl CudaStreams {
    /// Sets bytes of a block to a value.
    ///
    /// # Errors
    /// The range is not inside a block of this device, or the driver refused.
    pub fn fill(
        &self,
        stream: Stream,
        block: &Buffer,
        range: Range<usize>,
        value: u8,
    ) -> Result<(), CudaError> {
        let (address, len) = self.place(block, range)?;
        let queue = self.queue(stream)?;
        self.device().call("cuMemsetD8Async", |table| {
            // SAFETY: the bytes are of a live block of this device. No reference of this process
            // leads to these bytes.
            unsafe { (table.fill)(address, value, len, queue) }
        })
    }

    /// Sets 4-byte words of a block to a value: zeros, ones, or any `f32` by its bits.
    ///
    /// # Errors
    /// The range is not inside a block of this device or not made of whole words, or the driver
    /// refused.
    pub fn fill_words(
        &self,
        stream: Stream,
        block: &Buffer,
        range: Range<usize>,
        value: u32,
    ) -> Result<(), CudaError> {
        let (address, size_bytes) = self.place(block, range)?;
        if !address.is_multiple_of(4) || !size_bytes.is_multiple_of(4) {
            return Err(CudaError::NotOfDevice { address, size_bytes });
        }
        let queue = self.queue(stream)?;
        self.device().call("cuMemsetD32Async", |table| {
            // SAFETY: the words are of a live block of this device. No reference of this process
            // leads to these words.
            unsafe { (table.fill_words)(address, value, size_bytes / 4, queue) }
        })
    }

    /// Copies bytes of a block to another block, or to other bytes of the same block that do not
    /// overlap.
    ///
    /// # Errors
    /// A range is not inside a block of this device, the lengths differ, or the driver refused.
    pub fn copy(
        &self,
        stream: Stream,
        from: (&Buffer, Range<usize>),
        to: (&Buffer, Range<usize>),
    ) -> Result<(), CudaError> {
        let (source, len) = self.place(from.0, from.1)?;
        let (target, target_len) = self.place(to.0, to.1)?;
        self.same_len(target, target_len, len)?;
        let queue = self.queue(stream)?;
        self.device().call("cuMemcpyDtoDAsync", |table| {
            // SAFETY: both are bytes of live blocks of this device. No reference of this process
            // leads to these bytes.
            unsafe { (table.copy_within)(target, source, len, queue) }
        })
    }

    /// Copies bytes of the host to a block, and waits until the copy is done.
    ///
    /// # Errors
    /// The range is not inside a block of this device or is not as long as `from`, or the driver
    /// refused.
    pub fn upload(
        &self,
        stream: Stream,
        from: &[u8],
        to: (&Buffer, Range<usize>),
    ) -> Result<(), CudaError> {
        let (address, len) = self.place(to.0, to.1)?;
        self.same_len(address, len, from.len())?;
        let enqueued = self.copy_in(stream, from.as_ptr().cast(), address, len);
        // Waits even if the call failed: the call may have reported earlier work, and may be
        // enqueued.
        let done = self.synchronize(stream);
        enqueued.and(done)
    }

    /// Enqueues a copy of bytes of a page-locked block to a block, from byte `start` on.
    ///
    /// The copy reads when it runs. So the page-locked block must be for this stream, or must have
    /// recorded a use on it, and must not be written before it has been [waited
    /// for](PinnedBuffer::wait).
    ///
    /// # Errors
    /// The block is of another device or shorter, or the driver refused.
    ///
    /// # Panics
    /// If the range is not within the page-locked block.
    pub fn upload_pinned(
        &self,
        stream: Stream,
        (from, range): (&PinnedBuffer, Range<usize>),
        (to, start): (&Buffer, usize),
    ) -> Result<(), CudaError> {
        let bytes = &from.as_slice()[range];
        let (address, len) = self.place(to, start..start.saturating_add(bytes.len()))?;
        self.copy_in(stream, bytes.as_ptr().cast(), address, len)
    }

    /// Copies bytes of a block to the host, and waits until the copy and all work before it are
    /// done.
    ///
    /// # Errors
    /// The range is not inside a block of this device or is not as long as `to`, or the driver
    /// refused.
    pub fn download(
        &self,
        stream: Stream,
        from: (&Buffer, Range<usize>),
        to: &mut [u8],
    ) -> Result<(), CudaError> {
        let (address, len) = self.place(from.0, from.1)?;
        self.same_len(address, len, to.len())?;
        let target: *mut c_void = to.as_mut_ptr().cast();
        let queue = self.queue(stream)?;
        let enqueued = self.device().call("cuMemcpyDtoHAsync", |table| {
            // SAFETY: 1. the source is inside a live block of this device. 2. The target has `len`
            // bytes, and is borrowed until the wait below is over.
            unsafe { (table.copy_out)(target, address, len, queue) }
        });
        // As in `upload`.
        let done = self.synchronize(stream);
        enqueued.and(done)
    }

    /// The caller ensures that the bytes live until the copy is done.
    fn copy_in(
        &self,
        stream: Stream,
        from: *const c_void,
        address: u64,
        len: usize,
    ) -> Result<(), CudaError> {
        let queue = self.queue(stream)?;
        self.device().call("cuMemcpyHtoDAsync", |table| {
            // SAFETY: 1. the target is inside a live block of this device. 2. The source is
            // borrowed by `upload` until it has waited; page-locked blocks stay mapped until their
            // cache has waited for the stream.
            unsafe { (table.copy_in)(address, from, len, queue) }
        })
    }

    /// Address and length of a range of bytes in a block.
    ///
    /// # Errors
    /// `NotOfDevice`: the range is not inside the block, or the block is not of this device.
    pub fn place(&self, block: &Buffer, range: Range<usize>) -> Result<(u64, usize), CudaError> {
        let address = block.address().saturating_add(range.start as u64);
        let size_bytes = range.end.saturating_sub(range.start);
        let is_inside = range.start <= range.end && range.end <= block.size_bytes();
        if !is_inside || !self.device().has(address, size_bytes) {
            return Err(CudaError::NotOfDevice { address, size_bytes });
        }
        Ok((address, size_bytes))
    }

    fn same_len(&self, address: u64, len: usize, other: usize) -> Result<(), CudaError> {
        let size_bytes = len.max(other);
        let is_same = len == other;
        is_same.then_some(()).ok_or(CudaError::NotOfDevice { address, size_bytes })
    }
}
