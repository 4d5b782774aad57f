//! Parameters of which each of several ranks has a part.
//!
//! A pass puts a parameter together where it uses it, which all ranks have to do at the same time.
//! So they take the same steps in the same order: parts of batches are alike, an evaluation is done
//! by all, and a rank that fails between two calls says so in place of the next one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lowtide_allocator::ModulePath;
use lowtide_autograd::{AutogradError, LeafId};
use lowtide_data::{BatchView, Loader};
use lowtide_nn::optim::{Part, Stateful};
use lowtide_nn::{Gather, NnError, NnResult, Parameters, Sum, divide, set_gather, set_sum};
use lowtide_ranks::{Collectives, Rank, RanksError, vote};
use lowtide_tensor::{CpuOptions, Device, Tensor};

use crate::agreement::is_of_another;
use crate::error::{Result, TrainError};
use crate::learned::Learned;
use crate::score::Score;
use crate::task::Task;
use crate::trainer::Trainer;
use crate::zero::{Zero, parameter_part};

/// The calls of all ranks within passes.
#[derive(Debug)]
pub(crate) struct ByRanks {
    ranks: Arc<dyn Collectives>,
    summed_bytes: AtomicUsize,
    gathered_bytes: AtomicUsize,
}

impl ByRanks {
    pub(crate) fn new(ranks: Arc<dyn Collectives>) -> Self {
        ByRanks { ranks, summed_bytes: AtomicUsize::new(0), gathered_bytes: AtomicUsize::new(0) }
    }

    /// Bytes of what was added up so far, and of the parameters that were put together.
    pub(crate) fn shared_bytes(&self) -> [usize; 2] {
        [&self.summed_bytes, &self.gathered_bytes].map(|bytes| bytes.load(Ordering::Relaxed))
    }
}

impl Sum for ByRanks {
    fn sum(&self, x: &mut Tensor) -> NnResult<()> {
        self.summed_bytes.fetch_add(x.size_bytes(), Ordering::Relaxed);
        self.ranks.all_reduce(x).map_err(|error| in_pass(error).into())
    }
}

impl Gather for ByRanks {
    fn gather(&self, whole: &mut Tensor, part_len: usize) -> NnResult<()> {
        self.gathered_bytes.fetch_add(whole.size_bytes(), Ordering::Relaxed);
        self.ranks.gather_parts(whole, part_len).map_err(|error| in_pass(error).into())
    }
}

/// An error of ranks as one of a pass, in which a lack of memory is seen.
pub(crate) fn in_pass(error: RanksError) -> AutogradError {
    match error {
        RanksError::Tensor(error) => error.into(),
        error => AutogradError::segment(error),
    }
}

/// The error, or that of the ranks which it carries.
fn out_of_pass(error: TrainError) -> TrainError {
    match &error {
        TrainError::Nn(NnError::Autograd(AutogradError::Segment(carried))) => {
            let of_ranks = carried.downcast_ref::<RanksError>().cloned();
            of_ranks.map_or(error, TrainError::from)
        }
        _ => error,
    }
}

/// The own result of work in which ranks call each other, if every rank has one. A rank that fails
/// says so in place of the call that the others are in, or come to; if that call has failed they
/// all do.
///
/// # Errors
/// The own error; `Ranks` for that of another rank.
pub(crate) fn agree_in_calls<T>(ranks: &dyn Collectives, own: Result<T>) -> Result<T> {
    match own {
        Ok(value) => {
            vote(ranks, Ok(()))?;
            Ok(value)
        }
        Err(error) => {
            let error = out_of_pass(error);
            ranks.refuse(&error.one_line())?;
            Err(error)
        }
    }
}

/// Lets the parameters of a rehearsal be put together, and what is shared be added up, by the ranks
/// of it.
pub(crate) fn rehearse_among(
    parameters: &mut dyn Parameters,
    ranks: Arc<dyn Collectives>,
) -> Arc<ByRanks> {
    let ranks = Arc::new(ByRanks::new(ranks));
    let (gather, sum): (Arc<dyn Gather>, Arc<dyn Sum>) = (ranks.clone(), ranks.clone());
    set_gather(parameters, &gather);
    set_sum(parameters, &sum);
    ranks
}

