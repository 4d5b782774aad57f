//! The cases of PyTorch's `test_cuda.py` under their names, with slices as parameters and
//! gradients.

use lowtide_amp::{AmpError, LossScaler};

use crate::scaler;

/// One weight and its optimizer: gradient descent with step size 1.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Weight {
    w: f32,
    dw: f32,
}

impl Weight {
    fn new(w: f32) -> Self {
        Weight { w, dw: 0.0 }
    }

    /// Adds the gradient of the loss `slope · w` times `scale`.
    fn backward(&mut self, slope: f32, scale: f32) {
        self.dw += slope * scale;
    }

    fn unscale(&mut self, scaler: &mut LossScaler, name: &str) -> Result<bool, AmpError> {
        scaler.unscale(name, &mut [std::slice::from_mut(&mut self.dw)][..])
    }

    fn step(&mut self, scaler: &mut LossScaler, name: &str) -> Result<bool, AmpError> {
        let steps = scaler.step(name, &mut [std::slice::from_mut(&mut self.dw)][..])?;
        if steps {
            self.w -= self.dw;
        }
        self.dw = 0.0;
        Ok(steps)
    }
}

#[test]
fn grad_scaling_unscale() {
    for (scale, values) in [(4.0, [4.0, -8.0]), (0.5, [1.0, 3.0]), (1.0, [1e-38, 2.0])] {
        for bad in [None, Some(f32::INFINITY), Some(f32::NEG_INFINITY), Some(f32::NAN)] {
            let mut scaler = scaler(scale, 2.0, 0.5, 1);
            let (mut first, mut second) = (values, [values[1], bad.unwrap_or(values[0])]);
            let gradients = &mut [&mut first[..], &mut second[..]][..];
            assert_eq!(scaler.unscale("", gradients).unwrap(), bad.is_some());
            assert_eq!(first, values.map(|x| x / scale));
            assert_eq!(second[0], values[1] / scale);
        }
    }
}

#[test]
fn grad_scaling_update_scale() {
    let mut scaler = scaler(4.0, 2.0, 0.25, 2);
    let mut weight = Weight::new(0.0);
    let mut iterate = |slope: f32| {
        weight.backward(slope, 1.0);
        weight.step(&mut scaler, "").unwrap();
        scaler.update().unwrap();
        (scaler.scale(), scaler.growth_tracker())
    };
    assert_eq!(iterate(1.0), (4.0, 1));
    assert_eq!(iterate(1.0), (8.0, 0));
    assert_eq!(iterate(f32::INFINITY), (2.0, 0));
    assert_eq!(iterate(1.0), (2.0, 1));
    assert_eq!(iterate(f32::NAN), (0.5, 0));
}

#[test]
fn grad_scale_will_not_overflow() {
    let mut scaler = scaler(1e38, 16.0, 0.5, 1);
    let mut weight = Weight::new(0.0);
    for _ in 0..3 {
        weight.backward(1.0, scaler.scale());
        weight.step(&mut scaler, "").unwrap();
        scaler.update().unwrap();
        assert_eq!((scaler.scale(), scaler.growth_tracker()), (1e38, 0));
    }
}

#[test]
fn grad_scaling_state_dict() {
    for lazy_init in [true, false] {
        let mut saved = scaler(3.0, 4.0, 0.5, 2);
        let mut restored = scaler(6.0, 7.0, 0.8, 1);
        if !lazy_init {
            let mut weight = Weight::new(0.0);
            weight.step(&mut saved, "").unwrap();
            saved.update().unwrap();
        }
        restored.set_state(saved.state()).unwrap();
        assert_eq!(restored, saved);
        assert_eq!(restored.growth_tracker(), u32::from(!lazy_init));
    }
    // PyTorch for the state of a disabled scaler: "The source state dict is empty".
    let mut enabled = LossScaler::default();
    assert_eq!(enabled.set_state(LossScaler::disabled().state()), Err(AmpError::NoState));
    assert_eq!(enabled, LossScaler::default());
    let mut disabled = LossScaler::disabled();
    disabled.set_state(enabled.state()).unwrap();
    assert_eq!(disabled, LossScaler::disabled());
}

