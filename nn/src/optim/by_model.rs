//! An optimizer for each of several models that are trained together.

use std::collections::BTreeMap;

use lowtide_autograd::Gradients;
use lowtide_tensor::Tensor;

use crate::error::{NnError, Result, WeightsProblem};
use crate::module::Parameters;
use crate::node::{Nodes, Visitor};
use crate::optim::optimizer::{
    Optimizer, OptimizerMemory, OptimizerState, Pace, Scheduled, Stateful, Update,
};

/// An optimizer for each of several models, such as generator and discriminator. The names of a
/// model's parameters begin with the name of the model: `generator` has `generator.0.weight`. A
/// parameter of a model without an optimizer is not updated.
///
/// The number of updates and the learning rate are the first model's. Setting the learning rate
/// multiplies the learning rates of the other models by the same factor.
///
/// ```
/// use lowtide_nn::optim::{Adam, AdamOptions, ByModel};
///
/// let adam = |learning_rate| Adam::new(AdamOptions { learning_rate, ..Default::default() });
/// let optimizer =
///     ByModel::new().with("discriminator", adam(4e-4)?).with("generator", adam(1e-4)?);
/// # Ok::<(), lowtide_nn::NnError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct ByModel {
    models: Vec<(String, Box<dyn Stateful>)>,
}

impl ByModel {
    /// An optimizer without models.
    pub fn new() -> Self {
        Self::default()
    }

    /// This optimizer with one more model, after the models that it has.
    ///
    /// # Panics
    /// If the model has an optimizer already.
    #[must_use]
    pub fn with(mut self, model: &str, optimizer: impl Stateful + 'static) -> Self {
        let is_known = self.models.iter().any(|(known, _)| known == model);
        assert!(!is_known, "{model} has an optimizer already");
        self.models.push((model.to_owned(), Box::new(optimizer)));
        self
    }

    fn first(&self) -> Option<&dyn Stateful> {
        self.models.first().map(|(_, optimizer)| &**optimizer)
    }
}

impl Optimizer for ByModel {
    fn prepare(
        &mut self,
        parameters: &mut dyn Parameters,
        mut gradients: Gradients,
    ) -> Result<Update<'_>> {
        let mut updates = Vec::with_capacity(self.models.len());
        for (model, optimizer) in &mut self.models {
            let mut own = OneModel { parameters: &mut *parameters, model };
            let gradients = own.take_gradients(&mut gradients);
            // A model without gradients took no part in the step, and its number of updates stays.
            if !gradients.is_empty() {
                updates.push(optimizer.prepare(&mut own, gradients)?);
            }
        }
        Ok(Update::new(move || updates.into_iter().try_for_each(Update::commit)))
    }

    fn visit_state(&mut self, visitor: &mut dyn FnMut(&mut Tensor)) {
        self.models.iter_mut().for_each(|(_, optimizer)| optimizer.visit_state(visitor));
    }
}

impl Scheduled for ByModel {
    fn steps(&self) -> u64 {
        self.first().map_or(0, Scheduled::steps)
    }

    fn learning_rate(&self) -> f64 {
        self.first().map_or(0.0, Scheduled::learning_rate)
    }

    fn set_learning_rate(&mut self, learning_rate: f64) {
        let factor = learning_rate / self.learning_rate();
        for (nth, (_, optimizer)) in self.models.iter_mut().enumerate() {
            let scaled = if nth == 0 { learning_rate } else { optimizer.learning_rate() * factor };
            optimizer.set_learning_rate(scaled);
        }
    }
}

impl Stateful for ByModel {
    fn memory(&self, parameters: &mut dyn Parameters) -> OptimizerMemory {
        let mut sum = OptimizerMemory::default();
        for (model, optimizer) in &self.models {
            let own = optimizer.memory(&mut OneModel { parameters: &mut *parameters, model });
            sum.state_bytes += own.state_bytes;
            // All updates are prepared before the first one is committed.
            sum.scratch_bytes += own.scratch_bytes;
        }
        sum
    }

