//! The device of a crate's tests: the pretend one, or the machine's own.
//!
//! With `LOWTIDE_TEST_DRIVER=system`, tests that run on any driver take the driver of the
//! environment, which may be a real one, and tests that need the pretend driver skip themselves.
//! With `LOWTIDE_PRETEND_SANITIZER=address`, kernels are watched as by [`Watch::Addresses`],
//! whatever watch a test asks for. A skip is a line `skipped: NAME: REASON`.

use std::env;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use super::{KernelFolder, Library, LibraryError, Pretend, Watch};
use crate::cuda::{CudaDevice, Driver, Libraries};

/// Environment variable that chooses the driver for tests that run on any driver: `system` for the
/// system's, else the pretend one.
const DRIVER: &str = "LOWTIDE_TEST_DRIVER";

/// Environment variable that replaces the watch of the tests.
const SANITIZER: &str = "LOWTIDE_PRETEND_SANITIZER";

/// Environment variable with the path of the workspace, for tests on another machine than the
/// build's.
const WORKSPACE: &str = "LOWTIDE_TEST_WORKSPACE";

/// The driver that the tests of a crate run on. Each test takes it with [`TestDriver::take`] or
/// [`TestDriver::pretend`].
#[derive(Clone, Copy, Debug)]
pub struct TestDriver<'a> {
    /// The crate's folder, `env!("CARGO_MANIFEST_DIR")`.
    pub package: &'a str,
    /// Folder in which the pretend driver is built, `env!("CARGO_TARGET_TMPDIR")`.
    pub scratch: &'a str,
    /// Folders of kernels.
    pub kernels: &'a [KernelFolder<'a>],
    /// The way in which the kernels are compiled.
    pub watch: Watch,
    /// Capacity of a pretend device.
    pub capacity_bytes: usize,
    /// Size of a page of a pretend device.
    pub page_bytes: usize,
    /// Memory that a context takes on a pretend device.
    pub context_bytes: usize,
}

