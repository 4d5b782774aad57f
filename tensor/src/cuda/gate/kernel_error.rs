//! Failures to load code on a device and to launch kernels.

use lowtide_allocator::cuda::CudaError;
use thiserror::Error;

use super::signature::Parameter;

/// Reasons why code cannot be loaded, or a kernel was not launched.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum KernelError {
    /// The driver refuses the image, has no memory for it, or lacks a function that loads it.
    #[error("the code of {module} does not load: {log}")]
    BadImage {
        /// Name of the image.
        module: &'static str,
        /// Message of the driver's compiler; empty if there is none.
        log: String,
        /// Error of the driver.
        #[source]
        cause: CudaError,
    },
    /// No compiler of this machine compiles the kernels, and the program has no PTX of them.
    #[error(
        "the kernels of {module} are not compiled: {reason}; this program has no PTX for machines \
         without NVRTC (it was built without the feature `ptx`)"
    )]
    NoCode {
        /// Name of the image.
        module: &'static str,
        /// The reason why the kernels cannot be compiled here.
        reason: String,
    },
    /// The image has no kernel of this name.
    #[error("the code of {module} has no kernel {kernel}")]
    NoKernel {
        /// Name of the image.
        module: &'static str,
        /// Name of the kernel that was asked for.
        kernel: &'static str,
        /// Error of the driver.
        #[source]
        cause: CudaError,
    },
    /// The kernel has other parameters than declared.
    #[error("kernel {kernel} takes something else than declared from parameter {index} on")]
    OtherParameters {
        /// The name of the kernel.
        kernel: &'static str,
        /// The first parameter that differs, from 0.
        index: usize,
    },
    /// An argument of a launch is missing, is one too many, or is of another kind than the
    /// parameter.
    #[error("argument {index} of kernel {kernel} is not what it takes: {}", taken(*expected))]
    WrongArgument {
        /// The name of the kernel.
        kernel: &'static str,
        /// Index of the argument, from 0.
        index: usize,
        /// Parameter of the kernel at this index; `None` if the kernel has fewer.
        expected: Option<Parameter>,
    },
    /// The kernel was loaded on another device than the device of the streams.
    #[error("kernel {kernel} was loaded on another device")]
    OtherDevice {
        /// The name of the kernel.
        kernel: &'static str,
    },
    /// The driver refused, or an argument is no memory of the device.
    #[error("kernel {kernel} was not launched: {cause}")]
    Call {
        /// The name of the kernel.
        kernel: &'static str,
        /// Error of the driver, or `NotOfDevice`.
        #[source]
        cause: CudaError,
    },
}

fn taken(expected: Option<Parameter>) -> String {
    expected.map_or_else(|| "nothing".to_owned(), |parameter| format!("{parameter:?}"))
}

impl KernelError {
    /// The error of the driver or of the gate behind this one.
    pub fn cause(&self) -> Option<&CudaError> {
        match self {
            KernelError::BadImage { cause, .. }
            | KernelError::NoKernel { cause, .. }
            | KernelError::Call { cause, .. } => Some(cause),
            _ => None,
        }
    }

    /// True if the device's context is lost, by this kernel or by work before it.
    pub fn is_fault(&self) -> bool {
        self.cause().is_some_and(CudaError::is_fault)
    }

    /// True if the device has no memory for the code or the launch. A smaller or a later request
    /// may succeed.
    pub fn is_out_of_memory(&self) -> bool {
        self.cause().is_some_and(CudaError::is_out_of_memory)
    }
}
