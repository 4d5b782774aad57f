//! What ranks can do together, whatever connects them.

use std::fmt;

use lowtide_tensor::Tensor;

use crate::error::{RanksError, Result};

/// Which of the ranks this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    /// From 0.
    pub index: usize,
    /// How many there are.
    pub count: usize,
}

impl Rank {
    /// All but this one.
    pub(crate) fn others(self) -> impl Iterator<Item = usize> {
        (0..self.count).filter(move |&other| other != self.index)
    }
}

/// Operations that all ranks call in the same order, each with its own tensors.
///
/// Each of them succeeds on all ranks or fails on all. After a failure of one rank (`Failed`, or
/// the error itself there) and after a `Mismatch` the ranks are still together and may go on; after
/// any other error none of them gets anything any more. Tensors are contiguous; what a failed
/// operation was to write holds some of it.
pub trait Collectives: Send + Sync {
    /// Which rank this is.
    fn rank(&self) -> Rank;

    /// What every rank gave, by rank.
    ///
    /// # Errors
    /// `Mismatch`, `Late`, `Lost`, `Aborted`. So for all of them.
    fn exchange(&self, own: &[u8]) -> Result<Vec<Vec<u8>>>;

    /// The sum over the ranks in place of x. It is taken along a tree: of the first ranks, as many
    /// as the largest power of two below their count, and of the others, and so on in each part.
    ///
    /// # Errors
    /// Those of [`Collectives::exchange`], `Tensor` for a tensor that is not contiguous or for a
    /// lack of memory, `Failed` on the others then.
    fn all_reduce(&self, x: &mut Tensor) -> Result<()>;

    /// This rank's part of the sum over the ranks, which is taken as in
    /// [`Collectives::all_reduce`].
    ///
    /// # Shapes
    /// `from: [ranks · n], to: [n]` elements in row-major order.
    ///
    /// # Errors
    /// Those of [`Collectives::all_reduce`].
    fn reduce_scatter(&self, from: &Tensor, to: &mut Tensor) -> Result<()>;

    /// The parts of all ranks side by side.
    ///
    /// # Shapes
    /// `from: [n], to: [ranks · n]` elements in row-major order.
    ///
    /// # Errors
    /// Those of [`Collectives::all_reduce`].
    fn all_gather(&self, from: &Tensor, to: &mut Tensor) -> Result<()>;

    /// The sum over the ranks, which is taken as in [`Collectives::all_reduce`], of this rank's
    /// part of x in its place: parts have `part_len` elements each, in row-major order and by
    /// rank, but for the last ones, which may be shorter or empty. The other parts stay as they
    /// are.
    ///
    /// # Errors
    /// Those of [`Collectives::all_reduce`].
    fn reduce_part(&self, x: &mut Tensor, part_len: usize) -> Result<()>;

    /// What each rank has of its part of x, in its place: parts as in
    /// [`Collectives::reduce_part`].
    ///
    /// # Errors
    /// Those of [`Collectives::all_reduce`].
    fn gather_parts(&self, x: &mut Tensor, part_len: usize) -> Result<()>;

    /// What rank `root` has, in place of x.
    ///
    /// # Errors
    /// Those of [`Collectives::all_reduce`]; `NoSuchRank`.
    fn broadcast(&self, x: &mut Tensor, root: usize) -> Result<()>;

    /// Gives `give` to rank `other` and takes what that gives in place of `take`, both at once; the
    /// other rank trades at the same time. Either may be absent, where it is absent there.
    ///
    /// # Errors
    /// `Late`, `Lost`, `Aborted`, `NoSuchRank`, `Tensor`; `Mismatch` on both if one gives something
    /// else than the other takes; `Failed` if the other rank cannot take it, or
    /// [declines](Collectives::decline). The ranks may go on after the last three.
    fn trade(&self, give: Option<&Tensor>, take: Option<&mut Tensor>, other: usize) -> Result<()>;

    /// In place of a [`Collectives::trade`] with rank `other`, which fails there with `Failed`,
    /// unless it declines as well.
    ///
    /// # Errors
    /// `Late`, `Lost`, `Aborted`, `NoSuchRank`.
    fn decline(&self, other: usize, reason: &str) -> Result<()>;

    /// In place of the call that the other ranks are in, or come to next: it fails for them with
    /// `Failed`, and all of them may go on.
    ///
    /// # Errors
    /// `Late`, `Lost`, `Aborted`.
    fn refuse(&self, reason: &str) -> Result<()>;

    /// Tells the other ranks that this one cannot go on: what they wait for ends with `Aborted`.
    fn abort(&self, reason: &str);

    /// Gives x to rank `to`, and waits until it has it.
    ///
    /// # Errors
    /// Those of [`Collectives::trade`].
    fn send(&self, x: &Tensor, to: usize) -> Result<()> {
        self.trade(Some(x), None, to)
    }

    /// What rank `from` [sends](Collectives::send), in place of x.
    ///
    /// # Errors
    /// Those of [`Collectives::trade`].
    fn receive(&self, x: &mut Tensor, from: usize) -> Result<()> {
        self.trade(None, Some(x), from)
    }

    /// Waits until all ranks are here.
    ///
    /// # Errors
    /// Those of [`Collectives::exchange`].
    fn barrier(&self) -> Result<()> {
        self.exchange(&[]).map(drop)
    }
}

/// `Ok` on all ranks if all of them are ready, else `Refused` on all, of the first that is not.
///
/// # Errors
/// `Refused`, and those of [`Collectives::exchange`].
pub fn vote(ranks: &dyn Collectives, own: std::result::Result<(), &str>) -> Result<()> {
    // A refusal without a reason is one, too.
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
