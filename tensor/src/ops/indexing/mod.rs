//! Elements chosen by indices (i64): gather, index_select, embedding, one_hot. `scatter.rs` sends
//! elements to the places of indices, and `reduce.rs` reduces them there. In `places.rs` several
//! indices name a place together; in `parts.rs` the place is a view.
//!
//! All indices are checked before anything is written. A simulated device has no indices to check.
//! An NVIDIA device checks indices while it computes; the next read of a value reports a bad index.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod parts;
mod places;
mod places_cpu;
mod reduce;
mod scatter;

use crate::axis::Axis;
use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::dtype::{DType, for_each_dtype};
use crate::error::{Result, TensorError};
use crate::launch::{FullKernel, Operands};
use crate::layout::{RANK_MAX, Shape, check_axis, check_index};
use crate::tensor::Tensor;
use cpu::Follow;

pub use reduce::{Existing, ScatterReduction};
pub use scatter::Arrival;

/// y from the elements of x at the indices; see [`Follow`].
struct Gather {
    name: &'static str,
    dtype: DType,
    /// The shape of y.
    shape: Shape,
    index_strides: [usize; RANK_MAX],
    strides: [usize; RANK_MAX],
    axis: usize,
    index_len: usize,
}

impl FullKernel for Gather {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cost(&self) -> Cost {
        let moved = 2 * self.shape.element_count() * self.dtype.size_bytes();
        Cost { class: OpClass::Indexing, flops: 0.0, bytes: (moved + 8 * self.index_len) as f64 }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        let index = operands.read::<i64>(0);
        for_each_dtype!(self.dtype, T => {
            let x = operands.read::<T>(1);
            cpu::check(cpu, self.name, index, x.layout().shape()[self.axis])?;
            let follow = Follow {
                index: index.data(),
                index_strides: self.index_strides,
                strides: self.strides,
                axis_stride: x.layout().strides()[self.axis],
            };
            let y = operands.write::<T>(0).slice();
            cpu::gather(cpu, &follow, x.data(), &self.shape, y);
        });
        Ok(())
    }
}

struct OneHot {
    class_count: usize,
    dtype: DType,
    out_len: usize,
}

impl FullKernel for OneHot {
    fn name(&self) -> &'static str {
        "one_hot"
    }

    fn cost(&self) -> Cost {
        Cost {
            class: OpClass::Indexing,
            flops: 0.0,
            bytes: (self.out_len * self.dtype.size_bytes()) as f64,
        }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        let index = operands.read::<i64>(0);
        cpu::check(cpu, self.name(), index, self.class_count)?;
        for_each_dtype!(self.dtype, T => {
            cpu::one_hot::<T>(cpu, index, self.class_count, operands.write::<T>(0).slice());
        });
        Ok(())
    }
}

/// The strides `of`, padded with zeros to the largest number of dimensions.
fn strides(of: &[usize]) -> [usize; RANK_MAX] {
    let mut strides = [0; RANK_MAX];
    strides[..of.len()].copy_from_slice(of);
    strides
}

impl Tensor {
    /// Checks that this tensor holds indices, and has `rank` dimensions if `rank` is given.
    fn check_indices(&self, op: &'static str, rank: Option<usize>) -> Result<()> {
        if self.dtype() != DType::I64 {
            return Err(TensorError::DType { op, left: self.dtype(), right: DType::I64 });
        }
        if rank.is_none_or(|rank| rank == self.shape().len()) {
            return Ok(());
        }
        let right = Shape::new(&[self.element_count()]);
        Err(TensorError::Shape { op, left: *self.shape(), right })
    }

    /// Launches a [`Gather`] from this tensor.
    #[track_caller]
    fn follow(&self, index: &Tensor, kernel: Gather) -> Result<Tensor> {
        let y = Tensor::empty(self.device(), kernel.shape, self.dtype())?;
        self.device().launch(kernel, &[index, self], &[&y])?;
        Ok(y)
    }

    /// `y[i, j, k] = x[i, index[i, j, k], k]` for axis 1: the index is the position along `axis`;
    /// all other positions are the same as in the index. (NumPy's `take_along_axis`.)
    ///
    /// # Shapes
    /// The result has the index's shape, which is at most x's along every dimension but `axis`.
    ///
    /// # Errors
    /// `Index` for a dimension that does not exist or an index out of range, `Shape`, `DType`
    /// unless indices are i64, `Device`, `OutOfMemory`.
    #[track_caller]
    pub fn gather(&self, axis: impl Into<Axis>, index: &Tensor) -> Result<Tensor> {
        let axis = check_axis("gather", self.shape(), axis)?;
        let op = "gather";
        index.check_indices(op, None)?;
        self.check_inside(op, axis, index.shape())?;
        let mut places = strides(self.layout().strides());
        places[axis] = 0;
        let kernel = Gather {
            name: op,
            dtype: self.dtype(),
            shape: *index.shape(),
            index_strides: strides(index.layout().strides()),
            strides: places,
            axis,
            index_len: index.element_count(),
        };
        self.follow(index, kernel)
    }