/// The score of everything in `loader`, of which all ranks score the same parts at the same time,
/// of no more samples than any of them would; `score` does so with a batch in such parts. Where
/// memory lacks on one of them, all drop their caches and try again, then with half the samples.
///
/// # Errors
/// Those of an evaluation; `Ranks`.
pub(crate) fn evaluate_together(
    device: &Device,
    loader: &Loader,
    micro_batch: usize,
    ranks: &dyn Collectives,
    score: impl Fn(&BatchView<'_>, usize) -> Result<Score>,
) -> Result<Score> {
    let said = ranks.exchange(&(micro_batch as u64).to_le_bytes())?;
    let sizes = said.iter().filter_map(|words| words.as_slice().try_into().ok());
    let least = sizes.map(u64::from_le_bytes).min().unwrap_or(1).max(1) as usize;
    let mut total = Score::default();
    for batch in loader.epoch(0) {
        let batch = agree_in_calls(ranks, batch.map_err(TrainError::from))?;
        let (mut part, mut is_again) = (least, false);
        let score = loop {
            match agree_in_calls(ranks, score(&batch.view(), part)) {
                Err(error) if error.out_of_memory().is_some() || is_of_another(&error) => {
                    device.allocator().trim();
                    if is_again && part == 1 {
                        return Err(error);
                    }
                    part = if is_again { part.div_ceil(2) } else { part };
                    is_again = true;
                }
                scored => break scored?,
            }
        };
        total.add(score);
    }
    Ok(total)
}

impl<T: Task + Clone, O: Stateful + Clone> Trainer<T, O> {
    /// Leaves of every parameter the part of this rank, or of the model's features its own, on the
    /// device of the training, as [`Options::zero`](crate::Options::zero) says: before the first
    /// plan or step, which do it themselves. The model may be on another device before, which has
    /// room for all of it.
    ///
    /// # Errors
    /// `OutOfMemory`; `Setting` for a model whose features cannot be shared.
    pub fn divide(&mut self) -> Result<()> {
        if self.shares_features() {
            return self.share_features();
        }
        let part = parameter_part(self.ranks(), self.options.zero);
        let Some((part, ranks)) = part.zip(self.options.ranks.clone()) else { return Ok(()) };
        let parameters = self.task.parameters();
        let mut is_divided = false;
        parameters.visit(&mut |_, parameter| is_divided |= parameter.part().is_some());
        if is_divided {
            return Ok(());
        }
        let gather: Arc<dyn Gather> = Arc::new(ByRanks::new(ranks));
        divide(parameters, &self.device, part, &gather)?;
        parameters.visit_tensors(&mut |name, tensor| {
            tensor.set_module(ModulePath::of_parameter(name));
        });
        Ok(())
    }

    /// Places on the host for what is learned of the parameters that are divided, to be loaded and
    /// then [taken](take_parts), of those that ranks share, and of those that are in other stages.
    ///
    /// # Errors
    /// What keeps the host's device from being opened.
    pub(crate) fn empty_wholes(&mut self) -> Result<BTreeMap<LeafId, Tensor>> {
        let host = Device::cpu(CpuOptions { threads: Some(1), ..CpuOptions::default() })?;
        let (mut wholes, mut outcome) = (BTreeMap::new(), Ok(()));
        Learned::of(&mut self.task).visit(&mut |_, parameter| {
            let is_whole = parameter.part().is_none() && parameter.shard().is_none();
            let is_here = is_whole && !parameter.is_elsewhere();
            if is_here || outcome.is_err() {
                return;
            }
            let (value, shard) = (parameter.value(), parameter.shard());
            let (shape, dtype) = (shard.map_or(*value.shape(), |of| *of.shape()), value.dtype());
            match Tensor::zeros(&host, shape, dtype) {
                Ok(whole) => drop(wholes.insert(parameter.id(), whole)),
                Err(error) => outcome = Err(error),
            }
        });
        outcome?;
        Ok(wholes)
    }

    /// Those among whom evaluations are shared, unless all take part in each.
    pub(crate) fn evaluating_rank(&self) -> Option<Rank> {
        let do_all = matches!(self.options.zero, Zero::Parameters | Zero::Features);
        let do_all = do_all || self.pipeline.is_some();
        self.ranks().map(Collectives::rank).filter(|_| !do_all)
    }

    /// `Ok` if this rank has whole parameters.
    ///
    /// # Errors
    /// `Setting` where it has none.
    #[doc(hidden)]
    pub fn check_alone(&self) -> Result<()> {
        let has_parts = parameter_part(self.ranks(), self.options.zero).is_some();
        if !has_parts && !self.shares_features() && self.pipeline.is_none() {
            return Ok(());
        }
        let problem = "this rank has only parts of the parameters: all ranks evaluate together, \
                       after the steps that the run says";
        Err(TrainError::Setting { place: "evaluate".to_owned(), problem: problem.to_owned() })
    }
}

/// Overwrites the parts of parameters with those of `wholes`.
///
/// # Errors
/// What a device says of a copy.
pub(crate) fn take_parts(
    parameters: &mut dyn Parameters,
    part: Part,
    wholes: &BTreeMap<LeafId, Tensor>,
) -> Result<()> {
    let mut outcome: NnResult<()> = Ok(());
    parameters.visit(&mut |_, parameter| {
        let id = parameter.id();
        if let (Ok(()), Some(own), Some(whole)) = (&outcome, parameter.part_mut(), wholes.get(&id))
        {
            outcome = part.of(whole).and_then(|of_whole| Ok(own.copy_across_(&of_whole)?));
        }
    });
    Ok(outcome?)
}
