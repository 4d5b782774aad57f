//! Elements at places that several indices name together: index, index_put, take, put.

use super::Arrival;
use super::places_cpu::{self as cpu, Group, Places};
use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::cpu::arithmetic::Arithmetic;
use crate::dtype::{DType, Element, for_each_dtype};
use crate::error::{Result, TensorError};
use crate::launch::{FullKernel, Operands};
use crate::layout::{Layout, Nest, RANK_MAX, Shape};
use crate::spec::DeviceKind;
use crate::tensor::Tensor;

/// The dimensions that an index counts through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Naming {
    /// The first dimensions, one for each index.
    Leading(usize),
    /// All dimensions, in row-major order, by a single index.
    Whole,
}

impl Naming {
    pub(super) fn index_count(self) -> usize {
        match self {
            Naming::Leading(count) => count,
            Naming::Whole => 1,
        }
    }

    /// Number of the dimensions, of `rank`, that indices name.
    pub(super) fn named_rank(self, rank: usize) -> usize {
        match self {
            Naming::Leading(count) => count,
            Naming::Whole => rank,
        }
    }

    /// The dimensions that each index counts through.
    fn groups(self, layout: &Layout) -> Vec<Group> {
        let axis = |axis: usize| Group::new(layout, axis..axis + 1);
        match self {
            Naming::Leading(count) => (0..count).map(axis).collect(),
            Naming::Whole => vec![Group::new(layout, 0..layout.shape().len())],
        }
    }
}

/// The elements that move: the common shape of the indices, and the shape of the elements at each
/// place.
#[derive(Clone, Copy)]
pub(super) struct Moves {
    pub(super) naming: Naming,
    pub(super) named: Shape,
    pub(super) row: Shape,
}

impl Moves {
    pub(super) fn len(&self) -> usize {
        self.named.element_count() * self.row.element_count()
    }

    /// The named places, after a check that all indices are in range. The source's strides are over
    /// the indices' shape.
    fn places<'a>(
        &self,
        op: &'static str,
        (cpu, operands): (&Cpu, &Operands<'a>),
        layout: &Layout,
        source_strides: &[usize],
    ) -> Result<Places<'a>> {
        let groups = self.naming.groups(layout);
        let views: Vec<_> = (0..groups.len()).map(|k| operands.read::<i64>(k)).collect();
        for (view, group) in views.iter().zip(&groups) {
            super::cpu::check(cpu, op, *view, group.len())?;
        }
        let mut strides = [&[0; RANK_MAX][..self.named.len()]; RANK_MAX + 1];
        strides[RANK_MAX] = source_strides;
        for (strides, view) in strides.iter_mut().zip(&views) {
            *strides = view.layout().strides();
        }
        let nest = Nest::new(&self.named, strides);
        let indices = views.iter().map(|view| view.data()).zip(groups).collect();
        Ok(Places { indices, nest })
    }
}

/// Copies the elements at the places.
pub(super) struct Take {
    pub(super) name: &'static str,
    pub(super) dtype: DType,
    pub(super) moves: Moves,
}

impl FullKernel for Take {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cost(&self) -> Cost {
        let moved = 2 * self.moves.len() * self.dtype.size_bytes();
        let read = 8 * self.moves.naming.index_count() * self.moves.named.element_count();
        Cost { class: OpClass::Indexing, flops: 0.0, bytes: (moved + read) as f64 }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        let Moves { naming, named, row } = self.moves;
        for_each_dtype!(self.dtype, T => {
            let x = operands.read::<T>(naming.index_count());
            let (layout, none) = (*x.layout(), [0; RANK_MAX]);
            let none = &none[..named.len()];
            let places = self.moves.places(self.name, (cpu, operands), &layout, none)?;
            let rest = &layout.strides()[naming.named_rank(layout.shape().len())..];
            let rest = Nest::new(&row, [rest]);
            let y = operands.write::<T>(0).slice();
            cpu::take(cpu, &places, (&rest, row.element_count()), x.data(), y);
        });
        Ok(())
    }
}

