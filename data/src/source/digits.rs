//! The handwritten digits that are part of the crate.

use crate::dataset::{Dataset, SampleSlot};
use crate::element::Field;
use crate::error::{DataError, SampleError};
use crate::sampler::Shuffled;
use crate::source::images::Images;
use crate::source::memory::InMemory;
use crate::subset::Subset;
use flate2::read::GzDecoder;
use std::io::{self, Read};
use std::sync::Arc;

const FILE: &[u8] = include_bytes!("../../assets/digits.csv.gz");
const PIXELS: usize = 64;
const PIXEL_MAX: u8 = 16;
const DIGIT_MAX: u8 = 9;
/// Number of training images: four fifths, rounded down, as scikit-learn's `train_test_split`
/// rounds for a test set of one fifth.
const TRAIN_LEN: usize = 1437;
/// Seed of the split, the year of the data set. The user's seed has no effect on the split, so
/// every run is tested on the same 360 images.
const SPLIT_SEED: u64 = 1998;

/// A data set of 1797 handwritten digits with 8x8 pixels, embedded in the crate: 57 KB compressed,
/// 0.5 MB loaded.
///
/// The fields are `images`, f32 `[1, 8, 8]` from 0 to 1, and `labels`, i64 `[]` from 0 to 9.
///
/// Source: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine
/// Learning Repository, 1998, <https://doi.org/10.24432/C50P49>, CC BY 4.0, in the copy of
/// scikit-learn.
#[derive(Debug, Clone)]
pub struct Digits {
    samples: Arc<InMemory>,
}

impl Digits {
    /// Loads the digits.
    ///
    /// # Errors
    /// [`DataError::Io`] if the embedded file is damaged.
    pub fn load() -> Result<Self, DataError> {
        let Decoded { pixels, labels } = decode_embedded()?;
        let images: Vec<f32> =
            pixels.iter().map(|&pixel| f32::from(pixel) / f32::from(PIXEL_MAX)).collect();
        let samples = InMemory::new(labels.len()).with("images", &[1, 8, 8], images)?.with(
            "labels",
            &[],
            labels,
        )?;
        Ok(Self { samples: Arc::new(samples) })
    }

    /// The fixed split into 1437 training images and 360 test images.
    ///
    /// The training images are the first 1437 in the order of [`Shuffled`] for seed 1998 and epoch
    /// 0. The split does not depend on the seed of a run. The two parts contain digits of the same
    /// writers.
    #[must_use]
    pub fn split(&self) -> (Subset<Self>, Subset<Self>) {
        let mut order: Vec<usize> = (0..self.len()).collect();
        Shuffled.arrange(SPLIT_SEED, 0, &mut order);
        let (train, test) = order.split_at(TRAIN_LEN);
        (subset(self, train), subset(self, test))
    }

    /// The training and test images as [`Images`], which can be resized and can label pixels.
    ///
    /// # Errors
    /// [`DataError::Io`] if the embedded file is damaged.
    pub fn images() -> Result<(Subset<Images>, Subset<Images>), DataError> {
        let (train, test) = Self::load()?.split();
        let Decoded { pixels, labels } = decode_embedded()?;
        let images = Images::new(pixels, [1, 8, 8], PIXEL_MAX, labels)?;
        Ok((subset(&images, train.indices()), subset(&images, test.indices())))
    }
}

fn subset<D: Dataset + Clone>(dataset: &D, indices: &[usize]) -> Subset<D> {
    Subset::new(dataset.clone(), indices).expect("the order has only indices of the dataset")
}

impl Dataset for Digits {
    fn len(&self) -> usize {
        self.samples.len()
    }

    fn fields(&self) -> &[Field] {
        self.samples.fields()
    }

    fn write(&self, index: usize, slot: &mut SampleSlot<'_>) -> Result<(), SampleError> {
        self.samples.write(index, slot)
    }

    fn visit_memory(&self, visit: &mut dyn FnMut(*const u8, usize)) {
        self.samples.visit_memory(visit);
    }
}

/// The contents of the embedded file.
struct Decoded {
    /// The pixels of all images, from 0 to `PIXEL_MAX`.
    pixels: Vec<u8>,
    labels: Vec<i64>,
}

fn decode_embedded() -> Result<Decoded, DataError> {
    decode(FILE).map_err(|source| DataError::Io { what: "decoding the embedded digits", source })
}

fn decode(compressed: &[u8]) -> io::Result<Decoded> {
    let mut text = String::new();
    GzDecoder::new(compressed).read_to_string(&mut text)?;
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    for (line_index, line) in text.lines().enumerate() {
        let values = decode_line(line).ok_or_else(|| damaged(line_index))?;
        pixels.extend_from_slice(&values[..PIXELS]);
        labels.push(i64::from(values[PIXELS]));
    }
    Ok(Decoded { pixels, labels })
}

fn decode_line(line: &str) -> Option<[u8; PIXELS + 1]> {
    let mut values = [0; PIXELS + 1];
    let mut columns = line.split(',');
    for value in &mut values {
        *value = columns.next()?.parse().ok()?;
    }
    let (pixels, digit) = (&values[..PIXELS], values[PIXELS]);
    let in_range = pixels.iter().all(|&pixel| pixel <= PIXEL_MAX) && digit <= DIGIT_MAX;
    (columns.next().is_none() && in_range).then_some(values)
}

fn damaged(line_index: usize) -> io::Error {
    let message = format!("line {} is not 64 pixels and a digit", line_index + 1);
    io::Error::new(io::ErrorKind::InvalidData, message)
}

#[cfg(test)]
mod tests {
    use super::{FILE, decode, decode_line};

    #[test]
    fn line_with_too_few_too_many_or_too_large_numbers_is_refused() {
        let line = |numbers: &[&str]| numbers.join(",");
        let mut numbers = ["16"; 65];
        numbers[64] = "9";
        assert!(decode_line(&line(&numbers)).is_some());
        assert!(decode_line(&line(&numbers[..64])).is_none());
        assert!(decode_line(&(line(&numbers) + ",0")).is_none());
        assert!(decode_line(&line(&["16"; 65])).is_none());
        numbers[0] = "17";
        assert!(decode_line(&line(&numbers)).is_none());
        numbers[0] = "x";
        assert!(decode_line(&line(&numbers)).is_none());
    }

    #[test]
    fn truncated_file_is_an_error() {
        assert!(decode(&FILE[..FILE.len() / 2]).is_err());
        assert!(decode(b"not gzip").is_err());
    }
}
