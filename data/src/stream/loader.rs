//! The batches of a stream.

use crate::batch::Batch;
use crate::error::DataError;
use crate::layout::Layout;
use crate::options::OnBadSample;
use crate::plan::EpochPlan;
use crate::staging::{Ring, Staging};
use crate::state::LoaderState;
use crate::stream::builder::{Builder, StreamReply};
use crate::stream::{Stream, StreamState};
use crossbeam_channel::{Receiver, Sender, bounded};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::iter::FusedIterator;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Options of a [`StreamLoader`], with defaults in parentheses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamOptions {
    /// Number of samples in a batch (1).
    pub batch_size: usize,
    /// Leave out the last batch if it is not full (false).
    pub drop_last: bool,
    /// The thread that reads the stream (inline).
    pub reading: Reading,
    /// Number of batches that are ready or in use, in addition to the batch that is read ahead. At
    /// least 1 (2).
    pub prefetch: usize,
    /// The effect of a sample that cannot be read (fail). [`OnBadSample::Skip`] counts the bad
    /// samples since the loader was made.
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

/// The thread that reads a stream. The choice has no effect on the batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reading {
    /// The thread that asks for the batch.
    #[default]
    Inline,
    /// A thread of the loader, which reads batches ahead into the free buffers.
    Ahead,
}

/// The position of a [`StreamLoader`]: after the batches that were handed out, and before the
/// batches that were only read ahead.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamLoaderState {
    /// Number of batches that were handed out.
    pub batch: u64,
    /// Number of samples that were read or skipped.
    pub sample: u64,
    /// Number of samples in a full batch.
    pub batch_size: usize,
    /// The position of the stream.
    pub stream: StreamState,
}

/// An iterator that turns a [`Stream`] into batches, in the order of the stream.
///
/// All staging memory, `prefetch` buffers of one batch each and one more to read ahead, is
/// allocated when the loader is made.
///
/// An error or panic of a sample ends the iterator, and [`state`](Self::state) remains the position
/// before the batch that failed. [`DataError::StagingExhausted`] does not end the iterator: the
/// next call continues once a batch is dropped. [`Batch::sample_indices`] are positions in the
/// stream. Loaders refuse the [`Batch::state_after`] of such a batch, because only a batch of a
/// dataset has a state.
///
/// Dropping the loader waits for the sample that is being read, and joins the thread.
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
    /// `None` only during drop.
    work: Option<Sender<Staging>>,
    replies: Receiver<StreamReply>,
    /// Number of buffers that were sent and have no reply yet.
    pending: usize,
    thread: Option<JoinHandle<()>>,
}

impl StreamLoader {
    /// The batches of `stream` from its current position on.
    ///
    /// # Errors
    /// An option that must not be 0, a staging ring that does not fit in memory, or a thread that
    /// the operating system refuses.
    pub fn new(stream: impl Stream + 'static, options: StreamOptions) -> Result<Self, DataError> {
        let state = StreamLoaderState {
            batch: 0,
            sample: 0,
            batch_size: options.batch_size,
            stream: stream.state(),
        };
        Self::begin(Box::new(stream), options, state)
    }

    /// Exactly the batches that were still to come when `state` was taken.
    ///
    /// # Errors
    /// As for [`new`](Self::new); [`DataError::StateMismatch`] if the state has another batch size;
    /// [`DataError::StreamState`] if the stream refuses the state.
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
        // A dataset of 0 samples has no batch, so no loader of a dataset accepts this state.
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

    /// The position before the next batch, to be saved after the training step of the last batch.
    #[must_use]
    pub fn state(&self) -> StreamLoaderState {
        self.state.clone()
    }

    /// Bytes of all staging buffers, which are allocated when the loader is made.
    #[must_use]
    pub fn staging_bytes(&self) -> usize {
        self.ring.slots * self.ring.slot_bytes
    }

    /// The next reply; `None` if the caller holds every buffer.
    fn reply(&mut self) -> Option<StreamReply> {
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
        let Some(StreamReply { built, sample, stream }) = self.reply() else {
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

    /// Hands every free buffer to the thread, and waits for the first reply.
    fn reply(&mut self, ring: &Ring) -> Option<StreamReply> {
        while let Some(staging) = ring.take() {
            // Sending never blocks: the channel has room for every buffer. After the last batch
            // there is no reader, and dropping the channel returns the buffer to the ring.
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
            // The thread catches the panics of the stream, so the result is always `Ok`.
            let _ = thread.join();
        }
    }
}
