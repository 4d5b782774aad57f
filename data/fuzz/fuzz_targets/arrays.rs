//! Bytes of a stranger as an array of NumPy and as an archive of two: refused, or samples.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lowtide_data::Npy;
use lowtide_data_fuzz::{file, read_some};

fuzz_target!(|bytes: &[u8]| {
    let path = file("array.npy", bytes);
    if let Ok(arrays) = Npy::open("x", &path) {
        read_some(arrays);
    }
    if let Ok(arrays) = Npy::archive(&path, &["x", "y"]) {
        read_some(arrays);
    }
});
