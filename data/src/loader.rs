//! The loader: a dataset, an order, a ring of staging buffers and the threads that fill them.

use crate::dataset::Dataset;
use crate::epoch::{Epoch, EpochPlan};
use crate::error::DataError;
use crate::layout::Layout;
pub use crate::options::{LoaderOptions, OnBadSample};
use crate::pool::Pool;
use crate::sampler::{EpochKey, Sampler, Shuffled};
use crate::staging::Ring;
use crate::state::LoaderState;
use crate::window::Window;
use lowtide_allocator::{PinnedCache, Stream};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Turns a dataset into epochs of batches.
///
/// All staging memory, `prefetch + workers` buffers of one batch each, is allocated when the
/// loader is made. Workers live as long as the loader and its epochs; the last of them to be
/// dropped joins them.
pub struct Loader {
    shared: Arc<Shared>,
}

/// What epochs need of their loader.
pub(crate) struct Shared {
    pub(crate) dataset: Arc<dyn Dataset>,
    pub(crate) ring: Ring,
    pub(crate) pool: Option<Pool>,
    pub(crate) options: LoaderOptions,
    sampler: Box<dyn Sampler>,
    layout: Arc<Layout>,
    /// Samples of an epoch.
    len: usize,
    /// The beginning of an epoch that was built before it was asked for.
    ahead: Mutex<Option<Window>>,
}

impl Loader {
    /// A loader that shuffles anew in each epoch.
    ///
    /// # Errors
    /// An option that is 0 and must not be, a ring that does not fit in memory, a thread that the
    /// operating system refuses.
    pub fn new(dataset: impl Dataset + 'static, options: LoaderOptions) -> Result<Self, DataError> {
        Self::with_sampler(dataset, Shuffled, options)
    }

    /// A loader with an order of the caller's choice; [`Sequential`](crate::Sequential) for
    /// evaluation.
    ///
    /// # Errors
    /// As [`Loader::new`].
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
        let (sampler, layout) = (Box::new(sampler), Arc::new(layout));
        let ahead = Mutex::default();
        let shared = Shared { dataset, ring, pool, options, sampler, layout, len, ahead };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The batches of epoch `epoch`, from its first on.
    ///
    /// Batches of this epoch that were built ahead are used, those of another one thrown away.
    #[must_use]
    pub fn epoch(&self, epoch: u64) -> Epoch {
        self.start(LoaderState { batch: 0, ..self.shared.end_of(epoch) })
    }

    /// Begins the first batches of `epoch` in the staging buffers that are free, so that they are
    /// there when [`Loader::epoch`] is asked for it next. For the time between two epochs: while
    /// one is under way [`Epoch::build_ahead`] leaves it its buffers. Without workers nothing is
    /// built ahead.
    pub fn build_ahead(&self, epoch: u64) {
        if self.shared.pool.is_none() {
            return;
        }
        let begin = || self.shared.window(epoch);
        let mut window = self.shared.take_ahead(epoch).unwrap_or_else(begin);
        window.submit(&self.shared);
        self.shared.keep_ahead(window);
    }

    /// The batches that were still to come when `state` was taken, exactly.
    ///
    /// A state from the end of an epoch gives no batch; the next epoch is the caller's to begin.
    ///
    /// # Errors
    /// [`DataError::StateMismatch`] if the state is not of a loader with this seed, batch size and
    /// number of samples, or beyond the end.
    pub fn resume(&self, state: LoaderState) -> Result<Epoch, DataError> {
        self.check(state)?;
        Ok(self.start(state))
    }

    /// Whether [`resume`](Self::resume) takes `state`, without the order of its epoch.
    ///
    /// # Errors
    /// Those of [`resume`](Self::resume).
    pub fn check(&self, state: LoaderState) -> Result<(), DataError> {
        state.check(&self.shared.end_of(state.epoch))
    }

    /// Batches of every epoch.
    #[must_use]
    pub fn batches_per_epoch(&self) -> usize {
        self.shared.batches_per_epoch()
    }

    /// Samples that the order of every epoch has: as many as the dataset's, unless the sampler
    /// draws fewer or more.
    #[must_use]
    pub fn samples_per_epoch(&self) -> usize {
        self.shared.len
    }

    /// The settings that the loader was made with.
    #[must_use]
    pub fn options(&self) -> &LoaderOptions {
        &self.shared.options
    }

