//! Failures between a program and its device.

use std::path::PathBuf;

use thiserror::Error;

use super::libraries::searched;
use crate::source::SourceError;
use crate::stream::Stream;

/// Reasons why a device cannot be opened, or a call failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CudaError {
    /// There is no driver on this machine, or only in a folder that is not searched.
    #[error(
        "no CUDA driver: looked for {} in {} and by the system's loader ({loader_message}); \
         LOWTIDE_CUDA_LIBS can name more folders",
        names.join(" and "),
        searched(folders)
    )]
    NoLibrary {
        /// File names that were looked for.
        names: Vec<&'static str>,
        /// Folders that were searched before the loader was asked.
        folders: Vec<PathBuf>,
        /// Message of the system's loader about the last name.
        loader_message: String,
    },
    /// A file has the driver's name and cannot be loaded.
    #[error("{path:?} cannot be loaded: {loader_message}")]
    BadLibrary {
        /// The file of the library.
        path: PathBuf,
        /// Message of the system's loader.
        loader_message: String,
    },
    /// The driver is too old, or the library is no CUDA driver.
    #[error("{path:?} has no function {symbol}; drivers for CUDA 11 and later have it")]
    MissingSymbol {
        /// Path of the library's file.
        path: PathBuf,
        /// Name of the function that the library lacks.
        symbol: &'static str,
    },
    /// The machine has fewer devices.
    #[error("no CUDA device {index}: the driver has {count}")]
    NoDevice {
        /// Index of the device that was asked for, from 0.
        index: usize,
        /// Number of devices.
        count: usize,
    },
    /// The device has no virtual memory management, or its page size is invalid.
    #[error("CUDA device {index} cannot map memory in pages")]
    NoVirtualMemory {
        /// The number of the device.
        index: usize,
    },
    /// The stream has a queue already, or the queue belongs to another device.
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

/// Codes after which the context is unusable or the process has to be started again, by the
/// driver's documentation (CUDA Driver API, "Data types used by CUDA driver", `cudaError_enum`):
/// deinitialized, uncorrectable ECC error, uncorrectable NVLink error, illegal address, launch
/// timeout, context destroyed, assert, hardware stack error, illegal instruction, misaligned
/// address, invalid address space, invalid program counter, launch failed.
const STICKY: [i32; 13] = [4, 214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719];

impl CudaError {
    /// True if the device ran out of memory. A smaller request, or a later one, may succeed.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, CudaError::Call { code: OUT_OF_MEMORY, .. })
    }

    /// True if the context of the device is lost. Every later call fails too, and only a new
    /// process can use the device again.
    pub fn is_fault(&self) -> bool {
        matches!(self, CudaError::Call { code, .. } if STICKY.contains(code))
    }

    /// The error as the allocator's type, for an operation on `size_bytes`.
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
