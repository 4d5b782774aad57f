//! Kernels of tensors against slow and obvious reference code, in three orders of their threads.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;

use lowtide_allocator::cuda::CudaStreams;
use lowtide_allocator::cuda::pretend::{KernelFile, Order};
use lowtide_allocator::{Buffer, CachingAllocator, Stream};
use lowtide_tensor::cuda::gate::{
    Argument, Function, Grid, KernelError, Module, Parameter, Signature,
};
use lowtide_tensor::cuda::pretend::kernel_files;

use crate::gpu::{Gpu, KERNELS, package};

mod elementwise;
mod losses;
mod planted;
mod products;
mod windows;

pub(super) use Parameter::{F64, Read, U32, U64, Words, Write};

const ORDERS: [Order; 3] = [Order::Forwards, Order::Backwards, Order::Drawn(1)];

/// Largest number of sizes in a walk.
const RANK_MAX: usize = 8;

/// A device with the kernels of tensors.
pub(super) struct Lab {
    modules: RefCell<BTreeMap<String, Module>>,
    pub(super) memory: CachingAllocator,
    pub(super) streams: CudaStreams,
    files: Vec<KernelFile>,
    pub(super) gpu: Gpu,
}

/// Elements on the device. No memory of a launch lies right before or behind them.
pub(super) struct Values {
    block: Buffer,
    size_bytes: usize,
}

const MARGIN_BYTES: usize = 256;

impl Values {
    pub(super) fn read(&self) -> Argument<'_> {
        Argument::read(&self.block, MARGIN_BYTES..MARGIN_BYTES + self.size_bytes)
    }

    pub(super) fn write(&self) -> Argument<'_> {
        Argument::write(&self.block, MARGIN_BYTES..MARGIN_BYTES + self.size_bytes)
    }
}

impl Lab {
    pub(super) fn open() -> Option<Lab> {
        Gpu::take().map(|gpu| Lab::of(gpu, &package().join(KERNELS)))
    }

    fn of(gpu: Gpu, folder: &Path) -> Lab {
        let ((streams, memory), files) = (gpu.memory(), kernel_files(folder).unwrap());
        Lab { modules: RefCell::default(), memory, streams, files, gpu }
    }

    pub(super) fn bytes(&self, bytes: &[u8]) -> Values {
        // Even zero bytes have a block.
        let size_bytes = bytes.len();
        let block = self.memory.allocate(size_bytes + 2 * MARGIN_BYTES).unwrap();
        let all = [&[0xee; MARGIN_BYTES], bytes, &[0xee; MARGIN_BYTES]].concat();
        self.streams.upload(Stream::DEFAULT, &all, (&block, 0..all.len())).unwrap();
        Values { block, size_bytes }
    }

    pub(super) fn floats(&self, values: &[f32]) -> Values {
        self.bytes(&values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>())
    }

    pub(super) fn labels(&self, values: &[i64]) -> Values {
        self.bytes(&values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>())
    }

    /// Room for results, filled with other bytes.
    pub(super) fn room(&self, size_bytes: usize) -> Values {
        self.bytes(&vec![0xcd; size_bytes])
    }

    pub(super) fn bytes_of(&self, values: &Values) -> Vec<u8> {
        let mut bytes = vec![0; values.size_bytes];
        let range = MARGIN_BYTES..MARGIN_BYTES + values.size_bytes;
        let copied = self.streams.download(Stream::DEFAULT, (&values.block, range), &mut bytes);
        copied.unwrap_or_else(|error| panic!("{error}: {:?}", self.gpu.complaint()));
        bytes
    }

    pub(super) fn words_of(&self, values: &Values) -> Vec<u32> {
        let bytes = self.bytes_of(values);
        bytes.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
    }

    pub(super) fn floats_of(&self, values: &Values) -> Vec<f32> {
        self.words_of(values).into_iter().map(f32::from_bits).collect()
    }

