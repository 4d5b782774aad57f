//! Ranges of a recipe's numbers.

use lowtide_nn::NnError;
use lowtide_trainer::{Precision, Result, TrainError};

use super::optimizer::RuleOptions;
use super::{
    BATCH_SIZE_MAX, CsvRecipe, DataRecipe, DistillRecipe, EPOCHS_MAX, INTEGER_MAX,
    PreferenceRecipe, PruneRecipe, Recipe, ScheduleRecipe, StateType, StoredType, WarmUpRecipe,
    setting,
};

impl Recipe {
    /// `Ok` if every number is in its range.
    ///
    /// # Errors
    /// `Setting` that names the first number out of its range.
    pub fn check(&self) -> Result<()> {
        self.check_counts()?;
        self.check_leaf()?;
        self.augment.check()?;
        self.distill.iter().try_for_each(DistillRecipe::check)?;
        self.prune.iter().try_for_each(PruneRecipe::check)?;
        self.preference.iter().try_for_each(PreferenceRecipe::check)?;
        if self.preference.is_some() && !self.data.is_preferences() {
            let problem = "is for data of answers that are preferred to others, see data.format";
            return Err(setting("preference", problem));
        }
        if let Some((at, dropout)) = self.model.dropout().filter(|(_, p)| !(0.0..1.0).contains(p)) {
            return Err(setting(at, &format!("{dropout} is not from 0 up to 1")));
        }
        if let DataRecipe::Csv(CsvRecipe { fill: Some(fill), .. }) = &self.data
            && !fill.is_finite()
        {
            return Err(setting("data.fill", &format!("{fill} is not finite")));
        }
        if let Some(norm) = self.train.clip_norm.filter(|norm| norm.is_nan() || *norm <= 0.0) {
            return Err(setting("train.clip_norm", &format!("{norm} is not above 0")));
        }
        if self.train.parameters != StoredType::F32 && self.train.precision == Precision::F16 {
            let problem = "cannot be bf16 where train.precision is f16: scaled gradients are f32";
            return Err(setting("train.parameters", problem));
        }
        self.check_optimizer()
    }

    fn check_counts(&self) -> Result<()> {
        let counts = [
            ("train.epochs", self.train.epochs, 1..=EPOCHS_MAX),
            ("train.batch_size", self.train.batch_size as u64, 1..=BATCH_SIZE_MAX),
            ("train.seed", self.train.seed, 0..=INTEGER_MAX),
        ];
        let steps = self.schedule.steps();
        let of_schedule = steps.map(|steps| ("schedule.steps", steps, 1..=INTEGER_MAX));
        let of_tables = [self.model.counts(), self.data.counts()].concat();
        let of_tables = of_tables
            .into_iter()
            .map(|(name, count, [min, max])| (name, count as u64, min as u64..=max as u64));
        for (name, count, range) in counts.into_iter().chain(of_schedule).chain(of_tables) {
            if !range.contains(&count) {
                let (min, max) = range.into_inner();
                return Err(setting(name, &format!("must be {min} to {max}")));
            }
        }
        Ok(())
    }

    fn check_leaf(&self) -> Result<()> {
        let Some(leaf) = self.train.leaf else { return Ok(()) };
        let batch_size = self.train.batch_size;
        if !batch_size.is_multiple_of(leaf.get()) {
            let problem = format!("batches of {batch_size} are not made of leaves of {leaf}");
            return Err(setting("train.leaf", &problem));
        }
        if !self.train.split_batches {
            let problem = "splits batches, which train.split_batches forbids";
            return Err(setting("train.leaf", problem));
        }
        Ok(())
    }

    /// `Ok` if the options of the optimizer and its schedule are in their ranges.
    fn check_optimizer(&self) -> Result<()> {
        let in_table = |table: &str, error| match error {
            NnError::Option { name, value, range } => {
                let name = match name {
                    "beta" => "betas",
                    "coefficient" => "coefficients",
                    "milestone" => "at",
                    name => name,
                };
                let (place, problem) =
                    (format!("{table}.{name}"), format!("{value} is not in {range}"));
                TrainError::Setting { place, problem }
            }
            other => other.into(),
        };
        let warm_up = ScheduleRecipe::default().after(self.warm_up);
        warm_up.check().map_err(|error| in_table("warm_up", error))?;
        let schedule = self.schedule.after(WarmUpRecipe::default());
        schedule.check().map_err(|error| in_table("schedule", error))?;
        let how = RuleOptions { schedule, rounding: None, states: StateType::F32 };
        let built = self.optimizer.build(how);
        built.map(drop).map_err(|error| in_table("optimizer", error))
    }
}
