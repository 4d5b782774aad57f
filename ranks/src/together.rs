//! The collectives of ranks that can read each other's tensors.
//!
//! A sum goes as in a ring, with as many bytes: each rank sums its part, then copies those of the
//! others. Unlike in a ring, a part is summed in the order of the tree, on the rank that it belongs
//! to. It is summed piece by piece: a rank needs copies of pieces of the others for it, at most one
//! more than the tree is deep.

use std::ops::Range;

use lowtide_allocator::Category;
use lowtide_tensor::{DType, Device, Tensor, TensorError};

use crate::collectives::{Collectives, Rank};
use crate::error::{Call, RanksError, Result};
use crate::meeting::{Meeting, Message, meet_in, settle};

/// What is summed or copied at once, at most.
const PIECE_BYTES: usize = 4 << 20;

impl<M: Meeting> Collectives for M {
    fn rank(&self) -> Rank {
        Meeting::rank(self)
    }

    fn exchange(&self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        let call = Call { op: "exchange", elements: None, root: None };
        let messages = meet_in(self, Message { bytes: own.into(), ..Message::of(call) })?;
        Ok(messages.iter().map(|message| message.bytes.to_vec()).collect())
    }

    fn all_reduce(&self, x: &mut Tensor) -> Result<()> {
        all_reduce(self, x)
    }

    fn reduce_scatter(&self, from: &Tensor, to: &mut Tensor) -> Result<()> {
        reduce_scatter(self, from, to)
    }

    fn all_gather(&self, from: &Tensor, to: &mut Tensor) -> Result<()> {
        all_gather(self, from, to)
    }

    fn broadcast(&self, x: &mut Tensor, root: usize) -> Result<()> {
        broadcast(self, x, root)
    }

    fn send(&self, x: &Tensor, to: usize) -> Result<()> {
        check_other(Meeting::rank(self), to)?;
        self.give(x, to)
    }

    fn receive(&self, x: &mut Tensor, from: usize) -> Result<()> {
        check_other(Meeting::rank(self), from)?;
        self.take(x, from)
    }

    fn abort(&self, reason: &str) {
        self.give_up(reason);
    }
}

/// # Errors
/// `NoSuchRank` unless it is another one.
fn check_other(Rank { index, count }: Rank, rank: usize) -> Result<()> {
    match rank < count && rank != index {
        true => Ok(()),
        false => Err(RanksError::NoSuchRank { rank, count }),
    }
}

fn all_reduce(ranks: &impl Meeting, x: &mut Tensor) -> Result<()> {
    let Rank { index, count } = ranks.rank();
    let len = x.element_count();
    let call = Call { op: "all_reduce", elements: Some((x.dtype(), len)), root: None };
    with_tensors(ranks, call, x.clone(), |all| {
        let own = part(len, index, count);
        sum_to(all, own.clone(), x, own.start)
    })?;
    // The others read what this rank has summed.
    with_tensors(ranks, call, x.clone(), |all| {
        for other in (0..count).filter(|&other| other != index) {
            let theirs = part(len, other, count);
            copy(&all[other], theirs.clone(), x, theirs.start)?;
        }
        Ok(())
    })
}

fn reduce_scatter(ranks: &impl Meeting, from: &Tensor, to: &mut Tensor) -> Result<()> {
    let Rank { index, count } = ranks.rank();
    let (len, own) = (from.element_count(), to.element_count());
    let call = Call { op: "reduce_scatter", elements: Some((from.dtype(), len)), root: None };
    with_tensors(ranks, call, from.clone(), |all| {
        check(call.op, from, to, len == own * count)?;
        sum_to(all, index * own..(index + 1) * own, to, 0)
    })
}

fn all_gather(ranks: &impl Meeting, from: &Tensor, to: &mut Tensor) -> Result<()> {
    let Rank { count, .. } = ranks.rank();
    let len = from.element_count();
    let call = Call { op: "all_gather", elements: Some((from.dtype(), len)), root: None };
    with_tensors(ranks, call, from.clone(), |all| {
        check(call.op, from, to, to.element_count() == len * count)?;
        let mut theirs = all.iter().enumerate();
        theirs.try_for_each(|(rank, theirs)| copy(theirs, 0..len, to, rank * len))
    })
}

