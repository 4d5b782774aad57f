//! Figures of an NVIDIA device under lowtide, as lines of JSON: `cargo run --release -p
//! lowtide-tensor --features cuda --example gpu_figures [--small] [SECTION...]`. The sections are
//! `compile` (every kernel, into the cache), `versions`, `copies`, `memory_calls`, `launches`,
//! `products`, `convolutions` and `kernels`; all sections if none is named.
//!
//! A figure is the median of some runs. A figure that cannot be measured is a line with the reason.
//! A line is printed when its figure is known. `cargo xtask gpu-bundle` carries this program to a
//! machine with a device, beside the same measurements in PyTorch.

#[path = "gpu_figures/kernels.rs"]
mod kernels;

use std::error::Error;
use std::time::Instant;

use lowtide_allocator::cuda::{CudaDevice, CudaHostSource, CudaSource, CudaStreams};
use lowtide_allocator::{CachingAllocator, PinnedCache, Stream};
use lowtide_tensor::cuda::gate::{KernelCache, KernelCompiler};
use lowtide_tensor::cuda::{CudaOptions, Precision, Products, ProductsBy, compile_kernels};
use lowtide_tensor::{Conv2dGeometry, DType, Device, RandomKey, Tensor};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Number of runs before the counted ones.
const WARM_UP: usize = 2;
const RUNS: usize = 9;

const MIB: usize = 1 << 20;

/// Launches between two waits, so that the wait is short beside them.
const LAUNCHES: usize = 1000;

const SECTIONS: [&str; 8] = [
    "compile",
    "versions",
    "copies",
    "memory_calls",
    "launches",
    "products",
    "convolutions",
    "kernels",
];

/// Sizes of the measured operations.
struct Sizes {
    /// Rows and columns of products.
    product: usize,
    /// Images of convolutions.
    images: usize,
    copy_bytes: usize,
    launches: usize,
    /// Elements that kernels work on.
    kernels: [usize; 3],
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let sizes = match arguments.iter().any(|argument| argument == "--small") {
        true => Sizes {
            product: 64,
            images: 1,
            copy_bytes: 4 * MIB,
            launches: 20,
            kernels: [64, 256, 1024],
        },
        false => Sizes {
            product: 4096,
            images: 32,
            copy_bytes: 256 * MIB,
            launches: LAUNCHES,
            kernels: [1 << 14, 1 << 20, 1 << 26],
        },
    };
    let device = match CudaDevice::open(0) {
        Ok(device) => device,
        Err(error) => return refused("device", &error.to_string()),
    };
    let named: Vec<&str> =
        SECTIONS.into_iter().filter(|name| arguments.iter().any(|other| other == name)).collect();
    let sections = if named.is_empty() { SECTIONS.to_vec() } else { named };
    for section in sections {
        let outcome = match section {
            "compile" => compile(&device),
            "versions" => describe(&device),
            "copies" => copies(&device, sizes.copy_bytes),
            "memory_calls" => [1, 16, 256].iter().try_for_each(|pages| {
                let size_bytes = pages * 2 * MIB;
                if size_bytes > sizes.copy_bytes * 2 {
                    Ok(())
                } else {
                    commits(&device, size_bytes)
                }
            }),
            "launches" => launches(&device, sizes.launches),
            "products" => products(&device, sizes.product)
                .and_then(|()| gpt2_layers(&device, 2 * sizes.product)),
            "convolutions" => convolutions(&device, sizes.images),
            _ => copy_rate(&device, sizes.copy_bytes)
                .and_then(|rate| kernels::measure(&device, &sizes, rate)),
        };
        report(section, outcome);
    }
}

/// Reports why a section could not be measured to its end.
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

