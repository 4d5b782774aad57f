//! Results whose length depends on values: masked_select and nonzero. Also nonzero_static, whose
//! length is fixed, and masked_scatter, the inverse of masked_select.
//!
//! A result of unknown length is a view of a tensor of the largest possible length, so that a
//! simulated device makes the same allocations as the real device. On a simulated device the caller
//! gives the assumed length of the view.

mod cpu;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;

use std::panic::Location;

use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::device::Device;
use crate::dtype::{Bool, DType, Element, for_each_dtype};
use crate::error::{Result, TensorError};
use crate::launch::{FullKernel, Operands};
use crate::layout::{IntoShape, Layout, Nest, Shape};
use crate::ops::workspace::Workspace;
use crate::spec::DeviceKind;
use crate::tensor::Tensor;
use cpu::Mask;

/// The contents of a result after the last packed element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    /// The memory is not written: a view leaves it out.
    Any,
    /// This number in every element.
    Filled(i64),
}

/// Packs the elements of the second operand where the first operand is true.
struct MaskedSelect<'a> {
    name: &'static str,
    rest: Rest,
    dtype: DType,
    len: usize,
    count: &'a mut usize,
}

impl FullKernel for MaskedSelect<'_> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cost(&self) -> Cost {
        Cost {
            class: OpClass::Indexing,
            flops: 0.0,
            bytes: (self.len * (1 + 2 * self.dtype.size_bytes())) as f64,
        }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        let mask = operands.read::<Bool>(0);
        for_each_dtype!(self.dtype, T => {
            let x = operands.read::<T>(1);
            let nest = Nest::new(
                x.layout().shape(),
                [mask.layout().strides(), x.layout().strides()],
            );
            let mask = Mask { data: mask.data(), nest, len: self.len };
            let y = operands.write::<T>(0).slice();
            *self.count = mask.compact(cpu, 1, y, |_, place, y| y[0] = x.data()[place]);
            fill_rest(y, *self.count, self.rest);
        });
        Ok(())
    }
}

/// Fills `y` from element `count` on.
fn fill_rest<T: Element>(y: &mut [T], count: usize, rest: Rest) {
    if let (Some(y), Rest::Filled(value)) = (y.get_mut(count..), rest) {
        y.fill(T::from_i64(value));
    }
}

/// Packs the indices of the elements that are not 0.
struct Nonzero<'a> {
    name: &'static str,
    rest: Rest,
    shape: Shape,
    dtype: DType,
    count: &'a mut usize,
}

impl FullKernel for Nonzero<'_> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cost(&self) -> Cost {
        let bytes = self.shape.element_count() * (self.dtype.size_bytes() + 8 * self.shape.len());
        Cost { class: OpClass::Indexing, flops: 0.0, bytes: bytes as f64 }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        let (shape, len) = (self.shape, self.shape.element_count());
        let y = operands.write::<i64>(0).slice();
        for_each_dtype!(self.dtype, T => {
            let x = operands.read::<T>(0);
            let own = Layout::contiguous(shape);
            let nest = Nest::new(&shape, [x.layout().strides(), own.strides()]);
            let mask = Mask { data: x.data(), nest, len };
            *self.count = mask.compact(cpu, shape.len(), y, |mut number, _, index| {
                for (at, &dim) in index.iter_mut().zip(shape.iter()).rev() {
                    *at = (number % dim) as i64;
                    number /= dim;
                }
            });
        });
        fill_rest(y, *self.count * shape.len(), self.rest);
        Ok(())
    }
}

/// Writes consecutive elements of the third operand where the first operand is true, and elements
/// of the second operand elsewhere.
struct MaskedScatter {
    dtype: DType,
    len: usize,
}

impl FullKernel for MaskedScatter {
    fn name(&self) -> &'static str {
        "masked_scatter"
    }

    fn cost(&self) -> Cost {
        let bytes = (self.len * (1 + 3 * self.dtype.size_bytes())) as f64;
        Cost { class: OpClass::Indexing, flops: 0.0, bytes }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        let mask = operands.read::<Bool>(0);
        for_each_dtype!(self.dtype, T => {
            let (x, source) = (operands.read::<T>(1), operands.read::<T>(2).slice());
            let strides = [mask.layout().strides(), x.layout().strides()];
            let nest = Nest::new(x.layout().shape(), strides);
            let mask = Mask { data: mask.data(), nest, len: self.len };
            let y = operands.write::<T>(0).slice();
            cpu::masked_scatter(cpu, &mask, [x.data(), source], y)
                .map_err(|kept| TensorError::index(self.name(), kept - 1, source.len()))
        })
    }
}

