//! Errors of readers, each with the byte offset of the problem.

use std::io;

use thiserror::Error;

use crate::pytorch::settings::SettingsError;
use crate::recording::validate::RecordingProblem;

/// A trace that could not be read.
#[derive(Debug, Error)]
#[error("byte {offset}: {problem}")]
pub struct TraceError {
    /// Offset in the pickle, or in the compressed file if decompression failed.
    pub offset: u64,
    /// The problem at this offset.
    pub problem: TraceProblem,
}

impl TraceError {
    pub(super) fn new(offset: usize, problem: TraceProblem) -> Self {
        TraceError { offset: offset as u64, problem }
    }
}

/// A problem of a trace.
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
        /// The key of the value.
        key: &'static str,
        /// The expected type.
        expected: &'static str,
        /// The type in the file.
        found: &'static str,
    },
    /// A key that a snapshot must have is absent.
    #[error("{key} is missing")]
    Missing {
        /// Name of the key in the file.
        key: &'static str,
    },
    /// A number or a word makes no sense for its key.
    #[error("{key} cannot be {value}")]
    Value {
        /// The key of the value.
        key: &'static str,
        /// Value in the file.
        value: String,
    },
    /// The recorded settings are refused.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The file exceeds a limit.
    #[error("more than {limit} {what}")]
    Limit {
        /// Largest number that is allowed.
        limit: u64,
        /// The things that are limited.
        what: &'static str,
    },
    /// The file unpacks to more bytes than a snapshot would.
    #[error("more than {limit} bytes for each compressed one: decompress the file first")]
    Expansion {
        /// Number of unpacked bytes that are allowed for each compressed byte.
        limit: usize,
    },
    /// The compressed file ends in the middle.
    #[error("the compressed file ends in the middle")]
    Cut,
    /// The file could not be read or decompressed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Reasons why bytes are not a pickle of plain data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PickleProblem {
    /// The bytes end before the end of the pickle.
    #[error("the pickle ends in the middle")]
    Truncated,
    /// An instruction that plain data does not need; some of these run code.
    #[error("opcode {0:#04x} is not allowed")]
    Opcode(u8),
    /// The first instruction does not name a protocol between 2 and 5.
    #[error("not a pickle of protocol 2 to 5")]
    Protocol,
    /// Bytes follow the end of the pickle.
    #[error("the pickle has ended, the file has not")]
    Trailing,
    /// An instruction needs more values than the stack has, or the stack is not empty at the end.
    #[error("the stack of values does not fit the instruction")]
    Stack,
    /// An instruction works on a value of another kind.
    #[error("the instruction works on {expected}, but finds {found}")]
    Kind {
        /// The kind that the instruction works on.
        expected: &'static str,
        /// The kind that was found.
        found: &'static str,
    },
    /// A number does not fit into a signed 64-bit integer.
    #[error("a number of {0} bytes is too long")]
    Number(u8),
    /// Text is not UTF-8.
    #[error("the text is not UTF-8")]
    Text,
    /// A recalled value was never memorised, or a value is memorised under an absurd number.
    #[error("no value {0} in the memo")]
    Memo(u64),
    /// A container changes after it was put into another one. This could make a cycle.
    #[error("a container changes after it was put into another one")]
    Sealed,
    /// Containers are nested too deep.
    #[error("nested too deep")]
    Depth,
    /// The values take more memory than a file of this size, or any file, may take.
    #[error("its values take more than {limit_bytes} bytes of memory")]
    Memory {
        /// Memory that the file may take.
        limit_bytes: usize,
    },
}

/// Reasons why lines are not a trace of this crate.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum JsonProblem {
    /// A line is not JSON, or is of no known kind.
    #[error(transparent)]
    Line(#[from] serde_json::Error),
    /// The first line does not name `lowtide-trace`, or names another version than this crate
    /// reads.
    #[error("not a trace of version {expected}")]
    Version {
        /// The version that this crate reads.
        expected: u32,
    },
    /// A line comes after a line that it has to precede.
    #[error("{found} comes too late")]
    Order {
        /// The kind of line.
        found: &'static str,
    },
    /// A line of this kind lacks a key, or has one too many.
    #[error("{key} is missing here, or out of place")]
    Key {
        /// Name of the key in the file.
        key: &'static str,
    },
    /// The lines end before the last one, or in the middle of a line.
    #[error("the trace ends in the middle")]
    Cut,
    /// Lines follow the last one.
    #[error("the trace has ended, the file has not")]
    Trailing,
    /// The counts of the last line differ from the lines.
    #[error("lines are missing, or too many")]
    Counts,
}
