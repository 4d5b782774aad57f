//! Files that are written beside their path, and moved there when they are complete.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use super::input::is_open;

/// A file that appears at its path with [`NewFile::publish`]. Until then an earlier file stays. If
/// dropped before, the file leaves nothing.
///
/// A link at the path stays, and the file that it leads to is replaced. A device or a pipe is
/// written in place, because a file in its place would be no device.
///
/// The file has the permissions of any other new file of the user.
#[derive(Debug)]
pub struct NewFile {
    file: File,
    /// The temporary path, and the path to move the file to; `None` for a file that is written in
    /// place, or that was moved.
    paths: Option<[PathBuf; 2]>,
}

impl NewFile {
    /// An empty file, to be written to. Opening a pipe waits for its reader.
    ///
    /// # Errors
    /// `IsADirectory` for a folder; otherwise the error of the system, if no file can be made in
    /// the folder of the path.
    pub fn create(path: &Path) -> io::Result<NewFile> {
        let target = target_of(path)?;
        if is_special(&target)? {
            return Ok(NewFile { file: open_in_place(&target)?, paths: None });
        }
        let (temporary, file) = create_beside(&target)?;
        Ok(NewFile { file, paths: Some([temporary, target]) })
    }

    /// Moves the file to its path, after its contents are on the disk.
    ///
    /// # Errors
    /// The error of the system; an earlier file at the path is untouched then.
    pub fn publish(mut self) -> io::Result<()> {
        if let Some([temporary, target]) = &self.paths {
            self.file.sync_all()?;
            fs::rename(temporary, target)?;
            self.paths = None;
        }
        Ok(())
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Seek for NewFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some([temporary, _]) = &self.paths {
            // A file that cannot be removed stays, which only takes room.
            drop(fs::remove_file(temporary));
        }
    }
}

/// Writes a whole file, see [`NewFile`].
///
/// # Errors
/// The error of the system; an earlier file at the path is untouched then.
pub fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut new = NewFile::create(path)?;
    new.write_all(bytes)?;
    new.publish()
}

/// True if a path leads to a device or a pipe, which is written in place.
pub fn is_in_place(path: &Path) -> bool {
    target_of(path).and_then(|target| is_special(&target)).unwrap_or(false)
}

/// The path that the links at `path` lead to. There may be nothing at the end.
fn target_of(path: &Path) -> io::Result<PathBuf> {
    /// As many as the system follows.
    const LINKS_MAX: usize = 40;
    let mut target = path.to_owned();
    for _ in 0..LINKS_MAX {
        // The link of an open file may name no path, such as that of a pipe.
        match fs::read_link(&target) {
            Ok(next) if !is_open(&target) => {
                target = target.parent().unwrap_or(Path::new("")).join(next);
            }
            _ => return Ok(target),
        }
    }
    Err(io::Error::new(ErrorKind::InvalidInput, format!("more than {LINKS_MAX} links")))
}

/// True for a device, a pipe, or an open file.
fn is_special(target: &Path) -> io::Result<bool> {
    if is_open(target) {
        return Ok(true);
    }
    match fs::metadata(target) {
        Ok(metadata) if metadata.is_dir() => Err(ErrorKind::IsADirectory.into()),
        Ok(metadata) => Ok(!metadata.is_file()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Opens a device, a pipe, or an open file, which keeps its earlier contents.
fn open_in_place(target: &Path) -> io::Result<File> {
    match standard(target) {
        Some(standard) => standard,
        None => File::options().write(true).append(is_open(target)).open(target),
    }
}

/// Standard output or standard error, if `target` names one of them: opened by its name, it would
/// be written from its beginning.
#[cfg(unix)]
fn standard(target: &Path) -> Option<io::Result<File>> {
    use std::os::fd::AsFd;
    let of_process = match target.to_str()? {
        "/dev/stdout" => io::stdout().as_fd().try_clone_to_owned(),
        "/dev/stderr" => io::stderr().as_fd().try_clone_to_owned(),
        _ => return None,
    };
    Some(of_process.map(File::from))
}

/// Other systems have no such names.
#[cfg(not(unix))]
fn standard(_: &Path) -> Option<io::Result<File>> {
    None
}

/// A new file in the folder of `target`.
fn create_beside(target: &Path) -> io::Result<(PathBuf, File)> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    loop {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let temporary = target.with_file_name(format!(".lowtide-{}-{number}", process::id()));
        match File::options().write(true).create_new(true).open(&temporary) {
            // A killed process of the same number has left it.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            file => return Ok((temporary, file?)),
        }
    }
}
