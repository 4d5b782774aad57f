use std::sync::LazyLock;

use lowtide_allocator::cuda::pretend::{Order, Watch};
use lowtide_allocator::cuda::{CudaDevice, CudaError, CudaStreams};
use lowtide_allocator::{Buffer, CachingAllocator, Fence, Repeat, Stream};
use lowtide_tensor::cuda::gate::{
    Argument, Function, Grid, KernelError, Module, Parameter, PtxArchive, Signature,
};

use crate::gpu::{BASICS, Gpu, package};

static KERNELS: LazyLock<PtxArchive> =
    LazyLock::new(|| PtxArchive::read(include_bytes!("kernels/kernels.ptx.xz")).unwrap());

pub(crate) const ADD: Signature = Signature {
    name: "add",
    parameters: &[Parameter::Write, Parameter::Read, Parameter::Read, Parameter::U64],
};
const TELL: Signature = Signature {
    name: "tell",
    parameters: &[
        Parameter::Write,
        Parameter::I32,
        Parameter::I64,
        Parameter::U32,
        Parameter::U64,
        Parameter::F32,
        Parameter::F64,
        Parameter::F32,
        Parameter::Words(3),
    ],
};
const TELL_ADDRESSES: Signature = Signature {
    name: "tell",
    parameters: &[
        Parameter::Write,
        Parameter::I32,
        Parameter::I64,
        Parameter::U32,
        Parameter::U64,
        Parameter::F32,
        Parameter::F64,
        Parameter::F32,
        Parameter::Pointers(3),
    ],
};
const PLACE: Signature = Signature { name: "place", parameters: &[Parameter::Write] };
pub(crate) const SUM_TREE: Signature = Signature {
    name: "sum_tree",
    parameters: &[Parameter::Write, Parameter::Write, Parameter::Read],
};
const SUM_WARPS: Signature = Signature {
    name: "sum_warps",
    parameters: &[Parameter::Write, Parameter::Write, Parameter::Read, Parameter::U32],
};
const COUNT: Signature =
    Signature { name: "count", parameters: &[Parameter::Write, Parameter::Read, Parameter::U32] };
pub(crate) const REVERSE: Signature =
    Signature { name: "reverse", parameters: &[Parameter::Write, Parameter::Read, Parameter::I32] };
pub(crate) const COPY: Signature = Signature {
    name: "copy",
    parameters: &[Parameter::Write, Parameter::Read, Parameter::U64, Parameter::I32],
};
const GATHER: Signature =
    Signature { name: "gather", parameters: &[Parameter::Write, Parameter::Read, Parameter::I32] };

pub(crate) const ORDERS: [Order; 4] =
    [Order::Forwards, Order::Backwards, Order::Drawn(1), Order::Drawn(20_260)];

pub(crate) fn basics(device: &CudaDevice) -> Module {
    Module::load(device, "basics", KERNELS.get("basics").unwrap().as_bytes()).unwrap()
}

pub(crate) fn planted(device: &CudaDevice) -> Module {
    Module::load(device, "planted", KERNELS.get("planted").unwrap().as_bytes()).unwrap()
}

