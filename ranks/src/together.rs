//! The collectives of every engine that implements [`Meeting`].
//!
//! A sum moves as many bytes as in a ring: each rank sums its own part of the tensor, then copies
//! the summed parts of the other ranks. Unlike in a ring, the terms of a part are added in the
//! order of the tree, on the rank that owns the part. The part is summed piece by piece: a rank
//! allocates room for one piece of each other rank before the ranks meet, so that no rank runs out
//! of memory afterwards.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use lowtide_allocator::Category;
use lowtide_tensor::{DType, Tensor, TensorError};

use crate::collectives::{Collectives, Rank};
use crate::error::{Call, Elements, RanksError, Result};
use crate::meeting::{
    self, Incoming, Meeting, Message, Outgoing, PeerTensors, REFUSED, first_failure, meet_in,
    share_outcome,
};

/// Largest size of a piece that one rank sends another.
pub(crate) const PIECE_BYTES: usize = 4 << 20;

/// Largest size of all copies of pieces that a rank holds for a sum.
const COPIES_BYTES: usize = 16 << 20;

/// The operation of two ranks that send each other tensors.
const TRADE: &str = "trade";

impl<M: Meeting> Collectives for M {
    fn rank(&self) -> Rank {
        Meeting::rank(self)
    }

    fn exchange(&self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        let own = Message { bytes: own.into(), ..Message::of(Call::new("exchange")) };
        let messages = meet_in(self, own)?;
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
        let part = |rank| fixed_part(len, rank, part_len);
        let own = part(Meeting::rank(self).index).len();
        let sent_len = |_| own;
        share(self, Sharing::of("reduce_part", x, &sent_len), |rounds| {
            rounds.sum(&part, x, &|at| at)
        })
    }

