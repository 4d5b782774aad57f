//! Views: other layouts over the same storage. A method copies only if its documentation says so.

use std::ops::Range;

use crate::axis::Axis;
use crate::error::{Result, TensorError};
use crate::layout::{IntoShape, RANK_MAX, Shape, check_axes, check_axis, check_index};
use crate::tensor::Tensor;

impl Tensor {
    /// The elements in row-major order under another shape. Copies if no strides over the same
    /// storage give that order.
    ///
    /// # Errors
    /// `Shape` when the element counts differ, `OutOfMemory` when it copies.
    #[track_caller]
    pub fn reshape(&self, shape: impl IntoShape) -> Result<Tensor> {
        let shape = shape.into_shape("reshape")?;
        if shape.element_count() != self.element_count() {
            return Err(TensorError::Shape { op: "reshape", left: *self.shape(), right: shape });
        }
        if let Some(layout) = self.layout().reshape(shape) {
            return Ok(self.with_layout(layout));
        }
        self.contiguous()?.reshape(shape)
    }

    /// [`Tensor::reshape`] that never copies.
    ///
    /// # Errors
    /// `Shape` when the element counts differ, or only a copy can have that shape.
    pub fn view(&self, shape: impl IntoShape) -> Result<Tensor> {
        let right = shape.into_shape("view")?;
        let same_count = right.element_count() == self.element_count();
        let layout = same_count.then(|| self.layout().reshape(right)).flatten();
        let mismatch = TensorError::Shape { op: "view", left: *self.shape(), right };
        Ok(self.with_layout(layout.ok_or(mismatch)?))
    }

    /// Merges dimensions `axes` into one, like [`Tensor::reshape`].
    ///
    /// # Errors
    /// `Index` when `axes` are not dimensions of this tensor, `OutOfMemory` when it copies.
    #[track_caller]
    pub fn flatten(&self, axes: Range<usize>) -> Result<Tensor> {
        check_index("flatten", axes.start, axes.end)?;
        check_axis("flatten", self.shape(), axes.end - 1)?;
        let merged = self.shape()[axes.clone()].iter().product();
        let dims = [&self.shape()[..axes.start], &[merged], &self.shape()[axes.end..]].concat();
        self.reshape(&dims[..])
    }

    /// Exchanges dimensions `a` and `b`.
    ///
    /// # Errors
    /// `Index`.
    pub fn transpose(&self, a: impl Into<Axis>, b: impl Into<Axis>) -> Result<Tensor> {
        let a = check_axis("transpose", self.shape(), a)?;
        let b = check_axis("transpose", self.shape(), b)?;
        Ok(self.with_layout(self.layout().transpose(a, b)))
    }

    /// Transposes a matrix. A vector or a number stays unchanged.
    ///
    /// # Errors
    /// `Shape` with more than two dimensions.
    pub fn t(&self) -> Result<Tensor> {
        match self.shape().len() {
            0 | 1 => Ok(self.clone()),
            2 => self.transpose(0, 1),
            _ => {
                let right = Shape::from(&self.shape()[..2]);
                Err(TensorError::Shape { op: "t", left: *self.shape(), right })
            }
        }
    }

    /// Moves dimension `from` to place `to`; the others keep their order.
    ///
    /// # Errors
    /// `Index`.
    pub fn movedim(&self, from: impl Into<Axis>, to: impl Into<Axis>) -> Result<Tensor> {
        let from = check_axis("movedim", self.shape(), from)?;
        let to = check_axis("movedim", self.shape(), to)?;
        let mut axes: Vec<usize> = (0..self.shape().len()).filter(|&axis| axis != from).collect();
        axes.insert(to, from);
        Ok(self.with_layout(self.layout().permute(&axes)))
    }

    /// The dimensions in the order `axes`, each named once.
    ///
    /// # Errors
    /// `Index` for an axis that does not exist, `Shape` when an axis is missing or repeated.
    pub fn permute(&self, axes: &[impl Into<Axis> + Copy]) -> Result<Tensor> {
        let op = "permute";
        let axes = check_axes(op, self.shape(), axes)?;
        if axes.len() != self.shape().len() {
            let right = Shape::from(&axes[..]);
            return Err(TensorError::Shape { op, left: *self.shape(), right });
        }
        Ok(self.with_layout(self.layout().permute(&axes)))
    }