/// Elements of a mask that a block of an NVIDIA device packs.
const TILE_LEN: usize = 2048;

/// Workspace of an NVIDIA device for the number of elements before each tile, and in total. A
/// processor needs none.
pub(crate) fn tile_counts(device: &Device, tiles: usize) -> Workspace {
    match device.kind() {
        DeviceKind::Cpu => Workspace::none(),
        DeviceKind::Cuda => Workspace::new(DType::I64, [tiles, 1]),
    }
}

impl Tensor {
    /// `ValueUnavailable` on a simulated device.
    #[track_caller]
    pub(crate) fn check_values(&self, op: &'static str) -> Result<()> {
        if self.device().is_simulated() {
            return Err(TensorError::ValueUnavailable { op, site: Location::caller() });
        }
        Ok(())
    }

    /// The first `count` rows of this tensor of the largest possible length. On a simulated device
    /// the first `assumed` rows; its list of assumptions then names the caller's place.
    #[track_caller]
    pub(crate) fn shortened(
        &self,
        op: &'static str,
        count: usize,
        assumed: usize,
    ) -> Result<Tensor> {
        let Some(sim) = self.device().simulation() else { return self.narrow(0, 0, count) };
        if assumed > self.shape()[0] {
            return Err(TensorError::index(op, assumed, self.shape()[0] + 1));
        }
        // A real device reads the number at this point.
        self.device().order_copies()?;
        sim.assume(assumed as f64, Location::caller());
        self.narrow(0, 0, assumed)
    }

    /// This tensor and a mask for it, broadcast to each other.
    fn masked(&self, op: &'static str, mask: &Tensor) -> Result<[Tensor; 2]> {
        if mask.dtype() != DType::Bool {
            return Err(TensorError::DType { op, left: mask.dtype(), right: DType::Bool });
        }
        let (left, right) = (*self.shape(), *mask.shape());
        let shape = left.broadcast(&right).ok_or(TensorError::Shape { op, left, right })?;
        Ok([self.expand(shape)?, mask.expand(shape)?])
    }

    /// The elements where `mask` is true, in row-major order. The mask and this tensor are
    /// broadcast. The result is a view of memory for all elements: to keep it for long, copy it.
    ///
    /// # Shapes
    /// `[..] → [n]`.
    ///
    /// # Errors
    /// `Shape`, `DType` unless the mask is of truth values, `Device`, `OutOfMemory`;
    /// `ValueUnavailable` on a simulated device, see [`Tensor::masked_select_assuming`].
    #[track_caller]
    pub fn masked_select(&self, mask: &Tensor) -> Result<Tensor> {
        self.check_values("masked_select")?;
        self.masked_select_assuming(mask, 0)
    }

    /// [`Tensor::masked_select`]. On a simulated device the result has `assumed_len` elements; the
    /// list of assumptions then names the caller's place.
    ///
    /// # Errors
    /// The errors of [`Tensor::masked_select`], without `ValueUnavailable`; `Index` if there are
    /// fewer elements than assumed.
    #[track_caller]
    pub fn masked_select_assuming(&self, mask: &Tensor, assumed_len: usize) -> Result<Tensor> {
        let op = "masked_select";
        let [x, mask] = self.masked(op, mask)?;
        let (dtype, len) = (self.dtype(), x.element_count());
        let y = Tensor::empty(self.device(), [len], dtype)?;
        let mut count = 0;
        let kernel = MaskedSelect { name: op, rest: Rest::Any, dtype, len, count: &mut count };
        let counts = tile_counts(self.device(), len.div_ceil(TILE_LEN));
        let _counts = self.device().launch_with(&counts, kernel, &[&mask, &x], &[&y])?;
        y.shortened(op, count, assumed_len)
    }

    /// The indices of the elements that are not 0, in row-major order, as i64. NaN is not 0. The
    /// result is a view of memory for all elements: to keep it for long, copy it.
    ///
    /// # Shapes
    /// `[..] → [n, rank]`.
    ///
    /// # Errors
    /// `OutOfMemory`; `ValueUnavailable` on a simulated device, see [`Tensor::nonzero_assuming`].
    #[track_caller]
    pub fn nonzero(&self) -> Result<Tensor> {
        self.check_values("nonzero")?;
        self.nonzero_assuming(0)
    }

