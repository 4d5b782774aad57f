//! Copies between host and device, on a stream of their own beside the compute stream.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytemuck::Pod;
use lowtide_allocator::cuda::{CudaHostSource, CudaStreams};
use lowtide_allocator::{AllocError, Buffer, PinnedBuffer, PinnedCache, SourceError, Stream};

use super::gate::Argument;
use super::operand::DeviceOperand;
use crate::copy_stream::{COPIES, room_bytes};
use crate::error::{Result, TensorError};

/// Limits of the page-locked staging memory, which has twice the size of the largest copy. A copy
/// larger than half of the staging memory is split into parts of that half.
const STAGING_BYTES: Range<usize> = 4 << 20..64 << 20;

/// The copy stream of a device, and the host's state for copies.
pub(super) struct Copies {
    streams: CudaStreams,
    /// The staging memory. The first copy allocates it, and a copy that is too large replaces it.
    staging: Mutex<Option<PinnedCache>>,
    /// Complaint of a kernel about a value: the position, from 1, or 0 for no complaint; the label
    /// there; the number of classes; the operation. Locked while a launch gets the address of the
    /// complaint, and from before a wait of the host until the host has read the complaint. So the
    /// host sees every complaint that was written before that wait.
    complaint: Mutex<Option<PinnedBuffer>>,
    /// Ids of the caches whose blocks copies read directly. The host waits for the copy stream
    /// before it writes such a block again.
    rings: Mutex<Vec<u64>>,
    /// Bytes that were copied ahead, and not asked for yet.
    ahead: Mutex<Vec<CopiedAhead>>,
}

/// Bytes of a page-locked block that are also in a block of the device.
struct CopiedAhead {
    /// The [number](PinnedBuffer::contents_id) of the page-locked bytes.
    contents: u64,
    range: Range<usize>,
    block: Arc<Buffer>,
    /// Start of the bytes in `block`.
    start: usize,
}

impl Copies {
    pub(super) fn new(streams: &CudaStreams) -> Self {
        let streams = streams.clone();
        Copies {
            streams,
            staging: Mutex::default(),
            complaint: Mutex::default(),
            rings: Mutex::default(),
            ahead: Mutex::default(),
        }
    }