    /// The `len` positions from `start` along `axis`.
    ///
    /// # Errors
    /// `Index`.
    pub fn narrow(&self, axis: impl Into<Axis>, start: usize, len: usize) -> Result<Tensor> {
        let axis = check_axis("narrow", self.shape(), axis)?;
        self.window("narrow", axis, start, len)
    }

    /// [`Tensor::narrow`] on behalf of `op`.
    fn window(&self, op: &'static str, axis: usize, start: usize, len: usize) -> Result<Tensor> {
        let available = self.shape()[axis];
        if start > available || len > available - start {
            let index = start.saturating_add(len).min(isize::MAX as usize);
            return Err(TensorError::index(op, index, available));
        }
        Ok(self.with_layout(self.layout().narrow(axis, start, len)))
    }

    /// Every `step`-th position of `positions` along `axis`, from the start of `positions` on.
    ///
    /// # Errors
    /// `Index`, `Shape` for a step of 0.
    pub fn slice(
        &self,
        axis: impl Into<Axis>,
        positions: Range<usize>,
        step: usize,
    ) -> Result<Tensor> {
        let axis = check_axis("slice", self.shape(), axis)?;
        let (op, Range { start, end }) = ("slice", positions);
        let len = end.saturating_sub(start);
        let window = self.window(op, axis, start, len)?;
        if step == 0 {
            let right = Shape::shown(&[len, step]);
            return Err(TensorError::Shape { op, left: *self.shape(), right });
        }
        Ok(window.with_layout(window.layout().step(axis, step)))
    }

    /// Parts of `len` positions along `axis`; the last part may be shorter. A tensor without
    /// positions is one part.
    ///
    /// # Errors
    /// `Index`, `Shape` for a length of 0 if there are positions.
    pub fn split(&self, axis: impl Into<Axis>, len: usize) -> Result<Vec<Tensor>> {
        let axis = check_axis("split", self.shape(), axis)?;
        let op = "split";
        let available = self.shape()[axis];
        if len == 0 && available > 0 {
            let right = self.shape().with(axis, 0);
            return Err(TensorError::Shape { op, left: *self.shape(), right });
        }
        let starts = (0..available.max(1)).step_by(len.max(1));
        starts.map(|start| self.window(op, axis, start, len.min(available - start))).collect()
    }

    /// Parts of the given lengths along `axis`. The lengths have to add up to the length of the
    /// dimension.
    ///
    /// # Errors
    /// `Index` when the lengths do not add up.
    pub fn split_with_sizes(&self, axis: impl Into<Axis>, lens: &[usize]) -> Result<Vec<Tensor>> {
        let axis = check_axis("split_with_sizes", self.shape(), axis)?;
        let op = "split_with_sizes";
        let available = self.shape()[axis];
        let total = lens.iter().fold(0usize, |total, &len| total.saturating_add(len));
        if total != available {
            return Err(TensorError::index(op, total, available));
        }
        let mut start = 0;
        let part = |&len: &usize| {
            start += len;
            self.window(op, axis, start - len, len)
        };
        lens.iter().map(part).collect()
    }

    /// At most `count` parts of equal length along `axis`. The last part is shorter if the
    /// dimension is not a multiple: as in PyTorch, 5 positions in 4 chunks are 2, 2 and 1.
    ///
    /// # Errors
    /// `Index`, also for a count of 0.
    pub fn chunk(&self, axis: impl Into<Axis>, count: usize) -> Result<Vec<Tensor>> {
        let axis = check_axis("chunk", self.shape(), axis)?;
        let op = "chunk";
        let available = self.shape()[axis];
        check_index(op, 0, count)?;
        if available == 0 {
            return Ok(vec![self.clone(); count]);
        }
        self.split(axis, available.div_ceil(count))
    }

    /// The diagonal of `a` and `b` as a last dimension in place of both: the elements whose
    /// position along `b` is their position along `a` plus `offset`. Empty if no element is there.
    ///
    /// # Errors
    /// `Index`, `Shape` when `a` and `b` are one dimension.
    pub fn diagonal(
        &self,
        offset: isize,
        a: impl Into<Axis>,
        b: impl Into<Axis>,
    ) -> Result<Tensor> {
        let a = check_axis("diagonal", self.shape(), a)?;
        let b = check_axis("diagonal", self.shape(), b)?;
        let op = "diagonal";
        if a == b {
            let right = Shape::from([a, b]);
            return Err(TensorError::Shape { op, left: *self.shape(), right });
        }
        let skip = |axis: usize, count: usize| {
            let dim = self.shape()[axis];
            (count.min(dim), dim.saturating_sub(count))
        };
        let below = if offset < 0 { offset.unsigned_abs() } else { 0 };
        let (from_a, len_a) = skip(a, below);
        let (from_b, len_b) = skip(b, offset.max(0).unsigned_abs());
        let corner = self.layout().narrow(a, from_a, len_a).narrow(b, from_b, len_b);
        Ok(self.with_layout(corner.diagonal(a, b, len_a.min(len_b))))
    }