    /// [`Tensor::nonzero`]. On a simulated device the result has `assumed_count` indices; see
    /// [`Tensor::masked_select_assuming`].
    ///
    /// # Errors
    /// `OutOfMemory`, `Index` if there are fewer elements than assumed.
    #[track_caller]
    pub fn nonzero_assuming(&self, assumed_count: usize) -> Result<Tensor> {
        let op = "nonzero";
        let (y, count, _counts) = self.packed_indices(op, self.element_count(), Rest::Any)?;
        y.shortened(op, count, assumed_count)
    }

    /// The first `count` rows of [`Tensor::nonzero`]; missing rows are `fill`. The shape does not
    /// depend on values. (PyTorch's default is to fill with -1.)
    ///
    /// # Shapes
    /// `[..] → [count, rank]`.
    ///
    /// # Errors
    /// `OutOfMemory`.
    #[track_caller]
    pub fn nonzero_static(&self, count: usize, fill: i64) -> Result<Tensor> {
        let (y, ..) = self.packed_indices("nonzero_static", count, Rest::Filled(fill))?;
        Ok(y)
    }

    /// The indices of the elements that are not 0 in `rows` rows, their number, and the workspace
    /// of the device's counts.
    #[track_caller]
    fn packed_indices(
        &self,
        op: &'static str,
        rows: usize,
        rest: Rest,
    ) -> Result<(Tensor, usize, Vec<Tensor>)> {
        let (device, shape, dtype) = (self.device(), *self.shape(), self.dtype());
        let y = match Shape::checked(&[rows, shape.len()]) {
            Some(whole) => Tensor::empty(device, whole, DType::I64)?,
            // No memory is as large: the allocator returns the error.
            None => Tensor::empty(device, [usize::MAX], DType::I64)?,
        };
        let mut count = 0;
        let kernel = Nonzero { name: op, rest, shape, dtype, count: &mut count };
        let counts = tile_counts(device, shape.element_count().div_ceil(TILE_LEN));
        let counts = device.launch_with(&counts, kernel, &[self], &[&y])?;
        Ok((y, count, counts))
    }

    /// A copy of this tensor with consecutive elements of `source` where `mask` is true, in
    /// row-major order. This tensor and the mask are broadcast.
    ///
    /// # Errors
    /// `Shape`, `DType` unless the mask is of truth values and the others have one type, `Index` if
    /// the source has fewer elements than the mask keeps, `Device`, `OutOfMemory`.
    ///
    /// # Streams
    /// Does not wait for an NVIDIA device. The next read of a value reports a source that is too
    /// short, once. Places without an element of the source keep this tensor's elements.
    #[track_caller]
    pub fn masked_scatter(&self, mask: &Tensor, source: &Tensor) -> Result<Tensor> {
        let op = "masked_scatter";
        let [x, mask] = self.masked(op, mask)?;
        self.check_dtype(op, source)?;
        let source = source.contiguous()?;
        let y = Tensor::empty(self.device(), *x.shape(), self.dtype())?;
        let kernel = MaskedScatter { dtype: self.dtype(), len: x.element_count() };
        let counts = tile_counts(self.device(), x.element_count().div_ceil(TILE_LEN));
        self.device().launch_with(&counts, kernel, &[&mask, &x, &source], &[&y])?;
        Ok(y)
    }

    /// The gradient of the source through [`Tensor::masked_scatter`], for `self = dy`: consecutive
    /// elements where `mask` is true, and 0 for elements of the source that are not used.
    ///
    /// # Shapes
    /// The result has the shape of `source`.
    ///
    /// # Errors
    /// `Shape`, `DType` unless the mask is of truth values, `Device`, `OutOfMemory`.
    #[track_caller]
    pub fn masked_scatter_backward(&self, mask: &Tensor, source: impl IntoShape) -> Result<Tensor> {
        let op = "masked_scatter_backward";
        let [dy, mask] = self.masked(op, mask)?;
        let ds = Tensor::empty(self.device(), source, self.dtype())?;
        let (dtype, len, rest, mut count) = (self.dtype(), dy.element_count(), Rest::Filled(0), 0);
        let kernel = MaskedSelect { name: op, rest, dtype, len, count: &mut count };
        self.device().launch(kernel, &[&mask, &dy], &[&ds])?;
        Ok(ds)
    }
}
