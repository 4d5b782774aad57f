//! The controls of the pretend driver, which tests load in place of the real one.
//!
//! The pretend driver is a library with the driver's entry points, in `xtask/pretend-gpu`. Devices
//! have memory of the host, of an exact capacity; work is queued and run as late as the driver's
//! documentation allows, or in an order drawn from a seed; any call can be made to fail. Kernels
//! run on the processor, compiled from the same source, and are told apart by the names in their
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

/// In which order threads run that nothing keeps in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The first first.
    Forwards,
    /// The last first.
    Backwards,
    /// As drawn from a seed, anew for each block.
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
        // SAFETY: the library is loaded already, so nothing of it runs.
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

    /// Forgets everything, and starts again with two devices of that capacity, page and context.
    /// Nothing may hold on to the devices from before.
    pub fn reset(&self, capacity_bytes: usize, page_bytes: usize, context_bytes: usize) {
        // SAFETY: the function takes numbers; what it unmaps has no owner, as the caller knows.
        unsafe { (self.reset)(capacity_bytes as u64, page_bytes as u64, context_bytes as u64) }
    }

    /// Calls of a function of the driver since the reset; of all of them, if the name is empty.
    pub fn calls(&self, function: &str) -> u64 {
        let name = text(function);
        // SAFETY: the function reads a string that ends with a zero.
        unsafe { (self.calls)(name.as_ptr()) }
    }

    /// The nth call from now of a function, or of any if the name is empty, returns `code` and does
    /// nothing; so do all later ones if it is repeated forever. An `nth` of 0 ends it.
    pub fn fail(&self, function: &str, code: i32, nth: u64, repeat: crate::fault::Repeat) {
        let name = text(function);
        let is_forever = c_int::from(repeat == crate::fault::Repeat::Forever);
        // SAFETY: the function reads a string that ends with a zero, and numbers.
        unsafe { (self.fail)(name.as_ptr(), code, nth, is_forever) }
    }

    /// The nth call from now of a function does nothing and says that it did.
    pub fn lose(&self, function: &str, nth: u64) {
        self.fail(function, 0, nth, crate::fault::Repeat::Once);
    }

    /// The devices say that they are of this architecture until the reset; before, they say none,
    /// and nothing is compiled for them.
    pub fn architecture(&self, architecture: Architecture) {
        let Architecture { major, minor } = architecture;
        // SAFETY: the function takes a number.
        unsafe { (self.capability)(u64::from(10 * major + minor)) }
    }

    /// The driver says until the reset that it is of this version of CUDA: 1000 times the major
    /// number and 10 times the minor one. Before, it is of 13.0; its cuBLASLt is of 12.8.
    pub fn driver_version(&self, version: usize) {
        // SAFETY: the function takes a number.
        unsafe { (self.driver_version)(version as u64) }
    }

    /// Each module and each handle of cuBLASLt takes so much of the first device, until the reset.
    /// Nothing may be loaded yet.
    pub fn load_bytes(&self, size_bytes: usize) {
        // SAFETY: the function takes a number.
        unsafe { (self.load_bytes)(size_bytes as u64) }
    }

    /// Work runs in an order that the seed draws; with 0, each stream as late as may be, and the
    /// youngest stream first.
    pub fn schedule(&self, seed: u64) {
        // SAFETY: the function takes a number.
        unsafe { (self.schedule)(seed) }
    }

    /// The order in which the threads and the blocks of a kernel run between barriers.
    pub fn threads(&self, order: Order) {
        let order = match order {
            Order::Forwards => 0,
            Order::Backwards => 1,
            Order::Drawn(seed) => u64::from(seed) + 2,
        };
        // SAFETY: the function takes a number.
        unsafe { (self.threads)(order) }
    }

    /// What is wrong with the kernel that lost the device; `None` if none did.
    pub fn complaint(&self) -> Option<String> {
        let mut text = [0_u8; 512];
        // SAFETY: the function writes at most as many bytes as the array has, and ends with a zero.
        unsafe { (self.complaint)(text.as_mut_ptr().cast(), text.len()) };
        let text = CStr::from_bytes_until_nul(&text).unwrap_or_default().to_string_lossy();
        (!text.is_empty()).then(|| text.into_owned())
    }

    /// Another program has this much of the first device.
    pub fn take(&self, bytes: usize) {
        // SAFETY: the function takes a number.
        unsafe { (self.take)(bytes as u64) }
    }

    /// What was not given back, and how many of it: all that [`Pretend::live`] counts but bytes.
    pub fn left(&self) -> Vec<(&'static str, u64)> {
        let kinds = [
            "handles", "mappings", "ranges", "host", "streams", "events", "contexts", "modules",
            "programs", "blas", "queued",
        ];
        let counts = kinds.map(|kind| (kind, self.live(kind)));
        counts.into_iter().filter(|&(_, count)| count > 0).collect()
    }

    /// How many there are: `handles`, `mappings`, `ranges`, `host`, `streams`, `events`,
    /// `contexts`, `modules`, `programs` (being compiled), `blas` (what cuBLASLt
    /// knows products by), `queued` (work), or `bytes` of the first device in use.
    pub fn live(&self, what: &str) -> u64 {
        let name = text(what);
        // SAFETY: the function reads a string that ends with a zero.
        unsafe { (self.live)(name.as_ptr()) }
    }
}

fn text(name: &str) -> CString {
    CString::new(name).expect("names have no zero inside")
}
