//! Batches of matrix products: arithmetic on element offsets.

use crate::layout::RANK_MAX;

/// The places of the matrices of several products of one size: element offsets of a, b and y.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch {
    dims: [usize; RANK_MAX],
    strides: [[usize; RANK_MAX]; 3],
    rank: usize,
}

impl Batch {
    /// One product.
    pub(crate) fn single() -> Self {
        Batch { dims: [1; RANK_MAX], strides: [[0; RANK_MAX]; 3], rank: 0 }
    }

    /// One product for each index of `dims`. `strides` are the strides of a, b and y along `dims`.
    pub(crate) fn new(dims: &[usize], strides: [&[usize]; 3]) -> Self {
        let mut batch = Batch { rank: dims.len(), ..Batch::single() };
        batch.dims[..dims.len()].copy_from_slice(dims);
        for (to, from) in batch.strides.iter_mut().zip(strides) {
            to[..dims.len()].copy_from_slice(from);
        }
        batch
    }

    /// The number of products.
    pub(crate) fn len(&self) -> usize {
        self.dims[..self.rank].iter().product()
    }

    /// The innermost dimension and its strides; `None` for a single product.
    pub(crate) fn last(&self) -> Option<(usize, [usize; 3])> {
        let last = self.rank.checked_sub(1)?;
        Some((self.dims[last], self.strides.map(|strides| strides[last])))
    }

    /// The batch without its innermost dimension.
    pub(crate) fn without_last(self) -> Self {
        Batch { rank: self.rank - 1, ..self }
    }

    /// True if the matrices of operand `k` start an even number of elements apart.
    pub(super) fn is_even(&self, k: usize) -> bool {
        self.strides[k][..self.rank].iter().all(|stride| stride.is_multiple_of(2))
    }

    /// The batch of the transposed products: a and b change places.
    pub(super) fn turned(mut self) -> Self {
        self.strides.swap(0, 1);
        self
    }

    /// The element offsets at which the matrices of product `index` start.
    pub(crate) fn offsets(&self, mut index: usize) -> [usize; 3] {
        let mut offsets = [0; 3];
        for axis in (0..self.rank).rev() {
            let at = index % self.dims[axis];
            index /= self.dims[axis];
            (0..3).for_each(|k| offsets[k] += at * self.strides[k][axis]);
        }
        offsets
    }

    /// One past the last element that operand `k` touches, with a matrix of these sizes and
    /// strides; `None` if a size is 0 or the number overflows.
    pub(super) fn span(&self, k: usize, sizes: [usize; 2], strides: [usize; 2]) -> Option<usize> {
        let batch = self.dims[..self.rank].iter().zip(&self.strides[k]);
        let mut span: usize = 1;
        for (&len, &stride) in batch.chain(sizes.iter().zip(&strides)) {
            span = span.checked_add(len.checked_sub(1)?.checked_mul(stride)?)?;
        }
        Some(span)
    }

    /// True if no two elements of y can share a place. The test is sufficient, not necessary; it is
    /// true for each view of a contiguous tensor.
    pub(super) fn is_injective(&self, sizes: [usize; 2], strides: [usize; 2]) -> bool {
        let mut axes = [(0, 1); RANK_MAX + 2];
        let batch = self.strides[2].iter().zip(&self.dims).take(self.rank);
        let all = batch.chain(strides.iter().zip(&sizes));
        axes.iter_mut().zip(all).for_each(|(to, (&stride, &len))| *to = (stride, len));
        axes.sort_unstable();
        let mut reach = 0;
        axes.iter().filter(|axis| axis.1 > 1).all(|&(stride, len)| {
            let is_apart = stride > reach;
            reach += (len - 1) * stride;
            is_apart
        })
    }
}
