//! The loader: a dataset, an order, a ring of staging buffers and the threads that fill them.

use crate::dataset::Dataset;
use crate::epoch::{Epoch, Plan};
use crate::error::DataError;
use crate::layout::Layout;
use crate::pool::Pool;
use crate::sampler::{Sampler, Shuffled};
use crate::staging::Ring;
use crate::state::LoaderState;
use std::fmt;
use std::sync::Arc;

/// Settings of a [`Loader`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoaderOptions {
    /// Samples per batch (1).
    pub batch_size: usize,
    /// Leave out the last batch if it is not full (false).
    pub drop_last: bool,
    /// Seed of the order of all epochs (0).
    pub seed: u64,
    /// Threads that read samples; 0 reads them on the thread that asks for the batch (0).
    pub workers: usize,
    /// Batches held ready or in use beside the one that each worker builds, at least 1 (2).
    pub prefetch: usize,
}

impl Default for LoaderOptions {
    fn default() -> Self {
        Self { batch_size: 1, drop_last: false, seed: 0, workers: 0, prefetch: 2 }
    }
}

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
    sampler: Box<dyn Sampler>,
    layout: Arc<Layout>,
    options: LoaderOptions,
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
        let LoaderOptions { batch_size, workers, prefetch, .. } = options;
        for (option, value) in [("batch_size", batch_size), ("prefetch", prefetch)] {
            if value == 0 {
                return Err(DataError::InvalidOption { option, value });
            }
        }
        // A batch larger than the dataset never has more rows than the dataset.
        let rows = batch_size.min(dataset.len());
        let layout = Layout::new(dataset.fields(), rows)
            .ok_or(DataError::InvalidOption { option: "batch_size", value: batch_size })?;
        let slots = prefetch
            .checked_add(workers)
            .ok_or(DataError::InvalidOption { option: "workers", value: workers })?;
        let ring = Ring::new(slots, layout.size_bytes)?;
        let dataset: Arc<dyn Dataset> = Arc::new(dataset);
        let pool = match workers {
            0 => None,
            workers => Some(Pool::new(workers, slots, &dataset)?),
        };
        let (sampler, layout) = (Box::new(sampler), Arc::new(layout));
        Ok(Self { shared: Arc::new(Shared { dataset, ring, pool, sampler, layout, options }) })
    }

    /// The batches of epoch `epoch`, from its first on.
    ///
    /// The order is laid out here: 8 bytes per sample while the epoch lives.
    #[must_use]
    pub fn epoch(&self, epoch: u64) -> Epoch {
        self.start(LoaderState { batch: 0, ..self.end_of(epoch) })
    }

    /// The batches that were still to come when `state` was taken, exactly.
    ///
    /// A state from the end of an epoch gives no batch; the next epoch is the caller's to begin.
    ///
    /// # Errors
    /// [`DataError::StateMismatch`] if the state is not of a loader with this seed, batch size and
    /// number of samples, or beyond the end.
    pub fn resume(&self, state: LoaderState) -> Result<Epoch, DataError> {
        state.check(&self.end_of(state.epoch))?;
        Ok(self.start(state))
    }

    /// Batches of every epoch.
    #[must_use]
    pub fn batches_per_epoch(&self) -> usize {
        let (len, batch_size) = (self.shared.dataset.len(), self.options().batch_size);
        if self.options().drop_last { len / batch_size } else { len.div_ceil(batch_size) }
    }

    /// The settings.
    #[must_use]
    pub fn options(&self) -> &LoaderOptions {
        &self.shared.options
    }

    /// The dataset.
    #[must_use]
    pub fn dataset(&self) -> &dyn Dataset {
        self.shared.dataset.as_ref()
    }

    /// Bytes of all staging buffers together, taken when the loader was made and never grown.
    #[must_use]
    pub fn staging_bytes(&self) -> usize {
        self.shared.ring.slots * self.shared.ring.slot_bytes
    }

    fn end_of(&self, epoch: u64) -> LoaderState {
        LoaderState {
            epoch,
            batch: self.batches_per_epoch(),
            seed: self.options().seed,
            batch_size: self.options().batch_size,
            sample_count: self.shared.dataset.len(),
        }
    }

    fn start(&self, state: LoaderState) -> Epoch {
        let mut order: Vec<usize> = (0..state.sample_count).collect();
        self.shared.sampler.arrange(state.seed, state.epoch, &mut order);
        let plan = Plan::new(Arc::clone(&self.shared.layout), self.end_of(state.epoch), order);
        Epoch::new(Arc::clone(&self.shared), plan, state.batch)
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
