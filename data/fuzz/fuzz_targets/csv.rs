//! Untrusted text as a table: refused with a line, or every record is a sample.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lowtide_data::{Csv, CsvOptions, CsvTarget, Dataset};
use lowtide_data_fuzz::{file, read_some, reads_all};

const SEEDS: &[&[u8]] = &[include_bytes!("../seeds/csv/table.csv")];

/// Number of samples that are read.
fn check(bytes: &[u8]) -> usize {
    let path = file("table.csv", bytes);
    let mut count = 0;
    for target in [CsvTarget::Class("t".to_owned()), CsvTarget::Number("t".to_owned())] {
        let options = CsvOptions { target, ..Default::default() };
        let Ok(table) = Csv::open(&path, &options) else { continue };
        let lines = bytes.iter().filter(|&&byte| byte == b'\n' || byte == b'\r').count();
        assert!((1..=lines).contains(&table.len()));
        count += read_some(table);
    }
    count
}

fuzz_target!(init: reads_all(check, SEEDS), |bytes: &[u8]| {
    check(bytes);
});
