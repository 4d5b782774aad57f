//! Options of a plan besides splitting and recomputing, which are only used on request.

use std::fmt;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use lowtide_ranks::{Collectives, Mirror, Rank};
use lowtide_tensor::{CpuOptions, Device, SimSpec};
use lowtide_trainer::{DoesNotFit, Parallelism, Precision, Result, TrainError, is_undividable};
use serde::{Deserialize, Serialize};

use crate::command::device::{DeviceName, parse_budget};
use crate::command::{DeviceArgs, parse_count};
use crate::recipe::{Recipe, StateType, StoredType};

/// Options of a plan that are only used on request.
#[derive(Args, Clone)]
pub(super) struct PlanningArgs {
    /// Host memory, such as 16GiB, for tensors that a cuda device saves for backward and has no
    /// room for; none if absent.
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true, value_parser = parse_budget)]
    pub(super) offload_budget: Option<usize>,
    /// Number of ranks that train together on this machine. Each has its share of every batch and
    /// its own budget: on the processor, whose cores are divided, or on a separate cuda device.
    #[arg(long, value_name = "N")]
    #[arg(value_parser = |text: &str| parse_count(text, 1..=RANKS_MAX))]
    ranks: Option<u64>,
    /// The state that ranks divide (ZeRO). 0: nothing. 1: the optimizer's states; each rank updates
    /// a part of every parameter and copies the other parts, and the bits stay the same. 2: also
    /// gradients. 3: also parameters, which are whole only while they are used; for models of
    /// blocks, which are then recomputed. If absent, the fastest that fits, by the times of a plan.
    #[arg(long, value_name = "STAGE", value_parser = parse_zero)]
    pub(super) zero: Option<Parallelism>,
    /// Cuts the model between its blocks into a stage for each rank. A batch goes through the
    /// stages in micro-batches. For models that are too large for one rank.
    #[arg(long, conflicts_with = "zero")]
    pipeline: bool,
    /// Shares the attention heads, hidden features and vocabulary of a text model, or the heads and
    /// features of an image model, among the ranks. Each rank has all samples, and partial results
    /// are summed in each block. For layers that are too large for one rank.
    #[arg(long, conflicts_with_all = ["zero", "pipeline"])]
    tensor_parallel: bool,
    /// Changes of the numerics for a plan that does not fit otherwise, with commas between them.
    /// Changes are tried in order, and then all together.
    #[arg(long, value_name = "CHANGES", value_delimiter = ',')]
    pub(super) allow: Vec<Numerics>,
    /// Number of ranks of the run that is resumed.
    #[arg(skip)]
    pub(super) ranks_of_run: Option<usize>,
    /// The division among ranks to try first if none is given.
    #[arg(skip)]
    pub(super) preferred: Option<Parallelism>,
}

/// A number larger than the devices of any machine.
const RANKS_MAX: u64 = 64;

/// A change of a recipe that takes less memory and computes other numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub(super) enum Numerics {
    /// States of the optimizer in 8 bits.
    #[serde(rename = "8bit-states")]
    #[value(name = "8bit-states")]
    EightBitStates,
    /// Products in bf16, and with them many of the tensors saved for backward.
    #[serde(rename = "bf16")]
    Bf16,
    /// Parameters and gradients in bf16, with stochastic rounding.
    #[serde(rename = "bf16-parameters")]
    Bf16Parameters,
}

fn parse_zero(text: &str) -> Result<Parallelism, String> {
    match text {
        "0" => Ok(Parallelism::DataParallel),
        "1" => Ok(Parallelism::Zero1),
        "2" => Ok(Parallelism::Zero2),
        "3" => Ok(Parallelism::Zero3),
        _ => Err(format!("{text:?} is no stage: 0, 1, 2 or 3")),
    }
}

/// A recipe with the changes of its numerics and the division among ranks that its plan needed.
pub(super) struct Changed<T> {
    pub(super) recipe: Recipe,
    pub(super) numerics: Vec<Numerics>,
    pub(super) zero: Parallelism,
    pub(super) planned: T,
}

impl fmt::Display for Numerics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Numerics::EightBitStates => "states of the optimizer in 8 bits",
            Numerics::Bf16 => "products in bf16",
            Numerics::Bf16Parameters => "parameters in bf16",
        })
    }
}

impl Numerics {
    /// Changes a recipe.
    pub(super) fn apply(self, recipe: &mut Recipe) {
        let train = &mut recipe.train;
        match self {
            Numerics::EightBitStates => train.states = StateType::EightBit,
            // f16 needs no more memory than bf16.
            Numerics::Bf16 if train.precision == Precision::F32 => {
                train.precision = Precision::Bf16;
            }
            Numerics::Bf16 => {}
            Numerics::Bf16Parameters => train.parameters = StoredType::Bf16,
        }
    }
}

