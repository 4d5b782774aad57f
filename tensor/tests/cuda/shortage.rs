//! A driver without memory for itself, outside the allocator.

use lowtide_allocator::Repeat;
use lowtide_tensor::cuda::{CudaOptions, Products};
use lowtide_tensor::{DType, Device, Tensor, TensorError, TensorResult as Result};

use crate::elementwise::noise;
use crate::gpu::Gpu;
use crate::storage::cpu;

/// `CUDA_ERROR_OUT_OF_MEMORY`. The pretend cuBLASLt reports it by a code of its own.
const OUT_OF_MEMORY: i32 = 2;

/// Calls that take memory on first use: of kernels, the library, streams, events and page-locked
/// memory of the host.
const FIRST_USES: [&str; 8] = [
    "cuModuleLoadDataEx",
    "cuModuleGetFunction",
    "cuLaunchKernel",
    "cublasLtCreate",
    "cublasLtMatmul",
    "cuStreamCreate",
    "cuEventCreate",
    "cuMemHostAlloc",
];

/// A layer and its loss: kernels of several images, a product, copies and a record of labels.
fn step(device: &Device) -> Result<Vec<u8>> {
    let on = |x: &Tensor| Tensor::from_bytes(device, *x.shape(), x.dtype(), &x.to_bytes().unwrap());
    let x = on(&noise(&cpu(), "x", &[6, 9], [-1.0, 1.0]))?;
    let w = on(&noise(&cpu(), "w", &[5, 9], [-1.0, 1.0]))?;
    let b = on(&noise(&cpu(), "b", &[5], [-1.0, 1.0]))?;
    let labels = Tensor::zeros(device, [6], DType::I64)?;
    let y = x.linear(&w, Some(&b))?;
    let loss = y.cross_entropy(&labels, -100)?;
    y.add(&loss.sum)?.to_bytes()
}

/// A device that could load nothing when it was opened.
fn unloaded(gpu: &Gpu) -> Device {
    let late = ["cuModuleLoadDataEx", "cublasLtCreate"];
    late.iter().for_each(|call| gpu.pretend.fail(call, OUT_OF_MEMORY, 1, Repeat::Forever));
    let device = gpu.device();
    late.iter().for_each(|call| gpu.pretend.fail(call, 0, 0, Repeat::Once));
    device
}

#[test]
fn every_first_use_survives_a_driver_without_memory() {
    let Some(gpu) = Gpu::pretend() else { return };
    let calm = step(&gpu.device()).unwrap();
    for call in FIRST_USES {
        for nth in 1..=3 {
            let device = unloaded(&gpu);
            // Cached memory that the allocator can give back.
            drop(Tensor::zeros(&device, [1 << 20], DType::F32).unwrap());
            let before = gpu.pretend.calls(call);
            gpu.pretend.fail(call, OUT_OF_MEMORY, nth, Repeat::Once);
            // A wait of streams can fail while memory is allocated: then the step is repeated.
            let found = step(&device).or_else(|error| match error.out_of_memory() {
                Some(_) => step(&device),
                None => Err(error),
            });
            let found = found.unwrap_or_else(|error| panic!("{call} {nth}: {error}"));
            assert_eq!(found, calm, "{call} {nth}");
            assert!(nth > 1 || gpu.pretend.calls(call) > before, "{call} was not called");
            gpu.pretend.fail(call, 0, 0, Repeat::Once);
        }
    }
}

#[test]
fn driver_that_stays_without_memory_is_out_of_memory_that_names_the_call() {
    let Some(gpu) = Gpu::pretend() else { return };
    let calm = step(&gpu.device()).unwrap();
    for call in FIRST_USES {
        let device = unloaded(&gpu);
        gpu.pretend.fail(call, OUT_OF_MEMORY, 1, Repeat::Forever);
        let found = step(&device);
        gpu.pretend.fail(call, 0, 0, Repeat::Once);
        match found {
            Ok(found) => assert_eq!(found, calm, "{call}"),
            Err(error) => {
                let ledger = error.out_of_memory().unwrap_or_else(|| panic!("{call}: {error}"));
                assert!(ledger.refused_call.is_some() && ledger.requested_bytes == 0, "{ledger:?}");
                assert!(ledger.outside_bytes > 0, "{ledger:?}");
                let text = error.to_string();
                assert!(text.starts_with("out of memory: the driver has none for "), "{text}");
                let is_named = text.contains(call) || text.contains("a wait of one stream");
                assert!(is_named || text.contains("page-locked"), "{call}: {text}");
                assert!(text.contains("outside the allocator"), "{text}");
            }
        }
        assert_eq!(step(&device).unwrap(), calm, "after {call}");
    }
}

#[test]
fn other_failures_of_a_first_use_are_typed_and_leave_nothing() {
    let Some(gpu) = Gpu::pretend() else { return };
    for call in FIRST_USES {
        let device = unloaded(&gpu);
        // `CUDA_ERROR_UNKNOWN`, and no code of the library.
        gpu.pretend.fail(call, 999, 1, Repeat::Forever);
        let blocks = device.allocator().live_blocks().len();
        if let Err(error) = step(&device) {
            let is_typed = matches!(
                error,
                TensorError::Alloc(_)
                    | TensorError::Cuda(_)
                    | TensorError::Launch(_)
                    | TensorError::Product(_)
            );
            assert!(is_typed && error.out_of_memory().is_none(), "{call}: {error:?}");
        }
        gpu.pretend.fail(call, 0, 0, Repeat::Once);
        assert_eq!(device.allocator().live_blocks().len(), blocks, "{call}");
        drop(device);
        assert_eq!(gpu.pretend.left(), [], "{call}");
    }
}

#[test]
fn capacity_leaves_room_for_what_is_loaded_later() {
    let Some(gpu) = Gpu::pretend() else { return };
    for (products, budget_bytes) in
        [(Products::default(), None), (Products::Own, None), (Products::default(), Some(1 << 40))]
    {
        gpu.reset();
        gpu.pretend.load_bytes(1 << 20);
        let device = gpu.device_with(CudaOptions { products, budget_bytes });
        let total_bytes = 64 << 20;
        let capacity_bytes = device.allocator().capacity_bytes();
        assert!(device.outside_bytes() > 12 << 20, "{}", device.outside_bytes());
        assert_eq!(capacity_bytes + device.outside_bytes(), total_bytes);
        // Runs a step on a device that is full except for the memory that the step needs.
        let ballast_len = capacity_bytes / 4 - (2 << 20) / 4;
        let _ballast = Tensor::zeros(&device, [ballast_len], DType::F32).unwrap();
        step(&device).unwrap();
        let error = Tensor::zeros(&device, [2 << 20], DType::F32).unwrap_err();
        let ledger = error.out_of_memory().unwrap();
        assert_eq!(ledger.refused_call, None);
        let free_bytes = total_bytes - ledger.reserved_bytes - ledger.outside_bytes;
        assert!(ledger.outside_bytes > 12 << 20 && free_bytes <= 4 << 20, "{ledger:?}");
    }
    gpu.reset();
}
