//! A saved training: everything that its next step depends on.
//!
//! A checkpoint is a folder of three files: `model.safetensors` and `optimizer.safetensors`, with
//! PyTorch's names for tensors, and `checkpoint.json` with the numbers of the training and with the
//! length and the XXH3 of the other two files.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use lowtide_allocator::files::open_input;
use lowtide_amp::LossScalerState;
use lowtide_data::LoaderState;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Result, TrainError};
use crate::files::fingerprint::{Fingerprint, checksum};
use crate::files::new_file::sync_path;

pub(crate) const MODEL: &str = "model.safetensors";
pub(crate) const OPTIMIZER: &str = "optimizer.safetensors";
const HEADER: &str = "checkpoint.json";

/// The files of a checkpoint. The header comes last: without it there is no checkpoint.
pub(crate) const FILES: [&str; 3] = [MODEL, OPTIMIZER, HEADER];

/// The folder that errors name for files in memory.
const IN_MEMORY: &str = "(in memory)";

const FORMAT: &str = "lowtide-checkpoint";
const VERSION: u32 = 1;

/// The file `checkpoint.json`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    /// XXH3 of `content` in its JSON form, in 16 hexadecimal digits.
    checksum: String,
    content: Content,
}

/// The numbers of a training at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Content {
    pub(crate) format: String,
    pub(crate) version: u32,
    pub(crate) seed: u64,
    pub(crate) step: u64,
    pub(crate) epoch: u64,
    pub(crate) in_epoch: Option<LoaderState>,
    pub(crate) scaler: Option<LossScalerState>,
    pub(crate) skipped_in_a_row: u64,
    pub(crate) retried_steps: u64,
    /// The recipe of the training, for programs that know recipes. Loading ignores the recipe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) recipe: Option<String>,
    /// Facts about the run, for programs that know them. Loading ignores the facts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) run: Option<Value>,
    pub(crate) files: BTreeMap<String, Fingerprint>,
}

impl Content {
    /// The numbers of a new training, without files.
    pub(crate) fn new(seed: u64) -> Content {
        Content {
            format: FORMAT.to_owned(),
            version: VERSION,
            seed,
            step: 0,
            epoch: 0,
            in_epoch: None,
            scaler: None,
            skipped_in_a_row: 0,
            retried_steps: 0,
            recipe: None,
            run: None,
            files: BTreeMap::new(),
        }
    }

    /// Number of finished epochs, and the place in the next one. Early versions stored the end of
    /// an epoch as a place in that epoch; it is read as the start of the next.
    pub(crate) fn place(&self) -> (u64, Option<LoaderState>) {
        match self.in_epoch {
            Some(state) if state.batch >= state.sample_count.div_ceil(state.batch_size.max(1)) => {
                (self.epoch + 1, None)
            }
            in_epoch => (self.epoch, in_epoch),
        }
    }
}

/// A training at one moment, in memory, with the contents of a checkpoint. The snapshot does not
/// change when the training goes on. Another thread can write it, and a trainer can
/// [restore](crate::Trainer::restore) it.
#[derive(Clone)]
pub struct Snapshot {
    content: Content,
    files: [(&'static str, Vec<u8>); 2],
}

impl Snapshot {
    /// A snapshot with these numbers and files.
    pub(crate) fn new(content: Content, model: Vec<u8>, optimizer: Vec<u8>) -> Snapshot {
        let files = [(MODEL, model), (OPTIMIZER, optimizer)];
        let fingerprint =
            |(name, bytes): &(&str, Vec<u8>)| ((*name).to_owned(), Fingerprint::of_bytes(bytes));
        let content = Content { files: files.iter().map(fingerprint).collect(), ..content };
        Snapshot { content, files }
    }

    /// Steps committed or skipped.
    pub fn step(&self) -> u64 {
        self.content.step
    }

    /// Adds notes of the program, which [`RunNotes::read`] returns.
    #[must_use]
    pub fn with_notes(mut self, notes: &RunNotes) -> Snapshot {
        (self.content.recipe, self.content.run) = (notes.recipe.clone(), notes.run.clone());
        self
    }

    /// Sizes of the files of the checkpoint. The header has room for longer numbers.
    pub(crate) fn sizes_bytes(&self) -> Vec<usize> {
        const DIGITS_BYTES: usize = 64;
        let header_bytes = self.header().len() + DIGITS_BYTES;
        self.files.iter().map(|(_, bytes)| bytes.len()).chain([header_bytes]).collect()
    }

    fn header(&self) -> Vec<u8> {
        let content = &self.content;
        json(&Header { checksum: checksum(&json(content)), content: content.clone() })
    }

    /// Writes a checkpoint: the folder `path`, which must not exist. The files are written to disk
    /// in a temporary folder beside `path`, which is then renamed: a folder with the final name is
    /// complete.
    ///
    /// # Errors
    /// `File` if a file cannot be written, or if `path` exists. No temporary folder is left.
    pub fn write(&self, path: &Path) -> Result<()> {
        let file = |source| TrainError::File { path: path.to_owned(), source };
        if path.symlink_metadata().is_ok() {
            return Err(file(ErrorKind::AlreadyExists.into()));
        }
        let beside = partial_folder(path).ok_or_else(|| file(ErrorKind::InvalidFilename.into()))?;
        // A temporary folder that a killed process left behind is useless.
        remove_folder(&beside).map_err(file)?;
        let written = self.write_files(&beside).map_err(file).and_then(|()| {
            fs::rename(&beside, path).map_err(file)?;
            sync_path(folder_of(path))
        });
        if written.is_err() {
            // The first error is the one to report.
            drop(remove_folder(&beside));
        }
        written
    }

    fn write_files(&self, folder: &Path) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        let header = self.header();
        let files = self.files.iter().map(|(name, bytes)| (*name, bytes.as_slice()));
        for (name, bytes) in files.chain([(HEADER, header.as_slice())]) {
            let mut file = File::create(folder.join(name))?;
            file.write_all(bytes)?;
            file.sync_all()?;
        }
        File::open(folder)?.sync_all()
    }
}

/// A saved training, in memory or on disk.
pub(crate) struct Saved<'a> {
    pub(crate) content: Cow<'a, Content>,
    /// The folder that errors name.
    folder: &'a Path,
    /// The snapshot, if it is in memory.
    snapshot: Option<&'a Snapshot>,
}

