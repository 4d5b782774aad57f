//! The interval of checkpoints.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::run::observer::Position;

/// A time longer than any run, 136 years. A clock cannot add any number of seconds.
const SECONDS_MAX: u64 = 1 << 32;

/// The interval of checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum CheckpointEvery {
    /// After every n-th step, counted over the whole training.
    Steps(u64),
    /// After every n-th epoch, counted over the whole training.
    Epochs(u64),
    /// After a step, when this much time has passed since the last checkpoint.
    Time(Duration),
}

impl CheckpointEvery {
    /// True if a checkpoint is due after the step at `position`. The last checkpoint was begun at
    /// `written_at`.
    pub(super) fn is_due(self, position: Position, written_at: Instant) -> bool {
        match self {
            CheckpointEvery::Steps(steps) => position.step.is_multiple_of(steps.max(1)),
            CheckpointEvery::Epochs(epochs) => {
                position.batch == 0 && position.epoch.is_multiple_of(epochs.max(1))
            }
            CheckpointEvery::Time(interval) => written_at.elapsed() >= interval,
        }
    }
}

impl FromStr for CheckpointEvery {
    type Err = String;

    /// Parses `20steps`, `1epoch`, `10min`, `90s`, `2h`; a number alone counts steps.
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let expected = || format!("{text:?} is no interval such as 500steps, 1epoch or 10min");
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (count, unit) = text.split_at(digits);
        let count: u64 = count.parse().ok().filter(|&count| count > 0).ok_or_else(expected)?;
        let time = |unit_seconds| {
            let seconds = count.checked_mul(unit_seconds).filter(|&seconds| seconds <= SECONDS_MAX);
            seconds.map(|it| CheckpointEvery::Time(Duration::from_secs(it))).ok_or_else(expected)
        };
        match unit.trim() {
            "" | "step" | "steps" => Ok(CheckpointEvery::Steps(count)),
            "epoch" | "epochs" => Ok(CheckpointEvery::Epochs(count)),
            "s" => time(1),
            "min" => time(60),
            "h" => time(3600),
            _ => Err(expected()),
        }
    }
}

impl fmt::Display for CheckpointEvery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CheckpointEvery::Steps(count) => write!(f, "{count}steps"),
            CheckpointEvery::Epochs(count) => write!(f, "{count}epochs"),
            CheckpointEvery::Time(time) => write!(f, "{}s", time.as_secs()),
        }
    }
}

impl TryFrom<String> for CheckpointEvery {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Self, String> {
        text.parse()
    }
}

impl From<CheckpointEvery> for String {
    fn from(every: CheckpointEvery) -> String {
        every.to_string()
    }
}
