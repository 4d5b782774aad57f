//! A program of the comparison. A program waits for a line before it works, so that several
//! programs take turns.

use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::Value;

/// The time between two readings of a program's memory.
const INTERVAL: Duration = Duration::from_millis(1);

pub(super) struct Program {
    name: String,
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Program {
    /// Starts a program. With `keeps_pages`, the program does not return freed memory to the
    /// system, so that its steps take no new pages.
    pub(super) fn start(mut command: Command, keeps_pages: bool) -> Result<Program, String> {
        let name = command.get_program().to_string_lossy().into_owned();
        if keeps_pages {
            command.env("MALLOC_TRIM_THRESHOLD_", "-1").env("MALLOC_MMAP_THRESHOLD_", "4294967296");
        }
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|error| format!("{name} does not start: {error}"))?;
        let input = child.stdin.take().ok_or("a program without an input")?;
        let output = child.stdout.take().ok_or("a program without an output")?;
        Ok(Program { name, child, input, output: BufReader::new(output).lines() })
    }

    /// The next line of JSON that the program prints.
    pub(super) fn answer(&mut self) -> Result<Value, String> {
        let line = match self.output.next() {
            Some(line) => line.map_err(|error| format!("{}: {error}", self.name))?,
            None => {
                let status = self.child.wait().map(|status| status.to_string());
                return Err(format!("{} ended: {}", self.name, status.unwrap_or_default()));
            }
        };
        serde_json::from_str(&line).map_err(|error| format!("{}: {line}: {error}", self.name))
    }

    /// The program's answer to a line.
    pub(super) fn ask(&mut self, line: &str) -> Result<Value, String> {
        let failed = |error| format!("{}: {error}", self.name);
        writeln!(self.input, "{line}").and_then(|()| self.input.flush()).map_err(failed)?;
        self.answer()
    }

    /// [`Program::ask`], and the largest growth of the program's memory in MB; `None` if the system
    /// does not report memory.
    pub(super) fn ask_for_memory(&mut self, line: &str) -> Result<(Value, Option<f64>), String> {
        let place = Path::new("/proc").join(self.child.id().to_string()).join("smaps_rollup");
        let Some(before) = own_kb(&place) else { return Ok((self.ask(line)?, None)) };
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            let watch = scope.spawn(|| {
                let mut most = before;
                while !is_done.load(Ordering::Relaxed) {
                    most = most.max(own_kb(&place).unwrap_or(0));
                    thread::sleep(INTERVAL);
                }
                most
            });
            let answer = self.ask(line);
            is_done.store(true, Ordering::Relaxed);
            let most = watch.join().map_err(|_| "memory could not be read".to_owned())?;
            Ok((answer?, Some((most - before) as f64 / 1000.0)))
        })
    }
}

/// Memory that is not backed by a file, in kB, with each page counted once.
fn own_kb(smaps_rollup: &Path) -> Option<u64> {
    let text = fs::read_to_string(smaps_rollup).ok()?;
    let of = |name: &str| -> Option<u64> {
        let line = text.lines().find(|line| line.starts_with(name))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    Some((of("Pss_Anon:")? + of("Pss_Shmem:")?) * 1024 / 1000)
}

impl Drop for Program {
    /// Kills the program.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
