//! Pipelines: each of several ranks has a run of the model's blocks, a stage.
//!
//! A batch goes through in micro-batches, and backward of one begins as soon as its loss is there
//! (1F1B, Narayanan et al. 2019): stage s of n keeps what n - s of them save for backward. A rank
//! that fails says so in place of everything that it would still trade with its neighbours, which
//! then do the same: all of them come to the end of the batch, and vote.

mod cut;
mod gathering;
mod planning;
mod schedule;
mod scoring;

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use lowtide_allocator::Category;
use lowtide_autograd::{Attempt, Gradients, LeafId, Pass, Var};
use lowtide_nn::optim::Stateful;
use lowtide_nn::{Cuts, StageEnd, run_stage};
use lowtide_ranks::{Collectives, RanksError};
use lowtide_tensor::{DType, Device, Shape, Tensor};

use crate::agreement::agree;
use crate::error::{Result, TrainError};
use crate::leaves::Computed;
use crate::step::{Goal, Step, micro_batches};
use crate::task::Task;

pub(crate) use cut::Pipeline;
pub(crate) use planning::{common_micro_batch, common_plan};
pub use schedule::seconds_of;
pub(crate) use scoring::{evaluate_stages, score_stage};

/// Shape and type of what goes from one stage to the next.
type Like = (Shape, DType);

/// The neighbours of a stage.
pub(crate) struct Lane<'a> {
    ranks: &'a dyn Collectives,
    device: &'a Device,
    /// Why this rank trades nothing any more.
    failure: Option<TrainError>,
}

impl<'a> Lane<'a> {
    pub(crate) fn new(ranks: &'a dyn Collectives, device: &'a Device) -> Self {
        Lane { ranks, device, failure: None }
    }

    /// The stage before this one.
    fn before(&self) -> Option<usize> {
        self.ranks.rank().index.checked_sub(1)
    }

    /// The stage after this one.
    fn after(&self) -> Option<usize> {
        let rank = self.ranks.rank();
        Some(rank.index + 1).filter(|&after| after < rank.count)
    }

    /// What `work` gives, unless this rank has failed before or does now.
    fn attempt<R>(&mut self, work: impl FnOnce() -> Result<R>) -> Option<R> {
        if self.failure.is_some() {
            return None;
        }
        work().map_err(|error| self.failure = Some(error)).ok()
    }

    /// Gives a neighbour a tensor and takes one of it; either may be absent, where it is absent
    /// there. What a rank has nothing of because it has failed it declines to trade.
    fn trade(
        &mut self,
        neighbour: Option<usize>,
        give: Option<Option<&Tensor>>,
        take: Option<Option<Like>>,
    ) -> Option<Tensor> {
        let neighbour = neighbour.filter(|_| give.is_some() || take.is_some())?;
        let device = self.device;
        let place = self.attempt(|| {
            let empty =
                |(shape, dtype)| Tensor::empty_in(device, Category::Activation, shape, dtype);
            Ok(take.flatten().map(empty).transpose()?)
        });
        let traded = match (&self.failure, place) {
            (None, Some(mut place)) => {
                let traded = self.ranks.trade(give.flatten(), place.as_mut(), neighbour);
                traded.map(|()| place)
            }
            (Some(error), _) if is_the_end(error) => return None,
            (failure, _) => {
                let reason = failure.as_ref().map_or_else(String::new, TrainError::one_line);
                self.ranks.decline(neighbour, &reason).map(|()| None)
            }
        };
        traded.map_err(|error| self.fail(error.into())).ok().flatten()
    }

    /// The end of all ranks says more than what this one has met before.
    fn fail(&mut self, error: TrainError) {
        if self.failure.is_none() || is_the_end(&error) {
            self.failure = Some(error);
        }
    }

    /// # Errors
    /// What this rank has failed with.
    pub(crate) fn finish(self) -> Result<()> {
        self.failure.map_or(Ok(()), Err)
    }
}

/// Whether the ranks are no longer together.
fn is_the_end(error: &TrainError) -> bool {
    let TrainError::Ranks(error) = error else { return false };
    matches!(error, RanksError::Late { .. } | RanksError::Lost { .. } | RanksError::Aborted { .. })
}

/// A micro-batch.
struct Part {
    samples: Range<usize>,
    cuts: Cuts,
}

/// A micro-batch between forward and backward.
struct InFlight {
    output: Output,
    input: Option<Like>,
    /// The gradient of what came in, once backward has been there.
    input_gradient: Rc<RefCell<Option<Tensor>>>,
}

enum Output {
    /// What has gone to the next stage.
    Value(Var),
    Loss(Pass, Var),
}

