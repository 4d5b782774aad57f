//! Files of recorded allocations: reading and writing all formats.

use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::builder::{PathBufValueParser, TypedValueParser};
use lowtide_allocator::files::open_input;
use lowtide_trace::pickle::PickleProblem;
use lowtide_trace::{
    ExportError, Limits, Recording, Replay, Snapshot, TraceError, TraceProblem, read_snapshot,
};
use lowtide_trainer::{NewFile, Result, TrainError};

/// A recording that was read from a file.
pub(super) struct Recorded {
    pub(super) device: usize,
    pub(super) recording: Recording,
    /// The snapshot, if PyTorch recorded it.
    pub(super) snapshot: Option<Snapshot>,
}

/// The input formats that every command with a recording names in errors.
const EXPECTED: &str = "expected a memory snapshot of PyTorch (.pickle, .pickle.xz) or a trace of \
                        lowtide in JSON lines (.jsonl)";
/// The first line of a trace of lowtide.
const FORMAT: &[u8] = b"lowtide-trace";
/// The first byte of every pickle since protocol 2.
const PICKLE_MAGIC: u8 = 0x80;
/// The first byte of an xz file.
const XZ_MAGIC: u8 = 0xfd;

/// Reads a memory snapshot of PyTorch, plain or compressed with xz, or a trace of lowtide.
pub(super) fn read(path: &Path, device: Option<usize>) -> Result<Recorded> {
    let file =
        open_input(path).map_err(|source| TrainError::File { path: path.to_owned(), source })?;
    let mut file = BufReader::new(file);
    let head =
        file.fill_buf().map_err(|source| TrainError::File { path: path.to_owned(), source })?;
    match head.first() {
        Some(b'{') => {
            if let Some(device) = device.filter(|&device| device != 0) {
                return Err(unusable(path, format!("it has no device {device}, only device 0")));
            }
            let is_trace = head.windows(FORMAT.len()).any(|part| part == FORMAT);
            let recording = Recording::read_json_lines(file, Limits::default())
                .map_err(|error| unreadable(path, &error, is_trace))?;
            Ok(Recorded { device: 0, recording, snapshot: None })
        }
        Some(&(PICKLE_MAGIC | XZ_MAGIC)) => {
            let snapshot = read_snapshot(file, Limits::default())
                .map_err(|error| unreadable(path, &error, is_snapshot(&error)))?;
            let device = device.unwrap_or_else(|| Replay::busiest_device(&snapshot));
            let recording = Recording::from_snapshot(&snapshot, device)
                .map_err(|error| unusable(path, error.to_string()))?;
            Ok(Recorded { device, recording, snapshot: Some(snapshot) })
        }
        Some(_) => Err(unusable(path, format!("not a trace: {EXPECTED}"))),
        None => Err(unusable(path, format!("the file is empty: {EXPECTED}"))),
    }
}

/// True if the file is probably a snapshot, possibly damaged or too large.
fn is_snapshot(error: &TraceError) -> bool {
    match &error.problem {
        TraceProblem::Pickle(problem) => {
            !matches!(problem, PickleProblem::Protocol | PickleProblem::Opcode(_))
        }
        TraceProblem::Type { .. } | TraceProblem::Missing { .. } | TraceProblem::Io(_) => false,
        _ => true,
    }
}

fn unreadable(path: &Path, error: &TraceError, is_trace: bool) -> TrainError {
    let problem = if is_trace { error.to_string() } else { format!("{error}; {EXPECTED}") };
    unusable(path, problem)
}

/// The name of a file for a recording, and the format given by its suffix.
#[derive(Clone, Debug)]
pub(super) struct Target {
    path: PathBuf,
    format: Format,
}

#[derive(Clone, Copy, Debug)]
enum Format {
    /// A page for a browser.
    Html,
    /// A memory snapshot for PyTorch's tools.
    Pickle,
    /// Lines of JSON, the only lossless format.
    JsonLines,
}

impl Target {
    /// A parser of arguments, for `value_parser = Target::parser()`.
    pub(super) fn parser() -> impl TypedValueParser<Value = Target> {
        PathBufValueParser::new().try_map(|path| {
            let format = match path.extension().and_then(|suffix| suffix.to_str()) {
                Some("html") => Format::Html,
                Some("pickle" | "pkl") => Format::Pickle,
                Some("jsonl") => Format::JsonLines,
                _ => return Err("the name must end in .html, .pickle, .pkl or .jsonl"),
            };
            Ok(Target { path, format })
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// A file for a recording, opened before the work that is recorded, so that an unusable name is
/// reported before hours of work.
pub(super) struct Output {
    file: NewFile,
    format: Format,
}

impl Output {
    /// Makes a temporary file beside `target`, and opens a pipe or a device. A file at `target` is
    /// untouched until [`Output::write`]. If dropped before, the output leaves nothing.
    ///
    /// # Errors
    /// `File`.
    pub(super) fn open(target: &Target) -> Result<Output> {
        Ok(Output { file: NewFile::create(&target.path)?, format: target.format })
    }

    /// Writes `recording` and moves the file to its path.
    ///
    /// # Errors
    /// `File`; `Setting` if this format cannot hold the recording.
    pub(super) fn write(mut self, recording: &Recording) -> Result<()> {
        let path = self.file.path().to_owned();
        let mut file = BufWriter::new(self.file.file());
        let written = match self.format {
            Format::Html => recording.write_timeline(&mut file),
            Format::Pickle => match recording.write_pickle(&mut file) {
                Err(ExportError::Io(error)) => Err(error),
                Err(error) => return Err(unusable(&path, error.to_string())),
                Ok(()) => Ok(()),
            },
            Format::JsonLines => recording.write_json_lines(&mut file),
        };
        let written = written.and_then(|()| file.flush());
        drop(file);
        written.map_err(|source| TrainError::File { path, source })?;
        self.file.publish()
    }
}

pub(super) fn unusable(path: &Path, problem: String) -> TrainError {
    TrainError::Setting { place: path.display().to_string(), problem }
}