    fn gather_parts(&self, x: &mut Tensor, part_len: usize) -> Result<()> {
        let (len, x) = (x.element_count(), &*x);
        let part = |rank| fixed_part(len, rank, part_len);
        let sent_len = |rank| part(rank).len();
        share(self, Sharing::of("gather_parts", x, &sent_len), |rounds| {
            rounds.gather(&part, OwnPart::InPlace, x, &|rank, at| part(rank).start + at)
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
        let failure = Some(reason.to_owned());
        let own = Message { failure, ..Message::of(Call::new(TRADE)) };
        swap_messages(self, &own, other).map(drop)
    }

    fn refuse(&self, reason: &str) -> Result<bool> {
        let failure = Some(reason.to_owned());
        let messages = self.meet(Message { failure, ..Message::of(REFUSED) })?;
        let have_all_refused = messages.iter().all(|message| message.call == REFUSED);
        meeting::release(self, messages)?;
        Ok(have_all_refused)
    }

    fn abort(&self, reason: &str) {
        self.give_up(reason);
    }
}

/// `Ok` if `rank` is another rank than this one.
fn check_other(Rank { index, count }: Rank, rank: usize) -> Result<()> {
    if rank >= count || rank == index {
        return Err(RanksError::NoSuchRank { rank, count });
    }
    Ok(())
}

fn all_reduce(ranks: &impl Meeting, x: &mut Tensor) -> Result<()> {
    let Rank { index, count } = ranks.rank();
    let (len, x) = (x.element_count(), &*x);
    let part = |rank| even_part(len, rank, count);
    let own = part(index).len();
    let sent_len = |_| own;
    share(ranks, Sharing::of("all_reduce", x, &sent_len), |rounds| rounds.sum(&part, x, &|at| at))?;
    let sent_len = |rank| part(rank).len();
    share(ranks, Sharing::of("all_reduce", x, &sent_len), |rounds| {
        rounds.gather(&part, OwnPart::InPlace, x, &|rank, at| part(rank).start + at)
    })
}

fn reduce_scatter(ranks: &impl Meeting, from: &Tensor, to: &mut Tensor) -> Result<()> {
    let Rank { index, count } = ranks.rank();
    let (len, own) = (from.element_count(), to.element_count());
    let checked = check("reduce_scatter", from, to, [len, own * count]);
    let part = |rank| rank * (len / count)..(rank + 1) * (len / count);
    let sent_len = |_| own;
    let sharing = Sharing { checked, ..Sharing::of("reduce_scatter", from, &sent_len) };
    share(ranks, sharing, |rounds| rounds.sum(&part, to, &|at| at - part(index).start))
}

fn all_gather(ranks: &impl Meeting, from: &Tensor, to: &mut Tensor) -> Result<()> {
    let count = ranks.rank().count;
    let len = from.element_count();
    let checked = check("all_gather", from, to, [to.element_count(), len * count]);
    let sent_len = |_| len;
    let sharing = Sharing { checked, ..Sharing::of("all_gather", from, &sent_len) };
    share(ranks, sharing, |rounds| {
        rounds.gather(&|_| 0..len, OwnPart::Copied, to, &|rank, at| rank * len + at)
    })
}

fn broadcast(ranks: &impl Meeting, x: &mut Tensor, root: usize) -> Result<()> {
    let count = ranks.rank().count;
    if root >= count {
        return Err(RanksError::NoSuchRank { rank: root, count });
    }
    let (len, x) = (x.element_count(), &*x);
    let part = |rank| if rank == root { 0..len } else { 0..0 };
    let sent_len = |rank| part(rank).len();
    let mut sharing = Sharing::of("broadcast", x, &sent_len);
    sharing.call.root = Some(root);
    share(ranks, sharing, |rounds| rounds.gather(&part, OwnPart::InPlace, x, &|_, at| at))
}

/// Sends a tensor to the other rank and receives one from it, piece by piece.
fn trade(
    ranks: &impl Meeting,
    give: Option<&Tensor>,
    take: Option<&Tensor>,
    other: usize,
) -> Result<()> {
    let Some(any) = give.or(take) else { return Ok(()) };
    // Both ranks describe the trade alike: the elements that go up to the higher rank, and the
    // elements that go down.
    let (up, down) = if ranks.rank().index < other { (give, take) } else { (take, give) };
    let [up, down] = [up, down].map(|x| x.map(Elements::of));
    let call = |elements| Call { elements, ..Call::new(TRADE) };
    let bytes = elements_to_bytes(down);
    let own = Message { tensor: Some(any.clone()), bytes, ..Message::of(call(up)) };
    let fetched = swap_messages(ranks, &own, other)?;
    if let Some(reason) = fetched.failure {
        return Err(RanksError::Failed { rank: other, op: TRADE, reason });
    }
    if fetched.call.op != TRADE || fetched.call.elements != up {
        return Err(RanksError::Mismatch { rank: other, own: own.call, other: fetched.call });
    }
    if fetched.bytes != own.bytes {
        let theirs = call(elements_from_bytes(&fetched.bytes));
        return Err(RanksError::Mismatch { rank: other, own: call(down), other: theirs });
    }
    let mut messages = vec![Message::of(own.call); ranks.rank().count];
    messages[other] = fetched;
    let mut peers = ranks.peer_tensors(own.call, &messages, any);
    let [given, taken] = [give, take].map(|x| x.into_iter().flat_map(pieces).collect::<Vec<_>>());
    let mut outcome = Ok(());
    for round in 0..given.len().max(taken.len()) {
        if round > 0 {
            // Neither rank may be more than one piece ahead.
            swap_messages(ranks, &Message::of(call(None)), other)?;
        }
        let outgoing = given.get(round).map(|piece| Outgoing { to: other, piece: piece.clone() });
        let incoming = take
            .zip(taken.get(round).cloned())
            .map(|(x, piece)| Ok(Incoming { from: other, place: slice(x, piece.clone())?, piece }));
        let mut incoming: Vec<Incoming> = incoming.into_iter().collect::<Result<_>>()?;
        let exchanged = peers.exchange(outgoing.as_slice(), &mut incoming);
        outcome = first_error(outcome, exchanged)?;
    }
    // The other rank may free its tensor once it has the answer.
    drop(peers);
    drop(messages);
    let failure = outcome.as_ref().err().map(ToString::to_string);
    let answer = Message { failure, ..Message::of(call(None)) };
    let answer = swap_messages(ranks, &answer, other)?;
    outcome?;
    match answer.failure {
        Some(reason) => Err(RanksError::Failed { rank: other, op: TRADE, reason }),
        None => Ok(()),
    }
}

/// Encodes elements as text, such as `12 f32`; none as an empty text.
fn elements_to_bytes(elements: Option<Elements>) -> Arc<[u8]> {
    elements.map_or_else(String::new, |elements| elements.to_string()).into_bytes().into()
}

fn elements_from_bytes(bytes: &[u8]) -> Option<Elements> {
    let (len, name) = std::str::from_utf8(bytes).ok()?.split_once(' ')?;
    let dtype = DType::ALL.into_iter().find(|dtype| dtype.to_string() == name)?;
    Some(Elements { dtype, len: len.parse().ok()? })
}

/// Swaps messages with another rank. The lower rank sends first: some engines send only to a rank
/// that receives.
fn swap_messages(ranks: &impl Meeting, own: &Message, other: usize) -> Result<Message> {
    if ranks.rank().index < other {
        ranks.post(own.clone(), other)?;
        return ranks.fetch(other, own);
    }
    let fetched = ranks.fetch(other, own)?;
    ranks.post(own.clone(), other)?;
    Ok(fetched)
}

/// A call in which ranks read each other's tensors.
struct Sharing<'a> {
    call: Call,
    /// The tensor that the other ranks read.
    own: &'a Tensor,
    /// The error that this rank has found before the call, if any.
    checked: Result<()>,
    /// The number of elements that each other rank sends this one.
    sent_len: &'a dyn Fn(usize) -> usize,
}

impl<'a> Sharing<'a> {
    fn of(op: &'static str, own: &'a Tensor, sent_len: &'a dyn Fn(usize) -> usize) -> Self {
        Sharing { call: Call::giving(op, own), own, checked: Ok(()), sent_len }
    }
}

/// Meets, runs `work` on the tensors of all ranks, and exchanges the outcomes. No rank frees or
/// changes its tensor before all ranks are done.
fn share(
    ranks: &impl Meeting,
    sharing: Sharing<'_>,
    work: impl FnOnce(&mut Rounds<'_>) -> Result<()>,
) -> Result<()> {
    let (rank, Sharing { call, own, checked, sent_len }) = (ranks.rank(), sharing);
    let copies = checked.and_then(|()| copies_for(rank, own, sent_len));
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
    let peers = ranks.peer_tensors(call, &messages, own);
    let mut rounds = Rounds { rank, own, copies, peers };
    let outcome = work(&mut rounds);
    // After the exchange of outcomes the other ranks may free their tensors.
    drop(rounds);
    drop(messages);
    if outcome.as_ref().is_err_and(RanksError::is_fatal) {
        return outcome;
    }
    share_outcome(ranks, call, outcome)
}

/// Allocates room for one piece of each other rank.
fn copies_for(rank: Rank, own: &Tensor, sent_len: &dyn Fn(usize) -> usize) -> Result<Copies> {
    let (dtype, mut copies) = (own.dtype(), Copies::new());
    for other in rank.others() {
        let len = sent_len(other).min(piece_len(dtype, rank.count));
        if len > 0 {
            let copy = Tensor::empty_in(own.device(), Category::Workspace, [len], dtype)?;
            copies.insert(other, copy);
        }
    }
    Ok(copies)
}

/// The first error of the two. A fatal error of `next` is returned at once.
fn first_error(outcome: Result<()>, next: Result<()>) -> Result<Result<()>> {
    match next {
        Err(error) if error.is_fatal() => Err(error),
        next => Ok(outcome.and(next)),
    }
}

/// Room for pieces of the other ranks, by rank.
type Copies = BTreeMap<usize, Tensor>;

/// Rounds in which each rank exchanges one piece with each other rank.
struct Rounds<'a> {
    rank: Rank,
    own: &'a Tensor,
    copies: Copies,
    peers: Box<dyn PeerTensors + 'a>,
}

/// The position of the own part when the parts of all ranks are gathered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OwnPart {
    /// The part is in its place already.
    InPlace,
    /// The part has to be copied to its place.
    Copied,
}

