//! Random numbers as a function of key and place. Element `i` of a destination, in row-major order,
//! comes from word `i` of the key's stream; a normal number comes from word `i` and its neighbour.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod drawn;
mod integers;

pub use drawn::Draw;

use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::cpu::tiles::{Mode, Order, evaluate};
use crate::device::Device;
use crate::dtype::{DType, for_each_dtype};
use crate::error::{Result, TensorError};
use crate::launch::{FullKernel, Kernel, Operands};
use crate::random::RandomKey;
use crate::spec::DeviceKind;
use crate::tensor::Tensor;

/// The distribution of the numbers that the words of the stream give.
#[derive(Clone, Copy, Debug)]
enum Distribution {
    Uniform { low: f64, high: f64 },
    Normal { mean: f64, deviation: f64 },
    Bernoulli { probability: f64 },
}

struct Random {
    key: RandomKey,
    distribution: Distribution,
    dtype: DType,
    len: usize,
}

impl FullKernel for Random {
    fn name(&self) -> &'static str {
        match self.distribution {
            Distribution::Uniform { .. } => "uniform",
            Distribution::Normal { .. } => "normal",
            Distribution::Bernoulli { .. } => "bernoulli",
        }
    }

    fn cost(&self) -> Cost {
        let flops = match self.distribution {
            Distribution::Normal { .. } => 100.0,
            _ => 20.0,
        };
        let bytes = (self.len * self.dtype.size_bytes()) as f64;
        Cost { class: OpClass::Random, flops: flops * self.len as f64, bytes }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        let (digits, order) = (digits(self.dtype), Order::row_major());
        for_each_dtype!(self.dtype, T => {
            let numbers = cpu::Numbers::new(self.key, self.distribution, digits);
            let out = operands.write::<T>(0);
            evaluate::<T, T>(cpu, out, &order, Mode::Overwrite, &[&numbers], None);
        });
        Ok(())
    }
}

/// Number of random bits of a uniform number: the digits of the type. With more bits, the largest
/// number would round up to the end of the interval. f64 has 24 bits, too, and the same numbers as
/// f32.
fn digits(dtype: DType) -> u32 {
    match dtype {
        DType::F16 => 11,
        DType::BF16 => 8,
        _ => 24,
    }
}

/// A permutation of `0..len`.
struct Permutation {
    key: RandomKey,
    len: usize,
}

impl Kernel for Permutation {
    fn name(&self) -> &'static str {
        "permutation"
    }

    fn cost(&self) -> Cost {
        Cost {
            class: OpClass::Random,
            flops: 100.0 * self.len as f64,
            bytes: 24.0 * self.len as f64,
        }
    }

    fn cpu(self, _: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        cpu::permute(self.key, operands.write::<i64>(0).slice());
        Ok(())
    }
}

impl Tensor {
    #[track_caller]
    fn random_(&mut self, key: RandomKey, distribution: Distribution) -> Result<()> {
        let (dtype, len) = (self.dtype(), self.element_count());
        let kernel = Random { key, distribution, dtype, len };
        if !dtype.is_float() && !matches!(distribution, Distribution::Bernoulli { .. }) {
            let op = FullKernel::name(&kernel);
            return Err(TensorError::DType { op, left: dtype, right: DType::F32 });
        }
        self.device().launch(kernel, &[], &[self])
    }

    /// Fills with uniform numbers from `[low, high)`, with 24 random bits each (11 for f16, 8 for
    /// bf16).
    ///
    /// # Errors
    /// `DType` unless float, `Frozen`, `Overlap` (on an expanded view).
    #[track_caller]
    pub fn uniform_(&mut self, key: RandomKey, low: f64, high: f64) -> Result<()> {
        self.random_(key, Distribution::Uniform { low, high })
    }

    /// Fills with normal numbers of this mean and standard deviation, at most 6.7 deviations from
    /// the mean. Box and Muller's transformation, "A note on the generation of random normal
    /// deviates" (1958), turns two words of 32 bits into a number.
    ///
    /// # Errors
    /// `DType` unless float, `Frozen`, `Overlap` (on an expanded view).
    #[track_caller]
    pub fn normal_(&mut self, key: RandomKey, mean: f64, deviation: f64) -> Result<()> {
        self.random_(key, Distribution::Normal { mean, deviation })
    }

    /// Fills with 1, with this probability (of 32 bits precision), and 0 otherwise. Any element
    /// type.
    ///
    /// # Errors
    /// `Frozen`, `Overlap` (on an expanded view).
    #[track_caller]
    pub fn bernoulli_(&mut self, key: RandomKey, probability: f64) -> Result<()> {
        self.random_(key, Distribution::Bernoulli { probability })
    }

    /// The numbers `0..len` in random order, as i64. All orders are equally likely, up to a
    /// difference of `len / 2^64`.
    ///
    /// # Errors
    /// `OutOfMemory`.
    #[track_caller]
    pub fn permutation(device: &Device, len: usize, key: RandomKey) -> Result<Tensor> {
        // Each step of the shuffle needs the previous step, so an NVIDIA device gets a copy of the
        // result.
        if device.kind() == DeviceKind::Cuda {
            let mut numbers = vec![0_i64; len];
            if !device.is_simulated() {
                cpu::permute(key, &mut numbers);
            }
            return Tensor::from_slice(device, [len], &numbers);
        }
        let y = Tensor::empty(device, [len], DType::I64)?;
        device.launch(Permutation { key, len }, &[], &[&y])?;
        Ok(y)
    }
}
