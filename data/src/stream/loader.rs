//! The batches of a stream.

use crate::batch::Batch;
use crate::epoch::EpochPlan;
use crate::error::DataError;
use crate::layout::Layout;
use crate::loader::OnBadSample;
use crate::staging::{Ring, Staging};
use crate::state::LoaderState;
use crate::stream::builder::{Builder, Reply};
use crate::stream::{Stream, StreamState};
use crossbeam_channel::{Receiver, Sender, bounded};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::iter::FusedIterator;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Settings of a [`StreamLoader`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamOptions {
    /// Samples per batch (1).
    pub batch_size: usize,
    /// Leave out the last batch if it is not full (false).
    pub drop_last: bool,
    /// Which thread reads the stream (the one that asks for the batch).
    pub reading: Reading,
    /// Batches held ready or in use beside the one that is read ahead, at least 1 (2).
    pub prefetch: usize,
    /// What a sample that cannot be read does (fail). The number of [`OnBadSample::Skip`] counts
    /// from where the loader was begun or resumed.
    pub on_bad_sample: OnBadSample,
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self {
            batch_size: 1,
            drop_last: false,
            reading: Reading::Inline,
            prefetch: 2,
            on_bad_sample: OnBadSample::Fail,
        }
    }
}

/// Which thread reads a stream. The batches are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reading {
    /// The thread that asks for the batch.
    #[default]
    Inline,
    /// A thread of the loader, which reads batches ahead into the buffers that are free.
    Ahead,
}

/// The position of a [`StreamLoader`]: the batches handed out so far are behind it, those read
/// ahead are not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamLoaderState {
    /// Batches handed out.
    pub batch: u64,
    /// Samples that were read or skipped.
    pub sample: u64,
    /// Samples in a full batch.
    pub batch_size: usize,
    /// The position of the stream.
    pub stream: StreamState,
}

/// Turns a [`Stream`] into batches, in the order of the stream; an iterator.
///
/// All staging memory, `prefetch` buffers of one batch each and one more to read ahead, is
/// allocated when the loader is made. After a sample's error or panic the iterator is over, and
/// [`state`](Self::state) is still that before the batch that failed.
/// [`DataError::StagingExhausted`] is no end: the next call goes on once a batch is dropped.
/// [`Batch::sample_indices`] are numbers in the stream, and [`Batch::state_after`], which is for
/// datasets, fits no loader.
///
/// Dropping the loader joins its thread, which waits for the sample that is being read.
pub struct StreamLoader {
    source: Source,
    ring: Ring,
    plan: Arc<EpochPlan>,
    state: StreamLoaderState,
    is_over: bool,
}

enum Source {
    Inline(Box<Builder>),
    Ahead(Ahead),
}

/// A thread that reads ahead.
struct Ahead {
    /// `None` only while it is dropped.
    work: Option<Sender<Staging>>,
    replies: Receiver<Reply>,
    /// Buffers that were sent and not replied to.
    pending: usize,
    thread: Option<JoinHandle<()>>,
}

impl StreamLoader {
    /// The batches of `stream` from where it is.
    ///
    /// # Errors
    /// An option that is 0 and must not be, a ring that does not fit in memory, a thread that the
    /// operating system refuses.
    pub fn new(stream: impl Stream + 'static, options: StreamOptions) -> Result<Self, DataError> {
        let state = StreamLoaderState {
            batch: 0,
            sample: 0,
            batch_size: options.batch_size,
            stream: stream.state(),
        };
        Self::begin(Box::new(stream), options, state)
    }

    /// The batches that were still to come when `state` was taken, exactly.
    ///
    /// # Errors
    /// As [`new`](Self::new); [`DataError::StateMismatch`] for a state of another batch size;
    /// [`DataError::StreamState`] for one that the stream refuses.
    pub fn resume(
        mut stream: impl Stream + 'static,
        options: StreamOptions,
        state: StreamLoaderState,
    ) -> Result<Self, DataError> {
        if state.batch_size != options.batch_size {
            let (saved, here) = (state.batch_size as u64, options.batch_size as u64);
            return Err(DataError::StateMismatch { what: "batch_size", saved, here });
        }
        let placed = stream.set_state(&state.stream);
        placed.map_err(|source| DataError::StreamState { source })?;
        Self::begin(Box::new(stream), options, state)
    }