/// Sends the elements of a source to the places.
pub(super) struct Put {
    pub(super) name: &'static str,
    pub(super) arrival: Arrival,
    /// Types of the source and of the destination.
    pub(super) dtypes: [DType; 2],
    pub(super) moves: Moves,
}

impl FullKernel for Put {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cost(&self) -> Cost {
        let [from, to] = self.dtypes.map(DType::size_bytes);
        let (touches, flops) = if self.arrival == Arrival::Add { (2, 1) } else { (1, 0) };
        let len = self.moves.len();
        let read = 8 * self.moves.naming.index_count() * self.moves.named.element_count();
        let bytes = (len * (from + touches * to) + read) as f64;
        Cost { class: OpClass::Indexing, flops: (flops * len) as f64, bytes }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        match (self.arrival, self.dtypes) {
            (Arrival::Replace, [dtype, _]) => for_each_dtype!(dtype, T => {
                self.run::<T, T>(cpu, operands, |to, x| *to = x, <[T]>::copy_from_slice)
            }),
            (Arrival::Add, [DType::F16, DType::F32]) => self.add::<half::f16, f32>(cpu, operands),
            (Arrival::Add, [DType::BF16, DType::F32]) => self.add::<half::bf16, f32>(cpu, operands),
            (Arrival::Add, [DType::Bool, _]) => unreachable!("checked to be a number"),
            (Arrival::Add, [dtype, _]) => {
                for_each_dtype!(dtype, T => self.add::<T, T>(cpu, operands))
            }
        }
    }
}

impl Put {
    fn add<S: Element, D: Element<Compute: Arithmetic>>(
        &self,
        cpu: &Cpu,
        operands: &mut Operands<'_>,
    ) -> Result<()> {
        self.run::<S, D>(cpu, operands, super::cpu::add, super::cpu::add_row)
    }

    fn run<S: Element, D: Element>(
        &self,
        cpu: &Cpu,
        operands: &mut Operands<'_>,
        combine: impl Fn(&mut D, S) + Sync,
        combine_row: impl Fn(&mut [D], &[S]) + Sync,
    ) -> Result<()> {
        let Moves { naming, named, row } = self.moves;
        let source = operands.read::<S>(naming.index_count());
        let to = operands.write::<D>(0);
        let layout = *to.layout();
        let (of_places, of_row) = source.layout().strides().split_at(named.len());
        let places = self.moves.places(self.name, (cpu, operands), &layout, of_places)?;
        let rest = &layout.strides()[naming.named_rank(layout.shape().len())..];
        let rest = (&Nest::new(&row, [rest, of_row]), row.element_count());
        let count = named.element_count();
        let combine = (combine, combine_row);
        cpu::put(cpu, (&places, count), rest, source.data(), to.into_data(), combine);
        Ok(())
    }
}

impl Moves {
    /// Workspace in which an NVIDIA device stores the named places, `each` words for each place.
    /// `None` on other devices.
    #[track_caller]
    fn words(&self, of: &Tensor, each: usize) -> Result<Option<Tensor>> {
        if of.device().kind() == DeviceKind::Cpu {
            return Ok(None);
        }
        let len = each * self.named.element_count();
        Tensor::workspace(of.device(), len, DType::I64).map(Some)
    }

    /// The shape of all elements that move.
    fn whole(&self, op: &'static str) -> Result<Shape> {
        let Moves { named: left, row: right, .. } = *self;
        let dims = [&left[..], &right[..]].concat();
        Shape::checked(&dims).ok_or(TensorError::Shape { op, left, right })
    }
}

/// Indices broadcast to their common shape, and the elements that move.
struct Named(Vec<Tensor>, Moves);

