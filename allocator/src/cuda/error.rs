//! Failures between a program and its device.

use std::path::PathBuf;

use thiserror::Error;

use super::libraries::searched;
use crate::source::SourceError;
use crate::stream::Stream;

/// Why a device cannot be had, or did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CudaError {
    /// There is no driver on this machine, or in a folder that is not searched.
    #[error(
        "no CUDA driver: looked for {} in {} and by the system's loader ({loader_message}); \
         LOWTIDE_CUDA_LIBS can name more folders",
        names.join(" and "),
        searched(folders)
    )]
    NoLibrary {
        /// File names that were looked for.
        names: Vec<&'static str>,
        /// Folders looked into, before the loader was asked.
        folders: Vec<PathBuf>,
        /// Message of the system's loader about the last name.
        loader_message: String,
    },
    /// A file is called like the driver and cannot be loaded.
    #[error("{path:?} cannot be loaded: {loader_message}")]
    BadLibrary {
        /// The file of the library.
        path: PathBuf,
        /// Message of the system's loader.
        loader_message: String,
    },
    /// The driver is too old, or is none.
    #[error("{path:?} has no function {symbol}; drivers for CUDA 11 and later have it")]
    MissingSymbol {
        /// Path of the library's file.
        path: PathBuf,
        /// Name of the function that the library lacks.
        symbol: &'static str,
    },
    /// There are fewer devices.
    #[error("no CUDA device {index}: the driver has {count}")]
    NoDevice {
        /// Which was asked for, from 0.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// The device has no virtual memory management, or a page size that is none.
    #[error("CUDA device {index} cannot map memory in pages")]
    NoVirtualMemory {
        /// The number of the device.
        index: usize,
    },
    /// The stream has a queue already, or the queue is of another device.
    #[error("{stream} has a queue already, or the queue is of another device")]
    StreamTaken {
        /// The stream in question.
        stream: Stream,
    },
    /// Bytes that are not inside a block of this device.
    #[error("{size_bytes} bytes at {address:#x} are no memory of this device's allocators")]
    NotOfDevice {
        /// The address of the first byte.
        address: u64,
        /// Length in bytes.
        size_bytes: usize,
    },
    /// The driver refused a call.
    #[error("{call} failed with {name} ({code})")]
    Call {
        /// Name of the function that was called.
        call: &'static str,
        /// Code that the function returned.
        code: i32,
        /// The driver's name for the code.
        name: String,
    },
}

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: i32 = 2;

/// After these the driver's documentation (CUDA Driver API, "Data types used by CUDA driver",
/// `cudaError_enum`) says that the context is unusable or the process has to be started again:
/// deinitialized, uncorrectable ECC error, uncorrectable NVLink error, illegal address, launch
/// timeout, context destroyed, assert, hardware stack error, illegal instruction, misaligned
/// address, invalid address space, invalid program counter, launch failed.
const STICKY: [i32; 13] = [4, 214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719];

impl CudaError {
    /// Whether the device ran out of memory: less of it, or later, may do.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, CudaError::Call { code: OUT_OF_MEMORY, .. })
    }

    /// Whether the device's context is lost: every later call fails too, whatever it asks for, and
    /// only a new process has the device again.
    pub fn is_fault(&self) -> bool {
        matches!(self, CudaError::Call { code, .. } if STICKY.contains(code))
    }

    /// The error in the allocator's type, for an operation on `size_bytes`.
    pub(super) fn of_source(&self, size_bytes: usize) -> SourceError {
        match *self {
            CudaError::Call { code: OUT_OF_MEMORY, .. } => SourceError::OutOfMemory { size_bytes },
            CudaError::Call { call: operation, code, .. } if self.is_fault() => {
                SourceError::DeviceFault { operation, code }
            }
            CudaError::Call { call: operation, code, .. } => {
                SourceError::System { operation, size_bytes, code }
            }
            _ => SourceError::System { operation: "the CUDA gate", size_bytes, code: 0 },
        }
    }
}
