//! Arguments of `lowtide train` and of the commands that train.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use lowtide_trainer::observers::CheckpointEvery;

use super::conditions::Conditions;
use crate::command::planning::PlanningArgs;
use crate::command::recording::Target;
use crate::command::{DeviceArgs, RecipeArgs, parse_count};

#[derive(Args, Clone)]
pub(in crate::command) struct TrainArgs {
    #[command(flatten)]
    pub(super) recipe: RecipeArgs,
    /// Resumes the run in DIR after its last checkpoint, or from the checkpoint DIR, with the
    /// ranks, budgets and plan of the run. Other options change the run; --epochs counts from the
    /// beginning.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["recipe", "plan"])]
    pub(super) resume: Option<PathBuf>,
    /// Begins an unfinished epoch again, for data or a batch size that has changed: a part of its
    /// samples is learned twice.
    #[arg(long, requires = "resume")]
    pub(super) restart_epoch: bool,
    #[command(flatten)]
    pub(in crate::command) run: RunArgs,
}

/// The device, the plan and the files of a run.
#[derive(Args, Clone)]
pub(in crate::command) struct RunArgs {
    #[command(flatten)]
    pub(in crate::command) device: DeviceArgs,
    #[command(flatten)]
    pub(super) planning: PlanningArgs,
    /// Folder of the run; runs/NAME-N if absent. An earlier run there is replaced.
    #[arg(long, value_name = "DIR")]
    pub(in crate::command) out: Option<PathBuf>,
    /// Runs with the plan in FILE, printed by `lowtide plan --json`, and with its budget unless one
    /// is given. Refuses the plan if a new rehearsal needs other bytes.
    #[arg(long, value_name = "FILE")]
    pub(super) plan: Option<PathBuf>,
    /// Writes a checkpoint at an interval of steps, epochs or minutes: 500steps, 1epoch, 10min.
    #[arg(long, value_name = "INTERVAL", allow_hyphen_values = true)]
    #[arg(value_parser = CheckpointEvery::from_str)]
    pub(super) checkpoint_every: Option<CheckpointEvery>,
    /// Number of last checkpoints to keep, besides the best one.
    #[arg(long, value_name = "N", default_value_t = 2)]
    #[arg(value_parser = |text: &str| parse_count(text, 1..=10_000))]
    pub(super) keep: u64,
    /// Time to wait for memory after a step ran out of it: 60s, 10min. After that the step keeps
    /// less, runs in smaller parts, or ends the run. If absent, a step waits only where memory was
    /// there all the same, up to 10 seconds.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = parse_time)]
    pub(in crate::command) wait: Option<Duration>,
    /// A fault drill: makes the N-th device allocation of the training fail once.
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    #[arg(value_parser = |text: &str| parse_count(text, 1..=u64::MAX))]
    pub(super) fault_at: Option<u64>,
    /// Writes the allocator's last events to FILE: .html, .pickle or .jsonl.
    #[arg(long, value_name = "FILE", value_parser = Target::parser())]
    pub(super) trace: Option<Target>,
    /// Also writes the report to FILE, every few seconds during the run.
    #[arg(long, value_name = "FILE")]
    pub(super) report: Option<PathBuf>,
    /// Writes every metric to an event file in FOLDER, for TensorBoard.
    #[arg(long, value_name = "FOLDER")]
    pub(super) tensorboard: Option<PathBuf>,
    /// Shows no progress.
    #[arg(long)]
    pub(super) quiet: bool,
    /// Prints the summary, or the error of the run, as one JSON object.
    #[arg(long)]
    pub(in crate::command) json: bool,
    /// The conditions of the run that is resumed.
    #[arg(skip)]
    pub(super) resumed: Option<Conditions>,
    /// True if a resumed run goes on with the knobs of its plan.
    #[arg(skip)]
    pub(super) keeps_knobs: bool,
}

fn parse_time(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(CheckpointEvery::Time(time)) => Ok(time),
        _ => Err(format!("{text:?} is no time such as 60s or 10min")),
    }
}
