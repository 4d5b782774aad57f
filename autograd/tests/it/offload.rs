//! Offloading of saved tensors: the tensors that move, the time of a move, and the tensors that
//! stay.

use lowtide_allocator::BLOCK_BYTES;
use lowtide_autograd::{
    Attempt, AutogradError, AutogradResult as Result, LeafId, Offload, Pass, SavedPolicy, Var,
};
use lowtide_tensor::{CpuOptions, DType, Device, RandomKey, SimSpec, Tensor};

use crate::common::{BLOCK_LEN, Outcome, bits, cpu, live_bytes, recording, tensor};

const LEN: usize = 12;

fn to(host: &Device) -> Offload {
    Offload { size_bytes_min: 0, ..Offload::to(host) }
}

fn peak_bytes(device: &Device) -> usize {
    device.allocator().statistics().allocated.peak_bytes
}

/// The memory of a segment that is a chain of operations, each of which saves a block: bytes on the
/// device after forward, on the device at the peak of backward, and on the host after forward.
fn chain(device: &Device, policy: &SavedPolicy, host: &Device) -> Result<[usize; 3]> {
    let x = Tensor::full(device, [BLOCK_LEN], DType::F32, 0.01)?;
    let (before, attempt) = (live_bytes(device), Attempt::new());
    let pass = Pass::train(RandomKey::new(1), &attempt);
    let loss = pass.segment(policy, pass.leaf(LeafId::new(), &x)?, |_, mut x| {
        for _ in 0..LEN {
            x = x.exp()?.mul_scalar(0.01)?;
        }
        x.sum_all()
    })?;
    let (after, away) = (live_bytes(device) - before, live_bytes(host));
    device.allocator().reset_peaks();
    pass.backward(loss)?;
    let peak = peak_bytes(device) - before;
    drop((pass, attempt));
    assert_eq!((live_bytes(device), live_bytes(host)), (before, 0), "nothing is left over");
    Ok([after, peak, away])
}

fn check_memory(device: &Device, host: &Device) -> Outcome {
    let block = BLOCK_BYTES;
    let [after, peak, away] = chain(device, &SavedPolicy::Keep, host)?;
    assert_eq!((after, away), ((LEN + 1) * block, 0), "a block each, and the loss");
    assert!(peak > LEN * block);

    let on_demand = chain(device, &SavedPolicy::Offload(to(host)), host)?;
    assert_eq!((on_demand[0], on_demand[2]), (block, LEN * block), "the loss alone stays");
    for prefetch_count in [1, 3] {
        let ahead = Offload { prefetch_count, ..to(host) };
        let [after, peak, away] = chain(device, &SavedPolicy::Offload(ahead), host)?;
        assert_eq!((after, away), (on_demand[0], on_demand[2]));
        assert_eq!(peak, on_demand[1] + prefetch_count * block, "{prefetch_count} more");
    }
    assert!(on_demand[1] <= 4 * block, "{} bytes at the peak", on_demand[1]);
    Ok(())
}

#[test]
fn what_a_segment_saves_leaves_the_device() -> Outcome {
    check_memory(&cpu(), &cpu())
}

/// The memory of three segments in sequence, whose operations save a block each: bytes on the
/// device and on the host after forward; and the gradient of the input.
fn segments(
    device: &Device,
    policy: &SavedPolicy,
    host: &Device,
) -> Result<([usize; 2], Vec<u32>)> {
    let before = live_bytes(device);
    let (pass, attempt) = recording();
    let (leaf, x) = (LeafId::new(), Tensor::full(device, [BLOCK_LEN], DType::F32, 0.01)?);
    let mut y = pass.leaf(leaf, &x)?.mul_scalar(2.0)?;
    for _ in 0..3 {
        y = pass.segment(policy, y, |_, x| x.exp()?.mul_scalar(0.1)?.exp()?.mul_scalar(0.1))?;
    }
    let loss = y.sum_all()?;
    let bytes = [live_bytes(device) - before, live_bytes(host)];
    pass.backward(loss)?;
    Ok((bytes, bits(attempt.into_gradients().get(leaf).unwrap())))
}

#[test]
fn only_inputs_of_a_recomputed_segment_wait_on_the_host() -> Outcome {
    let (device, host) = (cpu(), cpu());
    let block = BLOCK_BYTES;
    let (kept, expected) = segments(&device, &SavedPolicy::Keep, &host)?;
    // The two further blocks are the leaf's value and the loss.
    assert_eq!(kept, [(6 + 2) * block, 0]);
    let recomputed = segments(&device, &SavedPolicy::Recompute, &host)?;
    assert_eq!(recomputed, ([(3 + 2) * block, 0], expected.clone()));
    let away = segments(&device, &SavedPolicy::RecomputeFrom(to(&host)), &host)?;
    assert_eq!(away, ([2 * block, 3 * block], expected));
    assert_eq!(live_bytes(&host), 0);
    Ok(())
}

