//! Room on the disk that is set aside at the start of a run for files that must not be lost at its
//! end.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use lowtide_allocator::Bytes;
use lowtide_nn::NnError;

use crate::error::{Result, TrainError};

/// A folder of files that only hold room. Dropping the reserve removes the folder. Each later file
/// has a file of its size here, so that a limit on file sizes shows early.
#[derive(Debug)]
pub struct Reserve(PathBuf);

impl Reserve {
    /// Sets room aside in the folder `path`, which is created. A folder that a killed process left
    /// there is reused. `purpose` names the use of the room in an error.
    ///
    /// # Errors
    /// `File` if there is too little room; no room is taken then.
    pub fn take(path: &Path, sizes_bytes: &[usize], purpose: &str) -> Result<Reserve> {
        let reserve = Reserve(path.to_owned());
        let allocate_all = || {
            fs::create_dir_all(path)?;
            let mut files = sizes_bytes.iter().enumerate();
            files.try_for_each(|(index, &bytes)| allocate(&path.join(index.to_string()), bytes))
        };
        let taken = allocate_all().map_err(|error| {
            let needed = Bytes(sizes_bytes.iter().sum::<usize>() as u64);
            let text = format!("{needed} have to be free for {purpose}: {error}");
            let source = io::Error::new(error.kind(), text);
            TrainError::File { path: path.parent().unwrap_or(path).to_owned(), source }
        });
        taken.map(|()| reserve)
    }

    /// Calls `write`. If the disk is full, removes a reserve and calls `write` once more.
    ///
    /// # Errors
    /// Errors of the last `write`.
    pub fn spend<T>(
        reserve: &mut Option<Reserve>,
        mut write: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        match write() {
            Err(error) if error.lacks_room() && reserve.take().is_some() => write(),
            written => written,
        }
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        // The next run in the folder takes over or removes files that cannot be removed here.
        drop(fs::remove_dir_all(&self.0));
    }
}

/// Makes a file with `bytes` bytes allocated on the disk. A file system that copies on write, or
/// that compresses files, may still promise too much.
fn allocate(path: &Path, bytes: usize) -> io::Result<()> {
    let mut file = File::create(path)?;
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{FallocateFlags, fallocate};
        use rustix::io::Errno;
        match fallocate(&file, FallocateFlags::empty(), 0, bytes.max(1) as u64) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
            taken => return Ok(taken?),
        }
    }
    let zeros = vec![0; bytes.min(1 << 20)];
    let mut left = bytes;
    while left > 0 {
        let part = left.min(zeros.len());
        file.write_all(&zeros[..part])?;
        left -= part;
    }
    file.sync_all()
}

impl TrainError {
    /// True if a file could not be written because the disk or the user's quota is full, or because
    /// the file would exceed the largest allowed size.
    pub fn lacks_room(&self) -> bool {
        let (TrainError::File { source, .. } | TrainError::Nn(NnError::File { source, .. })) = self
        else {
            return false;
        };
        let kinds = [ErrorKind::StorageFull, ErrorKind::QuotaExceeded, ErrorKind::FileTooLarge];
        kinds.contains(&source.kind())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(kind: ErrorKind) -> TrainError {
        TrainError::File { path: "file".into(), source: kind.into() }
    }

    #[test]
    fn room_is_there_until_it_is_spent_and_only_for_want_of_room() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("reserve");
        // A process that is killed while it takes a reserve leaves such a folder.
        fs::create_dir(&path).expect("a folder");
        fs::write(path.join("0"), "x").expect("room");
        let take = || Reserve::take(&path, &[5000, 0, 3 << 20], "a test").expect("room");
        let mut reserve = Some(take());
        let sizes = ["0", "1", "2"].map(|name| fs::metadata(path.join(name)).expect("there").len());
        assert_eq!((sizes[0], sizes[2]), (5000, 3 << 20));

        let refused = Reserve::spend(&mut reserve, || Err::<(), _>(error(ErrorKind::NotFound)));
        assert!(refused.is_err() && reserve.is_some() && path.is_dir());
        let mut tries = 0;
        let mut write = || {
            tries += 1;
            if path.exists() { Err(error(ErrorKind::StorageFull)) } else { Ok(tries) }
        };
        assert_eq!(Reserve::spend(&mut reserve, &mut write).expect("it is spent"), 2);
        assert!(reserve.is_none());
        reserve = Some(take());
        drop(reserve);
        assert!(!path.exists());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn room_is_allocated_and_not_only_promised() {
        use std::os::unix::fs::MetadataExt;
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("reserve");
        let _reserve = Reserve::take(&path, &[1 << 20], "a test").expect("room");
        // Metadata counts blocks of 512 bytes on any file system.
        let blocks = fs::metadata(path.join("0")).expect("there").blocks();
        assert!(blocks * 512 >= 1 << 20, "{blocks} blocks");
        drop(fs::remove_dir_all(&path));
        let error = Reserve::take(&path, &[1 << 50], "a test").expect_err("a pebibyte");
        assert!(error.lacks_room(), "{error}");
        assert!(error.to_string().contains("have to be free for a test"), "{error}");
        assert!(!path.exists());
    }
}
