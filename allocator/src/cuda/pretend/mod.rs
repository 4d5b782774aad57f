//! The controls of the pretend driver, which tests load in place of the real one.
//!
//! The pretend driver is a library with the driver's entry points, in `xtask/pretend-gpu`. Its
//! devices have host memory, of an exact capacity. Work is queued and runs as late as the driver's
//! documentation allows, or in an order drawn from a seed. Any call can be made to fail. Kernels
//! run on the processor, compiled from the same source; the driver finds them by the names in their
//! image.

mod harness;
mod library;
mod stand_in;

use std::ffi::{CStr, CString, c_char, c_int};
use std::fmt;

pub use harness::{Controls, TestDriver, Turn, is_sanitized};
pub use library::{KernelFile, KernelFolder, Library, LibraryError, Watch, files_in, read_text};
pub use stand_in::stand_in;

use super::device::Architecture;
use super::driver::Driver;

/// Order of the threads and blocks of a kernel between barriers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// From the first to the last.
    Forwards,
    /// From the last to the first.
    Backwards,
    /// A random order, drawn anew for each block from this seed.
    Drawn(u32),
}

/// The pretend driver behind a [`Driver`].
pub struct Pretend {
    reset: unsafe extern "C" fn(u64, u64, u64),
    calls: unsafe extern "C" fn(*const c_char) -> u64,
    fail: unsafe extern "C" fn(*const c_char, c_int, u64, c_int),
    capability: unsafe extern "C" fn(u64),
    driver_version: unsafe extern "C" fn(u64),
    load_bytes: unsafe extern "C" fn(u64),
    schedule: unsafe extern "C" fn(u64),
    threads: unsafe extern "C" fn(u64),
    complaint: unsafe extern "C" fn(*mut c_char, usize),
    take: unsafe extern "C" fn(u64),
    live: unsafe extern "C" fn(*const c_char) -> u64,
}

impl fmt::Debug for Pretend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pretend").finish_non_exhaustive()
    }
}

impl Pretend {
    /// The controls; `None` if the driver is a real one.
    pub fn of(driver: &Driver) -> Option<Pretend> {
        // SAFETY: the library is loaded already, so no initialisation runs.
        let library = unsafe { libloading::Library::new(driver.path()) }.ok()?;
        let pretend = Pretend {
            // SAFETY: only the pretend driver has a function of this name, and this type.
            reset: *unsafe { library.get(b"pretend_reset\0") }.ok()?,
            // SAFETY: only the pretend driver has a function of this name, and this type.
            calls: *unsafe { library.get(b"pretend_calls\0") }.ok()?,
            // SAFETY: only the pretend driver has a function of this name, and this type.
            fail: *unsafe { library.get(b"pretend_fail\0") }.ok()?,
            // SAFETY: only the pretend driver has a function of this name, and this type.
            capability: *unsafe { library.get(b"pretend_capability\0") }.ok()?,
            // SAFETY: only the pretend driver has a function of this name, and this type.
            driver_version: *unsafe { library.get(b"pretend_driver_version\0") }.ok()?,
            // SAFETY: only the pretend driver has a function of this name, and this type.
            load_bytes: *unsafe { library.get(b"pretend_load_bytes\0") }.ok()?,
            // SAFETY: only the pretend driver has a function of this name, and this type.
            schedule: *unsafe { library.get(b"pretend_schedule\0") }.ok()?,
            // SAFETY: only the pretend driver has a function of this name, and this type.
            threads: *unsafe { library.get(b"pretend_threads\0") }.ok()?,
            // SAFETY: only the pretend driver has a function of this name, and this type.
            complaint: *unsafe { library.get(b"pretend_complaint\0") }.ok()?,
            // SAFETY: only the pretend driver has a function of this name, and this type.
            take: *unsafe { library.get(b"pretend_take\0") }.ok()?,
            // SAFETY: only the pretend driver has a function of this name, and this type.
            live: *unsafe { library.get(b"pretend_live\0") }.ok()?,
        };
        // The pointers stay valid only while the library is open.
        std::mem::forget(library);
        Some(pretend)
    }

    /// Sets the driver to its initial state, with two devices of this capacity, page size and
    /// context size. No value may still use the old devices.
    pub fn reset(&self, capacity_bytes: usize, page_bytes: usize, context_bytes: usize) {
        // SAFETY: the function takes numbers. The memory that it unmaps has no owner: the caller
        // ensures it.
        unsafe { (self.reset)(capacity_bytes as u64, page_bytes as u64, context_bytes as u64) }
    }

