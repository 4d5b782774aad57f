//! The state that a loader shares with its epochs.

use crate::layout::Layout;
use crate::options::LoaderOptions;
use crate::plan::EpochPlan;
use crate::producer::Producer;
use crate::sampler::order::{EpochKey, Sampler};
use crate::state::LoaderState;
use crate::window::Window;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

/// The state that a loader shares with its epochs.
pub(crate) struct Shared {
    pub(crate) producer: Producer,
    pub(crate) options: LoaderOptions,
    pub(crate) sampler: Box<dyn Sampler>,
    pub(crate) layout: Arc<Layout>,
    /// Number of samples in an epoch.
    pub(crate) len: usize,
    /// The first batches of an epoch that is built ahead.
    pub(crate) ahead: Mutex<Option<Window>>,
}

impl Shared {
    /// The state after the last batch of an epoch.
    pub(crate) fn end_of(&self, epoch: u64) -> LoaderState {
        LoaderState {
            epoch,
            batch: self.batches_per_epoch(),
            seed: self.options.seed,
            batch_size: self.options.batch_size.saturating_mul(self.sampler.rank_count()),
            sample_count: self.producer.dataset.len(),
        }
    }

    pub(crate) fn batches_per_epoch(&self) -> usize {
        let LoaderOptions { batch_size, drop_last, .. } = self.options;
        if drop_last { self.len / batch_size } else { self.len.div_ceil(batch_size) }
    }

    /// The window of an epoch, without a built batch.
    pub(crate) fn window(&self, epoch: u64) -> Window {
        let LoaderOptions { seed, batch_size, .. } = self.options;
        let key = EpochKey { seed, epoch, batch_size };
        let plan = EpochPlan {
            layout: Arc::clone(&self.layout),
            end: self.end_of(epoch),
            skip_max: self.options.skip_max(),
            order: self.sampler.order(key, self.producer.dataset.len()),
            len: self.len,
            batch_size,
            cancelled: AtomicBool::new(false),
        };
        Window::new(Arc::new(plan), 0, self.producer.ring.slots)
    }

    /// Keeps the batches of `window` until a caller begins their epoch.
    pub(crate) fn keep_ahead(&self, window: Window) {
        self.replace_ahead(Some(window));
    }

    /// The batches that were built ahead for `epoch`. If another epoch was built ahead, its batches
    /// are dropped, so that their buffers are free.
    pub(crate) fn take_ahead(&self, epoch: u64) -> Option<Window> {
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        if ahead.as_ref().is_some_and(|window| window.plan.end.epoch == epoch) {
            return ahead.take();
        }
        drop(ahead);
        self.replace_ahead(None);
        None
    }

    /// Drops the batches that were built ahead. Returns true if there were any.
    pub(crate) fn drop_ahead(&self) -> bool {
        self.replace_ahead(None)
    }

    fn replace_ahead(&self, window: Option<Window>) -> bool {
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *ahead, window);
        drop(ahead);
        before.map(|mut window| window.stop(&self.producer)).is_some()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.drop_ahead();
    }
}
