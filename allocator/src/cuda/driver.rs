//! The driver's library, found, probed and initialised.

use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use libloading::Library;

use super::error::CudaError;
use super::libraries::{Libraries, MissingLibrary};
use super::table::Table;

#[cfg(windows)]
const NAMES: [&str; 1] = ["nvcuda.dll"];
#[cfg(not(windows))]
const NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

/// The CUDA driver of this machine. Clones are handles to the same driver.
#[derive(Clone)]
pub struct Driver {
    pub(super) loaded: Arc<Loaded>,
}

pub(super) struct Loaded {
    pub(super) table: Table,
    /// Never closed: a driver has threads of its own and must not be unloaded while they run.
    library: ManuallyDrop<Library>,
    path: PathBuf,
    libraries: Libraries,
}

impl Driver {
    /// Loads and initialises the driver.
    ///
    /// A driver in a folder of `libraries` is taken without further checks. If there is none, the
    /// system's loader searches. The library stays loaded for the life of the process.
    ///
    /// # Errors
    /// There is no driver, it cannot be loaded, it lacks a function, or it does not start, for
    /// example because there is no device.
    pub fn open(libraries: &Libraries) -> Result<Driver, CudaError> {
        let (library, path) = load(libraries)?;
        // SAFETY: 1. a library with these names is a CUDA driver: the search, or the user who named
        // the folder, promises this. Each function has had its type since CUDA 11. 2. The library
        // is never closed: `Loaded` does not drop it.
        let table = unsafe { Table::load(&library) };
        let table =
            table.map_err(|symbol| CudaError::MissingSymbol { path: path.clone(), symbol })?;
        let (library, libraries) = (ManuallyDrop::new(library), libraries.clone());
        let driver = Driver { loaded: Arc::new(Loaded { table, library, path, libraries }) };
        // SAFETY: the function takes a number, the flags, which have to be 0.
        driver.check("cuInit", unsafe { (driver.table().init)(0) })?;
        Ok(driver)
    }

    /// The library's file, or its bare name if the system's loader found it.
    pub fn path(&self) -> &Path {
        &self.loaded.path
    }

    /// The loaded library, for functions that this crate does not call. It is never closed.
    pub fn library(&self) -> &Library {
        &self.loaded.library
    }

    /// The paths that were searched for the driver, and the paths of the libraries that come with
    /// it.
    pub fn libraries(&self) -> &Libraries {
        &self.loaded.libraries
    }

    /// The latest CUDA version that the driver supports: 1000 times the major number plus 10 times
    /// the minor number.
    ///
    /// # Errors
    /// The driver refused.
    pub fn version(&self) -> Result<usize, CudaError> {
        let mut version = 0;
        // SAFETY: the driver writes one integer, to a place for one integer.
        let code = unsafe { (self.table().driver_version)(&mut version) };
        self.check("cuDriverGetVersion", code)?;
        Ok(usize::try_from(version).unwrap_or(0))
    }

    /// The number of devices. The environment of the driver (`CUDA_VISIBLE_DEVICES`) limits the
    /// number.
    ///
    /// # Errors
    /// The driver refused.
    pub fn device_count(&self) -> Result<usize, CudaError> {
        let mut count = 0;
        // SAFETY: the driver writes one integer, to a place for one integer.
        let code = unsafe { (self.table().device_count)(&mut count) };
        self.check("cuDeviceGetCount", code)?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    pub(super) fn table(&self) -> &Table {
        &self.loaded.table
    }

    /// The error of a call that returned `code`, if the code is an error.
    pub(super) fn check(&self, call: &'static str, code: c_int) -> Result<(), CudaError> {
        if code == 0 {
            return Ok(());
        }
        Err(CudaError::Call { call, code, name: self.name_of(code) })
    }

    fn name_of(&self, code: c_int) -> String {
        let mut name: *const c_char = std::ptr::null();
        // SAFETY: the driver writes one pointer, to a place for one pointer, or leaves the place
        // alone.
        let found = unsafe { (self.table().error_name)(code, &mut name) };
        if found != 0 || name.is_null() {
            return "a code without a name".to_owned();
        }
        // SAFETY: if the call succeeds, the pointer is to a string that ends with a zero and lives
        // as long as the library.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("path", &self.loaded.path).finish_non_exhaustive()
    }
}

fn load(libraries: &Libraries) -> Result<(Library, PathBuf), CudaError> {
    libraries.load(&NAMES).map_err(|missing| match missing {
        MissingLibrary::NotFound { names, folders, loader_message } => {
            CudaError::NoLibrary { names, folders, loader_message }
        }
        MissingLibrary::Unusable { path, loader_message } => {
            CudaError::BadLibrary { path, loader_message }
        }
        MissingLibrary::MissingSymbol { path, symbol } => CudaError::MissingSymbol { path, symbol },
    })
}
