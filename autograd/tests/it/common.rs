use std::collections::BTreeSet;
use std::error::Error;
use std::path::{Path, PathBuf};

use lowtide_allocator::BLOCK_BYTES;
use lowtide_autograd::{Attempt, Gradients, LeafId, Pass, Var};
use lowtide_tensor::{CpuOptions, Device, RandomKey, Tensor};

pub(crate) type Outcome = Result<(), Box<dyn Error>>;

/// The number of f32 elements that fill a block exactly.
pub(crate) const BLOCK_LEN: usize = BLOCK_BYTES / 4;

pub(crate) fn cpu() -> Device {
    let options =
        CpuOptions { budget_bytes: Some(64 << 20), threads: Some(2), ..Default::default() };
    Device::cpu(options).expect("64 MiB of addresses")
}

/// Numbers from `[low, high)` that depend on `name` only.
pub(crate) fn values(name: &str, len: usize, low: f64, high: f64) -> Vec<f64> {
    let key = RandomKey::new(11).op(name);
    (0..len as u64).map(|i| low + (high - low) * f64::from(key.uniform(i))).collect()
}

/// A contiguous f32 tensor of numbers from `[-1, 1)` that depend on `name` only.
pub(crate) fn tensor<const N: usize>(device: &Device, name: &str, shape: [usize; N]) -> Tensor {
    let values = values(name, shape.iter().product(), -1.0, 1.0);
    let values: Vec<f32> = values.into_iter().map(|x| x as f32).collect();
    Tensor::from_slice(device, shape, &values).expect("memory for a small tensor")
}

/// A recording pass with its attempt.
pub(crate) fn recording() -> (Pass, Attempt) {
    let attempt = Attempt::new();
    (Pass::train(RandomKey::new(5), &attempt), attempt)
}

/// The identities of `inputs`, and the gradients of the number that `f` returns for them.
pub(crate) fn gradients_of(
    inputs: &[&Tensor],
    f: impl FnOnce(&Pass, Vec<Var>) -> lowtide_autograd::AutogradResult<Var>,
) -> lowtide_autograd::AutogradResult<(Vec<LeafId>, Gradients)> {
    let (pass, attempt) = recording();
    let leaves: Vec<LeafId> = inputs.iter().map(|_| LeafId::new()).collect();
    let vars = leaves.iter().zip(inputs).map(|(&leaf, input)| pass.leaf(leaf, input));
    let loss = f(&pass, vars.collect::<Result<_, _>>()?)?;
    pass.backward(loss)?;
    Ok((leaves, attempt.into_gradients()))
}

pub(crate) fn live_bytes(device: &Device) -> usize {
    device.allocator().statistics().allocated.current_bytes
}

pub(crate) fn bits(tensor: &Tensor) -> Vec<u32> {
    let values = tensor.to_vec::<f32>().expect("f32 on the CPU");
    values.into_iter().map(f32::to_bits).collect()
}

/// The sources in a folder and in those below it.
pub(crate) fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("the workspace's sources");
    let paths = entries.map(|entry| entry.expect("a folder's entry").path());
    let (folders, files): (Vec<_>, Vec<_>) = paths.partition(|path| path.is_dir());
    let inner = folders.iter().flat_map(|folder| rust_files(folder));
    let is_rust = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "rs");
    files.into_iter().filter(is_rust).chain(inner).collect()
}

/// Checks that a list has the names that are declared, and names those that differ.
#[track_caller]
pub(crate) fn check_same_names(listed: &BTreeSet<String>, declared: &BTreeSet<String>) {
    let missing: Vec<_> = declared.difference(listed).collect();
    let gone: Vec<_> = listed.difference(declared).collect();
    assert!(missing.is_empty() && gone.is_empty(), "not listed: {missing:?}, gone: {gone:?}");
}
