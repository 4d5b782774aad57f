//! The lifetime of memory in a pass: when it is allocated and when it is freed.

use std::cell::RefCell;
use std::rc::Rc;

use lowtide_allocator::{BLOCK_BYTES, Category};
use lowtide_autograd::{AutogradResult as Result, LeafId, Needs, Pass, Var};
use lowtide_tensor::{
    Conv2dGeometry, Device, LinearCrossEntropyOptions, Pool2dGeometry, RandomKey, Tensor,
};

use crate::common::{BLOCK_LEN, Outcome, cpu, live_bytes, recording, tensor};

/// A value of exactly one block.
fn block(device: &Device, name: &str) -> Tensor {
    tensor(device, name, [BLOCK_LEN])
}

/// The identity, whose rule notes the live bytes.
fn probe(x: Var, notes: &Rc<RefCell<Vec<usize>>>) -> Result<Var> {
    let notes = Rc::clone(notes);
    Var::apply("probe", [x], |[x], _| {
        let rule = move |dy: Tensor, _: Needs| {
            notes.borrow_mut().push(live_bytes(dy.device()));
            Ok(vec![Some(dy)])
        };
        Ok((x, rule))
    })
}

#[test]
fn what_a_rule_saved_is_freed_before_the_walk_goes_on() -> Outcome {
    const STEPS: usize = 20;
    let device = cpu();
    let x = block(&device, "x");
    let (pass, _attempt) = recording();
    let notes = Rc::new(RefCell::new(Vec::new()));
    let mut y = pass.leaf(LeafId::new(), &x)?.mul_scalar(0.01)?;
    for _ in 0..STEPS {
        y = probe(y.exp()?.mul_scalar(0.01)?, &notes)?;
    }
    pass.backward(y.sum_all()?)?;
    let notes = notes.borrow();
    assert_eq!(notes.len(), STEPS);
    // Each step saved one block, the output of exp. The walk holds one gradient at every step.
    for (step, pair) in notes.windows(2).enumerate().skip(1) {
        assert_eq!(pair[0] - pair[1], BLOCK_BYTES, "live bytes from step {step}: {notes:?}");
    }
    Ok(())
}

#[test]
fn backward_needs_a_fixed_number_of_blocks_beside_what_was_saved() -> Outcome {
    let device = cpu();
    let x = block(&device, "x");
    let extra_bytes = |steps: usize| -> Result<usize> {
        let (pass, attempt) = recording();
        let mut y = pass.leaf(LeafId::new(), &x)?;
        for _ in 0..steps {
            y = y.mul_scalar(0.01)?.exp()?;
        }
        let loss = y.sum_all()?;
        let before = live_bytes(&device);
        device.allocator().reset_peaks();
        pass.backward(loss)?;
        assert_eq!(attempt.len(), 1);
        Ok(device.allocator().statistics().allocated.peak_bytes - before)
    };
    let few = extra_bytes(2)?;
    assert_eq!(few, extra_bytes(50)?);
    // The peak contains the seed, the incoming gradient, and the outgoing gradient.
    assert!(few <= 3 * BLOCK_BYTES, "{few} bytes beside what forward kept");
    Ok(())
}

/// A small network; returns the loss.
fn forward(pass: &Pass, inputs: &[Tensor; 4]) -> Result<Var> {
    let [x, conv, linear, bias] = inputs;
    let leaf = |value| pass.leaf(LeafId::new(), value);
    let y = pass.constant(x.clone()).conv2d(leaf(conv)?, None, Conv2dGeometry::default())?;
    let y = y.relu()?.max_pool2d(Pool2dGeometry::square(2))?.flatten(1..4)?;
    let y = y.linear(leaf(linear)?, Some(leaf(bias)?))?;
    let labels = Tensor::from_slice(x.device(), [2], &[1_i64, 0])?;
    let (sum, count) = y.cross_entropy(&labels, -100)?;
    sum.div(pass.constant(count))
}

