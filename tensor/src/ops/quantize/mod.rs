//! Frozen weights in 8 or 4 bits, and their products: with floats, where one panel of weights at a
//! time is decoded, and with rows that are quantised to 8 bits, too.
//!
//! W: [O, I] as codes and scales; x: [.., I], y: [.., O]. The formats are int8 with a scale for
//! each row and the NF4 of Dettmers, Pagnoni, Holtzman and Zettlemoyer, "QLoRA: efficient
//! finetuning of quantized LLMs" (2023), both in the layout of bitsandbytes, and the blocks `Q8_0`
//! and `Q4_0` of GGUF files.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod encode;
pub(crate) mod format;
mod int8;
mod product;

pub use encode::NF4_VALUES;
pub use format::QuantFormat;

use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::device::Device;
use crate::dtype::{DType, for_each_float};
use crate::error::{Result, TensorError};
use crate::launch::{FullKernel, Operands};
use crate::layout::{IntoShape, Shape};
use crate::tensor::Tensor;

/// Number of elements of an NF4 weight that share one scale.
const NF4_BLOCK_LEN: usize = 64;
/// Number of scales of an NF4 weight that share one scale, with double quantisation.
const NESTED_BLOCK_LEN: usize = 256;
/// Number of elements in a block of GGUF.
const GGUF_BLOCK_LEN: usize = 32;

/// A tensor of a [`Quantized`]: its name in files and reports, its shape and its type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QuantPart {
    /// Name of the tensor, such as `scales`.
    pub name: &'static str,
    /// Shape of the tensor.
    pub shape: Shape,
    /// Type of an element; codes are bytes.
    pub dtype: DType,
}

impl QuantFormat {
    /// The tensors of a weight of this shape, in order.
    ///
    /// # Errors
    /// `Shape` unless a matrix; with GGUF's formats also unless its rows are whole blocks.
    pub fn parts(self, shape: Shape) -> Result<Vec<QuantPart>> {
        let mismatch = |right| TensorError::Shape { op: "quantize", left: shape, right };
        let &[rows, columns] = &*shape else { return Err(mismatch(Shape::new(&[1, 1]))) };
        let part = |name, dims: &[usize], dtype| QuantPart { name, shape: Shape::new(dims), dtype };
        let of_rows = |block_bytes: usize| {
            if columns % GGUF_BLOCK_LEN != 0 {
                return Err(mismatch(Shape::new(&[rows, GGUF_BLOCK_LEN])));
            }
            let bytes = columns / GGUF_BLOCK_LEN * block_bytes;
            Ok(vec![part("blocks", &[rows, bytes], DType::U8)])
        };
        let len = rows * columns;
        let blocks = len.div_ceil(NF4_BLOCK_LEN);
        Ok(match self {
            QuantFormat::Int8Rows => vec![
                part("codes", &[rows, columns], DType::U8),
                part("scales", &[rows], DType::F32),
            ],
            QuantFormat::Nf4 { double: false } => vec![
                part("codes", &[len.div_ceil(2)], DType::U8),
                part("scales", &[blocks], DType::F32),
            ],
            QuantFormat::Nf4 { double: true } => vec![
                part("codes", &[len.div_ceil(2)], DType::U8),
                part("scales", &[blocks], DType::U8),
                part("nested_scales", &[blocks.div_ceil(NESTED_BLOCK_LEN)], DType::F32),
                part("nested_map", &[256], DType::F32),
                part("offset", &[1], DType::F32),
            ],
            QuantFormat::Q8_0 => return of_rows(2 + GGUF_BLOCK_LEN),
            QuantFormat::Q4_0 => return of_rows(2 + GGUF_BLOCK_LEN / 2),
        })
    }

    /// Bytes of all tensors of a weight of this shape, without the rounding of storages.
    ///
    /// # Errors
    /// The errors of [`QuantFormat::parts`].
    pub fn size_bytes(self, shape: Shape) -> Result<usize> {
        let parts = self.parts(shape)?;
        Ok(parts.iter().map(|part| part.shape.element_count() * part.dtype.size_bytes()).sum())
    }
}

/// A matrix `[O, I]` in few bits, as cheap handles to its tensors.
#[derive(Clone, Debug)]
pub struct Quantized {
    format: QuantFormat,
    shape: Shape,
    parts: Vec<Tensor>,
}

impl Quantized {
    /// A weight from stored tensors, in the order of [`QuantFormat::parts`].
    ///
    /// # Errors
    /// `Shape` and `DType` if the tensors do not match the format; `Strided`, `Device`.
    pub fn from_parts(
        format: QuantFormat,
        shape: impl IntoShape,
        parts: Vec<Tensor>,
    ) -> Result<Self> {
        let (op, shape) = ("quantize", shape.into_shape("quantize")?);
        let expected = format.parts(shape)?;
        if parts.len() != expected.len() {
            let [left, right] = [parts.len(), expected.len()].map(|len| Shape::new(&[len]));
            return Err(TensorError::Shape { op, left, right });
        }
        for (part, expected) in parts.iter().zip(&expected) {
            part.check_shape(op, expected.shape)?;
            if part.dtype() != expected.dtype {
                let (left, right) = (part.dtype(), expected.dtype);
                return Err(TensorError::DType { op, left, right });
            }
            if !part.layout().is_contiguous() {
                return Err(TensorError::Strided { op });
            }
            if part.device() != parts[0].device() {
                return Err(TensorError::devices(op, parts[0].device(), part.device()));
            }
        }
        Ok(Quantized { format, shape, parts })
    }

