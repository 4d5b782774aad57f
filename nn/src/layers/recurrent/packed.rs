//! Sequences of several lengths without their padding, `torch.nn.utils.rnn`.
//!
//! `N` is the number of elements of all sequences together. Sequences are sorted from the longest
//! to the shortest. The data holds the elements of all sequences at position 0, then the elements
//! at position 1, and so on.

use lowtide_autograd::{Pass, Var};
use lowtide_tensor::{Shape, Tensor, TensorError};

use super::stack::{Cell, Direction, Stack};
use crate::checks::check_option;
use crate::error::Result;

/// A batch of sequences of several lengths without padding, so that layers do not compute padding.
/// [`PackedSequence::pack`] and [`PackedSequence::padded`] are `pack_padded_sequence` and
/// `pad_packed_sequence`.
#[derive(Clone)]
pub struct PackedSequence {
    data: Var,
    /// Length of each sequence, in the order of the batch.
    lengths: Vec<usize>,
    /// The order from the longest sequence to the shortest; `None` if the batch has this order.
    order: Option<Order>,
}

/// A permutation of the sequences of a batch.
#[derive(Clone)]
struct Order {
    /// The index in the batch of each sorted sequence.
    sorted: Vec<usize>,
    /// The sorted place of each sequence of the batch.
    places: Vec<usize>,
}

/// Consecutive positions with the same number of sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    /// Number of positions in the run.
    len: usize,
    /// Number of sequences with an element at these positions: the longest sequences.
    batch: usize,
}

/// The order from the longest sequence to the shortest; sequences of equal length stay in the order
/// of the batch. `None` if the batch has this order already.
fn order_of(lengths: &[usize]) -> Option<Order> {
    if lengths.is_sorted_by(|a, b| a >= b) {
        return None;
    }
    let mut sorted: Vec<usize> = (0..lengths.len()).collect();
    sorted.sort_by_key(|&index| std::cmp::Reverse(lengths[index]));
    let mut places = vec![0; lengths.len()];
    sorted.iter().enumerate().for_each(|(place, &index)| places[index] = place);
    Some(Order { sorted, places })
}

impl PackedSequence {
    /// Packs the first `lengths[b]` elements of each sequence b. Lengths need not be sorted
    /// (`enforce_sorted=False`).
    ///
    /// # Shapes
    /// `input: [B, T, ..]`; the data is `[N, ..]`
    ///
    /// # Errors
    /// `Option` for a length of 0 or above T, `Shape` unless there is one length for each sequence;
    /// `OutOfMemory`.
    #[track_caller]
    pub fn pack(input: Var, lengths: &[usize]) -> Result<Self> {
        let left = *input.shape();
        if left.len() < 2 || left[0] != lengths.len() || lengths.is_empty() {
            let right = Shape::new(&[lengths.len(), 1]);
            return Err(TensorError::Shape { op: "pack", left, right }.into());
        }
        for &length in lengths {
            let range = "[1, the positions]";
            check_option("length", length as f64, range, |_| (1..=left[1]).contains(&length))?;
        }
        let order = order_of(lengths);
        let mut packed = PackedSequence { data: input, lengths: lengths.to_vec(), order };
        let rows = packed.rows(left[1])?;
        let mut flat = left.to_vec();
        flat.splice(..2, [left[0] * left[1]]);
        packed.data = packed.data.reshape(&flat[..])?.index_select(0, &rows)?;
        Ok(packed)
    }

    /// The sequences as one tensor, padded with `padding` to `len` positions, or to the longest
    /// sequence if `len` is absent.
    ///
    /// # Shapes
    /// The data `[N, ..] → [B, T, ..]`
    ///
    /// # Errors
    /// `Option` if `len` is less than the longest sequence; `OutOfMemory`.
    #[track_caller]
    pub fn padded(&self, pass: &Pass, padding: f64, len: Option<usize>) -> Result<Var> {
        let longest = self.longest();
        let len = len.unwrap_or(longest);
        let range = "[the longest length, ∞)";
        check_option("len", len as f64, range, |_| len >= longest)?;
        let (value, rows) = (self.data.value(), self.rows(len)?);
        let mut flat = value.shape().to_vec();
        flat[0] = self.lengths.len() * len;
        let mut all = Tensor::empty(value.device(), &flat[..], value.dtype())?;
        all.fill_(padding)?;
        let all = pass.constant(all).index_copy(0, &rows, self.data.clone())?;
        let mut shape = self.data.shape().to_vec();
        shape.splice(..1, [self.lengths.len(), len]);
        Ok(all.reshape(&shape[..])?)
    }

