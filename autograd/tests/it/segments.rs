//! A segment gives the same bits whether its saved tensors are kept, recomputed or offloaded.

use std::cell::Cell;
use std::rc::Rc;

use lowtide_allocator::{BLOCK_BYTES, Fault, Repeat};
use lowtide_autograd::{
    Attempt, AutogradError, AutogradResult as Result, BufferId, LeafId, Offload, Pass, SavedPolicy,
    Var,
};
use lowtide_tensor::{Device, RandomKey, Tensor, TensorError};

use crate::common::{BLOCK_LEN, Outcome, bits, cpu, live_bytes, recording, tensor};

/// A layer with everything that could differ in a second run: leaves, random numbers, a buffer that
/// is read and written, and an input that is used twice.
#[derive(Clone)]
struct Layer {
    name: &'static str,
    weight: (LeafId, Tensor),
    scale: (BufferId, Tensor),
    calls: Rc<Cell<usize>>,
}

impl Layer {
    fn new(device: &Device, name: &'static str) -> Self {
        Layer {
            name,
            weight: (LeafId::new(), tensor(device, name, [BLOCK_LEN])),
            scale: (BufferId::new(), tensor(device, "scale", [BLOCK_LEN])),
            calls: Rc::default(),
        }
    }

    fn forward(&self, pass: &Pass, x: Var) -> Result<Var> {
        self.calls.set(self.calls.get() + 1);
        let scale = pass.buffer(self.scale.0, &self.scale.1);
        pass.update_buffer(self.scale.0, scale.lerp(x.value(), 0.1)?);
        let mut mask = Tensor::empty(x.value().device(), [BLOCK_LEN], x.value().dtype())?;
        pass.within(self.name, || mask.bernoulli_(pass.draw(), 0.7))?;
        let weight = pass.leaf(self.weight.0, &self.weight.1)?;
        let y = x.clone().exp()?.mul(pass.constant(mask))?.mul(pass.constant(scale))?;
        y.mul(weight)?.add(x.clone().mul(x)?)
    }
}

/// The arrangement of the model's layers in segments.
#[derive(Clone)]
enum Shape {
    Plain,
    Each(SavedPolicy),
    Nested(SavedPolicy, SavedPolicy),
}

type Bits = (Vec<u32>, Vec<Vec<u32>>, Vec<Vec<u32>>, [u32; 4]);

/// The loss, gradients, buffers and next draw after two steps of three layers.
fn run(x: &Tensor, layers: &[Layer; 3], shape: &Shape) -> Result<Bits> {
    let (attempt, input) = (Attempt::new(), LeafId::new());
    let (mut loss_bits, mut after) = (Vec::new(), [0; 4]);
    for step in 0..2 {
        let pass = Pass::train(RandomKey::new(9).step(step), &attempt);
        let first = pass.leaf(input, x)?.mul_scalar(0.5)?;
        let mut y = first.clone();
        match shape.clone() {
            Shape::Plain => {
                for layer in layers {
                    y = layer.forward(&pass, y)?;
                }
            }
            Shape::Each(policy) => {
                for layer in layers.clone() {
                    y = pass.segment(&policy, y, move |pass, x| layer.forward(pass, x))?;
                }
            }
            Shape::Nested(outer, inner) => {
                let layers = layers.clone();
                y = pass.segment(&outer, y, move |pass, mut x| {
                    for layer in layers.clone() {
                        x = pass.segment(&inner, x, move |pass, x| layer.forward(pass, x))?;
                    }
                    Ok(x)
                })?;
            }
        }
        // The input of the first layer is used before and after the segment.
        let loss = y.mul(first)?.sum_all()?;
        loss_bits.extend(bits(loss.value()));
        pass.within("layer", || after = pass.draw().block(0));
        pass.backward_seeded(loss, 0.25)?;
    }
    let (gradients, buffers) = attempt.into_parts();
    let buffers = buffers.iter().map(|(_, value)| bits(value)).collect();
    Ok((loss_bits, gradients.iter().map(bits).collect(), buffers, after))
}

fn model(device: &Device) -> [Layer; 3] {
    // The first and the last layer draw under one path.
    ["layer", "other", "layer"].map(|name| Layer::new(device, name))
}

fn shapes(host: &Device) -> Vec<Shape> {
    let offload = |prefetch_count| {
        SavedPolicy::Offload(Offload { size_bytes_min: 0, prefetch_count, ..Offload::to(host) })
    };
    let policies = [SavedPolicy::Keep, SavedPolicy::Recompute, offload(0), offload(2)];
    let mut shapes: Vec<Shape> = policies.iter().cloned().map(Shape::Each).collect();
    for outer in &policies {
        shapes.extend(policies.iter().map(|inner| Shape::Nested(outer.clone(), inner.clone())));
    }
    shapes
}

