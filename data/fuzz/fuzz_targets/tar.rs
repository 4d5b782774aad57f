//! Bytes of a stranger as a tar archive: refused, or samples.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lowtide_data::{ImageSource, Pipeline, Step, TarShards};
use lowtide_data_fuzz::{file, read_some};

fuzz_target!(|bytes: &[u8]| {
    let path = file("shard.tar", bytes);
    let small = Pipeline::new(vec![Step::Resize([4, 4])]).expect("in range");
    if let Ok(shards) = TarShards::open([&path]) {
        read_some(shards.through(small).expect("in range"));
    }
});