    fn begin(
        stream: Box<dyn Stream>,
        options: StreamOptions,
        state: StreamLoaderState,
    ) -> Result<Self, DataError> {
        let StreamOptions { batch_size, prefetch, .. } = options;
        for (option, value) in [("batch_size", batch_size), ("prefetch", prefetch)] {
            if value == 0 {
                return Err(DataError::InvalidOption { option, value });
            }
        }
        let layout = Layout::new(stream.fields(), batch_size)
            .ok_or(DataError::InvalidOption { option: "batch_size", value: batch_size })?;
        let slots = match options.reading {
            Reading::Inline => Some(prefetch),
            Reading::Ahead => prefetch.checked_add(1),
        };
        let slots =
            slots.ok_or(DataError::InvalidOption { option: "prefetch", value: prefetch })?;
        let ring = Ring::new(slots, layout.size_bytes)?;
        // No dataset has 0 samples and a batch, so no loader of one takes such a state.
        let end = LoaderState { epoch: 0, batch: 0, seed: 0, batch_size, sample_count: 0 };
        let plan = Arc::new(EpochPlan::unordered(Arc::new(layout), end));
        let skips_left = match options.on_bad_sample {
            OnBadSample::Fail => 0,
            OnBadSample::Skip(count) => count,
        };
        let builder = Builder {
            stream,
            plan: Arc::clone(&plan),
            batch_size,
            drops_last: options.drop_last,
            skips_left,
            sample: state.sample,
        };
        let source = match options.reading {
            Reading::Inline => Source::Inline(Box::new(builder)),
            Reading::Ahead => Source::Ahead(Ahead::new(builder, slots)?),
        };
        Ok(Self { source, ring, plan, state, is_over: false })
    }

    /// The position before the next batch: what to save once the step of the last one is done.
    #[must_use]
    pub fn state(&self) -> StreamLoaderState {
        self.state.clone()
    }

    /// Bytes of all staging buffers together, taken when the loader was made and never grown.
    #[must_use]
    pub fn staging_bytes(&self) -> usize {
        self.ring.slots * self.ring.slot_bytes
    }

    /// The next reply; `None` if every buffer is held outside.
    fn reply(&mut self) -> Option<Reply> {
        match &mut self.source {
            Source::Inline(builder) => Some(builder.build(self.ring.take()?)),
            Source::Ahead(ahead) => ahead.reply(&self.ring),
        }
    }
}

impl Iterator for StreamLoader {
    type Item = Result<Batch, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        let Some(Reply { built, after: (sample, stream) }) = self.reply() else {
            return Some(Err(DataError::StagingExhausted { slots: self.ring.slots }));
        };
        match built {
            Ok(Some(built)) => {
                let batch = Batch::new(built, Arc::clone(&self.plan), self.state.batch as usize);
                self.state.batch = self.state.batch.saturating_add(1);
                (self.state.sample, self.state.stream) = (sample, stream);
                Some(Ok(batch))
            }
            Ok(None) => {
                self.is_over = true;
                None
            }
            Err(error) => {
                self.is_over = true;
                Some(Err(error))
            }
        }
    }
}

impl FusedIterator for StreamLoader {}

impl Drop for StreamLoader {
    fn drop(&mut self) {
        self.plan.cancel();
    }
}

impl fmt::Debug for StreamLoader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamLoader")
            .field("state", &self.state)
            .field("staging_bytes", &self.staging_bytes())
            .field("is_over", &self.is_over)
            .finish_non_exhaustive()
    }
}

impl Ahead {
    fn new(mut builder: Builder, slots: usize) -> Result<Self, DataError> {
        let (work, buffers) = bounded::<Staging>(slots);
        let (answer, replies) = bounded(slots);
        let thread = std::thread::Builder::new()
            .name("lowtide-data-stream".to_owned())
            .spawn(move || {
                for staging in buffers {
                    let reply = builder.build(staging);
                    let is_last = !matches!(reply.built, Ok(Some(_)));
                    if answer.send(reply).is_err() || is_last {
                        break;
                    }
                }
            })
            .map_err(|source| DataError::Io { what: "starting a loader thread", source })?;
        Ok(Self { work: Some(work), replies, pending: 0, thread: Some(thread) })
    }

    /// Hands out every free buffer, and waits for the first that comes back.
    fn reply(&mut self, ring: &Ring) -> Option<Reply> {
        while let Some(staging) = ring.take() {
            // Never blocks: the channel has room for every buffer. After the last batch there is no
            // reader, and the buffer goes back to the ring with the channel.
            if self.work.as_ref()?.send(staging).is_err() {
                break;
            }
            self.pending += 1;
        }
        if self.pending == 0 {
            return None;
        }
        self.pending -= 1;
        self.replies.recv().ok()
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.work = None;
        if let Some(thread) = self.thread.take() {
            // The thread catches the panics of the stream, so there is nothing to learn here.
            let _ = thread.join();
        }
    }
}
