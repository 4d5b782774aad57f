//! Untrusted bytes as a Parquet file of numbers and of images: refused, or samples.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lowtide_data::{ImageSource, Parquet, ParquetImages, Pipeline, Step};
use lowtide_data_fuzz::{file, read_some, reads_all};

const SEEDS: &[&[u8]] = &[
    include_bytes!("../seeds/parquet/numbers.parquet"),
    include_bytes!("../seeds/parquet/images.parquet"),
];

/// Number of samples that are read. The crate catches panics of the decoder, so only an uncaught
/// panic ends the fuzzing.
fn check(bytes: &[u8]) -> usize {
    let path = file("table.parquet", bytes);
    let Ok(columns) = Parquet::columns(&path) else { return 0 };
    let columns = columns.iter().take(4);
    let rows = |column: &String| Parquet::open(&path, &[column]).map_or(0, read_some);
    let count: usize = columns.map(rows).sum();
    let small = Pipeline::new(vec![Step::Resize([4, 4])]).expect("in range");
    let images = ParquetImages::open(&path, "image.bytes", "label");
    count + images.map_or(0, |images| read_some(images.through(small).expect("in range")))
}

fuzz_target!(init: {
    std::panic::set_hook(Box::new(|_| ()));
    reads_all(check, SEEDS);
}, |bytes: &[u8]| {
    check(bytes);
});
