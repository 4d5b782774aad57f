//! Bytes of a stranger as an image and as a mask: refused, or pixels.

#![no_main]

use std::fs;

use libfuzzer_sys::fuzz_target;
use lowtide_data::{ImageFolder, ImageSource, Pipeline, SegmentationFolder, Step};
use lowtide_data_fuzz::{file, folder, read_some};

fuzz_target!(|bytes: &[u8]| {
    fs::create_dir_all(folder().join("images/class")).expect("room");
    fs::create_dir_all(folder().join("masks")).expect("room");
    let small = || Pipeline::new(vec![Step::Resize([4, 4])]).expect("in range");
    for name in ["a.png", "a.jpg"] {
        let path = file(&format!("images/class/{name}"), bytes);
        let images = ImageFolder::open(folder().join("images")).expect("one class");
        read_some(images.upright().through(small()).expect("in range"));
        fs::remove_file(path).expect("there");
    }
    let image = file("images/a.png", include_bytes!("../white.png"));
    file("masks/a.png", bytes);
    let masks = SegmentationFolder::open(folder().join("images"), folder().join("masks"), 3);
    read_some(masks.expect("a pair").through(small()).expect("in range"));
    fs::remove_file(image).expect("there");
});
