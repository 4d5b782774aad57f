//! What each of several ranks keeps only a part of.
//!
//! A rank updates its part of every parameter and then copies the parts of the others. A rank
//! that needs the whole state, for a checkpoint or a hash, asks for it: the others hear of that
//! where they meet between two steps.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use lowtide_allocator::Promise;
use lowtide_autograd::{Attempt, AutogradError, Gradients, LeafId, Turn};
use lowtide_nn::optim::{OptimizerState, Part, Parts, Stateful};
use lowtide_nn::{NnError, Parameters};
use lowtide_ranks::{Collectives, Rank};
use lowtide_tensor::{CpuOptions, Device, Tensor, TensorError};
use serde::{Deserialize, Serialize};

use crate::agreement::Ranks;
use crate::divided::{agree_in_calls, in_pass};
use crate::error::{Result, TrainError};
use crate::knobs::Knobs;
use crate::learned::Learned;
use crate::leaves::Computed;
use crate::observer::Flow;
use crate::options::MicroBatches;
use crate::plan::Plan;
use crate::rehearsal::Forecast;
use crate::step::{Goal, Step};
use crate::task::Task;
use crate::trainer::Trainer;

/// What each of several ranks keeps only a part of (ZeRO, Rajbhandari et al. 2020).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Zero {
    /// Nothing: each rank updates everything.
    #[default]
    Off,
    /// The states of the optimizer (ZeRO-1): each rank updates a part of every parameter, which the
    /// others then copy. The same bits; half as many bytes are sent again.
    States,
    /// Those, and gradients (ZeRO-2): each is summed over the ranks as soon as it is complete, and
    /// a rank keeps its part. All ranks split their batches alike, and the sum of gradients is that
    /// of each micro-batch in turn; with [leaves](crate::MicroBatches::Leaves), gradients are
    /// divided once they are summed.
    Gradients,
    /// Those, and parameters (ZeRO-3), frozen ones too: a parameter is whole only from its use in
    /// forward to its last one in backward, and in blocks that are recomputed only while they run.
    /// All ranks take the same parts of batches and of evaluations at the same time.
    Parameters,
    /// The model by its blocks: each rank has a run of them, a stage of a pipeline (GPipe, Huang et
    /// al. 2019), and all samples of every batch, which goes through the stages in micro-batches.
    /// The model is cut between its [`Segment`](lowtide_nn::Segment)s, such that the stage that
    /// takes longest takes as little time as can be. A step has the bits of one rank that splits
    /// its batches so, but for parameters that are trained in several stages, such as an embedding
    /// that is the output layer too, and for clipping: these sums are taken in another order.
    Blocks,
    /// The attention heads, the hidden features and the vocabulary of a model (tensor parallelism,
    /// Megatron-LM, Shoeybi et al. 2019): each rank has some of them, and all samples of every
    /// batch. What ranks make of their own is added up within each block, twice forwards and twice
    /// backwards. Norms, and whatever has fewer heads than there are ranks, each rank has as a
    /// whole; so are the tables and the output layers of models other than decoders of text. All
    /// ranks take the same parts of batches and of evaluations at the same time. Sums are taken in
    /// another order than one rank takes them, and for their own heads ranks draw other numbers.
    Features,
}

impl Zero {
    /// All in which ranks share the samples of a batch, the one that divides least first.
    pub const ALL: [Zero; 4] = [Zero::Off, Zero::States, Zero::Gradients, Zero::Parameters];

    /// What is divided, in words, if anything is.
    pub fn divided(self) -> Option<&'static str> {
        match self {
            Zero::Off => None,
            Zero::States => Some("the optimizer's states"),
            Zero::Gradients => Some("the optimizer's states and gradients"),
            Zero::Parameters => Some("the optimizer's states, gradients and parameters"),
            Zero::Blocks => Some("the model's blocks"),
            Zero::Features => Some("the model's heads, hidden features and vocabulary"),
        }
    }
}

/// The part of every parameter that this rank updates, if not all.
pub(crate) fn part_of(ranks: Ranks<'_>, zero: Zero) -> Option<Part> {
    let Rank { index, count } = ranks?.rank();
    let divides = !matches!(zero, Zero::Off | Zero::Blocks | Zero::Features);
    (divides && count > 1).then_some(Part { index, count })
}

/// The part of every parameter that is all that this rank has of it, if it is.
pub(crate) fn parameter_part(ranks: Ranks<'_>, zero: Zero) -> Option<Part> {
    part_of(ranks, zero).filter(|_| zero == Zero::Parameters)
}

/// What errors about an optimizer that cannot be divided name.
const PLACE: &str = "zero";

