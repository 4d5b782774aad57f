//! One device and its primary context, which every library of a process shares.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::{CUcontext, CUdevice, CUdevice_attribute};

use super::driver::Driver;
use super::error::CudaError;
use super::libraries::Libraries;
use super::table::Table;

/// An NVIDIA device. Clones are handles to the same device; the last handle releases its context.
#[derive(Clone)]
pub struct CudaDevice {
    shared: Arc<Shared>,
}

struct Shared {
    driver: Driver,
    index: usize,
    device: CUdevice,
    context: Context,
    /// Address ranges of this device's sources, start to length.
    ranges: Mutex<BTreeMap<u64, usize>>,
}

/// The device's primary context.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Context(pub(super) CUcontext);

// SAFETY: 1. the pointer is an opaque handle that only the driver dereferences. 2. The driver
// allows a context to be current in any number of threads (CUDA Driver API, "Context Management").
unsafe impl Send for Context {}
// SAFETY: a shared `Context` yields a copy of the handle and nothing else; see `Send` for its use.
unsafe impl Sync for Context {}

/// Memory of a device at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// All memory of the device.
    pub total_bytes: usize,
    /// Memory that is free.
    pub free_bytes: usize,
}

/// The compute capability that code for a device is compiled for. Its text is `sm_` and both
/// numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Architecture {
    /// Number of the generation.
    pub major: u32,
    /// Number within the generation.
    pub minor: u32,
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}{}", self.major, self.minor)
    }
}

impl CudaDevice {
    /// The device with this number, under the driver of [`Libraries::from_environment`].
    ///
    /// # Errors
    /// There is no driver or no such device, or the driver gives no context on it.
    pub fn open(index: usize) -> Result<CudaDevice, CudaError> {
        CudaDevice::of(&Driver::open(&Libraries::from_environment())?, index)
    }

    /// The device with this number.
    ///
    /// # Errors
    /// There is no such device, or the driver gives no context on it.
    pub fn of(driver: &Driver, index: usize) -> Result<CudaDevice, CudaError> {
        let count = driver.device_count()?;
        let ordinal = c_int::try_from(index).ok().filter(|_| index < count);
        let ordinal = ordinal.ok_or(CudaError::NoDevice { index, count })?;
        let mut device = 0;
        // SAFETY: the driver writes one number, to a place for one number.
        let code = unsafe { (driver.table().device)(&mut device, ordinal) };
        driver.check("cuDeviceGet", code)?;
        let mut context = std::ptr::null_mut();
        // SAFETY: the driver writes one pointer, to a place for one pointer; the device is its own.
        let code = unsafe { (driver.table().context_retain)(&mut context, device) };
        driver.check("cuDevicePrimaryCtxRetain", code)?;
        let (driver, context, ranges) = (driver.clone(), Context(context), Mutex::default());
        Ok(CudaDevice { shared: Arc::new(Shared { driver, index, device, context, ranges }) })
    }

    /// Index of the device in the driver's order.
    pub fn index(&self) -> usize {
        self.shared.index
    }

    /// The driver with which the device was opened.
    pub fn driver(&self) -> &Driver {
        &self.shared.driver
    }

    /// The name of the device, as its maker calls it.
    ///
    /// # Errors
    /// The driver refused.
    pub fn name(&self) -> Result<String, CudaError> {
        let mut text = [0_u8; 128];
        let (pointer, len) = (text.as_mut_ptr().cast::<c_char>(), text.len() as c_int);
        let name = self.driver().table().device_name;
        // SAFETY: the driver writes at most `len` bytes, the length of the array, and ends with a
        // zero.
        let code = unsafe { name(pointer, len, self.shared.device) };
        self.driver().check("cuDeviceGetName", code)?;
        let name = CStr::from_bytes_until_nul(&text).unwrap_or_default();
        Ok(name.to_string_lossy().into_owned())
    }

    /// The device's compute capability; `None` if the driver names none, as for the pretend device.
    ///
    /// # Errors
    /// The driver refused.
    pub fn architecture(&self) -> Result<Option<Architecture>, CudaError> {
        let [major, minor] = [
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        ]
        .map(|attribute| self.attribute(attribute));
        let (major, minor) = (u32::try_from(major?), u32::try_from(minor?));
        let architecture = major.ok().zip(minor.ok());
        let architecture = architecture.map(|(major, minor)| Architecture { major, minor });
        Ok(architecture.filter(|architecture| architecture.major > 0))
    }

    /// The device's memory, and the part of it that is free for this process.
    ///
    /// # Errors
    /// The driver refused.
    pub fn memory(&self) -> Result<DeviceMemory, CudaError> {
        let (mut free_bytes, mut total_bytes) = (0, 0);
        self.call("cuMemGetInfo", |table| {
            // SAFETY: the driver writes two numbers, each to a place for one number.
            unsafe { (table.memory_info)(&mut free_bytes, &mut total_bytes) }
        })?;
        Ok(DeviceMemory { total_bytes, free_bytes })
    }