fn network(device: &Device) -> [Tensor; 4] {
    [
        tensor(device, "x", [2, 1, 6, 6]),
        tensor(device, "conv", [3, 1, 3, 3]),
        tensor(device, "linear", [4, 12]),
        tensor(device, "bias", [4]),
    ]
}

#[test]
fn a_hundred_steps_leave_nothing_behind() -> Outcome {
    let device = cpu();
    let inputs = network(&device);
    let memory = device.allocator();
    let before = (live_bytes(&device), memory.layout_hash());
    let mut peak_bytes = None;
    for step in 0..100 {
        memory.reset_peaks();
        let (pass, attempt) = recording();
        pass.backward(forward(&pass, &inputs)?)?;
        assert_eq!(attempt.len(), 3);
        drop((pass, attempt));
        assert_eq!((live_bytes(&device), memory.layout_hash()), before, "after step {step}");
        let peak = memory.statistics().allocated.peak_bytes;
        assert_eq!(*peak_bytes.get_or_insert(peak), peak, "peak of step {step}");
    }
    Ok(())
}

#[test]
fn a_pass_that_is_dropped_without_backward_leaves_nothing_behind() -> Outcome {
    let device = cpu();
    let inputs = network(&device);
    let before = device.allocator().live_blocks();
    let (pass, attempt) = recording();
    let loss = forward(&pass, &inputs)?;
    drop((pass, attempt));
    assert!(device.allocator().live_blocks().len() > before.len(), "the loss holds its record");
    drop(loss);
    assert_eq!(device.allocator().live_blocks(), before);
    Ok(())
}

#[test]
fn a_value_that_outlives_backward_holds_no_record() -> Outcome {
    let device = cpu();
    let x = block(&device, "x");
    let before = live_bytes(&device);
    let (pass, attempt) = recording();
    let y = pass.leaf(LeafId::new(), &x)?.exp()?;
    pass.backward(y.clone().exp()?.sum_all()?)?;
    drop((pass, attempt));
    assert_eq!(live_bytes(&device) - before, BLOCK_BYTES, "y alone");
    drop(y);
    Ok(())
}

#[test]
fn passes_that_do_not_record_keep_nothing_but_the_result() -> Outcome {
    let device = cpu();
    let inputs = network(&device);
    for pass in [Pass::eval(), Pass::no_grad(RandomKey::new(1))] {
        let before = device.allocator().live_blocks().len();
        let loss = forward(&pass, &inputs)?;
        assert!(!loss.needs_gradient());
        assert_eq!(device.allocator().live_blocks().len(), before + 1, "the loss and no more");
    }
    Ok(())
}

#[test]
fn constants_of_a_recording_pass_are_not_kept() -> Outcome {
    let device = cpu();
    let before = device.allocator().live_blocks().len();
    let (pass, _attempt) = recording();
    let y = pass.constant(block(&device, "x")).exp()?.log()?.mul_scalar(2.0)?;
    assert_eq!(device.allocator().live_blocks().len(), before + 1);
    drop(y);
    Ok(())
}

#[test]
fn gradients_count_as_gradients() -> Outcome {
    let device = cpu();
    let x = block(&device, "x");
    let (pass, attempt) = recording();
    let loss = {
        let _scope = device.category(Category::Activation);
        pass.leaf(LeafId::new(), &x)?.exp()?.sum_all()?
    };
    pass.backward(loss)?;
    let gradients = attempt.into_gradients();
    assert!(gradients.iter().all(|gradient| gradient.category() == Category::Gradient));
    let by_category = device.allocator().statistics().by_category;
    assert_eq!(by_category[Category::Gradient].current_bytes, BLOCK_BYTES);
    assert_eq!(by_category[Category::Activation].current_bytes, 0);
    assert_eq!(device.allocator().current_category(), Category::Other);
    Ok(())
}

/// A depth far beyond what recursion survives on a test's stack of 2 MiB.
const MANY: usize = 100_000;

