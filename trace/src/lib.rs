#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod error;
mod explain;
mod lifetimes;
mod printable;
mod pytorch;
mod recording;
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
pub use pytorch::settings::{SettingsError, SettingsProblem, parse_settings};
pub use pytorch::snapshot::{Action, RecordedEvent, RecordedSegment, Snapshot};
pub use recording::validate::{RecordingError, RecordingPart, RecordingProblem};
pub use recording::{
    EventKind, Piece, RecordedBlock, RecordedRange, Recording, SegmentKind, Site, TraceEvent,
};
pub use rerun::{RerunError, RerunFailure, RerunOptions, RerunReport};

// Items for the command line program, which may change in any version.
#[doc(hidden)]
pub use printable::{beginning, printable};
