//! What can go wrong between ranks.

use std::time::Duration;

#[cfg(feature = "cuda")]
use lowtide_tensor::cuda::gate::NcclError;
use lowtide_tensor::{DType, TensorError};

/// The result of what ranks do together.
pub type Result<T> = std::result::Result<T, RanksError>;

/// What a rank calls: two ranks can only meet in the same call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The operation's name.
    pub op: &'static str,
    /// The type and the count of the elements that each rank gives, if it gives a tensor.
    pub elements: Option<(DType, usize)>,
    /// The rank that gives, in a broadcast.
    pub root: Option<usize>,
}

impl std::fmt::Display for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.op)?;
        if let Some((dtype, len)) = self.elements {
            write!(f, " of {len} {dtype}")?;
        }
        match self.root {
            Some(root) => write!(f, " from rank {root}"),
            None => Ok(()),
        }
    }
}

/// Why ranks did not do something together.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RanksError {
    /// Two ranks are in different calls.
    #[error("rank {rank} is in {other}, this one in {own}")]
    Mismatch {
        /// The first rank that is in another call than this one.
        rank: usize,
        /// This rank's call.
        own: Call,
        /// That rank's.
        other: Call,
    },
    /// A rank did not come in time.
    #[error("{op}: {} did not come within {} s", named(missing), waited.as_secs_f64())]
    Late {
        /// What was waited for.
        op: &'static str,
        /// Who did not come.
        missing: Vec<usize>,
        /// How long the first one waited.
        waited: Duration,
    },
    /// What starts the ranks did not bring them together.
    #[error(
        "the ranks did not come together within {} s: one of them may have ended before",
        waited.as_secs_f64()
    )]
    Start {
        /// How long this one waited.
        waited: Duration,
    },
    /// A rank has ended.
    #[error("rank {rank} has ended")]
    Lost {
        /// The one that was waited for.
        rank: usize,
    },
    /// A rank cannot go on.
    #[error("rank {rank} has given up: {reason}")]
    Aborted {
        /// The one that gave up.
        rank: usize,
        /// What it said.
        reason: String,
    },
    /// Another rank failed in this call; the ranks may go on.
    #[error("rank {rank} failed in {op}: {reason}")]
    Failed {
        /// The first that did.
        rank: usize,
        /// What the ranks were to do together.
        op: &'static str,
        /// Its error, in words.
        reason: String,
    },
    /// A rank voted against it; the ranks may go on.
    #[error("rank {rank} is not ready: {reason}")]
    Refused {
        /// The first that did.
        rank: usize,
        /// What it said.
        reason: String,
    },
    /// There are fewer ranks.
    #[error("there is no rank {rank} among {count}")]
    NoSuchRank {
        /// The rank that was named.
        rank: usize,
        /// How many there are.
        count: usize,
    },
    /// This rank failed; the others get `Failed`.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

#[cfg(feature = "cuda")]
impl From<NcclError> for RanksError {
    fn from(error: NcclError) -> Self {
        TensorError::from(error).into()
    }
}

/// `rank 1`, or `ranks 1, 3`.
fn named(ranks: &[usize]) -> String {
    let numbers: Vec<String> = ranks.iter().map(usize::to_string).collect();
    format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, numbers.join(", "))
}
