//! Random numbers of samples depend only on seed, epoch, sample and purpose.

use crate::{WORKERS, drain, options};
use lowtide_data::{Dataset, ElementType, Field, Loader, SampleError, SampleSlot};

/// Samples with two random numbers each, the seed and the epoch.
struct Noise([Field; 1]);

fn noise() -> Noise {
    Noise([Field::new("x", ElementType::I64, &[4])])
}

impl Dataset for Noise {
    fn len(&self) -> usize {
        13
    }

    fn fields(&self) -> &[Field] {
        &self.0
    }

    fn write(&self, _index: usize, slot: &mut SampleSlot<'_>) -> Result<(), SampleError> {
        let [a, b] = [1, 2].map(|purpose| slot.draws(purpose).bits() as i64);
        let (seed, epoch) = (slot.seed() as i64, slot.epoch() as i64);
        slot.values::<i64>(0).copy_from_slice(&[a, b, seed, epoch]);
        Ok(())
    }
}

#[test]
fn random_samples_are_the_same_with_any_number_of_workers_and_after_a_resume() {
    let whole = drain(Loader::new(noise(), options(3, 0, 5)).unwrap().epoch(2));
    for workers in WORKERS {
        let loader = Loader::new(noise(), options(3, workers, 5)).unwrap();
        assert_eq!(drain(loader.epoch(2)), whole);
        let mut epoch = loader.epoch(2);
        drop(epoch.by_ref().take(2).last());
        assert_eq!(drain(loader.resume(epoch.state()).unwrap()), whole[2..]);
    }
}

#[test]
fn seed_epoch_sample_and_purpose_each_give_other_numbers() {
    let mut seen = std::collections::HashSet::new();
    for (seed, epoch) in [(5, 0), (5, 1), (6, 0)] {
        let loader = Loader::new(noise(), options(13, 0, seed)).unwrap();
        let batch = loader.epoch(epoch).next().unwrap().unwrap();
        for sample in batch.field("x").unwrap().values::<i64>().unwrap().chunks(4) {
            assert_eq!(sample[2..], [seed as i64, epoch as i64]);
            assert!(seen.insert(sample[0]) && seen.insert(sample[1]));
        }
    }
    assert_eq!(seen.len(), 3 * 13 * 2);
}

#[test]
fn draws_stay_in_their_range_and_reach_all_of_it() {
    struct Laws([Field; 1]);
    impl Dataset for Laws {
        fn len(&self) -> usize {
            1
        }
        fn fields(&self) -> &[Field] {
            &self.0
        }
        fn write(&self, _index: usize, slot: &mut SampleSlot<'_>) -> Result<(), SampleError> {
            let mut draws = slot.draws(0);
            let mut counts = [0; 3];
            for _ in 0..3000 {
                assert!((0.0..1.0).contains(&draws.unit()));
                assert!((-2.0..3.0).contains(&draws.between(-2.0, 3.0)));
                counts[draws.below(3)] += 1;
            }
            assert!(counts.iter().all(|count| (900..1100).contains(count)), "{counts:?}");
            assert!(!draws.chance(0.0) && draws.chance(1.0));
            Ok(())
        }
    }
    let dataset = Laws([Field::new("x", ElementType::U8, &[])]);
    drain(Loader::new(dataset, options(1, 0, 0)).unwrap().epoch(0));
}
