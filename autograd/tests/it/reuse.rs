//! A buffer is reused exactly when its last handle is moved in and no rule needs it. Reuse never
//! changes a bit.

use lowtide_autograd::{AutogradResult as Result, LeafId, Pass, Var};
use lowtide_tensor::{Conv2dGeometry, Device, RandomKey, Tensor};

use crate::common::{Outcome, bits, cpu, recording, tensor};

type Unary = fn(Var) -> Result<Var>;

/// Operations that can work in place on their first operand.
const IN_PLACE: [(&str, Unary); 4] = [
    ("relu", Var::relu),
    ("mul_scalar", |x| x.mul_scalar(-3.0)),
    ("neg", Var::neg),
    ("add", |x| {
        let row = tensor(x.value().device(), "row", [3]);
        let row = x.pass().constant(row);
        x.add(row)
    }),
];

/// Requests to the allocator that `run` makes.
fn requests<R>(device: &Device, run: impl FnOnce() -> R) -> (R, u64) {
    let before = device.allocator().request_count();
    let result = run();
    (result, device.allocator().request_count() - before)
}

/// The requests of an operation apart from its result: the operand of `add` is made by the case.
fn own_requests(op: &str) -> u64 {
    u64::from(op == "add")
}

/// A fresh value that needs a gradient and that no rule saved.
fn computed(pass: &Pass, device: &Device) -> Result<Var> {
    let [x, w, b] = [
        pass.constant(tensor(device, "x", [4, 5])),
        pass.leaf(LeafId::new(), &tensor(device, "w", [3, 5]))?,
        pass.leaf(LeafId::new(), &tensor(device, "b", [3]))?,
    ];
    x.linear(w, Some(b))
}

#[test]
fn a_moved_result_of_a_linear_layer_is_reused() -> Outcome {
    let device = cpu();
    for (op, function) in IN_PLACE {
        for pass in [recording().0, Pass::no_grad(RandomKey::new(1)), Pass::eval()] {
            let x = computed(&pass, &device)?;
            let (y, count) = requests(&device, || function(x));
            y?;
            assert_eq!(count, own_requests(op), "{op}");
        }
    }
    Ok(())
}

#[test]
fn a_moved_result_of_a_convolution_is_reused() -> Outcome {
    let device = cpu();
    let (pass, _attempt) = recording();
    let x = pass.constant(tensor(&device, "x", [2, 1, 4, 4]));
    let w = pass.leaf(LeafId::new(), &tensor(&device, "w", [2, 1, 3, 3]))?;
    let y = x.conv2d(w, None, Conv2dGeometry::default())?;
    let live = device.allocator().live_blocks().len();
    let (y, count) = requests(&device, || y.relu());
    let _y = y?;
    assert_eq!((count, device.allocator().live_blocks().len()), (0, live));
    Ok(())
}

#[test]
fn a_moved_view_of_a_fresh_buffer_is_reused() -> Outcome {
    let device = cpu();
    let (pass, _attempt) = recording();
    let x = computed(&pass, &device)?.reshape([2, 6])?;
    assert_eq!(requests(&device, || x.relu().map(drop)).1, 0);
    Ok(())
}

/// Values that must not be written, each with the reason and a handle to look at.
fn untouchable(device: &Device) -> Result<Vec<(&'static str, Var, Tensor)>> {
    let (pass, _attempt) = recording();
    let mut cases = Vec::new();
    let mut case = |why, x: Var, seen: Tensor| cases.push((why, x, seen));

    let x = computed(&pass, device)?;
    case("another handle is kept", x.clone(), x.into_value());

    let parameter = tensor(device, "parameter", [4, 3]);
    case("a parameter", pass.leaf(LeafId::new(), &parameter)?, parameter);

    let shared = tensor(device, "shared", [4, 3]);
    case("a constant that the caller holds", pass.constant(shared.clone()), shared);

    let saved = computed(&pass, device)?.exp()?;
    // A handle to the value would itself forbid the reuse, so the case compares with a copy.
    let copy = saved.value().copied()?;
    case("saved by its producer", saved, copy);

    let viewed = tensor(device, "viewed", [3, 4]);
    case("not contiguous", pass.constant(viewed.transpose(0, 1)?), viewed.transpose(0, 1)?);
    Ok(cases)
}

