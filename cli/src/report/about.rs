//! Everything needed to repeat a run: recipe, command, code, date and machine.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{env, fs, thread};

/// The origin of a run, for its page. Empty fields are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// The heading of the page.
    pub title: String,
    /// All settings as text; TOML is compared key by key.
    pub recipe: String,
    /// The command line of the program.
    pub command: String,
    /// The commit of the code, with a mark if files differ from it.
    pub commit: Option<String>,
    /// The date on which the run began.
    pub date: String,
    /// The machine of the run.
    pub machine: String,
}

impl About {
    /// A title, and facts about this process: its command line, the commit of the Git repository in
    /// which it was started (if there is one, and a `git` to ask), the time, and the machine.
    pub fn of_this_process(title: &str) -> About {
        About {
            title: title.to_owned(),
            recipe: String::new(),
            command: command_line(),
            commit: commit_of(Path::new(".")),
            date: date(SystemTime::now()),
            machine: machine(),
        }
    }

    /// Adds a recipe.
    #[must_use]
    pub fn with_recipe(self, recipe: String) -> About {
        About { recipe, ..self }
    }
}

/// The arguments, quoted for a shell.
fn command_line() -> String {
    let quoted = |word: String| {
        let is_plain = |c: char| c.is_alphanumeric() || "_-+=./:,@%".contains(c);
        match word.as_str() {
            "" => "''".to_owned(),
            _ if word.chars().all(is_plain) => word,
            _ => format!("'{}'", word.replace('\'', r"'\''")),
        }
    };
    let words = env::args_os().map(|word| quoted(word.to_string_lossy().into_owned()));
    words.collect::<Vec<_>>().join(" ")
}

/// The commit of a working directory, followed by `-dirty` if tracked files were changed.
fn commit_of(folder: &Path) -> Option<String> {
    let arguments = ["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"];
    let mut git = Command::new("git");
    git.arg("-C").arg(folder).args(arguments).env("GIT_OPTIONAL_LOCKS", "0");
    let output = git.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let commit = text.trim();
    (output.status.success() && !commit.is_empty()).then(|| commit.to_owned())
}

/// Name, processor and system, as far as the system reports them.
fn machine() -> String {
    let mut parts = Vec::new();
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    parts.extend(Some(name.trim().to_owned()).filter(|name| !name.is_empty()));
    parts.extend(processor());
    let cores = thread::available_parallelism().map_or(0, usize::from);
    parts.extend((cores > 0).then(|| format!("{cores} threads for this process")));
    parts.push(format!("{} {}", env::consts::OS, env::consts::ARCH));
    parts.join(", ")
}

/// The processor's model, as far as the system reports it.
pub(crate) fn processor() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let (_, model) =
        text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'))?;
    Some(model.trim().to_owned())
}

/// Date and time of the day in UTC: `2026-02-28 23:59:59 UTC`.
pub(crate) fn date(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (mut days, of_day) = (seconds / 86_400, seconds % 86_400);
    // 400 years always have the same number of days. A year is taken to begin in March, so that the
    // leap day is its last day.
    days += 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day_of_month = day - (153 * month + 2) / 5 + 1;
    let (month, after) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = era * 400 + year + after;
    let [hour, minute, second] = [of_day / 3_600, of_day / 60 % 60, of_day % 60];
    format!("{year:04}-{month:02}-{day_of_month:02} {hour:02}:{minute:02}:{second:02} UTC")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        // The expected values are printed by `date -u -d @SECONDS`.
        let cases = [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_868_800, "2000-03-01 00:00:00 UTC"),
            (1_709_210_096, "2024-02-29 12:34:56 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ];
        for (seconds, text) in cases {
            assert_eq!(date(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn folder_outside_of_every_repository_has_no_commit() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(commit_of(folder.path()), None);
        assert_eq!(commit_of(&folder.path().join("missing")), None);
    }
}