fn broadcast(ranks: &impl Meeting, x: &mut Tensor, root: usize) -> Result<()> {
    let Rank { index, count } = ranks.rank();
    if root >= count {
        return Err(RanksError::NoSuchRank { rank: root, count });
    }
    let len = x.element_count();
    let call = Call { op: "broadcast", elements: Some((x.dtype(), len)), root: Some(root) };
    with_tensors(ranks, call, x.clone(), |all| match root == index {
        true => Ok(()),
        false => copy(&all[root], 0..len, x, 0),
    })
}

/// Does `work` with the tensors of all ranks, which stay as they are until all are done with it.
fn with_tensors(
    ranks: &impl Meeting,
    call: Call,
    own: Tensor,
    work: impl FnOnce(&[Tensor]) -> Result<()>,
) -> Result<()> {
    let messages = meet_in(ranks, Message { tensor: Some(own), ..Message::of(call) })?;
    let tensors = messages.iter().map(|message| message.tensor.clone().expect("one of each"));
    let tensors: Vec<Tensor> = tensors.collect();
    let own = work(&tensors);
    // Before the other ranks go on: a step that is rolled back has to find its memory free.
    drop((tensors, messages));
    settle(ranks, call, own)
}

/// The part of `len` elements that a rank sums.
fn part(len: usize, rank: usize, count: usize) -> Range<usize> {
    let end_of = |ranks: usize| (len as u128 * ranks as u128 / count as u128) as usize;
    end_of(rank)..end_of(rank + 1)
}

fn flat(x: &Tensor) -> Result<Tensor> {
    Ok(x.view([x.element_count()])?)
}

/// A range of elements of x in row-major order.
fn slice(x: &Tensor, range: Range<usize>) -> Result<Tensor> {
    Ok(flat(x)?.narrow(0, range.start, range.len())?)
}

/// A range of elements of a type in pieces.
fn pieces(range: Range<usize>, dtype: DType) -> impl Iterator<Item = Range<usize>> {
    let len = (PIECE_BYTES / dtype.size_bytes()).max(1);
    range.clone().step_by(len).map(move |start| start..range.end.min(start + len))
}

/// Writes the sum over a range of all tensors to a place in another.
fn sum_to(all: &[Tensor], range: Range<usize>, to: &Tensor, start: usize) -> Result<()> {
    for piece in pieces(range.clone(), to.dtype()) {
        let terms = all.iter().map(|x| slice(x, piece.clone()));
        let terms = terms.collect::<Result<Vec<Tensor>>>()?;
        let start = start + piece.start - range.start;
        slice(to, start..start + piece.len())?.copy_(&sum(&terms, to.device())?)?;
    }
    Ok(())
}

/// The sum along the tree of [`Collectives::all_reduce`], on `device`.
fn sum(terms: &[Tensor], device: &Device) -> Result<Tensor> {
    let count = terms.len();
    if count == 1 {
        return Ok(terms[0].to_device(device, Category::Workspace)?);
    }
    let (first, others) = terms.split_at(count.next_power_of_two() / 2);
    let mut y = sum(first, device)?;
    y.add_(&sum(others, device)?)?;
    Ok(y)
}

/// Copies a range of a tensor of another rank to a place in an own one.
pub(crate) fn copy(from: &Tensor, range: Range<usize>, to: &Tensor, start: usize) -> Result<()> {
    for piece in pieces(range.clone(), from.dtype()) {
        let start = start + piece.start - range.start;
        let copy = slice(from, piece.clone())?.to_device(to.device(), Category::Workspace)?;
        slice(to, start..start + piece.len())?.copy_(&copy)?;
    }
    Ok(())
}

/// # Errors
/// `DType`, and `Shape` unless `fits`.
fn check(op: &'static str, from: &Tensor, to: &Tensor, fits: bool) -> Result<()> {
    if !fits {
        return Err(TensorError::Shape { op, left: *from.shape(), right: *to.shape() }.into());
    }
    if from.dtype() != to.dtype() {
        return Err(TensorError::DType { op, left: from.dtype(), right: to.dtype() }.into());
    }
    Ok(())
}
