//! Plans by the rates of a device: the planner chooses the plan that is fastest there.

use lowtide_data::{ElementType, Field, Loader, LoaderOptions, Random, Sequential};
use lowtide_nn::models::{Gpt, GptShape, ResNet, ResNetShape};
use lowtide_nn::optim::{Adam, AdamOptions};
use lowtide_tensor::{CpuOptions, Device, OpClass, RandomKey, Rate, Rates, SimSpec};
use lowtide_trainer::{
    Classification, Fit, Knobs, LanguageModel, Options, Plan, Result, Task, Trainer,
};

use crate::common::does_not_fit;

const KEY: RandomKey = RandomKey::new(5);
const WHOLE: Knobs = Knobs {
    micro_batch: 8,
    cheap_recomputed: false,
    recomputed_blocks: 0,
    blocks_at_once: 0,
    offloaded_blocks: 0,
    fused_update: false,
};

fn loader(fields: Vec<Field>) -> Loader {
    let options = LoaderOptions { batch_size: 8, ..Default::default() };
    Loader::with_sampler(Random::new(16, fields, 4), Sequential, options).expect("valid options")
}

fn tokens() -> Loader {
    loader(vec![Field::new("tokens", ElementType::I64, &[33])])
}

fn gpt(device: &Device) -> LanguageModel<Gpt> {
    let shape = GptShape { vocabulary: 11, context: 32, width: 32, heads: 2, blocks: 6 };
    LanguageModel::new(Gpt::gpt2(device, KEY, shape).expect("memory"))
}

fn resnet(device: &Device) -> Classification<ResNet> {
    let shape = ResNetShape { width: 4, classes: 4, ..ResNetShape::RESNET18 };
    Classification::new(ResNet::new(device, KEY, shape).expect("memory"))
}

fn trainer<T: Task + Clone>(device: &Device, task: T) -> Trainer<T, Adam> {
    let adam = Adam::new(AdamOptions::adamw()).expect("in range");
    Trainer::new(device, task, adam, Options::default())
}

/// A simulated device with these rates.
fn simulated(rates: Rates) -> Device {
    let spec = SimSpec { threads: 1, rates, ..SimSpec::like_this_machine(1 << 40) };
    Device::sim(spec).expect("no memory is needed")
}

/// Rates with which only the number of operations counts.
fn launches_only() -> Rates {
    let endless = Rates::nominal(1e30, 1e30);
    OpClass::ALL.into_iter().fold(endless, |rates, class| {
        rates.with(class, Rate { launch_seconds: 1e-3, ..endless.of(class) })
    })
}

/// The plan for one byte less than the whole batch needs with everything kept.
fn plan_one_byte_short(device: &Device) -> Result<Plan> {
    let loader = tokens();
    let mut trainer = trainer(device, gpt(device));
    let fit = Fit::new(&loader);
    let whole = trainer.plan_run(&fit, &Default::default())?;
    assert_eq!(whole.knobs, WHOLE);
    device.allocator().set_capacity(whole.predicted_peak_bytes() - 1);
    trainer.plan_run(&fit, &Default::default())
}

#[test]
fn costly_launches_turn_the_plan_from_parts_to_recomputation() {
    // Here additional arithmetic costs more than additional operations.
    let split = plan_one_byte_short(&simulated(Rates::nominal(1e9, 1e9))).expect("fits");
    assert!(split.knobs.micro_batch < 8 && !split.knobs.cheap_recomputed, "{split}");
    let recomputed = plan_one_byte_short(&simulated(launches_only())).expect("fits");
    assert_eq!(recomputed.knobs.micro_batch, 8, "{recomputed}");
    assert!(recomputed.knobs.cheap_recomputed, "{recomputed}");

    // A CPU device with the same rates gets the same plan.
    let options =
        CpuOptions { threads: Some(1), rates: Some(launches_only()), ..Default::default() };
    let device = Device::cpu(options).expect("address space");
    let real = plan_one_byte_short(&device).expect("fits");
    assert_eq!((real.knobs, real.forecast), (recomputed.knobs, recomputed.forecast));
}

#[test]
fn seconds_of_a_step_are_its_operations_by_the_rates() {
    let (loader, device) = (tokens(), simulated(launches_only()));
    let mut trainer = trainer(&device, gpt(&device));
    let fit = Fit::new(&loader).epochs(1);
    let whole = trainer.plan_run(&fit, &WHOLE.into()).expect("fits").forecast;
    let launch_count = whole.step_seconds / 1e-3;
    assert!((launch_count - launch_count.round()).abs() < 1e-6, "{launch_count}");
    // Two steps; the first one also creates the optimizer's state.
    assert!(whole.step_seconds < whole.seconds && whole.seconds <= 2.0 * whole.step_seconds);
    // Each part after the first, run or only counted, adds the time of one part.
    let mut seconds = |micro_batch| {
        let plan = trainer.plan_run(&fit, &Knobs { micro_batch, ..WHOLE }.into());
        plan.expect("fits").forecast.step_seconds
    };
    let [two, three, four] = [4, 3, 2].map(&mut seconds);
    assert!(two > whole.step_seconds && three > two, "{two} {three}");
    assert!((four - three - (three - two)).abs() < 1e-9, "{two} {three} {four}");
}

#[test]
fn plan_with_given_knobs_has_them_or_says_what_is_missing() {
    let (loader, device) = (tokens(), simulated(Rates::nominal(1e9, 1e9)));
    let mut gpt = trainer(&device, gpt(&device));
    let fit = Fit::new(&loader);
    let knobs =
        Knobs { micro_batch: 3, recomputed_blocks: 4, fused_update: false, ..Knobs::default() };
    let plan = gpt.plan_run(&fit, &knobs.into()).expect("fits");
    assert_eq!((plan.knobs, gpt.knobs()), (knobs, knobs));
    device.allocator().set_capacity(plan.predicted_peak_bytes());
    assert_eq!(gpt.plan_run(&fit, &knobs.into()).expect("fits").knobs, knobs);
    device.allocator().set_capacity(plan.predicted_peak_bytes() - 1);
    assert_eq!(does_not_fit(gpt.plan_run(&fit, &knobs.into())).missing_bytes(), 1);

    // Coupled samples are not split.
    let images = Field::new("images", ElementType::F32, &[3, 32, 32]);
    let loader = self::loader(vec![images, Field::new("labels", ElementType::I64, &[])]);
    let device = simulated(Rates::nominal(1e9, 1e9));
    let error =
        trainer(&device, resnet(&device)).plan_run(&Fit::new(&loader), &knobs.into()).unwrap_err();
    assert!(error.to_string().contains("may not be split"), "{error}");
}
