//! Two ranks, each with its own device, share every batch and end with the bits of one rank that
//! splits its batches in two.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use lowtide_data::{Digits, Loader, LoaderOptions, Remainder, Sharded, Shuffled};
use lowtide_nn::models::{SimpleCnn, SimpleCnnShape};
use lowtide_nn::optim::{Adam, AdamOptions};
use lowtide_ranks::{Collectives, Rank, threads};
use lowtide_tensor::{CpuOptions, Device, RandomKey};
use lowtide_trainer::{Classification, Fit, Knobs, Options, Result, Trainer};

/// Samples of a batch over all ranks, and samples of a micro-batch.
const BATCH: usize = 256;
const PART: usize = 128;

/// Trains alone, or as one of several ranks. Returns a hash of the state.
fn train(ranks: Option<Arc<dyn Collectives>>) -> Result<u64> {
    let Rank { index, count } = match &ranks {
        Some(ranks) => ranks.rank(),
        None => Rank { index: 0, count: 1 },
    };
    let (digits, _) = Digits::load()?.split();
    let shard = Sharded::new(Shuffled, index, count, Remainder::Drop)?.in_blocks();
    let own = LoaderOptions { batch_size: BATCH / count, drop_last: true, ..Default::default() };
    let digits = Loader::with_sampler(digits, shard, own)?;

    let device = Device::cpu(CpuOptions { threads: Some(1), ..Default::default() })?;
    let shape = SimpleCnnShape { image: [1, 8, 8], channels: 64, classes: 10 };
    let model = SimpleCnn::new(&device, RandomKey::new(0), shape)?; // the same on all ranks
    let adam = Adam::new(AdamOptions { learning_rate: 1e-2, ..Default::default() })?;
    let options = Options { ranks, ..Default::default() };
    let mut trainer = Trainer::new(&device, Classification::new(model), adam, options);

    let fit = Fit::new(&digits).epochs(5);
    let plan = trainer.plan_run(&fit, &Knobs { micro_batch: PART, ..Knobs::default() }.into())?;
    trainer.run(&fit, &mut [])?;
    let peak_bytes = device.allocator().statistics().reserved.peak_bytes;
    println!("rank {index} of {count}: planned {}, took {peak_bytes}", plan.predicted_peak_bytes());
    trainer.state_hash()
}

fn main() -> Result<()> {
    let one = train(None)?;
    let two = thread::scope(|scope| {
        let ranks = threads(2, Duration::from_secs(60)).into_iter();
        let ranks: Vec<_> =
            ranks.map(|rank| scope.spawn(move || train(Some(Arc::new(rank))))).collect();
        let hashes = ranks.into_iter().map(|rank| rank.join().expect("no panic"));
        hashes.collect::<Result<Vec<u64>>>()
    })?;
    println!("one rank {one:016x}, two ranks {:016x} and {:016x}", two[0], two[1]);
    assert_eq!(two, [one; 2]);
    Ok(())
}
