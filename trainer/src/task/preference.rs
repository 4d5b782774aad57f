//! Learning from preferred answers.

use std::collections::BTreeSet;

use lowtide_autograd::{Pass, Var};
use lowtide_data::BatchView;
use lowtide_nn::{Buffer, Loss, Nodes, Parameters, Visitor, adapted, preference, remove_adapters};
use lowtide_tensor::{DType, Device, Tensor};

use crate::error::{Result, TrainError};
use crate::run::score::{Metric, Score};
use crate::task::contract::Task;
use crate::task::fields::{field, sum_of, upload, values_of};
use crate::task::language::TokenModel;

/// Direct preference optimisation on pairs of a chosen and a rejected answer (Rafailov et al.,
/// "Direct preference optimization: your language model is secretly a reward model", 2023). The
/// loss of each pair is `-ln sigmoid(beta ((ln p(chosen) - ln r(chosen)) - (ln p(rejected) - ln
/// r(rejected))))`, where p is the model's probability of an answer, and r the probability by a
/// frozen reference. Fields are those of [`PreferenceRows`](lowtide_data::PreferenceRows): `chosen`
/// and `rejected` `[B, T + 1]`, `chosen.labels` and `rejected.labels` `[B, T]`, of i64. Scored by
/// `accuracy`: the fraction of pairs in which the model moved towards the chosen answer.
///
/// Both answers are one batch with twice the rows. The reference runs first, in evaluation mode,
/// and saves nothing for backward.
#[derive(Clone, Debug)]
pub struct Preference<M> {
    model: M,
    /// The reference; `None` for the model without its adapters.
    reference: Option<M>,
    beta: f64,
    base_is_elsewhere: bool,
}

impl<M: TokenModel + Clone> Preference<M> {
    /// The task of training the adapters of `model`. The reference is the model without its
    /// adapters, and no copy is made.
    ///
    /// # Errors
    /// `Setting` for a model without adapters, and for a beta that is not above 0 (0.1 is usual).
    pub fn of_adapters(mut model: M, beta: f64) -> Result<Self> {
        if adapted(&mut model).is_empty() {
            let problem = "has no adapters, and no other model to compare it with".to_owned();
            return Err(TrainError::Setting { place: "model".to_owned(), problem });
        }
        Preference { model, reference: None, beta, base_is_elsewhere: false }.checked()
    }

    /// The task of training `model` with a separate reference, which is frozen through all handles
    /// to it. The reference must be loaded separately; a clone would share the model's parameters.
    /// The names of its parameters begin with `reference.`. Plans count them. Checkpoints and files
    /// of runs leave out all frozen parameters, also the reference's.
    ///
    /// # Errors
    /// `Setting` for a reference that shares parameters with the model, and for a beta that is not
    /// above 0.
    pub fn with_reference(mut model: M, mut reference: M, beta: f64) -> Result<Self> {
        let mut own = BTreeSet::new();
        model.visit(&mut |_, parameter| _ = own.insert(parameter.id()));
        let mut is_shared = false;
        reference.visit(&mut |_, parameter| is_shared |= own.contains(&parameter.id()));
        if is_shared {
            let problem = "shares parameters with the model, which would freeze".to_owned();
            return Err(TrainError::Setting { place: "reference".to_owned(), problem });
        }
        reference.visit(&mut |_, parameter| parameter.freeze());
        reference.visit_buffers(&mut |_, buffer| {
            *buffer = Buffer::constant(buffer.value().clone());
        });
        let reference = Some(reference);
        Preference { model, reference, beta, base_is_elsewhere: true }.checked()
    }

    /// Marks the model as pretrained: its frozen parameters are in files that stay, see
    /// [`Task::base_is_elsewhere`].
    #[must_use]
    pub fn of_files(self) -> Self {
        Preference { base_is_elsewhere: true, ..self }
    }

    /// The model that is trained.
    pub fn model(&self) -> &M {
        &self.model
    }

    fn checked(self) -> Result<Self> {
        check_beta("beta", self.beta)?;
        Ok(self)
    }

