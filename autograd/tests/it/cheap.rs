//! Cheap recomputation: the results that are dropped, the equal bits of recomputed results, and the
//! cost.

use lowtide_allocator::BLOCK_BYTES;
use lowtide_autograd::{
    Attempt, AutogradError, AutogradResult as Result, CastPolicy, LeafId, Offload, Pass,
    SavedPolicy, Var,
};
use lowtide_tensor::{Conv2dGeometry, DType, Device, Dropout, RandomKey, Tensor};

use crate::common::{BLOCK_LEN, Outcome, cpu, live_bytes, tensor};

/// A side of the square matrices: one fills a block.
const SIDE: usize = 11;

/// All products in bf16, normalisations in f32.
struct Mixed;

impl CastPolicy for Mixed {
    fn dtype(&self, op: &str, _: &[DType]) -> Option<DType> {
        match op {
            "matmul" => Some(DType::BF16),
            "layer_norm" => Some(DType::F32),
            _ => None,
        }
    }
}

/// The bytes that a forward pass leaves on the device, the requests of the whole pass, and all
/// gradients.
#[derive(Debug, PartialEq)]
struct Found {
    kept_bytes: usize,
    requests: u64,
    gradients: Vec<Vec<u8>>,
}

type Graph = fn(&Pass, Vec<Var>) -> Result<Var>;

/// Runs `graph` on four matrices, two rows and two numbers.
fn run(graph: Graph, is_cheap: bool, prepare: fn(Pass) -> Pass) -> Result<Found> {
    let device = cpu();
    let shapes: [&[usize]; 8] =
        [&[SIDE, SIDE], &[SIDE, SIDE], &[SIDE, SIDE], &[SIDE, SIDE], &[SIDE], &[SIDE], &[1], &[1]];
    let inputs: Vec<Tensor> = shapes
        .iter()
        .enumerate()
        .map(|(index, shape)| {
            let flat = tensor(&device, &index.to_string(), [shape.iter().product()]);
            flat.reshape(*shape)
        })
        .collect::<lowtide_tensor::TensorResult<_>>()?;
    let attempt = Attempt::new();
    let pass = prepare(Pass::train(RandomKey::new(3), &attempt));
    let pass = if is_cheap { pass.with_cheap_recomputed() } else { pass };
    let before = (live_bytes(&device), device.allocator().request_count());
    let vars = inputs.iter().map(|input| pass.leaf(LeafId::new(), input));
    let loss = graph(&pass, vars.collect::<Result<_>>()?)?;
    let kept_bytes = live_bytes(&device) - before.0;
    pass.backward(loss)?;
    let requests = device.allocator().request_count() - before.1;
    let collected = attempt.into_gradients();
    let gradients = collected.iter().map(|gradient| Ok(gradient.to_bytes()?));
    let gradients = gradients.collect::<Result<_>>()?;
    drop((collected, pass));
    assert_eq!(live_bytes(&device), before.0, "nothing is left over");
    Ok(Found { kept_bytes, requests, gradients })
}

/// Checks that `graph` keeps `blocks` blocks fewer with cheap recomputation, and that the gradients
/// have the same bits.
fn check(name: &str, graph: Graph, prepare: fn(Pass) -> Pass, blocks: usize) -> Outcome {
    let kept = run(graph, false, prepare)?;
    let cheap = run(graph, true, prepare)?;
    assert!(kept.gradients == cheap.gradients, "{name}");
    let saved = (kept.kept_bytes - cheap.kept_bytes) / BLOCK_BYTES;
    assert_eq!(saved, blocks, "{name}: {kept:?} {cheap:?}");
    Ok(())
}

fn as_it_is(pass: Pass) -> Pass {
    pass
}

fn images(x: Var) -> Result<Var> {
    x.reshape([1, 1, SIDE, SIDE])
}

fn row(x: &Var) -> Option<Var> {
    Some(x.clone())
}

