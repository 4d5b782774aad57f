//! Where a model is cut into stages.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lowtide_allocator::{Category, ModulePath};
use lowtide_autograd::{Attempt, BufferId, Coupling, LeafId};
use lowtide_data::{BatchView, ElementType};
use lowtide_nn::optim::Stateful;
use lowtide_nn::{Cuts, Section, Survey, keep_own, survey, survey_cuts};
use lowtide_ranks::Rank;
use lowtide_tensor::{DType, Device, RandomKey, Shape, Tensor};

use crate::agreement::agree;
use crate::error::{Result, TrainError};
use crate::knobs::{EVERY_BLOCK, block_count};
use crate::options::{MicroBatches, Options};
use crate::plan::Plan;
use crate::precision::Precision;
use crate::step::{joined, training_pass, with_precision};
use crate::task::Task;
use crate::trainer::Trainer;
use crate::zero::Zero;

/// A model that is cut, and the stage that this rank has of it.
pub(crate) struct Pipeline<T> {
    rank: Rank,
    /// The blocks that stages begin with, and the number of all blocks.
    bounds: Vec<usize>,
    /// The stages that have each parameter, in the order in which parameters were made.
    stages: BTreeMap<LeafId, Vec<usize>>,
    /// Those in which it has a gradient, unless it is frozen.
    trained: BTreeMap<LeafId, Vec<usize>>,
    /// The stage that updates a buffer.
    buffers: BTreeMap<BufferId, usize>,
    coupling: Option<Coupling>,
    /// The whole model on a simulated device, which tells the shapes of what goes from stage to
    /// stage.
    whole: T,
    device: Device,
    /// Whether all blocks are those that the model shows policies of.
    has_policies: bool,
    /// Cuts by what batches are like, and whether they are trained on.
    cuts: Mutex<Vec<(BatchLike, Cuts)>>,
}

/// Shapes and types of the fields of a batch, and in which precision it is trained on, if it is.
type BatchLike = (Vec<(Vec<usize>, ElementType)>, Option<Precision>);

/// As many are remembered: a run has few shapes, unless sequences are packed.
const CUTS_MAX: usize = 64;

impl<T> Pipeline<T> {
    /// Which of the stages this rank has.
    pub(crate) fn index(&self) -> usize {
        self.rank.index
    }

    pub(crate) fn stage_count(&self) -> usize {
        self.rank.count
    }

    /// The blocks of this stage.
    pub(crate) fn blocks(&self) -> Range<usize> {
        self.bounds[self.rank.index]..self.bounds[self.rank.index + 1]
    }

    /// The policies of these blocks, among all that the model shows.
    pub(crate) fn policies(&self) -> Range<usize> {
        if self.has_policies { self.blocks() } else { 0..0 }
    }

    pub(crate) fn coupling(&self) -> Option<&Coupling> {
        self.coupling.as_ref()
    }

    /// What comes into this stage from the one before.
    pub(crate) fn input(&self, cuts: &Cuts) -> Option<(Shape, DType)> {
        cuts.input(self.blocks().start).filter(|_| self.rank.index > 0)
    }

    /// What goes from this stage to the one after.
    pub(crate) fn output(&self, cuts: &Cuts) -> Option<(Shape, DType)> {
        cuts.input(self.blocks().end)
    }

    /// The first stage that updates a parameter, or has it; the first of all for one that is not
    /// used.
    pub(crate) fn first_stage(&self, leaf: LeafId) -> usize {
        let stages = self.trained.get(&leaf).or_else(|| self.stages.get(&leaf));
        stages.map_or(0, |stages| stages[0])
    }

    /// The stage that updates a buffer.
    pub(crate) fn stage_of_buffer(&self, buffer: BufferId) -> usize {
        self.buffers.get(&buffer).copied().unwrap_or(0)
    }

    /// Parameters of this stage whose gradients an earlier one has, too.
    pub(crate) fn of_earlier_stages(&self) -> BTreeSet<LeafId> {
        let is_later = |stages: &[usize]| stages[0] < self.rank.index;
        self.shared().filter(|(_, stages)| is_later(stages)).map(|(&leaf, _)| leaf).collect()
    }

