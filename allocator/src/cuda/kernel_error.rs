//! What can go wrong between a program and the code that it runs on a device.

use thiserror::Error;

use super::error::CudaError;
use super::launch::Parameter;

/// Why code cannot be loaded, or a kernel was not launched.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum KernelError {
    /// The driver does not take the image, or has no memory for it.
    #[error("the code of {module} does not load: {log}")]
    BadImage {
        /// What the image is called.
        module: &'static str,
        /// What the driver's compiler said; empty where it said nothing.
        log: String,
        /// What the driver returned.
        #[source]
        cause: CudaError,
    },
    /// Nothing compiles the kernels on this machine, and the program has no PTX of them.
    #[error(
        "the kernels of {module} are not compiled: {reason}; this program has no PTX for machines \
         without NVRTC (it was built without the feature `ptx`)"
    )]
    NoCode {
        /// What the image is called.
        module: &'static str,
        /// Why nothing compiles them.
        reason: String,
    },
    /// The image has no kernel of this name.
    #[error("the code of {module} has no kernel {kernel}")]
    NoKernel {
        /// What the image is called.
        module: &'static str,
        /// Which was asked for.
        kernel: &'static str,
        /// What the driver returned.
        #[source]
        cause: CudaError,
    },
    /// The kernel takes something else than it was declared to.
    #[error("kernel {kernel} takes something else than declared from parameter {index} on")]
    OtherParameters {
        /// The name of the kernel.
        kernel: &'static str,
        /// The first parameter that differs, from 0.
        index: usize,
    },
    /// An argument of a launch is of another kind than the parameter, too many, or missing.
    #[error("argument {index} of kernel {kernel} is not what it takes: {}", taken(*expected))]
    WrongArgument {
        /// The name of the kernel.
        kernel: &'static str,
        /// Index of the argument, from 0.
        index: usize,
        /// What the kernel takes there; `None` if it takes fewer.
        expected: Option<Parameter>,
    },
    /// The kernel was loaded on another device than the streams are of.
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
        /// What the system says of it.
        #[source]
        cause: CudaError,
    },
}

fn taken(expected: Option<Parameter>) -> String {
    expected.map_or_else(|| "nothing".to_owned(), |parameter| format!("{parameter:?}"))
}

impl KernelError {
    /// What the driver, or the gate, said.
    pub fn cause(&self) -> Option<&CudaError> {
        match self {
            KernelError::BadImage { cause, .. }
            | KernelError::NoKernel { cause, .. }
            | KernelError::Call { cause, .. } => Some(cause),
            _ => None,
        }
    }

    /// Whether the device's context is lost, by this kernel or by work before it.
    pub fn is_fault(&self) -> bool {
        self.cause().is_some_and(CudaError::is_fault)
    }

    /// Whether the device has no memory for the code or the launch: less of it, or later, may do.
    pub fn is_out_of_memory(&self) -> bool {
        self.cause().is_some_and(CudaError::is_out_of_memory)
    }
}
