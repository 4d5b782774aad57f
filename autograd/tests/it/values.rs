//! Gradients at points where finite differences say nothing: kinks, ties, poles. The expected
//! gradients are PyTorch's.

use lowtide_autograd::{AutogradResult as Result, LeafId, Pass, Var};
use lowtide_tensor::{DType, Device, SortOrder, Tensor};

use crate::common::{BLOCK_LEN, Outcome, cpu, gradients_of, live_bytes, recording, tensor};

fn gradients<const N: usize>(
    device: &Device,
    inputs: [&[f64]; N],
    f: impl FnOnce(&Pass, Vec<Var>) -> Result<Var>,
) -> Result<[Vec<f64>; N]> {
    let tensors = inputs.map(|x| Tensor::from_slice(device, [x.len()], x).expect("memory"));
    let (leaves, gradients) =
        gradients_of(&tensors.each_ref(), |pass, vars| f(pass, vars)?.sum_all())?;
    Ok(leaves
        .iter()
        .map(|leaf| gradients.get(*leaf).expect("it has influence").to_vec::<f64>())
        .collect::<lowtide_tensor::TensorResult<Vec<_>>>()?
        .try_into()
        .expect("one each"))
}

#[test]
fn equal_values_share_the_gradient_of_the_larger_and_the_smaller() -> Outcome {
    let device = cpu();
    type Choose = fn(Var, Var) -> Result<Var>;
    let cases: [(Choose, [f64; 3]); 2] =
        [(Var::maximum, [0.0, 0.5, 1.0]), (Var::minimum, [1.0, 0.5, 0.0])];
    for (choose, expected) in cases {
        let inputs: [&[f64]; 2] = [&[1.0, 2.0, 3.0], &[2.0, 2.0, 2.0]];
        let [da, db] = gradients(&device, inputs, |_, mut x| choose(x.remove(0), x.remove(0)))?;
        assert_eq!(da, expected);
        assert_eq!(db, expected.map(|x| 1.0 - x));
    }
    Ok(())
}

/// f16 rounds 0.1 towards 0 and 0.3 away from it; bf16 and f32 round 0.7 towards 0 and 0.3 away.
#[test]
fn limits_of_hardtanh_are_rounded_to_the_stored_type() -> Outcome {
    let device = cpu();
    for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
        for limit in [0.1, 0.3, 0.7] {
            let x = Tensor::from_slice(&device, [3], &[-2.0, 0.0625, 2.0])?.to_dtype(dtype)?;
            let (leaves, gradients) =
                gradients_of(&[&x], |_, mut x| x.remove(0).hardtanh(-limit, limit)?.sum_all())?;
            let dx = gradients.get(leaves[0]).expect("the loss uses x").to_dtype(DType::F64)?;
            assert_eq!(dx.to_vec::<f64>()?, [0.0, 1.0, 0.0], "{dtype}, up to {limit}");
        }
    }
    Ok(())
}

#[test]
fn kinks_have_the_slopes_of_pytorch() -> Outcome {
    let device = cpu();
    type Unary = fn(Var) -> Result<Var>;
    let cases: [(&str, Unary, &[f64], &[f64]); 10] = [
        ("relu", Var::relu, &[-1.0, 0.0, 1.0], &[0.0, 0.0, 1.0]),
        ("abs", Var::abs, &[-1.0, 0.0, 1.0], &[-1.0, 0.0, 1.0]),
        ("leaky_relu", |x| x.leaky_relu(0.5), &[-1.0, 0.0, 1.0], &[0.5, 0.5, 1.0]),
        ("elu", |x| x.elu(2.0), &[0.0, 1.0], &[2.0, 1.0]),
        ("clamp", |x| x.clamp(-1.0, 1.0), &[-2.0, -1.0, 0.0, 1.0, 2.0], &[0.0, 0.0, 1.0, 0.0, 0.0]),
        ("clamp", |x| x.clamp(0.0, f64::INFINITY), &[-2.0, 0.0, 9.0], &[0.0, 0.0, 1.0]),
        (
            "hardtanh",
            |x| x.hardtanh(0.0, 6.0),
            &[-1.0, 0.0, 1.0, 6.0, 7.0],
            &[0.0, 0.0, 1.0, 0.0, 0.0],
        ),
        ("softplus", |x| x.softplus(1.0, 20.0), &[0.0, 21.0], &[0.5, 1.0]),
        ("pow_scalar", |x| x.pow_scalar(0.0), &[0.0, 2.0], &[0.0, 0.0]),
        ("sqrt", Var::sqrt, &[0.0, 4.0], &[f64::INFINITY, 0.25]),
    ];
    for (name, function, x, expected) in cases {
        let [dx] = gradients(&device, [x], |_, mut x| function(x.remove(0)))?;
        assert_eq!(dx, expected, "{name} at {x:?}");
    }
    Ok(())
}

#[test]
fn a_power_of_zero_has_finite_gradients_where_it_can() -> Outcome {
    let inputs: [&[f64]; 2] = [&[0.0, 0.0, 2.0], &[0.0, 2.0, 0.0]];
    let [da, db] = gradients(&cpu(), inputs, |_, mut x| x.remove(0).pow(x.remove(0)))?;
    assert_eq!(da, [0.0, 0.0, 0.0]);
    assert_eq!((db[0], db[1]), (0.0, 0.0));
    assert!((db[2] - 2.0_f64.ln()).abs() <= 1e-15);
    Ok(())
}

