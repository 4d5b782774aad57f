//! Adam (Kingma & Ba 2015) and AdamW (Loshchilov & Hutter 2019), as `torch.optim`.

use lowtide_autograd::Gradients;
use lowtide_tensor::{AdamStep, Device, Tensor, WeightDecay};

use crate::optim::slots::Slots;
use crate::optim::{Optimizer, OptimizerMemory, Update, check_option};
use crate::{Parameters, Result};

/// PyTorch's options and defaults for Adam.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamOptions {
    /// Step size.
    pub learning_rate: f64,
    /// How much of the last mean and of the last mean square is kept.
    pub betas: [f64; 2],
    /// Keeps the quotient finite.
    pub eps: f64,
    /// Pull towards 0, and where it acts: coupled is Adam, decoupled AdamW.
    pub weight_decay: WeightDecay,
}

impl Default for AdamOptions {
    fn default() -> Self {
        AdamOptions {
            learning_rate: 1e-3,
            betas: [0.9, 0.999],
            eps: 1e-8,
            weight_decay: WeightDecay::Coupled(0.0),
        }
    }
}

impl AdamOptions {
    /// AdamW with PyTorch's defaults: decoupled weight decay of 0.01.
    pub fn adamw() -> Self {
        AdamOptions { weight_decay: WeightDecay::Decoupled(0.01), ..Default::default() }
    }
}

/// Adam:
///
/// ```text
/// g = grad + weight_decay · p                 (AdamW: p = p · (1 - learning_rate · weight_decay))
/// m = β₁ m + (1 - β₁) g,  v = β₂ v + (1 - β₂) g²
/// p = p - learning_rate · m / (1 - β₁ᵗ) / (√(v / (1 - β₂ᵗ)) + eps)
/// ```
#[derive(Debug)]
pub struct Adam {
    options: AdamOptions,
    moments: Slots<2>,
    steps: u64,
}

impl Adam {
    /// An optimizer without state yet.
    ///
    /// # Errors
    /// `Option` for a value out of range.
    pub fn new(options: AdamOptions) -> Result<Self> {
        check_option("learning_rate", options.learning_rate, "0..", |x| x >= 0.0)?;
        check_option("eps", options.eps, "0..", |x| x >= 0.0)?;
        let (WeightDecay::Coupled(pull) | WeightDecay::Decoupled(pull)) = options.weight_decay;
        check_option("weight_decay", pull, "0..", |x| x >= 0.0)?;
        for beta in options.betas {
            check_option("beta", beta, "0..1", |x| (0.0..1.0).contains(&x))?;
        }
        Ok(Adam { options, moments: Slots::new(), steps: 0 })
    }
}

impl Optimizer for Adam {
    fn prepare(
        &mut self,
        parameters: &mut dyn Parameters,
        gradients: Gradients,
    ) -> Result<Update<'_>> {
        let AdamOptions { learning_rate, betas: [beta1, beta2], eps, weight_decay } = self.options;
        // The power of a step count beyond 2^31 is 0 to any float.
        let t = i32::try_from(self.steps + 1).unwrap_or(i32::MAX);
        let step = AdamStep {
            learning_rate,
            beta1,
            beta2,
            eps,
            weight_decay,
            bias_correction1: 1.0 - beta1.powi(t),
            bias_correction2: 1.0 - beta2.powi(t),
            grad_scale: 1.0,
        };
        let jobs = self.moments.jobs(parameters, gradients)?;
        Ok(Update::new(move || {
            Slots::check_writable("adam", &jobs)?;
            for mut job in jobs {
                let [m, v] = &mut job.state;
                job.parameter.adam_(&job.gradient, m, v, step)?;
                self.moments.keep(job);
            }
            self.steps += 1;
            Ok(())
        }))
    }

    fn visit_state(&mut self, visitor: &mut dyn FnMut(&mut Tensor)) {
        self.moments.visit(visitor);
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
        Slots::<2>::memory(parameters)
    }

    fn twin(&self, sim: &Device) -> Option<Self> {
        Some(Adam { options: self.options, moments: self.moments.twin(sim)?, steps: self.steps })
    }
}
