//! Gradients at kinks and beyond the range of the type equal PyTorch 2.15's on the CPU, for dy = 1.

use lowtide_autograd::{AutogradResult as Result, Var};
use lowtide_tensor::{DType, Tensor, bf16};

use crate::common::{Outcome, cpu, gradients_of, values};

const NAN: f64 = f64::NAN;

/// The gradients of `Σ f(x)` at `inputs`, in f64.
fn gradients(inputs: &[&[f64]], f: impl FnOnce(Vec<Var>) -> Result<Var>) -> Result<Vec<Vec<f64>>> {
    let device = cpu();
    let inputs = inputs.iter().map(|x| Tensor::from_slice(&device, [x.len()], x));
    let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
    let (leaves, found) = gradients_of(&inputs.iter().collect::<Vec<_>>(), |_, x| f(x)?.sum_all())?;
    leaves.into_iter().map(|leaf| Ok(found.get(leaf).expect("it has one").to_vec()?)).collect()
}

#[test]
fn no_gradient_passes_a_number_at_the_end_of_a_range() -> Outcome {
    let x: &[f64] = &[-2.0, -1.0, 0.0, 1.0, 2.0, NAN];
    let of = |f: fn(Var) -> Result<Var>| gradients(&[x], |mut x| f(x.remove(0)));
    // x.clamp(-1, 1), x.clamp(min=-1), x.clamp(max=1), and x.clamp(1, -1) with exchanged limits
    let [both, low, high, none] = [
        of(|x| x.clamp(-1.0, 1.0))?,
        of(|x| x.maximum_scalar(-1.0))?,
        of(|x| x.minimum_scalar(1.0))?,
        of(|x| x.clamp(1.0, -1.0))?,
    ];
    assert_eq!(both[0], [0.0, 0.0, 1.0, 0.0, 0.0, 0.0]);
    assert_eq!(low[0], [0.0, 0.0, 1.0, 1.0, 1.0, 0.0]);
    assert_eq!(high[0], [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]);
    assert_eq!(none[0], [0.0; 6]);
    Ok(())
}

#[test]
fn a_nan_on_either_side_of_maximum_lets_both_gradients_through() -> Outcome {
    let (a, b): (&[f64], &[f64]) =
        (&[0.0, 1.0, 2.0, NAN, 1.0, NAN], &[1.0, 1.0, 1.0, 1.0, NAN, NAN]);
    let pair = |mut x: Vec<Var>| (x.remove(0), x.remove(0));
    // torch.maximum(a, b) and torch.minimum(a, b)
    let larger = gradients(&[a, b], |x| {
        let (a, b) = pair(x);
        a.maximum(b)
    })?;
    assert_eq!(larger[0], [0.0, 0.5, 1.0, 1.0, 1.0, 1.0]);
    assert_eq!(larger[1], [1.0, 0.5, 0.0, 1.0, 1.0, 1.0]);
    let smaller = gradients(&[a, b], |x| {
        let (a, b) = pair(x);
        a.minimum(b)
    })?;
    assert_eq!(smaller[0], [1.0, 0.5, 0.0, 1.0, 1.0, 1.0]);
    assert_eq!(smaller[1], [0.0, 0.5, 1.0, 1.0, 1.0, 1.0]);
    Ok(())
}

#[test]
fn elu_and_selu_keep_the_digits_of_gradients_far_below_zero() -> Outcome {
    let x: [f32; 6] = [-1.0, -10.0, -20.0, -30.0, -50.0, 1.0];
    let device = cpu();
    let x = Tensor::from_slice(&device, [x.len()], &x)?;
    let of = |f: fn(Var) -> Result<Var>| -> Result<Vec<f32>> {
        let (leaves, found) = gradients_of(&[&x], |_, mut x| f(x.remove(0))?.sum_all())?;
        Ok(found.get(leaves[0]).expect("it has one").to_vec()?)
    };
    let near = |found: Vec<f32>, expected: [f32; 6]| {
        let is_near = |(a, b): (&f32, &f32)| (a - b).abs() <= 4.0 * f32::EPSILON * b.abs();
        assert!(found.iter().zip(&expected).all(is_near), "{found:?}, not {expected:?}");
    };
    // F.elu(x, alpha=2) and F.selu(x)
    let elu = [0.735_758_9, 9.079_986e-5, 4.122_307_2e-9, 1.871_524_6e-13, 3.857_499_7e-22, 1.0];
    near(of(|x| x.elu(2.0))?, elu);
    let selu =
        [0.646_768_6, 7.981_759e-5, 3.623_712_8e-9, 1.645_163_1e-13, 3.390_933_8e-22, 1.050_701];
    near(of(|x| x.selu())?, selu);
    Ok(())
}

