//! A temporary folder in which the command runs.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// The files of a run, in alphabetical order.
pub(crate) const FILES: [&str; 5] =
    ["metrics.jsonl", "model.safetensors", "recipe.toml", "report.html", "summary.json"];

/// An empty folder, removed at the end.
pub(crate) struct Place(TempDir);

/// The exit code and the output of a command.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The exit code; absent if a signal ended the command.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Place {
    pub(crate) fn new() -> Self {
        Place(tempfile::tempdir().expect("a temporary folder"))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a file.
    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.path(name), content).expect("a file in a temporary folder");
    }

    /// Makes a pipe.
    #[cfg(unix)]
    pub(crate) fn make_pipe(&self, name: &str) {
        let made = Command::new("mkfifo").arg(self.path(name)).status();
        assert!(made.expect("mkfifo is there").success());
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// The names in a folder, in order.
    pub(crate) fn list(&self, name: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(name)).expect("a folder");
        let name = |entry: std::io::Result<fs::DirEntry>| {
            entry.expect("an entry").file_name().into_string().expect("UTF-8")
        };
        let mut names: Vec<String> = entries.map(name).collect();
        names.sort();
        names
    }

    /// The command `lowtide` with arguments separated by spaces, to run in this folder without a
    /// terminal.
    pub(crate) fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lowtide"));
        command.args(arguments.split_whitespace()).current_dir(self.0.path());
        // The user who runs the tests may have calibrated this machine.
        command.stdin(Stdio::null()).env("LOWTIDE_RATES", "");
        command
    }

    pub(crate) fn run(&self, arguments: &str) -> Outcome {
        Outcome::of(&mut self.command(arguments))
    }

    /// Runs a training into the folder `out` and returns its summary.
    #[track_caller]
    pub(crate) fn train(&self, arguments: &str, out: &str) -> Value {
        self.run(&format!("train {arguments} --out {out}")).check_done();
        self.json(&format!("{out}/summary.json"))
    }

    #[track_caller]
    pub(crate) fn json(&self, name: &str) -> Value {
        serde_json::from_slice(&self.read(name)).expect("JSON")
    }

    /// The content of every file of a run.
    pub(crate) fn files(&self, run: &str) -> Vec<Vec<u8>> {
        FILES.iter().map(|name| self.read(&format!("{run}/{name}"))).collect()
    }
}

impl Outcome {
    pub(crate) fn of(command: &mut Command) -> Self {
        let output = command.output().expect("the command starts");
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        Outcome {
            code: output.status.code(),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }

    /// Checks that the command succeeded, and returns its standard output.
    #[track_caller]
    pub(crate) fn check_done(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.stdout
    }

    /// Checks that the command refused with `code` and a single line that has all of `words`, and
    /// returns the line.
    #[track_caller]
    pub(crate) fn check_refused(self, code: i32, words: &[&str]) -> String {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert_eq!(self.stdout, "", "{self:?}");
        let line = self.stderr.strip_suffix('\n').expect("a whole line");
        check_complaint(line, words);
        line.to_owned()
    }

    /// Checks that the command failed during its work, with `code` and a last line that has all of
    /// `words`.
    #[track_caller]
    pub(crate) fn check_failed(self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        check_complaint(self.stderr.lines().next_back().expect("a line"), words);
    }
}

#[track_caller]
fn check_complaint(line: &str, words: &[&str]) {
    assert!(line.starts_with("lowtide: ") && !line.contains('\n'), "{line}");
    assert!(line.len() < 320, "a line for a terminal, not {} bytes: {line}", line.len());
    assert!(!line.contains("panicked") && !line.contains("backtrace"), "{line}");
    for word in words {
        assert!(line.contains(word), "no {word:?} in: {line}");
    }
}

/// True if tests may take minutes: `cargo xtask test --deep`.
pub(crate) fn is_deep() -> bool {
    std::env::var_os("PROPTEST_CASES").is_some()
}

/// Prints that a test could not run here.
pub(crate) fn skip(name: &str, reason: &str) {
    println!("skipped: {name}: {reason}");
}

/// The bytes in the line of `text` that begins with `label`: `predicted peak  1 KiB (1024 bytes)`.
#[track_caller]
pub(crate) fn bytes_of(text: &str, label: &str) -> u64 {
    let line = text.lines().find(|line| line.starts_with(label));
    let line = line.unwrap_or_else(|| panic!("no {label} in:\n{text}"));
    number_before(line, " bytes")
}

/// The number that ends where `end` begins.
#[track_caller]
pub(crate) fn number_before(line: &str, end: &str) -> u64 {
    let (before, _) = line.split_once(end).unwrap_or_else(|| panic!("no {end} in: {line}"));
    let start = before.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    before[start..].parse().unwrap_or_else(|error| panic!("{error} in: {line}"))
}
