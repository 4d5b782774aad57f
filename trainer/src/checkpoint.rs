//! A training on disk: everything that its next step depends on.
//!
//! A checkpoint is a folder: `model.safetensors` and `optimizer.safetensors` under PyTorch's names,
//! and `checkpoint.json` with the numbers, and with the length and the XXH3 of the other two.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use lowtide_amp::{LossScaler, LossScalerState};
use lowtide_data::LoaderState;
use lowtide_nn::optim::{Stateful, load_state, save_state};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Result, TrainError};
use crate::new_file::sync;
use crate::run_dir::RunDir;
use crate::task::Task;
use crate::trainer::Trainer;

const MODEL: &str = "model.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";
const HEADER: &str = "checkpoint.json";

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
    files: BTreeMap<String, Fingerprint>,
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

impl<T: Task, O: Stateful + Clone> Trainer<T, O> {
    /// Writes a checkpoint: the folder `path`, which must not be there. It is made beside its
    /// place, on disk with all its files, and then renamed: a folder of that name is whole.
    ///
    /// # Errors
    /// `File` if something could not be written, or `path` is there already: nothing is left then.
    /// `Torn` after a step that was cut off.
    pub fn save(&mut self, path: &Path) -> Result<()> {
        self.check_whole()?;
        let file = |source| TrainError::File { path: path.to_owned(), source };
        if path.symlink_metadata().is_ok() {
            return Err(file(ErrorKind::AlreadyExists.into()));
        }
        let beside = beside(path).ok_or_else(|| file(ErrorKind::InvalidFilename.into()))?;
        // What a process that was killed has left there is of no use.
        remove(&beside).map_err(file)?;
        fs::create_dir_all(&beside).map_err(file)?;
        let written = self.write_checkpoint(&beside).and_then(|()| {
            fs::rename(&beside, path).map_err(file)?;
            sync(folder_of(path))
        });
        if written.is_err() {
            // The first error is the one to report.
            drop(remove(&beside));
        }
        written
    }

    fn write_checkpoint(&mut self, folder: &Path) -> Result<()> {
        let [model, optimizer] = [MODEL, OPTIMIZER].map(|name| folder.join(name));
        lowtide_nn::save(self.task.parameters(), &model)?;
        save_state(&self.optimizer, self.task.parameters(), &optimizer)?;
        let mut files = BTreeMap::new();
        for (name, path) in [(MODEL, model), (OPTIMIZER, optimizer)] {
            files.insert(name.to_owned(), Fingerprint::of(&read(&path)?));
        }
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
            files,
        };
        let header = Header { checksum: checksum(&json(&content)), content };
        let text = String::from_utf8(json(&header)).expect("JSON is UTF-8");
        RunDir::write(&folder.join(HEADER), &text)?;
        sync(folder)
    }

    /// Goes back, or on, to a checkpoint: model, optimizer, loss scaler, counters and the place in
    /// the data become those that were saved, and the next step is the one that followed. The model
    /// and the options are those that this trainer was made with; micro-batches, budget and threads
    /// may be others.
    ///
    /// # Errors
    /// `Checkpoint` with the file if anything is damaged or not of this training; `File`; what the
    /// model and the optimizer say of a file that does not fit; `OutOfMemory`. The trainer is as
    /// before then.
    pub fn load(&mut self, path: &Path) -> Result<()> {
        self.check_whole()?;
        let content = read_header(&path.join(HEADER))?;
        for (name, expected) in &content.files {
            let file = path.join(name);
            if Fingerprint::of(&read(&file)?) != *expected {
                return Err(damaged(&file, "it is not the file that was saved"));
            }
        }
        let header = path.join(HEADER);
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
        let before = self.optimizer.state(self.task.parameters())?;
        load_state(&mut self.optimizer, self.task.parameters(), &path.join(OPTIMIZER))?;
        if let Err(error) = lowtide_nn::load(self.task.parameters(), &path.join(MODEL)) {
            self.optimizer.set_state(self.task.parameters(), before)?;
            return Err(error.into());
        }
        self.scaler = scaler;
        (self.step, self.epoch, self.in_epoch) = (content.step, content.epoch, content.in_epoch);
        (self.skipped_in_a_row, self.retried_steps) =
            (content.skipped_in_a_row, content.retried_steps);
        // The optimizer's state may be there now where the plan began without one.
        self.plan = None;
        Ok(())
    }
}

/// The folder that a checkpoint is made in.
fn beside(path: &Path) -> Option<PathBuf> {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name()?);
    name.push(".partial");
    Some(path.with_file_name(name))
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn remove(folder: &Path) -> io::Result<()> {
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