#[test]
fn a_buffer_that_somebody_needs_is_not_reused() -> Outcome {
    let device = cpu();
    for (op, function) in IN_PLACE {
        for (why, x, seen) in untouchable(&device)? {
            let before = bits(&seen);
            let (y, count) = requests(&device, || function(x));
            let y = y?;
            assert_eq!(count, 1 + own_requests(op), "{op}: {why}");
            assert!(!y.value().shares_storage(&seen), "{op}: {why}");
            assert_eq!(bits(&seen), before, "{op}: {why}");
        }
    }
    Ok(())
}

#[test]
fn a_value_saved_by_its_producer_is_not_written_by_the_next_operation() -> Outcome {
    let device = cpu();
    for (op, function) in IN_PLACE {
        let (pass, attempt) = recording();
        // The output of exp is saved: writing it in place would make backward fail.
        let y = function(computed(&pass, &device)?.exp()?)?;
        pass.backward(y.sum_all()?)?;
        assert_eq!(attempt.len(), 2, "{op}");
    }
    Ok(())
}

#[test]
fn a_frozen_buffer_is_not_reused() -> Outcome {
    let device = cpu();
    for (op, function) in IN_PLACE {
        let x = tensor(&device, "frozen", [4, 3]);
        x.freeze();
        let x = Pass::eval().constant(x);
        assert_eq!(requests(&device, || function(x).map(drop)).1, 1 + own_requests(op), "{op}");
    }
    Ok(())
}

#[test]
fn add_reuses_only_a_first_operand_of_the_results_shape() -> Outcome {
    let device = cpu();
    let (row, matrix) = (tensor(&device, "row", [3]), tensor(&device, "matrix", [2, 3]));
    let pass = Pass::eval();
    let expected = bits(&row.add(&matrix)?);
    let (sum, count) = requests(&device, || pass.constant(row).add(pass.constant(matrix)));
    assert_eq!(count, 1);
    assert_eq!(bits(sum?.value()), expected);
    Ok(())
}

/// The bits of `loss, dx, dw` of a chain of all operations that reuse; `keep` may keep handles.
fn chain(device: &Device, keep: fn(&Var, &mut Vec<Var>)) -> Result<(Vec<u32>, Vec<Vec<u32>>)> {
    let (pass, attempt) = recording();
    let (x, w) = (tensor(device, "x", [4, 5]), tensor(device, "w", [3, 5]));
    let row = pass.leaf(LeafId::new(), &tensor(device, "row", [3]))?;
    let mut kept = Vec::new();
    let steps: [&dyn Fn(Var) -> Result<Var>; 5] =
        [&Var::relu, &|y| y.mul_scalar(-1.5), &|y| y.add(row.clone()), &Var::neg, &Var::relu];
    let mut y = pass.leaf(LeafId::new(), &x)?.linear(pass.leaf(LeafId::new(), &w)?, None)?;
    for step in steps {
        keep(&y, &mut kept);
        y = step(y)?;
    }
    keep(&y, &mut kept);
    let loss = y.clone().mul(y)?.sum_all()?;
    let value = bits(loss.value());
    pass.backward(loss)?;
    Ok((value, attempt.into_gradients().iter().map(bits).collect()))
}

#[test]
fn reuse_changes_no_bit() -> Outcome {
    let device = cpu();
    let (reusing, reusing_count) = requests(&device, || chain(&device, |_, _| {}));
    let (copying, copying_count) =
        requests(&device, || chain(&device, |y, kept| kept.push(y.clone())));
    let (reusing, copying) = (reusing?, copying?);
    assert_eq!(reusing.1.len(), 3);
    assert!(reusing.1.iter().flatten().any(|&bits| bits != 0), "a gradient flows");
    assert_eq!(reusing, copying);
    assert!(reusing_count < copying_count, "{reusing_count} requests, {copying_count} with clones");
    Ok(())
}

#[test]
fn backward_through_a_relu_reuses_the_gradient() -> Outcome {
    let device = cpu();
    let x = tensor(&device, "x", [4, 3]);
    let run = |relus: usize| -> Result<u64> {
        let (pass, _attempt) = recording();
        let mut y = pass.leaf(LeafId::new(), &x)?.mul_scalar(2.0)?;
        for _ in 0..relus {
            y = y.relu()?;
        }
        // The gradient of the product has a buffer of its own.
        let c = pass.constant(tensor(&device, "c", [4, 3]));
        let loss = y.mul(c)?.sum_all()?;
        let (outcome, count) = requests(&device, || pass.backward(loss));
        outcome.map(|()| count)
    };
    assert_eq!(run(0)?, run(1)?);
    assert_eq!(run(0)?, run(4)?);
    Ok(())
}
