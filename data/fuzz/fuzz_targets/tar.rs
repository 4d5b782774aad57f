//! Untrusted bytes as a tar archive: refused, or samples.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lowtide_data::{ImageSource, Pipeline, Step, TarShards};
use lowtide_data_fuzz::{file, read_some, reads_all};

const SEEDS: &[&[u8]] = &[include_bytes!("../seeds/tar/one.tar")];

/// Number of samples that are read.
fn check(bytes: &[u8]) -> usize {
    let path = file("shard.tar", bytes);
    let small = Pipeline::new(vec![Step::Resize([4, 4])]).expect("in range");
    let shards = TarShards::open([&path]);
    shards.map_or(0, |shards| read_some(shards.through(small).expect("in range")))
}

fuzz_target!(init: reads_all(check, SEEDS), |bytes: &[u8]| {
    check(bytes);
});
