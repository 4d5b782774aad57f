//! Products of 8-bit integers. The rows of x are quantised dynamically, each by its own largest
//! magnitude; the weight has rows in 8 bits.
//!
//! The algorithm is the vector-wise product of Dettmers, Lewis, Belkada and Zettlemoyer,
//! "LLM.int8(): 8-bit matrix multiplication for transformers at scale" (2022), without its outliers
//! in 16 bits.

use super::{QuantFormat, Quantized, cpu};
use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::cpu::int8::{DEPTH_MAX, row_stride};
use crate::dtype::{DType, for_each_float};
use crate::error::{Result, TensorError};
use crate::launch::{Kernel, Operands};
use crate::layout::Shape;
use crate::tensor::Tensor;

const OP: &str = "linear_int8";

impl Tensor {
    /// `x Wᵀ + b` for `self = x` and a W in [`QuantFormat::Int8Rows`], as a product of integers.
    /// The rows of x are rounded to 8 bits, too: to a 127th of the row's largest magnitude. Results
    /// differ from [`Tensor::linear_quantized`], so this method is for inference.
    ///
    /// With `max[m]` the largest magnitude of row m, `q[m, i] = round(x[m, i] / max[m] · 127)`,
    /// ties to even, and `s` the scales of W:
    ///
    /// `y[m, o] = (Σ q[m, i] · w[o, i]) · (max[m] / 127) · (s[o] / 127) + b[o]`
    ///
    /// The sum is of integers and exact. The rest is computed in f32 (f64 for an x of f64) and
    /// rounded once to the type of x: the bits do not depend on instruction sets or threads. A row
    /// of zeros gives the bias. A row with NaN or infinity gives a row of NaN in y.
    ///
    /// The workspace holds the codes of x: a byte for each element, and up to 140 more for each
    /// row. On a processor without instructions for bytes, the product may be slower than decoding.
    ///
    /// # Shapes
    /// `x: [.., I], w: [O, I], b: [O] → [.., O]`
    ///
    /// # Errors
    /// `Format` unless W is in int8 rows; `Shape`, also for I beyond 132,104, where a sum might not
    /// fit 32 bits; `DType` unless x and b have one float type; `NoKernel` on NVIDIA devices, where
    /// [`Tensor::linear_quantized`] takes W; `OutOfMemory`.
    #[track_caller]
    pub fn linear_int8(&self, w: &Quantized, bias: Option<&Tensor>) -> Result<Tensor> {
        let [outputs, inputs] = [w.shape[0], w.shape[1]];
        let expected = QuantFormat::Int8Rows;
        if w.format != expected {
            return Err(TensorError::Format { op: OP, found: w.format, expected });
        }
        if inputs > DEPTH_MAX {
            let right = Shape::new(&[outputs, DEPTH_MAX]);
            return Err(TensorError::Shape { op: OP, left: w.shape, right });
        }
        let x = self.rows_of(OP, w, inputs)?;
        if let Some(bias) = bias {
            self.check_dtype(OP, bias)?;
            bias.check_shape(OP, [outputs])?;
        }
        let (device, dtype, rows) = (self.device(), self.dtype(), x.shape()[0]);
        let y = Tensor::empty(device, [rows, outputs], dtype)?;
        if rows * outputs > 0 {
            let codes = Tensor::workspace(device, rows * row_stride(inputs), DType::U8)?;
            let scales = Tensor::workspace(device, rows, dtype.computed())?;
            let sums = Tensor::workspace(device, rows, DType::I32)?;
            let bias = bias.map(Tensor::contiguous).transpose()?;
            let quantize = QuantizeRows { size: [rows, inputs], dtype };
            device.launch(quantize, &[&x], &[&codes, &scales, &sums])?;
            let mut reads = vec![&codes, &scales, &sums, &w.parts[0], &w.parts[1]];
            reads.extend(&bias);
            let product = Int8Product { size: [rows, inputs, outputs], dtype };
            device.launch(product, &reads, &[&y])?;
        }
        y.reshape(self.with_last(outputs))
    }
}

/// Writes the codes of the rows of x, their scales and their sums.
struct QuantizeRows {
    /// M and K.
    size: [usize; 2],
    /// Type of x.
    dtype: DType,
}

impl Kernel for QuantizeRows {
    fn name(&self) -> &'static str {
        OP
    }

    fn cost(&self) -> Cost {
        let len = (self.size[0] * self.size[1]) as f64;
        let bytes = len * (self.dtype.size_bytes() + 1) as f64;
        Cost { class: OpClass::Elementwise, flops: 4.0 * len, bytes }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        for_each_float!(self.dtype, E as T => cpu::quantize_rows::<T, E>(self.size, cpu, operands));
        Ok(())
    }
}

/// Writes y: the product of the codes of x and W, scaled, plus the bias.
struct Int8Product {
    /// M, K and N.
    size: [usize; 3],
    /// Type of y.
    dtype: DType,
}

impl Kernel for Int8Product {
    fn name(&self) -> &'static str {
        OP
    }

    fn cost(&self) -> Cost {
        let [m, k, n] = self.size;
        let bytes = (m * k + k * n + m * n * self.dtype.size_bytes()) as f64;
        Cost { class: OpClass::Product, flops: 2.0 * (m * k * n) as f64, bytes }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        for_each_float!(self.dtype, E as T => cpu::multiply_int8::<T, E>(self.size, cpu, operands));
        Ok(())
    }
}