/// Prints measured seconds beside the floor, which nothing can be faster than.
fn figure_beside(name: &str, seconds: f64, floor_seconds: f64) {
    let name = quoted(name);
    println!(
        "{{\"name\": {name}, \"unit\": \"seconds\", \"value\": {seconds:e}, \
         \"floor\": {floor_seconds:e}}}"
    );
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

/// Measures the time that a new device waits for its kernels, if the cache is empty.
fn compile(device: &CudaDevice) -> Outcome<()> {
    let compiler = KernelCompiler::of(device, KernelCache::from_environment())?;
    let started = Instant::now();
    let kernels = compile_kernels(&compiler)?;
    figure("compile_kernels", "seconds", started.elapsed().as_secs_f64());
    said("compiled", &format!("{kernels} images for {}", compiler.architecture()));
    Ok(())
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
    if let Some(cuda) = tensors.as_cuda() {
        said("products", &cuda.products().to_string());
    }
    figure("outside_the_allocator", "bytes", tensors.outside_bytes() as f64);
    figure("capacity", "bytes", tensors.allocator().capacity_bytes() as f64);
    Ok(())
}

/// The layers of the smallest GPT-2, in bf16: name, inputs, outputs.
const GPT2: [(&str, usize, usize); 5] = [
    ("qkv", 768, 2304),
    ("proj", 768, 768),
    ("up", 768, 3072),
    ("down", 3072, 768),
    ("head", 768, 50_257),
];

/// Measures the rates of GPT-2's layers on `rows` tokens, forwards.
fn gpt2_layers(device: &CudaDevice, rows: usize) -> Outcome<()> {
    let tensors = Device::cuda_on(device, CudaOptions::default())?;
    let noise = |dims: &[usize]| kernels::noise(&tensors, DType::BF16, dims);
    for (name, inputs, outputs) in GPT2 {
        let (x, w) = (noise(&[rows, inputs])?, noise(&[outputs, inputs])?);
        let b = noise(&[outputs])?;
        let seconds = seconds_of_one(device, || Ok(x.linear(&w, Some(&b)).map(drop)?))?;
        let operations = 2.0 * (rows * inputs * outputs) as f64;
        figure(&format!("gpt2_{name}_bf16_rate"), "FLOP/s", operations / seconds);
    }
    Ok(())
}

/// Convolutions of ResNet-50 and of a U-Net: name, channels, rows and columns of x, channels of y,
/// rows and columns of the kernel, stride.
const CONVOLUTIONS: [(&str, usize, usize, usize, usize, usize); 10] = [
    ("stem", 3, 224, 64, 7, 2),
    ("56", 64, 56, 64, 3, 1),
    ("56_one", 64, 56, 256, 1, 1),
    ("56_strided", 128, 56, 128, 3, 2),
    ("28", 128, 28, 128, 3, 1),
    ("14", 256, 14, 256, 3, 1),
    ("14_one", 1024, 14, 256, 1, 1),
    ("7", 512, 7, 512, 3, 1),
    ("7_one", 512, 7, 2048, 1, 1),
    ("unet_128", 64, 128, 64, 3, 1),
];

/// Measures the rates of the convolutions and of their gradients in bf16 and in tf32.
fn convolutions(device: &CudaDevice, images: usize) -> Outcome<()> {
    convolutions_in(device, images, ("bf16", DType::BF16, Precision::F32))?;
    convolutions_in(device, images, ("tf32", DType::F32, Precision::Tf32))
}

fn convolutions_in(
    device: &CudaDevice,
    images: usize,
    (name_of_type, dtype, precision): (&str, DType, Precision),
) -> Outcome<()> {
    let products = Products::Library(precision);
    let tensors = Device::cuda_on(device, CudaOptions { products, ..CudaOptions::default() })?;
    let noise = |dims: &[usize]| kernels::noise(&tensors, dtype, dims);
    for (name, ins, size, outs, kernel, stride) in CONVOLUTIONS {
        let (stride, padding) = ([stride, stride], [kernel / 2, kernel / 2]);
        let geometry = Conv2dGeometry { stride, padding, ..Conv2dGeometry::default() };
        let (x, w) = (noise(&[images, ins, size, size])?, noise(&[outs, ins, kernel, kernel])?);
        let dy = noise(x.conv2d(&w, None, geometry)?.shape())?;
        let operations = 2.0 * (dy.element_count() * w.element_count() / outs) as f64;
        let tell = |what: &str, run: &dyn Fn() -> lowtide_tensor::TensorResult<Tensor>| {
            let seconds = seconds_of_one(device, || Ok(run().map(drop)?))?;
            let name = format!("conv_{name}_{what}_{name_of_type}_rate");
            figure(&name, "FLOP/s", operations / seconds);
            Outcome::Ok(())
        };
        tell("y", &|| x.conv2d(&w, None, geometry))?;
        tell("dx", &|| dy.conv2d_backward_input(&w, *x.shape(), geometry))?;
        tell("dw", &|| dy.conv2d_backward_weight(&x, *w.shape(), geometry))?;
    }
    Ok(())
}

/// Measures square products, by the library in each type and by the kernel of this crate. The name
/// of a figure names the multiplier. If the library refused, there is no figure for it.
fn products(device: &CudaDevice, size: usize) -> Outcome<()> {
    let exact = Products::Library(Precision::F32);
    for (name, dtype, products) in [
        ("f32", DType::F32, exact),
        ("tf32", DType::F32, Products::Library(Precision::Tf32)),
        ("bf16", DType::BF16, exact),
        ("f16", DType::F16, exact),
        ("f64", DType::F64, exact),
        ("own_f32", DType::F32, Products::Own),
        ("own_bf16", DType::BF16, Products::Own),
    ] {
        let name = format!("matmul_{name}_{size}");
        match product_seconds(device, (size, dtype), products) {
            Ok(seconds) => {
                figure(&name, "seconds", seconds);
                let operations = 2.0 * (size as f64).powi(3);
                figure(&format!("{name}_rate"), "FLOP/s", operations / seconds);
            }
            Err(error) => refused(&name, &error.to_string()),
        }
    }
    Ok(())
}

/// The median time of a product. Several are timed together, because one is too short beside the
/// wait for it.
fn seconds_of_one(device: &CudaDevice, product: impl Fn() -> Outcome<()>) -> Outcome<f64> {
    const PRODUCTS: usize = 8;
    median(|| {
        device.synchronize()?;
        let started = Instant::now();
        (0..PRODUCTS).try_for_each(|_| product())?;
        device.synchronize()?;
        Ok(started.elapsed().as_secs_f64() / PRODUCTS as f64)
    })
}

fn product_seconds(
    device: &CudaDevice,
    (size, dtype): (usize, DType),
    products: Products,
) -> Outcome<f64> {
    let tensors = Device::cuda_on(device, CudaOptions { products, ..CudaOptions::default() })?;
    // Checks the result first, for rows of ones times a constant.
    let mut a = Tensor::full(&tensors, [size, size], DType::F32, 1.0)?;
    let mut b = Tensor::full(&tensors, [size, size], DType::F32, 0.5)?;
    let corner = a.to_dtype(dtype)?.matmul(&b.to_dtype(dtype)?)?.narrow(0, size - 1, 1)?;
    let corner: Vec<f32> = corner.to_dtype(DType::F32)?.to_vec()?;
    if corner.iter().any(|&value| value != size as f32 * 0.5) {
        return Err(format!("a product of {size} terms is {}", corner[0]).into());
    }
    a.normal_(RandomKey::new(1), 0.0, 1.0)?;
    b.normal_(RandomKey::new(2), 0.0, 1.0)?;
    let (a, b) = (a.to_dtype(dtype)?, b.to_dtype(dtype)?);
    let seconds = seconds_of_one(device, || Ok(a.matmul(&b).map(drop)?))?;
    let cuda = tensors.as_cuda().ok_or("no NVIDIA device")?;
    let own = cuda.product_counts().own;
    if products != Products::Own && own > 0 {
        return Err(match cuda.products() {
            ProductsBy::OwnInstead(error) => error.to_string().into(),
            _ => format!("cuBLASLt refused {own} of the products").into(),
        });
    }
    for (product, words) in cuda.library_choices() {
        let words: Vec<String> = words.iter().map(|word| format!("{word:x}")).collect();
        let (by, words) = (cuda.products(), words.join(" "));
        said(
            "product_choice",
            &format!("{}x{}x{}: {by}: {words}", product.m, product.n, product.k),
        );
    }
    Ok(seconds)
}

/// Measures the time of a launch on the host, its time on the device when many launches wait, and
/// the time of driver calls that have nothing to do.
fn launches(device: &CudaDevice, count: usize) -> Outcome<()> {
    let tensors = Device::cuda_on(device, CudaOptions::default())?;
    let mut x = Tensor::zeros(&tensors, [32], DType::F32)?;
    let mut on_host = Vec::new();
    let seconds = median(|| {
        device.synchronize()?;
        let started = Instant::now();
        for _ in 0..count {
            // A fill with a value whose bytes differ needs a kernel.
            x.fill_(1.5)?;
        }
        on_host.push(started.elapsed().as_secs_f64() / count as f64);
        device.synchronize()?;
        Ok(started.elapsed().as_secs_f64() / count as f64)
    })?;
    on_host.sort_by(f64::total_cmp);
    figure("launch_on_the_host", "seconds", on_host[on_host.len() / 2]);
    figure("launch_in_a_row", "seconds", seconds);
    let call = |name: &str, work: &dyn Fn() -> Outcome<()>| -> Outcome<()> {
        let seconds = median(|| {
            let started = Instant::now();
            (0..count).try_for_each(|_| work())?;
            Ok(started.elapsed().as_secs_f64() / count as f64)
        })?;
        figure(name, "seconds", seconds);
        Ok(())
    };
    call("cuCtxSynchronize_idle", &|| Ok(device.synchronize()?))?;
    call("cuMemGetInfo", &|| Ok(device.memory().map(drop)?))?;
    let value = Tensor::zeros(&tensors, [1], DType::F32)?;
    call("read_of_one_value", &|| Ok(value.to_vec::<f32>().map(drop)?))
}

/// Bytes per second of a copy within the device. Each byte counts when it is read and when it is
/// written.
fn copy_rate(device: &CudaDevice, size_bytes: usize) -> Outcome<f64> {
    let tensors = Device::cuda_on(device, CudaOptions::default())?;
    let len = size_bytes / size_of::<f32>();
    let mut x = Tensor::zeros(&tensors, [len], DType::F32)?;
    x.normal_(RandomKey::new(3), 0.0, 1.0)?;
    let mut y = x.copied()?;
    let seconds = median(|| {
        device.synchronize()?;
        let started = Instant::now();
        y.copy_(&x)?;
        device.synchronize()?;
        Ok(started.elapsed().as_secs_f64())
    })?;
    Ok(2.0 * size_bytes as f64 / seconds)
}

/// Measures copies within the device, and between the device and page-locked memory of the host.
fn copies(device: &CudaDevice, size_bytes: usize) -> Outcome<()> {
    figure("copy_within_device", "bytes/s", copy_rate(device, size_bytes)?);
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
        streams.upload_pinned(on, (&batch, 0..size_bytes), (&block, 0))?;
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

/// Measures requests of the allocator to the driver: pages are made, mapped and made accessible,
/// and all of that is undone.
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
