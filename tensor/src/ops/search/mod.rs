//! Places of values in sorted rows: searchsorted and bucketize; and membership of values: isin.

#[cfg(feature = "cuda")]
mod cuda;

use std::cmp::Ordering;

use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::cpu::chunk::for_each_chunk;
use crate::dtype::{DType, Element, for_each_dtype};
use crate::error::{Result, TensorError};
use crate::launch::{FullKernel, Operands};
use crate::layout::Nest;
use crate::ops::sort::SortOrder;
use crate::tensor::Tensor;

/// Values per chunk.
const CHUNK_LEN: usize = 1 << 12;

/// The place of a value among the elements of a sorted row that are equal to the value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Side {
    /// Before the equal elements.
    #[default]
    Left,
    /// After the equal elements.
    Right,
}

/// Finds the place of each value in a sorted row. All values share one row, or each row of values
/// has its own.
struct Search {
    name: &'static str,
    side: Side,
    dtype: DType,
    /// Elements of a sorted row.
    sorted_len: usize,
    /// Values that share a sorted row.
    row_len: usize,
    len: usize,
}

impl FullKernel for Search {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cost(&self) -> Cost {
        let steps = (self.sorted_len + 1).ilog2() as usize + 1;
        let bytes = (self.len * (self.dtype.size_bytes() + 8)) as f64;
        Cost { class: OpClass::Indexing, flops: (steps * self.len) as f64, bytes }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        let places = operands.write::<i64>(0).slice();
        for_each_dtype!(self.dtype, T => {
            let sorted = operands.read::<T>(0).slice();
            let values = operands.read::<T>(1);
            let nest = Nest::new(values.layout().shape(), [values.layout().strides()]);
            let [step] = nest.inner_strides();
            for_each_chunk(cpu.pool(), places, CHUNK_LEN, |chunk, places| {
                let mut number = chunk * CHUNK_LEN;
                let mut places = places.iter_mut();
                nest.rows(number, number + places.len(), |run| {
                    for i in 0..run.len {
                        let row = &sorted[number / self.row_len * self.sorted_len..];
                        let value = values.data()[run.starts[0] + i * step];
                        if let Some(place) = places.next() {
                            *place = self.place(&row[..self.sorted_len], value) as i64;
                        }
                        number += 1;
                    }
                });
            });
        });
        Ok(())
    }
}

impl Search {
    /// Number of elements that come before `value`. All elements come before NaN.
    fn place<T: Element>(&self, row: &[T], value: T) -> usize {
        row.partition_point(|x| match x.partial_cmp(&value) {
            Some(Ordering::Equal) => self.side == Side::Right,
            order => order != Some(Ordering::Greater),
        })
    }
}

impl Tensor {
    #[track_caller]
    fn search(
        op: &'static str,
        sorted: &Tensor,
        values: &Tensor,
        (side, row_len): (Side, usize),
    ) -> Result<Tensor> {
        sorted.check_dtype(op, values)?;
        let y = Tensor::empty(sorted.device(), *values.shape(), DType::I64)?;
        let (dtype, len) = (values.dtype(), values.element_count());
        let sorted_len = sorted.shape().last().copied().unwrap_or(1);
        let kernel = Search { name: op, side, dtype, sorted_len, row_len, len };
        sorted.device().launch(kernel, &[&sorted.contiguous()?, values], &[&y])?;
        Ok(y)
    }

    /// For each value, the position in this sorted tensor, along the last dimension, where
    /// inserting the value would keep the order; as i64. Any element type.
    ///
    /// # Shapes
    /// `[.., N]` and `[.., M]` → `[.., M]`; `[N]` and `[..]` → `[..]`.
    ///
    /// # Errors
    /// `Shape`, `DType` (both the same), `Device`, `OutOfMemory`.
    #[track_caller]
    pub fn searchsorted(&self, values: &Tensor, side: Side) -> Result<Tensor> {
        let op = "searchsorted";
        let (left, right) = (*self.shape(), *values.shape());
        let mismatch = TensorError::Shape { op, left, right };
        match (&left[..], &right[..]) {
            ([_], _) => Self::search(op, self, values, (side, usize::MAX)),
            ([rows @ .., _], [of_values @ .., len]) if rows == of_values => {
                Self::search(op, self, values, (side, (*len).max(1)))
            }
            _ => Err(mismatch),
        }
    }

    /// For each element of this tensor, the number of sorted `boundaries` that come before it; as
    /// i64. [`Tensor::searchsorted`] with the operands exchanged.
    ///
    /// # Shapes
    /// `[..]` and `[N]` → `[..]`.
    ///
    /// # Errors
    /// `Shape`, `DType` (both the same), `Device`, `OutOfMemory`.
    #[track_caller]
    pub fn bucketize(&self, boundaries: &Tensor, side: Side) -> Result<Tensor> {
        let op = "bucketize";
        if boundaries.shape().len() != 1 {
            let (left, right) = (*self.shape(), *boundaries.shape());
            return Err(TensorError::Shape { op, left, right });
        }
        Self::search(op, boundaries, self, (side, usize::MAX))
    }

    /// True for elements that are equal to an element of `others`; false for NaN. Any element type.
    ///
    /// # Shapes
    /// `[..]` and any → `[..]`.
    ///
    /// # Errors
    /// `DType` (both the same), `Device`, `OutOfMemory`.
    #[track_caller]
    pub fn isin(&self, others: &Tensor) -> Result<Tensor> {
        let op = "isin";
        self.check_dtype(op, others)?;
        let count = others.element_count();
        if count == 0 {
            return Tensor::zeros(self.device(), *self.shape(), DType::Bool);
        }
        let (sorted, _) = others.reshape([count])?.sort(0, SortOrder::Ascending)?;
        let mut places = Self::search(op, &sorted, self, (Side::Left, usize::MAX))?;
        places.minimum_scalar_((count - 1) as f64)?;
        sorted.take(&places)?.eq(self)
    }
}
