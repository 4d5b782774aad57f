//! The handwritten digits and their split.

use crate::{drain, options};
use lowtide_data::{Dataset, Digits, ElementType, Field, Loader, Sequential};

#[test]
fn digits_have_the_counts_of_the_published_data_set() {
    let digits = Digits::load().unwrap();
    assert_eq!(digits.len(), 1797);
    let images = Field::new("images", ElementType::F32, &[1, 8, 8]);
    let labels = Field::new("labels", ElementType::I64, &[]);
    assert_eq!(digits.fields(), [images, labels]);
    let loader = Loader::with_sampler(digits, Sequential, options(1797, 0, 0)).unwrap();
    let batch = loader.epoch(0).next().unwrap().unwrap();
    let mut counts = [0; 10];
    for &label in batch.field("labels").unwrap().values::<i64>().unwrap() {
        counts[label as usize] += 1;
    }
    // Counts from the description of the data set.
    assert_eq!(counts, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]);
}

#[test]
fn first_image_is_the_published_zero_scaled_to_one() {
    let loader =
        Loader::with_sampler(Digits::load().unwrap(), Sequential, options(1, 0, 0)).unwrap();
    let batch = loader.epoch(0).next().unwrap().unwrap();
    assert_eq!(batch.field("labels").unwrap().values::<i64>().unwrap(), [0]);
    let images = batch.field("images").unwrap();
    assert_eq!(images.shape(), [1, 1, 8, 8]);
    let first_rows = [0, 0, 5, 13, 9, 1, 0, 0, 0, 0, 13, 15, 10, 15, 5, 0];
    let pixels = images.values::<f32>().unwrap();
    assert_eq!(pixels[..16], first_rows.map(|pixel| pixel as f32 / 16.0));
}

#[test]
fn split_is_a_partition_that_is_the_same_in_every_run() {
    let digits = Digits::load().unwrap();
    let (train, test) = digits.split();
    assert_eq!((train.len(), test.len()), (1437, 360));
    let mut all = [train.indices(), test.indices()].concat();
    all.sort_unstable();
    assert_eq!(all, (0..1797).collect::<Vec<_>>());
    assert_eq!(test.indices()[..8], FIRST_OF_TEST);
    assert_eq!(digits.split().1.indices(), test.indices());
}

/// Indices that were computed outside this crate, as in `order.rs`.
const FIRST_OF_TEST: [usize; 8] = [1065, 356, 1069, 1501, 854, 1181, 38, 852];

#[test]
fn both_parts_of_the_split_hold_every_digit() {
    let (train, test) = Digits::load().unwrap().split();
    for (part, least) in [(train, 120), (test, 20)] {
        let len = part.len();
        let loader = Loader::new(part, options(len, 0, 0)).unwrap();
        let batch = loader.epoch(0).next().unwrap().unwrap();
        let labels = batch.field("labels").unwrap().values::<i64>().unwrap();
        for digit in 0..10 {
            assert!(labels.iter().filter(|&&label| label == digit).count() >= least, "{digit}");
        }
    }
}

#[test]
fn subset_gives_the_samples_of_the_whole() {
    let (_, test) = Digits::load().unwrap().split();
    let index = test.indices()[5];
    let whole = Loader::with_sampler(Digits::load().unwrap(), Sequential, options(1, 0, 0));
    let part = Loader::with_sampler(test, Sequential, options(1, 0, 0)).unwrap();
    let expected = drain(whole.unwrap().epoch(0).skip(index).take(1));
    assert_eq!(drain(part.epoch(0).skip(5).take(1))[0].fields, expected[0].fields);
}
