//! The collectives, of whatever ranks meet.
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
use crate::meeting::{Meeting, Message, Others, REFUSED, first_failure, meet_in, settle};

/// What is summed or copied at once, at most.
pub(crate) const PIECE_BYTES: usize = 4 << 20;

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

    fn reduce_part(&self, x: &mut Tensor, part_len: usize) -> Result<()> {
        let (len, x) = (x.element_count(), &*x);
        let part = |rank| part_of(len, rank, part_len);
        let call = Call { op: "reduce_part", elements: Some((x.dtype(), len)), root: None };
        share(self, call, x, Ok(()), |rounds| rounds.sum(&part, x, &|at| at))
    }

    fn gather_parts(&self, x: &mut Tensor, part_len: usize) -> Result<()> {
        let (len, x) = (x.element_count(), &*x);
        let part = |rank| part_of(len, rank, part_len);
        let call = Call { op: "gather_parts", elements: Some((x.dtype(), len)), root: None };
        share(self, call, x, Ok(()), |rounds| {
            rounds.gather(&part, Own::IsThere, x, &|rank, at| part(rank).start + at)
        })
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

    fn refuse(&self, reason: &str) -> Result<()> {
        let failure = Some(reason.to_owned());
        drop(self.meet(Message { failure, ..Message::of(REFUSED) })?);
        self.meet(Message::of(REFUSED)).map(drop)
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
    let count = ranks.rank().count;
    let (len, x) = (x.element_count(), &*x);
    let call = Call { op: "all_reduce", elements: Some((x.dtype(), len)), root: None };
    let part = |rank| part(len, rank, count);
    share(ranks, call, x, Ok(()), |rounds| rounds.sum(&part, x, &|at| at))?;
    // The others read what this rank has summed.
    share(ranks, call, x, Ok(()), |rounds| {
        rounds.gather(&part, Own::IsThere, x, &|rank, at| part(rank).start + at)
    })
}

fn reduce_scatter(ranks: &impl Meeting, from: &Tensor, to: &mut Tensor) -> Result<()> {
    let Rank { index, count } = ranks.rank();
    let (len, own) = (from.element_count(), to.element_count());
    let call = Call { op: "reduce_scatter", elements: Some((from.dtype(), len)), root: None };
    let checked = check(call.op, from, to, len == own * count);
    let part = |rank| rank * (len / count)..(rank + 1) * (len / count);
    share(ranks, call, from, checked, |rounds| rounds.sum(&part, to, &|at| at - part(index).start))
}

fn all_gather(ranks: &impl Meeting, from: &Tensor, to: &mut Tensor) -> Result<()> {
    let count = ranks.rank().count;
    let len = from.element_count();
    let call = Call { op: "all_gather", elements: Some((from.dtype(), len)), root: None };
    let checked = check(call.op, from, to, to.element_count() == len * count);
    share(ranks, call, from, checked, |rounds| {
        rounds.gather(&|_| 0..len, Own::IsCopied, to, &|rank, at| rank * len + at)
    })
}

fn broadcast(ranks: &impl Meeting, x: &mut Tensor, root: usize) -> Result<()> {
    let count = ranks.rank().count;
    if root >= count {
        return Err(RanksError::NoSuchRank { rank: root, count });
    }
    let (len, x) = (x.element_count(), &*x);
    let call = Call { op: "broadcast", elements: Some((x.dtype(), len)), root: Some(root) };
    let part = |rank| if rank == root { 0..len } else { 0..0 };
    share(ranks, call, x, Ok(()), |rounds| rounds.gather(&part, Own::IsThere, x, &|_, at| at))
}

/// Meets, does `work` with the tensors of all ranks, which stay as they are until all are done, and
/// tells how it went.
fn share(
    ranks: &impl Meeting,
    call: Call,
    own: &Tensor,
    checked: Result<()>,
    work: impl FnOnce(&mut Rounds<'_>) -> Result<()>,
) -> Result<()> {
    let failure = checked.as_ref().err().map(ToString::to_string);
    let message = Message { tensor: Some(own.clone()), failure, ..Message::of(call) };
    let messages = meet_in(ranks, message)?;
    first_failure(&messages, call, checked)?;
    let rank = ranks.rank();
    let mut rounds = Rounds { rank, own, others: ranks.others(&messages) };
    let outcome = work(&mut rounds);
    // Before the other ranks go on: a step that is rolled back has to find its memory free.
    drop((rounds, messages));
    if outcome.as_ref().is_err_and(is_the_end) {
        return outcome;
    }
    settle(ranks, call, outcome)
}

/// Whether the ranks are no longer together.
fn is_the_end(error: &RanksError) -> bool {
    matches!(error, RanksError::Late { .. } | RanksError::Lost { .. } | RanksError::Aborted { .. })
}

/// Rounds in which each rank gives each other a piece and takes one of it.
struct Rounds<'a> {
    rank: Rank,
    own: &'a Tensor,
    others: Box<dyn Others + 'a>,
}

/// What is done with the own part where those of all ranks are put together.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Own {
    IsThere,
    IsCopied,
}

/// Elements of a tensor, by rank.
type Parts<'a> = &'a dyn Fn(usize) -> Range<usize>;

