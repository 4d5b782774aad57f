//! Untrusted bytes as a NumPy array and as an archive of two arrays: refused, or samples.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lowtide_data::Npy;
use lowtide_data_fuzz::{file, read_some, reads_all};

const SEEDS: &[&[u8]] =
    &[include_bytes!("../seeds/arrays/floats.npy"), include_bytes!("../seeds/arrays/pair.npz")];

/// Number of samples that are read.
fn check(bytes: &[u8]) -> usize {
    let path = file("array.npy", bytes);
    let one = Npy::open("x", &path).map_or(0, read_some);
    one + Npy::archive(&path, &["x", "y"]).map_or(0, read_some)
}

fuzz_target!(init: reads_all(check, SEEDS), |bytes: &[u8]| {
    check(bytes);
});