    /// Parameters that have a gradient in several stages, and these, unless they are frozen.
    pub(crate) fn shared(&self) -> impl Iterator<Item = (&LeafId, &Vec<usize>)> {
        self.trained.iter().filter(|(_, stages)| stages.len() > 1)
    }
}

impl<T: Task> Pipeline<T> {
    /// The cuts of a part of a batch in a step.
    ///
    /// # Errors
    /// Those of a forward pass.
    pub(crate) fn cuts_of_step(&self, part: &BatchView<'_>, precision: Precision) -> Result<Cuts> {
        self.cuts((fields_of(part), Some(precision)), || {
            Ok(survey_step(&self.whole, &self.device, part, precision)?.0.cuts)
        })
    }

    /// The cuts of a part of a batch that is evaluated.
    ///
    /// # Errors
    /// Those of an evaluation.
    pub(crate) fn cuts_of_score(&self, part: &BatchView<'_>) -> Result<Cuts> {
        self.cuts((fields_of(part), None), || {
            survey_cuts(&self.device, || self.whole.score(&self.device, part).map(drop))
        })
    }

    fn cuts(&self, like: BatchLike, find: impl FnOnce() -> Result<Cuts>) -> Result<Cuts> {
        if let Some((_, cuts)) = self.lock_cuts().iter().find(|(known, _)| *known == like) {
            return Ok(cuts.clone());
        }
        let cuts = find()?;
        let mut known = self.lock_cuts();
        if known.len() == CUTS_MAX {
            known.remove(0);
        }
        known.push((like, cuts.clone()));
        Ok(cuts)
    }
}

fn fields_of(part: &BatchView<'_>) -> Vec<(Vec<usize>, ElementType)> {
    part.fields().map(|field| (field.shape(), field.element())).collect()
}

/// What a step's forward pass over the whole of a simulated model shows, and whether it couples
/// samples.
fn survey_step(
    whole: &impl Task,
    device: &Device,
    part: &BatchView<'_>,
    precision: Precision,
) -> Result<(Survey, Option<Coupling>)> {
    let attempt = Attempt::new();
    let pass = training_pass(RandomKey::new(0), &attempt, None, 0, device);
    let pass = with_precision(pass, precision);
    let coupling = pass.clone();
    let _scope = device.category(Category::Activation);
    let survey = survey(device, || -> Result<_> {
        let losses = whole.losses(&pass, device, part)?;
        let ones = vec![1.0; losses.len()];
        Ok((pass, joined(losses, &ones, 1.0)?))
    })?;
    Ok((survey, coupling.coupling()))
}

impl<T: Task + Clone, O: Stateful + Clone> Trainer<T, O> {
    /// True if the model is to be a pipeline and is not cut yet.
    #[doc(hidden)]
    pub fn is_to_be_cut(&self) -> bool {
        let count = self.ranks().map_or(1, |ranks| ranks.rank().count);
        self.options.zero == Zero::Blocks && count > 1 && self.pipeline.is_none()
    }