/// The range of elements that belongs to each rank.
type Parts<'a> = &'a dyn Fn(usize) -> Range<usize>;

impl Rounds<'_> {
    /// Sums this rank's part of all tensors along the tree of [`Collectives::all_reduce`]. `place`
    /// maps the index of an element to its index in `to`.
    fn sum(&mut self, part: Parts<'_>, to: &Tensor, place: &dyn Fn(usize) -> usize) -> Result<()> {
        let index = self.rank.index;
        let mut outcome = Ok(());
        for round in 0..self.count(part) {
            let own = self.piece(part(index), round);
            let pieces = |rank| self.piece(part(rank), round);
            let mut incoming = self.incoming(|_| own.clone())?;
            let exchanged = self.peers.exchange(&outgoing(self.rank, pieces), &mut incoming);
            outcome = first_error(outcome, exchanged)?;
            if let (Ok(()), Some(own)) = (&outcome, own) {
                let mut terms: Vec<Tensor> =
                    incoming.into_iter().map(|incoming| incoming.place).collect();
                terms.insert(index, slice(self.own, own.clone())?);
                let sum = sum(&terms, index);
                outcome = sum.and_then(|sum| {
                    // The sum of a single rank is its own part, which is in place.
                    if sum.shares_storage(to) { Ok(()) } else { write(&sum, to, place(own.start)) }
                });
            }
        }
        outcome
    }

    /// Gathers the parts of all ranks. `place` maps a rank and the index of an element in its part
    /// to the index in `to`.
    fn gather(
        &mut self,
        part: Parts<'_>,
        own: OwnPart,
        to: &Tensor,
        place: &dyn Fn(usize, usize) -> usize,
    ) -> Result<()> {
        let index = self.rank.index;
        let mut outcome = Ok(());
        for round in 0..self.count(part) {
            let own_piece = self.piece(part(index), round);
            let mut incoming = self.incoming(|rank| self.piece(part(rank), round))?;
            let outgoing = outgoing(self.rank, |_| own_piece.clone());
            let exchanged = self.peers.exchange(&outgoing, &mut incoming);
            outcome = first_error(outcome, exchanged)?;
            if let (OwnPart::Copied, Some(piece)) = (own, own_piece) {
                let place = slice(self.own, piece.clone())?;
                incoming.push(Incoming { from: index, piece, place });
            }
            for Incoming { from, piece, place: copy } in incoming {
                let start = place(from, piece.start - part(from).start);
                outcome = outcome.and_then(|()| write(&copy, to, start));
            }
        }
        outcome
    }

    /// The pieces that this rank receives in a round.
    fn incoming(&self, piece: impl Fn(usize) -> Option<Range<usize>>) -> Result<Vec<Incoming>> {
        let incoming = |(&from, copy)| {
            let piece = piece(from)?;
            let place = slice(copy, 0..piece.len());
            Some(place.map(|place| Incoming { from, piece, place }))
        };
        self.copies.iter().filter_map(incoming).collect()
    }

    /// The number of rounds for the longest part.
    fn count(&self, part: Parts<'_>) -> usize {
        let longest = (0..self.rank.count).map(|rank| part(rank).len()).max();
        longest.unwrap_or(0).div_ceil(piece_len(self.own.dtype(), self.rank.count))
    }

    /// The elements of a part that belong to a round.
    fn piece(&self, part: Range<usize>, round: usize) -> Option<Range<usize>> {
        let len = piece_len(self.own.dtype(), self.rank.count);
        let start = part.start + round * len;
        (start < part.end).then(|| start..part.end.min(start + len))
    }
}