    /// Checks that `shape` has as many dimensions as this tensor, and that none but `axis` is
    /// longer.
    fn check_inside(&self, op: &'static str, axis: usize, shape: &Shape) -> Result<()> {
        let (left, right) = (*self.shape(), *shape);
        let fits = |other: usize| other == axis || right[other] <= left[other];
        if left.len() == right.len() && (0..left.len()).all(fits) {
            return Ok(());
        }
        Err(TensorError::Shape { op, left, right })
    }

    /// The slices at the positions `index` (of one dimension) along `axis`, in that order.
    ///
    /// # Shapes
    /// `[A, N, C]` and `[M]` → `[A, M, C]` for axis 1.
    ///
    /// # Errors
    /// As [`Tensor::gather`].
    #[track_caller]
    pub fn index_select(&self, axis: impl Into<Axis>, index: &Tensor) -> Result<Tensor> {
        let axis = check_axis("index_select", self.shape(), axis)?;
        let op = "index_select";
        index.check_indices(op, Some(1))?;
        let (mut index_strides, mut places) = ([0; RANK_MAX], strides(self.layout().strides()));
        (index_strides[axis], places[axis]) = (index.layout().strides()[0], 0);
        let mut dims = self.shape().to_vec();
        dims[axis] = index.element_count();
        let Some(shape) = Shape::checked(&dims) else {
            let (left, right) = (*self.shape(), *index.shape());
            return Err(TensorError::Shape { op, left, right });
        };
        let kernel = Gather {
            name: op,
            dtype: self.dtype(),
            shape,
            index_strides,
            strides: places,
            axis,
            index_len: index.element_count(),
        };
        self.follow(index, kernel)
    }

    /// The rows `index` of this table.
    ///
    /// # Shapes
    /// `[V, C]` and `[..]` → `[.., C]`.
    ///
    /// # Errors
    /// As [`Tensor::gather`].
    #[track_caller]
    pub fn embedding(&self, index: &Tensor) -> Result<Tensor> {
        let op = "embedding";
        index.check_indices(op, None)?;
        let (left, right) = (*self.shape(), *index.shape());
        let mismatch = TensorError::Shape { op, left, right };
        let &[_, column_count] = &*left else { return Err(mismatch) };
        let Some(shape) = Shape::checked(&[&right[..], &[column_count]].concat()) else {
            return Err(mismatch);
        };
        let mut places = [0; RANK_MAX];
        places[right.len()] = self.layout().strides()[1];
        let kernel = Gather {
            name: op,
            dtype: self.dtype(),
            shape,
            index_strides: strides(index.layout().strides()),
            strides: places,
            axis: 0,
            index_len: index.element_count(),
        };
        self.follow(index, kernel)
    }

    /// The gradient of the table through [`Tensor::embedding`], for `self = dy`: each row is the
    /// sum of the rows of dy with its index, added in the order of the indices. Half types are
    /// summed in f32.
    ///
    /// # Shapes
    /// `[.., C]` and `[..]` → `[row_count, C]`.
    ///
    /// # Errors
    /// As [`Tensor::gather`]; `DType` unless dy is of floats.
    #[track_caller]
    pub fn embedding_backward(&self, index: &Tensor, row_count: usize) -> Result<Tensor> {
        let op = "embedding_backward";
        index.check_indices(op, None)?;
        if !self.dtype().is_float() {
            return Err(TensorError::DType { op, left: self.dtype(), right: DType::F32 });
        }
        let (left, right) = (*self.shape(), *index.shape());
        let rows = left.split_last().filter(|&(_, rows)| *rows == right[..]);
        let Some((&column_count, _)) = rows else {
            return Err(TensorError::Shape { op, left, right });
        };
        let len = index.element_count();
        let dy = self.reshape([len, column_count])?;
        let table = dy.index_sum(op, 0, &index.reshape([len])?, row_count)?;
        table.to_dtype(self.dtype())
    }

    /// One-hot vectors: a new last dimension of `class_count`, with 1 at the index and 0 elsewhere.
    ///
    /// # Errors
    /// `Index` if an index is out of range or there are [`RANK_MAX`] dimensions already, `DType`
    /// unless the indices are i64, `OutOfMemory`.
    #[track_caller]
    pub fn one_hot(&self, class_count: usize, dtype: DType) -> Result<Tensor> {
        let op = "one_hot";
        self.check_indices(op, None)?;
        check_index(op, self.shape().len(), RANK_MAX)?;
        let Some(shape) = Shape::checked(&[&self.shape()[..], &[class_count]].concat()) else {
            // The result is larger than any memory: the allocator returns the error.
            return Tensor::empty(self.device(), [usize::MAX], dtype);
        };
        let y = Tensor::empty(self.device(), shape, dtype)?;
        let kernel = OneHot { class_count, dtype, out_len: shape.element_count() };
        self.device().launch(kernel, &[self], &[&y])?;
        Ok(y)
    }
}
