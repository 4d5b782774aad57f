//! The loader: turns a dataset into epochs of batches.

use crate::dataset::Dataset;
use crate::epoch::Epoch;
use crate::error::DataError;
use crate::layout::Layout;
use crate::options::LoaderOptions;
use crate::pool::Pool;
use crate::producer::Producer;
use crate::sampler::Shuffled;
use crate::sampler::order::Sampler;
use crate::shared::Shared;
use crate::staging::Ring;
use crate::state::LoaderState;
use lowtide_allocator::{PinnedCache, Stream};
use std::fmt;
use std::sync::{Arc, Mutex};

/// Turns a dataset into epochs of batches.
///
/// All staging memory, `prefetch + workers` buffers of one batch each, is allocated when the loader
/// is made. Worker threads live until the loader and all its epochs are dropped; the last drop
/// joins the threads.
pub struct Loader {
    shared: Arc<Shared>,
}

impl Loader {
    /// A loader that shuffles the samples anew in each epoch.
    ///
    /// # Errors
    /// An option that must not be 0, a staging ring that does not fit in memory, or a thread that
    /// the operating system refuses.
    pub fn new(dataset: impl Dataset + 'static, options: LoaderOptions) -> Result<Self, DataError> {
        Self::with_sampler(dataset, Shuffled, options)
    }

    /// A loader with the order of `sampler`, such as [`Sequential`](crate::Sequential) for
    /// evaluation.
    ///
    /// # Errors
    /// As for [`Loader::new`]; errors of the sampler.
    pub fn with_sampler(
        dataset: impl Dataset + 'static,
        sampler: impl Sampler + 'static,
        options: LoaderOptions,
    ) -> Result<Self, DataError> {
        options.check()?;
        let LoaderOptions { batch_size, workers, prefetch, timeout, .. } = options;
        let len = sampler.samples_per_epoch(dataset.len())?;
        // A batch larger than the epoch never has more rows than the epoch.
        let rows = batch_size.min(len);
        let layout = Layout::new(dataset.fields(), rows)
            .ok_or(DataError::InvalidOption { option: "batch_size", value: batch_size })?;
        let slots = prefetch
            .checked_add(workers)
            .ok_or(DataError::InvalidOption { option: "workers", value: workers })?;
        let ring = Ring::new(slots, layout.size_bytes)?;
        let dataset: Arc<dyn Dataset> = Arc::new(dataset);
        let pool = match workers {
            0 => None,
            workers => Some(Pool::new(workers, timeout, &dataset)?),
        };
        let shared = Shared {
            producer: Producer { dataset, ring, pool },
            options,
            sampler: Box::new(sampler),
            layout: Arc::new(layout),
            len,
            ahead: Mutex::default(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The batches of `epoch` from the first one on.
    ///
    /// Uses the batches of this epoch that were built ahead, and drops batches that were built
    /// ahead for another epoch.
    #[must_use]
    pub fn epoch(&self, epoch: u64) -> Epoch {
        self.start(LoaderState { batch: 0, ..self.shared.end_of(epoch) })
    }

    /// Begins to build the first batches of `epoch` in the free staging buffers, for the next call
    /// of [`Loader::epoch`] with this epoch.
    ///
    /// Call this method between two epochs. While an epoch runs, call [`Epoch::build_ahead`]
    /// instead, which takes no buffer that the epoch needs. Without workers nothing is built ahead.
    pub fn build_ahead(&self, epoch: u64) {
        let Shared { producer, .. } = &*self.shared;
        if producer.pool.is_none() {
            return;
        }
        let begin = || self.shared.window(epoch);
        let mut window = self.shared.take_ahead(epoch).unwrap_or_else(begin);
        window.submit(producer);
        self.shared.keep_ahead(window);
    }

    /// Exactly the batches that were still to come when `state` was taken.
    ///
    /// A state from the end of an epoch gives no batches; the caller begins the next epoch.
    ///
    /// # Errors
    /// [`DataError::StateMismatch`] if the state belongs to a loader with another seed, batch size
    /// or number of samples, or is beyond the end of the epoch.
    pub fn resume(&self, state: LoaderState) -> Result<Epoch, DataError> {
        self.check(state)?;
        Ok(self.start(state))
    }

    /// `Ok` if [`resume`](Self::resume) accepts `state`. The check does not compute the order of
    /// the epoch.
    ///
    /// # Errors
    /// As for [`resume`](Self::resume).
    pub fn check(&self, state: LoaderState) -> Result<(), DataError> {
        state.check(&self.shared.end_of(state.epoch))
    }

    /// Number of batches in an epoch.
    #[must_use]
    pub fn batches_per_epoch(&self) -> usize {
        self.shared.batches_per_epoch()
    }

    /// Number of samples in the order of an epoch: the length of the dataset, unless the sampler
    /// draws fewer or more.
    #[must_use]
    pub fn samples_per_epoch(&self) -> usize {
        self.shared.len
    }

    /// The options that the loader was made with.
    #[must_use]
    pub fn options(&self) -> &LoaderOptions {
        &self.shared.options
    }

    /// The dataset that is loaded.
    #[must_use]
    pub fn dataset(&self) -> &dyn Dataset {
        self.shared.producer.dataset.as_ref()
    }

    /// Bytes of all staging buffers, which are allocated when the loader is made.
    #[must_use]
    pub fn staging_bytes(&self) -> usize {
        let Ring { slots, slot_bytes, .. } = self.shared.producer.ring;
        slots * slot_bytes
    }

    /// True if batches are built in [page-locked memory](Self::lock_pages).
    #[must_use]
    pub fn is_page_locked(&self) -> bool {
        self.shared.producer.ring.is_page_locked
    }

    /// Bytes of page-locked memory that [`lock_pages`](Self::lock_pages) allocates.
    #[must_use]
    pub fn page_locked_bytes(&self) -> usize {
        self.shared.producer.ring.size_bytes()
    }

    /// Builds batches in page-locked memory from now on, so that a device can copy them
    /// asynchronously on `stream`. A buffer is not written again before these copies have run.
    ///
    /// # Errors
    /// [`DataError::Staging`] if `memory` has less than [`Self::page_locked_bytes`]; the loader is
    /// unchanged then.
    ///
    /// # Panics
    /// If an epoch of the loader is alive.
    pub fn lock_pages(&mut self, memory: &PinnedCache, stream: Stream) -> Result<(), DataError> {
        let shared = Arc::get_mut(&mut self.shared).expect("no epoch of the loader is alive");
        let ring = shared.producer.ring.page_locked(memory, stream)?;
        // Batches that were built ahead are in buffers of the old ring.
        shared.ahead = Mutex::default();
        shared.producer.ring = ring;
        Ok(())
    }

    fn start(&self, state: LoaderState) -> Epoch {
        let built = if state.batch == 0 { self.shared.take_ahead(state.epoch) } else { None };
        let mut window = built.unwrap_or_else(|| self.shared.window(state.epoch));
        window.next = state.batch;
        Epoch::new(Arc::clone(&self.shared), window)
    }
}

impl fmt::Debug for Loader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loader")
            .field("options", self.options())
            .field("sample_count", &self.dataset().len())
            .field("staging_bytes", &self.staging_bytes())
            .finish_non_exhaustive()
    }
}
