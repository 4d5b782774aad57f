//! A smaller model for a recipe: the model of another run without some of its channels.

use std::path::PathBuf;

use lowtide_nn::Parameters;
use lowtide_nn::prune::{self, ChannelOptions, Prunable};
use lowtide_trainer::Result;

use super::options::options;
use super::setting;
use super::stored::StoredType;
use crate::run_dir::RunDir;

options! {
    /// The part to remove from a trained model before it is trained further.
    PruneRecipe {
        /// The folder of the model's run; if absent, a model of the smaller size begins at random.
        #[serde(skip_serializing_if = "Option::is_none")]
        run: Option<PathBuf> = None,
        /// The share of the channels, hidden features and attention heads to remove.
        channels: f64 = 0.5,
        /// Names of layers to prune; * matches anything.
        groups: Vec<String> = vec!["*".to_owned()],
    }
}

impl PruneRecipe {
    /// # Errors
    /// `Setting` for a number out of its range.
    pub(super) fn check(&self) -> Result<()> {
        if self.groups.is_empty() {
            return Err(setting("prune.groups", "names no layer; \"*\" is all of them"));
        }
        match self.channels {
            share if (0.0..1.0).contains(&share) => Ok(()),
            share => Err(setting("prune.channels", &format!("{share} is not from 0 up to 1"))),
        }
    }

    /// Loads the values of the run, which may be smaller already, into a model of the recipe's
    /// shape. Then removes channels until the share is gone. On a simulated device there are no
    /// values, and the files are not read.
    fn cut(&self, model: &mut impl Prunable, is_simulated: bool) -> Result<()> {
        let PruneRecipe { run, channels, groups } = self;
        let (fraction, groups) = (*channels, groups.clone());
        let options = ChannelOptions { fraction, groups, ..ChannelOptions::default() };
        let left = prune::left(model, &options)?;
        if let Some(run) = run.as_ref().filter(|_| !is_simulated) {
            prune::load(model, &RunDir::open(run)?.checked_model()?)?;
        }
        prune::keep(model, options.norm, &left)?;
        Ok(())
    }
}

/// The initial state of a recipe's model.
#[derive(Clone, Copy)]
pub(super) struct Start<'a> {
    pub(super) stored: StoredType,
    pub(super) prune: Option<&'a PruneRecipe>,
    pub(super) is_simulated: bool,
}

impl Start<'_> {
    /// Brings a newly made model to its initial state.
    ///
    /// # Errors
    /// Errors of the other run's files; `Prune` for groups that the model does not have;
    /// `OutOfMemory`.
    pub(super) fn of<M: Prunable>(self, model: M) -> Result<M> {
        let mut model = self.stored.convert(model)?;
        if let Some(prune) = self.prune {
            prune.cut(&mut model, self.is_simulated)?;
        }
        Ok(model)
    }

    /// [`Start::of`] for a model without removable channels.
    ///
    /// # Errors
    /// `Setting` if channels are to be removed; `OutOfMemory`.
    pub(super) fn of_whole<M: Parameters>(self, model: M) -> Result<M> {
        self.check_whole()?;
        self.stored.convert(model)
    }

    /// `Ok` if no channels are to be removed.
    pub(super) fn check_whole(self) -> Result<()> {
        let Some(PruneRecipe { .. }) = self.prune else { return Ok(()) };
        let of = "is for simple-cnn, deep-cnn, mlp, resnet, vit and gpt";
        Err(setting("prune", &format!("{of}: this model says not which channels go together")))
    }
}
