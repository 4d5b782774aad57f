//! Files of recorded allocations: reading any kind, writing any kind.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::Path;

use lowtide_allocator::trace::{ExportError, Limits, Recording, Replay, Snapshot, read_snapshot};

use crate::{Result, TrainError};

/// What was read.
pub(super) struct Recorded {
    pub(super) device: usize,
    pub(super) recording: Recording,
    /// The snapshot that it was, if PyTorch recorded it.
    pub(super) snapshot: Option<Snapshot>,
}

/// Reads a memory snapshot of PyTorch, plain or compressed with xz, or a trace of lowtide.
pub(super) fn read(path: &Path, device: Option<usize>) -> Result<Recorded> {
    let file =
        File::open(path).map_err(|source| TrainError::File { path: path.to_owned(), source })?;
    let mut file = BufReader::new(file);
    let head =
        file.fill_buf().map_err(|source| TrainError::File { path: path.to_owned(), source })?;
    // A pickle begins with its protocol, an xz file with its magic number, JSON with a brace.
    if head.first() == Some(&b'{') {
        if let Some(device) = device.filter(|&device| device != 0) {
            return Err(unusable(path, format!("it has no device {device}, only device 0")));
        }
        let recording = Recording::read_json_lines(file, Limits::default())
            .map_err(|error| unusable(path, error.to_string()))?;
        return Ok(Recorded { device: 0, recording, snapshot: None });
    }
    let snapshot = read_snapshot(file, Limits::default())
        .map_err(|error| unusable(path, error.to_string()))?;
    let device = device.unwrap_or_else(|| Replay::busiest_device(&snapshot));
    let recording = Recording::from_snapshot(&snapshot, device)
        .map_err(|error| unusable(path, error.to_string()))?;
    Ok(Recorded { device, recording, snapshot: Some(snapshot) })
}

/// Writes beside `path` and renames: as a page for a browser if it ends in `html`, for PyTorch's
/// tools if in `pickle`, else as lines of JSON that lose nothing.
pub(super) fn write(path: &Path, recording: &Recording) -> Result<()> {
    let failed = |source: io::Error| TrainError::File { path: path.to_owned(), source };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let beside = tempfile::NamedTempFile::new_in(folder.unwrap_or(Path::new(".")));
    let mut beside = beside.map_err(failed)?;
    let mut file = BufWriter::new(beside.as_file_mut());
    let written = match path.extension().and_then(|extension| extension.to_str()) {
        Some("html") => recording.write_timeline(&mut file),
        Some("pickle" | "pkl") => match recording.write_pickle(&mut file) {
            Err(ExportError::Io(error)) => Err(error),
            Err(error) => return Err(unusable(path, error.to_string())),
            Ok(()) => Ok(()),
        },
        _ => recording.write_json_lines(&mut file),
    };
    written.and_then(|()| file.flush()).map_err(failed)?;
    drop(file);
    beside.persist(path).map_err(|error| failed(error.error))?;
    Ok(())
}

pub(super) fn unusable(path: &Path, problem: String) -> TrainError {
    TrainError::Setting { place: path.display().to_string(), problem }
}
