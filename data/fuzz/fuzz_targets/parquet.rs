//! Bytes of a stranger as a Parquet file of numbers and of images: refused, or samples.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lowtide_data::{ImageSource, Parquet, ParquetImages, Pipeline, Step};
use lowtide_data_fuzz::{file, read_some};

// The decoder panics at some files, which is caught: only what escapes ends the fuzzing.
fuzz_target!(init: std::panic::set_hook(Box::new(|_| ())), |bytes: &[u8]| {
    let path = file("table.parquet", bytes);
    let Ok(columns) = Parquet::columns(&path) else { return };
    for column in columns.iter().take(4) {
        if let Ok(table) = Parquet::open(&path, &[column]) {
            read_some(table);
        }
    }
    let small = Pipeline::new(vec![Step::Resize([4, 4])]).expect("in range");
    if let Ok(images) = ParquetImages::open(&path, "image.bytes", "label") {
        read_some(images.through(small).expect("in range"));
    }
});
