use lowtide_allocator::Repeat;
use lowtide_tensor::cuda::CudaOptions;
use lowtide_tensor::{
    Cost, Cpu, CpuOptions, DType, Device, Kernel, Operands, Tensor, TensorError,
    TensorResult as Result,
};

use crate::gpu::Gpu;

pub(crate) fn cpu() -> Device {
    Device::cpu(CpuOptions { threads: Some(1), ..Default::default() }).unwrap()
}

/// 2 × 3 × 5 elements of a type on both devices.
fn both(gpu: &Device, dtype: DType) -> [Tensor; 2] {
    let on_cpu = Tensor::arange(&cpu(), 0.0..30.0, 1.0, DType::F64).unwrap();
    let on_cpu = on_cpu.reshape([2, 3, 5]).unwrap().to_dtype(dtype).unwrap();
    let bytes = on_cpu.to_bytes().unwrap();
    let on_gpu = Tensor::from_bytes(gpu, [2, 3, 5], dtype, &bytes).unwrap();
    [on_cpu, on_gpu]
}

type View = fn(&Tensor) -> Result<Tensor>;

const VIEWS: [View; 6] = [
    |x| Ok(x.clone()),
    |x| x.permute(&[2, 0, 1]),
    |x| x.narrow(1, 1, 2),
    |x| x.narrow(2, 1, 3)?.transpose(0, 2),
    |x| x.narrow(1, 2, 1)?.expand([2, 4, 5]),
    |x| x.narrow(0, 1, 0),
];

#[test]
fn bytes_go_to_the_device_and_come_back_through_every_view() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    for dtype in DType::ALL {
        let [on_cpu, on_gpu] = both(&device, dtype);
        for (index, view) in VIEWS.iter().enumerate() {
            let [expected, found] = [&on_cpu, &on_gpu].map(|x| view(x).unwrap());
            assert_eq!(found.shape(), expected.shape());
            assert_eq!(found.to_bytes().unwrap(), expected.to_bytes().unwrap(), "{dtype} {index}");
        }
    }
}

#[test]
fn bytes_are_set_through_views_and_nothing_else_is() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    for dtype in DType::ALL {
        for view in VIEWS.iter().take(4) {
            let tensors = both(&device, dtype);
            let bytes = view(&tensors[0]).unwrap().to_bytes().unwrap();
            let reversed: Vec<u8> = match dtype {
                DType::Bool => bytes.iter().map(|byte| 1 - byte).collect(),
                _ => bytes.iter().rev().copied().collect(),
            };
            let [expected, found] = tensors.map(|x| {
                view(&x).unwrap().set_bytes_(&reversed).unwrap();
                x.to_bytes().unwrap()
            });
            assert_eq!(found, expected, "{dtype}");
        }
    }
}

#[test]
fn memory_of_a_budget_ends_as_on_the_processor() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device_within(Some(4 << 20));
    let held = Tensor::empty(&device, [3 << 20], DType::U8).unwrap();
    let error = Tensor::empty(&device, [3 << 20], DType::U8).unwrap_err();
    let ledger = error.out_of_memory().expect("out of memory");
    assert_eq!(ledger.requested_bytes, 3 << 20);
    drop(held);
    Tensor::empty(&device, [3 << 20], DType::U8).unwrap();
}

#[test]
fn steady_step_makes_no_memory_call_to_the_driver() {
    let Some(gpu) = Gpu::pretend() else { return };
    let device = gpu.device();
    let step = || {
        let x = Tensor::from_slice(&device, [1000], &[0.5_f32; 1000]).unwrap();
        let y = x.add(&x).unwrap().relu().unwrap();
        assert_eq!(y.to_vec::<f32>().unwrap(), [1.0; 1000]);
    };
    (0..2).for_each(|_| step());
    let names = ["cuMemCreate", "cuMemMap", "cuMemUnmap", "cuMemRelease", "cuMemSetAccess"];
    let counts = || names.map(|name| gpu.pretend.calls(name));
    let before = counts();
    assert!(before[0] > 0, "the first step took memory");
    (0..5).for_each(|_| step());
    assert_eq!(counts(), before);
}

#[test]
fn device_that_is_not_there_says_what_was_looked_for() {
    let error = Device::cuda(99, CudaOptions::default()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("no CUDA d"), "{text}");
    assert!(!text.contains('\n'), "{text}");
}

#[test]
fn driver_that_refuses_a_copy_or_a_launch_is_a_typed_error_and_nothing_is_left() {
    let Some(gpu) = Gpu::pretend() else { return };
    let device = gpu.device();
    let x = Tensor::from_slice(&device, [4], &[1.0_f32, 2.0, 3.0, 4.0]).unwrap();
    let before = device.allocator().live_blocks();
    /// `CUDA_ERROR_UNKNOWN`.
    const UNKNOWN: i32 = 999;
    for call in ["cuModuleGetFunction", "cuLaunchKernel"] {
        gpu.pretend.fail(call, UNKNOWN, 1, Repeat::Once);
        let error = x.exp().unwrap_err();
        assert!(matches!(error, TensorError::Launch(_)), "{call}: {error}");
        assert_eq!(device.allocator().live_blocks(), before, "{call}");
    }
    let expected = x.exp().unwrap().to_vec::<f32>().unwrap();
    for call in ["cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2"] {
        gpu.pretend.fail(call, UNKNOWN, 1, Repeat::Once);
        let there_and_back =
            || Tensor::from_slice(&device, [1], &[1.0_f32])?.exp()?.to_vec::<f32>();
        let error = there_and_back().unwrap_err();
        assert!(matches!(error, TensorError::Cuda(_)), "{call}: {error}");
        assert_eq!(device.allocator().live_blocks(), before, "{call}");
    }
    assert_eq!(x.exp().unwrap().to_vec::<f32>().unwrap(), expected);
}

/// An operation of a user, without a kernel for NVIDIA devices.
pub(crate) struct OfTheProcessor;

impl Kernel for OfTheProcessor {
    fn name(&self) -> &'static str {
        "of_the_processor"
    }

    fn cost(&self) -> Cost {
        Cost::default()
    }

    fn cpu(self, _: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        operands.write::<f32>(0).slice().fill(1.0);
        Ok(())
    }
}

#[test]
fn operation_without_a_kernel_says_so() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    let x = Tensor::from_slice(&device, [4], &[1.0_f32, 2.0, 3.0, 4.0]).unwrap();
    let error = device.launch(OfTheProcessor, &[], &[&x]).unwrap_err();
    assert_eq!(error.to_string(), "of_the_processor: has no kernel for cuda");
    assert_eq!(x.to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0]);
    assert_eq!(device.allocator().live_blocks().len(), 1);
}