/// # Errors
/// `Setting` for an optimizer that cannot update parts of parameters, where there are such.
pub(crate) fn check(has_parts: bool, optimizer: &impl Stateful) -> Result<()> {
    if !has_parts || optimizer.can_update_parts() {
        return Ok(());
    }
    let problem = "the optimizer updates parameters as wholes, or keeps averages, masks or states \
                   in 8 bits of them: its states cannot be divided among ranks";
    Err(TrainError::Setting { place: PLACE.to_owned(), problem: problem.to_owned() })
}

/// True for the error of an optimizer that cannot update parts of parameters.
pub fn is_undividable(error: &TrainError) -> bool {
    matches!(error, TrainError::Setting { place, .. } if place == PLACE)
}

/// The gradients that a rank keeps its part of.
pub(crate) struct PartSums<'a> {
    ranks: &'a dyn Collectives,
    part: Part,
    sums: Gradients,
}

impl<'a> PartSums<'a> {
    pub(crate) fn new(ranks: &'a dyn Collectives, part: Part) -> Self {
        PartSums { ranks, part, sums: Gradients::default() }
    }

    /// Adds the own part of a gradient of all ranks, which all of them have now.
    ///
    /// # Errors
    /// `OutOfMemory`; what else keeps the ranks from it.
    pub(crate) fn add(&mut self, leaf: LeafId, gradient: Tensor) -> Result<(), AutogradError> {
        let mut gradient = if gradient.is_reusable() { gradient } else { gradient.copied()? };
        let part_len = self.part.len_of(gradient.element_count());
        self.ranks.reduce_part(&mut gradient, part_len).map_err(in_pass)?;
        let mut own = self.part.of(&gradient).map_err(NnError::into_autograd)?.copied()?;
        drop(gradient);
        if let Some(mut sum) = self.sums.remove(leaf) {
            // As of half types on one rank: f32 from the second term on.
            let wide = sum.dtype().computed();
            sum = sum.to_dtype(wide)?;
            sum.add_(&own.to_dtype(wide)?)?;
            own = sum;
        }
        self.sums.insert(leaf, own);
        Ok(())
    }

    /// The sums, if every rank has its own.
    ///
    /// # Errors
    /// The own error; `Ranks` for that of another rank.
    pub(crate) fn agree<T>(self, own: Result<T>) -> Result<(T, Gradients)> {
        let value = agree_in_calls(self.ranks, own)?;
        Ok((value, self.sums))
    }
}

/// Knobs that need no more memory than those of any rank: where gradients are summed as they come,
/// or parameters put together as they are used, that has to be in the same order everywhere.
///
/// # Errors
/// `Ranks`.
pub(crate) fn common_knobs(ranks: &dyn Collectives, own: Knobs) -> Result<Knobs> {
    let words = serde_json::to_vec(&own).expect("plain values");
    let said = ranks.exchange(&words)?;
    let others = said.iter().filter_map(|words| serde_json::from_slice::<Knobs>(words).ok());
    Ok(others.fold(own, |common, other| Knobs {
        micro_batch: common.micro_batch.min(other.micro_batch),
        cheap_recomputed: common.cheap_recomputed || other.cheap_recomputed,
        recomputed_blocks: common.recomputed_blocks.max(other.recomputed_blocks),
        blocks_at_once: common.blocks_at_once.max(other.blocks_at_once),
        offloaded_blocks: common.offloaded_blocks.max(other.offloaded_blocks),
        fused_update: false,
    }))
}

/// That the parts of other ranks can be copied after an update, whatever becomes of the memory
/// meanwhile: they come in pieces that are smaller than the gradients, which are gone then.
///
/// # Errors
/// `OutOfMemory`.
pub(crate) fn promise(device: &Device) -> Result<Option<Promise>> {
    let allocator = device.allocator();
    let reserved_bytes = allocator.statistics().reserved.current_bytes;
    let promise = allocator.can_promise().then(|| allocator.promise(reserved_bytes));
    Ok(promise.transpose().map_err(TensorError::from)?)
}

/// Copies what the other ranks have updated of their parts of the parameters with these `leaves`.
///
/// # Errors
/// What keeps the ranks from it: some parameters are then not whole.
pub(crate) fn spread(
    ranks: &dyn Collectives,
    part: Part,
    parameters: &mut dyn Parameters,
    mut leaves: BTreeSet<LeafId>,
) -> Result<(), NnError> {
    let mut result = Ok(());
    parameters.visit(&mut |_, parameter| {
        if result.is_ok() && leaves.remove(&parameter.id()) {
            let value = parameter.value_mut();
            let part_len = part.len_of(value.element_count());
            result = ranks.gather_parts(value, part_len);
        }
    });
    result.map_err(|error| AutogradError::segment(error).into())
}

/// What ranks have parts of, on the host.
#[derive(Default)]
pub(crate) struct Gathered {
    /// The states of the optimizer by name, in the order in which the optimizer has them.
    pub(crate) states: Vec<(String, Tensor)>,
    pub(crate) parameters: BTreeMap<LeafId, Tensor>,
}

