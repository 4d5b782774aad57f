//! Batches of packed samples, whose length is the sum of the lengths of their samples.

use std::sync::Arc;

use lowtide_data::{
    Collate, Dataset, ElementType, Field, Loader, LoaderOptions, SampleError, SampleSlot,
    Sequential as InOrder,
};
use lowtide_nn::optim::{Sgd, SgdOptions};
use lowtide_nn::{GELU, Linear, NnResult, Sequential};
use lowtide_ranks::{Mirror, Rank};
use lowtide_tensor::{CpuOptions, Device, RandomKey};
use lowtide_trainer::{
    Fit, Knobs, Options, Parallelism, Recovery, Regression, Result, StepReport, TrainError,
    Trainer, evaluate, rehearse_evaluation,
};

use crate::common::does_not_fit;

const BATCH: usize = 8;
const LEN_MAX: usize = 400;

/// Sequences of these lengths: each item has four numbers, and a target number.
struct Sequences {
    lens: Vec<usize>,
    fields: [Field; 2],
}

impl Dataset for Sequences {
    fn len(&self) -> usize {
        self.lens.len()
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn write(&self, index: usize, slot: &mut SampleSlot<'_>) -> Result<(), SampleError> {
        let len = self.lens[index];
        let number = |at: usize| ((index * 31 + at * 7) % 17) as f32 / 17.0;
        let inputs = slot.ragged::<f32>(0, len)?;
        inputs.iter_mut().enumerate().for_each(|(at, input)| *input = number(at));
        let targets = slot.ragged::<f32>(1, len)?;
        targets.iter_mut().enumerate().for_each(|(at, target)| *target = number(4 * at));
        Ok(())
    }
}

fn loader(lens: &[usize]) -> Loader {
    let ragged = |name, item: &[usize]| {
        Field::ragged(name, ElementType::F32, LEN_MAX, item, Collate::Packed)
    };
    let sequences = Sequences {
        lens: lens.to_vec(),
        fields: [ragged("inputs", &[4]), ragged("targets", &[1])],
    };
    let options = LoaderOptions { batch_size: BATCH, ..Default::default() };
    Loader::with_sampler(sequences, InOrder, options).expect("valid options")
}

fn trainer(
    device: &Device,
) -> Trainer<Regression<Sequential>, impl lowtide_nn::optim::Stateful + Clone> {
    let linear = |name: &str, [from, to]: [usize; 2]| {
        Linear::new(device, RandomKey::new(1).op(name), from, to)
    };
    let model = || -> NnResult<Sequential> {
        Ok(Sequential::new().then(linear("in", [4, 64])?).then(GELU).then(linear("out", [64, 1])?))
    };
    let task = Regression::new(model().expect("memory"), "");
    let sgd = Sgd::new(SgdOptions { momentum: 0.9, ..SgdOptions::new(0.05) }).expect("in range");
    Trainer::new(device, task, sgd, Options::default())
}

fn cpu() -> Device {
    let options = CpuOptions { threads: Some(1), ..Default::default() };
    Device::cpu(options).expect("address space")
}

/// Takes a step on each batch, within `capacity_bytes` if given.
fn steps(lens: &[usize], capacity_bytes: Option<usize>) -> (Vec<Result<StepReport>>, Knobs) {
    let (device, loader) = (cpu(), loader(lens));
    let mut trainer = trainer(&device);
    capacity_bytes.inspect(|&bytes| device.allocator().set_capacity(bytes));
    let steps = loader.epoch(0).map(|batch| trainer.step(&batch.expect("readable"))).collect();
    (steps, trainer.knobs())
}

#[test]
fn longer_batch_than_planned_is_run_in_smaller_parts_without_a_failure() {
    let (short, long) = ([20; BATCH], [LEN_MAX; BATCH]);
    let lens = [short, short, long, short].concat();
    let (free, _) = steps(&lens, None);
    let free: Vec<StepReport> = free.into_iter().map(|step| step.expect("no limit")).collect();
    let peaks: Vec<usize> = free.iter().map(|report| report.reserved_peak_bytes).collect();
    assert!(peaks[2] > 2 * peaks[1], "{peaks:?}");
    let (within, knobs) = steps(&lens, Some(peaks[2] / 2));
    let within: Vec<StepReport> = within.into_iter().map(|step| step.expect("fits")).collect();
    assert_eq!(within.iter().map(|report| report.retries.len()).sum::<usize>(), 0);
    let parts: Vec<usize> = within.iter().map(|report| report.micro_batch).collect();
    assert!(parts[2] < BATCH, "{parts:?}");
    assert_eq!([parts[0], parts[1], parts[3], knobs.micro_batch], [BATCH; 4], "only for itself");
    for (free, within) in free.iter().zip(&within) {
        let apart = (free.loss - within.loss).abs();
        assert!(apart <= 1e-5 * free.loss, "{} and {}", free.loss, within.loss);
    }
}

#[test]
fn least_memory_of_an_evaluation_is_rehearsed_to_the_byte() {
    // The longest sample is in the second batch.
    let mut lens = [20; 2 * BATCH];
    lens[BATCH + 3] = LEN_MAX;
    let (device, loader) = (cpu(), loader(&lens));
    let sim = device.simulate();
    sim.allocator().set_capacity(usize::MAX);
    rehearse_evaluation(trainer(&sim).task(), &sim, &loader).expect("no limit");
    let peak_bytes = sim.allocator().statistics().reserved.peak_bytes;
    let trainer = trainer(&device);
    let within = |capacity_bytes: usize| {
        device.allocator().set_capacity(capacity_bytes);
        evaluate(trainer.task(), &device, &loader, BATCH)
    };
    let error = within(peak_bytes - 1).expect_err("a byte is missing");
    assert!(error.out_of_memory().is_some(), "{error}");
    within(peak_bytes).expect("as rehearsed");
}

#[test]
fn batch_that_fits_in_no_way_is_told_at_its_step_and_others_go_on() {
    let lens = [[20; BATCH], [LEN_MAX; BATCH], [20; BATCH]].concat();
    let (free, _) = steps(&[20; 2 * BATCH], None);
    let peak = free[1].as_ref().expect("no limit").reserved_peak_bytes;
    let (within, _) = steps(&lens, Some(peak));
    let error = does_not_fit(within.into_iter().nth(1).expect("three batches"));
    assert_eq!(error.step, Some(2), "{error}");
    assert_eq!(error.knobs.micro_batch, 1, "{error}");
    let (within, _) = steps(&lens, Some(peak));
    let last = within.into_iter().next_back().expect("three batches");
    assert_eq!(last.expect("as the first").micro_batch, BATCH);
}

#[test]
fn parameters_are_put_together_as_often_as_a_packed_batch_has_parts() {
    let mirror = Mirror::new(Rank { index: 0, count: 2 }).expect("one of two");
    let (device, loader) = (cpu(), loader(&[10; BATCH]));
    let mut trainer = trainer(&device);
    trainer.set_ranks(Some(Arc::new(mirror)));
    trainer.set_parallelism(Parallelism::Zero3);
    let knobs = Knobs { micro_batch: 1, ..Knobs::default() };
    let plan = trainer.plan_run(&Fit::new(&loader).epochs(1), &knobs.into()).expect("no limit");
    let parameter_bytes = 4 * (64 * 5 + 65);
    assert_eq!(plan.forecast.gathered_bytes, BATCH * parameter_bytes);
}

/// Micro-batches of different lengths are not alike, so the rehearsal runs all of them.
#[test]
fn peak_of_a_batch_in_parts_of_different_lengths_is_predicted() {
    for longest in 0..BATCH {
        let mut lens = [10; BATCH];
        lens[longest] = LEN_MAX;
        let lens = [lens; 2].concat();
        let (device, loader) = (cpu(), loader(&lens));
        let mut trainer = trainer(&device);
        let fit = Fit::new(&loader).epochs(2);
        let knobs = Knobs { micro_batch: 1, ..Knobs::default() };
        let plan = trainer.plan_run(&fit, &knobs.into()).expect("no limit");
        trainer.run(&fit, &mut []).expect("as planned");
        let measured = device.allocator().statistics().reserved.peak_bytes;
        assert_eq!(plan.predicted_peak_bytes(), measured, "the longest is {longest}");
    }
}

/// The recovery ladder copes with capacity that is gone when a longer batch comes.
#[test]
fn longer_batch_and_less_memory_in_one_step_are_survived() {
    let lens = [[20; BATCH], [200; BATCH]].concat();
    let (device, loader) = (cpu(), loader(&lens));
    let mut trainer = trainer(&device);
    let batches: Vec<_> = loader.epoch(0).map(|batch| batch.expect("readable")).collect();
    trainer.step(&batches[0]).expect("memory");
    let now = device.allocator().statistics().allocated.current_bytes;
    device.allocator().set_capacity(now + (256 << 10));
    device
        .allocator()
        .inject_fault(lowtide_allocator::Fault { nth: 3, repeat: lowtide_allocator::Repeat::Once });
    match trainer.step(&batches[1]) {
        Ok(report) => {
            assert!(report.micro_batch < BATCH, "{report:?}");
            assert_eq!(report.retries.len(), 1, "{report:?}");
            assert_eq!(report.retries[0].recovery, Recovery::SamePlan);
        }
        Err(error @ TrainError::DoesNotFit(_)) => panic!("smaller parts fit: {error}"),
        Err(error) => panic!("{error}"),
    }
}
