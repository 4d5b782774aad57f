//! Models that are trained in turn within one step.

use lowtide_autograd::Turn;
use lowtide_nn::Parameters;
use lowtide_nn::optim::{OneModel, Stateful};

use crate::error::{Result, TrainError};
use crate::task::contract::Task;

/// One turn of a step: the training of one model, or of all parameters at once.
pub(crate) struct ModelTurn {
    /// Absent if one loss trains all parameters.
    turn: Option<Turn>,
    /// True if no other turn of the step follows.
    pub(crate) is_last: bool,
}

impl ModelTurn {
    /// The only turn of a step in which one loss trains all parameters.
    pub(crate) fn of_everything() -> ModelTurn {
        ModelTurn { turn: None, is_last: true }
    }

    /// The turns of a step of `task`, in order.
    ///
    /// # Errors
    /// `Setting` for a model without parameters.
    pub(crate) fn all_of(task: &mut impl Task) -> Result<Vec<ModelTurn>> {
        let models = task.turns();
        if models.is_empty() {
            return Ok(vec![ModelTurn::of_everything()]);
        }
        let last = models.len() - 1;
        let turn = |(index, model): (usize, String)| {
            let mut leaves = Vec::new();
            let mut own = OneModel { parameters: task.parameters(), model: &model };
            own.visit(&mut |_, parameter| leaves.push(parameter.id()));
            if leaves.is_empty() {
                let problem = format!("no parameter's name begins with \"{model}.\"");
                return Err(TrainError::Setting { place: format!("turn {model:?}"), problem });
            }
            Ok(ModelTurn { turn: Some(Turn::new(&model, leaves)), is_last: index == last })
        };
        models.into_iter().enumerate().map(turn).collect()
    }

    /// The turn in the form that a pass takes; `None` if all parameters are trained.
    pub(crate) fn of_pass(&self) -> Option<&Turn> {
        self.turn.as_ref()
    }

    /// The name of the trained model; `None` if all parameters are trained.
    pub(crate) fn model(&self) -> Option<&str> {
        self.turn.as_ref().map(Turn::model)
    }
}

/// The optimizer of `model`, or the whole optimizer if no model is named.
///
/// # Errors
/// `Setting` if the model has no optimizer.
pub(crate) fn optimizer_of<'a>(
    optimizer: &'a mut dyn Stateful,
    model: Option<&str>,
) -> Result<&'a mut dyn Stateful> {
    let Some(model) = model else { return Ok(optimizer) };
    optimizer.of_model(model).ok_or_else(|| TrainError::Setting {
        place: format!("turn {model:?}"),
        problem: "the model has no optimizer of its own: give each one with `ByModel`".to_owned(),
    })
}