impl TestDriver<'_> {
    /// Takes any driver: the system's if the tests run on it, else the pretend one. Prints a skip
    /// and returns `None` if there is no driver.
    ///
    /// # Panics
    /// If the compiler finds a mistake in the pretend driver.
    pub fn take(&self) -> Option<Turn> {
        if !is_on_system() {
            return self.pretend();
        }
        let one_by_one = one_by_one();
        match Driver::open(&Libraries::from_environment()) {
            Ok(driver) => {
                hold_context(&driver);
                Some(self.start(driver, one_by_one))
            }
            Err(error) => skip(&error.to_string()),
        }
    }

    /// Takes the pretend driver in its initial state. Prints a skip and returns `None` if the
    /// driver cannot be built, or the tests run on the system's driver.
    ///
    /// # Panics
    /// If the compiler finds a mistake in the pretend driver.
    pub fn pretend(&self) -> Option<Turn> {
        if is_on_system() {
            return skip("it needs the pretend driver, and the tests run on the system's");
        }
        let one_by_one = one_by_one();
        let libraries = Libraries::in_folders([self.folder()?]);
        let driver = Driver::open(&libraries).expect("the library that was just built");
        Some(self.start(driver, one_by_one))
    }

    /// Takes the pretend driver with every access watched. Prints a skip and returns `None` in the
    /// cases of [`pretend`](Self::pretend), and under the sanitizer, which checks neither barriers
    /// nor read-only memory.
    ///
    /// # Panics
    /// If the compiler finds a mistake in the pretend driver.
    pub fn watched(&self) -> Option<Turn> {
        if is_sanitized() {
            return skip("it needs every access to be watched, not the address sanitizer");
        }
        TestDriver { watch: Watch::Accesses, ..*self }.pretend()
    }

    /// The folder of the pretend driver, for another process. Prints a skip and returns `None` if
    /// the driver cannot be built.
    ///
    /// # Panics
    /// If the compiler finds a mistake in the pretend driver.
    pub fn folder(&self) -> Option<PathBuf> {
        let package = self.package_folder();
        let sources = package.join("../xtask/pretend-gpu");
        if !sources.exists() {
            return skip("the pretend driver is no part of this package");
        }
        let read = |folder: &KernelFolder<'_>| (folder.read)(&package.join(folder.path));
        let kernels: Result<Vec<_>, _> = self.kernels.iter().map(read).collect();
        let built = kernels.and_then(|kernels| {
            let watch = if is_sanitized() { Watch::Addresses } else { self.watch };
            let library = Library { sources: &sources, kernels: &kernels.concat(), watch };
            library.build(&Path::new(self.scratch).join("pretend-gpu"))
        });
        match built {
            Ok(folder) => Some(folder),
            Err(error @ (LibraryError::OtherMachine | LibraryError::NoCompiler { .. })) => {
                skip(&error.to_string())
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// The crate's folder, even if the tests run on another machine than the build's.
    pub fn package_folder(&self) -> PathBuf {
        let package = Path::new(self.package);
        match (env::var_os(WORKSPACE), package.file_name()) {
            (Some(workspace), Some(name)) => PathBuf::from(workspace).join(name),
            _ => package.to_path_buf(),
        }
    }

    fn start(&self, driver: Driver, one_by_one: MutexGuard<'static, ()>) -> Turn {
        let pretend = Controls(Pretend::of(&driver));
        let TestDriver { capacity_bytes, page_bytes, context_bytes, .. } = *self;
        let sizes_bytes = [capacity_bytes, page_bytes, context_bytes];
        let turn = Turn { driver, pretend, sizes_bytes, _one_by_one: one_by_one };
        turn.reset();
        turn
    }
}

/// A driver for one test at a time. When the guard is dropped, a pretend device must have no
/// resources left, and no kernel may have lost it.
#[derive(Debug)]
pub struct Turn {
    /// Driver that the test calls.
    pub driver: Driver,
    /// Controls of the driver; without effect unless the driver is the pretend one.
    pub pretend: Controls,
    sizes_bytes: [usize; 3],
    _one_by_one: MutexGuard<'static, ()>,
}

impl Turn {
    /// Sets a pretend device to its initial state. No value may still use the device.
    pub fn reset(&self) {
        if let Some(pretend) = self.pretend.get() {
            let [capacity_bytes, page_bytes, context_bytes] = self.sizes_bytes;
            pretend.reset(capacity_bytes, page_bytes, context_bytes);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(pretend) = self.pretend.get() else { return };
        let (left, complaint) = (pretend.left(), pretend.complaint());
        // The next test gets a new device, even if this test lost the old one.
        self.reset();
        if !std::thread::panicking() {
            assert_eq!(complaint, None, "a kernel lost the device");
            assert_eq!(left, [], "left on the device");
        }
    }
}

/// The controls of the pretend driver, for a test that has taken one.
#[derive(Debug)]
pub struct Controls(Option<Pretend>);

impl Controls {
    /// The controls; `None` if the driver is a real one.
    pub fn get(&self) -> Option<&Pretend> {
        self.0.as_ref()
    }
}

/// Gives the controls to tests that took the device by [`TestDriver::pretend`]. Panics on a real
/// driver.
impl Deref for Controls {
    type Target = Pretend;

    fn deref(&self) -> &Pretend {
        self.get().expect("who uses the controls takes the pretend device")
    }
}

/// True if kernels run under the compiler's address sanitizer.
pub fn is_sanitized() -> bool {
    env::var_os(SANITIZER).is_some_and(|sanitizer| sanitizer == "address")
}

/// Keeps the context of a real driver's first device for the life of the process. Otherwise each
/// test would make and drop a context, which takes a fraction of a second.
fn hold_context(driver: &Driver) {
    static HELD: OnceLock<Option<CudaDevice>> = OnceLock::new();
    if Pretend::of(driver).is_none() {
        HELD.get_or_init(|| CudaDevice::of(driver, 0).ok());
    }
}

fn is_on_system() -> bool {
    env::var_os(DRIVER).is_some_and(|driver| driver == "system")
}

/// Locks the driver, so that tests use it one after the other.
fn one_by_one() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn skip<T>(reason: &str) -> Option<T> {
    let test = std::thread::current().name().unwrap_or("a CUDA test").to_owned();
    println!("skipped: {test}: {reason}");
    None
}