#[test]
fn every_policy_gives_the_same_bits() -> Outcome {
    let (device, host) = (cpu(), cpu());
    let (layers, x) = (model(&device), tensor(&device, "x", [BLOCK_LEN]));
    let expected = run(&x, &layers, &Shape::Plain)?;
    assert_eq!((expected.1.len(), expected.2.len()), (4, 3));
    assert!(expected.1.iter().all(|gradient| gradient.iter().any(|&bits| bits != 0)));
    let before = (live_bytes(&device), live_bytes(&host));
    for (index, shape) in shapes(&host).iter().enumerate() {
        assert_eq!(run(&x, &layers, shape)?, expected, "shape {index}");
        assert_eq!((live_bytes(&device), live_bytes(&host)), before, "shape {index}");
    }
    Ok(())
}

#[test]
fn a_checkpoint_keeps_its_input_and_runs_twice() -> Outcome {
    let device = cpu();
    let layer = Layer::new(&device, "layer");
    let kept = |again: bool| -> Result<usize> {
        let (pass, _attempt) = recording();
        let x = pass.leaf(LeafId::new(), &tensor(&device, "x", [BLOCK_LEN]))?.mul_scalar(0.5)?;
        let before = live_bytes(&device);
        let inside = layer.clone();
        let y = if again {
            pass.checkpoint(x, move |pass, x| inside.forward(pass, x))?
        } else {
            inside.forward(&pass, x)?
        };
        layer.calls.set(0);
        let live = live_bytes(&device) - before;
        pass.backward(y.sum_all()?)?;
        assert_eq!(layer.calls.get(), usize::from(again));
        Ok(live)
    };
    // The result and the update of the buffer stay under every policy.
    assert_eq!(kept(true)?, 2 * BLOCK_BYTES);
    assert!(kept(false)? >= 6 * BLOCK_BYTES);
    Ok(())
}

#[test]
fn a_segment_whose_only_leaves_are_its_own_is_recorded() -> Outcome {
    let device = cpu();
    let (pass, attempt) = recording();
    let layer = Layer::new(&device, "layer");
    let leaf = layer.weight.0;
    let x = pass.constant(tensor(&device, "x", [BLOCK_LEN]));
    let y = pass.checkpoint(x, move |pass, x| layer.forward(pass, x))?;
    assert!(y.needs_gradient());
    pass.backward(y.sum_all()?)?;
    assert!(attempt.into_gradients().get(leaf).is_some());
    Ok(())
}

#[test]
fn what_needs_no_gradient_inside_needs_none_outside() -> Outcome {
    let x = tensor(&cpu(), "x", [3]);
    let (pass, _attempt) = recording();
    let inputs = vec![pass.leaf(LeafId::new(), &x)?, pass.constant(x)];
    let outputs = pass.checkpoint_many(inputs, |_, inputs| {
        inputs.into_iter().map(|x| x.exp()).chain([]).collect()
    })?;
    assert_eq!(outputs.iter().map(Var::needs_gradient).collect::<Vec<_>>(), [true, false]);
    let without_rule = pass
        .checkpoint(outputs[0].clone(), |_, x| x.apply_without_rule("negate", |x| Ok(x.neg()?)));
    let error = without_rule.err().expect("already in the first run");
    assert!(matches!(error, AutogradError::NoRule { op: "negate", .. }), "{error}");
    Ok(())
}

#[test]
fn gradients_of_chosen_values_flow_through_a_segment_and_spare_its_leaves() -> Outcome {
    let device = cpu();
    let layer = Layer::new(&device, "layer");
    let found = |again: bool| -> Result<Vec<u32>> {
        let (pass, attempt) = recording();
        let x = pass.input(tensor(&device, "x", [BLOCK_LEN]))?;
        let inside = layer.clone();
        let function = move |pass: &Pass, x| inside.forward(pass, x);
        let y =
            if again { pass.checkpoint(x.clone(), function)? } else { function(&pass, x.clone())? };
        let seed = tensor(&device, "seed", [BLOCK_LEN]);
        let found = pass.gradients(vec![(y, seed)], &[x])?;
        assert!(attempt.is_empty());
        Ok(bits(found[0].as_ref().expect("it has influence")))
    };
    assert_eq!(found(true)?, found(false)?);
    Ok(())
}