#[test]
fn cheap_results_go_and_come_back_with_their_bits() -> Outcome {
    check(
        "activation function",
        |_, x| x[0].clone().matmul(x[1].clone())?.gelu()?.matmul(x[2].clone())?.sum_all(),
        as_it_is,
        1,
    )?;
    check(
        "layer norm",
        |_, x| {
            let y =
                x[0].clone().matmul(x[1].clone())?.layer_norm(1, row(&x[4]), row(&x[5]), 1e-5)?;
            y.clone().matmul(x[2].clone())?.add(y.matmul(x[3].clone())?)?.sum_all()
        },
        as_it_is,
        1,
    )?;
    check(
        "root mean square norm, and a gate",
        |_, x| {
            let y = x[0].clone().matmul(x[1].clone())?.rms_norm(1, row(&x[4]), 1e-5)?;
            let gate = y.clone().matmul(x[2].clone())?.silu()?;
            gate.mul(y.matmul(x[3].clone())?)?.matmul(x[0].clone())?.sum_all()
        },
        as_it_is,
        // The norm, the gate and the product.
        3,
    )?;
    check(
        "dropout of an activation function",
        |_, x| {
            let y = x[0].clone().matmul(x[1].clone())?.gelu_tanh()?;
            let dropout = Dropout { probability: 0.3, key: RandomKey::new(9), first: 0 };
            y.dropout(dropout)?.matmul(x[2].clone())?.sum_all()
        },
        as_it_is,
        1,
    )?;
    check(
        "batch norm and relu in place",
        |_, x| {
            let w = x[1].clone().reshape([1, 1, SIDE, SIDE])?;
            let geometry = Conv2dGeometry { padding: [5, 5], ..Default::default() };
            let y = images(x[0].clone())?.conv2d(w.clone(), None, geometry)?;
            let (y, _) = y.batch_norm(row(&x[6]), row(&x[7]), 1e-5)?;
            y.relu()?.conv2d(w, None, geometry)?.sum_all()
        },
        as_it_is,
        1,
    )?;
    check(
        "casts",
        |_, x| {
            let y =
                x[0].clone().matmul(x[1].clone())?.layer_norm(1, row(&x[4]), row(&x[5]), 1e-5)?;
            y.matmul(x[2].clone())?.to_dtype(DType::F32)?.sum_all()
        },
        |pass| pass.with_casts(Mixed),
        1,
    )?;
    Ok(())
}

#[test]
fn what_has_nothing_kept_to_begin_with_stays() -> Outcome {
    // relu runs in the buffer of the product, so the product does not exist any more.
    check(
        "relu of a product",
        |_, x| x[0].clone().matmul(x[1].clone())?.relu()?.matmul(x[2].clone())?.sum_all(),
        as_it_is,
        0,
    )?;
    // A narrowed view keeps the whole result alive.
    check(
        "part of a result",
        |_, x| {
            let y = x[0].clone().matmul(x[1].clone())?.gelu()?;
            y.narrow(0, 1, SIDE - 1)?.matmul(x[2].clone())?.sum_all()
        },
        as_it_is,
        0,
    )
}

#[test]
fn a_result_that_the_caller_holds_stays_and_is_not_computed_again() -> Outcome {
    let device = cpu();
    let [a, b] = ["a", "b"].map(|name| tensor(&device, name, [SIDE, SIDE]));
    let run = |is_cheap: bool| -> Result<u64> {
        let attempt = Attempt::new();
        let pass = Pass::train(RandomKey::new(3), &attempt);
        let pass = if is_cheap { pass.with_cheap_recomputed() } else { pass };
        let before = device.allocator().request_count();
        let [a, b] = [&a, &b].map(|x| pass.leaf(LeafId::new(), x));
        let (a, b) = (a?, b?);
        let y = a.matmul(b.clone())?.gelu()?;
        let held = y.value().clone();
        pass.backward(y.matmul(b)?.sum_all()?)?;
        drop(held);
        Ok(device.allocator().request_count() - before)
    };
    assert_eq!(run(true)?, run(false)?);
    Ok(())
}

#[test]
fn chains_of_cheap_operations_stay_linear() -> Outcome {
    /// Operations of the chain.
    const LEN: u64 = 60;
    let chain: Graph = |_, x| {
        let mut y = x[0].clone().matmul(x[1].clone())?;
        for _ in 0..LEN {
            y = y.gelu()?;
        }
        y.sum_all()
    };
    let (kept, cheap) = (run(chain, false, as_it_is)?, run(chain, true, as_it_is)?);
    assert!(kept.gradients == cheap.gradients);
    // Every fifth result stays.
    let blocks = [&kept, &cheap].map(|found| found.kept_bytes / BLOCK_BYTES);
    assert!(blocks[0] >= 60 && blocks[1] < 20, "{blocks:?}");
    assert!(cheap.requests - kept.requests <= 4 * LEN, "{} {}", cheap.requests, kept.requests);
    Ok(())
}

