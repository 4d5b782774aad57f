//! Operations run in the types that a cast policy chooses.

use lowtide_autograd::{Attempt, AutogradResult as Result, CastPolicy, LeafId, Pass};
use lowtide_tensor::{DType, RandomKey, Tensor};

use crate::common::{Outcome, cpu, tensor};

/// Products in bf16, reductions in f32, other operations in the type of their inputs.
struct Mixed;

impl CastPolicy for Mixed {
    fn dtype(&self, op: &str, inputs: &[DType]) -> Option<DType> {
        match op {
            "mul" => Some(DType::BF16),
            "sum" => Some(DType::F32),
            "add" => inputs.contains(&DType::F32).then_some(DType::F32),
            _ => None,
        }
    }
}

#[test]
fn operations_run_in_the_types_of_the_policy_and_gradients_come_back_in_the_leafs() -> Outcome {
    let device = cpu();
    let (x, w) = (tensor(&device, "x", [64]), tensor(&device, "w", [64]));
    let (attempt, leaf) = (Attempt::new(), LeafId::new());
    let pass = Pass::train(RandomKey::new(1), &attempt).with_casts(Mixed);
    let product = pass.constant(x.clone()).mul(pass.leaf(leaf, &w)?)?;
    assert_eq!(product.value().dtype(), DType::BF16);
    let same = product.clone().mul_scalar(1.0)?;
    assert_eq!(same.value().dtype(), DType::BF16, "left alone");
    let shifted = same.add(pass.constant(x.clone()))?;
    assert_eq!(shifted.value().dtype(), DType::F32, "the wider of both");
    let loss = shifted.sum_all()?;
    assert_eq!(loss.value().dtype(), DType::F32);
    pass.backward(loss)?;

    let gradients = attempt.into_gradients();
    let dw = gradients.get(leaf).unwrap();
    let expected = x.to_dtype(DType::BF16)?.to_dtype(DType::F32)?;
    assert_eq!(dw.dtype(), DType::F32);
    assert_eq!(dw.to_vec::<f32>()?, expected.to_vec::<f32>()?, "x in the product's type");
    Ok(())
}

#[test]
fn a_recomputed_segment_casts_as_before() -> Outcome {
    let device = cpu();
    let run = |again: bool| -> Result<Vec<f32>> {
        let (x, w) = (tensor(&device, "x", [64]), tensor(&device, "w", [64]));
        let (attempt, leaf) = (Attempt::new(), LeafId::new());
        let pass = Pass::train(RandomKey::new(1), &attempt).with_casts(Mixed);
        let x = pass.constant(x);
        let segment = move |pass: &Pass, x: lowtide_autograd::Var| {
            x.mul(pass.leaf(leaf, &w)?)?.exp()?.sum_all()
        };
        let loss = if again { pass.checkpoint(x, segment)? } else { segment(&pass, x)? };
        pass.backward(loss)?;
        Ok(attempt.into_gradients().get(leaf).map(Tensor::to_vec::<f32>).unwrap()?)
    };
    assert_eq!(run(true)?, run(false)?);
    Ok(())
}
