//! Runs the command of a section. The whole output goes to a file; failures and progress lines go
//! to the screen.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::in_words;
use super::plan::Counting;
use super::quiet::{Quiet, Source};
use crate::tally::{Counts, Tally};

/// The time between two progress lines, on a terminal and elsewhere.
const ON_TERMINAL: Duration = Duration::from_secs(1);
const ELSEWHERE: Duration = Duration::from_secs(60);

/// Width of a progress line, which must fit in one line of a terminal.
const COLUMNS: usize = 79;

/// Clears the progress line of a terminal.
const CLEAR: &str = "\r\u{1b}[K";

/// Runs `command` and counts its output, which is written to `log`.
///
/// # Errors
/// The command does not start, or the file cannot be written.
pub(super) fn run(command: &mut Command, counting: Counting, log: &Path) -> io::Result<Counts> {
    if let Some(folder) = log.parent() {
        fs::create_dir_all(folder)?;
    }
    // Cargo sees a pipe and would omit its colours.
    if std::env::var_os("CARGO_TERM_COLOR").is_none() && io::stderr().is_terminal() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    let screen = Mutex::new(Screen::new(counting, File::create(log)?));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let status: io::Result<ExitStatus> = thread::scope(|scope| {
        let (running, ended) = mpsc::channel::<()>();
        let interval = if io::stdout().is_terminal() { ON_TERMINAL } else { ELSEWHERE };
        let (screen, begin) = (&screen, Instant::now());
        scope.spawn(move || {
            while ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                lock(screen).tick(begin.elapsed());
            }
        });
        let errors = stderr.map(|from| scope.spawn(|| relay(from, Source::Error, screen)));
        if let Some(from) = stdout {
            relay(from, Source::Output, screen);
        }
        drop(errors.map(thread::ScopedJoinHandle::join));
        drop(running);
        child.wait()
    });
    let mut screen = screen.into_inner().unwrap_or_else(PoisonError::into_inner);
    screen.clear();
    let success = status?.success();
    if !success {
        println!("all of its output: {}", log.display());
    }
    Ok(match counting {
        Counting::Runners => screen.tally.finish(success),
        Counting::Status | Counting::Tidy => Counts::one(success),
    })
}

fn lock<'a>(screen: &'a Mutex<Screen>) -> MutexGuard<'a, Screen> {
    screen.lock().unwrap_or_else(PoisonError::into_inner)
}

fn relay(from: impl Read, source: Source, screen: &Mutex<Screen>) {
    let mut reader = BufReader::new(from);
    let mut line = Vec::new();
    // A reader that fails gives no more lines.
    while reader.read_until(b'\n', &mut line).is_ok_and(|len| len > 0) {
        lock(screen).read(source, &line);
        line.clear();
    }
}

struct Screen {
    quiet: Quiet,
    tally: Tally,
    log: File,
    is_terminal: bool,
    /// True while the last line of the terminal is a progress line.
    has_sign: bool,
}

impl Screen {
    fn new(counting: Counting, log: File) -> Self {
        Self {
            quiet: Quiet::new(counting),
            tally: Tally::default(),
            log,
            is_terminal: io::stdout().is_terminal(),
            has_sign: false,
        }
    }

    /// Processes a line of the command. A writer that fails (a closed terminal, a full disk) must
    /// not stop the reading, because the child would then block on a full pipe.
    fn read(&mut self, source: Source, line: &[u8]) {
        let _ = self.log.write_all(line);
        let text = String::from_utf8_lossy(line);
        self.tally.read_line(&text);
        if !self.quiet.shows(source, &text) {
            return;
        }
        self.clear();
        let _ = match source {
            Source::Output => io::stdout().write_all(line),
            Source::Error => io::stderr().write_all(line),
        };
    }

    fn tick(&mut self, elapsed: Duration) {
        self.clear();
        let sign = format!("   {}: {}", in_words(elapsed), self.quiet.progress);
        if self.is_terminal {
            print!("{}", sign.chars().take(COLUMNS).collect::<String>());
            self.has_sign = true;
        } else {
            println!("{sign}");
        }
        let _ = io::stdout().flush();
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.has_sign) {
            print!("{CLEAR}");
            let _ = io::stdout().flush();
        }
    }
}