/// A batch on its way through a stage.
struct Course<'c, 'a, T, O> {
    step: &'c mut Step<'a, T, O>,
    attempt: &'c Attempt,
    goal: &'c Goal<'c>,
    pipeline: &'c Pipeline<T>,
    lane: Lane<'c>,
    /// As far as they are known.
    parts: Vec<Part>,
    flying: VecDeque<Option<InFlight>>,
    loss_sum: Option<Tensor>,
    /// Simulated time of all micro-batches forwards and backwards.
    seconds: [f64; 2],
}

impl<T: Task, O: Stateful> Step<'_, T, O> {
    /// The gradients of the mean loss of all samples, of what this stage has.
    ///
    /// # Errors
    /// Those of a forward and a backward pass; `Ranks`.
    pub(crate) fn compute_stage(
        &mut self,
        goal: &Goal<'_>,
        pipeline: &Pipeline<T>,
        ranks: &dyn Collectives,
    ) -> Result<Computed> {
        let attempt = Attempt::new();
        let computed = self.run_through(&attempt, goal, pipeline, ranks);
        let computed = computed.and_then(|loss_sum| {
            self.enqueued(true)?;
            Ok(loss_sum)
        });
        let mut loss_sum = agree(Some(ranks), computed)?;
        ranks.broadcast(&mut loss_sum, pipeline.stage_count() - 1)?;
        let (mut gradients, buffers) = attempt.into_parts();
        let mut values = BTreeMap::new();
        self.task.parameters().visit(&mut |_, parameter| {
            if !parameter.is_frozen() {
                values.insert(parameter.id(), parameter.value().clone());
            }
        });
        let shared = add_shared(ranks, self.device, (pipeline, &values), &mut gradients);
        agree(Some(ranks), shared)?;
        let coupling = pipeline.coupling().cloned();
        Ok(Computed { loss_sum, gradients, buffers, coupling, leaf_count: 1 })
    }

    /// The sum of the losses, on the last stage.
    fn run_through(
        &mut self,
        attempt: &Attempt,
        goal: &Goal<'_>,
        pipeline: &Pipeline<T>,
        ranks: &dyn Collectives,
    ) -> Result<Tensor> {
        let mut course = Course {
            lane: Lane::new(ranks, self.device),
            step: &mut *self,
            attempt,
            goal,
            pipeline,
            parts: Vec::new(),
            flying: VecDeque::new(),
            loss_sum: None,
            seconds: [0.0; 2],
        };
        course.run();
        let Course { lane, loss_sum, seconds, .. } = course;
        let outcome = lane.finish();
        let of_one = seconds.map(|all| all / goal.part_count().max(1) as f64);
        if let Some(repeated) = &mut self.repeated_seconds {
            // As long as the others need for one micro-batch, if all stages are alike.
            **repeated += (pipeline.stage_count() - 1) as f64 * (of_one[0] + of_one[1]);
        }
        if let Some(stage) = &mut self.stage_seconds {
            **stage = of_one;
        }
        outcome?;
        Ok(loss_sum.expect("it was begun"))
    }
}

impl<T: Task, O: Stateful> Course<'_, '_, T, O> {
    fn run(&mut self) {
        let Course { goal, pipeline, .. } = *self;
        let precision = self.step.options.precision;
        self.loss_sum = self.lane.attempt(|| Ok(Tensor::zeros(self.step.device, [], DType::F64)?));
        let parts = self.lane.attempt(|| {
            let part = |samples: Range<usize>| {
                let cuts = pipeline.cuts_of_step(&goal.batch.slice(samples.clone()), precision)?;
                Ok(Part { samples, cuts })
            };
            micro_batches(goal.batch.len(), goal.micro_batch()).map(part).collect()
        });
        self.parts = parts.unwrap_or_default();
        let (before, after) = (self.lane.before(), self.lane.after());
        let count = goal.part_count();
        let ahead = count.min(pipeline.stage_count() - 1 - pipeline.index());
        for index in 0..ahead {
            let x = self.lane.trade(before, None, Some(self.input(index)));
            let y = self.forward(index, x);
            self.lane.trade(after, Some(y.as_ref()), None);
        }
        let mut x = match ahead < count {
            true => self.lane.trade(before, None, Some(self.input(ahead))),
            false => None,
        };
        for index in ahead..count {
            let y = self.forward(index, x.take());
            let dy = self.lane.trade(after, Some(y.as_ref()), Some(self.output(index - ahead)));
            drop(y);
            let dx = self.backward(dy);
            let next = (index + 1 < count).then(|| self.input(index + 1));
            x = self.lane.trade(before, Some(dx.as_ref()), next);
        }
        for index in count - ahead..count {
            let dy = self.lane.trade(after, None, Some(self.output(index)));
            let dx = self.backward(dy);
            self.lane.trade(before, Some(dx.as_ref()), None);
        }
    }

