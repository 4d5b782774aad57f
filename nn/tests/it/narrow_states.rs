//! Parameters of bf16, and states in 8 bits.

use std::error::Error;

use lowtide_autograd::Gradients;
use lowtide_nn::Parameter;
use lowtide_nn::optim::{Adam, AdamOptions, Optimizer, Sgd, SgdOptions, Stateful};
use lowtide_tensor::{DType, RandomKey, Tensor};

use crate::common::{Outcome, Pair, cpu, f64s, values};

#[test]
fn steps_too_small_for_bf16_are_lost_but_for_stochastic_rounding() -> Outcome {
    let device = cpu();
    let end = |optimizer: &mut Sgd| -> std::result::Result<f64, Box<dyn std::error::Error>> {
        let start = Tensor::full(&device, [4096], DType::BF16, 1.0)?;
        let mut model = Pair([Parameter::new(start), Parameter::new(f64s(&device, "b", [5]))]);
        for _ in 0..64 {
            let g = Tensor::full(&device, [4096], DType::F32, 1.0)?;
            let mut gradients = Gradients::default();
            gradients.insert(model.0[0].id(), g);
            optimizer.prepare(&mut model, gradients)?.commit()?;
        }
        let values = model.0[0].value().to_dtype(DType::F64)?.to_vec::<f64>()?;
        Ok(values.iter().sum::<f64>() / 4096.0)
    };
    // 64 steps of 1/2048. Values of bf16 just below 1 are 1/256 apart, so nearest rounding never
    // moves.
    let options = SgdOptions::new(1.0 / 2048.0);
    assert_eq!(end(&mut Sgd::new(options)?)?, 1.0);
    let mean = end(&mut Sgd::new(options)?.with_stochastic_rounding(RandomKey::new(5)))?;
    assert!((mean - (1.0 - 64.0 / 2048.0)).abs() < 1e-3, "{mean}");
    Ok(())
}

/// Minimises `½ Σ (p - goal)²` from 0. Returns the mean distance at the end, and the bytes of the
/// states.
fn descend(
    mut optimizer: impl Stateful,
    steps: usize,
) -> std::result::Result<[f64; 2], Box<dyn Error>> {
    let (device, len) = (cpu(), 10_000);
    let goal = Tensor::from_slice(&device, [len], &values("goal", len))?.to_dtype(DType::F32)?;
    let start = Parameter::new(Tensor::zeros(&device, [len], DType::F32)?);
    let mut model = Pair([start, Parameter::new(Tensor::zeros(&device, [5], DType::F32)?)]);
    let declared = optimizer.memory(&mut model).state_bytes;
    let mut taken = 0;
    for _ in 0..steps {
        let mut gradients = Gradients::default();
        gradients.insert(model.0[0].id(), model.0[0].value().sub(&goal)?);
        gradients.insert(model.0[1].id(), Tensor::zeros(&device, [5], DType::F32)?);
        let before = device.allocator().statistics().allocated.current_bytes;
        let update = optimizer.prepare(&mut model, gradients)?;
        taken += device.allocator().statistics().allocated.current_bytes - before;
        update.commit()?;
    }
    assert_eq!(taken, declared);
    let distance = model.0[0].value().sub(&goal)?.abs()?.to_dtype(DType::F64)?;
    Ok([distance.mean(&[0])?.item::<f64>()?, declared as f64])
}

#[test]
fn states_of_8_bits_lead_to_the_same_goal_with_a_quarter_of_the_memory() -> Outcome {
    let adam = AdamOptions { learning_rate: 0.02, ..AdamOptions::adamw() };
    let sgd = SgdOptions { momentum: 0.9, ..SgdOptions::new(0.02) };
    let runs = [
        (descend(Adam::new(adam)?, 150)?, descend(Adam::new(adam)?.with_8bit_states(), 150)?),
        (descend(Sgd::new(sgd)?, 150)?, descend(Sgd::new(sgd)?.with_8bit_states(), 150)?),
    ];
    for ([exact, exact_bytes], [quantized, bytes]) in runs {
        // Blocks have 512 bytes, and the states of the small parameter stay f32.
        assert!(bytes < 0.28 * exact_bytes, "{bytes} {exact_bytes}");
        // The mean distance at the start is 1/2.
        assert!(exact < 0.02 && quantized < 0.02, "{exact} {quantized}");
        assert_ne!(exact, quantized);
    }
    Ok(())
}
