//! Devices, tensors of all layouts, and comparison.

use std::sync::LazyLock;

use lowtide_allocator::{Action, Category};
use lowtide_tensor::{CpuOptions, DType, Device, Element, SimSpec, Tensor};
use proptest::prelude::*;

use crate::naive::Array;

pub(crate) const BUDGET_BYTES: usize = 256 << 20;

/// A new device, for tests that look at the allocator.
pub(crate) fn cpu(threads: usize) -> Device {
    let options = CpuOptions {
        budget_bytes: Some(BUDGET_BYTES),
        threads: Some(threads),
        ..Default::default()
    };
    Device::cpu(options).expect("the address space for a small budget")
}

/// A simulated device like [`cpu`].
pub(crate) fn sim(threads: usize) -> Device {
    let spec = SimSpec { threads, ..SimSpec::like_this_machine(BUDGET_BYTES) };
    Device::sim(spec).expect("a simulation takes nothing")
}

/// The device of tests that look only at values. These tests share its threads.
pub(crate) fn shared() -> &'static Device {
    static DEVICE: LazyLock<Device> = LazyLock::new(|| cpu(2));
    &DEVICE
}

/// The layout of a tensor in its storage.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Style {
    Contiguous,
    /// The dimensions in reverse order.
    Transposed,
    /// A window into a larger tensor along every dimension.
    Narrowed,
    /// The first dimension repeats one slice.
    Expanded,
}

/// All styles of layout, repeated elements included.
pub(crate) fn styles() -> impl Strategy<Value = Style> {
    let all = [Style::Contiguous, Style::Transposed, Style::Narrowed, Style::Expanded];
    prop::sample::select(all.to_vec())
}

pub(crate) fn writable_styles() -> impl Strategy<Value = Style> {
    prop::sample::select(vec![Style::Contiguous, Style::Transposed, Style::Narrowed])
}

pub(crate) fn floats() -> impl Strategy<Value = DType> {
    prop::sample::select(vec![DType::F32, DType::F64])
}

/// Every float type, the half types included.
pub(crate) fn all_floats() -> impl Strategy<Value = DType> {
    prop::sample::select(vec![DType::F64, DType::F32, DType::F16, DType::BF16])
}

/// Runs `$body` with `$T` standing for the Rust type that `$dtype` names.
macro_rules! with_type {
    ($dtype:expr, $T:ident => $body:expr) => {
        with_type!(@match $dtype, $T => $body;
            F64 f64, F32 f32, F16 lowtide_tensor::f16, BF16 lowtide_tensor::bf16,
            I64 i64, I32 i32, U8 u8, Bool lowtide_tensor::Bool)
    };
    (@match $dtype:expr, $T:ident => $body:expr; $($name:ident $type:ty),*) => {
        match $dtype {
            $(lowtide_tensor::DType::$name => {
                type $T = $type;
                $body
            })*
            other => panic!("{other} is new here"),
        }
    };
}
pub(crate) use with_type;

/// The type of a tensor in a safetensors file.
pub(crate) fn file_dtype(dtype: safetensors::Dtype) -> DType {
    use safetensors::Dtype;
    match dtype {
        Dtype::F64 => DType::F64,
        Dtype::F32 => DType::F32,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        Dtype::I64 => DType::I64,
        Dtype::I32 => DType::I32,
        Dtype::U8 => DType::U8,
        Dtype::BOOL => DType::Bool,
        other => panic!("{other:?} is not in the fixtures"),
    }
}

/// Shapes of rank 0 to 5 with sizes 0, 1, even and odd, of a few hundred elements at most.
pub(crate) fn shapes() -> impl Strategy<Value = Vec<usize>> {
    let dim =
        prop_oneof![1 => Just(0usize), 3 => Just(1), 4 => Just(2), 4 => Just(3), 2 => Just(5)];
    prop::collection::vec(dim, 0..=5)
}

/// Shapes like [`shapes`] with these ranks, without empty ones.
pub(crate) fn full_shapes(
    ranks: std::ops::RangeInclusive<usize>,
) -> impl Strategy<Value = Vec<usize>> {
    let dim = prop_oneof![3 => Just(1_usize), 4 => Just(2), 4 => Just(3), 2 => Just(5)];
    prop::collection::vec(dim, ranks)
}

/// A result shape, and two shapes that broadcast to it.
pub(crate) fn broadcast_shapes() -> impl Strategy<Value = [Vec<usize>; 3]> {
    (shapes(), any::<[bool; 5]>(), 0..=5usize, any::<bool>()).prop_map(
        |(dims, ones, dropped, is_first)| {
            let stretched = dims.iter().zip(ones);
            let small: Vec<usize> =
                stretched.map(|(&dim, one)| if one { 1 } else { dim }).collect();
            let small = small[dropped.min(small.len())..].to_vec();
            // The other shape has every dimension, so the result is `dims`.
            if is_first { [dims.clone(), small, dims] } else { [dims.clone(), dims, small] }
        },
    )
}

/// A tensor with these elements, converted as `to_dtype` does.
pub(crate) fn upload(device: &Device, array: &Array, dtype: DType) -> Tensor {
    with_type!(dtype, T => {
        let values: Vec<T> = array.values.iter().map(|&x| T::from_f64(x)).collect();
        Tensor::from_slice(device, &array.dims[..], &values)
    })
    .expect("room for a small tensor")
}

