//! Recorded allocation traces: reading, writing and replaying them.
//!
//! A [`Snapshot`] is what `torch.cuda.memory._dump_snapshot` writes: the segments and blocks of a
//! moment, and what happened up to it. The file is a pickle; here it is read by a machine that
//! knows numbers, strings, lists, tuples and dictionaries and nothing else, so that a file from a
//! stranger can do no more than be refused. Memory is proportional to the file, errors carry the
//! byte offset.
//!
//! A [`Recording`] is the same in a neutral form, whoever recorded it. It comes
//! [from a snapshot](Recording::from_snapshot), goes [to one](Recording::write_pickle) for
//! PyTorch's tools and viewer, and is kept without loss as
//! [lines of JSON](Recording::write_json_lines).
//!
//! [`Replay`] rebuilds the state at the beginning of the trace, runs every event through
//! [`TorchPolicy`](crate::torch::TorchPolicy) and compares each address, each segment and the final
//! blocks with the recorded ones.

mod error;
mod export;
mod file;
mod frames;
mod import;
mod json;
mod laws;
pub mod pickle;
mod ranges;
mod recording;
mod replay;
mod report;
mod snapshot;
mod start;

pub use error::{JsonProblem, TraceError, TraceProblem};
pub use export::ExportError;
pub use file::{Limits, read_snapshot};
pub use laws::{RecordingError, RecordingPart, RecordingProblem};
pub use recording::{
    EventKind, Piece, RecordedBlock, RecordedRange, Recording, SegmentKind, Site, TraceEvent,
};
pub use replay::{Replay, ReplayError};
pub use report::ReplayReport;
pub use snapshot::{Action, RecordedEvent, RecordedSegment, Snapshot};
