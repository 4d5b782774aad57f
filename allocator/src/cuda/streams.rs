//! Streams of a device and the order between them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::{c_uint, c_void};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::CudaStream;
use cudarc::driver::sys::{CUevent, CUevent_flags, CUstream, CUstream_flags};

use super::device::{Context, CudaDevice};
use super::error::CudaError;
use crate::source::SourceError;
use crate::source::fence::Fence;
use crate::stream::Stream;

/// The driver's queues behind the [`Stream`]s of one device. Clones are handles to the same queues.
///
/// A queue is made when its stream is first used. It does not wait for the driver's default stream.
/// A queue that was made elsewhere can be [adopted](Self::adopt) before the first use.
#[derive(Clone)]
pub struct CudaStreams {
    shared: Arc<Shared>,
}

struct Shared {
    device: CudaDevice,
    lanes: Mutex<StreamQueues>,
}

#[derive(Default)]
struct StreamQueues {
    by_stream: BTreeMap<Stream, StreamQueue>,
    /// Events that were made for a lane whose queue could not be made.
    spare: Vec<CUevent>,
}

/// A stream's queue, and the event that other streams wait for. One event is enough: a wait is for
/// the record that was the last when the wait was enqueued.
struct StreamQueue {
    queue: Queue,
    event: CUevent,
}

enum Queue {
    Own(CUstream),
    Adopted(Arc<CudaStream>),
}

// SAFETY: 1. the pointers are opaque handles that only the driver dereferences. 2. The driver
// allows streams and events to be used from any thread, and the lanes are behind a lock.
unsafe impl Send for StreamQueues {}

impl CudaStreams {
    /// Streams of a device, all without a queue.
    pub fn new(device: &CudaDevice) -> CudaStreams {
        let shared = Shared { device: device.clone(), lanes: Mutex::default() };
        CudaStreams { shared: Arc::new(shared) }
    }

    /// Puts a queue of cudarc's behind a stream, so that an allocator orders the work on it.
    ///
    /// # Errors
    /// The stream has a queue already, the queue belongs to another device, or the driver makes no
    /// event.
    pub fn adopt(&self, stream: Stream, queue: Arc<CudaStream>) -> Result<(), CudaError> {
        let mut lanes = self.shared.lock();
        let is_of_device = Context(queue.context().cu_ctx()) == self.device().context();
        if lanes.by_stream.contains_key(&stream) || !is_of_device {
            return Err(CudaError::StreamTaken { stream });
        }
        let event = self.shared.create_event(&mut lanes.spare)?;
        lanes.by_stream.insert(stream, StreamQueue { queue: Queue::Adopted(queue), event });
        Ok(())
    }

    /// The device of the streams.
    pub fn device(&self) -> &CudaDevice {
        &self.shared.device
    }

    /// Makes the calling thread wait until all work that was enqueued on a stream so far is done.
    ///
    /// # Errors
    /// Work failed, or the driver refused.
    pub fn synchronize(&self, stream: Stream) -> Result<(), CudaError> {
        // The lock is free during the wait, so that other threads may enqueue.
        let queue = self.shared.lock().by_stream.get(&stream).map(StreamQueue::queue);
        // A stream without a queue has no work.
        let Some(queue) = queue else { return Ok(()) };
        self.device().call("cuStreamSynchronize", |table| {
            // SAFETY: a queue lives as long as the streams, which `self` holds.
            unsafe { (table.stream_synchronize)(queue) }
        })
    }

    /// A stream's queue, made now if the stream has none. The queue lives as long as the streams,
    /// and may be used without their lock: the driver orders calls that enqueue.
    pub(super) fn queue(&self, stream: Stream) -> Result<CUstream, CudaError> {
        Ok(self.shared.lane(&mut self.shared.lock(), stream)?.queue())
    }

    /// The driver's queue behind a stream, a `CUstream`, for libraries that enqueue work there. The
    /// queue lives as long as these streams.
    ///
    /// # Errors
    /// The driver makes no queue.
    pub fn queue_pointer(&self, stream: Stream) -> Result<*mut c_void, CudaError> {
        Ok(self.queue(stream)?.cast())
    }

