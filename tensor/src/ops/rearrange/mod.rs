//! Moves along dimensions: flip, roll, repeat and pad. Any element type, from any strides, without
//! a contiguous copy of the source.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;

use crate::axis::Axis;
use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::dtype::{DType, Element, for_each_dtype};
use crate::error::{Result, TensorError};
use crate::launch::{FullKernel, Operands};
use crate::layout::{Shape, check_axes, check_axis};
use crate::tensor::Tensor;
#[cfg(feature = "testing")]
pub(crate) use cpu::testing;
use cpu::{Dimension, Edge, Map};

/// The values that [`Tensor::pad`] puts around a tensor, under the names of PyTorch's `F.pad`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PadMode {
    /// This number, converted as [`Tensor::to_dtype`] does.
    Constant(f64),
    /// The tensor mirrored at its first and last position, which are not repeated.
    Reflect,
    /// The first and the last position, repeated.
    Replicate,
    /// The tensor again, as if its ends were joined.
    Circular,
}

struct Rearrange {
    name: &'static str,
    dimensions: Vec<Dimension>,
    fill: f64,
    dtype: DType,
    out_len: usize,
}

impl FullKernel for Rearrange {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cost(&self) -> Cost {
        Cost {
            class: OpClass::Copy,
            flops: 0.0,
            bytes: 2.0 * (self.out_len * self.dtype.size_bytes()) as f64,
        }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        if self.out_len == 0 {
            return Ok(());
        }
        for_each_dtype!(self.dtype, T => {
            let (x, y) = (operands.read::<T>(0), operands.write::<T>(0).slice());
            cpu::rearrange(cpu, &self.dimensions, x.data(), T::from_f64(self.fill), y);
        });
        Ok(())
    }
}

impl Tensor {
    /// A new tensor, each of whose dimensions is the one of this tensor as `(length, map)` say.
    #[track_caller]
    fn rearrange(&self, name: &'static str, plan: &[(usize, Map)], fill: f64) -> Result<Tensor> {
        let dims: Vec<usize> = plan.iter().map(|&(out_len, _)| out_len).collect();
        let Some(shape) = Shape::checked(&dims) else {
            // Beyond all memory, whatever the shape: the error is the allocator's.
            return Tensor::empty(self.device(), [usize::MAX], self.dtype());
        };
        let sources = self.shape().iter().zip(self.layout().strides());
        let dimension = |((&len, &stride), &(out_len, map)): ((&usize, &usize), &(usize, Map))| {
            Dimension { len, stride, out_len, map }
        };
        let dimensions = sources.zip(plan).map(dimension).collect();
        let y = Tensor::empty(self.device(), shape, self.dtype())?;
        let (dtype, out_len) = (self.dtype(), shape.element_count());
        let kernel = Rearrange { name, dimensions, fill, dtype, out_len };
        self.device().launch(kernel, &[self], &[&y])?;
        Ok(y)
    }

    /// Every dimension as it is.
    fn unmoved(&self) -> Vec<(usize, Map)> {
        self.shape().iter().map(|&len| (len, Map::Cycle { start: 0 })).collect()
    }

    /// The positions along each of `axes` in reverse order.
    ///
    /// # Errors
    /// `Index`, `Shape` when one is named twice, `OutOfMemory`.
    #[track_caller]
    pub fn flip(&self, axes: &[impl Into<Axis> + Copy]) -> Result<Tensor> {
        let op = "flip";
        let mut plan = self.unmoved();
        check_axes(op, self.shape(), axes)?.into_iter().for_each(|axis| plan[axis].1 = Map::Flip);
        self.rearrange(op, &plan, 0.0)
    }

    /// The positions along `axis` moved on by `shift`, those beyond the end to the start; a
    /// negative shift moves them back.
    ///
    /// # Errors
    /// `Index`, `OutOfMemory`.
    #[track_caller]
    pub fn roll(&self, axis: impl Into<Axis>, shift: isize) -> Result<Tensor> {
        let axis = check_axis("roll", self.shape(), axis)?;
        let op = "roll";
        let mut plan = self.unmoved();
        let (len, map) = &mut plan[axis];
        // No dimension is longer than isize::MAX, except of elements that share their memory.
        let back = shift.unsigned_abs() % (*len).max(1);
        let start = if shift > 0 && back > 0 { *len - back } else { back };
        *map = Map::Cycle { start };
        self.rearrange(op, &plan, 0.0)
    }

    /// The whole tensor `times[axis]` times along each dimension. Missing leading dimensions of
    /// the tensor are of length 1, and so are missing leading `times`: this is NumPy's `tile`.
    ///
    /// # Errors
    /// `Index` with more than [`crate::RANK_MAX`] dimensions, `OutOfMemory`.
    #[track_caller]
    pub fn repeat(&self, times: &[usize]) -> Result<Tensor> {
        let mut x = self.clone();
        while x.shape().len() < times.len() {
            let too_many = TensorError::index("repeat", times.len(), crate::layout::RANK_MAX + 1);
            x = x.unsqueeze(0).map_err(|_| too_many)?;
        }
        let mut plan = x.unmoved();
        let missing = plan.len() - times.len();
        for ((len, _), &times) in plan[missing..].iter_mut().zip(times) {
            *len = len.saturating_mul(times);
        }
        x.rearrange("repeat", &plan, 0.0)
    }