    /// Windows of `len` positions along `axis`, `step` apart, as a last dimension. Overlapping
    /// windows share elements, so such a result cannot be written in place.
    ///
    /// # Shapes
    /// `[.., N, ..] → [.., (N - len) / step + 1, .., len]`.
    ///
    /// # Errors
    /// `Index` (also when there are [`RANK_MAX`] dimensions already), `Shape` for a step of 0, a
    /// window that does not fit, or more elements than can be counted.
    pub fn unfold(&self, axis: impl Into<Axis>, len: usize, step: usize) -> Result<Tensor> {
        let axis = check_axis("unfold", self.shape(), axis)?;
        let op = "unfold";
        let available = self.shape()[axis];
        check_index(op, self.shape().len(), RANK_MAX)?;
        let fits = len <= available && step > 0;
        let layout = fits.then(|| self.layout().unfold(axis, len, step)).flatten();
        let right = Shape::shown(&[len, step]);
        let mismatch = TensorError::Shape { op, left: *self.shape(), right };
        Ok(self.with_layout(layout.ok_or(mismatch)?))
    }

    /// Position `index` along `axis`, without that dimension.
    ///
    /// # Errors
    /// `Index`.
    pub fn select(&self, axis: impl Into<Axis>, index: usize) -> Result<Tensor> {
        let axis = check_axis("select", self.shape(), axis)?;
        let op = "select";
        check_index(op, index, self.shape()[axis])?;
        Ok(self.with_layout(self.layout().select(axis, index)))
    }

    /// Inserts a dimension of length 1 with index `axis`; -1 makes it the last one.
    ///
    /// # Errors
    /// `Index`, also when there are [`RANK_MAX`] dimensions already.
    pub fn unsqueeze(&self, axis: impl Into<Axis>) -> Result<Tensor> {
        let op = "unsqueeze";
        let axis = axis.into().index(op, self.shape().len() + 1)?;
        check_index(op, self.shape().len(), RANK_MAX)?;
        Ok(self.with_layout(self.layout().unsqueeze(axis)))
    }

    /// Removes dimension `axis`, which must have length 1.
    ///
    /// # Errors
    /// `Index`, `Shape`.
    pub fn squeeze(&self, axis: impl Into<Axis>) -> Result<Tensor> {
        let axis = check_axis("squeeze", self.shape(), axis)?;
        let op = "squeeze";
        if self.shape()[axis] != 1 {
            let right = self.shape().with(axis, 1);
            return Err(TensorError::Shape { op, left: *self.shape(), right });
        }
        self.select(axis, 0)
    }

    /// Stretches dimensions of length 1 (and missing leading ones) to `shape`. An element then has
    /// several indices, so the result cannot be written in place.
    ///
    /// # Errors
    /// `Shape`.
    pub fn expand(&self, shape: impl IntoShape) -> Result<Tensor> {
        let right = shape.into_shape("expand")?;
        let mismatch = TensorError::Shape { op: "expand", left: *self.shape(), right };
        Ok(self.with_layout(self.layout().expand(right).ok_or(mismatch)?))
    }

    /// This tensor if it is contiguous, else a contiguous copy.
    ///
    /// # Errors
    /// `OutOfMemory` when it copies.
    #[track_caller]
    pub fn contiguous(&self) -> Result<Tensor> {
        if self.layout().is_contiguous() {
            return Ok(self.clone());
        }
        self.copied()
    }

    /// A contiguous copy with a storage of its own.
    ///
    /// # Errors
    /// `OutOfMemory`.
    #[track_caller]
    pub fn copied(&self) -> Result<Tensor> {
        let mut copy = Tensor::empty(self.device(), *self.shape(), self.dtype())?;
        copy.copy_(self)?;
        Ok(copy)
    }
}