#[test]
fn a_segment_that_gives_something_else_the_second_time_is_an_error() -> Outcome {
    let x = tensor(&cpu(), "x", [4]);
    let (pass, _attempt) = recording();
    let calls = Cell::new(0);
    let y = pass.checkpoint(pass.leaf(LeafId::new(), &x)?, move |_, x| {
        calls.set(calls.get() + 1);
        x.exp()?.narrow(0, 0, calls.get())
    })?;
    let error = pass.backward(y.sum_all()?).unwrap_err();
    let expected = |error: &AutogradError| {
        matches!(error, AutogradError::Tensor(TensorError::Shape { op: "checkpoint", .. }))
    };
    assert!(expected(&error), "{error}");
    Ok(())
}

#[test]
fn what_is_written_before_the_second_run_is_an_error() -> Outcome {
    let device = cpu();
    for writes_leaf in [false, true] {
        let (mut x, mut w) = (tensor(&device, "x", [4]), tensor(&device, "w", [4]));
        let (pass, _attempt) = recording();
        let (leaf, inside) = (LeafId::new(), w.clone());
        let y = pass.checkpoint(pass.constant(x.clone()), move |pass, x| {
            x.mul(pass.leaf(leaf, &inside)?)
        })?;
        let (written, first) = (if writes_leaf { &mut w } else { &mut x }, line!() + 1);
        written.fill_(1.0)?;
        let error = pass.backward(y.sum_all()?).unwrap_err();
        let AutogradError::Modified { op: "checkpoint", written_at, .. } = error else {
            panic!("{error}");
        };
        assert_eq!((written_at.file(), written_at.line()), (file!(), first));
    }
    Ok(())
}

#[test]
fn values_of_the_outer_pass_do_not_enter_a_checkpoint_unseen() -> Outcome {
    let x = tensor(&cpu(), "x", [4]);
    let (pass, _attempt) = recording();
    let outer = pass.leaf(LeafId::new(), &x)?;
    let captured = outer.clone();
    let error = pass.checkpoint(outer.clone(), move |_, x| x.mul(captured.clone())).err();
    assert!(matches!(error, Some(AutogradError::Passes { op: "mul", .. })));
    let error = pass.checkpoint(outer.clone(), move |_, _| Ok(outer.clone())).err();
    assert!(matches!(error, Some(AutogradError::Passes { op: "checkpoint", .. })));
    Ok(())
}

#[test]
fn an_error_of_a_segments_own_comes_through() -> Outcome {
    let x = tensor(&cpu(), "x", [4]);
    let (pass, _attempt) = recording();
    let mine = || AutogradError::segment(std::io::Error::other("mine"));
    let error = pass.checkpoint(pass.leaf(LeafId::new(), &x)?, move |_, _| Err(mine())).err();
    assert_eq!(error.expect("failed").to_string(), "mine");
    Ok(())
}

#[test]
fn every_request_of_a_step_with_segments_may_fail() -> Outcome {
    let (device, host) = (cpu(), cpu());
    let (layers, x) = (model(&device), tensor(&device, "x", [BLOCK_LEN]));
    let offload = Offload { size_bytes_min: 0, prefetch_count: 1, ..Offload::to(&host) };
    let shape = Shape::Nested(SavedPolicy::Offload(offload), SavedPolicy::Recompute);
    let expected = run(&x, &layers, &shape)?;
    for memory in [device.allocator(), host.allocator()] {
        let start = memory.request_count();
        run(&x, &layers, &shape)?;
        let requests = memory.request_count() - start;
        assert!(requests >= 3, "{requests}");
        let before = (device.allocator().layout_hash(), host.allocator().layout_hash());
        for nth in 1..=requests {
            memory.inject_fault(Fault { nth, repeat: Repeat::Once });
            let error = run(&x, &layers, &shape).expect_err("a request failed");
            memory.clear_fault();
            assert!(error.out_of_memory().is_some(), "request {nth}: {error}");
            let after = (device.allocator().layout_hash(), host.allocator().layout_hash());
            assert_eq!(after, before, "request {nth}: {error}");
        }
    }
    assert_eq!(run(&x, &layers, &shape)?, expected);
    Ok(())
}

#[test]
fn a_buffer_that_two_segments_update_keeps_the_last_one() -> Outcome {
    let device = cpu();
    let layer = Layer::new(&device, "layer");
    let updated = |policy: &SavedPolicy| -> Result<Vec<u32>> {
        let (pass, attempt) = recording();
        let mut x = pass.leaf(LeafId::new(), &tensor(&device, "x", [BLOCK_LEN]))?;
        for _ in 0..2 {
            let layer = layer.clone();
            x = pass.segment(policy, x, move |pass, x| layer.forward(pass, x))?;
        }
        pass.backward(x.sum_all()?)?;
        let updates = attempt.take_buffer_updates();
        Ok(bits(updates.get(layer.scale.0).expect("written")))
    };
    assert_eq!(updated(&SavedPolicy::Recompute)?, updated(&SavedPolicy::Keep)?);
    Ok(())
}
