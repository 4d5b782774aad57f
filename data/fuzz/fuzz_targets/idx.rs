//! Bytes of a stranger as images and labels of MNIST's format, packed or not: refused, or samples.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lowtide_data::{Cifar, Dataset, Images};
use lowtide_data_fuzz::{file, folder, read_some};

fuzz_target!(|bytes: &[u8]| {
    // The first byte says where the labels begin.
    let Some((&len, rest)) = bytes.split_first() else { return };
    let (images, labels) = rest.split_at(rest.len().min(usize::from(len)));
    if let Ok(images) = Images::idx(&file("images", images), &file("labels", labels)) {
        assert!(images.is_empty() || images.shape().iter().product::<usize>() > 0);
        read_some(images);
    }
    file("train.bin", bytes);
    file("test.bin", bytes);
    if let Ok((train, _)) = Cifar::hundred(folder()) {
        read_some(train);
    }
});