    fn order(&self, waiter: Stream, on: Stream) -> Result<(), CudaError> {
        let mut lanes = self.shared.lock();
        let Some(lane) = lanes.by_stream.get(&on) else { return Ok(()) };
        let (awaited, event) = (lane.queue(), lane.event);
        let waiter = self.shared.lane(&mut lanes, waiter)?.queue();
        self.device().call("cuEventRecord", |table| {
            // SAFETY: event and queue are of this device and live as long as the streams.
            unsafe { (table.event_record)(event, awaited) }
        })?;
        self.device().call("cuStreamWaitEvent", |table| {
            // SAFETY: event and queue are of this device and live as long as the streams.
            unsafe { (table.stream_wait)(waiter, event, 0) }
        })
    }
}

impl Fence for CudaStreams {
    fn wait(&self, waiter: Stream, on: Stream) -> Result<(), SourceError> {
        self.order(waiter, on).map_err(|error| error.of_source(0))
    }

    fn wait_host(&self, on: Stream) -> Result<(), SourceError> {
        self.synchronize(on).map_err(|error| error.of_source(0))
    }
}

impl StreamQueue {
    fn queue(&self) -> CUstream {
        match &self.queue {
            Queue::Own(queue) => *queue,
            Queue::Adopted(queue) => queue.cu_stream(),
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, StreamQueues> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lane of a stream, made now if the stream has none.
    fn lane<'a>(
        &self,
        lanes: &'a mut StreamQueues,
        stream: Stream,
    ) -> Result<&'a StreamQueue, CudaError> {
        let StreamQueues { by_stream, spare } = lanes;
        let vacant = match by_stream.entry(stream) {
            Entry::Occupied(lane) => return Ok(lane.into_mut()),
            Entry::Vacant(vacant) => vacant,
        };
        let event = self.create_event(spare)?;
        let queue = self.create_queue().inspect_err(|_| spare.push(event))?;
        Ok(vacant.insert(StreamQueue { queue: Queue::Own(queue), event }))
    }

    fn create_event(&self, spare: &mut Vec<CUevent>) -> Result<CUevent, CudaError> {
        if let Some(event) = spare.pop() {
            return Ok(event);
        }
        let flags = CUevent_flags::CU_EVENT_DISABLE_TIMING as c_uint;
        let mut event = std::ptr::null_mut();
        self.device.call("cuEventCreate", |table| {
            // SAFETY: the driver writes one pointer, to a place for one pointer.
            unsafe { (table.event_create)(&mut event, flags) }
        })?;
        Ok(event)
    }

    fn create_queue(&self) -> Result<CUstream, CudaError> {
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint;
        let mut queue = std::ptr::null_mut();
        self.device.call("cuStreamCreate", |table| {
            // SAFETY: the driver writes one pointer, to a place for one pointer.
            unsafe { (table.stream_create)(&mut queue, flags) }
        })?;
        Ok(queue)
    }

    /// If the driver does not destroy the event, it keeps a few bytes; there is no caller to tell.
    fn destroy_event(&self, event: CUevent) {
        let _ = self.device.give_back("cuEventDestroy", |table| {
            // SAFETY: the event is this value's own and not used again. The driver frees the event
            // when all work that was enqueued with it is done.
            unsafe { (table.event_destroy)(event) }
        });
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let StreamQueues { by_stream, spare } = std::mem::take(&mut *self.lock());
        spare.into_iter().for_each(|event| self.destroy_event(event));
        for lane in by_stream.into_values() {
            self.destroy_event(lane.event);
            if let Queue::Own(queue) = lane.queue {
                let _ = self.device.give_back("cuStreamDestroy", |table| {
                    // SAFETY: the queue is this value's own and not used again. The driver frees
                    // the queue when all work that was enqueued on it is done.
                    unsafe { (table.stream_destroy)(queue) }
                });
            }
        }
    }
}

impl fmt::Debug for CudaStreams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let streams: Vec<Stream> = self.shared.lock().by_stream.keys().copied().collect();
        f.debug_struct("CudaStreams").field("streams", &streams).finish_non_exhaustive()
    }
}
