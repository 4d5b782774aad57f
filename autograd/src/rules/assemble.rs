//! Named ways of joining, splitting and multiplying tensors, composed of other operations. Only
//! these other operations save tensors for backward.

use lowtide_tensor::{Axis, PadMode, RANK_MAX, Shape, TensorError};

use crate::error::Result;
use crate::var::Var;

/// The order of the dimensions of [`Var::meshgrid`]: PyTorch's `indexing`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GridOrder {
    /// Dimensions in the order of the inputs, as the indices of a matrix: `ij`, PyTorch's default.
    #[default]
    Matrix,
    /// The first two dimensions exchanged, as the coordinates of a plane: `xy`.
    Plane,
}

fn mismatch(op: &'static str, left: Shape, right: Shape) -> TensorError {
    TensorError::Shape { op, left, right }
}

/// `Ok` if there is at least one input.
fn check_any(op: &'static str, inputs: &[Var]) -> Result<()> {
    if inputs.is_empty() {
        return Err(TensorError::Index { op, index: 0, len: 0 }.into());
    }
    Ok(())
}

/// A number or a vector as a matrix of one row.
fn as_rows(x: Var) -> Result<Var> {
    match x.shape()[..] {
        [] => x.reshape([1, 1]),
        [_] => x.unsqueeze(0),
        _ => Ok(x),
    }
}

/// The order of the products of a matrix chain that needs the fewest multiplications.
///
/// Matrix i has `sizes[i]` rows and `sizes[i + 1]` columns. The matrices `i..=j` are split for
/// their last product after matrix `order[i][j]`. The algorithm is Godbole's "On efficient
/// computation of matrix chain products" (1973); of equally good orders it takes the first.
fn chain_order(sizes: &[usize]) -> Vec<Vec<usize>> {
    let count = sizes.len() - 1;
    let mut costs = vec![vec![0_u128; count]; count];
    let mut order = vec![vec![0; count]; count];
    for len in 1..count {
        for first in 0..count - len {
            let last = first + len;
            let cost = |split: usize| {
                let product = [first, split + 1, last + 1].map(|at| sizes[at] as u128);
                costs[first][split] + costs[split + 1][last] + product.iter().product::<u128>()
            };
            let best = (first..last).min_by_key(|&split| cost(split)).unwrap_or(first);
            (costs[first][last], order[first][last]) = (cost(best), best);
        }
    }
    order
}

/// The product of the matrices `first..=last` in the order of [`chain_order`].
fn chain_product(matrices: &[Var], order: &[Vec<usize>], [first, last]: [usize; 2]) -> Result<Var> {
    if first == last {
        return Ok(matrices[first].clone());
    }
    let split = order[first][last];
    let left = chain_product(matrices, order, [first, split])?;
    left.matmul(chain_product(matrices, order, [split + 1, last])?)
}

impl Var {
    /// The values side by side: joined along the second dimension, vectors along the first;
    /// `torch.hstack`. A number counts as a vector of one element.
    ///
    /// # Errors
    /// `Index` if there are no values; else as for [`Var::cat`].
    #[track_caller]
    pub fn hstack(inputs: Vec<Var>) -> Result<Var> {
        check_any("hstack", &inputs)?;
        let at_least_vector = |x: Var| if x.shape().is_empty() { x.reshape([1]) } else { Ok(x) };
        let inputs = inputs.into_iter().map(at_least_vector).collect::<Result<Vec<_>>>()?;
        let axis = usize::from(inputs[0].shape().len() > 1);
        Var::cat(inputs, axis)
    }

    /// The values one below the other: joined along the first dimension, vectors as rows;
    /// `torch.vstack`.
    ///
    /// # Errors
    /// `Index` if there are no values; else as for [`Var::cat`].
    #[track_caller]
    pub fn vstack(inputs: Vec<Var>) -> Result<Var> {
        check_any("vstack", &inputs)?;
        Var::cat(inputs.into_iter().map(as_rows).collect::<Result<_>>()?, 0)
    }

    /// The values one behind the other: joined along the third dimension; `torch.dstack`. A vector
    /// counts as `[1, N, 1]`, a matrix as `[M, N, 1]`.
    ///
    /// # Errors
    /// `Index` if there are no values; else as for [`Var::cat`].
    #[track_caller]
    pub fn dstack(inputs: Vec<Var>) -> Result<Var> {
        check_any("dstack", &inputs)?;
        let deep = |x: Var| {
            let x = as_rows(x)?;
            if x.shape().len() == 2 { x.unsqueeze(2) } else { Ok(x) }
        };
        Var::cat(inputs.into_iter().map(deep).collect::<Result<_>>()?, 2)
    }