    /// The elements, position by position and from the longest sequence to the shortest, `[N, ..]`.
    pub fn data(&self) -> &Var {
        &self.data
    }

    /// The length of each sequence, in the order of the batch.
    pub fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    /// These sequences with other elements, for example after an embedding.
    ///
    /// # Errors
    /// `Shape` unless `data` is `[N, ..]`.
    pub fn with_data(&self, data: Var) -> Result<Self> {
        let (left, right) = (*data.shape(), *self.data.shape());
        if left.first() != right.first() {
            return Err(TensorError::Shape { op: "with_data", left, right }.into());
        }
        Ok(PackedSequence { data, lengths: self.lengths.clone(), order: self.order.clone() })
    }

    fn longest(&self) -> usize {
        self.lengths.iter().copied().max().unwrap_or(0)
    }

    /// The index in the batch of the sequence at sorted place `place`.
    fn sequence(&self, place: usize) -> usize {
        self.order.as_ref().map_or(place, |order| order.sorted[place])
    }

    /// The row of each element in the unpacked batch, if each sequence has `len` rows.
    fn rows(&self, len: usize) -> Result<Tensor> {
        let mut rows = Vec::with_capacity(self.lengths.iter().sum());
        for position in 0..self.longest() {
            let present = (0..self.lengths.len()).map(|place| self.sequence(place));
            let present = present.take_while(|&index| position < self.lengths[index]);
            rows.extend(present.map(|index| (index * len + position) as i64));
        }
        Ok(Tensor::from_slice(self.data.value().device(), [rows.len()], &rows)?)
    }

    /// The runs of positions, from the first to the last.
    fn runs(&self) -> Vec<Run> {
        let mut runs = Vec::new();
        let mut start = 0;
        for batch in (1..=self.lengths.len()).rev() {
            let end = self.lengths[self.sequence(batch - 1)];
            if end > start {
                runs.push(Run { len: end - start, batch });
                start = end;
            }
        }
        runs
    }

    /// Sorts `states: [L · S, B, H]` from the order of the batch to the order from the longest
    /// sequence to the shortest.
    pub(super) fn sorted(&self, op: &'static str, states: Var) -> Result<Var> {
        let (left, batch) = (*states.shape(), self.lengths.len());
        if left.len() != 3 || left[1] != batch {
            let right = Shape::new(&[1, batch, 1]);
            return Err(TensorError::Shape { op, left, right }.into());
        }
        self.reordered(states, |order| &order.sorted)
    }

    /// The inverse of [`PackedSequence::sorted`].
    pub(super) fn restored(&self, states: Var) -> Result<Var> {
        self.reordered(states, |order| &order.places)
    }

    fn reordered(&self, states: Var, of: impl Fn(&Order) -> &[usize]) -> Result<Var> {
        let Some(order) = &self.order else { return Ok(states) };
        let index: Vec<i64> = of(order).iter().map(|&place| place as i64).collect();
        let index = Tensor::from_slice(states.value().device(), [index.len()], &index)?;
        Ok(states.index_select(1, &index)?)
    }
}

impl Stack {
    /// Runs all layers on packed sequences. `walk` gets the index of a cell, the cell, its
    /// direction and `[N, I]`, and returns `[N, H]`.
    pub(super) fn forward_packed(
        &self,
        op: &'static str,
        pass: &Pass,
        input: &PackedSequence,
        walk: impl FnMut(usize, &Cell, Direction, Var) -> Result<Var>,
    ) -> Result<PackedSequence> {
        let left = *input.data.shape();
        if left.len() != 2 {
            let right = Shape::new(&[1, self.options.inputs]);
            return Err(TensorError::Shape { op, left, right }.into());
        }
        if self.has_dropout() && pass.is_training() {
            // Consecutive rows belong to different samples, so dropout cannot number its elements
            // by sample.
            pass.couple_samples();
        }
        input.with_data(self.layers(pass, input.data.clone(), walk)?)
    }
}

