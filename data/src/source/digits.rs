//! The handwritten digits that ship with the crate.

use crate::dataset::{Dataset, SampleError, SampleSlot};
use crate::element::Field;
use crate::error::DataError;
use crate::sampler::Shuffled;
use crate::source::{Images, InMemory};
use crate::subset::Subset;
use flate2::read::GzDecoder;
use std::io::{self, Read};
use std::sync::Arc;

const FILE: &[u8] = include_bytes!("../../assets/digits.csv.gz");
const PIXELS: usize = 64;
const PIXEL_MAX: u8 = 16;
const DIGIT_MAX: u8 = 9;
/// Four fifths, rounded down, as scikit-learn's `train_test_split` has it for a fifth of test.
const TRAIN_LEN: usize = 1437;
/// The year of the data set. Not the user's seed: every run is tested on the same 360 images.
const SPLIT_SEED: u64 = 1998;

/// 1797 handwritten digits, 8x8 pixels, in the crate itself: 57 KB packed, 0.5 MB loaded.
///
/// Fields: `images`, f32 `[1, 8, 8]` from 0 to 1, and `labels`, i64 `[]` from 0 to 9.
///
/// From E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine
/// Learning Repository, 1998, <https://doi.org/10.24432/C50P49>, CC BY 4.0, in the copy of
/// scikit-learn.
#[derive(Debug, Clone)]
pub struct Digits {
    samples: Arc<InMemory>,
}

impl Digits {
    /// Unpacks the digits.
    ///
    /// # Errors
    /// [`DataError::Io`] if the embedded file is damaged.
    pub fn load() -> Result<Self, DataError> {
        let (images, labels) = decode(FILE)
            .map_err(|source| DataError::Io { what: "decoding the embedded digits", source })?;
        let samples = InMemory::new(labels.len()).with("images", &[1, 8, 8], images)?.with(
            "labels",
            &[],
            labels,
        )?;
        Ok(Self { samples: Arc::new(samples) })
    }

    /// The fixed split into 1437 images to train on and 360 to test on.
    ///
    /// The first 1437 of [`Shuffled`]'s order for seed 1998 and epoch 0, and the rest: the same in
    /// every run, whatever seed the run has. Writers occur on both sides.
    #[must_use]
    pub fn split(&self) -> (Subset<Self>, Subset<Self>) {
        let mut order: Vec<usize> = (0..self.len()).collect();
        Shuffled.arrange(SPLIT_SEED, 0, &mut order);
        let (train, test) = order.split_at(TRAIN_LEN);
        let part = |indices: &[usize]| {
            Subset::new(self.clone(), indices).expect("the order holds the dataset's own indexes")
        };
        (part(train), part(test))
    }
}

impl Digits {
    /// The same digits as [`Images`], to be resized or to have their pixels labelled.
    ///
    /// # Errors
    /// [`DataError::Io`] if the embedded file is damaged.
    pub fn images() -> Result<(Subset<Images>, Subset<Images>), DataError> {
        let digits = Self::load()?;
        let (train, test) = digits.split();
        let (pixels, labels) = decode(FILE)
            .map_err(|source| DataError::Io { what: "decoding the embedded digits", source })?;
        let pixels = pixels.iter().map(|pixel| (pixel * f32::from(PIXEL_MAX)) as u8).collect();
        let images = Images::new(pixels, [1, 8, 8], PIXEL_MAX, labels)?;
        let part = |indices: &[usize]| {
            Subset::new(images.clone(), indices).expect("the order holds the dataset's own indexes")
        };
        Ok((part(train.indices()), part(test.indices())))
    }
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

fn decode(packed: &[u8]) -> io::Result<(Vec<f32>, Vec<i64>)> {
    let mut text = String::new();
    GzDecoder::new(packed).read_to_string(&mut text)?;
    let (mut images, mut labels) = (Vec::new(), Vec::new());
    for (line_index, line) in text.lines().enumerate() {
        let values = decode_line(line).ok_or_else(|| damaged(line_index))?;
        images.extend(values[..PIXELS].iter().map(|&pixel| f32::from(pixel) / 16.0));
        labels.push(i64::from(values[PIXELS]));
    }
    Ok((images, labels))
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
    fn line_with_too_few_too_many_or_too_great_numbers_is_refused() {
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
