//! Laws over generated sizes, seeds and numbers of workers.

use crate::{Seen, WORKERS, drain, numbered, samples_of};
use lowtide_data::{Loader, LoaderOptions, Shuffled};
use proptest::prelude::*;

fn any_options() -> impl Strategy<Value = LoaderOptions> {
    (1_usize..12, any::<bool>(), any::<u64>(), 0_usize..5, 1_usize..5).prop_map(
        |(batch_size, drop_last, seed, workers, prefetch)| LoaderOptions {
            batch_size,
            drop_last,
            seed,
            workers,
            prefetch,
            ..Default::default()
        },
    )
}

/// The batches of an epoch without loader, ring or threads, looked up by index.
fn naive(len: usize, options: &LoaderOptions, epoch: u64) -> Vec<Vec<i64>> {
    let mut order: Vec<usize> = (0..len).collect();
    Shuffled.arrange(options.seed, epoch, &mut order);
    order
        .chunks(options.batch_size)
        .filter(|chunk| !options.drop_last || chunk.len() == options.batch_size)
        .map(|chunk| chunk.iter().map(|&index| index as i64).collect())
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..Default::default() })]

    #[test]
    fn loader_equals_its_naive_twin(
        len in 0_usize..60,
        options in any_options(),
        epoch in any::<u64>(),
    ) {
        let loader = Loader::new(numbered(len), options).unwrap();
        let labels: Vec<_> = loader
            .epoch(epoch)
            .map(|batch| {
                batch.unwrap().field("y").unwrap().values::<i64>().unwrap().to_vec()
            })
            .collect();
        prop_assert_eq!(labels.len(), loader.batches_per_epoch());
        prop_assert_eq!(labels, naive(len, &options, epoch));
    }

    #[test]
    fn every_sample_comes_exactly_once_per_epoch(
        len in 0_usize..60,
        options in any_options(),
        epoch in any::<u64>(),
    ) {
        let options = LoaderOptions { drop_last: false, ..options };
        let loader = Loader::new(numbered(len), options).unwrap();
        let mut samples = samples_of(&loader, epoch);
        samples.sort_unstable();
        prop_assert_eq!(samples, (0..len).collect::<Vec<_>>());
    }

    #[test]
    fn number_of_workers_changes_no_byte(len in 0_usize..60, options in any_options()) {
        let batches = |workers| {
            let options = LoaderOptions { workers, ..options };
            drain(Loader::new(numbered(len), options).unwrap().epoch(4))
        };
        let inline = batches(0);
        for workers in WORKERS {
            prop_assert_eq!(&batches(workers), &inline);
        }
    }

    #[test]
    fn resuming_anywhere_gives_the_tail(
        len in 1_usize..60,
        options in any_options(),
        epoch in any::<u64>(),
        stop in any::<prop::sample::Index>(),
    ) {
        let loader = Loader::new(numbered(len), options).unwrap();
        let whole = drain(loader.epoch(epoch));
        let taken = stop.index(whole.len() + 1);
        let mut begun = loader.epoch(epoch);
        let head = drain(begun.by_ref().take(taken));
        prop_assert_eq!(&head[..], &whole[..taken]);
        let state = begun.state();
        drop(begun);
        prop_assert_eq!(&drain(loader.resume(state).unwrap())[..], &whole[taken..]);
    }

    #[test]
    fn whatever_is_held_keeps_its_bytes(
        len in 1_usize..60,
        options in any_options(),
        program in prop::collection::vec(any::<prop::sample::Index>(), 0..60),
    ) {
        let loader = Loader::new(numbered(len), options).unwrap();
        let whole = drain(loader.epoch(0));
        let mut epoch = loader.epoch(0);
        let mut held: Vec<lowtide_data::Batch> = Vec::new();
        let mut handed_out = 0;
        for choice in program {
            match epoch.next() {
                Some(Ok(batch)) => {
                    prop_assert_eq!(batch.index(), handed_out);
                    handed_out += 1;
                    held.push(batch);
                }
                Some(Err(_)) => {
                    prop_assert_eq!(held.len(), options.prefetch + options.workers);
                    held.swap_remove(choice.index(held.len()));
                }
                None => break,
            }
            for batch in &held {
                prop_assert_eq!(&Seen::of(batch), &whole[batch.index()]);
            }
        }
    }
}
