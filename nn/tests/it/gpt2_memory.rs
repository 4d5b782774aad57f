//! The peak of a training step of GPT-2 124M by category, on a simulated device, as in the table of
//! the models' README.

use lowtide_allocator::{Action, ByCategory, Category};
use lowtide_autograd::{Attempt, Pass, SavedPolicy};
use lowtide_nn::models::{Gpt, GptShape};
use lowtide_nn::optim::{Adam, AdamOptions, Optimizer};
use lowtide_nn::{
    LinearCrossEntropyOptions, Module, NnResult as Result, Parameter, Parameters, cross_entropy,
};
use lowtide_tensor::{DType, Device, DeviceKind, Rates, SimSpec, Tensor};

use crate::common::{KEY, Outcome};

const README: &str = include_str!("../../src/models/README.md");
/// Number of sequences, and of tokens in each.
const BATCH: [usize; 2] = [4, 1024];

/// A common machine. The scratch memory of attention depends on the number of threads.
const SPEC: SimSpec = SimSpec {
    kind: DeviceKind::Cpu,
    capacity_bytes: 64 << 30,
    outside_bytes: 0,
    page_bytes: 64 << 10,
    mappings_max: 1 << 14,
    tf32: false,
    threads: 8,
    rates: Rates::nominal(3e11, 5e10),
};

/// The ways to compute the logits.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Head {
    Whole,
    /// In chunks, together with the loss.
    Chunked,
}

fn step(
    model: &mut Gpt,
    optimizer: &mut Adam,
    head: Head,
    [x, labels]: [&Tensor; 2],
) -> Result<()> {
    let attempt = Attempt::new();
    let pass = Pass::train(KEY, &attempt);
    let scope = x.device().category(Category::Activation);
    let tokens = pass.constant(x.clone());
    let loss = match head {
        Head::Whole => {
            let labels = labels.reshape([labels.element_count()])?;
            cross_entropy(model.forward(&pass, tokens)?.flatten(0..2)?, &labels)?
        }
        Head::Chunked => model.loss(&pass, tokens, labels, LinearCrossEntropyOptions::default())?,
    };
    let loss = loss.mean()?;
    drop(scope);
    pass.backward(loss)?;
    optimizer.step(model, attempt)
}

/// Live bytes by category at the peak of the second step.
fn peak(dtype: DType, policy: Option<SavedPolicy>, head: Head) -> Result<ByCategory<i64>> {
    let device = Device::sim(SPEC)?;
    let memory = device.allocator();
    let mut model = Gpt::gpt2(&device, KEY, GptShape::GPT2)?;
    model.set_policy(policy);
    {
        let _scope = device.category(Category::Parameter);
        let mut result = Ok(());
        model.visit(&mut |_, parameter| match parameter.value().to_dtype(dtype) {
            Ok(value) => *parameter = Parameter::new(value),
            Err(error) => result = Err(error),
        });
        result?;
    }
    let mut optimizer = Adam::new(AdamOptions::adamw())?;
    let x = Tensor::empty_in(&device, Category::Input, BATCH, DType::I64)?;
    let labels = Tensor::empty_in(&device, Category::Input, BATCH, DType::I64)?;
    step(&mut model, &mut optimizer, head, [&x, &labels])?;

    let by_category = memory.statistics().by_category;
    let mut live = ByCategory::from_fn(|category| by_category[category].current_bytes as i64);
    let first = memory.event_count();
    step(&mut model, &mut optimizer, head, [&x, &labels])?;
    let total = |live: &ByCategory<i64>| Category::ALL.iter().map(|&c| live[c]).sum::<i64>();
    let mut most = live;
    let history = memory.history();
    let records: Vec<_> = history.records().iter().filter(|r| r.sequence >= first).collect();
    assert_eq!(records[0].sequence, first, "the history holds the whole step");
    for record in records {
        let size = record.size_bytes as i64;
        live[record.category] += match record.action {
            Action::Allocate | Action::Charge => size,
            Action::Free | Action::Discharge => -size,
            _ => 0,
        };
        if total(&live) > total(&most) {
            most = live;
        }
    }
    Ok(most)
}

#[test]
fn the_table_in_the_readme_is_the_simulated_peak() -> Outcome {
    let mut table = String::new();
    for (dtype, name) in [(DType::F32, "f32"), (DType::BF16, "bf16")] {
        let again = || Some(SavedPolicy::Recompute);
        for (policy, kept, head, logits) in [
            (None, "kept", Head::Whole, "whole"),
            (again(), "recomputed", Head::Whole, "whole"),
            (None, "kept", Head::Chunked, "in chunks"),
            (again(), "recomputed", Head::Chunked, "in chunks"),
        ] {
            let peak = peak(dtype, policy, head)?;
            let mib = |bytes: i64| (bytes + (1 << 19)) >> 20;
            let columns = [
                Category::Parameter,
                Category::Gradient,
                Category::OptimizerState,
                Category::Activation,
                Category::Workspace,
            ];
            let cells: Vec<String> = columns.iter().map(|&c| mib(peak[c]).to_string()).collect();
            let all: i64 = Category::ALL.iter().map(|&c| peak[c]).sum();
            let cells = cells.join(" | ");
            table += &format!("| {name} | {kept} | {logits} | {cells} | {} |\n", mib(all));
        }
    }
    print!("{table}");
    assert!(README.contains(&table), "the README should have\n{table}");
    Ok(())
}
