//! A training on disk: everything that its next step depends on.
//!
//! A checkpoint is a folder: `model.safetensors` and `optimizer.safetensors` under PyTorch's names,
//! and `checkpoint.json` with the numbers, and with the length and the XXH3 of the other two.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use lowtide_amp::{LossScaler, LossScalerState};
use lowtide_data::LoaderState;
use lowtide_nn::optim::Stateful;
use lowtide_nn::{Parameters, from_safetensors, to_safetensors};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Result, TrainError};
use crate::files::new_file::sync_path;
use crate::files::trained_state::Learned;
use crate::parallel::whole::empty_wholes;
use crate::run::trainer::Trainer;
use crate::task::Task;

const MODEL: &str = "model.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";
const HEADER: &str = "checkpoint.json";

/// In errors, the folder of files that are on no disk.
const IN_MEMORY: &str = "(in memory)";

/// What `checkpoint.json` says.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    /// XXH3 of `content` as it stands, in 16 hexadecimal digits.
    checksum: String,
    content: Content,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    format: String,
    version: u32,
    seed: u64,
    step: u64,
    epoch: u64,
    in_epoch: Option<LoaderState>,
    scaler: Option<LossScalerState>,
    skipped_in_a_row: u64,
    retried_steps: u64,
    /// What was trained, for programs that know recipes; it has no say in what is loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    recipe: Option<String>,
    files: BTreeMap<String, Fingerprint>,
}

