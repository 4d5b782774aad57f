//! Mixup and CutMix: the contents of a mixed batch, which depend only on its key.

use crate::{WORKERS, drain, options};
use lowtide_data::{
    BatchSlot, Concat, ConcatError, DataError, Dataset, ElementType, Field, InMemory, Loader,
    LoaderOptions, Mapped, Mixed, Mixing, OnBadSample, SampleError, SampleSlot, Sequential, Subset,
};
use std::sync::Arc;

const LEN: usize = 13;

/// Images `[2, 4, 4]` whose pixels and labels are their index.
fn numbers() -> InMemory {
    let pixels = (0..LEN * 32).map(|at| (at / 32) as f32).collect();
    InMemory::new(LEN)
        .with("images", &[2, 4, 4], pixels)
        .and_then(|data| data.with("labels", &[], (0..LEN as i64).collect()))
        .unwrap()
}

fn values<T: lowtide_data::Element>(batch: &lowtide_data::Batch, field: &str) -> Vec<T> {
    batch.field(field).unwrap().values::<T>().unwrap().to_vec()
}

#[test]
fn mixup_is_the_weighted_mean_with_the_sample_before() {
    let mixed = Mixed::new(numbers(), Mixing::Mixup { alpha: 0.4 }).unwrap();
    let loader = Loader::with_sampler(mixed, Sequential, options(5, 0, 1)).unwrap();
    let mut weights = Vec::new();
    for batch in loader.epoch(0) {
        let batch = batch.unwrap();
        let labels = values::<i64>(&batch, "labels");
        let mut before = labels.clone();
        before.rotate_right(1);
        assert_eq!(values::<i64>(&batch, "labels.other"), before);
        let weight = values::<f32>(&batch, "labels.weight");
        assert!(weight.iter().all(|w| *w == weight[0] && (0.0..=1.0).contains(w)));
        let images = values::<f32>(&batch, "images");
        for (row, image) in images.chunks(32).enumerate() {
            let expected = weight[0] * labels[row] as f32 + (1.0 - weight[0]) * before[row] as f32;
            assert!(image.iter().all(|&value| value == expected));
        }
        weights.push(weight[0]);
    }
    assert_eq!(weights.len(), 3);
    assert!(weights[0] != weights[1]);
}

#[test]
fn cutmix_pastes_one_rectangle_whose_share_is_the_weight() {
    let mixed = Mixed::new(numbers(), Mixing::Cutmix { alpha: 1.0 }).unwrap();
    let loader = Loader::with_sampler(mixed, Sequential, options(13, 0, 1)).unwrap();
    let mut shares = std::collections::BTreeSet::new();
    for epoch in 0..20 {
        let batch = loader.epoch(epoch).next().unwrap().unwrap();
        let (labels, others) =
            (values::<i64>(&batch, "labels"), values::<i64>(&batch, "labels.other"));
        let weight = values::<f32>(&batch, "labels.weight")[0];
        let images = values::<f32>(&batch, "images");
        for (row, image) in images.chunks(32).enumerate() {
            let own = image.iter().filter(|&&value| value == labels[row] as f32).count();
            let pasted = image.iter().filter(|&&value| value == others[row] as f32).count();
            assert_eq!((own + pasted, own), (32, (weight * 32.0).round() as usize));
            assert_eq!(image[..16], image[16..]);
        }
        shares.insert((weight * 16.0) as usize);
    }
    assert!(shares.len() > 3, "{shares:?}");
}

#[test]
fn mixed_batches_are_the_same_with_any_number_of_workers_and_after_a_resume() {
    for mixing in [Mixing::Mixup { alpha: 1.0 }, Mixing::Cutmix { alpha: 1.0 }] {
        let loader = |workers| {
            let mixed = Mixed::new(numbers(), mixing).unwrap();
            Loader::new(mixed, options(4, workers, 9)).unwrap()
        };
        let whole = drain(loader(0).epoch(1));
        for workers in WORKERS {
            assert_eq!(drain(loader(workers).epoch(1)), whole);
            let mut epoch = loader(workers).epoch(1);
            drop(epoch.by_ref().take(2).last());
            assert_eq!(drain(loader(0).resume(epoch.state()).unwrap()), whole[2..]);
        }
    }
}

