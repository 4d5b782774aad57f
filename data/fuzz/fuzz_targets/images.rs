//! Untrusted bytes as an image and as a mask: refused, or pixels.

#![no_main]

use std::fs;

use libfuzzer_sys::fuzz_target;
use lowtide_data::{ImageFolder, ImageSource, Pipeline, SegmentationFolder, Step};
use lowtide_data_fuzz::{file, folder, read_some, reads_all};

const SEEDS: &[&[u8]] =
    &[include_bytes!("../seeds/images/white.png"), include_bytes!("../seeds/images/grey.jpg")];

/// Number of samples that are read.
fn check(bytes: &[u8]) -> usize {
    fs::create_dir_all(folder().join("images/class")).expect("room");
    fs::create_dir_all(folder().join("masks")).expect("room");
    let small = || Pipeline::new(vec![Step::Resize([4, 4])]).expect("in range");
    let mut count = 0;
    for name in ["a.png", "a.jpg"] {
        let path = file(&format!("images/class/{name}"), bytes);
        let images = ImageFolder::open(folder().join("images")).expect("one class");
        count += read_some(images.upright().through(small()).expect("in range"));
        fs::remove_file(path).expect("there");
    }
    let image = file("images/a.png", SEEDS[0]);
    file("masks/a.png", bytes);
    let masks = SegmentationFolder::open(folder().join("images"), folder().join("masks"), 3);
    count += read_some(masks.expect("a pair").through(small()).expect("in range"));
    fs::remove_file(image).expect("there");
    count
}

fuzz_target!(init: reads_all(check, SEEDS), |bytes: &[u8]| {
    check(bytes);
});
