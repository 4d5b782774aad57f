//! Blocks of models whose saved tensors are kept, recomputed or offloaded.

use lowtide_autograd::{Attempt, Offload, Pass, SavedPolicy};
use lowtide_nn::Result;
use lowtide_tensor::{DType, Device};

use crate::common::{KEY, Outcome, cpu};
use crate::zoo::{Trained, ZOO, fill};

/// All bits that a step makes: loss, gradients, buffers.
fn step_bits(case: &mut dyn Trained) -> Result<Vec<Vec<u8>>> {
    let attempt = Attempt::new();
    let pass = Pass::train(KEY, &attempt);
    let loss = case.loss(&pass)?;
    let mut all = vec![loss.value().to_bytes()?];
    pass.backward(loss)?;
    let (gradients, updates) = attempt.into_parts();
    let bytes = gradients.iter().chain(updates.iter().map(|(_, value)| value));
    for tensor in bytes {
        all.push(tensor.to_bytes()?);
    }
    Ok(all)
}

/// Bytes that the forward pass leaves alive on the device, and those at the peak of a step.
fn memory_bytes(case: &mut dyn Trained, device: &Device) -> Result<[usize; 2]> {
    let memory = device.allocator();
    let before = memory.statistics().requested.current_bytes;
    memory.reset_peaks();
    let attempt = Attempt::new();
    let pass = Pass::train(KEY, &attempt);
    let loss = case.loss(&pass)?;
    let after = memory.statistics().requested.current_bytes;
    pass.backward(loss)?;
    Ok([after - before, memory.statistics().requested.peak_bytes - before])
}

#[test]
fn every_policy_gives_the_same_bits() -> Outcome {
    let (device, host) = (cpu(), cpu());
    let offload = SavedPolicy::Offload(Offload { size_bytes_min: 0, ..Offload::to(&host) });
    let mut checked = 0;
    for (name, build) in ZOO {
        let mut case = build(&device, 0.2)?;
        fill(case.model());
        if case.segments().is_none() {
            continue;
        }
        let expected = step_bits(&mut *case)?;
        let [kept, kept_peak] = memory_bytes(&mut *case, &device)?;
        for policy in [SavedPolicy::Keep, SavedPolicy::Recompute, offload.clone()] {
            case.segments().expect("it has blocks").set_policy(Some(policy.clone()));
            assert!(step_bits(&mut *case)? == expected, "{name} {policy:?}");
            let [bytes, peak] = memory_bytes(&mut *case, &device)?;
            match policy {
                SavedPolicy::Keep => assert_eq!(bytes, kept, "{name}"),
                _ => assert!(bytes < kept && peak <= kept_peak, "{name} {policy:?} {bytes} {kept}"),
            }
        }
        checked += 1;
    }
    assert_eq!(checked, 8);
    Ok(())
}

#[test]
fn a_policy_can_be_given_to_single_blocks() -> Outcome {
    let device = cpu();
    let mut case = ZOO[6].1(&device, 0.2)?;
    let expected = step_bits(&mut *case)?;
    let mut saved = Vec::new();
    for recomputed in 0..=2 {
        let mut index = 0;
        case.segments().expect("it has blocks").visit_policies(&mut |policy| {
            *policy = (index < recomputed).then_some(SavedPolicy::Recompute);
            index += 1;
        });
        assert_eq!(index, 2, "two blocks");
        assert!(step_bits(&mut *case)? == expected, "{recomputed} recomputed");
        saved.push(memory_bytes(&mut *case, &device)?[0]);
    }
    assert!(saved[0] > saved[1] && saved[1] > saved[2], "{saved:?}");
    Ok(())
}

#[test]
fn dropout_changes_the_loss_of_those_that_have_it() -> Outcome {
    // Otherwise the bits above would say little about random numbers.
    let device = cpu();
    let mut with_dropout = 0;
    for (name, build) in ZOO {
        let loss = |dropout| -> Result<f64> {
            let mut case = build(&device, dropout)?;
            fill(case.model());
            let loss = case.loss(&Pass::no_grad(KEY))?;
            Ok(loss.value().to_dtype(DType::F64)?.item::<f64>()?)
        };
        with_dropout += usize::from(loss(0.0)? != loss(0.2)?);
        assert!(loss(0.2)?.is_finite(), "{name}");
    }
    assert_eq!(with_dropout, 6);
    Ok(())
}