    /// Makes the calling thread wait until all work on the device is done, no matter which code
    /// enqueued it.
    ///
    /// # Errors
    /// Work failed, or the driver refused.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.call("cuCtxSynchronize", |table| {
            // SAFETY: the function takes no argument and waits.
            unsafe { (table.context_synchronize)() }
        })
    }

    pub(super) fn attribute(&self, attribute: CUdevice_attribute) -> Result<c_int, CudaError> {
        let mut value = 0;
        let read = self.driver().table().device_attribute;
        // SAFETY: the driver writes one integer, to a place for one integer; the device is its own.
        let code = unsafe { read(&mut value, attribute as c_int, self.raw()) };
        self.driver().check("cuDeviceGetAttribute", code)?;
        Ok(value)
    }

    pub(super) fn raw(&self) -> CUdevice {
        self.shared.device
    }

    pub(super) fn context(&self) -> Context {
        self.shared.context
    }

    /// Makes a call of the driver with the device's context current. Restores the context that was
    /// current before. `name` is the name of the driver's function, for the error.
    ///
    /// # Errors
    /// `Call` with the code that `work` returned, or with the driver's own if it has no context.
    pub fn make_call(
        &self,
        name: &'static str,
        work: impl FnOnce() -> c_int,
    ) -> Result<(), CudaError> {
        let (driver, table) = (self.driver(), self.driver().table());
        // SAFETY: the context is retained for as long as this device.
        let pushed = unsafe { (table.context_push)(self.context().0) };
        driver.check("cuCtxPushCurrent", pushed)?;
        let code = work();
        let mut popped = std::ptr::null_mut();
        // A failure here cannot be undone; a second try is the only remedy.
        for _ in 0..2 {
            // SAFETY: the driver writes one pointer, to a place for one pointer.
            if unsafe { (table.context_pop)(&mut popped) } == 0 {
                break;
            }
        }
        driver.check(name, code)
    }

    /// [`CudaDevice::make_call`] of a function of this crate's table.
    pub(super) fn call(
        &self,
        name: &'static str,
        work: impl FnOnce(&Table) -> c_int,
    ) -> Result<(), CudaError> {
        self.make_call(name, || work(self.driver().table()))
    }

    /// Runs `work` with the device's context current, for libraries that compute on the device.
    /// Restores the context that was current before.
    ///
    /// # Errors
    /// The driver refused; `work` has not run then.
    pub fn with_context<R>(&self, work: impl FnOnce() -> R) -> Result<R, CudaError> {
        let mut result = None;
        self.make_call("cuCtxPushCurrent", || {
            result = Some(work());
            0
        })?;
        Ok(result.expect("the work has run"))
    }

    /// [`CudaDevice::make_call`] that gives something back, a second time where it fails.
    ///
    /// Such a call may report the failure of earlier work instead of its own (so the driver's
    /// documentation of each of them), and then has not been made.
    ///
    /// # Errors
    /// The error of the second call.
    pub fn make_call_twice(
        &self,
        name: &'static str,
        mut work: impl FnMut() -> c_int,
    ) -> Result<(), CudaError> {
        self.make_call(name, &mut work).or_else(|_| self.make_call(name, work))
    }

    /// [`CudaDevice::make_call_twice`] of a function of this crate's table.
    pub(super) fn give_back(
        &self,
        name: &'static str,
        mut work: impl FnMut(&Table) -> c_int,
    ) -> Result<(), CudaError> {
        self.make_call_twice(name, || work(self.driver().table()))
    }

    pub(super) fn enter_range(&self, address: u64, size_bytes: usize) {
        self.ranges().insert(address, size_bytes);
    }

    pub(super) fn leave_range(&self, address: u64) {
        self.ranges().remove(&address);
    }

    /// True if the bytes lie in an address range of a source of this device.
    pub(super) fn has(&self, address: u64, size_bytes: usize) -> bool {
        let ranges = self.ranges();
        let Some((&start, &len)) = ranges.range(..=address).next_back() else { return false };
        let offset = address - start;
        offset <= len as u64 && size_bytes as u64 <= len as u64 - offset
    }

    fn ranges(&self) -> MutexGuard<'_, BTreeMap<u64, usize>> {
        self.shared.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Equal if both are the same device under the same driver.
impl PartialEq for CudaDevice {
    fn eq(&self, other: &CudaDevice) -> bool {
        self.context() == other.context()
    }
}

impl Eq for CudaDevice {}

impl Drop for Shared {
    fn drop(&mut self) {
        let release = self.driver.table().context_release;
        for _ in 0..2 {
            // SAFETY: the context was retained once by this value, and everything that was made
            // with the context held this value until now.
            if unsafe { release(self.device) } == 0 {
                break;
            }
        }
    }
}

impl fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaDevice").field("index", &self.index()).finish_non_exhaustive()
    }
}
