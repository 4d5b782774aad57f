//! The driver's functions that load code and launch kernels.
//!
//! The allocator's own table has the driver's other functions: context, memory, streams, events.

use std::ffi::{c_char, c_int, c_uint, c_void};

use cudarc::driver::sys::{CUfunction, CUmodule, CUstream};
use lowtide_allocator::cuda::{CudaError, Driver};
use lowtide_allocator::function_table;

function_table! {
    Functions:
    all have {
        module_load = "cuModuleLoadDataEx"
            (*mut CUmodule, *const c_void, c_uint, *const c_int, *const *mut c_void);
        module_unload = "cuModuleUnload" (CUmodule);
        function = "cuModuleGetFunction" (*mut CUfunction, CUmodule, *const c_char);
        function_attribute = "cuFuncGetAttribute" (*mut c_int, c_int, CUfunction);
        set_function_attribute = "cuFuncSetAttribute" (CUfunction, c_int, c_int);
        launch = "cuLaunchKernel" (
            CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream,
            *const *mut c_void, *const *mut c_void
        );
    }
    some have {
        // Since CUDA 12.4.
        parameter = "cuFuncGetParamInfo" (CUfunction, usize, *mut usize, *mut usize);
        // Only the pretend driver has this function, see `Extent`.
        extents = "pretend_extents" (*const Extent, usize);
    }
}

impl Functions {
    /// Looks the functions up in the driver's library.
    ///
    /// # Errors
    /// `MissingSymbol` with the first function that the library does not have.
    pub(super) fn of(driver: &Driver) -> Result<Functions, CudaError> {
        // SAFETY: 1. the library is a CUDA driver, as `Driver::open` says, and each function has
        // had its type since CUDA 11. 2. A driver is never closed.
        let functions = unsafe { Functions::load(driver.library()) };
        let path = driver.path();
        functions.map_err(|symbol| CudaError::MissingSymbol { path: path.to_path_buf(), symbol })
    }
}

/// A range of bytes that a launch may use: the address, the size, and the permission to write. The
/// pretend driver gets these ranges before each launch. A real driver sees addresses alone.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Extent {
    pub(super) address: u64,
    pub(super) size_bytes: u64,
    pub(super) is_written: u64,
}
