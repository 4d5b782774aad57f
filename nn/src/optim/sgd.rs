//! Stochastic gradient descent with momentum, `torch.optim.SGD`.

use lowtide_autograd::Gradients;
use lowtide_tensor::{Device, SgdStep, Tensor};

use crate::optim::slots::Slots;
use crate::optim::{Optimizer, OptimizerMemory, Update, check_option};
use crate::{Parameters, Result};

/// PyTorch's options and defaults; the learning rate has none there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SgdOptions {
    /// Step size.
    pub learning_rate: f64,
    /// How much of the last direction is kept; 0 needs no state.
    pub momentum: f64,
    /// How much of the gradient does not enter the momentum.
    pub dampening: f64,
    /// Pull towards 0, added to the gradient.
    pub weight_decay: f64,
    /// Where the gradient is taken.
    pub momentum_kind: Momentum,
}

/// How momentum enters a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Momentum {
    /// The step is the momentum.
    #[default]
    Classical,
    /// The step looks ahead: gradient plus momentum (Nesterov).
    Nesterov,
}

impl SgdOptions {
    /// Plain gradient descent.
    pub fn new(learning_rate: f64) -> Self {
        SgdOptions {
            learning_rate,
            momentum: 0.0,
            dampening: 0.0,
            weight_decay: 0.0,
            momentum_kind: Momentum::Classical,
        }
    }
}

/// Stochastic gradient descent:
///
/// ```text
/// g = grad + weight_decay · p
/// m = momentum · m + (1 - dampening) · g      (m = g in the first step)
/// p = p - learning_rate · m                   (Nesterov: p - learning_rate · (g + momentum · m))
/// ```
#[derive(Debug)]
pub struct Sgd {
    options: SgdOptions,
    momenta: Slots<1>,
    steps: u64,
}

impl Sgd {
    /// An optimizer without state yet.
    ///
    /// # Errors
    /// `Option` for a negative learning rate, momentum or weight decay, and for Nesterov without
    /// momentum or with dampening.
    pub fn new(options: SgdOptions) -> Result<Self> {
        let SgdOptions { learning_rate, momentum, dampening, weight_decay, .. } = options;
        check_option("learning_rate", learning_rate, "0..", |x| x >= 0.0)?;
        check_option("momentum", momentum, "0..", |x| x >= 0.0)?;
        check_option("weight_decay", weight_decay, "0..", |x| x >= 0.0)?;
        if options.momentum_kind == Momentum::Nesterov {
            check_option("momentum", momentum, "what Nesterov needs: above 0", |x| x > 0.0)?;
            check_option("dampening", dampening, "what Nesterov needs: 0", |x| x == 0.0)?;
        }
        Ok(Sgd { options, momenta: Slots::new(), steps: 0 })
    }
}

impl Optimizer for Sgd {
    fn prepare(
        &mut self,
        parameters: &mut dyn Parameters,
        gradients: Gradients,
    ) -> Result<Update<'_>> {
        let SgdOptions { learning_rate, momentum, dampening, weight_decay, momentum_kind } =
            self.options;
        let kernel = move |is_first| SgdStep {
            learning_rate,
            momentum,
            dampening,
            weight_decay,
            nesterov: momentum_kind == Momentum::Nesterov,
            is_first,
            grad_scale: 1.0,
        };
        if momentum == 0.0 {
            let jobs = Slots::<0>::new().jobs(parameters, gradients)?;
            return Ok(Update::new(move || {
                Slots::check_writable("sgd", &jobs)?;
                for mut job in jobs {
                    job.parameter.sgd_(&job.gradient, None, kernel(false))?;
                }
                self.steps += 1;
                Ok(())
            }));
        }
        let jobs = self.momenta.jobs(parameters, gradients)?;
        Ok(Update::new(move || {
            Slots::check_writable("sgd", &jobs)?;
            for mut job in jobs {
                let [m] = &mut job.state;
                job.parameter.sgd_(&job.gradient, Some(m), kernel(job.is_first))?;
                self.momenta.keep(job);
            }
            self.steps += 1;
            Ok(())
        }))
    }

    fn visit_state(&mut self, visitor: &mut dyn FnMut(&mut Tensor)) {
        self.momenta.visit(visitor);
    }

    fn steps(&self) -> u64 {
        self.steps
    }

    fn learning_rate(&self) -> f64 {
        self.options.learning_rate
    }

    fn set_learning_rate(&mut self, learning_rate: f64) {
        self.options.learning_rate = learning_rate;
    }

    fn memory(&self, parameters: &mut dyn Parameters) -> OptimizerMemory {
        match self.options.momentum {
            0.0 => Slots::<0>::memory(parameters),
            _ => Slots::<1>::memory(parameters),
        }
    }

    fn twin(&self, sim: &Device) -> Option<Self> {
        Some(Sgd { options: self.options, momenta: self.momenta.twin(sim)?, steps: self.steps })
    }
}
