//! What an NVIDIA device does under lowtide, as lines of JSON: `cargo run --release -p
//! lowtide-tensor --features cuda --example gpu_figures [MATMUL_SIZE] [COPY_MIB]`.
//!
//! A figure is the median of some runs; what cannot be measured is a line that says why. `cargo
//! xtask gpu-bundle` carries this to a machine with a device, beside the same in PyTorch.

use std::error::Error;
use std::time::Instant;

use lowtide_allocator::cuda::{CudaDevice, CudaHostSource, CudaSource, CudaStreams};
use lowtide_allocator::{CachingAllocator, PinnedCache, Stream};
use lowtide_tensor::cuda::{CudaOptions, Precision, Products};
use lowtide_tensor::{DType, Device, Tensor};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Runs that are not counted come first.
const WARM_UP: usize = 2;
const RUNS: usize = 9;

const MIB: usize = 1 << 20;

fn main() {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<usize>());
    let mut argument = |default| arguments.next().and_then(Result::ok).unwrap_or(default);
    let (size, copy_bytes) = (argument(4096), argument(256) * MIB);
    let device = match CudaDevice::open(0) {
        Ok(device) => device,
        Err(error) => return refused("device", &error.to_string()),
    };
    report("device", describe(&device));
    report("matmul", matmul(&device, size));
    refused("matmul_tf32", "products are of whole f32");
    report("copy", copies(&device, copy_bytes));
    report("memory_calls", [2 * MIB, copy_bytes].iter().try_for_each(|&n| commits(&device, n)));
}

/// A section that could not be measured to its end says why.
fn report(name: &str, outcome: Outcome<()>) {
    if let Err(error) = outcome {
        refused(name, &error.to_string());
    }
}

fn refused(name: &str, reason: &str) {
    println!("{{\"name\": {}, \"refused\": {}}}", quoted(name), quoted(reason));
}

fn said(name: &str, text: &str) {
    println!("{{\"name\": {}, \"text\": {}}}", quoted(name), quoted(text));
}

fn figure(name: &str, unit: &str, value: f64) {
    println!("{{\"name\": {}, \"unit\": {}, \"value\": {value:e}}}", quoted(name), quoted(unit));
}

/// A string of JSON.
fn quoted(text: &str) -> String {
    let escape = |c: char| match c {
        '"' | '\\' => format!("\\{c}"),
        c if c.is_control() => format!("\\u{:04x}", c as u32),
        c => c.to_string(),
    };
    format!("\"{}\"", text.chars().map(escape).collect::<String>())
}

/// Seconds of the median run.
fn median(mut run: impl FnMut() -> Outcome<f64>) -> Outcome<f64> {
    let mut seconds = Vec::new();
    for index in 0..WARM_UP + RUNS {
        let taken = run()?;
        if index >= WARM_UP {
            seconds.push(taken);
        }
    }
    seconds.sort_by(f64::total_cmp);
    Ok(seconds[RUNS / 2])
}

fn describe(device: &CudaDevice) -> Outcome<()> {
    said("device", &device.name()?);
    said(
        "driver",
        &format!("CUDA {}, {}", device.driver().version()?, device.driver().path().display()),
    );
    figure("total_memory", "bytes", device.memory()?.total_bytes as f64);
    let tensors = Device::cuda_on(device, CudaOptions::default())?;
    let compiler = tensors.as_cuda().map(|cuda| cuda.compiler());
    let kernels = match compiler {
        Some(Ok(found)) => {
            format!("NVRTC of CUDA {} for {}", found.compiler().version(), found.architecture())
        }
        Some(Err(reason)) => format!("PTX: {reason}"),
        None => "none".to_owned(),
    };
    said("kernels", &kernels);
    Ok(())
}

/// Square products, by the library in both precisions and by the kernel of this crate; results are
/// checked before: rows of ones times a constant.
fn matmul(device: &CudaDevice, size: usize) -> Outcome<()> {
    for (name, products) in [
        ("f32", Products::Library(Precision::F32)),
        ("tf32", Products::Library(Precision::Tf32)),
        ("own_f32", Products::Own),
    ] {
        matmul_by(device, size, name, products)?;
    }
    Ok(())
}