#[test]
fn grad_scaling_accumulation() {
    let (iters_to_accumulate, slopes) = (2, [0.5, 0.25, -1.0, 3.0]);
    for found_at in [None, Some(2)] {
        let mut scaler = scaler(128.0, 2.0, 0.5, 1);
        let (mut scaled, mut plain) = (Weight::new(1.0), Weight::new(1.0));
        for (index, &slope) in slopes.iter().enumerate() {
            let infinite = if found_at == Some(index) { f32::INFINITY } else { 1.0 };
            scaled.backward(slope * infinite / iters_to_accumulate as f32, scaler.scale());
            plain.backward(slope / iters_to_accumulate as f32, 1.0);
            if (index + 1) % iters_to_accumulate == 0 {
                let steps = scaled.step(&mut scaler, "").unwrap();
                assert_eq!(steps, found_at != Some(index - 1), "window up to {index}");
                scaler.update().unwrap();
                if steps {
                    plain.w -= plain.dw;
                }
                plain.dw = 0.0;
            }
        }
        assert_eq!(scaled, plain);
        // The scale changes once per window: twice up, or up and down.
        assert_eq!(scaler.scale(), if found_at.is_some() { 128.0 } else { 512.0 });
    }
}

#[test]
fn grad_scaling_clipping() {
    // The gradients stay scaled, so the limit is scaled instead.
    let (mut scaler, norm_max) = (scaler(128.0, 2.0, 0.5, 1), 0.2);
    let mut weight = Weight::new(1.0);
    weight.backward(1.0, scaler.scale());
    weight.dw = weight.dw.min(norm_max * scaler.scale());
    assert!(weight.step(&mut scaler, "").unwrap());
    assert_eq!(weight.w, 1.0 - norm_max);
}

#[test]
fn grad_scaling_clipping_separate_unscale() {
    let (mut scaler, norm_max) = (scaler(128.0, 2.0, 0.5, 1), 0.2);
    let mut weight = Weight::new(1.0);
    for slope in [1.0, f32::INFINITY, 0.125] {
        weight.backward(slope, scaler.scale());
        let found_infinite = weight.unscale(&mut scaler, "").unwrap();
        assert_eq!(weight.dw, slope, "the true gradient");
        weight.dw = weight.dw.min(norm_max);
        // The step does not unscale again, and uses the check from before the clipping.
        assert_eq!(weight.step(&mut scaler, "").unwrap(), !found_infinite);
        scaler.update().unwrap();
    }
    assert_eq!(weight.w, 1.0 - norm_max - 0.125);
    assert_eq!(scaler.scale(), 256.0);
}

#[test]
fn grad_scaling_penalty() {
    // loss = w³ / 3 + |d loss / dw|²: the inner gradient, w², is unscaled by hand before it enters
    // the penalty, whose derivative is 4 w³.
    let mut scaler = scaler(256.0, 2.0, 0.5, 1);
    let mut weight = Weight::new(1.5);
    let scaled_inner = weight.w.powi(2) * scaler.scale();
    let inner = scaled_inner * scaler.inverse_scale();
    weight.backward(inner + 4.0 * weight.w.powi(3), scaler.scale());
    assert!(!weight.unscale(&mut scaler, "").unwrap());
    assert_eq!(weight.dw, 2.25 + 13.5);
    assert!(weight.step(&mut scaler, "").unwrap());
}

#[test]
fn grad_scaling_multiple() {
    let mut scaler = scaler(128.0, 2.0, 0.5, 1);
    let (mut first, mut second) = (Weight::new(1.0), Weight::new(1.0));
    for (index, slope) in [0.5, f32::NEG_INFINITY, 0.25].into_iter().enumerate() {
        // One loss reaches both optimizers, the other only the second.
        let scale = scaler.scale();
        first.backward(slope, scale);
        second.backward(0.125, scale);
        second.backward(0.125, scale);
        assert_eq!(first.step(&mut scaler, "0").unwrap(), index != 1);
        assert!(second.step(&mut scaler, "1").unwrap(), "skipping one does not skip the other");
        scaler.update().unwrap();
        assert_eq!(scaler.scale(), [256.0, 128.0, 256.0][index], "they share the scale");
    }
    assert_eq!((first.w, second.w), (0.25, 0.25));
}

#[test]
fn skip_training_step_with_grad_scaler() {
    // A case of Lightning's: a step without a loss reaches no optimizer, and the scale stays.
    let mut scaler = scaler(128.0, 2.0, 0.5, 1);
    let before = scaler.clone();
    assert!(matches!(scaler.update(), Err(AmpError::Order { .. })));
    assert_eq!(scaler, before);
    let mut weight = Weight::new(1.0);
    weight.backward(0.5, scaler.scale());
    assert!(weight.step(&mut scaler, "").unwrap());
    scaler.update().unwrap();
    assert_eq!(weight.w, 0.5);
}