/// The elements as f64, in row-major order.
pub(crate) fn download(tensor: &Tensor) -> Array {
    let values = with_type!(tensor.dtype(), T => {
        let values = tensor.to_vec::<T>().expect("a tensor with values");
        values.into_iter().map(Element::to_f64).collect()
    });
    Array::new(tensor.shape(), values)
}

/// A tensor of shape `dims` in the layout of `style`, with its twin.
pub(crate) fn sample(dims: &[usize], style: Style, dtype: DType, seed: usize) -> (Tensor, Array) {
    let pattern = Array::pattern(dims, seed);
    let array = match dtype {
        DType::Bool => pattern.map(|x| f64::from(u8::from(x > 0.0))),
        // Whole numbers that every type holds.
        _ if !dtype.is_float() => pattern.map(|x| x * 8.0 + 15.0),
        _ => pattern,
    };
    let array = match (style, dims) {
        (Style::Expanded, &[first, ..]) if first > 1 => array.narrow(0, 0, 1).expand(dims),
        _ => array,
    };
    (laid_out(&array, style, dtype), array)
}

/// The tensor with the elements of `array` in the layout of `style`.
pub(crate) fn laid_out(array: &Array, style: Style, dtype: DType) -> Tensor {
    let (device, rank) = (shared(), array.dims.len());
    match style {
        Style::Contiguous => upload(device, array, dtype),
        Style::Transposed => {
            let reversed: Vec<usize> = (0..rank).rev().collect();
            let base = upload(device, &array.permute(&reversed), dtype);
            base.permute(&reversed).expect("all axes")
        }
        Style::Narrowed => {
            let wider: Vec<usize> = array.dims.iter().map(|dim| dim + 2).collect();
            let around = Array::from_fn(&wider, |index| {
                let inside: Vec<usize> = index.iter().map(|at| at.wrapping_sub(1)).collect();
                let is_inside = inside.iter().zip(&array.dims).all(|(at, dim)| at < dim);
                if is_inside { array.at(&inside) } else { 77.0 }
            });
            let base = upload(device, &around, dtype);
            (0..rank)
                .fold(base, |view, axis| view.narrow(axis, 1, array.dims[axis]).expect("inside"))
        }
        Style::Expanded => match array.dims[..] {
            [first, ..] if first > 1 => {
                let base = upload(device, &array.narrow(0, 0, 1), dtype);
                base.expand(&array.dims[..]).expect("the first dimension grows")
            }
            _ => upload(device, array, dtype),
        },
    }
}

/// Fails unless shape and elements are the same.
#[track_caller]
pub(crate) fn assert_same(found: &Tensor, expected: &Array) {
    assert_eq!(download(found), *expected);
}

/// Fails unless shape and elements are the same after the expected elements are rounded to the type
/// found. This is right if kernels sum exactly in f32 and round once.
#[track_caller]
pub(crate) fn assert_rounded(found: &Tensor, expected: &Array) {
    assert_eq!(download(found), expected.map(|x| rounded(x, found.dtype())));
}

/// The number of a type that is nearest to `x`.
pub(crate) fn rounded(x: f64, dtype: DType) -> f64 {
    with_type!(dtype, T => T::from_f64(x).to_f64())
}

pub(crate) fn epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::EPSILON,
        DType::F32 => f64::from(f32::EPSILON),
        DType::F16 => lowtide_tensor::f16::EPSILON.to_f64(),
        DType::BF16 => lowtide_tensor::bf16::EPSILON.to_f64(),
        _ => 0.0,
    }
}

/// Fails unless the shapes are the same, and each element is within `roundings` roundings of the
/// expected value. Values below 1 count as 1.
#[track_caller]
pub(crate) fn assert_close(found: &Tensor, expected: &Array, roundings: usize) {
    let array = download(found);
    assert_eq!(array.dims, expected.dims);
    for (place, (&x, &y)) in array.values.iter().zip(&expected.values).enumerate() {
        let tolerance = roundings as f64 * epsilon(found.dtype()) * y.abs().max(1.0);
        let agrees = (x - y).abs() <= tolerance || x == y || (x.is_nan() && y.is_nan());
        assert!(agrees, "element {place}: {x}, not {y}, within {tolerance:e}");
    }
}

/// Bytes of workspace that `run` asks for.
pub(crate) fn workspace_bytes(device: &Device, run: impl FnOnce()) -> usize {
    let before = device.allocator().history().records().last().map(|record| record.sequence);
    run();
    let history = device.allocator().history();
    let workspace = history.records().iter().filter(|record| {
        Some(record.sequence) > before
            && record.action == Action::Allocate
            && record.category == Category::Workspace
    });
    workspace.map(|record| record.requested_bytes).sum()
}

/// Labels in every second element of a storage.
pub(crate) fn strided_labels(labels: &[i64]) -> Tensor {
    let doubled: Vec<i64> = labels.iter().flat_map(|&label| [label, 12345]).collect();
    let pairs = Tensor::from_slice(shared(), [labels.len(), 2], &doubled).unwrap();
    pairs.select(1, 0).unwrap()
}

/// A number for each scalar of a function or a gradient. The definitions in `elementwise.rs` have
/// the same numbers.
pub(crate) fn scalars(names: &[&str]) -> Vec<f64> {
    let number = |name: &&str| match *name {
        "alpha" => 1.5,
        "beta" | "threshold" => 2.0,
        "exponent" => 2.5,
        "high" => 0.625,
        "low" => -0.375,
        "slope" => 0.25,
        _ => 0.75,
    };
    names.iter().map(number).collect()
}