    /// The columns of all values as one matrix; a vector is one column. `torch.column_stack`.
    ///
    /// # Errors
    /// `Index` if there are no values; else as for [`Var::cat`].
    #[track_caller]
    pub fn column_stack(inputs: Vec<Var>) -> Result<Var> {
        check_any("column_stack", &inputs)?;
        let columns = |x: Var| match x.shape()[..] {
            [] => x.reshape([1, 1]),
            [_] => x.unsqueeze(1),
            _ => Ok(x),
        };
        Var::cat(inputs.into_iter().map(columns).collect::<Result<_>>()?, 1)
    }

    /// One matrix with the given matrices along its diagonal and 0 elsewhere; `torch.block_diag`. A
    /// vector counts as a row.
    ///
    /// # Errors
    /// `Index` if there are no values, `Shape` for more than two dimensions, `DType`,
    /// `OutOfMemory`.
    #[track_caller]
    pub fn block_diag(inputs: Vec<Var>) -> Result<Var> {
        let op = "block_diag";
        check_any(op, &inputs)?;
        let blocks = inputs.into_iter().map(as_rows).collect::<Result<Vec<_>>>()?;
        if let Some(block) = blocks.iter().find(|block| block.shape().len() > 2) {
            return Err(mismatch(op, *block.shape(), Shape::new(&[1, 1])).into());
        }
        let width: usize = blocks.iter().map(|block| block.shape()[1]).sum();
        let mut before = 0;
        let wide = |block: Var| {
            let own = block.shape()[1];
            let around = [before, width - before - own];
            before += own;
            block.pad(&[[0, 0], around], PadMode::Constant(0.0))
        };
        Var::cat(blocks.into_iter().map(wide).collect::<Result<_>>()?, 0)
    }

    /// The coordinates of every point of the grid that the vectors span, as one view for each
    /// vector; `torch.meshgrid`. A number counts as a vector of one element.
    ///
    /// # Shapes
    /// `[N], [M], .. → [N, M, ..]` each; `[M, N, ..]` in [`GridOrder::Plane`].
    ///
    /// # Errors
    /// `Index` if there are no vectors, `Shape` for matrices and for more vectors than a tensor has
    /// dimensions.
    #[track_caller]
    pub fn meshgrid(inputs: Vec<Var>, order: GridOrder) -> Result<Vec<Var>> {
        let op = "meshgrid";
        check_any(op, &inputs)?;
        let unfit = |x: &Var| mismatch(op, *x.shape(), Shape::new(&[1]));
        if let Some(x) = inputs.iter().find(|x| x.shape().len() > 1) {
            return Err(unfit(x).into());
        }
        let lens: Vec<usize> = inputs.iter().map(|x| x.shape().element_count()).collect();
        let points = lens.iter().try_fold(1_usize, |points, &len| points.checked_mul(len));
        if inputs.len() > RANK_MAX || points.is_none() {
            return Err(unfit(&inputs[inputs.len() - 1]).into());
        }
        let swaps = order == GridOrder::Plane && lens.len() > 1;
        let point = |(index, x): (usize, Var)| {
            let mut shape = vec![1; lens.len()];
            shape[index] = lens[index];
            let x = x.reshape(&shape[..])?.expand(&lens[..])?;
            if swaps { x.transpose(0, 1) } else { Ok(x) }
        };
        inputs.into_iter().enumerate().map(point).collect()
    }

    /// The slices along `axis`, without that dimension; `torch.unbind`.
    ///
    /// # Errors
    /// `Index` for a dimension that does not exist.
    #[track_caller]
    pub fn unbind(self, axis: impl Into<Axis>) -> Result<Vec<Var>> {
        let axis = self.axis("unbind", axis)?;
        let len = self.shape()[axis];
        let slices = self.split_with_sizes(axis, &vec![1; len])?;
        slices.into_iter().map(|slice| slice.squeeze(axis)).collect()
    }