/// Places named by indices of type i64, which count from 0 and never from the end.
impl Tensor {
    fn named(&self, op: &'static str, indices: &[&Tensor]) -> Result<Named> {
        let rank = self.shape().len();
        if indices.is_empty() || indices.len() > rank {
            return Err(TensorError::index(op, indices.len(), rank + 1));
        }
        let mut named = Shape::new(&[]);
        for index in indices {
            index.check_indices(op, None)?;
            let (left, right) = (named, *index.shape());
            named = left.broadcast(&right).ok_or(TensorError::Shape { op, left, right })?;
        }
        let row = Shape::new(&self.shape()[indices.len()..]);
        let naming = Naming::Leading(indices.len());
        let indices = indices.iter().map(|index| index.expand(named)).collect::<Result<_>>()?;
        Ok(Named(indices, Moves { naming, named, row }))
    }

    /// [`Tensor::named`] with one index over all elements.
    fn named_whole(&self, op: &'static str, index: &Tensor) -> Result<Named> {
        index.check_indices(op, None)?;
        let (naming, named, row) = (Naming::Whole, *index.shape(), Shape::new(&[]));
        Ok(Named(vec![index.clone()], Moves { naming, named, row }))
    }

    #[track_caller]
    fn take_from(&self, op: &'static str, Named(indices, moves): &Named) -> Result<Tensor> {
        let y = Tensor::empty(self.device(), moves.whole(op)?, self.dtype())?;
        let kernel = Take { name: op, dtype: self.dtype(), moves: *moves };
        let reads: Vec<&Tensor> = indices.iter().chain([self]).collect();
        let words = moves.words(&y, 1)?;
        let writes: Vec<&Tensor> = [&y].into_iter().chain(&words).collect();
        self.device().launch(kernel, &reads, &writes)?;
        Ok(y)
    }

    /// The launch of a kernel that writes to named places of this tensor.
    #[track_caller]
    fn put_into(
        &self,
        op: &'static str,
        arrival: Arrival,
        Named(indices, moves): &Named,
        source: &Tensor,
    ) -> Result<()> {
        let dtypes = [source.dtype(), self.dtype()];
        let kernel = Put { name: op, arrival, dtypes, moves: *moves };
        let reads: Vec<&Tensor> = indices.iter().chain([source]).collect();
        let pairs = moves.words(self, 2)?;
        let writes: Vec<&Tensor> = [self].into_iter().chain(&pairs).collect();
        self.device().launch(kernel, &reads, &writes)
    }

    /// [`Tensor::put_into`] for a copy; half types are summed in f32.
    #[track_caller]
    fn put_into_copy(
        &self,
        op: &'static str,
        arrival: Arrival,
        named: &Named,
        source: &Tensor,
    ) -> Result<Tensor> {
        let y = if arrival == Arrival::Add { self.wide_copy()? } else { self.copied()? };
        y.put_into(op, arrival, named, source)?;
        y.to_dtype(self.dtype())
    }

    /// The values for the named places, broadcast to all elements that move.
    fn check_values_for(
        &self,
        op: &'static str,
        arrival: Arrival,
        Named(_, moves): &Named,
        values: &Tensor,
    ) -> Result<Tensor> {
        self.check_dtype(op, values)?;
        if arrival == Arrival::Add && self.dtype() == DType::Bool {
            return Err(TensorError::DType { op, left: DType::Bool, right: DType::U8 });
        }
        let (left, right) = (moves.whole(op)?, *values.shape());
        if left.broadcast(&right) != Some(left) {
            return Err(TensorError::Shape { op, left, right });
        }
        values.expand(left)
    }

    /// `y[b, ..] = x[indices[0][b], indices[1][b], .., ..]`: PyTorch's `x[i, j]`. The indices are
    /// broadcast to one shape; each names one of the first dimensions. To name other dimensions,
    /// [`Tensor::movedim`] them to the front first. For a mask over the first dimensions, the
    /// indices are the columns of [`Tensor::nonzero`].
    ///
    /// # Shapes
    /// `x: [N, M, C]`, indices `[B]` and `[B]` → `[B, C]`.
    ///
    /// # Errors
    /// `Index` for an index out of range, for no indices, or for more indices than dimensions;
    /// `Shape`, `DType` unless indices are i64, `Device`, `OutOfMemory`.
    #[track_caller]
    pub fn index(&self, indices: &[&Tensor]) -> Result<Tensor> {
        let op = "index";
        self.take_from(op, &self.named(op, indices)?)
    }