impl<'a> Saved<'a> {
    pub(crate) fn in_memory(snapshot: &'a Snapshot) -> Saved<'a> {
        let content = Cow::Borrowed(&snapshot.content);
        Saved { content, folder: Path::new(IN_MEMORY), snapshot: Some(snapshot) }
    }

    /// Reads the header of a checkpoint.
    ///
    /// # Errors
    /// `Checkpoint` or `File` for a header that is damaged or missing.
    pub(crate) fn on_disk(folder: &'a Path) -> Result<Saved<'a>> {
        let content = Cow::Owned(read_header(&folder.join(HEADER))?);
        Ok(Saved { content, folder, snapshot: None })
    }

    /// The path of a file for errors.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The bytes of a file.
    ///
    /// # Errors
    /// `Checkpoint` for a damaged file; `File`.
    pub(crate) fn file(&self, name: &str) -> Result<Cow<'a, [u8]>> {
        if let Some(snapshot) = self.snapshot {
            let (_, bytes) = snapshot.files.iter().find(|(file, _)| *file == name).expect("of two");
            return Ok(Cow::Borrowed(bytes.as_slice()));
        }
        let path = self.path(name);
        let bytes = read(&path)?;
        if self.content.files.get(name) == Some(&Fingerprint::of_bytes(&bytes)) {
            return Ok(Cow::Owned(bytes));
        }
        Err(damaged(&path, "it is not the file that was saved"))
    }

    /// The error for a checkpoint that belongs to another training.
    pub(crate) fn of_another(&self, problem: &str) -> TrainError {
        damaged(&self.path(HEADER), problem)
    }
}

/// Notes of a program about its run, in every checkpoint of the run. A training does not read them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunNotes {
    /// The recipe of the training.
    pub recipe: Option<String>,
    /// Other facts about the run, such as the conditions under which it goes on to the same bits.
    pub run: Option<Value>,
}

impl RunNotes {
    /// The notes in a checkpoint.
    ///
    /// # Errors
    /// `Checkpoint` or `File` for a header that is damaged or missing.
    pub fn read(checkpoint: &Path) -> Result<RunNotes> {
        let Content { recipe, run, .. } = read_header(&checkpoint.join(HEADER))?;
        Ok(RunNotes { recipe, run })
    }

    /// Largest number of bytes of the notes in a header. A recipe is a string with escapes there.
    pub(crate) fn size_bytes(&self) -> usize {
        let run_bytes = self.run.as_ref().map_or(0, |run| run.to_string().len());
        2 * self.recipe.as_ref().map_or(0, String::len) + run_bytes
    }
}

/// The temporary folder that is renamed to `path` once its files are written.
pub fn partial_folder(path: &Path) -> Option<PathBuf> {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name()?);
    name.push(".partial");
    Some(path.with_file_name(name))
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Removes a folder if it exists.
pub fn remove_folder(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let read = || {
        let mut file = open_input(path)?;
        // The room is exact, as plans of a process count on it.
        let mut bytes = Vec::with_capacity(usize::try_from(file.metadata()?.len()).unwrap_or(0));
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    read().map_err(|source| TrainError::File { path: path.to_owned(), source })
}

fn read_header(path: &Path) -> Result<Content> {
    let bytes = read(path)?;
    let header: Header =
        serde_json::from_slice(&bytes).map_err(|error| damaged(path, &error.to_string()))?;
    // Writing the parsed header again gives the same bytes, unless a byte was damaged.
    let is_whole = header.checksum == checksum(&json(&header.content)) && json(&header) == bytes;
    if !is_whole {
        return Err(damaged(path, "its checksum does not agree"));
    }
    let Content { format, version, files, .. } = &header.content;
    if format != FORMAT || *version != VERSION {
        return Err(damaged(path, &format!("{format} of version {version} is not known")));
    }
    if !files.keys().map(String::as_str).eq([MODEL, OPTIMIZER]) {
        return Err(damaged(path, "it does not name the files of a checkpoint"));
    }
    Ok(header.content)
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("plain values")
}

fn damaged(path: &Path, problem: &str) -> TrainError {
    TrainError::Checkpoint { path: path.to_owned(), problem: problem.to_owned() }
}
