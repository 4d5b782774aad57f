//! The binary files of CIFAR-10 and CIFAR-100.

use crate::error::DataError;
use crate::source::images::Images;
use lowtide_allocator::files::open_input;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

const PIXELS: usize = 3 * 32 * 32;
/// Number of records of the largest published file. A file with more records is no CIFAR file.
const RECORDS_MAX: usize = 50_000;

/// Reads the binary version of the data sets of A. Krizhevsky, "Learning Multiple Layers of
/// Features from Tiny Images", 2009. A file has no header. A record is one label (CIFAR-100: a
/// coarse and a fine label) and 3072 pixels: red, green and blue planes of 32x32.
#[derive(Debug, Clone, Copy)]
pub struct Cifar;

impl Cifar {
    /// CIFAR-10: training images from `data_batch_1.bin` to `data_batch_5.bin` in `folder`, and
    /// test images from `test_batch.bin`.
    ///
    /// # Errors
    /// [`DataError::File`] for a file that cannot be read, ends within a record, or has a label of
    /// 10 or more.
    pub fn ten(folder: impl AsRef<Path>) -> Result<(Images, Images), DataError> {
        let train: Vec<String> = (1..=5).map(|part| format!("data_batch_{part}.bin")).collect();
        let train: Vec<&str> = train.iter().map(String::as_str).collect();
        let read = |names: &[&str]| read_all(folder.as_ref(), names, 1, 10);
        Ok((read(&train)?, read(&["test_batch.bin"])?))
    }

    /// CIFAR-100 with its fine labels: training images from `train.bin` in `folder`, and test
    /// images from `test.bin`.
    ///
    /// # Errors
    /// As for [`Cifar::ten`], with 100 classes.
    pub fn hundred(folder: impl AsRef<Path>) -> Result<(Images, Images), DataError> {
        let read = |name| read_all(folder.as_ref(), &[name], 2, 100);
        Ok((read("train.bin")?, read("test.bin")?))
    }
}

/// Reads the records of files. The last of the `label_count` labels of a record is used.
fn read_all(
    folder: &Path,
    names: &[&str],
    label_count: usize,
    classes: usize,
) -> Result<Images, DataError> {
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    for name in names {
        let path = folder.join(name);
        let file = |source| DataError::File { path: path.clone(), source };
        let wrong = |text: String| file(io::Error::new(ErrorKind::InvalidData, text));
        let record_len = label_count + PIXELS;
        let mut bytes = Vec::new();
        let limit = (RECORDS_MAX * record_len) as u64 + 1;
        open_input(&path)
            .and_then(|file| file.take(limit).read_to_end(&mut bytes))
            .map_err(file)?;
        if bytes.is_empty() || bytes.len() as u64 == limit || bytes.len() % record_len != 0 {
            return Err(wrong(format!(
                "the file does not have 1 to {RECORDS_MAX} records of {record_len} bytes"
            )));
        }
        pixels.reserve(bytes.len());
        for (record_index, record) in bytes.chunks_exact(record_len).enumerate() {
            let label = record[label_count - 1];
            if usize::from(label) >= classes {
                let text = format!("record {record_index} has the label {label} of {classes}");
                return Err(wrong(text));
            }
            labels.push(i64::from(label));
            pixels.extend_from_slice(&record[label_count..]);
        }
    }
    Ok(Images::new(pixels, [3, 32, 32], u8::MAX, labels)?.with_classes(classes))
}
