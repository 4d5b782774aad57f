//! The course of a batch through a stage.
//!
//! Micro-batches pass one after the other. The backward pass of a micro-batch begins as soon as its
//! loss exists (1F1B, Narayanan et al. 2019): stage s of n keeps the saved tensors of n - s
//! micro-batches.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use lowtide_autograd::{Attempt, Gradients, LeafId, Pass, TensorMeta, Var};
use lowtide_nn::parallel::{Cuts, StageEnd, run_stage};
use lowtide_ranks::Collectives;
use lowtide_tensor::{DType, Device, Tensor};

use crate::error::Result;
use crate::parallel::stages::lane::Lane;
use crate::parallel::stages::pipeline::Pipeline;
use crate::step::compute::Computation;
use crate::task::contract::Task;

/// A micro-batch, and the values that its blocks pass to each other.
struct MicroBatch {
    samples: Range<usize>,
    cuts: Cuts,
}

/// A micro-batch between forward and backward.
struct InFlight {
    output: Output,
    input: Option<TensorMeta>,
    /// The gradient of the value that came in, once backward has been there.
    input_gradient: Rc<RefCell<Option<Tensor>>>,
}

/// The result of a forward pass through the stage.
enum Output {
    /// The value that was sent to the next stage.
    Value(Var),
    Loss(Pass, Var),
}

/// A batch on its way through a stage.
struct Course<'c, 'a, T> {
    computation: &'c mut Computation<'a, T>,
    attempt: &'c Attempt,
    pipeline: &'c Pipeline<T>,
    lane: Lane<'c>,
    /// The micro-batches; empty until they are cut.
    micro_batches: Vec<MicroBatch>,
    flying: VecDeque<Option<InFlight>>,
    loss_sum: Option<Tensor>,
    /// Simulated seconds of all micro-batches, forwards and backwards.
    seconds: [f64; 2],
}

/// Runs a batch through a stage. Returns the sum of the losses, which only the last stage computes,
/// and the simulated seconds of one micro-batch forwards and backwards.
///
/// # Errors
/// Errors of a forward and a backward pass; `Ranks`.
pub(crate) fn run_through<T: Task>(
    computation: &mut Computation<'_, T>,
    attempt: &Attempt,
    pipeline: &Pipeline<T>,
    ranks: &dyn Collectives,
) -> (Result<Tensor>, [f64; 2]) {
    let (device, context) = (computation.passes.device, computation.context);
    let mut course = Course {
        lane: Lane::new(ranks, device),
        computation,
        attempt,
        pipeline,
        micro_batches: Vec::new(),
        flying: VecDeque::new(),
        loss_sum: None,
        seconds: [0.0; 2],
    };
    course.run();
    let Course { lane, loss_sum, seconds, .. } = course;
    let loss_sum = lane.finish().map(|()| loss_sum.expect("it was begun"));
    (loss_sum, seconds.map(|all| all / context.micro_batch_count().max(1) as f64))
}

