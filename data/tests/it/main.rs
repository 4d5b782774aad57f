//! Laws of datasets, samplers and the loader.

mod batch;
mod compose;
mod digits;
mod documents;
mod draws;
mod faults;
mod folders;
mod hub;
mod inputs;
mod json_lines;
mod memory;
mod mix;
mod named;
mod order;
mod parquet;
mod props;
mod ragged;
mod resume;
mod ring;
mod samplers;
mod shutdown;
mod skip;
mod stream;
mod tables;
mod tar;
mod token_file;
mod tokenizer;
mod transforms;
mod workers;

use lowtide_data::{
    Batch, DataError, Dataset, Field, InMemory, Loader, LoaderOptions, SampleError, SampleSlot,
};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The numbers of workers with which every law about batches is checked.
const WORKERS: [usize; 4] = [0, 1, 2, 8];

fn options(batch_size: usize, workers: usize, seed: u64) -> LoaderOptions {
    LoaderOptions { batch_size, workers, seed, ..Default::default() }
}

/// A dataset of `len` samples with one field of each element type. All elements differ.
fn numbered(len: usize) -> InMemory {
    let count = |per_sample: usize| 0..len * per_sample;
    InMemory::new(len)
        .with("wide", &[3], count(3).map(|n| n as f64 + 0.25).collect())
        .and_then(|data| data.with("odd", &[5], count(5).map(|n| (n % 251) as u8).collect()))
        .and_then(|data| data.with("x", &[1, 2], count(2).map(|n| -(n as f32)).collect()))
        .and_then(|data| data.with("y", &[], count(1).map(|n| n as i64).collect()))
        .expect("each column has its length")
}

/// Everything that a consumer can read from a batch.
#[derive(Debug, PartialEq)]
struct Seen {
    index: usize,
    samples: Vec<usize>,
    fields: Vec<(String, Vec<usize>, Vec<u8>)>,
}

impl Seen {
    fn of(batch: &Batch) -> Self {
        let field = |field: lowtide_data::FieldView<'_>| {
            (field.name().to_owned(), field.shape(), field.bytes().to_vec())
        };
        Self {
            index: batch.index(),
            samples: batch.sample_indices().to_vec(),
            fields: batch.fields().map(field).collect(),
        }
    }
}

/// The batches that are still to come.
fn drain(epoch: impl Iterator<Item = Result<Batch, DataError>>) -> Vec<Seen> {
    epoch.map(|batch| Seen::of(&batch.expect("the dataset has no faults"))).collect()
}

fn samples_of(loader: &Loader, epoch: u64) -> Vec<usize> {
    drain(loader.epoch(epoch)).into_iter().flat_map(|seen| seen.samples).collect()
}

/// A dataset whose samples at `fault` fail in the given way. Other samples are their index.
struct Faulty {
    fields: Vec<Field>,
    len: usize,
    fault: usize,
    way: Way,
    /// Number of calls of `write` on all threads.
    writes: AtomicUsize,
}

#[derive(Clone, Copy, Debug)]
enum Way {
    Error,
    PanicText,
    PanicFormatted,
    PanicValue,
}

#[derive(Debug, PartialEq, thiserror::Error)]
#[error("sector is unreadable")]
struct Unreadable;

impl Faulty {
    fn new(len: usize, fault: usize, way: Way) -> Self {
        let fields = vec![Field::new("y", lowtide_data::ElementType::I64, &[])];
        Self { fields, len, fault, way, writes: AtomicUsize::new(0) }
    }
}

impl Dataset for Faulty {
    fn len(&self) -> usize {
        self.len
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn write(&self, index: usize, slot: &mut SampleSlot<'_>) -> Result<(), SampleError> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        slot.values::<i64>(0)[0] = index as i64;
        if index != self.fault {
            return Ok(());
        }
        match self.way {
            Way::Error => Err(Unreadable.into()),
            Way::PanicText => panic!("torn page"),
            Way::PanicFormatted => panic!("torn page {index}"),
            Way::PanicValue => std::panic::panic_any(Bomb),
        }
    }
}

/// A payload that panics again when it is dropped, unless the thread is already panicking.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("the payload of a panic was dropped");
        }
    }
}

/// A folder of one test, removed when the test ends.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new(test: &str) -> Self {
        let made = tempfile::Builder::new().prefix(&format!("lowtide-data-{test}-")).tempdir();
        Self(made.expect("the system has a folder for temporary files"))
    }

    fn root(&self) -> &Path {
        self.0.path()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }
}