/// A training at one moment, in memory: what a checkpoint has on disk. It does not change when the
/// training goes on, so that it can be written by another thread, or [restored](Trainer::restore).
#[derive(Clone)]
pub struct Snapshot {
    content: Content,
    files: [(&'static str, Vec<u8>); 2],
}

impl Snapshot {
    /// Steps committed or skipped.
    pub fn step(&self) -> u64 {
        self.content.step
    }

    /// The same with what was trained, as [`saved_recipe`] will find it.
    #[must_use]
    pub fn with_recipe(mut self, recipe: &str) -> Snapshot {
        self.content.recipe = Some(recipe.to_owned());
        self
    }

    /// Sizes of the files that it will be; the numbers in the header may have more digits later.
    pub(crate) fn sizes_bytes(&self) -> Vec<usize> {
        const DIGITS_BYTES: usize = 64;
        let header_bytes = self.header().len() + DIGITS_BYTES;
        self.files.iter().map(|(_, bytes)| bytes.len()).chain([header_bytes]).collect()
    }

    fn header(&self) -> Vec<u8> {
        let content = &self.content;
        json(&Header { checksum: checksum(&json(content)), content: content.clone() })
    }

    /// Writes a checkpoint: the folder `path`, which must not be there. It is made beside its
    /// place, on disk with all its files, and then renamed: a folder of that name is whole.
    ///
    /// # Errors
    /// `File` if something could not be written, or `path` is there already: nothing is left then.
    pub fn write(&self, path: &Path) -> Result<()> {
        let file = |source| TrainError::File { path: path.to_owned(), source };
        if path.symlink_metadata().is_ok() {
            return Err(file(ErrorKind::AlreadyExists.into()));
        }
        let beside = partial_folder(path).ok_or_else(|| file(ErrorKind::InvalidFilename.into()))?;
        // What a process that was killed has left there is of no use.
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

/// What a file has to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fingerprint {
    bytes: u64,
    xxh3: String,
}

impl Fingerprint {
    fn of(bytes: &[u8]) -> Fingerprint {
        Fingerprint { bytes: bytes.len() as u64, xxh3: checksum(bytes) }
    }
}

fn checksum(bytes: &[u8]) -> String {
    format!("{:016x}", xxh3_64(bytes))
}

impl<T: Task + Clone, O: Stateful + Clone> Trainer<T, O> {
    /// Writes a checkpoint, [`Trainer::snapshot`] and [`Snapshot::write`].
    ///
    /// # Errors
    /// Those of the two.
    pub fn save(&mut self, path: &Path) -> Result<()> {
        self.snapshot()?.write(path)
    }

    /// The training as it is now, copied into memory of the process.
    ///
    /// # Errors
    /// `Torn` after a step that was cut off; what the device says of a copy.
    pub fn snapshot(&mut self) -> Result<Snapshot> {
        self.check_whole()?;
        let (state, wholes) = self.whole_state()?;
        let mut learned = Learned::of(&mut self.task).with_wholes(wholes);
        let model = to_safetensors(&mut learned)?;
        let optimizer = state.to_safetensors(&mut learned)?;
        let files = [(MODEL, model), (OPTIMIZER, optimizer)];
        let fingerprint =
            |(name, bytes): &(&str, Vec<u8>)| ((*name).to_owned(), Fingerprint::of(bytes));
        let content = Content {
            format: "lowtide-checkpoint".to_owned(),
            version: 1,
            seed: self.options.seed,
            step: self.step,
            epoch: self.epoch,
            in_epoch: self.in_epoch,
            scaler: self.scaler.state(),
            skipped_in_a_row: self.skipped_in_a_row,
            retried_steps: self.retried_steps,
            recipe: None,
            files: files.iter().map(fingerprint).collect(),
        };
        Ok(Snapshot { content, files })
    }

    /// Bytes that a snapshot takes when the optimizer has its state: the tensors, and room for
    /// their names.
    pub(crate) fn snapshot_bytes(&mut self) -> usize {
        let mut learned = Learned::in_size(&mut self.task);
        let [tensor_bytes, name_bytes] = learned.bytes();
        tensor_bytes + name_bytes + self.optimizer.memory(&mut learned).state_bytes
    }

    /// Bytes of the process that a training takes while it is saved or loaded: a snapshot, and the
    /// largest tensor twice while that is copied.
    pub fn copied_bytes(&mut self) -> usize {
        let mut largest_bytes = 0;
        Learned::in_size(&mut self.task).visit_tensors(&mut |_, tensor| {
            largest_bytes = largest_bytes.max(tensor.size_bytes());
        });
        self.snapshot_bytes() + 2 * largest_bytes
    }

    /// Goes back, or on, to a snapshot: model, optimizer, loss scaler, counters and the place in
    /// the data become those of then, and the next step is the one that followed. A trainer that
    /// [is torn](Trainer::is_torn) is whole again. The model and the options are those that this
    /// trainer was made with; micro-batches, budget and threads may be others.
    ///
    /// # Errors
    /// `Checkpoint` if it is of another training; what the model and the optimizer say of a state
    /// that does not fit; `OutOfMemory`. The trainer is as before then.
    pub fn restore(&mut self, snapshot: &Snapshot) -> Result<()> {
        let file = |name: &str| {
            let (_, bytes) = snapshot.files.iter().find(|(file, _)| *file == name).expect("of two");
            Ok(Cow::Borrowed(bytes.as_slice()))
        };
        self.go_to(&snapshot.content, Path::new(IN_MEMORY), file)
    }

    /// [`Trainer::restore`] from a checkpoint.
    ///
    /// # Errors
    /// Those of [`Trainer::restore`]; `Checkpoint` with the file if anything is damaged; `File`.
    pub fn load(&mut self, path: &Path) -> Result<()> {
        let content = read_header(&path.join(HEADER))?;
        self.go_to(&content, path, |name| {
            let file = path.join(name);
            let bytes = read(&file)?;
            match content.files.get(name) == Some(&Fingerprint::of(&bytes)) {
                true => Ok(Cow::Owned(bytes)),
                false => Err(damaged(&file, "it is not the file that was saved")),
            }
        })
    }

    /// Takes over a header and the bytes of the files beside it; errors name files in `folder`.
    fn go_to<'a>(
        &mut self,
        content: &Content,
        folder: &Path,
        file: impl Fn(&'static str) -> Result<Cow<'a, [u8]>>,
    ) -> Result<()> {
        let header = folder.join(HEADER);
        if content.seed != self.options.seed {
            let (saved, here) = (content.seed, self.options.seed);
            return Err(damaged(
                &header,
                &format!("its seed is {saved}, that of the options {here}"),
            ));
        }
        if content.scaler.is_some() != self.scaler.is_enabled() {
            return Err(damaged(&header, "one of it and the options scales losses"));
        }
        let scaler = match content.scaler.map(LossScaler::from_state) {
            Some(scaler) => scaler.map_err(|error| damaged(&header, &error.to_string()))?,
            None => LossScaler::disabled(),
        };
        // Both before anything changes: a damaged one leaves nothing to be put back.
        let (state, model) = (file(OPTIMIZER)?, file(MODEL)?);
        self.divide()?;
        if self.is_to_be_cut() {
            let problem = "the model is cut into stages only after this: plan, or cut, first";
            return Err(damaged(&header, problem));
        }
        let division = self.division.get().state();
        let wholes = empty_wholes(&mut Learned::of(&mut self.task))?;
        let (optimizer, place) = (&mut self.optimizer, folder.join(OPTIMIZER));
        let learned = &mut Learned::of(&mut self.task);
        let before = division.state(optimizer, learned)?;
        division.load_state(optimizer, learned, &state, &place)?;
        let learned = &mut Learned::of(&mut self.task).with_wholes(wholes.clone());
        let loaded = from_safetensors(learned, &model, &folder.join(MODEL));
        let learned = &mut Learned::of(&mut self.task);
        if let Err(error) = loaded {
            division.set_state(optimizer, learned, before)?;
            return Err(error.into());
        }
        division.take(learned, &wholes)?;
        drop(division);
        self.scaler = scaler;
        self.step = content.step;
        (self.epoch, self.in_epoch) = place_of(content);
        (self.skipped_in_a_row, self.retried_steps) =
            (content.skipped_in_a_row, content.retried_steps);
        self.torn = None;
        // The optimizer's state may be there now where the plan began without one.
        self.plan = None;
        Ok(())
    }
}

/// The recipe that a checkpoint was saved with, if it was, and the steps done.
///
/// # Errors
/// `Checkpoint` or `File` for a header that is damaged or not there.
pub fn saved_recipe(checkpoint: &Path) -> Result<(Option<String>, u64)> {
    let content = read_header(&checkpoint.join(HEADER))?;
    Ok((content.recipe, content.step))
}

/// Epochs finished, and the place in the next one. Early versions took the end of an epoch for a
/// place in it.
fn place_of(content: &Content) -> (u64, Option<LoaderState>) {
    match content.in_epoch {
        Some(state) if state.batch >= state.sample_count.div_ceil(state.batch_size.max(1)) => {
            (content.epoch + 1, None)
        }
        in_epoch => (content.epoch, in_epoch),
    }
}

/// The folder that one at `path` is made in.
pub fn partial_folder(path: &Path) -> Option<PathBuf> {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name()?);
    name.push(".partial");
    Some(path.with_file_name(name))
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Removes a folder, if there is one.
pub fn remove_folder(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|source| TrainError::File { path: path.to_owned(), source })
}

fn read_header(path: &Path) -> Result<Content> {
    let bytes = read(path)?;
    let header: Header =
        serde_json::from_slice(&bytes).map_err(|error| damaged(path, &error.to_string()))?;
    // Written again it has the same bytes, unless one of them has changed.
    let is_whole = header.checksum == checksum(&json(&header.content)) && json(&header) == bytes;
    if !is_whole {
        return Err(damaged(path, "its checksum does not agree"));
    }
    let Content { format, version, files, .. } = &header.content;
    if format != "lowtide-checkpoint" || *version != 1 {
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
