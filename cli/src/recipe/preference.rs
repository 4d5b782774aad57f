//! Preferences of a recipe: how far the model may move from what it was.

use lowtide_trainer::{Result, check_beta};

use super::options::options;

options! {
    /// How a model learns which answers are preferred to others.
    PreferenceRecipe {
        /// How much it costs to move away from the model that it was, above 0: DPO's beta.
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