    fn state(&self, parameters: &mut dyn Parameters) -> Result<OptimizerState> {
        let (mut tensors, mut models) = (BTreeMap::new(), BTreeMap::new());
        for (model, optimizer) in &self.models {
            let state = optimizer.state(&mut OneModel { parameters: &mut *parameters, model })?;
            models.insert(model.clone(), state.pace());
            tensors.extend(state.tensors);
        }
        let (steps, learning_rate) = self.first().map_or((0, 0.0), |first| {
            // The learning rate without the schedule, as it is stored for each model.
            let (model, _) = &self.models[0];
            (first.steps(), models[model].learning_rate)
        });
        Ok(OptimizerState { steps, learning_rate, tensors, models })
    }

    fn set_state(
        &mut self,
        parameters: &mut dyn Parameters,
        mut state: OptimizerState,
    ) -> Result<()> {
        let mut replaced = self.clone();
        for (model, optimizer) in &mut replaced.models {
            let missing =
                || NnError::State { name: model.clone(), problem: WeightsProblem::Missing };
            let Pace { steps, learning_rate } = state.models.remove(model).ok_or_else(missing)?;
            let is_own = |name: &String, _: &mut Tensor| is_of(name, model);
            let tensors = state.tensors.extract_if(.., is_own).collect();
            let models = BTreeMap::new();
            let own = OptimizerState { steps, learning_rate, tensors, models };
            optimizer.set_state(&mut OneModel { parameters: &mut *parameters, model }, own)?;
        }
        let left = state.models.into_keys().chain(state.tensors.into_keys()).next();
        if let Some(name) = left {
            return Err(NnError::State { name, problem: WeightsProblem::Unknown });
        }
        *self = replaced;
        Ok(())
    }

    fn swap_averages(&mut self, parameters: &mut dyn Parameters) -> Result<bool> {
        let mut are_swapped = Vec::with_capacity(self.models.len());
        for (model, optimizer) in &mut self.models {
            let swapped =
                optimizer.swap_averages(&mut OneModel { parameters: &mut *parameters, model });
            match swapped {
                Ok(is_swapped) => are_swapped.push(is_swapped),
                Err(error) => {
                    // Swapping back takes no new memory, so it cannot fail.
                    let back =
                        self.models.iter_mut().zip(are_swapped).filter(|(_, swapped)| *swapped);
                    for ((model, optimizer), _) in back {
                        let mut own = OneModel { parameters: &mut *parameters, model };
                        optimizer.swap_averages(&mut own)?;
                    }
                    return Err(error);
                }
            }
        }
        Ok(are_swapped.contains(&true))
    }

    fn of_model(&mut self, model: &str) -> Option<&mut dyn Stateful> {
        let (_, optimizer) = self.models.iter_mut().find(|(known, _)| known == model)?;
        Some(&mut **optimizer)
    }

    fn eight_bit(&self) -> Option<Box<dyn Stateful>> {
        let (mut changed, mut models) = (false, self.models.clone());
        for (_, optimizer) in &mut models {
            if let Some(eight_bit) = optimizer.eight_bit() {
                (changed, *optimizer) = (true, eight_bit);
            }
        }
        changed.then(|| Box::new(ByModel { models }) as Box<dyn Stateful>)
    }

    fn boxed_clone(&self) -> Box<dyn Stateful> {
        Box::new(self.clone())
    }
}

/// The parameters and buffers of one of several models, under their full names.
pub struct OneModel<'a> {
    /// The parameters and buffers of all models.
    pub parameters: &'a mut dyn Parameters,
    /// Name of the model: the first part of its parameters' names.
    pub model: &'a str,
}

impl OneModel<'_> {
    /// Removes the gradients of this model's parameters from `all` and returns them.
    fn take_gradients(&mut self, all: &mut Gradients) -> Gradients {
        let mut own = Gradients::default();
        self.visit(&mut |_, parameter| {
            if let Some(gradient) = all.remove(parameter.id()) {
                own.insert(parameter.id(), gradient);
            }
        });
        own
    }
}

impl Nodes for OneModel<'_> {
    fn visit_nodes(&mut self, visitor: &mut Visitor<'_>) {
        let model = self.model;
        self.parameters.visit_nodes(&mut Visitor::new(&mut |name, node| {
            if name == model || is_of(name, model) {
                visitor.node(name, node);
            }
        }));
    }
}

/// True if the parameter `name` belongs to the model.
fn is_of(name: &str, model: &str) -> bool {
    name.strip_prefix(model).is_some_and(|rest| rest.starts_with('.'))
}
