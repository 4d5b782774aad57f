use lowtide_allocator::Repeat;
use lowtide_allocator::cuda::{CudaDevice, Driver, Libraries};
use lowtide_tensor::cuda::{CudaOptions, ProductCounts, Products, ProductsBy};
use lowtide_tensor::{DType, Device, Tensor, TensorResult as Result};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::alike::{assert_alike, each_float, on};
use crate::elementwise::noise;
use crate::gpu::Gpu;
use crate::storage::cpu;

/// Tolerance of sums of up to 150 products of numbers below 1, in another order.
const TOLERANCE: f64 = 2e-5;
const TOLERANCE_OF_F64: f64 = 1e-13;

fn config(cases: u32) -> Config {
    Config { cases, failure_persistence: None, ..Config::default() }
}

/// Options for products by the library, or by the kernel of this crate.
fn products(by_library: bool) -> CudaOptions {
    let products = if by_library { Products::default() } else { Products::Own };
    CudaOptions { products, ..CudaOptions::default() }
}

/// A view with the last two dimensions transposed in memory, or of every second element.
fn arranged(x: &Tensor, form: usize) -> Result<Tensor> {
    let rank = x.shape().len();
    match form {
        0 => Ok(x.clone()),
        1 => x.transpose(rank - 2, rank - 1)?.copied()?.transpose(rank - 2, rank - 1),
        _ => {
            let twice: Vec<usize> = x.shape().iter().copied().chain([2]).collect();
            x.unsqueeze(rank)?.expand(&twice[..])?.copied()?.select(rank, 0)
        }
    }
}

#[test]
fn products_are_those_of_the_processor_over_generated_shapes() {
    let Some(gpu) = Gpu::take() else { return };
    let size = || prop_oneof![1 => 0..2_usize, 4 => 2..20_usize, 1 => 60..150_usize];
    let batch = prop::collection::vec((1..4_usize, 0..4), 0..=3);
    let forms = (0..3_usize, 0..3_usize, any::<[bool; 3]>());
    let types = 0..4_usize;
    TestRunner::new(config(80))
        .run(
            &((size(), size(), size()), batch, forms, types),
            |((m, k, n), batch, (fa, fb, [adds, by_library, is_wide]), of)| {
                let (dtype, tolerance) = each_float([TOLERANCE, TOLERANCE_OF_F64])[of];
                let (device, cpu) = (gpu.device_with(products(by_library)), cpu());
                let side = |stretched: i32, dims: [usize; 2]| -> Vec<usize> {
                    let outer = batch
                        .iter()
                        .map(|&(size, which)| if which == stretched { 1 } else { size });
                    outer.chain(dims).collect()
                };
                let make = |name: &str, shape: &[usize], dtype| {
                    noise(&cpu, name, shape, [-1.0, 1.0]).to_dtype(dtype).unwrap()
                };
                let (a, b) =
                    (make("a", &side(0, [m, k]), dtype), make("b", &side(1, [k, n]), dtype));
                let shape = *a.matmul(&b).unwrap().shape();
                // Sums of products of half types may be kept in f32.
                let is_wide = is_wide && dtype.size_bytes() == 2;
                let y = make("y", &shape, if is_wide { DType::F32 } else { dtype });
                let name = format!("matmul {dtype}, wide {is_wide}, library {by_library}");
                assert_alike(&device, &name, &[&a, &b, &y], tolerance, |inputs| {
                    let [a, b, y] = inputs else { unreachable!() };
                    let (a, b) = (arranged(a, fa)?, arranged(b, fb)?);
                    if adds {
                        let mut y = y.clone();
                        y.matmul_add_(&a, &b)?;
                        return Ok(vec![y]);
                    }
                    Ok(vec![a.matmul(&b)?])
                });
                Ok(())
            },
        )
        .unwrap();
}