#[test]
fn the_gradient_of_a_tiny_divisor_is_not_nan() -> Outcome {
    let quotient = |mut x: Vec<Var>| {
        let (a, b) = (x.remove(0), x.remove(0));
        a.div(b)
    };
    // a / b
    let found = gradients(&[&[0.0, 1.0, 6.0], &[1e-310, 1e-310, 3.0]], quotient)?;
    assert_eq!(found[0], [f64::INFINITY, f64::INFINITY, 1.0 / 3.0]);
    assert_eq!(found[1], [0.0, f64::NEG_INFINITY, -2.0 / 3.0]);
    Ok(())
}

#[test]
fn the_gradient_of_a_remainder_counts_divisions_that_are_nearly_whole() -> Outcome {
    let device = cpu();
    let of = |value: f32| Tensor::from_slice(&device, [1], &[value]);
    // torch.remainder(a, b), where 0.7 / 0.1 is less than 7 and rounds to 7
    let (a, b) = (of(0.7)?, of(0.1)?);
    let (leaves, found) = gradients_of(&[&a, &b], |_, mut x| {
        let (a, b) = (x.remove(0), x.remove(0));
        a.remainder(b)?.sum_all()
    })?;
    assert_eq!(found.get(leaves[1]).expect("it has one").to_vec::<f32>()?, [-6.0]);
    Ok(())
}

/// The gradients of `inputs` through `f` in bf16, and the gradients through `f` in f32, rounded
/// once.
fn in_bf16_and_rounded(
    shapes: &[&[usize]],
    f: impl Fn(Vec<Var>) -> Result<Var>,
) -> Result<[Vec<Vec<bf16>>; 2]> {
    let device = cpu();
    let inputs = shapes.iter().enumerate().map(|(index, shape)| {
        let values = values(&format!("input {index}"), shape.iter().product(), -1.0, 1.0);
        let x = Tensor::from_slice(&device, *shape, &values)?;
        x.to_dtype(DType::BF16)
    });
    let inputs = inputs.collect::<lowtide_tensor::TensorResult<Vec<_>>>()?;
    let of = |inputs: &[Tensor]| -> Result<Vec<Vec<bf16>>> {
        let (leaves, found) = gradients_of(&inputs.iter().collect::<Vec<_>>(), |pass, x| {
            let y = f(x)?;
            let weights = values("weights", y.shape().element_count(), -1.0, 1.0);
            let weights = Tensor::from_slice(&device, *y.shape(), &weights)?;
            let weights = weights.to_dtype(DType::BF16)?.to_dtype(y.value().dtype())?;
            y.mul(pass.constant(weights))?.sum_all()
        })?;
        let gradient =
            |leaf| Ok(found.get(leaf).expect("it has one").to_dtype(DType::BF16)?.to_vec()?);
        leaves.into_iter().map(gradient).collect()
    };
    let wide = inputs.iter().map(|x| x.to_dtype(DType::F32));
    let wide = wide.collect::<lowtide_tensor::TensorResult<Vec<_>>>()?;
    Ok([of(&inputs)?, of(&wide)?])
}

#[test]
fn gradients_in_half_types_that_are_sums_over_copies_are_rounded_once() -> Outcome {
    let [found, expected] = in_bf16_and_rounded(&[&[3, 2]], |mut x| x.remove(0).repeat(&[4, 5]))?;
    assert_eq!(found, expected);
    Ok(())
}

#[test]
fn gradients_in_half_types_of_a_matrix_that_a_batch_shares_are_rounded_once() -> Outcome {
    let product = |mut x: Vec<Var>| {
        let (a, b) = (x.remove(0), x.remove(0));
        a.matmul(b)
    };
    for shapes in [
        [&[5, 10][..], &[6, 10, 4][..]],
        [&[1, 5, 10], &[6, 10, 4]],
        [&[6, 5, 10], &[1, 10, 4]],
        [&[2, 3, 5, 10], &[10, 4]],
        [&[10], &[6, 10, 4]],
        [&[6, 5, 10], &[10]],
    ] {
        let [found, expected] = in_bf16_and_rounded(&shapes, product)?;
        assert_eq!(found, expected, "{shapes:?}");
    }
    Ok(())
}
