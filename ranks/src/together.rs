//! The collectives, of whatever ranks meet.
//!
//! A sum goes as in a ring, with as many bytes: each rank sums its part, then copies those of the
//! others. Unlike in a ring, a part is summed in the order of the tree, on the rank that it belongs
//! to. It is summed piece by piece: a rank has a copy of a piece of each other one for it, and
//! nothing else is allocated. It is before the ranks meet: nothing lacks memory after that.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use lowtide_allocator::Category;
use lowtide_tensor::{DType, Tensor, TensorError};

use crate::collectives::{Collectives, Rank};
use crate::error::{Call, RanksError, Result};
use crate::meeting::{
    self, Gift, Meeting, Message, Others, REFUSED, Taking, first_failure, meet_in, settle,
};

/// What is given to a rank at once, at most.
pub(crate) const PIECE_BYTES: usize = 4 << 20;

/// The copies of pieces that a rank has for a sum, at most.
const COPIES_BYTES: usize = 16 << 20;

/// What two ranks are in that give each other something.
const TRADE: &str = "trade";

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
        let own = part(Meeting::rank(self).index).len();
        share(self, call, x, (Ok(()), &|_| own), |rounds| rounds.sum(&part, x, &|at| at))
    }

    fn gather_parts(&self, x: &mut Tensor, part_len: usize) -> Result<()> {
        let (len, x) = (x.element_count(), &*x);
        let part = |rank| part_of(len, rank, part_len);
        let call = Call { op: "gather_parts", elements: Some((x.dtype(), len)), root: None };
        share(self, call, x, (Ok(()), &|rank| part(rank).len()), |rounds| {
            rounds.gather(&part, Own::IsThere, x, &|rank, at| part(rank).start + at)
        })
    }

    fn broadcast(&self, x: &mut Tensor, root: usize) -> Result<()> {
        broadcast(self, x, root)
    }

    fn trade(&self, give: Option<&Tensor>, take: Option<&mut Tensor>, other: usize) -> Result<()> {
        check_other(Meeting::rank(self), other)?;
        trade(self, give, take.map(|take| &*take), other)
    }

    fn decline(&self, other: usize, reason: &str) -> Result<()> {
        check_other(Meeting::rank(self), other)?;
        let call = Call { op: TRADE, elements: None, root: None };
        let own = Message { failure: Some(reason.to_owned()), ..Message::of(call) };
        tell_each_other(self, &own, other).map(drop)
    }

    fn refuse(&self, reason: &str) -> Result<()> {
        let failure = Some(reason.to_owned());
        let messages = self.meet(Message { failure, ..Message::of(REFUSED) })?;
        meeting::release(self, messages)
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
    let (len, x) = (x.element_count(), &*x);
    let call = Call { op: "all_reduce", elements: Some((x.dtype(), len)), root: None };
    let part = |rank| part(len, rank, count);
    let own = part(index).len();
    share(ranks, call, x, (Ok(()), &|_| own), |rounds| rounds.sum(&part, x, &|at| at))?;
    // The others read what this rank has summed.
    share(ranks, call, x, (Ok(()), &|rank| part(rank).len()), |rounds| {
        rounds.gather(&part, Own::IsThere, x, &|rank, at| part(rank).start + at)
    })
}

fn reduce_scatter(ranks: &impl Meeting, from: &Tensor, to: &mut Tensor) -> Result<()> {
    let Rank { index, count } = ranks.rank();
    let (len, own) = (from.element_count(), to.element_count());
    let call = Call { op: "reduce_scatter", elements: Some((from.dtype(), len)), root: None };
    let checked = check(call.op, from, to, len == own * count);
    let part = |rank| rank * (len / count)..(rank + 1) * (len / count);
    share(ranks, call, from, (checked, &|_| own), |rounds| {
        rounds.sum(&part, to, &|at| at - part(index).start)
    })
}