/// The pieces that a rank sends in a round.
fn outgoing(rank: Rank, piece: impl Fn(usize) -> Option<Range<usize>>) -> Vec<Outgoing> {
    rank.others().filter_map(|to| Some(Outgoing { to, piece: piece(to)? })).collect()
}

/// The part of a rank if `len` elements are divided evenly among `count` ranks.
fn even_part(len: usize, rank: usize, count: usize) -> Range<usize> {
    let end_of = |ranks: usize| (len as u128 * ranks as u128 / count as u128) as usize;
    end_of(rank)..end_of(rank + 1)
}

/// The part of a rank if each part has `part_len` of `len` elements; the last parts may be shorter.
fn fixed_part(len: usize, rank: usize, part_len: usize) -> Range<usize> {
    len.min(rank * part_len)..len.min((rank + 1) * part_len)
}

/// The number of elements of a piece among `count` ranks.
fn piece_len(dtype: DType, count: usize) -> usize {
    PIECE_BYTES.min(COPIES_BYTES / (count - 1).max(1)) / dtype.size_bytes()
}

/// A view of a range of elements of x in row-major order.
pub(crate) fn slice(x: &Tensor, range: Range<usize>) -> Result<Tensor> {
    Ok(x.view([x.element_count()])?.narrow(0, range.start, range.len())?)
}

/// The ranges of the pieces of a tensor, in order.
fn pieces(x: &Tensor) -> impl Iterator<Item = Range<usize>> + use<> {
    let (end, len) = (x.element_count(), PIECE_BYTES / x.dtype().size_bytes());
    (0..end).step_by(len).map(move |start| start..end.min(start + len))
}

/// Copies `piece` to the elements of `to` from `start` on.
fn write(piece: &Tensor, to: &Tensor, start: usize) -> Result<()> {
    Ok(slice(to, start..start + piece.element_count())?.copy_(piece)?)
}

/// The sum along the tree of [`Collectives::all_reduce`]. It overwrites a term, but not the term
/// with index `own`.
fn sum(terms: &[Tensor], own: usize) -> Result<Tensor> {
    let middle = terms.len().next_power_of_two() / 2;
    if middle == 0 {
        return Ok(terms[0].clone());
    }
    let (first, last) = terms.split_at(middle);
    let is_own = middle == 1 && own == 0;
    let (first, last) = (sum(first, own)?, sum(last, own.wrapping_sub(middle))?);
    // Addition is commutative to the bit.
    let (mut y, x) = if is_own { (last, first) } else { (first, last) };
    y.add_(&x)?;
    Ok(y)
}

/// `Ok` if both tensors have one type and the number of elements is as expected.
fn check(
    op: &'static str,
    from: &Tensor,
    to: &Tensor,
    [len, expected_len]: [usize; 2],
) -> Result<()> {
    if len != expected_len {
        return Err(TensorError::Shape { op, left: *from.shape(), right: *to.shape() }.into());
    }
    if from.dtype() != to.dtype() {
        return Err(TensorError::DType { op, left: from.dtype(), right: to.dtype() }.into());
    }
    Ok(())
}