    pub(super) fn run(
        &self,
        file: &str,
        kernel: Signature,
        grid: Grid,
        arguments: &[Argument<'_>],
    ) {
        let function = self.function(file, kernel);
        self.launch(&function, grid, arguments).unwrap();
    }

    fn launch(
        &self,
        function: &Function,
        grid: Grid,
        arguments: &[Argument<'_>],
    ) -> Result<(), KernelError> {
        // SAFETY: the pretend driver compares parameters and looks at every access. On a real
        // driver the same tests give the same arguments.
        unsafe { function.launch(&self.streams, Stream::DEFAULT, grid, arguments) }
    }

    fn function(&self, file: &str, kernel: Signature) -> Function {
        let mut modules = self.modules.borrow_mut();
        let module = modules.entry(file.to_owned()).or_insert_with(|| {
            let image = self.files.iter().find(|kernels| kernels.name == file).unwrap().image();
            Module::load(self.streams.device(), "kernels", image.as_bytes()).unwrap()
        });
        module.function(&kernel).unwrap()
    }

    /// Calls `work` once for each order of threads. A real device has its own order.
    pub(super) fn in_each_order(&self, mut work: impl FnMut()) {
        for order in ORDERS {
            self.gpu.order(order);
            work();
        }
    }
}

/// A walk as kernels take it: the sizes, and the strides of each tensor.
pub(super) fn walk(sizes: &[usize], strides: &[&[i64]]) -> Vec<u64> {
    let padded = |values: &[u64]| -> Vec<u64> {
        values.iter().copied().chain(std::iter::repeat(0)).take(RANK_MAX).collect()
    };
    let sizes_64: Vec<u64> = sizes.iter().map(|&size| size as u64).collect();
    let mut words = vec![sizes_64.iter().product(), sizes.len() as u64];
    words.extend(padded(&sizes_64));
    let divisors: Vec<u64> = sizes.iter().map(|&size| divisor(size)).map(packed).collect();
    words.extend(padded(&divisors));
    for strides in strides {
        let strides: Vec<u64> = strides.iter().map(|stride| stride.cast_unsigned()).collect();
        words.extend(padded(&strides));
    }
    words
}

/// A size as kernels divide by it: the size with the magic in its upper half, and the shift.
pub(super) fn divisor(size: usize) -> [u64; 2] {
    let size = size.max(1) as u64;
    let shift = u64::from(u64::BITS - (size - 1).leading_zeros());
    let magic = (((1 << shift) - size) << 32) / size + 1;
    [size | magic << 32, shift]
}

/// Packs the magic, and the shift in the upper half.
fn packed([both, shift]: [u64; 2]) -> u64 {
    both >> 32 | shift << 32
}

/// The index of every element of a walk in a tensor with these strides, from its first element.
pub(super) fn indices(sizes: &[usize], strides: &[i64]) -> Vec<usize> {
    let mut all = vec![0_i64];
    for (&size, &stride) in sizes.iter().zip(strides) {
        all = all.iter().flat_map(|&at| (0..size as i64).map(move |i| at + i * stride)).collect();
    }
    all.into_iter().map(|at| usize::try_from(at).unwrap()).collect()
}

/// The strides of a tensor whose elements lie side by side, with axes in this order, the slowest
/// first; a repeated axis has stride 0.
pub(super) fn strides(sizes: &[usize], order: &[usize], repeats: &[bool]) -> Vec<i64> {
    let mut strides = vec![0; sizes.len()];
    let mut len = 1;
    for &axis in order.iter().rev() {
        if !repeats[axis] {
            strides[axis] = len as i64;
            len *= sizes[axis].max(1);
        }
    }
    strides
}

/// Numbers between -2 and 2, a few of them alike.
pub(super) fn noise(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2) + 1;
    let mut draw = || {
        // Knuth's MMIX generator.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        ((state >> 40) % 1025) as f32 / 256.0 - 2.0
    };
    (0..len).map(|_| draw()).collect()
}

/// Checks results against a twin in f64. A result is a sum of `terms` numbers, each below `scale`.
pub(super) fn assert_close(found: &[f32], expected: &[f64], terms: usize, scale: f64) {
    assert_eq!(found.len(), expected.len());
    for (index, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let tolerance = 4.0 * f64::from(f32::EPSILON) * (terms as f64 * scale + expected.abs());
        let is_same = f64::from(found) == expected || (found.is_nan() && expected.is_nan());
        let is_close = (f64::from(found) - expected).abs() <= tolerance;
        assert!(is_same || is_close, "{index}: {found}, expected {expected} within {tolerance}");
    }
}
