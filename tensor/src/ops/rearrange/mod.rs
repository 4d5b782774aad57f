//! Moves along dimensions: flip, roll, repeat and pad. Any element type and any strides; the source
//! is not copied first.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;

use crate::axis::Axis;
use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::dtype::{DType, Element, for_each_dtype};
use crate::error::{Result, TensorError};
use crate::launch::{FullKernel, Operands};
use crate::layout::{IntoShape, Shape, check_axes, check_axis};
use crate::tensor::Tensor;
#[cfg(feature = "testing")]
pub(crate) use cpu::testing;
use cpu::{Dimension, Edge, Map};

/// The values around a padded tensor, with the names of PyTorch's `F.pad`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PadMode {
    /// This number, converted as [`Tensor::to_dtype`] does.
    Constant(f64),
    /// The tensor mirrored at its first and last position, which are not repeated.
    Reflect,
    /// The first and the last position, repeated.
    Replicate,
    /// The tensor again, as if both ends were joined.
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
    /// A new tensor. Each of its dimensions has the given length, and its sources by the given map.
    #[track_caller]
    fn rearrange(&self, name: &'static str, plan: &[(usize, Map)], fill: f64) -> Result<Tensor> {
        let dims: Vec<usize> = plan.iter().map(|&(out_len, _)| out_len).collect();
        let Some(shape) = Shape::checked(&dims) else {
            // The result is larger than any memory: the allocator returns the error.
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

    /// The plan that moves nothing: every dimension with its length and the identity.
    fn unmoved(&self) -> Vec<(usize, Map)> {
        self.shape().iter().map(|&len| (len, Map::Cycle { start: 0 })).collect()
    }

    /// Reverses the positions along each of `axes`.
    ///
    /// # Errors
    /// `Index`, `Shape` if an axis is named twice, `OutOfMemory`.
    #[track_caller]
    pub fn flip(&self, axes: &[impl Into<Axis> + Copy]) -> Result<Tensor> {
        let op = "flip";
        let mut plan = self.unmoved();
        check_axes(op, self.shape(), axes)?.into_iter().for_each(|axis| plan[axis].1 = Map::Flip);
        self.rearrange(op, &plan, 0.0)
    }

    /// Moves the positions along `axis` on by `shift`; positions beyond the end go to the start. A
    /// negative shift moves backwards.
    ///
    /// # Errors
    /// `Index`, `OutOfMemory`.
    #[track_caller]
    pub fn roll(&self, axis: impl Into<Axis>, shift: isize) -> Result<Tensor> {
        let axis = check_axis("roll", self.shape(), axis)?;
        let op = "roll";
        let mut plan = self.unmoved();
        let (len, map) = &mut plan[axis];
        // Dimensions are at most isize::MAX long, except if elements share memory.
        let back = shift.unsigned_abs() % (*len).max(1);
        let start = if shift > 0 && back > 0 { *len - back } else { back };
        *map = Map::Cycle { start };
        self.rearrange(op, &plan, 0.0)
    }

    /// Repeats the whole tensor `times[axis]` times along each dimension. Missing leading
    /// dimensions of the tensor have length 1, and missing leading `times` are 1: NumPy's `tile`.
    ///
    /// # Errors
    /// `Index` for more than [`crate::RANK_MAX`] dimensions, `OutOfMemory`.
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

    /// Repeats each position along `axis` `times` times in a row.
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

    /// Pads the last dimensions of this tensor: `padding[k] = [before, after]` adds positions to
    /// the `k`-th of them. So `[[1, 1], [2, 2]]` pads the last but one by 1 and the last by 2 on
    /// each side. (PyTorch's `F.pad` lists the last dimension first.)
    ///
    /// # Errors
    /// `Shape` if there are too few dimensions or positions: a dimension must be longer than the
    /// padding for `Reflect`, as long for `Circular`, and not empty for `Replicate`. `OutOfMemory`.
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

    /// The gradient of x through [`Tensor::pad`], for `self = dy`: each position of x gets the sum
    /// of dy over its copies. Half types are summed in f32.
    ///
    /// # Errors
    /// As [`Tensor::pad`] for a tensor of shape `x_shape`; `Shape` unless dy has the padded shape,
    /// `DType` unless dy is of floats.
    #[track_caller]
    pub fn pad_backward(
        &self,
        x_shape: impl IntoShape,
        padding: &[[usize; 2]],
        mode: PadMode,
    ) -> Result<Tensor> {
        let (op, x_shape) = ("pad_backward", x_shape.into_shape("pad_backward")?);
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

/// The first padded dimension of `shape`. An error if a dimension has too few positions.
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

/// The map of a dimension of `len` positions with `before` positions of padding in front.
fn pad_map(len: usize, before: usize, mode: PadMode) -> Map {
    match mode {
        PadMode::Constant(_) => Map::Pad { before, edge: Edge::Constant },
        PadMode::Reflect => Map::Pad { before, edge: Edge::Reflect },
        PadMode::Replicate => Map::Pad { before, edge: Edge::Replicate },
        PadMode::Circular => Map::Cycle { start: len.saturating_sub(before) % len.max(1) },
    }
}