impl PlanningArgs {
    /// The first result of `plan` that fits. The recipe is tried unchanged, with each allowed
    /// change of the numerics, and with all of them. Each is tried with the preferred division
    /// among ranks, and then from the least to the most divided one.
    ///
    /// # Errors
    /// `DoesNotFit` of the unchanged recipe with the division that needs least. Any other error
    /// ends the search.
    pub(super) fn first_that_fits<T>(
        &self,
        recipe: &Recipe,
        mut plan: impl FnMut(&Recipe, Parallelism) -> Result<T>,
    ) -> Result<Changed<T>> {
        self.check_divided()?;
        let singly = self.allow.iter().map(std::slice::from_ref);
        let together = (self.allow.len() > 1).then_some(&self.allow[..]);
        let zeros = match self.divided() {
            Some(zero) => vec![zero],
            None if self.rank_count() == 1 => vec![Parallelism::DataParallel],
            None => {
                let others = Parallelism::OF_SHARED_BATCHES
                    .into_iter()
                    .filter(|&zero| Some(zero) != self.preferred);
                self.preferred.into_iter().chain(others).collect()
            }
        };
        let mut least: Option<Box<DoesNotFit>> = None;
        for changes in std::iter::once(&[][..]).chain(singly).chain(together) {
            let mut changed = recipe.clone();
            changes.iter().for_each(|change| change.apply(&mut changed));
            if !changes.is_empty() && (changed == *recipe || changed.check().is_err()) {
                continue;
            }
            for &zero in &zeros {
                match plan(&changed, zero) {
                    Ok(planned) => {
                        let numerics = changes.to_vec();
                        return Ok(Changed { recipe: changed, numerics, zero, planned });
                    }
                    Err(TrainError::DoesNotFit(error)) => {
                        let known_bytes = least.as_ref().map_or(usize::MAX, |of| of.needed_bytes);
                        if changes.is_empty() && error.needed_bytes < known_bytes {
                            least = Some(error);
                        }
                    }
                    Err(error) if self.divided().is_none() && is_undividable(&error) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Err(TrainError::DoesNotFit(least.expect("the recipe as it is was tried")))
    }

    /// # Errors
    /// `Setting` for a division among ranks with only one rank.
    fn check_divided(&self) -> Result<()> {
        let place = match self.divided() {
            None | Some(Parallelism::DataParallel) => return Ok(()),
            Some(Parallelism::Pipeline) => "--pipeline",
            Some(Parallelism::TensorParallel) => "--tensor-parallel",
            Some(_) => "--zero",
        };
        if self.rank_count() > 1 {
            return Ok(());
        }
        let problem = "takes several ranks to divide something among: --ranks says how many";
        Err(TrainError::Setting { place: place.to_owned(), problem: problem.to_owned() })
    }

    /// The division among the ranks, if one is given.
    pub(super) fn divided(&self) -> Option<Parallelism> {
        if self.pipeline {
            Some(Parallelism::Pipeline)
        } else if self.tensor_parallel {
            Some(Parallelism::TensorParallel)
        } else {
            self.zero
        }
    }

    /// The rank whose shares of batches this rank reads. Stages of a pipeline, and ranks that share
    /// the features of a model, read whole batches.
    pub(super) fn reader(&self, rank: Rank) -> Rank {
        if self.divided().is_none_or(Parallelism::shares_batches) { rank } else { Rank::ALONE }
    }

    /// The [reader](PlanningArgs::reader) of the first rank.
    pub(super) fn first_reader(&self) -> Rank {
        self.reader(self.first_rank())
    }

    /// Number of shares of a batch.
    pub(super) fn share_count(&self) -> usize {
        self.first_reader().count
    }

    /// Number of ranks that train together: the given number, that of the run that is resumed, or
    /// one.
    pub(super) fn rank_count(&self) -> usize {
        self.ranks.map_or(self.ranks_of_run.unwrap_or(1), |ranks| ranks as usize)
    }

    /// Sets the number of ranks to the number of processes.
    ///
    /// # Errors
    /// `Setting` if `--ranks` gives the number of ranks in one process.
    #[cfg(feature = "mpi")]
    pub(super) fn of_processes(&self, count: usize) -> Result<PlanningArgs> {
        if self.ranks.is_some_and(|ranks| ranks > 1) {
            let place = "--ranks".to_owned();
            let problem = format!("MPI has started {count} processes, a rank each");
            return Err(TrainError::Setting { place, problem });
        }
        Ok(PlanningArgs { ranks: Some(count as u64), ..self.clone() })
    }

    /// The first rank.
    pub(super) fn first_rank(&self) -> Rank {
        Rank { index: 0, count: self.rank_count() }
    }

    /// The simulated first rank, for a plan of several ranks.
    pub(super) fn simulated_ranks(&self) -> Option<Arc<dyn Collectives>> {
        self.simulated_rank(0)
    }

    /// A simulated rank.
    pub(super) fn simulated_rank(&self, index: usize) -> Option<Arc<dyn Collectives>> {
        let rank = Rank { index, ..self.first_rank() };
        (rank.count > 1).then(|| Arc::new(Mirror::new(rank).expect("one of them")) as _)
    }

    /// The host memory that blocks are offloaded to.
    ///
    /// # Errors
    /// `Setting` if the training itself runs in host memory; an error if addresses cannot be
    /// reserved.
    pub(super) fn open_host(&self, device: &DeviceArgs) -> Result<Option<Device>> {
        self.check_offload(device)?;
        let open =
            |bytes| Device::cpu(CpuOptions { budget_bytes: Some(bytes), ..CpuOptions::default() });
        Ok(self.offload_budget.map(open).transpose()?)
    }

    /// The simulated host memory that blocks are offloaded to.
    ///
    /// # Errors
    /// `Setting` if the training itself runs in host memory.
    pub(super) fn open_simulated_host(&self, device: &DeviceArgs) -> Result<Option<Device>> {
        self.check_offload(device)?;
        let simulate = |bytes| Device::sim(SimSpec::like_this_machine(bytes));
        Ok(self.offload_budget.map(simulate).transpose()?)
    }

    fn check_offload(&self, device: &DeviceArgs) -> Result<()> {
        if self.offload_budget.is_none() || device.device != DeviceName::Cpu {
            return Ok(());
        }
        let place = "--offload-budget".to_owned();
        let problem = "is for a cuda device; a cpu has no other memory, --budget is all of it";
        Err(TrainError::Setting { place, problem: problem.to_owned() })
    }
}
