//! The functions of the driver for context, memory, streams and events, looked up once; and a macro
//! that makes a table of the functions of a library.
//!
//! Types are cudarc's. Its functions are not used: they look a library up at the first call, and
//! panic if the library or a function is missing. With its types, a code that the bindings do not
//! know would be an enum with an invalid value. Here a code is an integer.

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdeviceptr, CUevent, CUmemAccessDesc, CUmemAllocationProp, CUstream,
};

/// Physical memory of a device.
pub(super) type Handle = c_ulonglong;

/// Stamps a table of functions of a C library and its loader from two lists: functions that every
/// such library has, and optional ones. Every function returns a code.
///
/// Names are as in the library's documentation; loading is unsafe, as the types are not checked.
#[macro_export]
macro_rules! function_table {
    (
        $table:ident:
        all have { $($name:ident = $symbol:literal ($($argument:ty),*);)* }
        some have { $($extra:ident = $extra_symbol:literal ($($extra_argument:ty),*);)* }
    ) => {
        /// One function pointer for each entry point.
        pub(crate) struct $table {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) -> ::std::ffi::c_int,)*
            $(
                pub(crate) $extra:
                    Option<unsafe extern "C" fn($($extra_argument),*) -> ::std::ffi::c_int>,
            )*
        }

        impl $table {
            /// # Errors
            /// The first function that the library does not have.
            ///
            /// # Safety
            /// The library is the one that the list describes, so that its functions have these
            /// types, and is never closed.
            pub(crate) unsafe fn load(
                library: &$crate::cuda::Library,
            ) -> Result<$table, &'static str> {
                Ok($table {
                    $($name: {
                        // SAFETY: the caller vouches for the type of the function and for a library
                        // that stays open; the pointer is copied out of the symbol.
                        let symbol = unsafe { library.get(concat!($symbol, "\0")) };
                        *symbol.map_err(|_| $symbol)?
                    },)*
                    $($extra: {
                        // SAFETY: the caller vouches for the type of the function here too.
                        let symbol = unsafe { library.get(concat!($extra_symbol, "\0")) };
                        symbol.ok().map(|symbol| *symbol)
                    },)*
                })
            }
        }
    };
}

function_table! {
    Table:
    all have {
        init = "cuInit" (c_uint);
        driver_version = "cuDriverGetVersion" (*mut c_int);
        error_name = "cuGetErrorName" (c_int, *mut *const c_char);
        device_count = "cuDeviceGetCount" (*mut c_int);
        device = "cuDeviceGet" (*mut CUdevice, c_int);
        device_name = "cuDeviceGetName" (*mut c_char, c_int, CUdevice);
        device_attribute = "cuDeviceGetAttribute" (*mut c_int, c_int, CUdevice);
        context_retain = "cuDevicePrimaryCtxRetain" (*mut CUcontext, CUdevice);
        context_release = "cuDevicePrimaryCtxRelease_v2" (CUdevice);
        context_push = "cuCtxPushCurrent_v2" (CUcontext);
        context_pop = "cuCtxPopCurrent_v2" (*mut CUcontext);
        context_synchronize = "cuCtxSynchronize" ();
        memory_info = "cuMemGetInfo_v2" (*mut usize, *mut usize);
        granularity = "cuMemGetAllocationGranularity"
            (*mut usize, *const CUmemAllocationProp, c_uint);
        address_reserve = "cuMemAddressReserve"
            (*mut CUdeviceptr, usize, usize, CUdeviceptr, c_ulonglong);
        address_free = "cuMemAddressFree" (CUdeviceptr, usize);
        create = "cuMemCreate" (*mut Handle, usize, *const CUmemAllocationProp, c_ulonglong);
        release = "cuMemRelease" (Handle);
        map = "cuMemMap" (CUdeviceptr, usize, usize, Handle, c_ulonglong);
        unmap = "cuMemUnmap" (CUdeviceptr, usize);
        set_access = "cuMemSetAccess" (CUdeviceptr, usize, *const CUmemAccessDesc, usize);
        host_allocate = "cuMemHostAlloc" (*mut *mut c_void, usize, c_uint);
        host_free = "cuMemFreeHost" (*mut c_void);
        stream_create = "cuStreamCreate" (*mut CUstream, c_uint);
        stream_destroy = "cuStreamDestroy_v2" (CUstream);
        stream_synchronize = "cuStreamSynchronize" (CUstream);
        stream_wait = "cuStreamWaitEvent" (CUstream, CUevent, c_uint);
        event_create = "cuEventCreate" (*mut CUevent, c_uint);
        event_record = "cuEventRecord" (CUevent, CUstream);
        event_destroy = "cuEventDestroy_v2" (CUevent);
        copy_in = "cuMemcpyHtoDAsync_v2" (CUdeviceptr, *const c_void, usize, CUstream);
        copy_out = "cuMemcpyDtoHAsync_v2" (*mut c_void, CUdeviceptr, usize, CUstream);
        copy_within = "cuMemcpyDtoDAsync_v2" (CUdeviceptr, CUdeviceptr, usize, CUstream);
        fill = "cuMemsetD8Async" (CUdeviceptr, c_uchar, usize, CUstream);
        fill_words = "cuMemsetD32Async" (CUdeviceptr, c_uint, usize, CUstream);
    }
    some have {}
}
