//! The collective operations, independent of the connection between the ranks.

use std::fmt;

use lowtide_tensor::Tensor;

use crate::error::{RanksError, Result};

/// The index of a rank and the number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    /// Index of this rank, from 0.
    pub index: usize,
    /// Number of ranks.
    pub count: usize,
}

impl Rank {
    /// The rank of a training that has no others.
    pub const ALONE: Rank = Rank { index: 0, count: 1 };

    /// The indices of all other ranks.
    pub(crate) fn others(self) -> impl Iterator<Item = usize> {
        (0..self.count).filter(move |&other| other != self.index)
    }
}

/// Operations that all ranks call in the same order, each rank with its own tensors.
///
/// An operation succeeds on all ranks or fails on all. After `Failed`, `Tensor` or `Mismatch` the
/// ranks are still together and can continue. After any other error, every later operation fails.
/// Tensors have to be contiguous. After a failure the contents of an output are undefined.
pub trait Collectives: Send + Sync {
    /// This rank.
    fn rank(&self) -> Rank;

    /// Gathers bytes on all ranks: the result has the bytes of every rank, by rank.
    ///
    /// # Errors
    /// `Mismatch`, `Failed`, `Late`, `Lost`, `Aborted`. Every operation can return them.
    fn exchange(&self, own: &[u8]) -> Result<Vec<Vec<u8>>>;

    /// Replaces x by the sum over the ranks.
    ///
    /// The terms are added along a binary tree. A node splits its ranks into the first 2^k, with
    /// the largest 2^k below their number, and the rest, and adds the sums of both.
    ///
    /// # Errors
    /// As for [`Collectives::exchange`]. `Tensor` for a tensor that is not contiguous and for lack
    /// of memory; the other ranks get `Failed`.
    fn all_reduce(&self, x: &mut Tensor) -> Result<()>;

    /// Writes this rank's part of the sum over the ranks. The sum has the bits of
    /// [`Collectives::all_reduce`].
    ///
    /// # Shapes
    /// `from: [ranks · n], to: [n]` elements in row-major order.
    ///
    /// # Errors
    /// As for [`Collectives::all_reduce`].
    fn reduce_scatter(&self, from: &Tensor, to: &mut Tensor) -> Result<()>;

    /// Joins the parts of all ranks, by rank.
    ///
    /// # Shapes
    /// `from: [n], to: [ranks · n]` elements in row-major order.
    ///
    /// # Errors
    /// As for [`Collectives::all_reduce`].
    fn all_gather(&self, from: &Tensor, to: &mut Tensor) -> Result<()>;

    /// [`Collectives::reduce_scatter`] in place: replaces this rank's part of x by its sum over the
    /// ranks, and leaves the other parts unchanged.
    ///
    /// Part i is the elements `i · part_len..(i + 1) · part_len` in row-major order. The last parts
    /// may be shorter or empty.
    ///
    /// # Errors
    /// As for [`Collectives::all_reduce`].
    fn reduce_part(&self, x: &mut Tensor, part_len: usize) -> Result<()>;

    /// [`Collectives::all_gather`] in place: replaces each part of x by the part of the rank that
    /// owns it. Parts are those of [`Collectives::reduce_part`].
    ///
    /// # Errors
    /// As for [`Collectives::all_reduce`].
    fn gather_parts(&self, x: &mut Tensor, part_len: usize) -> Result<()>;

    /// Replaces x on all ranks by the x of rank `root`.
    ///
    /// # Errors
    /// As for [`Collectives::all_reduce`]; `NoSuchRank`.
    fn broadcast(&self, x: &mut Tensor, root: usize) -> Result<()>;

    /// Sends `give` to rank `other` and receives `take` from it, both at once. The other rank has
    /// to trade with this rank at the same time. A rank that receives nothing passes `None` for
    /// `take`; the other rank then passes `None` for `give`.
    ///
    /// # Errors
    /// `Late`, `Lost`, `Aborted`, `NoSuchRank`. `Mismatch` on both ranks if one rank gives other
    /// elements than the other rank takes. `Tensor` on the rank whose tensor operation fails,
    /// `Failed` on the other rank; `Failed` also if the other rank
    /// [declines](Collectives::decline). The ranks can continue after `Mismatch`, `Tensor` and
    /// `Failed`.
    fn trade(&self, give: Option<&Tensor>, take: Option<&mut Tensor>, other: usize) -> Result<()>;

    /// Makes a [`Collectives::trade`] of rank `other` with this rank fail with `Failed`. Both ranks
    /// may decline.
    ///
    /// # Errors
    /// `Late`, `Lost`, `Aborted`, `NoSuchRank`.
    fn decline(&self, other: usize, reason: &str) -> Result<()>;

    /// Makes the present or next call of the other ranks fail with `Failed`. The refusal takes the
    /// place of that call on this rank, and all ranks can continue. Returns true if every rank has
    /// refused this time: ranks that repeat their refusal until then have left all calls in which
    /// they were.
    ///
    /// # Errors
    /// `Late`, `Lost`, `Aborted`.
    fn refuse(&self, reason: &str) -> Result<bool>;

    /// Ends the collectives of all ranks: every present and later wait of the other ranks fails
    /// with `Aborted`.
    fn abort(&self, reason: &str);

    /// Sends x to rank `to`, and waits until that rank has received it.
    ///
    /// # Errors
    /// As for [`Collectives::trade`].
    fn send(&self, x: &Tensor, to: usize) -> Result<()> {
        self.trade(Some(x), None, to)
    }

    /// Replaces x by the tensor that rank `from` [sends](Collectives::send).
    ///
    /// # Errors
    /// As for [`Collectives::trade`].
    fn receive(&self, x: &mut Tensor, from: usize) -> Result<()> {
        self.trade(None, Some(x), from)
    }

    /// Waits until all ranks have made this call.
    ///
    /// # Errors
    /// As for [`Collectives::exchange`].
    fn barrier(&self) -> Result<()> {
        self.exchange(&[]).map(drop)
    }
}

/// A vote of all ranks: `Ok` on all if all vote `Ok`, else `Refused` on all. The error names the
/// first rank that voted no.
///
/// # Errors
/// `Refused`; else as for [`Collectives::exchange`].
pub fn vote(ranks: &dyn Collectives, own: std::result::Result<(), &str>) -> Result<()> {
    // The mark distinguishes a no with an empty reason from a yes.
    let own = own.err().map_or(String::new(), |reason| format!("!{reason}"));
    for (rank, answer) in ranks.exchange(own.as_bytes())?.into_iter().enumerate() {
        if let Some(reason) = answer.strip_prefix(b"!") {
            let reason = String::from_utf8_lossy(reason).into_owned();
            return Err(RanksError::Refused { rank, reason });
        }
    }
    Ok(())
}

impl fmt::Debug for dyn Collectives + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rank { index, count } = self.rank();
        write!(f, "rank {index} of {count}")
    }
}
