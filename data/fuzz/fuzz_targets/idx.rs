//! Untrusted bytes as images and labels in MNIST's format, compressed or not: refused, or samples.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lowtide_data::{Cifar, Dataset, Images};
use lowtide_data_fuzz::{file, folder, read_some, reads_all};

const SEEDS: &[&[u8]] = &[include_bytes!("../seeds/idx/two")];

/// Number of samples that are read.
fn check(bytes: &[u8]) -> usize {
    // The first byte determines the start of the labels.
    let Some((&len, rest)) = bytes.split_first() else { return 0 };
    let (images, labels) = rest.split_at(rest.len().min(usize::from(len)));
    let mut count = 0;
    if let Ok(images) = Images::idx(&file("images", images), &file("labels", labels)) {
        assert!(images.is_empty() || images.shape().iter().product::<usize>() > 0);
        count += read_some(images);
    }
    file("train.bin", bytes);
    file("test.bin", bytes);
    count + Cifar::hundred(folder()).map_or(0, |(train, _)| read_some(train))
}

fuzz_target!(init: reads_all(check, SEEDS), |bytes: &[u8]| {
    check(bytes);
});