    /// `x[indices[0][b], indices[1][b], .., ..] = values[b, ..]`, or `+=` for [`Arrival::Add`]: the
    /// inverse of [`Tensor::index`]. Values arrive in the row-major order of the indices; if
    /// indices repeat, the last value wins. Sums are of numbers. In half types each sum is rounded;
    /// [`Tensor::index_put`] sums in f32.
    ///
    /// # Shapes
    /// `values` broadcasts to the result of [`Tensor::index`].
    ///
    /// # Errors
    /// `Index` for an index out of range, for no indices, or for more indices than dimensions;
    /// `Shape`, `DType` unless indices are i64 and the others have one type, and for sums of truth
    /// values; `Device`, `Frozen`, `Overlap`.
    #[track_caller]
    pub fn index_put_(
        &mut self,
        indices: &[&Tensor],
        values: &Tensor,
        arrival: Arrival,
    ) -> Result<()> {
        let op = "index_put";
        let named = self.named(op, indices)?;
        let values = self.check_values_for(op, arrival, &named, values)?;
        self.put_into(op, arrival, &named, &values)
    }

    /// [`Tensor::index_put_`] into a copy of this tensor; half types are summed in f32.
    ///
    /// # Errors
    /// As [`Tensor::index_put_`], and `OutOfMemory`.
    #[track_caller]
    pub fn index_put(
        &self,
        indices: &[&Tensor],
        values: &Tensor,
        arrival: Arrival,
    ) -> Result<Tensor> {
        let op = "index_put";
        let named = self.named(op, indices)?;
        let values = self.check_values_for(op, arrival, &named, values)?;
        self.put_into_copy(op, arrival, &named, &values)
    }

    /// The elements at the given positions of all elements in row-major order, for any strides.
    ///
    /// # Shapes
    /// `x: [..]`, `index: [B]` → `[B]`.
    ///
    /// # Errors
    /// `Index` for an index out of range, `DType` unless indices are i64, `Device`, `OutOfMemory`.
    #[track_caller]
    pub fn take(&self, index: &Tensor) -> Result<Tensor> {
        let op = "take";
        self.take_from(op, &self.named_whole(op, index)?)
    }

    /// Writes the elements of `source` to the given positions of all elements in row-major order,
    /// or adds them; order and sums as [`Tensor::index_put_`].
    ///
    /// # Shapes
    /// `source` has the index's shape.
    ///
    /// # Errors
    /// `Index` for an index out of range, `Shape`, `DType` unless indices are i64 and the others
    /// have one type, and for sums of truth values; `Device`, `Frozen`, `Overlap`.
    #[track_caller]
    pub fn put_(&mut self, index: &Tensor, source: &Tensor, arrival: Arrival) -> Result<()> {
        let op = "put";
        let named = self.named_whole(op, index)?;
        source.check_shape(op, *index.shape())?;
        let source = self.check_values_for(op, arrival, &named, source)?;
        self.put_into(op, arrival, &named, &source)
    }

    /// [`Tensor::put_`] into a copy of this tensor; half types are summed in f32.
    ///
    /// # Errors
    /// As [`Tensor::put_`], and `OutOfMemory`.
    #[track_caller]
    pub fn put(&self, index: &Tensor, source: &Tensor, arrival: Arrival) -> Result<Tensor> {
        let op = "put";
        let named = self.named_whole(op, index)?;
        source.check_shape(op, *index.shape())?;
        let source = self.check_values_for(op, arrival, &named, source)?;
        self.put_into_copy(op, arrival, &named, &source)
    }
}
