//! Text of a stranger as a table: refused with a line, or every record is there.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lowtide_data::{Csv, CsvOptions, CsvTarget, Dataset};
use lowtide_data_fuzz::{file, read_some};

fuzz_target!(|bytes: &[u8]| {
    let path = file("table.csv", bytes);
    for target in [CsvTarget::Class("t".to_owned()), CsvTarget::Number("t".to_owned())] {
        let options = CsvOptions { target, ..Default::default() };
        let Ok(table) = Csv::open(&path, &options) else { continue };
        let lines = bytes.iter().filter(|&&byte| byte == b'\n' || byte == b'\r').count();
        assert!((1..=lines).contains(&table.len()));
        read_some(table);
    }
});