    /// Cuts the model into stages, where [`Options::zero`](crate::Options::zero) says so, by a
    /// batch that is like those it is trained on, and keeps the stage of this rank, on the device
    /// of the training: before the first plan or step, which do it themselves. The model may be on
    /// another device before, which has room for all of it.
    ///
    /// # Errors
    /// `Setting` for a model that cannot be cut so, and for what a pipeline does not go with;
    /// `OutOfMemory`; those of a forward pass; `Ranks` for what another rank met.
    pub fn cut(&mut self, example: &BatchView<'_>) -> Result<()> {
        let ranks = self.options.ranks.clone().filter(|_| self.is_to_be_cut());
        let Some(ranks) = ranks else { return Ok(()) };
        let (mut pipeline, sections) =
            agree(Some(&*ranks), self.find_pipeline(ranks.rank(), example))?;
        // As the first rank cuts, whatever the others take for the speed of their devices.
        let words: Vec<u8> =
            pipeline.bounds.iter().flat_map(|&at| (at as u64).to_le_bytes()).collect();
        let said = ranks.exchange(&words)?.swap_remove(0);
        let words = said.chunks_exact(8).map(|word| word.try_into().expect("eight bytes"));
        pipeline.bounds = words.map(|word| u64::from_le_bytes(word) as usize).collect();
        pipeline.distribute(&sections);
        let index = pipeline.rank.index;
        let is_own = |leaf| match pipeline.stages.get(&leaf) {
            Some(stages) => stages.contains(&index),
            None => index == 0,
        };
        let is_own_buffer = |buffer| pipeline.stage_of_buffer(buffer) == index;
        let parameters = self.task.parameters();
        let kept = keep_own(parameters, &self.device, &is_own, &is_own_buffer);
        agree(Some(&*ranks), kept.map_err(TrainError::from))?;
        parameters.visit_tensors(&mut |name, tensor| {
            tensor.set_module(ModulePath::of_parameter(name));
        });
        self.pipeline = Some(pipeline);
        Ok(())
    }

    /// A pipeline that is cut by the times of this rank's device, and what its blocks use.
    fn find_pipeline(
        &mut self,
        rank: Rank,
        example: &BatchView<'_>,
    ) -> Result<(Pipeline<T>, Vec<Section>)> {
        check(&self.options, &self.task)?;
        let device = self.device.simulate();
        device.allocator().set_capacity(usize::MAX);
        let whole = simulated(self.task.clone(), &device)?;
        let (found, coupling) = survey_step(&whole, &device, example, self.options.precision)?;
        let policies = block_count(self.task.parameters(), &EVERY_BLOCK);
        let pipeline = Pipeline {
            rank,
            bounds: bounds_of(&found.sections, rank.count)?,
            stages: BTreeMap::new(),
            trained: BTreeMap::new(),
            buffers: BTreeMap::new(),
            coupling,
            whole,
            device,
            has_policies: policies == found.cuts.block_count(),
            cuts: Mutex::default(),
        };
        Ok((pipeline, found.sections))
    }
}

impl<T: Task + Clone, O: Stateful + Clone> Trainer<T, O> {
    /// The blocks of this stage, and the bytes that it sends in a step of `plan`, by the formula:
    /// what goes on to the next stage, the gradients of what came in, and those of parameters that
    /// are in several stages.
    #[doc(hidden)]
    pub fn stage(&mut self, plan: &Plan) -> (Range<usize>, usize) {
        let Some(pipeline) = &self.pipeline else { return (0..0, 0) };
        let of_step = pipeline.lock_cuts().iter().find_map(|((fields, precision), cuts)| {
            let len = fields.first().and_then(|(shape, _)| shape.first());
            (precision.is_some() && len == Some(&plan.knobs.micro_batch)).then(|| cuts.clone())
        });
        let bytes = |like: Option<(Shape, DType)>| {
            like.map_or(0, |(shape, dtype)| shape.element_count() * dtype.size_bytes())
        };
        let cuts = of_step.unwrap_or_default();
        let of_part = bytes(pipeline.input(&cuts)) + bytes(pipeline.output(&cuts));
        // The last part may be shorter.
        let of_batch = of_part / plan.knobs.micro_batch.max(1) * plan.batch_size;
        let mut shared = BTreeMap::new();
        self.task.parameters().visit(&mut |_, parameter| {
            if let Some(stages) = pipeline.trained.get(&parameter.id()).filter(|of| of.len() > 1)
                && stages.contains(&pipeline.rank.index)
                && !parameter.is_frozen()
            {
                // The first has the others' and gives each of them the sum.
                let is_first = stages[0] == pipeline.rank.index;
                let times = if is_first { stages.len() - 1 } else { 1 };
                shared.insert(parameter.id(), times * parameter.value().size_bytes());
            }
        });
        (pipeline.blocks(), of_batch + shared.into_values().sum::<usize>())
    }
}

