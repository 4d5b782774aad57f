//! What is wrong with a file, and where.

use std::io;

use thiserror::Error;

use crate::pytorch::settings::SettingsError;
use crate::recording::validate::RecordingProblem;

/// A trace that could not be read.
#[derive(Debug, Error)]
#[error("byte {offset}: {problem}")]
pub struct TraceError {
    /// Offset in the pickle; in the compressed file, if decompression failed.
    pub offset: u64,
    /// What is wrong there.
    pub problem: TraceProblem,
}

impl TraceError {
    pub(super) fn new(offset: usize, problem: TraceProblem) -> Self {
        TraceError { offset: offset as u64, problem }
    }
}

/// What is wrong with a trace.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TraceProblem {
    /// The bytes are not a pickle of plain data.
    #[error(transparent)]
    Pickle(#[from] PickleProblem),
    /// The lines are not a trace of this crate.
    #[error(transparent)]
    Json(#[from] JsonProblem),
    /// The trace contradicts itself.
    #[error(transparent)]
    Recording(#[from] RecordingProblem),
    /// The pickle is not a memory snapshot: a value has another type than it should.
    #[error("{key} is {found}, not {expected}")]
    Type {
        /// The key whose value it is.
        key: &'static str,
        /// What it should be.
        expected: &'static str,
        /// What it is.
        found: &'static str,
    },
    /// A key that a snapshot must have is absent.
    #[error("{key} is missing")]
    Missing {
        /// Name of the key in the file.
        key: &'static str,
    },
    /// A number or a word is not one of those that make sense.
    #[error("{key} cannot be {value}")]
    Value {
        /// The key whose value it is.
        key: &'static str,
        /// Value in the file.
        value: String,
    },
    /// The recorded settings cannot be.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// More than the limits allow.
    #[error("more than {limit} {what}")]
    Limit {
        /// As many as are allowed.
        limit: u64,
        /// What there is too much of.
        what: &'static str,
    },
    /// The compressed data stand for more than a snapshot's would.
    #[error("more than {limit} bytes for each compressed one: decompress the file first")]
    Expansion {
        /// How many there may be.
        limit: usize,
    },
    /// The compressed data end before the stream does.
    #[error("the compressed file ends in the middle")]
    Cut,
    /// The file could not be read or decompressed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Why bytes are not a pickle of plain data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PickleProblem {
    /// The bytes end before the pickle does.
    #[error("the pickle ends in the middle")]
    Truncated,
    /// An instruction that plain data needs not; some of them run code.
    #[error("opcode {0:#04x} is not allowed")]
    Opcode(u8),
    /// The first instruction does not name a protocol between 2 and 5.
    #[error("not a pickle of protocol 2 to 5")]
    Protocol,
    /// There is something after the end.
    #[error("the pickle has ended, the file has not")]
    Trailing,
    /// An instruction needs more values than there are, or leaves some over.
    #[error("the stack of values does not fit the instruction")]
    Stack,
    /// An instruction works on a value of another kind.
    #[error("the instruction works on {expected}, but finds {found}")]
    Kind {
        /// The kind it works on.
        expected: &'static str,
        /// The kind there is.
        found: &'static str,
    },
    /// A number that does not fit 64 bits with a sign.
    #[error("a number of {0} bytes is too long")]
    Number(u8),
    /// Text that is not UTF-8.
    #[error("the text is not UTF-8")]
    Text,
    /// A value is recalled that was never memorised, or memorised under an absurd number.
    #[error("no value {0} in the memo")]
    Memo(u64),
    /// A container is changed after it was put into another one: so cycles begin.
    #[error("a container changes after it was put into another one")]
    Sealed,
    /// Containers in containers, too deep.
    #[error("nested too deep")]
    Depth,
    /// Its values take more memory than a file of its size may, or any file.
    #[error("its values take more than {limit_bytes} bytes of memory")]
    Memory {
        /// What it may take.
        limit_bytes: usize,
    },
}

/// Why lines are not a trace of this crate.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum JsonProblem {
    /// A line is not JSON, or not one of the lines there are.
    #[error(transparent)]
    Line(#[from] serde_json::Error),
    /// The first line does not say `lowtide-trace`, or another version than this crate reads.
    #[error("not a trace of version {expected}")]
    Version {
        /// The version that this crate reads.
        expected: u32,
    },
    /// A line comes after one that it has to come before.
    #[error("{found} comes too late")]
    Order {
        /// What the line says.
        found: &'static str,
    },
    /// A line lacks a key, or has one too many, for what it says.
    #[error("{key} is missing here, or out of place")]
    Key {
        /// Name of the key in the file.
        key: &'static str,
    },
    /// The lines end before the last one, or within one.
    #[error("the trace ends in the middle")]
    Cut,
    /// There is something after the last line.
    #[error("the trace has ended, the file has not")]
    Trailing,
    /// The last line counts something else than there is.
    #[error("lines are missing, or too many")]
    Counts,
}