#[test]
fn a_chain_of_a_million_operations_is_walked_and_dropped() -> Outcome {
    const LEN: usize = 1_000_000;
    let device = cpu();
    let x = tensor(&device, "x", [1]);
    let before = live_bytes(&device);
    for walks in [true, false] {
        let (pass, attempt) = recording();
        let mut y = pass.leaf(LeafId::new(), &x)?;
        for _ in 0..LEN {
            y = y.mul_scalar(1.0)?;
        }
        assert_eq!(live_bytes(&device) - before, BLOCK_BYTES, "one buffer serves them all");
        if walks {
            device.allocator().reset_peaks();
            pass.backward(y)?;
            let peak = device.allocator().statistics().allocated.peak_bytes;
            assert!(peak - before <= 2 * BLOCK_BYTES, "{peak} bytes, {before} before");
            let gradients = attempt.into_gradients();
            assert_eq!(gradients.iter().next().unwrap().item::<f32>()?, 1.0);
        }
    }
    assert_eq!(live_bytes(&device), before);
    Ok(())
}

#[test]
fn a_deep_graph_is_walked_without_recursion() -> Outcome {
    let x = tensor(&cpu(), "x", [1]);
    let (pass, attempt) = recording();
    let mut y = pass.leaf(LeafId::new(), &x)?;
    for _ in 0..MANY {
        y = y.add_scalar(1e-9)?;
    }
    pass.backward(y.sum_all()?)?;
    assert_eq!(attempt.into_gradients().iter().next().unwrap().item::<f32>()?, 1.0);
    Ok(())
}

#[test]
fn a_deep_graph_is_dropped_without_recursion() -> Outcome {
    let device = cpu();
    let x = tensor(&device, "x", [1]);
    let before = live_bytes(&device);
    let (pass, attempt) = recording();
    let mut y = pass.leaf(LeafId::new(), &x)?.exp()?;
    for _ in 0..MANY {
        y = y.mul_scalar(1.0)?.relu()?;
    }
    drop((pass, attempt, y));
    assert_eq!(live_bytes(&device), before);
    Ok(())
}

/// The bytes that the forward pass leaves alive, and the peak of backward above the bytes that were
/// alive before the pass.
fn bytes_of(device: &Device, run: impl FnOnce(&Pass) -> Result<Var>) -> Result<[usize; 2]> {
    let (pass, _attempt) = recording();
    let before = live_bytes(device);
    let loss = run(&pass)?;
    let kept = live_bytes(device) - before;
    device.allocator().reset_peaks();
    pass.backward(loss)?;
    Ok([kept, device.allocator().statistics().allocated.peak_bytes - before])
}

#[test]
fn frozen_weights_keep_no_inputs_and_have_no_gradients() -> Outcome {
    let device = cpu();
    let x = tensor(&device, "x", [64, 128]);
    let [w, head] = [tensor(&device, "w", [128, 128]), tensor(&device, "head", [2000, 128])];
    let layers = |is_frozen: bool| {
        bytes_of(&device, |pass| {
            let mut y = pass.leaf(LeafId::new(), &x)?;
            for _ in 0..4 {
                let w = if is_frozen {
                    pass.constant(w.clone())
                } else {
                    pass.leaf(LeafId::new(), &w)?
                };
                y = y.linear(w, None)?;
            }
            y.sum_all()
        })
    };
    let ([trained, _], [frozen, _]) = (layers(false)?, layers(true)?);
    assert_eq!(trained - frozen, 3 * x.size_bytes());
    let labels = Tensor::from_slice(&device, [64], &[7_i64; 64])?;
    let [_, peak] = bytes_of(&device, |pass| {
        let (x, head) = (pass.leaf(LeafId::new(), &x)?, pass.constant(head.clone()));
        let options = LinearCrossEntropyOptions::default();
        Ok(x.linear_cross_entropy(head, None, &labels, options)?.0)
    })?;
    assert!(peak < head.size_bytes(), "{peak}");
    Ok(())
}