#[test]
fn layers_and_vectors_are_those_of_the_processor() {
    let Some(gpu) = Gpu::take() else { return };
    let types = each_float([TOLERANCE, TOLERANCE_OF_F64]);
    let cases = || [false, true].into_iter().flat_map(|by| types.map(|of| (by, of)));
    gpu.in_every_order(|| {
        for (by_library, (dtype, tolerance)) in cases() {
            let make = |name: &str, shape: &[usize]| {
                noise(&cpu(), name, shape, [-1.0, 1.0]).to_dtype(dtype).unwrap()
            };
            let (x, w) = (make("x", &[3, 7, 40]), make("w", &[70, 40]));
            let (b, v) = (make("b", &[70]), make("v", &[40]));
            assert_alike(
                &gpu.device_with(products(by_library)),
                &format!("linear {dtype} {by_library}"),
                &[&x, &w, &b, &v],
                tolerance,
                |inputs| {
                    let [x, w, b, v] = inputs else { unreachable!() };
                    Ok(vec![
                        x.linear(w, Some(b))?,
                        x.linear(w, None)?,
                        w.matvec(v)?,
                        v.dot(v)?,
                        v.outer(b)?,
                        v.matmul(&w.transpose(0, 1)?)?,
                    ])
                },
            );
        }
    });
}

#[test]
fn gradients_are_added_through_a_view_that_lies_on_its_side() {
    let Some(gpu) = Gpu::take() else { return };
    let a = noise(&cpu(), "a", &[9, 5], [-1.0, 1.0]);
    let b = noise(&cpu(), "b", &[5, 66], [-1.0, 1.0]);
    let y = noise(&cpu(), "y", &[70, 12], [-1.0, 1.0]);
    assert_alike(&gpu.device(), "matmul_add", &[&a, &b, &y], TOLERANCE, |inputs| {
        let [a, b, y] = inputs else { unreachable!() };
        let mut part = y.narrow(0, 2, 66)?.narrow(1, 1, 9)?.transpose(0, 1)?;
        part.matmul_add_(a, b)?;
        Ok(Vec::new())
    });
}

#[test]
fn layer_with_a_bias_is_one_launch_by_the_library_and_small_products_get_scratch_memory() {
    let Some(gpu) = Gpu::pretend() else { return };
    let device = gpu.device();
    let make = |name: &str, shape: &[usize]| {
        let x = noise(&cpu(), name, shape, [-1.0, 1.0]).to_dtype(DType::BF16).unwrap();
        on(&device, &x)
    };
    let (x, w, b) = (make("x", &[8, 1024]), make("w", &[16, 1024]), make("b", &[16]));
    let launches = || gpu.pretend.calls("cuLaunchKernel") + gpu.pretend.calls("cublasLtMatmul");
    let before = launches();
    device.allocator().reset_peaks();
    let requested = || device.allocator().statistics().requested;
    let before_bytes = requested().current_bytes;
    let y = x.linear(&w, Some(&b)).unwrap();
    assert_eq!(launches() - before, 1);
    // There is one tile: four parts of K are added up in f32.
    let sums_bytes = 4 * 8 * 16 * size_of::<f32>();
    assert_eq!(requested().peak_bytes - before_bytes, y.element_count() * 2 + sums_bytes);
}

