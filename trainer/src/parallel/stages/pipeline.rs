//! A model that is cut into stages.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lowtide_allocator::Category;
use lowtide_autograd::{Attempt, BufferId, Coupling, LeafId, TensorMeta};
use lowtide_data::{BatchView, ElementType};
use lowtide_nn::Parameters;
use lowtide_nn::parallel::{Cuts, Section, Survey, survey, survey_cuts};
use lowtide_ranks::Rank;
use lowtide_tensor::{Device, RandomKey};

use crate::error::Result;
use crate::parallel::stages::cut::simulated;
use crate::plan::Plan;
use crate::plan::knobs::{EVERY_BLOCK, block_count};
use crate::precision::Precision;
use crate::step::pass::{PassOptions, joined};
use crate::step::turn::ModelTurn;
use crate::task::contract::Task;

/// A model that is cut into stages, and the stage of this rank.
pub(crate) struct Pipeline<T> {
    rank: Rank,
    /// The first block of each stage, followed by the number of all blocks.
    bounds: Vec<usize>,
    /// The stages that have each parameter, ordered by the age of parameters.
    stages: BTreeMap<LeafId, Vec<usize>>,
    /// The stages in which each parameter has a gradient. Frozen parameters are left out.
    trained: BTreeMap<LeafId, Vec<usize>>,
    /// The stage that updates each buffer.
    buffers: BTreeMap<BufferId, usize>,
    coupling: Option<Coupling>,
    /// The whole model on a simulated device, which gives the shapes of values between stages.
    whole: T,
    device: Device,
    /// True if the model shows one policy for each of its blocks.
    has_policies: bool,
    /// Cuts of batches that were computed before, by shape.
    cuts: Mutex<Vec<(BatchLike, Cuts)>>,
}

/// Shapes and types of the fields of a batch, and the precision of a training step; `None` in an
/// evaluation.
type BatchLike = (Vec<(Vec<usize>, ElementType)>, Option<Precision>);

/// Largest number of remembered cuts. A run has few shapes, unless sequences are packed.
const CUTS_MAX: usize = 64;

impl<T> Pipeline<T> {
    /// The index of this rank's stage.
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

    /// The policies of the blocks of this stage, as a range among all policies that the model
    /// shows.
    pub(crate) fn policies(&self) -> Range<usize> {
        if self.has_policies { self.blocks() } else { 0..0 }
    }

    pub(crate) fn coupling(&self) -> Option<&Coupling> {
        self.coupling.as_ref()
    }

    /// Shape and type of the value that comes into this stage from the one before.
    pub(crate) fn input(&self, cuts: &Cuts) -> Option<TensorMeta> {
        cuts.input(self.blocks().start).filter(|_| self.rank.index > 0)
    }

    /// Shape and type of the value that goes from this stage to the one after.
    pub(crate) fn output(&self, cuts: &Cuts) -> Option<TensorMeta> {
        cuts.input(self.blocks().end)
    }

    /// True if this stage has a parameter. The first stage has the unused parameters.
    pub(crate) fn has(&self, leaf: LeafId) -> bool {
        match self.stages.get(&leaf) {
            Some(stages) => stages.contains(&self.rank.index),
            None => self.rank.index == 0,
        }
    }

    /// The first stage that updates a parameter, else the first stage that has it. For an unused
    /// parameter, stage 0.
    pub(crate) fn first_stage(&self, leaf: LeafId) -> usize {
        let stages = self.trained.get(&leaf).or_else(|| self.stages.get(&leaf));
        stages.map_or(0, |stages| stages[0])
    }

    /// The stage that updates a buffer.
    pub(crate) fn stage_of_buffer(&self, buffer: BufferId) -> usize {
        self.buffers.get(&buffer).copied().unwrap_or(0)
    }

    /// Parameters of this stage whose gradients an earlier stage also has.
    pub(crate) fn of_earlier_stages(&self) -> BTreeSet<LeafId> {
        let is_later = |stages: &[usize]| stages[0] < self.rank.index;
        self.shared().filter(|(_, stages)| is_later(stages)).map(|(&leaf, _)| leaf).collect()
    }

    /// Parameters that have a gradient in several stages, with these stages. Frozen parameters are
    /// left out.
    pub(crate) fn shared(&self) -> impl Iterator<Item = (&LeafId, &Vec<usize>)> {
        self.trained.iter().filter(|(_, stages)| stages.len() > 1)
    }