/// [`Cell::projected`] of `data: [N, I]`, as one part `[B, T, G · H]` for each run. Each part has
/// its own storage, so that a walk can reuse it in place.
pub(super) fn projected_runs(
    pass: &Pass,
    cell: &Cell,
    packed: &PackedSequence,
    data: Var,
) -> Result<Vec<Var>> {
    let runs = packed.runs();
    let counts: Vec<usize> = runs.iter().map(|run| run.len * run.batch).collect();
    let parts = data.split_with_sizes(0, &counts)?.into_iter().zip(runs);
    let project = |(rows, Run { len, batch }): (Var, Run)| {
        let x = cell.projected(pass, rows)?;
        let gates = x.shape()[1];
        Ok(x.reshape([len, batch, gates])?.transpose(0, 1)?)
    };
    parts.map(project).collect()
}

/// Runs a cell along packed sequences, from the states `start`, each `[B, H]`, sorted from the
/// longest sequence to the shortest. Returns the outputs `[N, H]` and the last states.
///
/// `walk` gets one part of `projected` and the states before the part. Returns the outputs of the
/// part, `[B, T, H]`, and the states after the part.
pub(super) fn walk_packed<const N: usize>(
    packed: &PackedSequence,
    direction: Direction,
    projected: Vec<Var>,
    start: [Var; N],
    mut walk: impl FnMut(Var, [Var; N]) -> Result<(Var, [Var; N])>,
) -> Result<(Var, [Var; N])> {
    let runs = packed.runs();
    let mut parts: Vec<Option<Var>> = projected.into_iter().map(Some).collect();
    let mut outputs: Vec<Option<Var>> = vec![None; runs.len()];
    // The number of sequences that end with a run.
    let ending = |index: usize| runs[index].batch - runs.get(index + 1).map_or(0, |run| run.batch);
    let mut one = |index: usize, state: [Var; N]| -> Result<[Var; N]> {
        let Run { len, batch } = runs[index];
        let x = parts[index].take().expect("each run is met once");
        let (y, state) = walk(x, state)?;
        let width = y.shape()[2];
        outputs[index] = Some(y.transpose(0, 1)?.reshape([len * batch, width])?);
        Ok(state)
    };
    let ends = match direction {
        Direction::Forward => {
            let mut state = start;
            let mut ended: [Vec<Var>; N] = std::array::from_fn(|_| Vec::new());
            for (index, run) in runs.iter().enumerate() {
                state = one(index, state)?;
                let sizes = [run.batch - ending(index), ending(index)];
                if sizes[0] == 0 {
                    break;
                }
                for (state, ended) in state.iter_mut().zip(&mut ended) {
                    let mut parts = state.clone().split_with_sizes(0, &sizes)?;
                    ended.extend(parts.pop());
                    *state = parts.swap_remove(0);
                }
            }
            for (state, ended) in state.into_iter().zip(&mut ended) {
                ended.push(state);
                ended.reverse();
            }
            ended.map(joined)
        }
        Direction::Backward => {
            // In the backward direction a sequence joins at its last element.
            let sizes: Vec<usize> = (0..runs.len()).rev().map(ending).collect();
            let joining = start.map(|start| start.split_with_sizes(0, &sizes));
            let mut state: [Option<Var>; N] = std::array::from_fn(|_| None);
            let mut parts: Vec<std::vec::IntoIter<Var>> = Vec::with_capacity(N);
            for joining in joining {
                parts.push(joining?.into_iter());
            }
            for index in (0..runs.len()).rev() {
                let before = std::array::from_fn(|at| {
                    let all = state[at].take().into_iter().chain(parts[at].next());
                    joined(all.collect())
                });
                state = one(index, all_of(before)?)?.map(Some);
            }
            state.map(|state| Ok(state.expect("there is a run")))
        }
    };
    let outputs = outputs.into_iter().flatten().collect();
    Ok((joined(outputs)?, all_of(ends)?))
}

/// Concatenates parts. A single part is not copied.
fn joined(parts: Vec<Var>) -> Result<Var> {
    Ok(match <[Var; 1]>::try_from(parts) {
        Ok([only]) => only,
        Err(parts) => Var::cat(parts, 0)?,
    })
}

/// The values of all results, or the first error.
fn all_of<const N: usize>(results: [Result<Var>; N]) -> Result<[Var; N]> {
    let values = results.into_iter().collect::<Result<Vec<Var>>>()?;
    Ok(<[Var; N]>::try_from(values).unwrap_or_else(|_| unreachable!("as many as results")))
}