/// What a rank says where all of them meet between two steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    Continue,
    Stop,
    /// It needs the whole state of the optimizer, for which all ranks give their parts.
    Gather,
    /// It has trained, and needs nothing more.
    Leave,
}

impl<T: Task + Clone, O: Stateful + Clone> Trainer<T, O> {
    /// The part of every parameter that this rank updates, if not all.
    pub(crate) fn part(&self) -> Option<Part> {
        part_of(self.ranks(), self.options.zero)
    }

    /// Whether any rank wants to stop.
    ///
    /// # Errors
    /// `Ranks`.
    pub(crate) fn flow_of_all(&mut self, own: Flow) -> Result<Flow> {
        if self.ranks().is_none() {
            return Ok(own);
        }
        let own = if own == Flow::Stop { Word::Stop } else { Word::Continue };
        let words = self.meet(own)?;
        Ok(if words.contains(&Word::Stop) { Flow::Stop } else { Flow::Continue })
    }

    /// The bytes that this rank sends in a step of `plan`, by the formula, beside the few by which
    /// ranks agree and those of buffers, such as the running means of norms. Of the n - 1 other
    /// parts of the gradients each is sent to the rank that it belongs to, and the own part of the
    /// sums, or of what was updated by them, to n - 1 others. So is the own part of each parameter
    /// that is divided, whenever it is put together, and twice as much of what is added up within
    /// passes. A stage sends what goes between blocks.
    pub fn sent_bytes(&mut self, plan: &Plan) -> usize {
        let Some(Rank { count, .. }) = self.ranks().map(Collectives::rank) else { return 0 };
        let sent = |all: usize| all / count * (count - 1);
        let Forecast { summed_bytes, gathered_bytes, .. } = plan.forecast;
        let has_leaves = matches!(self.options.micro_batches, MicroBatches::Leaves(_));
        // As often as what is trained is sent.
        let times = match self.options.zero {
            Zero::Blocks => return self.stage(plan).1,
            Zero::Features => 0,
            Zero::Off => 2,
            Zero::States => 3,
            // Of leaves the sum is reduced once, and then all of it is everywhere.
            Zero::Gradients if has_leaves => 3,
            Zero::Parameters if has_leaves => 2,
            Zero::Gradients => plan.micro_batches() + 1,
            Zero::Parameters => plan.micro_batches(),
        };
        let (mut trained_bytes, mut seen) = (0, BTreeSet::new());
        self.task.parameters().visit(&mut |_, parameter| {
            if seen.insert(parameter.id()) && !parameter.is_frozen() {
                trained_bytes += parameter.value().size_bytes();
            }
        });
        times * sent(trained_bytes) + 2 * sent(summed_bytes) + sent(gathered_bytes)
    }

    /// Waits until every rank has said so, and gives this rank's part of the states to those that
    /// still save or hash them: for after the last run. Only where
    /// [ranks](crate::Options::ranks) divide [states](crate::Options::zero).
    ///
    /// # Errors
    /// `Ranks`.
    pub fn leave(&mut self) -> Result<()> {
        match self.is_spread() {
            true => self.meet(Word::Leave).map(drop),
            false => Ok(()),
        }
    }

    /// Whether it takes all ranks to have everything.
    pub(crate) fn is_spread(&self) -> bool {
        self.part().is_some() || self.pipeline.is_some() || self.shares_features()
    }

    /// What all ranks say, once none of them needs the states.
    fn meet(&mut self, own: Word) -> Result<Vec<Word>> {
        loop {
            let words = self.say(own)?;
            if !words.contains(&Word::Gather) {
                return Ok(words);
            }
            self.gather(false)?;
        }
    }

    fn say(&self, own: Word) -> Result<Vec<Word>> {
        const WORDS: [Word; 4] = [Word::Continue, Word::Stop, Word::Gather, Word::Leave];
        let ranks = self.ranks().expect("there are several");
        let said = ranks.exchange(&[own as u8])?;
        let word = |said: Vec<u8>| WORDS.into_iter().find(|&word| said == [word as u8]);
        Ok(said.into_iter().map(|said| word(said).expect("one of the words")).collect())
    }

    /// What all ranks have parts of.
    ///
    /// # Errors
    /// `Ranks`; what a device says of a copy.
    pub(crate) fn gathered(&mut self) -> Result<Gathered> {
        self.say(Word::Gather)?;
        self.gather(true)
    }