impl<T: Task> Course<'_, '_, T> {
    fn run(&mut self) {
        let pipeline = self.pipeline;
        let &mut Computation { passes, context, .. } = self.computation;
        self.loss_sum = self.lane.attempt(|| Ok(Tensor::zeros(passes.device, [], DType::F64)?));
        let micro_batches = self.lane.attempt(|| {
            let micro_batch = |samples: Range<usize>| {
                let batch = context.batch.slice(samples.clone());
                Ok(MicroBatch { samples, cuts: pipeline.cuts_of_step(&batch, passes.precision)? })
            };
            context.micro_batches().map(micro_batch).collect()
        });
        self.micro_batches = micro_batches.unwrap_or_default();
        let (before, after) = (self.lane.before(), self.lane.after());
        let count = context.micro_batch_count();
        let ahead = count.min(pipeline.stage_count() - 1 - pipeline.index());
        for index in 0..ahead {
            let x = self.lane.trade(before, None, Some(self.input(index)));
            let y = self.forward(index, x);
            self.lane.trade(after, Some(y.as_ref()), None);
        }
        let mut x = None;
        if ahead < count {
            x = self.lane.trade(before, None, Some(self.input(ahead)));
        }
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

    /// Shape and type of the value that comes into this stage.
    fn input(&self, index: usize) -> Option<TensorMeta> {
        self.micro_batches.get(index).and_then(|own| self.pipeline.input(&own.cuts))
    }

    /// Shape and type of the value that goes from here to the next stage.
    fn output(&self, index: usize) -> Option<TensorMeta> {
        self.micro_batches.get(index).and_then(|own| self.pipeline.output(&own.cuts))
    }

    /// Runs a micro-batch forwards. Returns the value for the next stage.
    fn forward(&mut self, index: usize, input: Option<Tensor>) -> Option<Tensor> {
        let begin_seconds = self.computation.device().simulated_seconds();
        let Course { computation, attempt, pipeline, micro_batches, loss_sum, .. } = self;
        let flying = self.lane.attempt(|| {
            let MicroBatch { samples, cuts } = &micro_batches[index];
            let (ran, StageEnd { output, input_gradient }) =
                run_stage(pipeline.blocks(), cuts, input, || {
                    computation.forward(attempt, samples.clone())
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
        if index + 1 == self.computation.context.micro_batch_count() {
            self.attempt.end_casts();
        }
        let output = match flying.as_ref().map(|own| &own.output) {
            Some(Output::Value(y)) => self.lane.attempt(|| Ok(y.value().contiguous()?)),
            _ => None,
        };
        self.flying.push_back(flying);
        self.seconds[0] += self.computation.device().simulated_seconds() - begin_seconds;
        output
    }

    /// Runs the oldest waiting micro-batch backwards. Returns the gradient for the previous stage.
    fn backward(&mut self, dy: Option<Tensor>) -> Option<Tensor> {
        let flying = self.flying.pop_front().flatten();
        let begin_seconds = self.computation.device().simulated_seconds();
        let computation = &mut *self.computation;
        let dx = self.lane.attempt(|| {
            let InFlight { output, input, input_gradient } = flying.expect("it went forwards");
            computation.hooks.on_phase("backward");
            match output {
                Output::Loss(pass, loss) => pass.backward_seeded(loss, computation.context.seed)?,
                Output::Value(y) if y.needs_gradient() => {
                    let pass = y.pass().clone();
                    pass.backward_from(vec![(y, dy.expect("the next stage has given it"))])?;
                }
                Output::Value(_) => {}
            }
            let Some(TensorMeta { shape, dtype }) = input else { return Ok(None) };
            Ok(Some(match input_gradient.take() {
                Some(dx) => dx.contiguous()?,
                None => Tensor::zeros(computation.device(), shape, dtype)?,
            }))
        });
        self.seconds[1] += self.computation.device().simulated_seconds() - begin_seconds;
        dx.flatten()
    }
}

/// Sums the gradients of parameters that several stages train, such as an embedding that is also
/// the output layer. All of these stages get the sum.
///
/// # Errors
/// `OutOfMemory`; `Ranks`.
pub(crate) fn add_shared<T>(
    ranks: &dyn Collectives,
    device: &Device,
    pipeline: &Pipeline<T>,
    trained: &BTreeMap<LeafId, Tensor>,
    gradients: &mut Gradients,
) -> Result<()> {
    let index = pipeline.index();
    let mut lane = Lane::new(ranks, device);
    for (leaf, stages) in pipeline.shared().filter(|(_, stages)| stages.contains(&index)) {
        let Some(value) = trained.get(leaf) else { continue };
        let mut own = lane.attempt(|| match gradients.remove(*leaf) {
            Some(gradient) => Ok(gradient),
            // A batch may not use the parameter.
            None => Ok(Tensor::zeros(device, *value.shape(), value.dtype())?),
        });
        let meta = own.as_ref().map(TensorMeta::of);
        let (first, others) = (stages[0], &stages[1..]);
        if index == first {
            for &other in others {
                let term = lane.trade(Some(other), None, Some(meta));
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
            own = lane.trade(Some(first), None, Some(meta));
        }
        if let Some(own) = own {
            gradients.insert(*leaf, own);
        }
    }
    lane.finish()
}