    /// The dataset that is loaded.
    #[must_use]
    pub fn dataset(&self) -> &dyn Dataset {
        self.shared.dataset.as_ref()
    }

    /// Bytes of all staging buffers together, taken when the loader was made and never grown.
    #[must_use]
    pub fn staging_bytes(&self) -> usize {
        self.shared.ring.slots * self.shared.ring.slot_bytes
    }

    /// Whether batches are built in [page-locked memory](Self::lock_pages).
    #[must_use]
    pub fn is_page_locked(&self) -> bool {
        self.shared.ring.is_page_locked
    }

    /// Bytes of page-locked memory that [`lock_pages`](Self::lock_pages) asks for.
    #[must_use]
    pub fn page_locked_bytes(&self) -> usize {
        self.shared.ring.size_bytes()
    }

    /// Builds batches in page-locked memory from now on, from which a device copies by itself on
    /// `stream`: a buffer is not written again before the copies there have run.
    ///
    /// # Errors
    /// [`DataError::Staging`] if there is less than [`Self::page_locked_bytes`]; the loader is as
    /// before then.
    ///
    /// # Panics
    /// If an epoch of the loader is still there.
    pub fn lock_pages(&mut self, memory: &PinnedCache, stream: Stream) -> Result<(), DataError> {
        let shared = Arc::get_mut(&mut self.shared).expect("no epoch of the loader is there");
        let ring = shared.ring.page_locked(memory, stream)?;
        // What was built ahead is in buffers of the ring before.
        shared.ahead = Mutex::default();
        shared.ring = ring;
        Ok(())
    }

    fn start(&self, state: LoaderState) -> Epoch {
        let built = if state.batch == 0 { self.shared.take_ahead(state.epoch) } else { None };
        let mut window = built.unwrap_or_else(|| self.shared.window(state.epoch));
        window.next = state.batch;
        Epoch::new(Arc::clone(&self.shared), window)
    }
}

impl Shared {
    /// The state after the last batch of an epoch.
    fn end_of(&self, epoch: u64) -> LoaderState {
        LoaderState {
            epoch,
            batch: self.batches_per_epoch(),
            seed: self.options.seed,
            batch_size: self.options.batch_size.saturating_mul(self.sampler.rank_count()),
            sample_count: self.dataset.len(),
        }
    }

    fn batches_per_epoch(&self) -> usize {
        let LoaderOptions { batch_size, drop_last, .. } = self.options;
        if drop_last { self.len / batch_size } else { self.len.div_ceil(batch_size) }
    }

    /// An epoch of which nothing is built.
    pub(crate) fn window(&self, epoch: u64) -> Window {
        let LoaderOptions { seed, batch_size, .. } = self.options;
        let order = self.sampler.order(EpochKey { seed, epoch, batch_size }, self.dataset.len());
        let (layout, skip_max) = (Arc::clone(&self.layout), self.options.skip_max());
        let end = self.end_of(epoch);
        let plan = EpochPlan::new(layout, end, skip_max, order, [self.len, batch_size]);
        Window::new(Arc::new(plan), 0, self.ring.slots)
    }

    /// Ends what is being built of an epoch.
    pub(crate) fn stop(&self, window: &mut Window) {
        window.stop(self.pool.as_ref(), self.options.timeout);
    }

    /// Keeps what is being built of an epoch until it is asked for.
    pub(crate) fn keep_ahead(&self, window: Window) {
        self.replace_ahead(Some(window));
    }

    /// What is being built of `epoch`. If that is another one it is stopped, so that its buffers
    /// are free.
    fn take_ahead(&self, epoch: u64) -> Option<Window> {
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it = ahead.as_ref().is_some_and(|window| window.plan.end.epoch == epoch);
        if is_it {
            return ahead.take();
        }
        drop(ahead);
        self.replace_ahead(None);
        None
    }

    /// Gives back the buffers of the epoch that is being built ahead; whether there was one.
    pub(crate) fn drop_ahead(&self) -> bool {
        self.replace_ahead(None)
    }

    fn replace_ahead(&self, window: Option<Window>) -> bool {
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *ahead, window);
        drop(ahead);
        before.map(|mut window| self.stop(&mut window)).is_some()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.drop_ahead();
    }
}

impl fmt::Debug for Loader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loader")
            .field("options", self.options())
            .field("sample_count", &self.shared.dataset.len())
            .field("staging_bytes", &self.staging_bytes())
            .finish_non_exhaustive()
    }
}
