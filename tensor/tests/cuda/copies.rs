use lowtide_allocator::{
    Category, Fault, HostSource, PinnedBuffer, PinnedCache, Repeat, SimStreams,
};
use lowtide_tensor::{
    CopyAhead, CpuOptions, DType, Device, Tensor, TensorError, TensorResult as Result,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::gpu::Gpu;

const LEN: usize = 600;

fn upload(device: &Device, value: f32) -> Tensor {
    Tensor::from_slice(device, [LEN], &[value; LEN]).unwrap()
}

fn bytes(value: f32) -> Vec<u8> {
    [value; LEN].iter().flat_map(|value| value.to_ne_bytes()).collect()
}

/// Runs `test` with work that runs as late as possible, or in random orders, each with the threads
/// of a block in three orders.
fn in_every_schedule(gpu: &Gpu, test: impl Fn()) {
    for seed in 0..4 {
        gpu.pretend.schedule(seed);
        gpu.in_every_order(&test);
    }
    gpu.pretend.schedule(0);
}

#[test]
fn upload_waits_for_nothing_and_only_what_uses_it_waits_for_it() {
    let Some(gpu) = Gpu::pretend() else { return };
    let device = gpu.device();
    let x = upload(&device, 0.0);
    let y = x.exp().unwrap();
    let waits = || ["cuStreamWaitEvent", "cuStreamSynchronize"].map(|call| gpu.pretend.calls(call));
    let [ordered, synchronized] = waits();
    let next = upload(&device, 1.0);
    let other = y.exp().unwrap();
    assert_eq!(waits(), [ordered, synchronized], "beside what is computed");
    let used = next.add(&other).unwrap();
    assert_eq!(waits(), [ordered + 1, synchronized], "a use waits");
    let again = next.add(&used).unwrap();
    assert_eq!(waits(), [ordered + 1, synchronized], "once");
    drop((x, y, next, other, used));
    let e = 1.0_f32.exp();
    assert_eq!(again.to_vec::<f32>().unwrap(), [1.0 + (1.0 + e); LEN]);
    assert_eq!(waits(), [ordered + 2, synchronized + 1], "a value is read");
    drop(upload(&device, 2.0));
    assert_eq!(waits(), [ordered + 2, synchronized + 1], "work before the read is over");
}

#[test]
fn memory_of_a_queued_launch_is_not_overwritten_by_an_upload() {
    let Some(gpu) = Gpu::pretend() else { return };
    in_every_schedule(&gpu, || {
        let device = gpu.device();
        let x = upload(&device, 0.0);
        drop(x.exp().unwrap());
        let y = upload(&device, 5.0);
        assert_eq!(y.to_vec::<f32>().unwrap(), [5.0; LEN]);
        // The memory of its operand is reused, too.
        let z = Tensor::full(&device, [LEN], DType::F32, 0.0).unwrap();
        let e = z.exp().unwrap();
        drop(z);
        let w = upload(&device, 7.0);
        assert_eq!(e.to_vec::<f32>().unwrap(), [1.0; LEN]);
        assert_eq!(w.to_vec::<f32>().unwrap(), [7.0; LEN]);
    });
}

#[test]
fn memory_of_an_upload_that_nobody_used_is_not_written_before_it() {
    let Some(gpu) = Gpu::pretend() else { return };
    in_every_schedule(&gpu, || {
        let device = gpu.device();
        drop(upload(&device, 5.0));
        let x = Tensor::full(&device, [LEN], DType::F32, 3.0).unwrap();
        assert_eq!(x.neg().unwrap().to_vec::<f32>().unwrap(), [-3.0; LEN]);
    });
}

#[test]
fn tensor_is_overwritten_between_what_came_before_and_what_comes_after() {
    let Some(gpu) = Gpu::pretend() else { return };
    in_every_schedule(&gpu, || {
        let device = gpu.device();
        let mut x = Tensor::full(&device, [LEN], DType::F32, 1.0).unwrap();
        let before = x.neg().unwrap();
        x.set_bytes_(&bytes(2.0)).unwrap();
        let after = x.neg().unwrap();
        x.set_bytes_(&bytes(3.0)).unwrap();
        let found = [&before, &after, &x].map(|x| x.to_vec::<f32>().unwrap());
        assert_eq!(found, [[-1.0; LEN], [-2.0; LEN], [3.0; LEN]]);
    });
}

/// A program, which returns true if its results were right.
type Program = fn(&Device) -> Result<bool>;

/// Programs that need every one of their waits.
const PROGRAMS: [(&str, Program); 4] = [
    ("a kernel reads an upload", |device| {
        Ok(upload(device, 5.0).neg()?.to_vec::<f32>()? == [-5.0; LEN])
    }),
    ("an upload gets the memory of a launch", |device| {
        drop(Tensor::full(device, [LEN], DType::F32, 1.0)?);
        Ok(upload(device, 5.0).neg()?.to_vec::<f32>()? == [-5.0; LEN])
    }),
    ("a launch gets the memory of an upload", |device| {
        drop(upload(device, 5.0));
        Ok(Tensor::full(device, [LEN], DType::F32, 3.0)?.to_vec::<f32>()? == [3.0; LEN])
    }),
    ("a tensor is overwritten", |device| {
        let mut x = Tensor::full(device, [LEN], DType::F32, 1.0)?;
        let before = x.neg()?;
        x.set_bytes_(&bytes(2.0))?;
        let after = x.neg()?;
        Ok(before.add(&after)?.to_vec::<f32>()? == [-3.0; LEN])
    }),
];

/// Runs a program while the `lost`th call of a function does nothing (no call for 0). Returns the
/// number of calls if the results were right, else the reason.
fn run(
    gpu: &Gpu,
    program: Program,
    call: &str,
    lost: u64,
    seed: u64,
) -> std::result::Result<u64, String> {
    gpu.reset();
    gpu.pretend.schedule(seed);
    let device = gpu.device();
    let before = gpu.pretend.calls(call);
    gpu.pretend.lose(call, lost);
    let is_right = program(&device).map_err(|error| error.to_string())?;
    let calls = gpu.pretend.calls(call) - before;
    if is_right { Ok(calls) } else { Err("wrong values".to_owned()) }
}

#[test]
fn wait_of_a_stream_that_is_left_out_is_found_out() {
    let Some(gpu) = Gpu::pretend() else { return };
    let call = "cuStreamWaitEvent";
    for (name, program) in PROGRAMS {
        let count = run(&gpu, program, call, 0, 0).unwrap();
        assert!(count > 0, "{name}");
        (1..12).for_each(|seed| assert_eq!(run(&gpu, program, call, 0, seed), Ok(count), "{name}"));
        for lost in 1..=count {
            let is_found = (0..12).any(|seed| run(&gpu, program, call, lost, seed).is_err());
            assert!(is_found, "{name}: nobody misses wait {lost} of {count}");
        }
    }
    gpu.reset();
}

#[test]
fn wait_of_the_host_for_page_locked_memory_that_is_left_out_is_found_out() {
    /// Half of the staging memory for uploads of this size.
    const PART: usize = 2 << 20;
    const PARTS: u64 = 6;
    let Some(gpu) = Gpu::pretend() else { return };
    let program: Program = |device| {
        let part = |value| Tensor::from_bytes(device, [PART], DType::U8, &vec![value; PART]);
        let parts: Vec<Tensor> = (0..PARTS as u8).map(part).collect::<Result<_>>()?;
        let mut is_right = true;
        for (value, part) in (0..).zip(parts) {
            is_right &= part.to_vec::<u8>()? == vec![value; PART];
        }
        Ok(is_right)
    };
    let call = "cuStreamSynchronize";
    let waits = run(&gpu, program, call, 0, 0).unwrap() - PARTS;
    assert!(waits > 0, "the parts do not go round");
    for lost in 1..=waits {
        assert!((0..4).any(|seed| run(&gpu, program, call, lost, seed).is_err()), "{lost}");
    }
    gpu.reset();
}

/// A step of a program on tensors of one size. Numbers are places in the list of live tensors.
#[derive(Clone, Copy, Debug)]
enum Op {
    Upload(u8),
    Overwrite(usize, u8),
    Fill(u8),
    Add(usize, usize),
    AddTo(usize, usize),
    Drop(usize),
    Read(usize),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let place = || any::<usize>();
    let op = prop_oneof![
        6 => any::<u8>().prop_map(Op::Upload),
        2 => (place(), any::<u8>()).prop_map(|(at, value)| Op::Overwrite(at, value)),
        2 => any::<u8>().prop_map(Op::Fill),
        4 => (place(), place()).prop_map(|(a, b)| Op::Add(a, b)),
        2 => (place(), place()).prop_map(|(a, b)| Op::AddTo(a, b)),
        8 => place().prop_map(Op::Drop),
        1 => place().prop_map(Op::Read),
    ];
    prop::collection::vec(op, 1..60)
}

/// Runs a program next to plain numbers: all elements of a tensor are equal to its number.
fn check(device: &Device, program: &[Op]) {
    let mut live: Vec<(Tensor, f32)> = Vec::new();
    for &op in program {
        let len = live.len();
        let at = |index: usize| index % len;
        match op {
            Op::Upload(value) => {
                live.push((upload(device, f32::from(value)), f32::from(value)));
            }
            Op::Fill(value) => {
                let x = Tensor::full(device, [LEN], DType::F32, f64::from(value)).unwrap();
                live.push((x, f32::from(value)));
            }
            _ if live.is_empty() => {}
            Op::Overwrite(index, value) => {
                let (x, twin) = &mut live[at(index)];
                x.set_bytes_(&bytes(f32::from(value))).unwrap();
                *twin = f32::from(value);
            }
            Op::Add(a, b) => {
                let [(a, a_twin), (b, b_twin)] = [&live[at(a)], &live[at(b)]];
                let sum = (a.add(b).unwrap(), a_twin + b_twin);
                live.push(sum);
            }
            Op::AddTo(a, b) if at(a) != at(b) => {
                let (b, b_twin) = live[at(b)].clone();
                let (a, a_twin) = &mut live[at(a)];
                a.add_(&b).unwrap();
                *a_twin += b_twin;
            }
            Op::AddTo(..) => {}
            Op::Drop(index) => drop(live.swap_remove(at(index))),
            Op::Read(index) => {
                let (x, twin) = &live[at(index)];
                assert_eq!(x.to_vec::<f32>().unwrap(), [*twin; LEN]);
            }
        }
    }
    for (x, twin) in &live {
        assert_eq!(x.to_vec::<f32>().unwrap(), [*twin; LEN]);
    }
}

#[test]
fn uploads_and_launches_share_memory_in_whatever_order_the_device_works() {
    let Some(gpu) = Gpu::pretend() else { return };
    in_every_schedule(&gpu, || {
        let config = Config { cases: 12, failure_persistence: None, ..Config::default() };
        let checked = TestRunner::new(config).run(&ops(), |program| {
            check(&gpu.device(), &program);
            Ok(())
        });
        checked.unwrap();
    });
}

#[test]
fn upload_that_is_larger_than_what_it_passes_through_goes_in_parts() {
    let Some(gpu) = Gpu::pretend() else { return };
    let device = gpu.device();
    let bytes: Vec<u8> = (0..(40 << 20) + 5).map(|at: usize| (at % 251) as u8).collect();
    let before = gpu.pretend.calls("cuMemcpyHtoDAsync_v2");
    let x = Tensor::from_bytes(&device, [bytes.len()], DType::U8, &bytes).unwrap();
    assert_eq!(gpu.pretend.calls("cuMemcpyHtoDAsync_v2") - before, 2);
    assert!(x.to_bytes().unwrap() == bytes);
}

#[test]
fn ring_is_made_once_and_read_values_empty_it() {
    let Some(gpu) = Gpu::pretend() else { return };
    let device = gpu.device();
    let half: Vec<u8> = vec![7; 2 << 20];
    let counts = || ["cuMemHostAlloc", "cuStreamSynchronize"].map(|call| gpu.pretend.calls(call));
    let x = Tensor::from_bytes(&device, [half.len()], DType::U8, &half).unwrap();
    let [made, _] = counts();
    for _ in 0..6 {
        let [_, before] = counts();
        let y = Tensor::from_bytes(&device, [half.len()], DType::U8, &half).unwrap();
        assert_eq!(y.narrow(0, 0, 1).unwrap().to_vec::<u8>().unwrap(), [7]);
        assert_eq!(counts(), [made, before + 1], "the read waits, and nobody else");
    }
    drop(x);
}

#[test]
fn upload_does_without_page_locked_memory() {
    let Some(gpu) = Gpu::pretend() else { return };
    /// `CUDA_ERROR_OUT_OF_MEMORY`.
    const OUT_OF_MEMORY: i32 = 2;
    gpu.pretend.fail("cuMemHostAlloc", OUT_OF_MEMORY, 1, Repeat::Forever);
    let device = gpu.device();
    let x = upload(&device, 4.0);
    assert_eq!(x.neg().unwrap().to_vec::<f32>().unwrap(), [-4.0; LEN]);
    gpu.pretend.fail("cuMemHostAlloc", 0, 0, Repeat::Once);
}

#[test]
fn simulation_makes_the_same_uploads_and_waits() {
    let Some(gpu) = Gpu::pretend() else { return };
    let device = gpu.device();
    let x = upload(&device, 1.0);
    let simulated = device.simulate();
    let twin = x.simulated_copy(&simulated).unwrap();
    let run = |x: Tensor| {
        let device = x.device().clone();
        for value in 0..3 {
            let y = upload(&device, value as f32);
            let sum = x.add(&y).unwrap();
            drop(upload(&device, 9.0));
            let total = sum.sum(&[0]).unwrap();
            total.item_assuming(0.0_f32).unwrap();
        }
        let statistics = device.allocator().statistics();
        (statistics, device.allocator().layout_hash())
    };
    let (real, sim) = (run(x), run(twin));
    assert!(real.0.waits > 6, "{}", real.0.waits);
    assert_eq!(sim, real);
}

#[test]
fn tensor_goes_to_another_device_and_comes_back_with_its_bits() {
    let Some(gpu) = Gpu::pretend() else { return };
    let (device, host) = (gpu.device(), Device::cpu(CpuOptions::default()).unwrap());
    in_every_schedule(&gpu, || {
        let values: Vec<f32> = (0..LEN).map(|i| (i as f32 - 300.0) / 7.0).collect();
        let x = Tensor::from_slice(&host, [20, 30], &values).unwrap();
        let y = x.to_device(&device, Category::Activation).unwrap().exp().unwrap();
        // The transpose is a view, but the copy is contiguous again.
        let z = y.transpose(0, 1).unwrap().to_device(&host, Category::Other).unwrap();
        let expected = x.exp().unwrap().transpose(0, 1).unwrap().to_vec::<f32>().unwrap();
        let found = z.to_vec::<f32>().unwrap();
        assert!(z.layout().is_contiguous());
        for (found, expected) in found.iter().zip(&expected) {
            assert!((found - expected).abs() <= 4.0 * f32::EPSILON * expected.abs());
        }
        let back = y.to_device(&host, Category::Other).unwrap();
        assert_eq!(back.to_vec::<f32>().unwrap(), y.to_vec::<f32>().unwrap());
    });
}

/// Covers devices of both kinds, copies within one device, and copies to a part of a tensor.
#[test]
fn elements_are_copied_across_to_where_a_tensor_is() {
    let Some(gpu) = Gpu::pretend() else { return };
    let (device, host) = (gpu.device(), Device::cpu(CpuOptions::default()).unwrap());
    in_every_schedule(&gpu, || {
        for [from, to] in [[&host, &device], [&device, &host], [&device, &device], [&host, &host]] {
            let x = Tensor::from_slice(from, [2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0_f32]).unwrap();
            let y = Tensor::zeros(to, [4, 3], DType::F32).unwrap();
            y.narrow(0, 1, 2).unwrap().copy_across_(&x).unwrap();
            let expected = [0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 0.0, 0.0, 0.0];
            assert_eq!(y.to_vec::<f32>().unwrap(), expected);
            let other_shape = y.narrow(0, 1, 3).unwrap().copy_across_(&x).unwrap_err();
            assert!(matches!(other_shape, TensorError::Shape { .. }), "{other_shape}");
            let mut other_type = Tensor::zeros(to, [2, 3], DType::F64).unwrap();
            let other_type = other_type.copy_across_(&x).unwrap_err();
            assert!(matches!(other_type, TensorError::DType { .. }), "{other_type}");
        }
    });
}

#[test]
fn tensor_without_room_on_the_other_device_stays_and_nothing_is_left() {
    let Some(gpu) = Gpu::pretend() else { return };
    let (device, host) = (gpu.device(), Device::cpu(CpuOptions::default()).unwrap());
    let x = upload(&device, 3.0);
    let allocated = |device: &Device| device.allocator().statistics().allocated.current_bytes;
    let before = allocated(&host);
    host.allocator().inject_fault(Fault { nth: 1, repeat: Repeat::Once });
    let error = x.to_device(&host, Category::Other).unwrap_err();
    assert!(error.out_of_memory().is_some(), "{error}");
    assert_eq!(allocated(&host), before);
    assert_eq!(x.to_vec::<f32>().unwrap(), [3.0; LEN]);
}

/// A ring of two buffers. Each buffer is written again as soon as possible.
#[test]
fn copies_from_a_page_locked_ring_pass_through_nothing_and_are_waited_for() {
    let Some(gpu) = Gpu::pretend() else { return };
    in_every_schedule(&gpu, || {
        let device = gpu.device();
        let size_bytes = bytes(0.0).len();
        let allocations = || gpu.pretend.calls("cuMemHostAlloc");
        let before = allocations();
        let ring = device.page_locked_ring(2 * size_bytes.next_multiple_of(512)).unwrap();
        let (memory, stream) = ring.expect("an NVIDIA device");
        let allocate = |_| memory.allocate(stream, size_bytes).unwrap();
        let mut buffers: Vec<PinnedBuffer> = (0..2).map(allocate).collect();
        let mut tensors = Vec::new();
        for number in 0..6 {
            let buffer = &mut buffers[number % 2];
            buffer.wait().unwrap();
            buffer.as_mut_slice().copy_from_slice(&bytes(number as f32));
            // A part of the buffer, as for micro-batches.
            let part = (&*buffer, 400..size_bytes);
            tensors.push(Tensor::from_page_locked(&device, [LEN - 100], DType::F32, part).unwrap());
        }
        assert_eq!(allocations(), before + 1, "the ring alone");
        for (number, tensor) in tensors.iter().enumerate() {
            assert_eq!(tensor.to_vec::<f32>().unwrap(), [number as f32; LEN - 100]);
        }
        // Memory that is not of a ring of the device is copied before the call returns.
        let cpu = Device::cpu(CpuOptions::default()).unwrap();
        assert!(cpu.page_locked_ring(1).unwrap().is_none());
        let streams = SimStreams::new();
        let other = PinnedCache::new(HostSource::with_capacity(1 << 20), streams).unwrap();
        let mut foreign = other.allocate(stream, size_bytes).unwrap();
        foreign.as_mut_slice().copy_from_slice(&bytes(7.0));
        for device in [&device, &cpu] {
            let whole = (&foreign, 0..size_bytes);
            let tensor = Tensor::from_page_locked(device, [LEN], DType::F32, whole).unwrap();
            foreign.as_mut_slice().copy_from_slice(&bytes(8.0));
            assert_eq!(tensor.to_vec::<f32>().unwrap(), [7.0; LEN]);
            foreign.as_mut_slice().copy_from_slice(&bytes(7.0));
        }
        let whole = (&foreign, 0..size_bytes);
        let wrong = Tensor::from_page_locked(&device, [LEN + 1], DType::F32, whole).unwrap_err();
        assert!(matches!(wrong, TensorError::Shape { .. }), "{wrong}");
    });
}

#[test]
fn bytes_that_were_copied_ahead_come_from_the_device_unless_they_were_written_since() {
    let Some(gpu) = Gpu::pretend() else { return };
    in_every_schedule(&gpu, || {
        let device = gpu.device();
        let size_bytes = bytes(0.0).len();
        let ring = device.page_locked_ring(2 * size_bytes.next_multiple_of(512)).unwrap();
        let (memory, stream) = ring.expect("an NVIDIA device");
        let allocate = |value| {
            let mut buffer = memory.allocate(stream, size_bytes).unwrap();
            buffer.as_mut_slice().copy_from_slice(&bytes(value));
            buffer
        };
        let (mut first, second) = (allocate(1.0), allocate(2.0));
        let counts =
            || ["cuMemcpyHtoDAsync_v2", "cuMemcpyDtoDAsync_v2"].map(|call| gpu.pretend.calls(call));
        let copied = |from: &PinnedBuffer, values: std::ops::Range<usize>, value: f32| {
            let (before, range) = (counts(), values.start * 4..values.end * 4);
            let (len, from) = (values.len(), (from, range));
            let tensor = Tensor::from_page_locked(&device, [len], DType::F32, from).unwrap();
            assert_eq!(tensor.neg().unwrap().to_vec::<f32>().unwrap(), vec![-value; len]);
            let after = counts();
            [0, 1].map(|kind| after[kind] - before[kind])
        };
        let input = || device.allocator().statistics().by_category[Category::Input].current_bytes;
        let before = input();
        let sizes = [size_bytes - 40, size_bytes];
        let mut ahead = device.copy_ahead(CopyAhead::size_for(sizes)).unwrap().expect("memory");
        assert!(input() - before >= 2 * size_bytes - 40);
        assert_eq!(copied(&first, 0..LEN, 1.0), [1, 0], "nothing is there yet");
        let (from, to) = ((&first, 40..size_bytes), (&second, 0..size_bytes));
        let had = counts();
        // The third part does not fit.
        ahead.begin(&[from.clone(), to, from]).unwrap();
        assert_eq!(counts(), [had[0] + 2, had[1]]);
        assert_eq!(copied(&first, 10..LEN, 1.0), [0, 1]);
        assert_eq!(copied(&first, 100..200, 1.0), [0, 1], "a part, once more");
        assert_eq!(copied(&first, 9..LEN, 1.0), [1, 0], "more than was copied");
        assert_eq!(copied(&second, 0..LEN, 2.0), [0, 1]);
        first.wait().unwrap();
        first.as_mut_slice().copy_from_slice(&bytes(3.0));
        assert_eq!(copied(&first, 10..LEN, 3.0), [1, 0], "they were written since");
        // These copies replace earlier ones.
        ahead.begin(&[(&first, 0..size_bytes)]).unwrap();
        assert_eq!(copied(&first, 0..LEN, 3.0), [0, 1]);
        assert_eq!(copied(&second, 0..LEN, 2.0), [1, 0]);
        let streams = SimStreams::new();
        let other = PinnedCache::new(HostSource::with_capacity(1 << 20), streams).unwrap();
        let mut foreign = other.allocate(stream, size_bytes).unwrap();
        foreign.as_mut_slice().copy_from_slice(&bytes(7.0));
        let had = counts();
        ahead.begin(&[(&foreign, 0..size_bytes)]).unwrap();
        assert_eq!(counts(), had, "it is not of a ring of the device");
        ahead.begin(&[(&first, 0..size_bytes)]).unwrap();
        drop(ahead);
        assert_eq!(input(), before);
        assert_eq!(copied(&first, 0..LEN, 3.0), [1, 0], "its memory is gone");
        assert!(Device::cpu(CpuOptions::default()).unwrap().copy_ahead(1).unwrap().is_none());
        let error = device.copy_ahead(usize::MAX / 2).unwrap_err();
        assert!(error.out_of_memory().is_some(), "{error}");
    });
}
