//! A lock that allows one run at a time in a folder.

use std::fs::{self, File, TryLockError};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use lowtide_trainer::{Result, TrainError};

/// A lock on the file `.lock` in a run's folder. The system releases the lock when the process
/// ends, for whatever reason. On a file system without locks it has no effect.
pub(crate) struct RunLock {
    path: PathBuf,
    file: File,
}

impl RunLock {
    /// Keeps every other `RunLock` out of `folder` until this one is dropped.
    ///
    /// # Errors
    /// `Setting` with the number of the process that has the lock, if another has it, and for a
    /// lock that is no file; `File`.
    pub(crate) fn take(folder: &Path) -> Result<RunLock> {
        RunLock::lock(folder, |file| match file.try_lock() {
            Err(TryLockError::WouldBlock) => Err(taken(folder, file)),
            Err(TryLockError::Error(error)) => Ok(Err(error)),
            Ok(()) => Ok(Ok(())),
        })
    }

    /// Waits until no other process has the lock, and takes it.
    ///
    /// # Errors
    /// `Setting` for a lock that is no file; `File`.
    pub(crate) fn wait(folder: &Path) -> Result<RunLock> {
        RunLock::lock(folder, |file| Ok(file.lock()))
    }

    fn lock(
        folder: &Path,
        attempt: impl Fn(&mut File) -> Result<std::io::Result<()>>,
    ) -> Result<RunLock> {
        let path = folder.join(".lock");
        let failed = |source| TrainError::File { path: path.clone(), source };
        if path.metadata().is_ok_and(|lock| !lock.is_file()) {
            let problem = "is not a regular file, and so no lock of a run: remove it".to_owned();
            return Err(TrainError::Setting { place: path.display().to_string(), problem });
        }
        loop {
            // The file is not truncated, because it contains the owner's process number.
            let mut options = File::options();
            options.create(true).truncate(false).read(true).write(true);
            let mut file = options.open(&path).map_err(failed)?;
            match attempt(&mut file)? {
                Err(error) if error.kind() != ErrorKind::Unsupported => return Err(failed(error)),
                _ => {}
            }
            // A run that ends removes its file. A process that had opened the file before now holds
            // a lock that no other process will find.
            if is_at(&file, &path) {
                // The number is for the message of a process that is kept out; the lock works
                // without it.
                drop(file.set_len(0).and_then(|()| write!(file, "{}", std::process::id())));
                return Ok(RunLock { path, file });
            }
        }
    }
}

impl Drop for RunLock {
    fn drop(&mut self) {
        // The file is removed before the lock is released. A file that stays is locked again by the
        // next run.
        drop(fs::remove_file(&self.path));
        drop(self.file.unlock());
    }
}

fn taken(folder: &Path, file: &mut File) -> TrainError {
    let mut process = String::new();
    let process = match file.read_to_string(&mut process) {
        Ok(_) if !process.is_empty() => format!("process {process}"),
        _ => "another process".to_owned(),
    };
    TrainError::Setting {
        place: folder.display().to_string(),
        problem: format!("{process} is training into this folder; give another one with --out"),
    }
}

#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    match (file.metadata(), fs::metadata(path)) {
        (Ok(file), Ok(path)) => identity(file) == identity(path),
        _ => false,
    }
}

/// Open files cannot be removed on this system, so the file is the same.
#[cfg(not(unix))]
fn is_at(_file: &File, _path: &Path) -> bool {
    true
}