#[test]
fn rules_that_need_their_output_work_in_the_inputs_buffer() -> Outcome {
    type Unary = fn(Var) -> Result<Var>;
    let in_place: [Unary; 11] = [
        Var::exp,
        Var::expm1,
        Var::sqrt,
        Var::rsqrt,
        Var::reciprocal,
        Var::tan,
        Var::tanh,
        Var::sigmoid,
        |x| x.leaky_relu(0.1),
        |x| x.div_scalar(3.0),
        |x| x.sub_scalar(3.0),
    ];
    let device = cpu();
    for (index, function) in in_place.into_iter().enumerate() {
        let (pass, _attempt) = recording();
        let x = pass.leaf(LeafId::new(), &tensor(&device, "x", [BLOCK_LEN]))?.mul_scalar(0.5)?;
        let (before, requests) = (live_bytes(&device), device.allocator().request_count());
        let _y = function(x)?;
        let after = (live_bytes(&device), device.allocator().request_count());
        assert_eq!(after, (before, requests), "function {index}");
    }
    Ok(())
}

#[test]
fn a_choice_saves_a_byte_an_element_and_only_where_it_is_recorded() -> Outcome {
    // A mask of LEN elements fills one block, a f32 tensor four.
    const LEN: usize = 4 * BLOCK_LEN;
    let device = cpu();
    let x = tensor(&device, "x", [LEN]);
    let (pass, _attempt) = recording();
    for (pass, mask_bytes) in [(Pass::eval(), 0), (pass, LEN)] {
        let x = pass.leaf(LeafId::new(), &x)?.mul_scalar(2.0)?;
        let before = live_bytes(&device);
        let _y = x.clamp(-0.5, 0.5)?;
        // The input is freed and the result allocated: both have the same size.
        assert_eq!(live_bytes(&device) - before, mask_bytes);
    }
    Ok(())
}

#[test]
fn a_conversion_that_has_no_gradient_is_a_constant() -> Outcome {
    let (pass, _attempt) = recording();
    let x = pass.leaf(LeafId::new(), &tensor(&cpu(), "x", [3]))?;
    assert!(!x.clone().to_dtype(lowtide_tensor::DType::I64)?.needs_gradient());
    assert!(x.to_dtype(lowtide_tensor::DType::F64)?.needs_gradient());
    Ok(())
}

#[test]
fn reductions_have_the_gradients_of_pytorch_at_zeros_and_ties() -> Outcome {
    let device = cpu();
    type Unary = fn(Var) -> Result<Var>;
    let cases: [(&str, Unary, &[f64], &[f64]); 14] = [
        ("prod", |x| x.prod(&[0]), &[2.0, 0.0, 3.0], &[0.0, 6.0, 0.0]),
        ("prod", |x| x.prod(&[0]), &[2.0, 0.0, 0.0], &[0.0, 0.0, 0.0]),
        ("cumprod", |x| x.cumprod(0), &[2.0, 0.0, 3.0, 4.0], &[1.0, 32.0, 0.0, 0.0]),
        ("cumprod", |x| x.cumprod(0), &[2.0, 0.0, 3.0, 0.0], &[1.0, 8.0, 0.0, 0.0]),
        ("amax", |x| x.amax(&[0]), &[1.0, 2.0, 2.0], &[0.0, 0.5, 0.5]),
        ("amin", |x| x.amin(&[0]), &[1.0, 2.0, 1.0], &[0.5, 0.0, 0.5]),
        ("max", |x| Ok(x.max(0)?.0), &[1.0, 2.0, 2.0], &[0.0, 1.0, 0.0]),
        ("min", |x| Ok(x.min(0)?.0), &[1.0, 2.0, 1.0], &[1.0, 0.0, 0.0]),
        ("norm", |x| x.norm(&[0], 2.0), &[0.0, 0.0], &[0.0, 0.0]),
        ("norm", |x| x.norm(&[0], 3.0), &[0.0, 0.0], &[0.0, 0.0]),
        ("norm", |x| x.norm(&[0], 1.0), &[0.0, -2.0], &[0.0, -1.0]),
        ("norm", |x| x.norm(&[0], f64::INFINITY), &[-3.0, 1.0, 3.0], &[-0.5, 0.0, 0.5]),
        ("std", |x| x.std(&[0], 1.0), &[4.0, 4.0], &[0.0, 0.0]),
        ("sort", |x| Ok(x.sort(0, SortOrder::Ascending)?.0), &[1.0, 1.0], &[1.0, 1.0]),
    ];
    for (name, function, x, expected) in cases {
        let [dx] = gradients(&device, [x], |_, mut x| function(x.remove(0)))?;
        assert_eq!(dx, expected, "{name} at {x:?}");
    }
    let [da, db] = gradients(&device, [&[0.0], &[0.0]], |_, mut x| x.remove(0).atan2(x.remove(0)))?;
    assert_eq!((da, db), (vec![0.0], vec![0.0]), "atan2 at the origin");
    Ok(())
}

#[test]
fn joining_nothing_is_an_error() {
    for (op, result) in [("cat", Var::cat(Vec::new(), 0)), ("stack", Var::stack(Vec::new(), 0))] {
        let text = result.err().expect("nothing to join").to_string();
        assert!(text.contains(op), "{text}");
    }
}