#[test]
fn wrappers_pass_the_mixing_on() {
    let mixed = Mixed::new(numbers(), Mixing::Mixup { alpha: 1.0 }).unwrap();
    let part = Subset::new(std::sync::Arc::new(mixed), vec![3, 4]).unwrap();
    let loader = Loader::with_sampler(part, Sequential, options(2, 0, 0)).unwrap();
    let batch = loader.epoch(0).next().unwrap().unwrap();
    assert_eq!(values::<i64>(&batch, "labels.other"), [4, 3]);
}

#[test]
fn datasets_that_cannot_be_mixed_are_refused() {
    let refused = |data: InMemory, alpha| match Mixed::new(data, Mixing::Mixup { alpha }) {
        Err(DataError::InvalidMixing { reason }) => reason,
        other => panic!("{other:?}"),
    };
    for alpha in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(refused(numbers(), alpha).contains("alpha"));
    }
    let no_images = InMemory::new(1).with("labels", &[], vec![1_i64]).unwrap();
    assert!(refused(no_images, 1.0).contains("images"));
    let no_labels = InMemory::new(1).with("images", &[1, 1, 1], vec![1.0_f32]).unwrap();
    assert!(refused(no_labels, 1.0).contains("labels"));
}

/// A dataset with one sample that cannot be read. Batches panic if `panics` is true.
struct Fragile {
    fields: [Field; 1],
    panics: bool,
}

impl Dataset for Fragile {
    fn len(&self) -> usize {
        6
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn write(&self, index: usize, slot: &mut SampleSlot<'_>) -> Result<(), SampleError> {
        slot.values::<i64>(0)[0] = index as i64;
        if index == 1 { Err("a bad sample".into()) } else { Ok(()) }
    }

    fn finish_batch(&self, batch: &mut BatchSlot<'_>) {
        assert!(!self.panics, "a bad batch");
        let sum: i64 = batch.values::<i64>(0).iter().sum();
        batch.values::<i64>(0).fill(sum);
    }
}

#[test]
fn finished_batches_have_only_the_samples_that_were_read() {
    let on_bad_sample = OnBadSample::Skip(1);
    for workers in WORKERS {
        let options = LoaderOptions { on_bad_sample, ..options(3, workers, 0) };
        let fields = || [Field::new("x", ElementType::I64, &[])];
        let fine = Fragile { fields: fields(), panics: false };
        let loader = Loader::with_sampler(fine, Sequential, options).unwrap();
        let sums: Vec<Vec<i64>> =
            loader.epoch(0).map(|batch| values(&batch.unwrap(), "x")).collect();
        assert_eq!(sums, [vec![2, 2], vec![12, 12, 12]]);
        let bad = Fragile { fields: fields(), panics: true };
        let loader = Loader::with_sampler(bad, Sequential, options).unwrap();
        for _ in 0..2 {
            let error = loader.epoch(0).next().unwrap().expect_err("it panics");
            let DataError::Panicked { index: 0, message } = error else { panic!("{error}") };
            assert_eq!(message, "a bad batch");
        }
    }
}

#[test]
fn wrapper_that_cannot_pass_on_whole_batches_refuses_a_mixed_dataset() {
    let mixed = || Mixed::new(numbers(), Mixing::Mixup { alpha: 0.4 }).unwrap();
    let fields = mixed().fields().to_vec();
    let joined = Concat::new(vec![Arc::new(Subset::new(mixed(), [0, 1]).unwrap())]);
    assert!(matches!(joined, Err(ConcatError::ChangesBatches { dataset: 0 })), "{joined:?}");
    let mapped = Mapped::new(Arc::new(mixed()), fields, |_, _, _| Ok(()));
    assert!(matches!(mapped.err(), Some(DataError::InvalidMixing { .. })));
}