fn all_gather(ranks: &impl Meeting, from: &Tensor, to: &mut Tensor) -> Result<()> {
    let count = ranks.rank().count;
    let len = from.element_count();
    let call = Call { op: "all_gather", elements: Some((from.dtype(), len)), root: None };
    let checked = check(call.op, from, to, to.element_count() == len * count);
    share(ranks, call, from, (checked, &|_| len), |rounds| {
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
    share(ranks, call, x, (Ok(()), &|rank| part(rank).len()), |rounds| {
        rounds.gather(&part, Own::IsThere, x, &|_, at| at)
    })
}

/// Gives one tensor to the other rank and takes another one of it, piece by piece.
fn trade(
    ranks: &impl Meeting,
    give: Option<&Tensor>,
    take: Option<&Tensor>,
    other: usize,
) -> Result<()> {
    let Some(any) = give.or(take) else { return Ok(()) };
    let (up, down) = if ranks.rank().index < other { (give, take) } else { (take, give) };
    let [up, down] = [up, down].map(|x| x.map(|x| (x.dtype(), x.element_count())));
    // The same on both sides: what goes to the higher rank, and what goes to the lower one.
    let call = |elements| Call { op: TRADE, elements, root: None };
    let own = Message { tensor: Some(any.clone()), bytes: words_of(down), ..Message::of(call(up)) };
    let fetched = tell_each_other(ranks, &own, other)?;
    if let Some(reason) = fetched.failure {
        return Err(RanksError::Failed { rank: other, op: TRADE, reason });
    }
    if fetched.call.op != TRADE || fetched.call.elements != up {
        return Err(RanksError::Mismatch { rank: other, own: own.call, other: fetched.call });
    }
    if fetched.bytes != own.bytes {
        let theirs = call(elements_of(&fetched.bytes));
        return Err(RanksError::Mismatch { rank: other, own: call(down), other: theirs });
    }
    let mut messages = vec![Message::of(own.call); ranks.rank().count];
    messages[other] = fetched;
    let mut others = ranks.others(own.call, &messages, any);
    let [given, taken] = [give, take].map(|x| x.into_iter().flat_map(pieces).collect::<Vec<_>>());
    let mut outcome = Ok(());
    for round in 0..given.len().max(taken.len()) {
        if round > 0 {
            // So that neither is more than a piece ahead.
            tell_each_other(ranks, &Message::of(call(None)), other)?;
        }
        let gift = given.get(round).map(|piece| Gift { to: other, piece: piece.clone() });
        let taking = take
            .zip(taken.get(round).cloned())
            .map(|(x, piece)| Ok(Taking { from: other, place: slice(x, piece.clone())?, piece }));
        let mut takings: Vec<Taking> = taking.into_iter().collect::<Result<_>>()?;
        let exchanged = others.exchange(gift.as_slice(), &mut takings);
        outcome = go_on(outcome, exchanged)?;
    }
    // The other rank may need its tensor's memory once it has the answer.
    drop(others);
    drop(messages);
    let failure = outcome.as_ref().err().map(ToString::to_string);
    let answer = Message { failure, ..Message::of(call(None)) };
    let answer = tell_each_other(ranks, &answer, other)?;
    outcome?;
    match answer.failure {
        Some(reason) => Err(RanksError::Failed { rank: other, op: TRADE, reason }),
        None => Ok(()),
    }
}

fn words_of(elements: Option<(DType, usize)>) -> Arc<[u8]> {
    elements.map_or_else(String::new, |(dtype, len)| format!("{len} {dtype}")).into_bytes().into()
}

fn elements_of(words: &[u8]) -> Option<(DType, usize)> {
    let (len, name) = std::str::from_utf8(words).ok()?.split_once(' ')?;
    let dtype = DType::ALL.into_iter().find(|dtype| dtype.to_string() == name)?;
    Some((dtype, len.parse().ok()?))
}

/// Says something to another rank and hears what that says: one after the other, for those that
/// wait until they are heard.
fn tell_each_other(ranks: &impl Meeting, own: &Message, other: usize) -> Result<Message> {
    if ranks.rank().index < other {
        ranks.post(own.clone(), other)?;
        return ranks.fetch(other, own);
    }
    let heard = ranks.fetch(other, own)?;
    ranks.post(own.clone(), other)?;
    Ok(heard)
}

/// Meets, does `work` with the tensors of all ranks, which stay as they are until all are done, and
/// tells how it went. Each other rank has so many elements to take, if the call is `checked`.
fn share(
    ranks: &impl Meeting,
    call: Call,
    own: &Tensor,
    (checked, lens): (Result<()>, &dyn Fn(usize) -> usize),
    work: impl FnOnce(&mut Rounds<'_>) -> Result<()>,
) -> Result<()> {
    let rank = ranks.rank();
    let copies = checked.and_then(|()| copies_for(rank, own, lens));
    let failure = copies.as_ref().err().map(ToString::to_string);
    let message = Message { tensor: Some(own.clone()), failure, ..Message::of(call) };
    let messages = meet_in(ranks, message)?;
    let copies = match first_failure(&messages, call, copies) {
        Ok(copies) => copies,
        Err(error) => {
            meeting::release(ranks, messages)?;
            return Err(error);
        }
    };
    let mut rounds = Rounds { rank, own, copies, others: ranks.others(call, &messages, own) };
    let outcome = work(&mut rounds);
    // Before the other ranks go on, which then may need the memory of their tensors.
    drop(rounds);
    drop(messages);
    if outcome.as_ref().is_err_and(is_the_end) {
        return outcome;
    }
    settle(ranks, call, outcome)
}

/// Places for a piece of each other rank, by rank.
fn copies_for(rank: Rank, own: &Tensor, lens: &dyn Fn(usize) -> usize) -> Result<Copies> {
    let (dtype, mut copies) = (own.dtype(), Copies::new());
    for other in rank.others() {
        let len = lens(other).min(piece_len(dtype, rank.count));
        if len > 0 {
            let copy = Tensor::empty_in(own.device(), Category::Workspace, [len], dtype)?;
            copies.insert(other, copy);
        }
    }
    Ok(copies)
}

/// The first failure, unless this one is the end.
fn go_on(outcome: Result<()>, next: Result<()>) -> Result<Result<()>> {
    match next {
        Err(error) if is_the_end(&error) => Err(error),
        next => Ok(outcome.and(next)),
    }
}

/// Whether the ranks are no longer together.
pub(crate) fn is_the_end(error: &RanksError) -> bool {
    matches!(error, RanksError::Late { .. } | RanksError::Lost { .. } | RanksError::Aborted { .. })
}

/// Places for what other ranks give, by rank.
type Copies = BTreeMap<usize, Tensor>;

/// Rounds in which each rank gives each other a piece and takes one of it.
struct Rounds<'a> {
    rank: Rank,
    own: &'a Tensor,
    copies: Copies,
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
        let index = self.rank.index;
        let mut outcome = Ok(());
        for round in 0..self.count(part) {
            let own = self.piece(part(index), round);
            let pieces = |rank| self.piece(part(rank), round);
            let mut takings = self.takings(|_| own.clone())?;
            let taken = self.others.exchange(&gifts(self.rank, pieces), &mut takings);
            outcome = go_on(outcome, taken)?;
            if let (Ok(()), Some(own)) = (&outcome, own) {
                let mut terms: Vec<Tensor> =
                    takings.into_iter().map(|taking| taking.place).collect();
                terms.insert(index, slice(self.own, own.clone())?);
                outcome = sum(&terms, index).and_then(|sum| match sum.shares_storage(to) {
                    // That of one rank alone, in place.
                    true => Ok(()),
                    false => write(&sum, to, place(own.start)),
                });
            }
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
        let index = self.rank.index;
        let mut outcome = Ok(());
        for round in 0..self.count(part) {
            let own_piece = self.piece(part(index), round);
            let mut takings = self.takings(|rank| self.piece(part(rank), round))?;
            let gifts = gifts(self.rank, |_| own_piece.clone());
            let taken = self.others.exchange(&gifts, &mut takings);
            outcome = go_on(outcome, taken)?;
            if let (Own::IsCopied, Some(piece)) = (own, own_piece) {
                let place = slice(self.own, piece.clone())?;
                takings.push(Taking { from: index, piece, place });
            }
            for Taking { from, piece, place: copy } in takings {
                let start = place(from, piece.start - part(from).start);
                outcome = outcome.and_then(|()| write(&copy, to, start));
            }
        }
        outcome
    }

    /// What other ranks give in a round.
    fn takings(&self, piece: impl Fn(usize) -> Option<Range<usize>>) -> Result<Vec<Taking>> {
        let taking = |(&from, copy)| {
            let piece = piece(from)?;
            let place = slice(copy, 0..piece.len());
            Some(place.map(|place| Taking { from, piece, place }))
        };
        self.copies.iter().filter_map(taking).collect()
    }

    /// Rounds that it takes until every rank's part is through.
    fn count(&self, part: Parts<'_>) -> usize {
        let longest = (0..self.rank.count).map(|rank| part(rank).len()).max();
        longest.unwrap_or(0).div_ceil(piece_len(self.own.dtype(), self.rank.count))
    }

    /// The elements of a part that are in a round.
    fn piece(&self, part: Range<usize>, round: usize) -> Option<Range<usize>> {
        let len = piece_len(self.own.dtype(), self.rank.count);
        let start = part.start + round * len;
        (start < part.end).then(|| start..part.end.min(start + len))
    }
}

/// What a rank gives to each other one in a round.
fn gifts(rank: Rank, piece: impl Fn(usize) -> Option<Range<usize>>) -> Vec<Gift> {
    rank.others().filter_map(|to| Some(Gift { to, piece: piece(to)? })).collect()
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

/// The elements of a piece that one of so many ranks gives to another at once.
fn piece_len(dtype: DType, count: usize) -> usize {
    PIECE_BYTES.min(COPIES_BYTES / (count - 1).max(1)) / dtype.size_bytes()
}

/// A range of elements of x in row-major order.
pub(crate) fn slice(x: &Tensor, range: Range<usize>) -> Result<Tensor> {
    Ok(x.view([x.element_count()])?.narrow(0, range.start, range.len())?)
}

/// The ranges of a tensor that are given one after the other.
fn pieces(x: &Tensor) -> impl Iterator<Item = Range<usize>> + use<> {
    let (end, len) = (x.element_count(), PIECE_BYTES / x.dtype().size_bytes());
    (0..end).step_by(len).map(move |start| start..end.min(start + len))
}

/// Writes elements to a place in a tensor.
fn write(piece: &Tensor, to: &Tensor, start: usize) -> Result<()> {
    Ok(slice(to, start..start + piece.element_count())?.copy_(piece)?)
}

/// The sum along the tree of [`Collectives::all_reduce`], in the place of one of the terms that is
/// not the `own` one.
fn sum(terms: &[Tensor], own: usize) -> Result<Tensor> {
    let middle = terms.len().next_power_of_two() / 2;
    if middle == 0 {
        return Ok(terms[0].clone());
    }
    let (first, last) = terms.split_at(middle);
    let is_own = middle == 1 && own == 0;
    let (first, last) = (sum(first, own)?, sum(last, own.wrapping_sub(middle))?);
    // The order of two terms is no matter of bits.
    let (mut y, x) = if is_own { (last, first) } else { (first, last) };
    y.add_(&x)?;
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
