//! The optimizers that a recipe can name, behind one type.

use lowtide_autograd::Gradients;
use lowtide_nn::Parameters;
use lowtide_nn::optim::{
    Adafactor, Adagrad, Adam, Lamb, Lion, Muon, Optimizer, OptimizerMemory, OptimizerState,
    RmsProp, Sgd, Update,
};
use lowtide_tensor::{Device, Tensor};

/// The optimizers that a recipe can name, as one type.
#[derive(Debug)]
pub enum AnyOptimizer {
    /// Adam or AdamW.
    Adam(Adam),
    /// Sgd.
    Sgd(Sgd),
    /// RmsProp.
    RmsProp(RmsProp),
    /// Adagrad.
    Adagrad(Adagrad),
    /// Lion.
    Lion(Lion),
    /// Lamb.
    Lamb(Lamb),
    /// Adafactor.
    Adafactor(Adafactor),
    /// Muon.
    Muon(Muon),
}

/// Does the same with each kind of optimizer.
macro_rules! for_any {
    ($any:expr, $optimizer:ident => $body:expr) => {
        match $any {
            AnyOptimizer::Adam($optimizer) => $body,
            AnyOptimizer::Sgd($optimizer) => $body,
            AnyOptimizer::RmsProp($optimizer) => $body,
            AnyOptimizer::Adagrad($optimizer) => $body,
            AnyOptimizer::Lion($optimizer) => $body,
            AnyOptimizer::Lamb($optimizer) => $body,
            AnyOptimizer::Adafactor($optimizer) => $body,
            AnyOptimizer::Muon($optimizer) => $body,
        }
    };
}

impl Optimizer for AnyOptimizer {
    fn prepare(
        &mut self,
        parameters: &mut dyn Parameters,
        gradients: Gradients,
    ) -> lowtide_nn::NnResult<Update<'_>> {
        for_any!(self, optimizer => optimizer.prepare(parameters, gradients))
    }

    fn visit_state(&mut self, visitor: &mut dyn FnMut(&mut Tensor)) {
        for_any!(self, optimizer => optimizer.visit_state(visitor));
    }

    fn steps(&self) -> u64 {
        for_any!(self, optimizer => optimizer.steps())
    }

    fn learning_rate(&self) -> f64 {
        for_any!(self, optimizer => optimizer.learning_rate())
    }

    fn set_learning_rate(&mut self, learning_rate: f64) {
        for_any!(self, optimizer => optimizer.set_learning_rate(learning_rate));
    }

    fn memory(&self, parameters: &mut dyn Parameters) -> OptimizerMemory {
        for_any!(self, optimizer => optimizer.memory(parameters))
    }

    fn twin(&self, sim: &Device) -> Option<Self> {
        Some(match self {
            AnyOptimizer::Adam(optimizer) => AnyOptimizer::Adam(optimizer.twin(sim)?),
            AnyOptimizer::Sgd(optimizer) => AnyOptimizer::Sgd(optimizer.twin(sim)?),
            AnyOptimizer::RmsProp(optimizer) => AnyOptimizer::RmsProp(optimizer.twin(sim)?),
            AnyOptimizer::Adagrad(optimizer) => AnyOptimizer::Adagrad(optimizer.twin(sim)?),
            AnyOptimizer::Lion(optimizer) => AnyOptimizer::Lion(optimizer.twin(sim)?),
            AnyOptimizer::Lamb(optimizer) => AnyOptimizer::Lamb(optimizer.twin(sim)?),
            AnyOptimizer::Adafactor(optimizer) => AnyOptimizer::Adafactor(optimizer.twin(sim)?),
            AnyOptimizer::Muon(optimizer) => AnyOptimizer::Muon(optimizer.twin(sim)?),
        })
    }

    fn state(&self, parameters: &mut dyn Parameters) -> lowtide_nn::NnResult<OptimizerState> {
        for_any!(self, optimizer => optimizer.state(parameters))
    }

    fn set_state(
        &mut self,
        parameters: &mut dyn Parameters,
        state: OptimizerState,
    ) -> lowtide_nn::NnResult<()> {
        for_any!(self, optimizer => optimizer.set_state(parameters, state))
    }
}