fn matmul_by(device: &CudaDevice, size: usize, name: &str, products: Products) -> Outcome<()> {
    let tensors = Device::cuda_on(device, CudaOptions { products, ..CudaOptions::default() })?;
    let a = Tensor::full(&tensors, [size, size], DType::F32, 1.0)?;
    let b = Tensor::full(&tensors, [size, size], DType::F32, 0.5)?;
    let y = a.matmul(&b)?;
    let corner: Vec<f32> = y.narrow(0, size - 1, 1)?.to_vec()?;
    if corner.iter().any(|&value| value != size as f32 * 0.5) {
        return Err(format!("a product of {size} terms is {}", corner[0]).into());
    }
    drop(y);
    // One product is too short beside the wait for it.
    const PRODUCTS: usize = 8;
    let seconds = median(|| {
        device.synchronize()?;
        let started = Instant::now();
        for _ in 0..PRODUCTS {
            a.matmul(&b)?;
        }
        device.synchronize()?;
        Ok(started.elapsed().as_secs_f64() / PRODUCTS as f64)
    })?;
    figure(&format!("matmul_{name}_{size}"), "seconds", seconds);
    let operations = 2.0 * (size as f64).powi(3);
    figure(&format!("matmul_{name}_{size}_rate"), "FLOP/s", operations / seconds);
    Ok(())
}

/// Between page-locked memory of the host and the device.
fn copies(device: &CudaDevice, size_bytes: usize) -> Outcome<()> {
    let streams = CudaStreams::new(device);
    let memory = CachingAllocator::new(CudaSource::new(&streams)?)?;
    let host = CudaHostSource::with_capacity(device, size_bytes);
    let cache = PinnedCache::new(host, streams.clone())?;
    let on = Stream::DEFAULT;
    let mut batch = cache.allocate(on, size_bytes)?;
    let block = memory.allocate(size_bytes)?;
    batch.as_mut_slice().fill(7);
    let seconds = median(|| {
        let started = Instant::now();
        streams.upload_pinned(on, &batch, (&block, 0))?;
        streams.synchronize(on)?;
        Ok(started.elapsed().as_secs_f64())
    })?;
    figure("copy_to_device", "bytes/s", size_bytes as f64 / seconds);
    batch.wait()?;
    let seconds = median(|| {
        let started = Instant::now();
        streams.download(on, (&block, 0..size_bytes), batch.as_mut_slice())?;
        Ok(started.elapsed().as_secs_f64())
    })?;
    if batch.as_slice().iter().any(|&byte| byte != 7) {
        return Err("what came back is not what was sent".into());
    }
    figure("copy_to_host", "bytes/s", size_bytes as f64 / seconds);
    Ok(())
}

/// Memory that the allocator has to ask the driver for, and gives back: pages are made, mapped and
/// made accessible, and all of that undone.
fn commits(device: &CudaDevice, size_bytes: usize) -> Outcome<()> {
    let streams = CudaStreams::new(device);
    let memory = CachingAllocator::new(CudaSource::new(&streams)?)?;
    let mut given_back = Vec::new();
    let taken = median(|| {
        let started = Instant::now();
        let block = memory.allocate(size_bytes)?;
        let taken = started.elapsed().as_secs_f64();
        drop(block);
        let started = Instant::now();
        memory.trim();
        given_back.push(started.elapsed().as_secs_f64());
        Ok(taken)
    })?;
    let mib = size_bytes / MIB;
    figure(&format!("allocate_{mib}_MiB_from_driver"), "seconds", taken);
    given_back.sort_by(f64::total_cmp);
    figure(&format!("give_{mib}_MiB_to_driver"), "seconds", given_back[given_back.len() / 2]);
    let cached = median(|| {
        let started = Instant::now();
        drop(memory.allocate(size_bytes)?);
        Ok(started.elapsed().as_secs_f64())
    })?;
    figure(&format!("allocate_{mib}_MiB_from_cache"), "seconds", cached);
    Ok(())
}