#[test]
fn gradients_of_a_layer_are_those_of_the_processor_however_its_operands_lie() {
    let Some(gpu) = Gpu::take() else { return };
    let types = each_float([TOLERANCE, TOLERANCE_OF_F64]);
    let cases = || [false, true].into_iter().flat_map(|by| types.map(|of| (by, of)));
    gpu.in_every_order(|| {
        for (by_library, (dtype, tolerance)) in cases() {
            for [rows, inputs, outputs] in [[21, 40, 70], [65, 7, 3], [3, 0, 5], [0, 4, 5]] {
                let make = |name: &str, shape: &[usize]| {
                    noise(&cpu(), name, shape, [-1.0, 1.0]).to_dtype(dtype).unwrap()
                };
                let x = make("x", &[1, rows, inputs]);
                let dy = make("dy", &[1, rows, outputs]);
                let device = gpu.device_with(products(by_library));
                let name = format!("gradients {dtype} {by_library} {rows} {inputs} {outputs}");
                assert_alike(&device, &name, &[&x, &dy], tolerance, |operands| {
                    let [x, dy] = operands else { unreachable!() };
                    let mut results = Vec::new();
                    for (x_form, dy_form) in [(0, 0), (1, 1), (2, 0), (0, 2)] {
                        let (x, dy) = (arranged(x, x_form)?, arranged(dy, dy_form)?);
                        let (dw, db) = x.linear_weight_gradient(&dy)?;
                        results.push(dw);
                        results.push(db.map_or_else(|| dy.sum(&[0, 1]), Ok)?);
                    }
                    Ok(results)
                });
            }
        }
    });
}

#[test]
fn gradients_of_weight_and_bias_are_one_launch_by_the_library_and_by_the_tiles() {
    let Some(gpu) = Gpu::pretend() else { return };
    let launches = || gpu.pretend.calls("cuLaunchKernel") + gpu.pretend.calls("cublasLtMatmul");
    for by_library in [true, false] {
        let device = gpu.device_with(products(by_library));
        let make = |name: &str, shape: &[usize], dtype| {
            on(&device, &noise(&cpu(), name, shape, [-1.0, 1.0]).to_dtype(dtype).unwrap())
        };
        for (dtype, count) in [(DType::F32, 1), (DType::BF16, 1), (DType::F16, 1), (DType::F64, 2)]
        {
            let (x, dy) = (make("x", &[2, 9, 6], dtype), make("dy", &[2, 9, 7], dtype));
            let before = launches();
            x.linear_weight_gradient(&dy).unwrap();
            // The library has no row sums of f64, so the kernel of this crate computes them.
            let count = if by_library { count } else { 1 };
            assert_eq!(launches() - before, count, "{dtype}, library {by_library}");
        }
    }
}

/// A folder with the pretend driver and no cuBLASLt. The driver is the file of the loaded driver
/// under another name.
fn folder_without_library(gpu: &Gpu) -> std::path::PathBuf {
    let from = gpu.driver.path().parent().unwrap();
    let to = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("without-library");
    let _ = std::fs::remove_dir_all(&to);
    std::fs::create_dir_all(&to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let name = entry.unwrap().file_name();
        if !name.to_string_lossy().starts_with("libcublasLt") {
            std::fs::hard_link(from.join(&name), to.join(&name)).unwrap();
        }
    }
    to
}

fn are_near(a: &[f32], b: &[f32]) -> bool {
    a.iter().zip(b).all(|(a, b)| (a - b).abs() <= TOLERANCE as f32)
}

/// A product on a new device, with its multiplier and the counts of launches.
fn product_on(driver: &Driver) -> (Vec<f32>, ProductsBy, ProductCounts) {
    let device = CudaDevice::of(driver, 0).unwrap();
    let device = Device::cuda_on(&device, CudaOptions::default()).unwrap();
    let x = on(&device, &noise(&cpu(), "x", &[7, 9], [-1.0, 1.0]));
    let y = x.matmul(&x.transpose(0, 1).unwrap()).unwrap();
    let again = x.matmul(&x.transpose(0, 1).unwrap()).unwrap().to_vec::<f32>().unwrap();
    let y = y.to_vec::<f32>().unwrap();
    assert!(are_near(&y, &again), "{y:?}, not {again:?}");
    let cuda = device.as_cuda().unwrap();
    (y, cuda.products(), cuda.product_counts())
}