    /// Enqueues a copy to a block, from byte `start` on; `bytes` may change when this returns.
    pub(super) fn upload(&self, bytes: &[u8], block: &Buffer, start: usize) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let staging = self.staging_for(bytes.len());
        let part_bytes = staging.as_ref().map_or(bytes.len(), part_bytes);
        for (part, at) in bytes.chunks(part_bytes).zip((start..).step_by(part_bytes)) {
            let staged = staging.clone().and_then(|staging| staging.allocate(COPIES, part.len()));
            match staged {
                Ok(mut staged) => {
                    staged.as_mut_slice().copy_from_slice(part);
                    self.streams.upload_pinned(COPIES, (&staged, 0..part.len()), (block, at))?;
                }
                // Without page-locked memory the driver stages the copy, and the host waits.
                Err(
                    AllocError::OutOfMemory(_)
                    | AllocError::Source(SourceError::OutOfMemory { .. }),
                ) => self.streams.upload(COPIES, part, (block, at..at + part.len()))?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// [`upload`](Self::upload) from a page-locked block. If the block is of a ring of this device,
    /// the copy does not pass through the staging memory. If the bytes were copied ahead, the copy
    /// stays within the device. The block must not be written before the host has waited for it.
    pub(super) fn upload_pinned(
        &self,
        from: &PinnedBuffer,
        range: Range<usize>,
        block: &Buffer,
        start: usize,
    ) -> Result<()> {
        if range.is_empty() || !self.is_of_ring(from) {
            return self.upload(&from.as_slice()[range], block, start);
        }
        let ahead = locked(&self.ahead);
        let has = |copied: &&CopiedAhead| {
            copied.contents == from.contents_id()
                && copied.range.start <= range.start
                && range.end <= copied.range.end
        };
        if let Some(copied) = ahead.iter().find(has) {
            let (at, len) = (copied.start + range.start - copied.range.start, range.len());
            let to = (block, start..start + len);
            return Ok(self.streams.copy(COPIES, (&copied.block, at..at + len), to)?);
        }
        Ok(self.streams.upload_pinned(COPIES, (from, range), (block, start))?)
    }

    /// Enqueues copies of bytes of rings to a block that was allocated for copies. The parts lie
    /// one after the other and replace earlier parts. Bytes of other memory, and parts that do not
    /// fit, are left out.
    pub(super) fn copy_ahead(
        &self,
        block: &Arc<Buffer>,
        parts: &[(&PinnedBuffer, Range<usize>)],
    ) -> Result<()> {
        self.forget_ahead(block);
        let mut start = 0;
        for (from, range) in parts {
            let end = start + room_bytes(range.len());
            if range.is_empty() || end > block.size_bytes() || !self.is_of_ring(from) {
                continue;
            }
            self.streams.upload_pinned(COPIES, (from, range.clone()), (block, start))?;
            let (contents, range, block) = (from.contents_id(), range.clone(), Arc::clone(block));
            locked(&self.ahead).push(CopiedAhead { contents, range, block, start });
            start = end;
        }
        Ok(())
    }

    /// Drops the record of the bytes that were copied ahead to a block.
    pub(super) fn forget_ahead(&self, block: &Arc<Buffer>) {
        locked(&self.ahead).retain(|copied| !Arc::ptr_eq(&copied.block, block));
    }

    /// True if copies read the block directly.
    fn is_of_ring(&self, block: &PinnedBuffer) -> bool {
        block.is_for(COPIES) && locked(&self.rings).contains(&block.cache_id())
    }

    /// Page-locked memory for a ring of buffers that copies read directly.
    pub(super) fn ring(&self, size_bytes: usize) -> Result<PinnedCache, AllocError> {
        let ring = self.page_locked(size_bytes)?;
        locked(&self.rings).push(ring.id());
        Ok(ring)
    }

    /// [`upload`](Self::upload) to an operand that kernels may use before and after the copy.
    pub(super) fn overwrite(&self, bytes: &[u8], to: &DeviceOperand<'_>) -> Result<()> {
        let memory = to.block().allocator();
        memory.wait(COPIES, Stream::DEFAULT)?;
        let copied = self.upload(bytes, to.block(), to.bytes().start);
        // A part may be on its way even if another was refused.
        let ordered = memory.wait(Stream::DEFAULT, COPIES);
        copied.and(ordered.map_err(TensorError::from))
    }

    /// Reads the elements of an operand, from the first to the last, once all earlier work is done.
    pub(super) fn download<T: Pod>(&self, from: &DeviceOperand<'_>) -> Result<Vec<T>> {
        let bytes = from.bytes();
        let mut values = vec![T::zeroed(); bytes.len() / size_of::<T>()];
        let mut complaint = locked(&self.complaint);
        from.block().allocator().wait(COPIES, Stream::DEFAULT)?;
        let to = bytemuck::cast_slice_mut(&mut values);
        let copy = || self.streams.download(COPIES, (from.block(), bytes), to);
        let staging = locked(&self.staging).clone();
        match staging {
            Some(staging) => staging.while_waiting(COPIES, copy)?,
            None => copy()?,
        }
        take_error(&mut complaint).map_or(Ok(values), Err)
    }

    /// Calls `launch` with the address of the complaint, which has room for one complaint.
    pub(super) fn with_complaint(
        &self,
        launch: impl FnOnce(Argument<'_>) -> Result<()>,
    ) -> Result<()> {
        let complaint = locked(&self.complaint);
        launch(Argument::WritePinned(complaint.as_ref().expect("it was reserved")))
    }

    /// Allocates the memory of the complaint, unless it exists.
    pub(super) fn reserve_complaint(&self) -> Result<()> {
        let mut complaint = locked(&self.complaint);
        if complaint.is_none() {
            let cache = self.page_locked(size_of::<Complaint>())?;
            *complaint = Some(cache.allocate(Stream::DEFAULT, size_of::<Complaint>())?);
        }
        Ok(())
    }

    /// The staging memory for a copy of `size_bytes`.
    fn staging_for(&self, size_bytes: usize) -> Result<PinnedCache, AllocError> {
        let Range { start, end } = STAGING_BYTES;
        let wanted_bytes = size_bytes.saturating_mul(2).clamp(start, end).next_power_of_two();
        let mut staging = locked(&self.staging);
        match &*staging {
            Some(found) if found.allocator().capacity_bytes() >= wanted_bytes => Ok(found.clone()),
            _ => Ok(staging.insert(self.page_locked(wanted_bytes)?).clone()),
        }
    }

    fn page_locked(&self, size_bytes: usize) -> Result<PinnedCache, AllocError> {
        let source = CudaHostSource::with_capacity(self.streams.device(), size_bytes);
        PinnedCache::new(source, self.streams.clone())
    }
}

/// The size of a part. Two parts fit the staging memory, so that one can be filled while the other
/// is copied.
fn part_bytes(staging: &PinnedCache) -> usize {
    staging.allocator().capacity_bytes() / 2
}

/// An operation whose kernels check values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checked {
    /// Labels. A label that is no class is a `Label` error.
    Labels(&'static str),
    /// Positions along a dimension. A position beyond the dimension is an `Index` error.
    Indices(&'static str),
    /// Divisors. A divisor of 0 is a `DivisionByZero` error.
    Divisors(&'static str),
}

/// Every checked operation. Kernels know an operation by its index in this list.
const CHECKED: &[Checked] = &[
    Checked::Labels("cross_entropy"),
    Checked::Labels("linear_cross_entropy"),
    Checked::Labels("linear_cross_entropy_gradients"),
    Checked::Labels("linear_cross_entropy_input_gradient"),
    Checked::Labels("nll_loss"),
    Checked::Labels("ctc_loss"),
    Checked::Indices("ctc_loss"),
    Checked::Divisors("div_floor"),
    Checked::Divisors("div_trunc"),
    Checked::Divisors("fmod"),
    Checked::Divisors("remainder"),
    Checked::Indices("embedding"),
    Checked::Indices("gather"),
    Checked::Indices("index"),
    Checked::Indices("index_add"),
    Checked::Indices("index_copy"),
    Checked::Indices("index_fill"),
    Checked::Indices("index_put"),
    Checked::Indices("index_reduce"),
    Checked::Indices("index_select"),
    Checked::Indices("masked_scatter"),
    Checked::Indices("one_hot"),
    Checked::Indices("put"),
    Checked::Indices("scatter"),
    Checked::Indices("scatter_add"),
    Checked::Indices("scatter_reduce"),
    Checked::Indices("take"),
];

impl Checked {
    /// The operation's number for kernels; `None` if kernels do not check its values.
    pub(crate) fn number(self) -> Option<u64> {
        CHECKED.iter().position(|&known| known == self).map(|number| number as u64)
    }
}

/// `struct Complaint` of `common.cu`: `[position from 1, value, len, operation]`.
type Complaint = [i64; 4];

/// Takes the complaint of a kernel, and clears it.
fn take_error(record: &mut Option<PinnedBuffer>) -> Option<TensorError> {
    let words = record.as_mut()?.as_mut_slice();
    let [position, value, len, number]: Complaint = bytemuck::pod_read_unaligned(words);
    let position = usize::try_from(position).ok()?.checked_sub(1)?;
    words.fill(0);
    let len = len as usize;
    Some(match *CHECKED.get(usize::try_from(number).ok()?)? {
        Checked::Labels(op) => TensorError::Label { op, position, label: value, class_count: len },
        Checked::Divisors(op) => TensorError::DivisionByZero { op },
        Checked::Indices(op) => TensorError::Index { op, index: value as isize, len },
    })
}

// The values behind these locks are whole at every unlock, so a poisoned lock is taken over.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