#[test]
fn a_simulated_device_predicts_it_to_the_byte() -> Outcome {
    let sim = || Device::sim(SimSpec::like_this_machine(64 << 20));
    let (device, host) = (sim()?, sim()?);
    check_memory(&device, &host)?;
    let policy = |host: &Device| SavedPolicy::Offload(Offload { prefetch_count: 2, ..to(host) });
    let simulated = chain(&device, &policy(&host), &host)?;
    assert!(device.simulated_seconds() > 0.0 && host.allocator().request_count() > 0);
    let (device, host) = (cpu(), cpu());
    assert_eq!(simulated, chain(&device, &policy(&host), &host)?);
    Ok(())
}

/// A segment in which `relu` and the product save one tensor, the result of `relu`. The caller
/// holds the leaf, the constant and the result of the segment.
fn shared(pass: &Pass, policy: &SavedPolicy, values: &[Tensor; 3], leaf: LeafId) -> Result<Var> {
    let [x, w, c] = values.clone();
    let x = pass.leaf(LeafId::new(), &x)?.add_scalar(0.5)?;
    pass.segment(policy, x, move |pass, x| {
        let y = x.relu()?.reshape([2, BLOCK_LEN / 2])?;
        let w = pass.leaf(leaf, &w)?;
        y.mul(w)?.reshape([BLOCK_LEN])?.mul(pass.constant(c.clone()))?.exp()
    })
}

#[test]
fn only_what_the_record_alone_holds_goes_and_only_once() -> Outcome {
    let (device, host) = (cpu(), cpu());
    let values = [
        tensor(&device, "x", [BLOCK_LEN]),
        tensor(&device, "w", [2, BLOCK_LEN / 2]),
        tensor(&device, "c", [BLOCK_LEN]),
    ];
    let leaf = LeafId::new();
    let run = |policy: &SavedPolicy| -> Result<(usize, Vec<u32>)> {
        let (pass, attempt) = recording();
        let y = shared(&pass, policy, &values, leaf)?;
        let away = live_bytes(&host);
        pass.backward(y.sum_all()?)?;
        Ok((away, bits(attempt.into_gradients().get(leaf).unwrap())))
    };
    let (none, expected) = run(&SavedPolicy::Keep)?;
    let (away, found) = run(&SavedPolicy::Offload(to(&host)))?;
    assert_eq!((none, found), (0, expected));
    // One copy of the result of relu, which two rules saved, and one of the product.
    assert_eq!(away, 2 * BLOCK_BYTES);
    Ok(())
}

#[test]
fn small_tensors_stay() -> Outcome {
    let (device, host) = (cpu(), cpu());
    let large = Offload { size_bytes_min: BLOCK_BYTES + 1, ..to(&host) };
    let [after, _, away] = chain(&device, &SavedPolicy::Offload(large), &host)?;
    assert_eq!((after, away), ((LEN + 1) * BLOCK_BYTES, 0));
    Ok(())
}

#[test]
fn a_host_without_room_is_an_error_with_its_ledger() -> Outcome {
    let device = cpu();
    let host = Device::cpu(CpuOptions {
        budget_bytes: Some(4 << 10),
        threads: Some(1),
        ..Default::default()
    })?;
    let before = live_bytes(&device);
    let error = chain(&device, &SavedPolicy::Offload(to(&host)), &host).unwrap_err();
    assert!(error.out_of_memory().is_some(), "{error}");
    assert_eq!((live_bytes(&device), live_bytes(&host)), (before, 0));
    Ok(())
}

#[test]
fn a_tensor_that_is_written_before_it_goes_is_reported() -> Outcome {
    let (device, host) = (cpu(), cpu());
    let (pass, _attempt) = recording();
    let x = pass.leaf(LeafId::new(), &tensor(&device, "x", [BLOCK_LEN]))?;
    let policy = SavedPolicy::Offload(to(&host));
    let y = pass.segment(&policy, x, |_, x| {
        let y = x.exp()?;
        y.value().clone().fill_(1.0)?;
        y.mul_scalar(2.0)
    })?;
    let error = pass.backward(y.sum_all()?).unwrap_err();
    assert!(matches!(error, AutogradError::Modified { op: "exp", .. }), "{error}");
    Ok(())
}