impl<T> Pipeline<T> {
    fn lock_cuts(&self) -> MutexGuard<'_, Vec<(BatchLike, Cuts)>> {
        // Every change is a single one: a panic leaves it whole.
        self.cuts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says which stages have what their sections use.
    fn distribute(&mut self, sections: &[Section]) {
        let add = |stages: &mut BTreeMap<_, Vec<usize>>, leaves: &BTreeSet<LeafId>, stage| {
            for &leaf in leaves {
                let stages = stages.entry(leaf).or_default();
                if stages.last() != Some(&stage) {
                    stages.push(stage);
                }
            }
        };
        for (stage, blocks) in self.bounds.windows(2).enumerate() {
            for section in &sections[blocks[0]..blocks[1]] {
                add(&mut self.stages, &section.leaves, stage);
                add(&mut self.trained, &section.trained, stage);
                for &buffer in &section.buffers {
                    self.buffers.entry(buffer).or_insert(stage);
                }
            }
        }
    }
}

/// The same model on a simulated device, from whatever device.
fn simulated<T: Task>(mut task: T, device: &Device) -> Result<T> {
    let mut outcome = Ok(());
    task.parameters().visit_tensors(&mut |_, tensor| {
        let empty = Tensor::empty_in(device, Category::Parameter, *tensor.shape(), tensor.dtype());
        match empty {
            Ok(empty) => *tensor = empty,
            Err(error) => outcome = Err(error),
        }
    });
    outcome?;
    Ok(task)
}

fn setting(problem: String) -> TrainError {
    TrainError::Setting { place: "pipeline".to_owned(), problem }
}

/// # Errors
/// `Setting` for what a pipeline does not go with.
fn check(options: &Options, task: &impl Task) -> Result<()> {
    if matches!(options.micro_batches, MicroBatches::Leaves(_)) {
        let problem = "a pipeline adds gradients in the order of micro-batches, not of leaves";
        return Err(setting(problem.to_owned()));
    }
    if !task.turns().is_empty() {
        return Err(setting("models that are trained in turns cannot be a pipeline".to_owned()));
    }
    Ok(())
}

/// The blocks that `count` stages begin with, and the number of blocks: of all ways to cut, one of
/// which the longest stage is shortest.
///
/// # Errors
/// `Setting` if there are not as many places to cut.
fn bounds_of(sections: &[Section], count: usize) -> Result<Vec<usize>> {
    let places: Vec<usize> = (1..sections.len()).filter(|&at| sections[at].can_begin).collect();
    if places.len() + 1 < count {
        let problem = match sections.len() {
            0 => "the model runs no blocks by `run_blocks`: there is nowhere to cut it".to_owned(),
            len => format!(
                "the model has {len} blocks and can be cut at {} places: {count} stages are too \
                 many",
                places.len()
            ),
        };
        return Err(setting(problem));
    }
    let mut sums = vec![0.0];
    sums.extend(sections.iter().scan(0.0, |sum, section| {
        *sum += section.seconds;
        Some(*sum)
    }));
    let ends: Vec<usize> = places.iter().copied().chain([sections.len()]).collect();
    // For each end the best way to have so many stages before it, the longest of them first.
    let mut best: Vec<(f64, Vec<usize>)> = ends.iter().map(|&end| (sums[end], vec![0])).collect();
    for stages in 1..count {
        let longer = |at: usize| {
            let of_last = |&before: &usize| {
                let (longest, bounds) = &best[before];
                let longest = longest.max(sums[ends[at]] - sums[ends[before]]);
                (longest, bounds.iter().copied().chain([ends[before]]).collect::<Vec<_>>())
            };
            let ways: Vec<usize> = (stages - 1..at).collect();
            let ways = ways.iter().map(of_last);
            ways.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((f64::INFINITY, Vec::new()))
        };
        best = (0..ends.len()).map(longer).collect();
    }
    let (_, mut bounds) = best.pop().expect("the end is one");
    bounds.push(sections.len());
    Ok(bounds)
}