    /// The format of the codes and scales.
    pub fn format(&self) -> QuantFormat {
        self.format
    }

    /// The shape `[O, I]`.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The device of the matrix.
    pub fn device(&self) -> &Device {
        self.parts[0].device()
    }

    /// The tensors of the matrix, in the order of [`QuantFormat::parts`].
    pub fn parts(&self) -> &[Tensor] {
        &self.parts
    }

    /// Bytes of the tensors, without the rounding of storages.
    pub fn size_bytes(&self) -> usize {
        self.parts.iter().map(Tensor::size_bytes).sum()
    }

    /// Decodes the whole matrix to a float type. Values are computed in f32 and rounded once.
    ///
    /// # Errors
    /// `DType`, `OutOfMemory`.
    #[track_caller]
    pub fn decode(&self, dtype: DType) -> Result<Tensor> {
        self.decode_rows(0, self.shape[0], dtype)
    }

    /// Decodes `count` rows from row `first` on, as [`Quantized::decode`].
    ///
    /// # Errors
    /// `Index` for rows that do not exist, `DType`, `OutOfMemory`.
    #[track_caller]
    pub fn decode_rows(&self, first: usize, count: usize, dtype: DType) -> Result<Tensor> {
        let out = Tensor::empty(self.device(), [count, self.shape[1]], dtype)?;
        self.decode_into(&out, [first, 0])?;
        Ok(out)
    }

    /// Decodes rows from row `first` on into `out`, a contiguous `[rows, I]`. Allocates nothing.
    ///
    /// # Errors
    /// `Shape`, `Index` for rows that do not exist, `DType`, `Strided`, `Frozen`.
    #[track_caller]
    pub fn decode_rows_into(&self, first: usize, out: &mut Tensor) -> Result<()> {
        self.decode_into(out, [first, 0])
    }

    /// Decodes the part of the matrix from row and column `first` on that fits `out`.
    #[track_caller]
    pub(super) fn decode_into(&self, out: &Tensor, first: [usize; 2]) -> Result<()> {
        let op = "dequantize";
        out.check_any_float(op)?;
        let &[rows, columns] = &**out.shape() else {
            let (left, right) = (*out.shape(), self.shape);
            return Err(TensorError::Shape { op, left, right });
        };
        for (axis, len) in [rows, columns].into_iter().enumerate() {
            let end = first[axis].saturating_add(len);
            if end > self.shape[axis] {
                let (index, len) = (end as isize, self.shape[axis]);
                return Err(TensorError::Index { op, index, len });
            }
        }
        if !out.layout().is_contiguous() {
            return Err(TensorError::Strided { op });
        }
        if rows * columns == 0 {
            return Ok(());
        }
        let size = [rows, columns];
        let (format, inputs, dtype) = (self.format, self.shape[1], out.dtype());
        let kernel = Decode { format, inputs, first, size, dtype };
        let reads: Vec<&Tensor> = self.parts.iter().collect();
        self.device().launch(kernel, &reads, &[out])
    }

    /// The copy of this matrix on a device made by [`Device::simulate`]; see
    /// [`Tensor::simulated_copy`].
    pub fn simulated_copy(&self, sim: &Device) -> Option<Quantized> {
        let parts: Option<Vec<Tensor>> =
            self.parts.iter().map(|part| part.simulated_copy(sim)).collect();
        Some(Quantized { parts: parts?, ..self.clone() })
    }
}

/// Decodes a part of the matrix to y.
struct Decode {
    format: QuantFormat,
    /// Columns of the whole matrix.
    inputs: usize,
    /// The first row and column.
    first: [usize; 2],
    /// Rows and columns of the part.
    size: [usize; 2],
    dtype: DType,
}

impl FullKernel for Decode {
    fn name(&self) -> &'static str {
        "dequantize"
    }

    fn cost(&self) -> Cost {
        let len = (self.size[0] * self.size[1]) as f64;
        let bits = match self.format {
            QuantFormat::Int8Rows => 8.0,
            QuantFormat::Nf4 { double: false } => 4.5,
            QuantFormat::Nf4 { double: true } => 4.127,
            QuantFormat::Q8_0 => 8.5,
            QuantFormat::Q4_0 => 4.5,
        };
        let bytes = len * (self.dtype.size_bytes() as f64 + bits / 8.0);
        Cost { class: OpClass::Elementwise, flops: 2.0 * len, bytes }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        for_each_float!(self.dtype, E => cpu::decode::<E>(&self, cpu, operands));
        Ok(())
    }
}