    /// Number of calls of a driver function since the reset; of all functions, if the name is
    /// empty.
    pub fn calls(&self, function: &str) -> u64 {
        let name = text(function);
        // SAFETY: the function reads a string that ends with a zero.
        unsafe { (self.calls)(name.as_ptr()) }
    }

    /// Makes the nth call from now of a function, or of any function if the name is empty, return
    /// `code` without an effect. With `Forever`, all later calls fail too; `Times` is not
    /// supported. An `nth` of 0 ends the fault.
    pub fn fail(&self, function: &str, code: i32, nth: u64, repeat: crate::fault::Repeat) {
        assert!(!matches!(repeat, crate::fault::Repeat::Times(_)), "{repeat:?}");
        let name = text(function);
        let is_forever = c_int::from(repeat == crate::fault::Repeat::Forever);
        // SAFETY: the function reads a string that ends with a zero, and numbers.
        unsafe { (self.fail)(name.as_ptr(), code, nth, is_forever) }
    }

    /// Makes the nth call from now of a function return success without an effect.
    pub fn lose(&self, function: &str, nth: u64) {
        self.fail(function, 0, nth, crate::fault::Repeat::Once);
    }

    /// Sets the architecture of the devices until the reset. By default the devices name none, and
    /// nothing is compiled for them.
    pub fn architecture(&self, architecture: Architecture) {
        let Architecture { major, minor } = architecture;
        // SAFETY: the function takes a number.
        unsafe { (self.capability)(u64::from(10 * major + minor)) }
    }

    /// Sets the CUDA version of the driver until the reset: 1000 times the major number plus 10
    /// times the minor number. The default is 13.0; the version of its cuBLASLt is 12.8.
    pub fn driver_version(&self, version: usize) {
        // SAFETY: the function takes a number.
        unsafe { (self.driver_version)(version as u64) }
    }

    /// Sets the bytes of the first device that each module and each handle of cuBLASLt takes, until
    /// the reset. Nothing may be loaded yet.
    pub fn load_bytes(&self, size_bytes: usize) {
        // SAFETY: the function takes a number.
        unsafe { (self.load_bytes)(size_bytes as u64) }
    }

    /// Sets the seed that draws the order of work. With 0, each stream runs as late as possible,
    /// and the youngest stream first.
    pub fn schedule(&self, seed: u64) {
        // SAFETY: the function takes a number.
        unsafe { (self.schedule)(seed) }
    }

    /// Sets the order in which the threads and the blocks of a kernel run between barriers.
    pub fn threads(&self, order: Order) {
        let order = match order {
            Order::Forwards => 0,
            Order::Backwards => 1,
            Order::Drawn(seed) => u64::from(seed) + 2,
        };
        // SAFETY: the function takes a number.
        unsafe { (self.threads)(order) }
    }

    /// The error of the kernel that lost the device; `None` if no kernel did.
    pub fn complaint(&self) -> Option<String> {
        let mut text = [0_u8; 512];
        // SAFETY: the function writes at most as many bytes as the array has, and ends with a zero.
        unsafe { (self.complaint)(text.as_mut_ptr().cast(), text.len()) };
        let text = CStr::from_bytes_until_nul(&text).unwrap_or_default().to_string_lossy();
        (!text.is_empty()).then(|| text.into_owned())
    }

    /// Makes another program take `bytes` of the first device.
    pub fn take(&self, bytes: usize) {
        // SAFETY: the function takes a number.
        unsafe { (self.take)(bytes as u64) }
    }

    /// Kinds and counts of resources that were not given back: all counts of [`Pretend::live`]
    /// except bytes.
    pub fn left(&self) -> Vec<(&'static str, u64)> {
        let kinds = [
            "handles", "mappings", "ranges", "host", "streams", "events", "contexts", "modules",
            "programs", "blas", "queued",
        ];
        let counts = kinds.map(|kind| (kind, self.live(kind)));
        counts.into_iter().filter(|&(_, count)| count > 0).collect()
    }

    /// The number of live resources of a kind: `handles`, `mappings`, `ranges`, `host`, `streams`,
    /// `events`, `contexts`, `modules`, `programs` (being compiled), `blas` (descriptors of matrix
    /// products in cuBLASLt), `queued` (work), or `bytes` of the first device in use.
    pub fn live(&self, what: &str) -> u64 {
        let name = text(what);
        // SAFETY: the function reads a string that ends with a zero.
        unsafe { (self.live)(name.as_ptr()) }
    }
}

fn text(name: &str) -> CString {
    CString::new(name).expect("names have no zero inside")
}
