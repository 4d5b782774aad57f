//! Preference training of a recipe: how far the model may move from its initial state.

use lowtide_trainer::{Result, check_beta};

use super::options::options;

options! {
    /// The options of a model that learns preferred answers.
    PreferenceRecipe {
        /// The cost of moving away from the initial model, above 0: DPO's beta.
        beta: f64 = 0.1,
    }
}

impl PreferenceRecipe {
    /// # Errors
    /// `Setting` for a number out of its range.
    pub(super) fn check(&self) -> Result<()> {
        check_beta("preference.beta", self.beta)
    }
}
