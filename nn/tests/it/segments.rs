//! Blocks of models whose saved tensors are kept, recomputed or offloaded.

use lowtide_autograd::{Attempt, Offload, Pass, SavedPolicy};
use lowtide_nn::models::{Gpt, GptShape};
use lowtide_nn::{
    BatchNorm2d, Conv2d, Dropout, Module, NnError, NnResult as Result, Parameters, ReLU, Sequential,
};
use lowtide_tensor::{Conv2dGeometry, DType, Device, Tensor};

use crate::common::{KEY, Outcome, cpu};
use crate::zoo::{Trained, ZOO, fill, uniform};

/// The treatment of cheap results in a pass.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Cheap {
    Kept,
    Recomputed,
}

fn pass_of(attempt: &Attempt, cheap: Cheap) -> Pass {
    let pass = Pass::train(KEY, attempt);
    if cheap == Cheap::Recomputed { pass.with_cheap_recomputed() } else { pass }
}

/// The bits of a step: loss, gradients and buffers.
fn step_bits(case: &mut dyn Trained, cheap: Cheap) -> Result<Vec<Vec<u8>>> {
    let attempt = Attempt::new();
    let pass = pass_of(&attempt, cheap);
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

/// Bytes that the forward pass keeps on the device, and peak bytes of the step.
fn memory_bytes(case: &mut dyn Trained, device: &Device, cheap: Cheap) -> Result<[usize; 2]> {
    let memory = device.allocator();
    let before = memory.statistics().requested.current_bytes;
    memory.reset_peaks();
    let attempt = Attempt::new();
    let pass = pass_of(&attempt, cheap);
    let loss = case.loss(&pass)?;
    let after = memory.statistics().requested.current_bytes;
    pass.backward(loss)?;
    Ok([after - before, memory.statistics().requested.peak_bytes - before])
}

#[test]
fn every_policy_gives_the_same_bits() -> Outcome {
    let (device, host) = (cpu(), cpu());
    let to_host = Offload { size_bytes_min: 0, ..Offload::to(&host) };
    let [offload, from] =
        [SavedPolicy::Offload, SavedPolicy::RecomputeFrom].map(|of| of(to_host.clone()));
    let mut checked = 0;
    for (name, build) in ZOO {
        let mut case = build(&device, 0.2)?;
        fill(case.model());
        if !case.has_blocks() {
            continue;
        }
        let expected = step_bits(&mut *case, Cheap::Kept)?;
        let [kept, kept_peak] = memory_bytes(&mut *case, &device, Cheap::Kept)?;
        let policies = [SavedPolicy::Keep, SavedPolicy::Recompute, offload.clone(), from.clone()];
        for policy in policies {
            case.model().set_policy(Some(policy.clone()));
            assert!(step_bits(&mut *case, Cheap::Kept)? == expected, "{name} {policy:?}");
            let [bytes, peak] = memory_bytes(&mut *case, &device, Cheap::Kept)?;
            match policy {
                SavedPolicy::Keep => assert_eq!(bytes, kept, "{name}"),
                _ => assert!(bytes < kept && peak <= kept_peak, "{name} {policy:?} {bytes} {kept}"),
            }
        }
        checked += 1;
    }
    assert_eq!(checked, 10);
    Ok(())
}

/// Results are also recomputed inside of blocks that are recomputed or offloaded. The simulated
/// device predicts the memory to the byte.
#[test]
fn cheap_results_of_every_model_are_recomputed_to_the_same_bits() -> Outcome {
    for (name, build) in ZOO {
        let (device, host) = (cpu(), cpu());
        let (sim, sim_host) = (device.simulate(), host.simulate());
        let [mut case, mut simulated] = [build(&device, 0.2)?, build(&sim, 0.2)?];
        fill(case.model());
        let expected = step_bits(&mut *case, Cheap::Kept)?;
        let policies = |host: &Device| {
            let offload = Offload { size_bytes_min: 0, ..Offload::to(host) };
            let from = Some(SavedPolicy::RecomputeFrom(offload.clone()));
            [None, Some(SavedPolicy::Recompute), Some(SavedPolicy::Offload(offload)), from]
        };
        for (policy, sim_policy) in policies(&host).into_iter().zip(policies(&sim_host)) {
            case.model().set_policy(policy.clone());
            simulated.model().set_policy(sim_policy);
            assert!(step_bits(&mut *case, Cheap::Recomputed)? == expected, "{name} {policy:?}");
            let kept = memory_bytes(&mut *case, &device, Cheap::Kept)?;
            let found = memory_bytes(&mut *case, &device, Cheap::Recomputed)?;
            assert!(found[0] <= kept[0], "{name} {policy:?}: {found:?} of {kept:?}");
            assert_eq!(memory_bytes(&mut *simulated, &sim, Cheap::Recomputed)?, found, "{name}");
        }
    }
    Ok(())
}

/// A block in which a second run could repeat side effects: random numbers, running statistics.
fn block(device: &Device, index: usize) -> Result<Sequential> {
    let geometry = Conv2dGeometry { padding: [1, 1], ..Default::default() };
    let key = KEY.op(&index.to_string());
    Ok(Sequential::new()
        .then(Conv2d::new(device, key, [4, 4], [3, 3], geometry)?)
        .then(BatchNorm2d::new(device, 4)?)
        .then(Dropout::new(0.4)?)
        .then(ReLU))
}

/// The bits of a step of two blocks inside of one segment, each block in a segment of its own; and
/// the bytes that the forward pass keeps.
fn nested_bits(
    device: &Device,
    blocks: &[Sequential; 2],
    [outer, inner]: &[SavedPolicy; 2],
) -> Result<(Vec<Vec<u8>>, usize)> {
    let attempt = Attempt::new();
    let mut all = Vec::new();
    let mut kept = 0;
    // Two micro-batches of one attempt: the second reads the statistics of the first.
    for start in [0, 3] {
        let pass = Pass::train(KEY, &attempt).with_first_sample(start);
        let x = uniform(device, 7 + start, &[3, 4, 6, 6])?;
        let before = device.allocator().statistics().requested.current_bytes;
        let (blocks, inner) = (blocks.clone(), inner.clone());
        let y = pass.segment(outer, pass.constant(x), move |pass, mut x| {
            for (index, block) in blocks.clone().into_iter().enumerate() {
                x = pass.within(&index.to_string(), || {
                    pass.segment(&inner, x, move |pass, x| {
                        block.forward(pass, x).map_err(NnError::into_autograd)
                    })
                })?;
            }
            Ok(x)
        })?;
        let loss = y.clone().mul(y)?.sum_all()?;
        kept = device.allocator().statistics().requested.current_bytes - before;
        all.push(loss.value().to_bytes()?);
        pass.backward_seeded(loss, 0.5)?;
    }
    let (gradients, updates) = attempt.into_parts();
    // Gradients of 4 parameters and updates of 3 buffers for each of the two blocks.
    assert_eq!((gradients.len(), updates.len()), (8, 6));
    for tensor in gradients.iter().chain(updates.iter().map(|(_, value)| value)) {
        all.push(tensor.to_bytes()?);
    }
    Ok((all, kept))
}

#[test]
fn nested_segments_with_dropout_and_batch_normalisation_give_the_same_bits() -> Outcome {
    let (device, host) = (cpu(), cpu());
    let blocks = [block(&device, 0)?, block(&device, 1)?];
    let offload = |prefetch_count| {
        SavedPolicy::Offload(Offload { size_bytes_min: 0, prefetch_count, ..Offload::to(&host) })
    };
    let policies = [SavedPolicy::Keep, SavedPolicy::Recompute, offload(0), offload(2)];
    let kept = [SavedPolicy::Keep, SavedPolicy::Keep];
    let (expected, most) = nested_bits(&device, &blocks, &kept)?;
    for outer in &policies {
        for inner in &policies {
            let (found, kept) = nested_bits(&device, &blocks, &[outer.clone(), inner.clone()])?;
            assert!(found == expected, "{outer:?} around {inner:?}");
            // The inner policy decides, unless the outer policy recomputes all blocks.
            let saves = *outer == SavedPolicy::Recompute || *inner != SavedPolicy::Keep;
            assert_eq!(kept < most, saves, "{outer:?} around {inner:?}: {kept} of {most}");
        }
    }
    assert_eq!(host.allocator().statistics().requested.current_bytes, 0);
    Ok(())
}

/// A simulated device predicts the memory of each policy to the byte.
#[test]
fn a_simulated_device_predicts_what_each_policy_takes() -> Outcome {
    let mut checked = 0;
    for (name, build) in ZOO {
        let bytes = |device: &Device, host: &Device| -> Result<Vec<[usize; 2]>> {
            let mut case = build(device, 0.2)?;
            let offload = Offload { size_bytes_min: 0, prefetch_count: 1, ..Offload::to(host) };
            let from = Some(SavedPolicy::RecomputeFrom(offload.clone()));
            let policies =
                [None, Some(SavedPolicy::Recompute), Some(SavedPolicy::Offload(offload)), from];
            let mut all = Vec::new();
            for policy in policies {
                if !case.has_blocks() {
                    return Ok(all);
                }
                case.model().set_policy(policy);
                all.push(memory_bytes(&mut *case, device, Cheap::Kept)?);
                let host = host.allocator().statistics().requested;
                all.push([host.current_bytes, host.peak_bytes]);
            }
            Ok(all)
        };
        let (device, host) = (cpu(), cpu());
        let simulated = bytes(&device.simulate(), &host.simulate())?;
        assert_eq!(simulated, bytes(&device, &host)?, "{name}");
        checked += usize::from(!simulated.is_empty());
    }
    assert_eq!(checked, 10);
    Ok(())
}

#[test]
fn a_policy_can_be_given_to_single_blocks() -> Outcome {
    let device = cpu();
    let mut case = ZOO[6].1(&device, 0.2)?;
    let expected = step_bits(&mut *case, Cheap::Kept)?;
    let mut saved = Vec::new();
    for recomputed in 0..=2 {
        let mut index = 0;
        case.model().visit_policies(&mut |policy| {
            *policy = (index < recomputed).then_some(SavedPolicy::Recompute);
            index += 1;
        });
        assert_eq!(index, 2, "two blocks");
        assert!(step_bits(&mut *case, Cheap::Kept)? == expected, "{recomputed} recomputed");
        saved.push(memory_bytes(&mut *case, &device, Cheap::Kept)?[0]);
    }
    assert!(saved[0] > saved[1] && saved[1] > saved[2], "{saved:?}");
    Ok(())
}

#[test]
fn dropout_changes_the_loss_of_those_that_have_it() -> Outcome {
    // Without an effect of dropout, equal bits would say little about random numbers.
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
    assert_eq!(with_dropout, 8);
    Ok(())
}

/// A step of a GPT of twelve narrow blocks with dropout. The first ten blocks are recomputed in
/// groups of `at_once`. Returns the bits of the gradients, the bytes that forward keeps, and the
/// peak of backward.
fn gpt_in_runs(device: &Device, host: &Device, at_once: usize) -> Result<(Vec<u32>, [usize; 2])> {
    let shape = GptShape { vocabulary: 11, context: 8, width: 16, heads: 2, blocks: 12 };
    let mut model = Gpt::gpt2(device, KEY, shape)?.with_dropout(0.2)?;
    let offload = Offload { size_bytes_min: 0, ..Offload::to(host) };
    let mut index = 0;
    model.visit_policies(&mut |policy| {
        *policy = match index {
            10.. => None,
            _ if at_once == 0 => None,
            _ if index % at_once > 0 => Some(SavedPolicy::RecomputeWithPrevious),
            // The inputs of the second group wait on the host.
            _ if index == at_once => Some(SavedPolicy::RecomputeFrom(offload.clone())),
            _ => Some(SavedPolicy::Recompute),
        };
        index += 1;
    });
    let tokens = Tensor::from_slice(device, [2, 8], &[3_i64; 16])?;
    let before = device.allocator().statistics().allocated.current_bytes;
    let attempt = Attempt::new();
    let pass = Pass::train(KEY, &attempt);
    let loss = model.forward(&pass, pass.constant(tokens))?.exp()?.sum_all()?;
    let kept = device.allocator().statistics().allocated.current_bytes - before;
    device.allocator().reset_peaks();
    pass.backward(loss)?;
    let peak = device.allocator().statistics().allocated.peak_bytes - before;
    let (gradients, mut all) = (attempt.into_gradients(), Vec::new());
    if !device.is_simulated() {
        model.visit(&mut |_, parameter| {
            let gradient = gradients.get(parameter.id()).expect("every parameter is used");
            all.extend(gradient.to_vec::<f32>().expect("f32").iter().map(|x| x.to_bits()));
        });
    }
    Ok((all, [kept, peak]))
}

#[test]
fn blocks_recomputed_in_runs_keep_fewer_inputs_and_give_the_same_bits() -> Outcome {
    let (device, host) = (cpu(), cpu());
    let (expected, [all, _]) = gpt_in_runs(&device, &host, 0)?;
    let mut before = all;
    for at_once in [1, 2, 3, 5] {
        let (found, [kept, peak]) = gpt_in_runs(&device, &host, at_once)?;
        assert!(found == expected, "{at_once} at once");
        assert!(kept < before, "{at_once} at once keep {kept} of {before}");
        before = kept;
        let (sim, sim_host) = (device.simulate(), host.simulate());
        let (_, simulated) = gpt_in_runs(&sim, &sim_host, at_once)?;
        assert_eq!(simulated, [kept, peak], "{at_once} at once");
    }
    Ok(())
}