    /// Gives the own parts, and takes those of all, if it is this rank that `wants` them.
    fn gather(&mut self, wants: bool) -> Result<Gathered> {
        if self.pipeline.is_some() {
            return self.gather_stages(wants);
        }
        if self.shares_features() {
            return self.gather_shards(wants);
        }
        let (mut shapes, mut own_parts) = (BTreeMap::new(), BTreeMap::new());
        let mut learned = Learned::of(&mut self.task);
        learned.visit(&mut |name, parameter| {
            shapes.insert(name.to_owned(), *parameter.value().shape());
            if let Some(own) = parameter.part() {
                let own = (own.clone(), *parameter.value().shape());
                own_parts.insert(parameter.id(), own);
            }
        });
        let part = part_of(self.options.ranks.as_deref(), self.options.zero).expect("there is one");
        let named = self.optimizer.state(&mut Parts::new(&mut learned, part)?)?.tensors;
        let mut states = Vec::with_capacity(named.len());
        self.optimizer.visit_state(&mut |state| states.push(state.clone()));
        let host = Device::cpu(CpuOptions { threads: Some(1), ..CpuOptions::default() })?;
        let ranks = self.ranks().expect("there are several");
        let mut gathered = Gathered::default();
        for state in states {
            let name = named.iter().find(|(_, tensor)| tensor.shares_storage(&state));
            let parts = ranks.exchange(&state.to_bytes()?)?;
            let (true, Some((name, _))) = (wants, name) else { continue };
            let parameter = name.rsplit_once('.').map_or("", |(parameter, _)| parameter);
            let shape = shapes[parameter];
            let whole = Tensor::from_bytes(&host, shape, state.dtype(), &parts.concat())?;
            gathered.states.push((name.clone(), whole));
        }
        for (id, (own, shape)) in own_parts {
            let parts = ranks.exchange(&own.to_bytes()?)?;
            if wants {
                let whole = Tensor::from_bytes(&host, shape, own.dtype(), &parts.concat())?;
                gathered.parameters.insert(id, whole);
            }
        }
        Ok(gathered)
    }

    /// Writes the model as a file of safetensors, with the parts of all ranks.
    ///
    /// # Errors
    /// `File`; `Ranks`; errors of copies from a device.
    pub fn save_model(&mut self, path: &Path) -> Result<()> {
        let has_parts = parameter_part(self.ranks(), self.options.zero).is_some();
        let wholes = match has_parts || self.shares_features() || self.pipeline.is_some() {
            true => self.gathered()?.parameters,
            false => BTreeMap::new(),
        };
        Ok(lowtide_nn::save(&mut Learned::of(&mut self.task).with_wholes(wholes), path)?)
    }

    /// The optimizer's state of all ranks, and the parameters that are divided among them.
    ///
    /// # Errors
    /// Those of [`Trainer::gathered`].
    pub(crate) fn whole_state(&mut self) -> Result<(OptimizerState, BTreeMap<LeafId, Tensor>)> {
        let gathered = self.is_spread().then(|| self.gathered()).transpose()?;
        let part = self.part();
        let mut learned = Learned::of(&mut self.task);
        let own = match part {
            Some(part) => self.optimizer.state(&mut Parts::new(&mut learned, part)?)?,
            None => self.optimizer.state(&mut learned)?,
        };
        let Some(Gathered { states, parameters }) = gathered else {
            return Ok((own, BTreeMap::new()));
        };
        let tensors = states.into_iter().collect();
        Ok((OptimizerState { tensors, ..own }, parameters))
    }
}

impl<'a, T: Task, O: Stateful> Step<'a, T, O> {
    /// The ranks, and what this one keeps of every gradient, where these are divided as they are
    /// computed.
    pub(crate) fn divides_gradients(&self) -> Option<(&'a dyn Collectives, Part)> {
        let divides = matches!(self.options.zero, Zero::Gradients | Zero::Parameters)
            && !matches!(self.options.micro_batches, MicroBatches::Leaves(_));
        let part = part_of(self.ranks, self.options.zero).filter(|_| divides)?;
        Some((self.ranks?, part))
    }

    /// Whether this rank has parts of the parameters alone.
    pub(crate) fn divides_parameters(&self) -> bool {
        parameter_part(self.ranks, self.options.zero).is_some()
    }

    /// This rank's part of the gradients of the mean loss of all of them.
    pub(crate) fn compute_part(
        &mut self,
        goal: &Goal<'_>,
        turn: Option<&Turn>,
        is_last: bool,
        ranks: &dyn Collectives,
        part: Part,
    ) -> Result<Computed> {
        let (attempt, mut sums) = (Attempt::new(), PartSums::new(ranks, part));
        let mut take = |leaf, gradient| sums.add(leaf, gradient);
        let computed = self.compute(&attempt, goal, turn, goal.part_count(), Some(&mut take));
        let computed = computed.and_then(|computed| {
            self.enqueued(is_last)?;
            Ok(computed)
        });
        let ((loss_sum, coupling), gradients) = sums.agree(computed)?;
        let (_, buffers) = attempt.into_parts();
        Ok(Computed { loss_sum, gradients, buffers, coupling, leaf_count: 1 })
    }
}
