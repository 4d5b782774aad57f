//! Recorded allocation traces: reading, writing and replaying them.
//!
//! A [`Snapshot`] is what `torch.cuda.memory._dump_snapshot` writes: the segments and blocks of a
//! moment, and what happened up to it. The file is a pickle; here it is read by a machine that
//! knows numbers, strings, lists, tuples and dictionaries and nothing else, so that a file from a
//! stranger can do no more than be refused. Memory is proportional to the file as it lies on the
//! disk, and within [`Limits`]; errors carry the byte offset.
//!
//! A [`Recording`] is the same in a neutral form, whichever program recorded it. It comes
//! [from a snapshot](Recording::from_snapshot), goes [to one](Recording::write_pickle) for
//! PyTorch's tools and viewer, and is kept without loss as
//! [lines of JSON](Recording::write_json_lines). [`Recording::explain`] says where its memory went,
//! [`Recording::write_timeline`] draws it on a page for a browser.
//!
//! [`Replay`] rebuilds the state at the beginning of the trace, runs every event through
//! [`TorchPolicy`](crate::torch::TorchPolicy) and compares each address, each segment and the final
//! blocks with the recorded ones. Two things a trace does not tell, and a replay can miss. A
//! request that found nothing, waited for streams and released memory does not search the cache
//! again; one that comes after another did so does, and can find a block that became free, or
//! the one behind an oversize block. And nothing tells how long an expandable segment is.

mod error;
mod explain;
mod lifetimes;
pub(crate) mod pytorch;
pub(crate) mod recording;
mod rerun;
pub mod timeline;

pub use error::{JsonProblem, TraceError, TraceProblem};
pub use explain::{
    Advice, CategoryShare, Churn, Explanation, Failure, Group, ModuleBytes, Moment, Peak, Phase,
    PhaseShare, SiteShare, Transient, Unfreed, Waits,
};
pub use pytorch::export::ExportError;
pub use pytorch::file::{Limits, PICKLE_PER_XZ_BYTE, read_snapshot};
pub use pytorch::pickle;
pub use pytorch::replay::Replay;
pub use pytorch::replay::error::ReplayError;
pub use pytorch::replay::report::ReplayReport;
pub use pytorch::snapshot::{Action, RecordedEvent, RecordedSegment, Snapshot};
pub use recording::capture::Capture;
pub use recording::validate::{RecordingError, RecordingPart, RecordingProblem};
pub use recording::{
    EventKind, Piece, RecordedBlock, RecordedRange, Recording, SegmentKind, Site, TraceEvent,
};
pub use rerun::{RerunError, RerunFailure, RerunOptions, RerunReport};
