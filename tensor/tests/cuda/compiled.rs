use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use lowtide_allocator::Repeat;
use lowtide_allocator::cuda::Architecture;
use lowtide_tensor::cuda::gate::{CompileError, KernelCache};
use lowtide_tensor::{DType, Device, Tensor};

use crate::gpu::Gpu;

const SM_80: Architecture = Architecture { major: 8, minor: 0 };

/// The variable that is set in the child process, which has a cache of its own.
const CHILD: &str = "LOWTIDE_TEST_CHILD";

/// The test that the child process runs.
const NAME: &str = "compiled::kernels_are_compiled_for_a_device_that_names_its_architecture";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("compiled-kernels")
}

/// Checks results of kernels from two files, on a new device.
fn check_kernels(gpu: &Gpu, what: &str) {
    let device = gpu.device();
    let x = Tensor::full(&device, [3, 5], DType::F32, 2.0).unwrap();
    let y = x.add(&x).unwrap();
    assert_eq!(y.to_vec::<f32>().unwrap(), [4.0; 15], "{what}");
    let compiler = device.as_cuda().unwrap().compiler();
    assert_eq!(compiler.unwrap().cache().folder(), Some(folder().as_path()), "{what}");
}

fn in_the_child() {
    let Some(gpu) = Gpu::pretend() else { return };
    gpu.pretend.architecture(SM_80);
    let compiled = || gpu.pretend.calls("nvrtcCompileProgram");
    check_kernels(&gpu, "compiled now");
    let count = compiled();
    assert!(count > 0, "nothing was compiled");
    check_kernels(&gpu, "of the cache");
    assert_eq!(compiled(), count, "what is in the cache was compiled again");

    let files = || fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    assert_eq!(files().count() as u64, count);
    files().for_each(|path| fs::write(path, "not a kernel").unwrap());
    check_kernels(&gpu, "of a cache that is corrupt");
    assert_eq!(compiled(), 2 * count);

    // From here on only the PTX is left.
    files().for_each(|path| fs::remove_file(path).unwrap());
    gpu.pretend.fail("nvrtcCompileProgram", 6, 1, Repeat::Forever);
    check_kernels(&gpu, "a compiler that takes no source");
    gpu.pretend.fail("nvrtcCompileProgram", 0, 0, Repeat::Once);
    // `CUDA_ERROR_NO_BINARY_FOR_GPU`
    gpu.pretend.fail("cuModuleLoadDataEx", 209, 1, Repeat::Once);
    let device = gpu.device();
    let x = Tensor::full(&device, [4], DType::F32, 3.0).unwrap();
    assert_eq!(x.to_vec::<f32>().unwrap(), [3.0; 4], "a driver that does not take its code");
}

#[test]
fn kernels_are_compiled_for_a_device_that_names_its_architecture() {
    if std::env::var_os(CHILD).is_some() {
        return in_the_child();
    }
    // The environment names the folder of the cache, so a child process gets another environment.
    let _ = fs::remove_dir_all(folder());
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture"])
        .env(CHILD, "yes")
        .env(KernelCache::VARIABLE, folder())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if let Some(skip) = text.lines().find(|line| line.starts_with("skipped: ")) {
        println!("{skip}");
        return;
    }
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}{message}");
}

#[test]
fn device_without_an_architecture_takes_ptx() {
    let Some(gpu) = Gpu::pretend() else { return };
    let device: Device = gpu.device();
    let x = Tensor::full(&device, [4], DType::F32, 3.0).unwrap();
    assert_eq!(x.to_vec::<f32>().unwrap(), [3.0; 4]);
    assert_eq!(device.as_cuda().unwrap().compiler().unwrap_err(), &CompileError::NoArchitecture);
    assert_eq!(gpu.pretend.calls("nvrtcCompileProgram"), 0);
}
