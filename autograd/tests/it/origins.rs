//! Origins of memory: each block counts for the line of the user's operation and for its module.

use std::panic::Location;

use lowtide_allocator::{Action, Category, ModulePath, Record};
use lowtide_autograd::{
    Attempt, AutogradResult as Result, LeafId, Offload, Pass, SavedPolicy, Var,
};
use lowtide_tensor::{Device, RandomKey, Tensor};

use crate::common::{Outcome, cpu, tensor};

/// The line of the call.
#[track_caller]
fn here() -> u32 {
    Location::caller().line()
}

/// A layer of a user: a product and an activation on lines of their own.
struct Layer {
    weight: (LeafId, Tensor),
}

impl Layer {
    fn new(device: &Device, name: &str) -> Layer {
        Layer { weight: (LeafId::new(), tensor(device, name, [64, 64])) }
    }

    /// The lines of its two operations.
    fn forward(&self, pass: &Pass, x: Var) -> Result<(Var, [u32; 2])> {
        let weight = pass.leaf(self.weight.0, &self.weight.1)?;
        let (matmul, y) = (here(), x.matmul(weight)?);
        let (exp, y) = (here(), y.exp()?);
        Ok((y, [matmul, exp]))
    }
}

/// The allocations of a step of two layers under `policy`, without its input and parameters; and
/// the lines of the layers' operations.
fn step(device: &Device, policy: &SavedPolicy) -> Result<(Vec<Record>, [u32; 2])> {
    let x = tensor(device, "x", [64, 64]);
    let layers = ["first", "second"].map(|name| Layer::new(device, name));
    let first_event = device.allocator().event_count();
    let attempt = Attempt::new();
    let pass = Pass::train(RandomKey::new(1), &attempt);
    let scope = device.category(Category::Activation);
    let sites = {
        let probe = Pass::eval();
        layers[0].forward(&probe, probe.constant(x.clone()))?.1
    };
    let input = pass.input(x)?;
    let loss = pass.segment(policy, input, move |pass, mut x| {
        for (index, layer) in layers.iter().enumerate() {
            x = pass.within("layers", || {
                pass.within(&index.to_string(), || layer.forward(pass, x).map(|(y, _)| y))
            })?;
        }
        x.sum_all()
    })?;
    drop(scope);
    pass.backward(loss)?;
    let history = device.allocator().history();
    let records = history.records().iter().copied();
    let made =
        |record: &Record| record.sequence >= first_event && record.action == Action::Allocate;
    Ok((records.filter(made).collect(), sites))
}

fn policies(host: &Device) -> [SavedPolicy; 4] {
    let offload = Offload { size_bytes_min: 0, ..Offload::to(host) };
    let from = SavedPolicy::RecomputeFrom(offload.clone());
    [SavedPolicy::Keep, SavedPolicy::Recompute, SavedPolicy::Offload(offload), from]
}

#[test]
fn no_block_of_a_step_counts_for_a_line_of_this_library() -> Outcome {
    let device = cpu();
    for policy in policies(&device) {
        let (records, _) = step(&device, &policy)?;
        for record in records {
            let file = record.site.file();
            assert!(file.contains("tests/it/"), "{policy:?}: {record:?}");
            // The offloaded copy of the input has the origin of the input, which has no module.
            let is_offloaded =
                matches!(policy, SavedPolicy::Offload(_) | SavedPolicy::RecomputeFrom(_));
            let is_copy = file.ends_with("common.rs") && is_offloaded;
            assert!(record.module.is_some() || is_copy, "{policy:?}: {record:?}");
        }
    }
    Ok(())
}

#[test]
fn backward_blocks_have_line_and_module_of_the_forward_operation() -> Outcome {
    let (device, host) = (cpu(), cpu());
    for policy in policies(&host) {
        let (records, sites) = step(&device, &policy)?;
        // The first layer's exp multiplies its incoming gradient in place, so it allocates none.
        for (module, of_exp) in [("layers.0", 0), ("layers.1", 1)] {
            let module = ModulePath::new(module);
            for (site, at_least) in [(sites[0], 2), (sites[1], of_exp)] {
                let gradients = records.iter().filter(|record| {
                    record.category == Category::Gradient
                        && (record.site.line(), record.module) == (site, Some(module))
                });
                let count = gradients.count();
                assert!(count >= at_least, "{policy:?}: {count} of {module} at {site}");
            }
            let activations = records.iter().filter(|record| {
                record.category == Category::Activation
                    && record.module == Some(module)
                    && sites.contains(&record.site.line())
            });
            // The activation is computed in the buffer of the product, and allocated a second time
            // for backward unless it is kept.
            let expected = if matches!(policy, SavedPolicy::Keep) { 1 } else { 2 };
            assert_eq!(activations.count(), expected, "{policy:?} {module}: {records:#?}");
        }
    }
    Ok(())
}

#[test]
fn offloaded_tensors_count_for_the_same_on_the_host() -> Outcome {
    let (device, host) = (cpu(), cpu());
    let [_, _, policy, _] = policies(&host);
    step(&device, &policy)?;
    let modules: Vec<_> = host
        .allocator()
        .history()
        .records()
        .iter()
        .filter(|record| record.action == Action::Allocate)
        .map(|record| record.module.map(ModulePath::path))
        .collect();
    assert!(modules.contains(&Some("layers.0")), "{modules:?}");
    assert!(modules.contains(&Some("layers.1")), "{modules:?}");
    Ok(())
}

#[test]
fn what_a_hook_makes_counts_for_the_operation_whose_gradient_it_sees() -> Outcome {
    let device = cpu();
    let (x, weight) = (tensor(&device, "x", [64]), tensor(&device, "w", [64]));
    let attempt = Attempt::new();
    let pass = Pass::train(RandomKey::new(1), &attempt);
    let (site, y) = pass.within("hooked", || -> Result<_> {
        let weight = pass.leaf(LeafId::new(), &weight)?;
        Ok((here(), weight.mul(pass.constant(x))?))
    })?;
    y.on_gradient(move |dy| Ok(dy.add(&dy)?))?;
    let loss = y.sum_all()?;
    let first_event = device.allocator().event_count();
    pass.backward(loss)?;
    let history = device.allocator().history();
    let mut made = history
        .records()
        .iter()
        .filter(|record| record.sequence >= first_event && record.action == Action::Allocate);
    let hooked = ModulePath::new("hooked");
    assert!(made.any(|record| (record.site.line(), record.module) == (site, Some(hooked))));
    Ok(())
}