#[test]
fn policies_of_segments_count_inside_of_them() -> Outcome {
    let (device, host) = (cpu(), cpu());
    let x = tensor(&device, "x", [BLOCK_LEN]);
    let run = |policy: Option<&SavedPolicy>, is_cheap: bool| -> Result<(usize, Vec<u8>)> {
        let (attempt, leaf) = (Attempt::new(), LeafId::new());
        let pass = Pass::train(RandomKey::new(3), &attempt);
        let pass = if is_cheap { pass.with_cheap_recomputed() } else { pass };
        let before = live_bytes(&device);
        let body = |_: &Pass, x: Var| x.exp()?.gelu()?.mul_scalar(0.5)?.gelu();
        let x = pass.leaf(leaf, &x)?.mul_scalar(0.5)?;
        let y = match policy {
            Some(policy) => pass.segment(policy, x, body)?,
            None => body(&pass, x)?,
        };
        let loss = y.sum_all()?;
        let kept = live_bytes(&device) - before;
        pass.backward(loss)?;
        let gradients = attempt.into_gradients();
        Ok((kept / BLOCK_BYTES, gradients.get(leaf).expect("used").to_bytes()?))
    };
    let offload = SavedPolicy::Offload(Offload { size_bytes_min: 0, ..Offload::to(&host) });
    let (kept, expected) = run(None, false)?;
    let (cheap, found) = run(None, true)?;
    assert!(found == expected && cheap < kept, "{cheap} {kept}");
    for (policy, blocks) in [(SavedPolicy::Keep, kept), (SavedPolicy::Recompute, 2), (offload, 1)] {
        for is_cheap in [false, true] {
            let (found_blocks, found) = run(Some(&policy), is_cheap)?;
            assert!(found == expected, "{policy:?}");
            assert_eq!(found_blocks, blocks, "{policy:?} {is_cheap}");
        }
    }
    assert_eq!(live_bytes(&host), 0);
    Ok(())
}

/// Recipes hold tensors that no rule needs. Backward must free them, even though values and the
/// pass live on.
#[test]
fn recipes_hold_no_memory_after_backward() -> Outcome {
    let device = cpu();
    let [a, b] = ["a", "b"].map(|name| tensor(&device, name, [SIDE, SIDE]));
    let before = live_bytes(&device);
    let attempt = Attempt::new();
    let pass = Pass::train(RandomKey::new(3), &attempt).with_cheap_recomputed();
    let [a, b] = [&a, &b].map(|x| pass.leaf(LeafId::new(), x));
    // The recipe of y keeps the product; the caller keeps y.
    let y = a?.matmul(b?)?.gelu()?;
    pass.backward(y.clone().mul_scalar(2.0)?.sum_all()?)?;
    drop(attempt.into_gradients());
    assert_eq!(live_bytes(&device) - before, BLOCK_BYTES, "y alone");
    drop((pass, y));
    assert_eq!(live_bytes(&device), before);
    Ok(())
}

#[test]
fn a_write_to_an_input_of_a_recipe_is_an_error() -> Outcome {
    let device = cpu();
    let x = tensor(&device, "x", [SIDE, SIDE]);
    let mut bias = tensor(&device, "bias", [SIDE]);
    let write = |device: &Device, is_cheap: bool, bias: &mut Tensor| -> Result<()> {
        let attempt = Attempt::new();
        let pass = Pass::train(RandomKey::new(3), &attempt);
        let pass = if is_cheap { pass.with_cheap_recomputed() } else { pass };
        let x = pass.leaf(LeafId::new(), &x)?;
        let b = pass.constant(bias.clone());
        let w = pass.constant(Tensor::full(device, [SIDE], DType::F32, 1.0)?);
        let y = x.clone().layer_norm(1, Some(w), Some(b), 1e-5)?;
        let loss = y.matmul(x)?.sum_all()?;
        bias.mul_scalar_(2.0)?;
        pass.backward(loss)
    };
    // Only the recipe reads the bias, not the rule.
    write(&device, false, &mut bias)?;
    let error = write(&device, true, &mut bias).expect_err("the bias was written");
    assert!(matches!(error, AutogradError::Modified { op: "layer_norm", .. }), "{error}");
    Ok(())
}