    /// The loss, and for each pair the distance that the model moved towards the chosen answer.
    fn loss_of(
        &self,
        pass: &Pass,
        device: &Device,
        part: &BatchView<'_>,
    ) -> Result<(Loss, Tensor)> {
        let both = |names: [&str; 2]| -> Result<Tensor> {
            let [chosen, rejected] = names.map(|name| upload(device, field(part, name)?));
            Ok(Tensor::cat(&[&chosen?, &rejected?], 0)?)
        };
        let labels = both(["chosen.labels", "rejected.labels"])?; // [2B, T]
        let tokens = both(["chosen", "rejected"])?.narrow(1, 0, labels.shape()[1])?.contiguous()?;
        let reference = {
            let silent = Pass::eval();
            let base = self.reference.clone().unwrap_or_else(|| {
                // The clone is a set of handles: the base is the model's own.
                let mut base = self.model.clone();
                remove_adapters(&mut base);
                base
            });
            let of_base =
                silent.within("reference", || log_likelihoods(&base, &silent, &tokens, &labels));
            of_base?.value().clone()
        };
        let own = log_likelihoods(&self.model, pass, &tokens, &labels)?; // [2B]
        let pairs = own.shape()[0] / 2;
        let half = |index: usize| own.clone().narrow(0, index * pairs, pairs);
        let of_reference = |index: usize| reference.narrow(0, index * pairs, pairs);
        let references = [of_reference(0)?, of_reference(1)?];
        let (loss, margins) = preference([half(0)?, half(1)?], &references, self.beta)?;
        Ok((loss, margins))
    }
}

/// # Errors
/// `Setting` with this place if beta is not above 0.
pub fn check_beta(place: &str, beta: f64) -> Result<()> {
    if beta > 0.0 && beta.is_finite() {
        return Ok(());
    }
    let problem = format!("{beta} is not above 0");
    Err(TrainError::Setting { place: place.to_owned(), problem })
}

/// The log-likelihood of each row, `[2B]`.
fn log_likelihoods(
    model: &impl TokenModel,
    pass: &Pass,
    tokens: &Tensor,
    labels: &Tensor,
) -> Result<Var> {
    let logits = model.token_logits(pass, pass.constant(tokens.clone()))?;
    let logits = logits.ok_or_else(|| TrainError::Setting {
        place: "model".to_owned(),
        problem: "gives no logits".to_owned(),
    })?;
    Ok(logits.log_likelihoods(labels)?)
}

impl<M: TokenModel + Clone> Nodes for Preference<M> {
    /// Shows only the reference's values: every rank has the whole reference, which saves nothing
    /// for backward and gets no adapters.
    fn visit_nodes(&mut self, visitor: &mut Visitor<'_>) {
        visitor.field("", &mut self.model);
        if let Some(reference) = &mut self.reference {
            visitor.values("reference", reference);
        }
    }
}

impl<M: TokenModel + Clone + 'static> Task for Preference<M> {
    fn parameters(&mut self) -> &mut dyn Parameters {
        self
    }

    fn count(&self, batch: &BatchView<'_>) -> Result<f64> {
        Ok(batch.len() as f64)
    }

    fn loss(&self, pass: &Pass, device: &Device, part: &BatchView<'_>) -> Result<Loss> {
        Ok(self.loss_of(pass, device, part)?.0)
    }

    fn score(&self, device: &Device, part: &BatchView<'_>) -> Result<Score> {
        let (loss, margins) = self.loss_of(&Pass::eval(), device, part)?;
        let margins = values_of::<f64>(&margins.to_dtype(DType::F64)?)?;
        let right = margins.into_iter().filter(|&margin| margin > 0.0).count() as f64;
        let count = part.len() as f64;
        Ok(Score::new(sum_of(&loss)?, count).with(Metric::fraction("accuracy", right, count)))
    }

    fn base_is_elsewhere(&self) -> bool {
        self.base_is_elsewhere
    }
}