    /// Cuts this pipeline at `bounds`, which end with the number of all blocks. Each stage gets the
    /// parameters that its sections use.
    pub(crate) fn cut_at(self, bounds: Vec<usize>, sections: &[Section]) -> Self {
        let add = |stages: &mut BTreeMap<_, Vec<usize>>, leaves: &BTreeSet<LeafId>, stage| {
            for &leaf in leaves {
                let stages = stages.entry(leaf).or_default();
                if stages.last() != Some(&stage) {
                    stages.push(stage);
                }
            }
        };
        let (mut stages, mut trained, mut buffers) =
            (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for (stage, blocks) in bounds.windows(2).enumerate() {
            for section in &sections[blocks[0]..blocks[1]] {
                add(&mut stages, &section.leaves, stage);
                add(&mut trained, &section.trained, stage);
                for &buffer in &section.buffers {
                    buffers.entry(buffer).or_insert(stage);
                }
            }
        }
        Pipeline { bounds, stages, trained, buffers, ..self }
    }

    /// Bytes that this stage sends in a step of `plan`: the values for the next stage, the
    /// gradients for the previous stage, and the gradients of parameters that several stages have.
    pub(crate) fn sent_bytes(&self, plan: &Plan, parameters: &mut dyn Parameters) -> usize {
        let of_step = self.lock_cuts().iter().find_map(|((fields, precision), cuts)| {
            let len = fields.first().and_then(|(shape, _)| shape.first());
            (precision.is_some() && len == Some(&plan.knobs.micro_batch)).then(|| cuts.clone())
        });
        let bytes = |meta: Option<TensorMeta>| {
            meta.map_or(0, |meta| meta.shape.element_count() * meta.dtype.size_bytes())
        };
        let cuts = of_step.unwrap_or_default();
        let of_part = bytes(self.input(&cuts)) + bytes(self.output(&cuts));
        // The last micro-batch may be shorter.
        let of_batch = of_part / plan.knobs.micro_batch.max(1) * plan.batch_size;
        let mut shared = BTreeMap::new();
        parameters.visit(&mut |_, parameter| {
            if let Some(stages) = self.trained.get(&parameter.id()).filter(|of| of.len() > 1)
                && stages.contains(&self.rank.index)
                && !parameter.is_frozen()
            {
                // The first stage takes the gradients of the other stages and sends each the sum.
                let is_first = stages[0] == self.rank.index;
                let times = if is_first { stages.len() - 1 } else { 1 };
                shared.insert(parameter.id(), times * parameter.value().size_bytes());
            }
        });
        of_batch + shared.into_values().sum::<usize>()
    }

    fn lock_cuts(&self) -> MutexGuard<'_, Vec<(BatchLike, Cuts)>> {
        // Each change is a single push or removal, so a panic leaves the list valid.
        self.cuts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Task> Pipeline<T> {
    /// A model on a simulated device that is not cut yet, and a survey of a step on the batch
    /// `example`.
    ///
    /// # Errors
    /// `OutOfMemory`; errors of a forward pass.
    pub(crate) fn uncut(
        rank: Rank,
        task: T,
        device: Device,
        example: &BatchView<'_>,
        precision: Precision,
    ) -> Result<(Self, Survey)> {
        device.allocator().set_capacity(usize::MAX);
        let mut whole = simulated(task, &device)?;
        let policies = block_count(whole.parameters(), &EVERY_BLOCK);
        let (found, coupling) = survey_step(&whole, &device, example, precision)?;
        let pipeline = Pipeline {
            rank,
            bounds: Vec::new(),
            stages: BTreeMap::new(),
            trained: BTreeMap::new(),
            buffers: BTreeMap::new(),
            coupling,
            whole,
            device,
            has_policies: policies == found.cuts.block_count(),
            cuts: Mutex::default(),
        };
        Ok((pipeline, found))
    }

    /// The cuts of a micro-batch of a step.
    ///
    /// # Errors
    /// Errors of a forward pass.
    pub(crate) fn cuts_of_step(&self, part: &BatchView<'_>, precision: Precision) -> Result<Cuts> {
        self.cuts((fields_of(part), Some(precision)), || {
            Ok(survey_step(&self.whole, &self.device, part, precision)?.0.cuts)
        })
    }

    /// The cuts of a part of a batch that is evaluated.
    ///
    /// # Errors
    /// Errors of an evaluation.
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

/// A survey of a step's forward pass over the whole of a simulated model, and the module that
/// couples samples in it.
fn survey_step(
    whole: &impl Task,
    device: &Device,
    part: &BatchView<'_>,
    precision: Precision,
) -> Result<(Survey, Option<Coupling>)> {
    let attempt = Attempt::new();
    let passes = PassOptions { device, key: RandomKey::new(0), precision };
    let pass = passes.pass(&attempt, &ModelTurn::of_everything(), 0);
    let coupling = pass.clone();
    let _scope = device.category(Category::Activation);
    let survey = survey(device, || -> Result<_> {
        let losses = whole.losses(&pass, device, part)?;
        let ones = vec![1.0; losses.len()];
        Ok((pass, joined(losses, &ones, 1.0)?))
    })?;
    Ok((survey, coupling.coupling()))
}