#[test]
fn who_multiplies_is_told_and_a_library_that_cannot_be_used_is_done_without() {
    let Some(gpu) = Gpu::pretend() else { return };
    let (y, by, counts) = product_on(&gpu.driver);
    assert!(by.to_string().starts_with("cuBLASLt 120800 in f32"), "{by}");
    assert_eq!(counts, ProductCounts { library: 2, own: 0 });
    let check = |driver: &Driver, what: &str| {
        let (own, by, counts) = product_on(driver);
        let ProductsBy::OwnInstead(error) = &by else { panic!("{what}: {by}") };
        assert!(error.to_string().contains(what), "{error}, not {what}");
        assert_eq!(counts, ProductCounts { library: 0, own: 2 }, "{what}");
        assert!(are_near(&own, &y), "{what}");
    };
    let without = Libraries::in_folders([folder_without_library(&gpu)]);
    check(&Driver::open(&without).unwrap(), "looked for libcublasLt.so.13");
    gpu.pretend.driver_version(11_080);
    check(&gpu.driver, "is of CUDA 12000, the driver of CUDA 11080");
    gpu.pretend.driver_version(13_000);
    for (call, code, name) in [
        ("cublasLtCreate", 1, "NOT_INITIALIZED"),
        ("cublasLtCreate", 8, "ARCH_MISMATCH"),
        ("cublasLtMatmulAlgoGetHeuristic", 8, "ARCH_MISMATCH"),
        ("cublasLtMatmul", 1, "NOT_INITIALIZED"),
    ] {
        // The call fails once: an unusable library is not asked a second time.
        gpu.pretend.fail(call, code, 1, Repeat::Once);
        check(&gpu.driver, name);
    }
    // `CUBLAS_STATUS_INVALID_VALUE` is about one product.
    gpu.pretend.fail("cublasLtMatmul", 7, 1, Repeat::Once);
    let (_, by, counts) = product_on(&gpu.driver);
    assert!(matches!(by, ProductsBy::Library { .. }), "{by}");
    assert_eq!(counts, ProductCounts { library: 1, own: 1 });
}

#[test]
fn launch_that_the_library_refuses_is_done_by_the_tiles_and_the_others_only_once() {
    let Some(gpu) = Gpu::pretend() else { return };
    // There are three launches, because the dimensions of the batch cannot be merged.
    let a = noise(&cpu(), "a", &[2, 3, 5, 9], [-1.0, 1.0]);
    let b = noise(&cpu(), "b", &[3, 2, 9, 6], [-1.0, 1.0]);
    let y = noise(&cpu(), "y", &[3, 2, 5, 6], [-1.0, 1.0]);
    let (w, bias) =
        (noise(&cpu(), "w", &[6, 9], [-1.0, 1.0]), noise(&cpu(), "bias", &[6], [-1.0, 1.0]));
    /// `CUBLAS_STATUS_NOT_SUPPORTED`.
    const UNSUPPORTED: i32 = 15;
    let launches = || gpu.pretend.calls("cublasLtMatmul");
    gpu.in_every_order(|| {
        for (nth, repeat) in
            [(1, Repeat::Once), (2, Repeat::Once), (3, Repeat::Once), (2, Repeat::Forever)]
        {
            let refuse = || gpu.pretend.fail("cublasLtMatmul", UNSUPPORTED, nth, repeat);
            let before = launches();
            let device = gpu.device();
            assert_alike(&device, "sum", &[&a, &b, &y], TOLERANCE, |inputs| {
                refuse();
                let [a, b, y] = inputs else { unreachable!() };
                y.clone().matmul_add_(&a.transpose(0, 1)?, b)?;
                Ok(Vec::new())
            });
            assert_alike(&device, "layer", &[&a, &w, &bias], TOLERANCE, |inputs| {
                refuse();
                let [x, w, bias] = inputs else { unreachable!() };
                Ok(vec![x.transpose(0, 1)?.linear(w, Some(bias))?])
            });
            assert_eq!(launches() - before, 6, "the library was asked each time");
            gpu.pretend.fail("cublasLtMatmul", 0, 0, Repeat::Once);
        }
    });
}