    /// Each position along `axis` `times` times in a row.
    ///
    /// # Errors
    /// `Index`, `OutOfMemory`.
    #[track_caller]
    pub fn repeat_interleave(&self, axis: impl Into<Axis>, times: usize) -> Result<Tensor> {
        let axis = check_axis("repeat_interleave", self.shape(), axis)?;
        let op = "repeat_interleave";
        let mut plan = self.unmoved();
        let (len, map) = &mut plan[axis];
        (*len, *map) = (len.saturating_mul(times), Map::Interleave { times });
        self.rearrange(op, &plan, 0.0)
    }

    /// This tensor with `padding[k] = [before, after]` more positions along the `k`-th of the
    /// last dimensions: `[[1, 1], [2, 2]]` pads the last but one by 1 and the last by 2 on each
    /// side. (PyTorch's `F.pad` lists the last dimension first.)
    ///
    /// # Errors
    /// `Shape` when there are fewer dimensions, or too few positions: `Reflect` needs more
    /// than it mirrors, `Circular` as many as it repeats and `Replicate` one. `OutOfMemory`.
    #[track_caller]
    pub fn pad(&self, padding: &[[usize; 2]], mode: PadMode) -> Result<Tensor> {
        let op = "pad";
        let start = check_padding(op, self.shape(), padding, mode)?;
        let mut plan = self.unmoved();
        for ((len, map), &[before, after]) in plan[start..].iter_mut().zip(padding) {
            *map = pad_map(*len, before, mode);
            *len = len.saturating_add(before).saturating_add(after);
        }
        let fill = if let PadMode::Constant(value) = mode { value } else { 0.0 };
        self.rearrange(op, &plan, fill)
    }

    /// The gradient of x through [`Tensor::pad`], for `self = dy`: each position of x collects
    /// what became of it. Half types are added up in f32.
    ///
    /// # Errors
    /// As [`Tensor::pad`] for a tensor of shape `x_shape`; `Shape` when dy is not of the padded
    /// shape, `DType` unless dy is of floats.
    #[track_caller]
    pub fn pad_backward(
        &self,
        x_shape: impl Into<Shape>,
        padding: &[[usize; 2]],
        mode: PadMode,
    ) -> Result<Tensor> {
        let (op, x_shape) = ("pad_backward", x_shape.into());
        let start = check_padding(op, &x_shape, padding, mode)?;
        let mut dims = x_shape.to_vec();
        for (len, &[before, after]) in dims[start..].iter_mut().zip(padding) {
            *len = len.saturating_add(before).saturating_add(after);
        }
        let right = Shape::checked(&dims).unwrap_or(x_shape);
        if *self.shape() != right {
            return Err(TensorError::Shape { op, left: *self.shape(), right });
        }
        if !self.dtype().is_float() {
            return Err(TensorError::DType { op, left: self.dtype(), right: DType::F32 });
        }
        let mut dx = self.clone();
        for (axis, &[before, after]) in (start..).zip(padding) {
            let len = x_shape[axis];
            dx = match mode {
                _ if before + after == 0 => dx,
                PadMode::Constant(_) => dx.narrow(axis, before, len)?,
                _ => {
                    let map = pad_map(len, before, mode);
                    let places = cpu::sources(len, before + len + after, map);
                    let index = Tensor::from_slice(self.device(), [places.len()], &places)?;
                    dx.index_sum(op, axis, &index, len)?
                }
            };
        }
        dx.to_dtype(self.dtype())?.contiguous()
    }
}

/// The first dimension of `shape` that is padded, if there are positions enough for all.
fn check_padding(
    op: &'static str,
    shape: &Shape,
    padding: &[[usize; 2]],
    mode: PadMode,
) -> Result<usize> {
    let widths: Vec<usize> = padding.iter().take(8).map(|pair| pair[0].max(pair[1])).collect();
    let mismatch = TensorError::Shape {
        op,
        left: *shape,
        right: Shape::checked(&widths).unwrap_or(Shape::new(&[0])),
    };
    let Some(start) = shape.len().checked_sub(padding.len()) else { return Err(mismatch) };
    let fits = |(&len, &width): (&usize, &usize)| match mode {
        PadMode::Constant(_) => true,
        _ if width == 0 => true,
        PadMode::Reflect => width < len,
        PadMode::Replicate => len > 0,
        PadMode::Circular => width <= len,
    };
    if shape[start..].iter().zip(&widths).all(fits) { Ok(start) } else { Err(mismatch) }
}

/// The map of a dimension of `len` positions that is padded by `before` and anything after.
fn pad_map(len: usize, before: usize, mode: PadMode) -> Map {
    match mode {
        PadMode::Constant(_) => Map::Pad { before, edge: Edge::Constant },
        PadMode::Reflect => Map::Pad { before, edge: Edge::Reflect },
        PadMode::Replicate => Map::Pad { before, edge: Edge::Replicate },
        PadMode::Circular => Map::Cycle { start: len.saturating_sub(before) % len.max(1) },
    }
}