impl Rounds<'_> {
    /// Writes the sum of all tensors over this rank's part, along the tree of
    /// [`Collectives::all_reduce`], to the places in `to` of its elements.
    fn sum(&mut self, part: Parts<'_>, to: &Tensor, place: &dyn Fn(usize) -> usize) -> Result<()> {
        let Rank { index, count } = self.rank;
        let mut outcome = Ok(());
        for round in 0..self.count(part) {
            for other in (0..count).filter(|&other| other != index) {
                self.give(other, part(other), round)?;
            }
            let Some(piece) = self.piece(part(index), round) else { continue };
            let mut taken = 0;
            if outcome.is_ok() {
                let mut term = |rank| {
                    taken = rank + 1;
                    self.take(rank, piece.clone(), to.device())
                };
                outcome =
                    sum(&mut term, 0..count).and_then(|sum| write(&sum, to, place(piece.start)));
            }
            self.leave(taken..count, &outcome)?;
        }
        outcome
    }

    /// Writes the parts of all ranks to the places in `to` of their elements.
    fn gather(
        &mut self,
        part: Parts<'_>,
        own: Own,
        to: &Tensor,
        place: &dyn Fn(usize, usize) -> usize,
    ) -> Result<()> {
        let Rank { index, count } = self.rank;
        let mut outcome = Ok(());
        for round in 0..self.count(part) {
            for other in (0..count).filter(|&other| other != index) {
                self.give(other, part(index), round)?;
            }
            for rank in (0..count).filter(|&rank| rank != index || own == Own::IsCopied) {
                let Some(piece) = self.piece(part(rank), round) else { continue };
                if outcome.is_err() {
                    self.leave(rank..rank + 1, &outcome)?;
                    continue;
                }
                let at = piece.start - part(rank).start;
                outcome = self
                    .take(rank, piece, to.device())
                    .and_then(|piece| write(&piece, to, place(rank, at)));
                self.leave(0..0, &outcome)?;
            }
        }
        outcome
    }

    /// Rounds that it takes until every rank's part is through.
    fn count(&self, part: Parts<'_>) -> usize {
        let longest = (0..self.rank.count).map(|rank| part(rank).len()).max();
        longest.unwrap_or(0).div_ceil(piece_len(self.own.dtype()))
    }

    /// The elements of a part that are in a round.
    fn piece(&self, part: Range<usize>, round: usize) -> Option<Range<usize>> {
        let len = piece_len(self.own.dtype());
        let start = part.start + round * len;
        (start < part.end).then(|| start..part.end.min(start + len))
    }

    fn give(&mut self, to: usize, part: Range<usize>, round: usize) -> Result<()> {
        match self.piece(part, round) {
            Some(piece) => self.others.give(to, piece),
            None => Ok(()),
        }
    }

    /// A copy of a piece of a rank's tensor.
    fn take(&mut self, rank: usize, piece: Range<usize>, device: &Device) -> Result<Tensor> {
        match rank == self.rank.index {
            true => Ok(slice(self.own, piece)?.to_device(device, Category::Workspace)?),
            false => self.others.take(rank, piece, device),
        }
    }

    /// Leaves what these ranks give in this round.
    ///
    /// # Errors
    /// That of `outcome`, if the ranks are no longer together.
    fn leave(&mut self, ranks: Range<usize>, outcome: &Result<()>) -> Result<()> {
        if let Err(error) = outcome
            && is_the_end(error)
        {
            return Err(error.clone());
        }
        let index = self.rank.index;
        ranks.filter(|&rank| rank != index).try_for_each(|rank| self.others.leave(rank))
    }
}

/// The part of `len` elements that a rank sums.
fn part(len: usize, rank: usize, count: usize) -> Range<usize> {
    let end_of = |ranks: usize| (len as u128 * ranks as u128 / count as u128) as usize;
    end_of(rank)..end_of(rank + 1)
}

/// A rank's part of `len` elements, where each has `part_len`, but for the last ones.
fn part_of(len: usize, rank: usize, part_len: usize) -> Range<usize> {
    len.min(rank * part_len)..len.min((rank + 1) * part_len)
}

fn piece_len(dtype: DType) -> usize {
    PIECE_BYTES / dtype.size_bytes()
}

/// A range of elements of x in row-major order.
pub(crate) fn slice(x: &Tensor, range: Range<usize>) -> Result<Tensor> {
    Ok(x.view([x.element_count()])?.narrow(0, range.start, range.len())?)
}

/// The ranges of a tensor that are given one after the other.
pub(crate) fn pieces(x: &Tensor) -> impl Iterator<Item = Range<usize>> {
    let (end, len) = (x.element_count(), piece_len(x.dtype()));
    (0..end).step_by(len).map(move |start| start..end.min(start + len))
}

/// Writes elements to a place in a tensor.
pub(crate) fn write(piece: &Tensor, to: &Tensor, start: usize) -> Result<()> {
    Ok(slice(to, start..start + piece.element_count())?.copy_(piece)?)
}

/// Copies a tensor of another rank into one of the same size, piece by piece.
pub(crate) fn copy(from: &Tensor, to: &Tensor) -> Result<()> {
    for piece in pieces(from) {
        let copy = slice(from, piece.clone())?.to_device(to.device(), Category::Workspace)?;
        write(&copy, to, piece.start)?;
    }
    Ok(())
}

/// The sum along the tree of [`Collectives::all_reduce`]; terms are asked for by rank.
fn sum(term: &mut dyn FnMut(usize) -> Result<Tensor>, ranks: Range<usize>) -> Result<Tensor> {
    if ranks.len() == 1 {
        return term(ranks.start);
    }
    let middle = ranks.start + ranks.len().next_power_of_two() / 2;
    let mut y = sum(term, ranks.start..middle)?;
    y.add_(&sum(term, middle..ranks.end)?)?;
    Ok(y)
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