    /// Moves each dimension in `from` to the place in `to`. The other dimensions keep their order;
    /// `torch.movedim` with several dimensions.
    ///
    /// # Errors
    /// `Index` for a dimension that does not exist. `Shape` for a dimension that is named twice,
    /// and for lists of different lengths.
    #[track_caller]
    pub fn movedims(
        self,
        from: &[impl Into<Axis> + Copy],
        to: &[impl Into<Axis> + Copy],
    ) -> Result<Var> {
        let op = "movedims";
        let (from, to) = (self.axes(op, from)?, self.axes(op, to)?);
        let is_twice = |axes: &[usize]| (1..axes.len()).any(|at| axes[..at].contains(&axes[at]));
        if from.len() != to.len() || is_twice(&from) || is_twice(&to) {
            let named = |axes: &[usize]| Shape::new(&axes[..axes.len().min(RANK_MAX)]);
            return Err(mismatch(op, named(&from), named(&to)).into());
        }
        let mut others = (0..self.shape().len()).filter(|axis| !from.contains(axis));
        let source = |place: usize| match to.iter().position(|&to| to == place) {
            Some(index) => from[index],
            None => others.next().unwrap_or(place),
        };
        let order: Vec<usize> = (0..self.shape().len()).map(source).collect();
        self.permute(&order)
    }

    /// [`Var::pad`] with negative amounts, which remove positions. Positions are removed before
    /// padding. In the modes that reflect or replicate, the whole input is padded first. Both
    /// orders are PyTorch's.
    ///
    /// # Errors
    /// `Shape` if `amounts` names more dimensions than there are, or removes more positions than
    /// there are; else as for [`Var::pad`].
    #[track_caller]
    pub fn pad_or_crop(self, amounts: &[[isize; 2]], mode: PadMode) -> Result<Var> {
        let more = |amount: isize| amount.max(0).unsigned_abs();
        let padding: Vec<[usize; 2]> = amounts.iter().map(|pair| pair.map(more)).collect();
        let is_padded = padding.iter().flatten().any(|&amount| amount > 0);
        match mode {
            _ if !is_padded => self.cropped(amounts),
            PadMode::Reflect | PadMode::Replicate => self.pad(&padding, mode)?.cropped(amounts),
            PadMode::Constant(_) | PadMode::Circular => self.cropped(amounts)?.pad(&padding, mode),
        }
    }

    /// Crops the last dimensions by the negative amounts. Positive amounts are ignored.
    #[track_caller]
    fn cropped(self, amounts: &[[isize; 2]]) -> Result<Var> {
        let (left, rank) = (*self.shape(), self.shape().len());
        let unfit = || mismatch("pad_or_crop", left, Shape::new(&[amounts.len()]));
        let first = rank.checked_sub(amounts.len()).ok_or_else(unfit)?;
        let mut x = self;
        for (axis, amounts) in (first..).zip(amounts) {
            let [before, after] = amounts.map(|amount| amount.min(0).unsigned_abs());
            let len = left[axis].checked_sub(before).and_then(|len| len.checked_sub(after));
            if before + after > 0 {
                x = x.narrow(axis, before, len.ok_or_else(unfit)?)?;
            }
        }
        Ok(x)
    }

    /// The Kronecker product: each element of `self` times the whole of `other`; `torch.kron`. The
    /// operand with fewer dimensions gets dimensions of length 1 in front.
    ///
    /// # Shapes
    /// `[A, B, ..]`, `[C, D, ..] → [A C, B D, ..]`, up to four dimensions.
    ///
    /// # Errors
    /// `Shape` for more than four dimensions, `DType`, `OutOfMemory`.
    #[track_caller]
    pub fn kron(self, other: Var) -> Result<Var> {
        let (left, right) = (*self.shape(), *other.shape());
        let rank = left.len().max(right.len());
        if 2 * rank > RANK_MAX {
            return Err(mismatch("kron", left, right).into());
        }
        let dims = |shape: Shape| [&vec![1; rank - shape.len()][..], &shape[..]].concat();
        let (a, b) = (dims(left), dims(right));
        let spread: Vec<usize> = a.iter().flat_map(|&len| [len, 1]).collect();
        let between: Vec<usize> = b.iter().flat_map(|&len| [1, len]).collect();
        let products: Vec<usize> = a.iter().zip(&b).map(|(a, b)| a * b).collect();
        let y = self.reshape(&spread[..])?.mul(other.reshape(&between[..])?)?;
        y.reshape(&products[..])
    }