/// Launches a kernel of these tests, which stays inside its arguments or is watched by the driver.
pub(crate) fn launch(
    streams: &CudaStreams,
    on: Stream,
    function: &Function,
    grid: Grid,
    arguments: &[Argument<'_>],
) -> Result<(), KernelError> {
    // SAFETY: the pretend driver compares parameters and looks at every access.
    unsafe { function.launch(streams, on, grid, arguments) }
}

pub(crate) fn block_of(streams: &CudaStreams, memory: &CachingAllocator, values: &[f32]) -> Buffer {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    // Memory behind the block belongs to no other block of the launch.
    let block = memory.allocate(bytes.len() + 512).unwrap();
    streams.upload(Stream::DEFAULT, &bytes, (&block, 0..bytes.len())).unwrap();
    block
}

fn words_of(streams: &CudaStreams, block: &Buffer, len: usize) -> Vec<u32> {
    let mut bytes = vec![0; 4 * len];
    streams.download(Stream::DEFAULT, (block, 0..4 * len), &mut bytes).unwrap();
    bytes.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

fn floats_of(streams: &CudaStreams, block: &Buffer, len: usize) -> Vec<f32> {
    words_of(streams, block, len).into_iter().map(f32::from_bits).collect()
}

/// Checks that the kernel `ADD` adds numbers to themselves.
pub(crate) fn check_sum(
    streams: &CudaStreams,
    memory: &CachingAllocator,
    add: &Function,
    len: usize,
) {
    let values: Vec<f32> = (0..len).map(|i| i as f32).collect();
    let (a, b) = (block_of(streams, memory, &values), block_of(streams, memory, &values));
    let y = memory.allocate(4 * len).unwrap();
    let bytes = 0..4 * len;
    let arguments = [
        Argument::write(&y, bytes.clone()),
        Argument::read(&a, bytes.clone()),
        Argument::read(&b, bytes),
        Argument::U64(len as u64),
    ];
    launch(streams, Stream::DEFAULT, add, Grid::row(3, 128), &arguments).unwrap();
    let doubled: Vec<f32> = values.iter().map(|value| value + value).collect();
    assert_eq!(floats_of(streams, &y, len), doubled);
}

#[test]
fn kernel_reads_what_was_uploaded_and_writes_what_is_downloaded() {
    let Some(gpu) = Gpu::take() else { return };
    let (streams, memory) = gpu.memory();
    let function = basics(streams.device()).function(&ADD).unwrap();
    assert_eq!(function.needs().unwrap().threads_max, 256);
    for (len, order) in [(1, ORDERS[0]), (255, ORDERS[1]), (1000, ORDERS[2])] {
        gpu.order(order);
        check_sum(&streams, &memory, &function, len);
    }
}

#[test]
fn arguments_of_every_kind_arrive() {
    let Some(gpu) = Gpu::take() else { return };
    let (streams, memory) = gpu.memory();
    let function = basics(streams.device()).function(&TELL).unwrap();
    let y = memory.allocate(80).unwrap();
    let arguments = [
        Argument::write(&y, 0..80),
        Argument::I32(-3),
        Argument::I64(-5_000_000_000),
        Argument::U32(4_000_000_000),
        Argument::U64(1 << 50),
        Argument::F32(0.5),
        Argument::F64(-0.1),
        Argument::F32(-2.0),
        Argument::Words(&[7, 8, 1 << 40]),
    ];
    launch(&streams, Stream::DEFAULT, &function, Grid::row(1, 32), &arguments).unwrap();
    let mut bytes = [0; 80];
    streams.download(Stream::DEFAULT, (&y, 0..80), &mut bytes).unwrap();
    let values: Vec<f64> =
        bytes.chunks(8).map(|word| f64::from_le_bytes(word.try_into().unwrap())).collect();
    let big = [-5e9, 4e9, (1_u64 << 50) as f64, (1_u64 << 40) as f64];
    assert_eq!(values, [-3.0, big[0], big[1], big[2], 0.5, -0.1, -2.0, 7.0, 8.0, big[3]]);
}

#[test]
fn threads_know_where_they_are() {
    let Some(gpu) = Gpu::pretend() else { return };
    let (streams, memory) = gpu.memory();
    let function = basics(streams.device()).function(&PLACE).unwrap();
    let (block_count, thread_count) = (2 * 3 * 4, 5 * 3 * 2);
    let len = block_count * thread_count;
    let y = memory.allocate(4 * len).unwrap();
    let grid = Grid { blocks: [2, 3, 4], threads: [5, 3, 2], shared_bytes: 0 };
    for order in ORDERS {
        gpu.pretend.threads(order);
        streams.fill(Stream::DEFAULT, &y, 0..4 * len, 0xff).unwrap();
        let arguments = [Argument::write(&y, 0..4 * len)];
        launch(&streams, Stream::DEFAULT, &function, grid, &arguments).unwrap();
        let expected: Vec<u32> =
            (0..len).map(|i| (i / thread_count * 10_000 + i % thread_count) as u32).collect();
        assert_eq!(words_of(&streams, &y, len), expected);
    }
}

#[test]
fn threads_of_a_block_work_together() {
    let Some(gpu) = Gpu::pretend() else { return };
    let (streams, memory) = gpu.memory();
    let module = basics(streams.device());
    let [tree, warps, count] = [SUM_TREE, SUM_WARPS, COUNT].map(|k| module.function(&k).unwrap());
    let values: Vec<f32> = (0..512).map(|i| if i == 300 { -1.0 } else { i as f32 }).collect();
    let x = block_of(&streams, &memory, &values);
    let (y, other) = (memory.allocate(8).unwrap(), memory.allocate(32).unwrap());
    let on = Stream::DEFAULT;
    for order in ORDERS {
        gpu.pretend.threads(order);
        let out = Argument::write(&y, 0..8);
        let signs = Argument::write(&other, 0..8);
        let grid = Grid { shared_bytes: 1024, ..Grid::row(2, 256) };
        launch(&streams, on, &tree, grid, &[out, signs, Argument::read(&x, 0..2048)]).unwrap();
        let sums = [(0..256).sum::<i32>() as f32, (256..512).sum::<i32>() as f32 - 301.0];
        assert_eq!(floats_of(&streams, &y, 2), sums, "{order:?}");
        assert_eq!(words_of(&streams, &other, 2), [0, 1], "{order:?}");

        let bits = Argument::write(&other, 0..16);
        let arguments =
            [Argument::write(&y, 0..4), bits, Argument::read(&x, 0..400), Argument::U32(100)];
        launch(&streams, on, &warps, Grid::row(1, 128), &arguments).unwrap();
        assert_eq!(floats_of(&streams, &y, 1), [(0..100).sum::<i32>() as f32], "{order:?}");
        assert_eq!(words_of(&streams, &other, 4), [u32::MAX, u32::MAX, u32::MAX, 15]);

        streams.fill_words(on, &other, 0..32, 1000).unwrap();
        let arguments =
            [Argument::write(&other, 0..32), Argument::read(&x, 0..2048), Argument::U32(512)];
        launch(&streams, on, &count, Grid::row(8, 64), &arguments).unwrap();
        assert_eq!(words_of(&streams, &other, 8).iter().sum::<u32>(), 8512, "{order:?}");
    }
}

#[test]
fn launch_that_is_not_as_declared_is_refused_before_the_driver_is_asked() {
    let Some(gpu) = Gpu::pretend() else { return };
    let (streams, memory) = gpu.memory();
    let function = basics(streams.device()).function(&ADD).unwrap();
    let block = memory.allocate(100).unwrap();
    let (write, read) = (Argument::write(&block, 0..100), Argument::read(&block, 0..100));
    let len = Argument::U64(25);
    let calls = gpu.pretend.calls("");
    let on = Stream::DEFAULT;
    let go = |arguments: &[Argument<'_>]| {
        launch(&streams, on, &function, Grid::row(1, 32), arguments).unwrap_err()
    };
    let wrong = |index: usize| {
        let expected = ADD.parameters.get(index).copied();
        KernelError::WrongArgument { kernel: "add", index, expected }
    };
    assert_eq!(go(&[write, read, read]), wrong(3));
    assert_eq!(go(&[write, read, read, len, len]), wrong(4));
    assert_eq!(go(&[read, read, read, len]), wrong(0));
    assert_eq!(go(&[write, read, write, len]), wrong(2));
    assert_eq!(go(&[write, read, read, Argument::I64(25)]), wrong(3));
    assert!(wrong(3).to_string().contains("argument 3 of kernel add"), "{}", wrong(3));
    let beyond = go(&[write, read, Argument::read(&block, 0..101), len]);
    assert!(matches!(beyond.cause(), Some(CudaError::NotOfDevice { .. })), "{beyond}");
    let nothing = launch(&streams, on, &function, Grid::row(0, 32), &[write, read, read, len]);
    assert_eq!((nothing, gpu.pretend.calls("")), (Ok(()), calls));

    let second = CudaDevice::of(&gpu.driver, 1).unwrap();
    let elsewhere = basics(&second).function(&ADD).unwrap();
    let arguments = [write, read, read, len];
    let error = launch(&streams, on, &elsewhere, Grid::row(1, 32), &arguments).unwrap_err();
    assert_eq!(error, KernelError::OtherDevice { kernel: "add" });
}

#[test]
fn pointers_of_a_structure_are_checked_and_told_as_those_that_stand_alone() {
    let Some(gpu) = Gpu::pretend() else { return };
    let (streams, memory) = gpu.memory();
    // Numbers and pointers have the same size: the kernel writes three addresses.
    let function = basics(streams.device()).function(&TELL_ADDRESSES).unwrap();
    let y = memory.allocate(4096).unwrap();
    let numbers = [
        Argument::write(&y, 0..80),
        Argument::I32(0),
        Argument::I64(0),
        Argument::U32(0),
        Argument::U64(0),
        Argument::F32(0.0),
        Argument::F64(0.0),
        Argument::F32(0.0),
    ];
    let go = |pointers: &[Argument<'_>]| {
        let all = [&numbers[..], &[Argument::Pointers(pointers)]].concat();
        launch(&streams, Stream::DEFAULT, &function, Grid::row(1, 32), &all)
    };
    let (read, write) = (Argument::read(&y, 512..520), Argument::write(&y, 1024..1024));
    go(&[read, write, Argument::Nothing]).unwrap();
    let words = words_of(&streams, &y, 20);
    let number =
        |k: usize| f64::from_bits(u64::from(words[2 * k + 1]) << 32 | u64::from(words[2 * k]));
    assert_eq!((number(8) - number(7), number(9)), (512.0, 0.0));
    let wrong = KernelError::WrongArgument {
        kernel: "tell",
        index: 8,
        expected: Some(Parameter::Pointers(3)),
    };
    assert_eq!(go(&[read, write]).unwrap_err(), wrong);
    assert_eq!(go(&[read, write, Argument::U64(0)]).unwrap_err(), wrong);
    let beyond = go(&[read, write, Argument::read(&y, 0..4097)]).unwrap_err();
    assert!(matches!(beyond.cause(), Some(CudaError::NotOfDevice { .. })), "{beyond}");
}

#[test]
fn driver_says_what_it_does_not_take() {
    let Some(gpu) = Gpu::pretend() else { return };
    let (streams, memory) = gpu.memory();
    let device = streams.device();
    let error = Module::load(device, "letter", b"Dear driver").unwrap_err();
    let KernelError::BadImage { module: "letter", log, cause } = &error else { panic!("{error}") };
    assert!(log.contains(".version") && error.to_string().contains(log), "{error}");
    assert!(matches!(cause, CudaError::Call { code: 218, .. }), "{cause}");

    let module = basics(device);
    let missing = module.function(&Signature { name: "subtract", parameters: &[] }).unwrap_err();
    assert!(matches!(missing, KernelError::NoKernel { kernel: "subtract", .. }), "{missing}");
    let of = |parameters| module.function(&Signature { name: "count", parameters }).unwrap_err();
    let differs = |index| KernelError::OtherParameters { kernel: "count", index };
    assert_eq!(of(&[Parameter::Write, Parameter::Read]), differs(2));
    assert_eq!(of(&[Parameter::Write, Parameter::Read, Parameter::U64]), differs(2));
    assert_eq!(of(&[Parameter::Write, Parameter::I32, Parameter::U32]), differs(1));
    let more = &[Parameter::Write, Parameter::Read, Parameter::U32, Parameter::U32];
    assert_eq!(of(more), differs(3));

    let function = module.function(&PLACE).unwrap();
    let block = memory.allocate(4096).unwrap();
    let arguments = [Argument::write(&block, 0..4096)];
    let shared = Grid { shared_bytes: 100 << 10, ..Grid::row(1, 1) };
    for grid in [Grid::row(1, 1025), Grid { blocks: [1, 1 << 16, 1], ..shared }, shared] {
        let error = launch(&streams, Stream::DEFAULT, &function, grid, &arguments).unwrap_err();
        assert!(matches!(error.cause(), Some(CudaError::Call { code: 1, .. })), "{error}");
        assert!(!error.is_fault() && error.to_string().contains("kernel place"), "{error}");
    }
    function.allow_shared_bytes(100 << 10).unwrap();
    launch(&streams, Stream::DEFAULT, &function, shared, &arguments).unwrap();
    assert!(function.allow_shared_bytes(1 << 20).is_err());
}

#[test]
fn module_stays_until_its_work_is_done() {
    let Some(gpu) = Gpu::pretend() else { return };
    let (streams, memory) = gpu.memory();
    let module = basics(streams.device());
    let function = module.function(&PLACE).unwrap();
    drop(module);
    let block = memory.allocate(4 * 64).unwrap();
    let arguments = [Argument::write(&block, 0..4 * 64)];
    launch(&streams, Stream::DEFAULT, &function, Grid::row(2, 32), &arguments).unwrap();
    assert_eq!((gpu.pretend.live("modules"), gpu.pretend.live("queued")), (1, 1));
    drop(function);
    assert_eq!((gpu.pretend.live("modules"), gpu.pretend.live("queued")), (0, 0));
    assert_eq!(words_of(&streams, &block, 64)[63], 10_031);
}

#[test]
fn removed_fence_between_copy_and_kernel_is_found_out() {
    let Some(gpu) = Gpu::pretend() else { return };
    let len = 64;
    let is_right = |seed: u64, is_fenced: bool| {
        let (streams, memory) = gpu.memory();
        let function = planted(streams.device()).function(&REVERSE).unwrap();
        gpu.pretend.schedule(seed);
        let (copies, compute) = (Stream::new(1).unwrap(), Stream::DEFAULT);
        let values: Vec<f32> = (0..len).map(|i| i as f32).collect();
        let staged = block_of(&streams, &memory, &values);
        let x = memory.allocate_on(copies, memory.current_category(), 4 * len).unwrap();
        let y = memory.allocate(4 * len).unwrap();
        streams.fill_words(copies, &x, 0..4 * len, 0).unwrap();
        streams.copy(copies, (&staged, 0..4 * len), (&x, 0..4 * len)).unwrap();
        staged.record_use(copies);
        x.record_use(compute);
        if is_fenced {
            streams.wait(compute, copies).unwrap();
        }
        let arguments =
            [Argument::write(&y, 0..4 * len), Argument::read(&x, 0..4 * len), Argument::I32(0)];
        launch(&streams, compute, &function, Grid::row(1, 64), &arguments).unwrap();
        let reversed: Vec<f32> = values.iter().rev().copied().collect();
        let is_right = floats_of(&streams, &y, len) == reversed;
        streams.device().synchronize().unwrap();
        is_right
    };
    assert!((0..10).all(|seed| is_right(seed, true)));
    assert!((0..10).any(|seed| !is_right(seed, false)));
}

/// Complaints of the driver, at the next call, about a kernel with a planted fault, one for each
/// order.
fn complaints(gpu: &Gpu, kernel: &Signature, which: i32, code: i32) -> Vec<String> {
    let of = |order: Order| {
        gpu.reset();
        gpu.pretend.threads(order);
        let (streams, memory) = gpu.memory();
        let function = planted(streams.device()).function(kernel).unwrap();
        let x = block_of(&streams, &memory, &[1.0; 128]);
        let y = block_of(&streams, &memory, &[0.0; 128]);
        let bytes = 0..4 * 128;
        let mut arguments = vec![Argument::write(&y, bytes.clone()), Argument::read(&x, bytes)];
        if kernel.name == "copy" {
            arguments.push(Argument::U64(128));
        }
        arguments.push(Argument::I32(which));
        let blocks = if kernel.name == "gather" { 1 } else { 2 };
        let grid = Grid::row(blocks + u32::from(kernel.name == "copy"), 64);
        launch(&streams, Stream::DEFAULT, &function, grid, &arguments).unwrap();
        let result = streams.device().synchronize();
        let complaint = gpu.pretend.complaint();
        if which == 0 {
            assert_eq!((&result, &complaint), (&Ok(()), &None), "{kernel:?} in {order:?}");
            return String::new();
        }
        let complaint = complaint
            .unwrap_or_else(|| panic!("{} {which} in {order:?}: no complaint", kernel.name));
        let error = result.unwrap_err();
        assert!(error.is_fault(), "{error}");
        let is_told = matches!(error, CudaError::Call { code: c, .. } if c == code);
        assert!(is_told, "{error}: {complaint}");
        // The next call gets the same error, which is no lack of memory.
        let next = launch(&streams, Stream::DEFAULT, &function, grid, &arguments).unwrap_err();
        assert!(next.is_fault() && !next.is_out_of_memory(), "{next}");
        complaint
    };
    let found = ORDERS.map(of);
    gpu.reset();
    found.into()
}

const ILLEGAL_ADDRESS: i32 = 700;
const MISALIGNED_ADDRESS: i32 = 716;
const LAUNCH_FAILED: i32 = 719;

fn is_found(kernel: &Signature, faults: &[(i32, i32, &str)]) {
    let Some(gpu) = Gpu::watched() else { return };
    complaints(&gpu, kernel, 0, 0);
    for &(which, code, part) in faults {
        for complaint in complaints(&gpu, kernel, which, code) {
            assert!(complaint.contains(part) && complaint.contains(kernel.name), "{complaint}");
        }
    }
}

#[test]
fn removed_or_divergent_barrier_is_found_out_in_every_order() {
    let faults = [
        (1, LAUNCH_FAILED, "shared memory"),
        (2, LAUNCH_FAILED, "reached by 40 of 64 threads"),
        (3, LAUNCH_FAILED, "wait at the barriers of lines"),
    ];
    is_found(&REVERSE, &faults);
}

#[test]
fn index_out_of_bounds_is_found_out_in_every_order() {
    let faults = [
        (1, ILLEGAL_ADDRESS, "reads 4 bytes at 512 of the 512 of its memory 1"),
        (2, ILLEGAL_ADDRESS, "writes 4 bytes at 512 of the 512 of its memory 0"),
        (3, ILLEGAL_ADDRESS, "which is to be read only"),
        (4, ILLEGAL_ADDRESS, "reads 4 bytes at"),
    ];
    is_found(&COPY, &faults);
}

#[test]
fn threads_that_do_not_keep_apart_are_found_out_in_every_order() {
    let faults = [
        (1, LAUNCH_FAILED, "no barrier between"),
        (2, MISALIGNED_ADDRESS, "not aligned at planted.cu"),
        (3, LAUNCH_FAILED, "which takes no part"),
        (4, LAUNCH_FAILED, "which nobody wrote"),
    ];
    is_found(&GATHER, &faults);
}

#[test]
fn every_driver_call_of_a_launch_may_fail_and_nothing_is_left() {
    let Some(gpu) = Gpu::pretend() else { return };
    let go = |streams: &CudaStreams, memory: &CachingAllocator| -> Result<(), KernelError> {
        let module =
            Module::load(streams.device(), "basics", KERNELS.get("basics").unwrap().as_bytes())?;
        let function = module.function(&PLACE)?;
        function.needs()?;
        function.allow_shared_bytes(1 << 10)?;
        let block = memory.allocate(4 * 32).unwrap();
        let arguments = [Argument::write(&block, 0..4 * 32)];
        launch(streams, Stream::DEFAULT, &function, Grid::row(1, 32), &arguments)
    };
    for repeat in [Repeat::Once, Repeat::Forever] {
        let mut nth = 1;
        let count = loop {
            let (streams, memory) = gpu.memory();
            drop(memory.allocate(4 * 32).unwrap());
            let calls = gpu.pretend.calls("");
            gpu.pretend.fail("", 999, nth, repeat);
            let result = go(&streams, &memory);
            let is_over = gpu.pretend.calls("") - calls < nth;
            gpu.pretend.fail("", 0, 0, Repeat::Once);
            if let Err(error) = result {
                let cause = error.cause().expect("the driver's refusal");
                assert!(matches!(cause, CudaError::Call { code: 999, .. }), "{nth}: {error}");
            }
            drop((streams, memory));
            let left = gpu.pretend.left();
            // A driver that fails for ever keeps the module, because it cannot unload it.
            let is_kept = repeat == Repeat::Forever && left == [("modules", 1)];
            assert!(left.is_empty() || is_kept, "{repeat:?} {nth}: {left:?}");
            gpu.reset();
            if is_over {
                break nth;
            }
            nth += 1;
        };
        assert!(count > 20, "{count}");
    }
}

#[test]
fn kernels_that_are_not_watched_compute_the_same_and_still_meet_at_barriers() {
    let Some(gpu) = Gpu::with_kernels(&package().join(BASICS), Watch::Barriers) else { return };
    {
        let (streams, memory) = gpu.memory();
        let function = planted(streams.device()).function(&REVERSE).unwrap();
        let values: Vec<f32> = (0..64).map(|i| i as f32).collect();
        let (x, y) = (block_of(&streams, &memory, &values), memory.allocate(256).unwrap());
        let arguments =
            |which| [Argument::write(&y, 0..256), Argument::read(&x, 0..256), Argument::I32(which)];
        let go = |which| {
            let grid = Grid::row(1, 64);
            launch(&streams, Stream::DEFAULT, &function, grid, &arguments(which)).unwrap();
        };
        for order in ORDERS {
            gpu.pretend.threads(order);
            go(0);
            let reversed: Vec<f32> = values.iter().rev().copied().collect();
            assert_eq!(floats_of(&streams, &y, 64), reversed, "{order:?}");
        }
        go(2);
        assert!(streams.device().synchronize().unwrap_err().is_fault());
        let complaint = gpu.pretend.complaint().unwrap();
        assert!(complaint.contains("reached by 40 of 64 threads"), "{complaint}");
    }
    gpu.reset();
}
