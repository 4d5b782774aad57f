//! The scaler with gradients of an attempt, on the CPU.

use lowtide_amp::{GradientError, LossScaler};
use lowtide_autograd::{Attempt, Gradients, LeafId, Pass};
use lowtide_tensor::{CpuOptions, DType, Device, RandomKey, Tensor};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// The gradient of `Σ w · x` times `scale`, for `w` of `dtype`.
fn gradients(x: &[f32], scale: f32, dtype: DType) -> Result<(LeafId, Gradients), GradientError> {
    let device = Device::cpu(CpuOptions::default())?;
    let x = Tensor::from_slice(&device, [x.len()], x)?.to_dtype(dtype)?;
    let w = Tensor::zeros(&device, *x.shape(), dtype)?;
    let (leaf, attempt) = (LeafId::new(), Attempt::new());
    let pass = Pass::train(RandomKey::new(1), &attempt);
    let product = pass.leaf(leaf, &w).and_then(|w| w.mul(pass.constant(x)));
    let loss = product.and_then(|product| product.sum_all()).expect("a small product");
    pass.backward_seeded(loss, f64::from(scale)).expect("a small product");
    Ok((leaf, attempt.into_gradients()))
}

#[test]
fn gradients_of_an_attempt_are_unscaled_and_looked_at() -> Outcome {
    for (dtype, bad) in [(DType::F32, f32::NAN), (DType::BF16, f32::INFINITY), (DType::F64, 0.0)] {
        let mut scaler = LossScaler::default();
        let (leaf, mut clean) = gradients(&[1.0, -0.25, 3.0], scaler.scale(), dtype)?;
        assert!(scaler.step("clean", &mut clean)?);
        let found = clean.get(leaf).unwrap().to_dtype(DType::F32)?;
        assert_eq!(found.to_vec::<f32>()?, [1.0, -0.25, 3.0]);
        let (_, mut other) = gradients(&[1.0, bad], scaler.scale(), dtype)?;
        assert_eq!(scaler.step("other", &mut other)?, bad == 0.0);
        scaler.update()?;
        assert_eq!(scaler.scale(), if bad == 0.0 { 65_536.0 } else { 32_768.0 });
    }
    Ok(())
}

#[test]
fn f16_gradients_are_refused_and_left_alone() -> Outcome {
    // PyTorch: "Attempting to unscale FP16 gradients."
    let mut scaler = LossScaler::default();
    let (leaf, mut halves) = gradients(&[0.5], 2.0, DType::F16)?;
    let error = scaler.step("", &mut halves).unwrap_err();
    assert!(matches!(error, GradientError::F16Gradient), "{error}");
    assert!(error.to_string().contains("keep the parameters in f32"), "{error}");
    assert_eq!(scaler, LossScaler::default());
    assert_eq!(halves.get(leaf).unwrap().to_dtype(DType::F32)?.to_vec::<f32>()?, [1.0]);
    Ok(())
}

#[test]
fn attempt_without_gradients_is_finite() -> Outcome {
    let mut scaler = LossScaler::default();
    assert!(scaler.step("", &mut Gradients::default())?);
    Ok(scaler.update()?)
}