    /// The product of two tensors summed over pairs of dimensions: the first of `axes` with the
    /// first of `other_axes` and so on; `torch.tensordot`. A dimension of length 1 is stretched.
    ///
    /// # Shapes
    /// The remaining dimensions of `self`, then those of `other`.
    ///
    /// # Errors
    /// `Index` for a dimension that does not exist. `Shape` for a dimension that is named twice,
    /// for sizes that differ, and for too many dimensions. `DType`, `OutOfMemory`.
    #[track_caller]
    pub fn tensordot(
        self,
        other: Var,
        axes: &[impl Into<Axis> + Copy],
        other_axes: &[impl Into<Axis> + Copy],
    ) -> Result<Var> {
        let op = "tensordot";
        let (axes, other_axes) = (self.axes(op, axes)?, other.axes(op, other_axes)?);
        let (mut a, mut b) = (self, other);
        for (&axis, &other) in axes.iter().zip(&other_axes) {
            match (a.shape()[axis], b.shape()[other]) {
                (len, other_len) if len == other_len => {}
                (1, _) => b = b.sum_keep(&[other])?,
                (_, 1) => a = a.sum_keep(&[axis])?,
                _ => {}
            }
        }
        let (left, right) = (*a.shape(), *b.shape());
        let rest = |shape: Shape, axes: &[usize]| -> Vec<usize> {
            (0..shape.len()).filter(|axis| !axes.contains(axis)).collect()
        };
        let (own, others) = (rest(left, &axes), rest(right, &other_axes));
        let is_each_once =
            own.len() + axes.len() == left.len() && others.len() + other_axes.len() == right.len();
        let mut pairs = axes.iter().zip(&other_axes);
        let do_fit = axes.len() == other_axes.len() && pairs.all(|(&a, &b)| left[a] == right[b]);
        if !is_each_once || !do_fit || own.len() + others.len() > RANK_MAX {
            return Err(mismatch(op, left, right).into());
        }
        let lens = |shape: Shape, axes: &[usize]| -> Vec<usize> {
            axes.iter().map(|&axis| shape[axis]).collect()
        };
        let inner: usize = lens(left, &axes).iter().product();
        let (rows, columns) = (lens(left, &own), lens(right, &others));
        let a = a.permute(&[own, axes].concat())?;
        let a = a.reshape([rows.iter().product(), inner])?;
        let b = b.permute(&[other_axes, others].concat())?;
        let b = b.reshape([inner, columns.iter().product()])?;
        a.matmul(b)?.reshape(&[rows, columns].concat()[..])
    }

    /// The product of a chain of matrices in the order with the fewest multiplications;
    /// `torch.linalg.multi_dot`. The first operand may be a vector, which counts as a row. The last
    /// operand may be a vector, which counts as a column.
    ///
    /// # Shapes
    /// `[A, B], [B, C], .., [Y, Z] → [A, Z]`
    ///
    /// # Errors
    /// `Index` for fewer than two operands, `Shape`, `DType`, `OutOfMemory`.
    #[track_caller]
    pub fn multi_dot(inputs: Vec<Var>) -> Result<Var> {
        let op = "multi_dot";
        if inputs.len() < 2 {
            return Err(TensorError::Index { op, index: 1, len: inputs.len() }.into());
        }
        let last = inputs.len() - 1;
        let is_vector = [0, last].map(|at| inputs[at].shape().len() == 1);
        let mut matrices = Vec::with_capacity(inputs.len());
        for (at, x) in inputs.into_iter().enumerate() {
            let x = if at == 0 && is_vector[0] {
                x.unsqueeze(0)?
            } else if at == last && is_vector[1] {
                x.unsqueeze(1)?
            } else {
                x
            };
            if x.shape().len() != 2 {
                return Err(mismatch(op, *x.shape(), Shape::new(&[1, 1])).into());
            }
            matrices.push(x);
        }
        if let Some([a, b]) = matrices.array_windows().find(|[a, b]| a.shape()[1] != b.shape()[0]) {
            return Err(mismatch(op, *a.shape(), *b.shape()).into());
        }
        let rows = matrices.iter().map(|x| x.shape()[0]);
        let sizes: Vec<usize> = rows.chain([matrices[last].shape()[1]]).collect();
        let y = chain_product(&matrices, &chain_order(&sizes), [0, last])?;
        let y = if is_vector[1] { y.squeeze(1)? } else { y };
        if is_vector[0] { y.squeeze(0) } else { Ok(y) }
    }
}
