//! Errors of collectives, and the description of a call that ranks compare.

use std::fmt;
use std::time::Duration;

#[cfg(feature = "cuda")]
use lowtide_tensor::cuda::gate::NcclError;
use lowtide_tensor::{DType, Tensor, TensorError};

/// The result of a collective.
pub type Result<T> = std::result::Result<T, RanksError>;

/// The description of a collective call. All ranks have to make equal calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Name of the operation.
    pub op: &'static str,
    /// The elements that each rank gives; `None` for a call without tensors.
    pub elements: Option<Elements>,
    /// The rank whose tensor is broadcast; `None` for other calls.
    pub root: Option<usize>,
}

/// The elements of a tensor in a [`Call`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elements {
    /// Type of the elements.
    pub dtype: DType,
    /// Number of elements.
    pub len: usize,
}

impl Elements {
    pub(crate) fn of(x: &Tensor) -> Self {
        Elements { dtype: x.dtype(), len: x.element_count() }
    }
}

impl Call {
    /// A call without a tensor.
    pub(crate) const fn new(op: &'static str) -> Self {
        Call { op, elements: None, root: None }
    }

    /// A call to which each rank gives elements of the number and type of `x`.
    pub(crate) fn giving(op: &'static str, x: &Tensor) -> Self {
        Call { elements: Some(Elements::of(x)), ..Call::new(op) }
    }
}

impl fmt::Display for Elements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.len, self.dtype)
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.op)?;
        if let Some(elements) = self.elements {
            write!(f, " of {elements}")?;
        }
        match self.root {
            Some(root) => write!(f, " from rank {root}"),
            None => Ok(()),
        }
    }
}

/// The reason why a collective failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RanksError {
    /// Two ranks made different calls.
    #[error("rank {rank} calls {other}, this rank calls {own}")]
    Mismatch {
        /// The first rank whose call differs from this rank's.
        rank: usize,
        /// The call of this rank.
        own: Call,
        /// The call of that rank.
        other: Call,
    },
    /// A rank did not make the call in time.
    #[error("{op}: {} did not arrive within {} s", named(missing), waited.as_secs_f64())]
    Late {
        /// Name of the operation.
        op: &'static str,
        /// The ranks that did not make the call.
        missing: Vec<usize>,
        /// Time that the first rank waited.
        waited: Duration,
    },
    /// The ranks could not be started together.
    #[error(
        "the ranks did not come together within {} s: one of them may have ended before",
        waited.as_secs_f64()
    )]
    Start {
        /// Time that this rank waited.
        waited: Duration,
    },
    /// A rank has ended.
    #[error("rank {rank} has ended")]
    Lost {
        /// The rank that has ended.
        rank: usize,
    },
    /// A rank has aborted the training of all ranks.
    #[error("rank {rank} has given up: {reason}")]
    Aborted {
        /// The rank that aborted.
        rank: usize,
        /// The reason that the rank gave.
        reason: String,
    },
    /// Another rank failed in this call. The ranks can continue.
    #[error("rank {rank} failed in {op}: {reason}")]
    Failed {
        /// The first rank that failed.
        rank: usize,
        /// Name of the operation.
        op: &'static str,
        /// The text of its error.
        reason: String,
    },
    /// A rank voted no. The ranks can continue.
    #[error("rank {rank} is not ready: {reason}")]
    Refused {
        /// The first rank that voted no.
        rank: usize,
        /// The reason that the rank gave.
        reason: String,
    },
    /// A rank was named that does not exist.
    #[error("there is no rank {rank} among {count}")]
    NoSuchRank {
        /// The rank that was named.
        rank: usize,
        /// The number of ranks.
        count: usize,
    },
    /// A tensor operation of this rank failed. The other ranks get `Failed`.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

impl RanksError {
    /// True if no collective can succeed any more.
    pub(crate) fn is_fatal(&self) -> bool {
        matches!(
            self,
            RanksError::Late { .. } | RanksError::Lost { .. } | RanksError::Aborted { .. }
        )
    }
}

#[cfg(feature = "cuda")]
impl From<NcclError> for RanksError {
    fn from(error: NcclError) -> Self {
        TensorError::from(error).into()
    }
}

/// A list of ranks as text: `rank 1`, or `ranks 1, 3`.
fn named(ranks: &[usize]) -> String {
    let numbers: Vec<String> = ranks.iter().map(usize::to_string).collect();
    format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, numbers.join(", "))
}