    /// What comes into this stage.
    fn input(&self, index: usize) -> Option<Like> {
        self.parts.get(index).and_then(|part| self.pipeline.input(&part.cuts))
    }

    /// What goes from here to the next stage.
    fn output(&self, index: usize) -> Option<Like> {
        self.parts.get(index).and_then(|part| self.pipeline.output(&part.cuts))
    }

    /// Runs a micro-batch forwards; what is to go to the next stage.
    fn forward(&mut self, index: usize, input: Option<Tensor>) -> Option<Tensor> {
        let begin_seconds = self.step.device.simulated_seconds();
        let Course { step, attempt, goal, pipeline, parts, loss_sum, .. } = self;
        let flying = self.lane.attempt(|| {
            let Part { samples, cuts } = &parts[index];
            let (ran, StageEnd { output, input_gradient }) =
                run_stage(pipeline.blocks(), cuts, input, || {
                    step.forward().run(attempt, goal, None, samples.clone())
                });
            let output = match output {
                Some(output) => Output::Value(output),
                None => {
                    let (pass, loss) = ran?;
                    let sum = loss_sum.as_mut().expect("it was begun");
                    sum.add_(&loss.value().to_dtype(DType::F64)?)?;
                    Output::Loss(pass, loss)
                }
            };
            Ok(InFlight { output, input: pipeline.input(cuts), input_gradient })
        });
        if index + 1 == goal.part_count() {
            attempt.end_casts();
        }
        let output = match flying.as_ref().map(|own| &own.output) {
            Some(Output::Value(y)) => self.lane.attempt(|| Ok(y.value().contiguous()?)),
            _ => None,
        };
        self.flying.push_back(flying);
        self.seconds[0] += self.step.device.simulated_seconds() - begin_seconds;
        output
    }

    /// Runs the micro-batch backwards that has waited longest; what is to go to the stage before.
    fn backward(&mut self, dy: Option<Tensor>) -> Option<Tensor> {
        let flying = self.flying.pop_front().flatten();
        let begin_seconds = self.step.device.simulated_seconds();
        let Course { step, goal, .. } = self;
        let dx = self.lane.attempt(|| {
            let InFlight { output, input, input_gradient } = flying.expect("it went forwards");
            (step.on_phase)("backward");
            match output {
                Output::Loss(pass, loss) => pass.backward_seeded(loss, goal.seed)?,
                Output::Value(y) if y.needs_gradient() => {
                    let pass = y.pass().clone();
                    pass.backward_from(vec![(y, dy.expect("the next stage has given it"))])?;
                }
                Output::Value(_) => {}
            }
            let Some((shape, dtype)) = input else { return Ok(None) };
            Ok(Some(match input_gradient.take() {
                Some(dx) => dx.contiguous()?,
                None => Tensor::zeros(step.device, shape, dtype)?,
            }))
        });
        self.seconds[1] += self.step.device.simulated_seconds() - begin_seconds;
        dx.flatten()
    }
}

/// Adds up the gradients of parameters that are trained in several stages, such as an embedding
/// that is the output layer, too: all of these stages have the sum.
///
/// # Errors
/// `OutOfMemory`; `Ranks`.
fn add_shared<T: Task>(
    ranks: &dyn Collectives,
    device: &Device,
    (pipeline, trained): (&Pipeline<T>, &BTreeMap<LeafId, Tensor>),
    gradients: &mut Gradients,
) -> Result<()> {
    let index = pipeline.index();
    let mut lane = Lane::new(ranks, device);
    for (leaf, stages) in pipeline.shared().filter(|(_, stages)| stages.contains(&index)) {
        let Some(value) = trained.get(leaf) else { continue };
        let mut own = lane.attempt(|| match gradients.remove(*leaf) {
            Some(gradient) => Ok(gradient),
            // Not every batch may come to it.
            None => Ok(Tensor::zeros(device, *value.shape(), value.dtype())?),
        });
        let like = own.as_ref().map(|own| (*own.shape(), own.dtype()));
        let (first, others) = (stages[0], &stages[1..]);
        if index == first {
            for &other in others {
                let term = lane.trade(Some(other), None, Some(like));
                lane.attempt(|| {
                    let term = term.expect("it was traded");
                    Ok(own.as_mut().expect("it is there").add_(&term)?)
                });
            }
            for &other in others {
                lane.trade(Some(other), Some(own.as_ref()), None);
            }
        } else {
            lane.trade(Some(first), Some(own.as_ref()), None);
            own = lane.trade(Some(first), None, Some(like));
        }
        if let Some(own) = own {
            gradients.insert(*leaf, own);
        }
    }
    lane.finish()
}
