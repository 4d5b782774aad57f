//! How the tests of a crate come by a device: the pretend one, or the machine's own.
//!
//! `LOWTIDE_TEST_DRIVER=system` makes tests that can do with any driver take the one that the
//! environment leads to, which may be a real one; those that need the pretend one skip themselves.
//! `LOWTIDE_PRETEND_SANITIZER=address` watches kernels as [`Watch::Addresses`] does, whatever a
//! test asks for. A skip is a line `skipped: NAME: REASON`.

use std::env;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use super::{KernelFolder, Library, LibraryError, Pretend, Watch};
use crate::cuda::{CudaDevice, Driver, Libraries};

/// Which driver tests run on that can do with any: `system`, or the pretend one.
const DRIVER: &str = "LOWTIDE_TEST_DRIVER";

/// Another watch than the tests' own.
const SANITIZER: &str = "LOWTIDE_PRETEND_SANITIZER";

/// Where the workspace is, for tests that have been carried to another machine.
const WORKSPACE: &str = "LOWTIDE_TEST_WORKSPACE";

/// The driver that the tests of a crate run on. Each test takes it with [`TestDriver::take`] or
/// [`TestDriver::pretend`].
#[derive(Clone, Copy, Debug)]
pub struct TestDriver<'a> {
    /// The crate's folder, `env!("CARGO_MANIFEST_DIR")`.
    pub package: &'a str,
    /// Where the pretend driver is built, `env!("CARGO_TARGET_TMPDIR")`.
    pub scratch: &'a str,
    /// Folders of kernels.
    pub kernels: &'a [KernelFolder<'a>],
    /// How the kernels are compiled.
    pub watch: Watch,
    /// Capacity of a pretend device.
    pub capacity_bytes: usize,
    /// Size of a page of a pretend device.
    pub page_bytes: usize,
    /// Memory that a context takes on a pretend device.
    pub context_bytes: usize,
}

impl TestDriver<'_> {
    /// Any driver, a real one where the tests run on the system's; `None`, said aloud, where there
    /// is none.
    ///
    /// # Panics
    /// The pretend driver has a mistake that the compiler finds.
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

    /// The pretend driver as after its start; `None`, said aloud, where it cannot be built, or the
    /// tests run on the system's.
    ///
    /// # Panics
    /// The pretend driver has a mistake that the compiler finds.
    pub fn pretend(&self) -> Option<Turn> {
        if is_on_system() {
            return skip("it needs the pretend driver, and the tests run on the system's");
        }
        let one_by_one = one_by_one();
        let libraries = Libraries::in_folders([self.folder()?]);
        let driver = Driver::open(&libraries).expect("the library that was just built");
        Some(self.start(driver, one_by_one))
    }

    /// The pretend driver with every access watched; `None`, said aloud, also where the sanitizer
    /// watches, which knows nothing of barriers and of what is to be read only.
    ///
    /// # Panics
    /// The pretend driver has a mistake that the compiler finds.
    pub fn watched(&self) -> Option<Turn> {
        if is_sanitized() {
            return skip("it needs every access to be watched, not the address sanitizer");
        }
        TestDriver { watch: Watch::Accesses, ..*self }.pretend()
    }

    /// The folder of the pretend driver, for another process; `None`, said aloud, where it cannot
    /// be built.
    ///
    /// # Panics
    /// The pretend driver has a mistake that the compiler finds.
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

    /// The crate's folder, also where tests were carried to another machine.
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

/// A driver for one test at a time. When it goes, nothing may be left on a pretend one, and no
/// kernel may have lost it.
#[derive(Debug)]
pub struct Turn {
    /// Driver that the test calls.
    pub driver: Driver,
    /// Its controls, if it is a pretend one.
    pub pretend: Controls,
    sizes_bytes: [usize; 3],
    _one_by_one: MutexGuard<'static, ()>,
}

impl Turn {
    /// Makes a pretend device as after its start. Nothing may hold on to it from before.
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
        // A device that this test lost is not the next one's.
        self.reset();
        if !std::thread::panicking() {
            assert_eq!(complaint, None, "a kernel lost the device");
            assert_eq!(left, [], "left on the device");
        }
    }
}

/// The controls of the pretend driver, for who took one.
#[derive(Debug)]
pub struct Controls(Option<Pretend>);

impl Controls {
    /// The controls; `None` if the driver is a real one.
    pub fn get(&self) -> Option<&Pretend> {
        self.0.as_ref()
    }
}

/// For tests that took the device by [`TestDriver::pretend`]: on a real driver this panics.
impl Deref for Controls {
    type Target = Pretend;

    fn deref(&self) -> &Pretend {
        self.get().expect("who uses the controls takes the pretend device")
    }
}

/// Whether kernels run under the compiler's address sanitizer.
pub fn is_sanitized() -> bool {
    env::var_os(SANITIZER).is_some_and(|sanitizer| sanitizer == "address")
}

/// Keeps the context of a real driver's first device for the life of the process: to make and to
/// drop one takes a fraction of a second, and each test would.
fn hold_context(driver: &Driver) {
    static HELD: OnceLock<Option<CudaDevice>> = OnceLock::new();
    if Pretend::of(driver).is_none() {
        HELD.get_or_init(|| CudaDevice::of(driver, 0).ok());
    }
}

fn is_on_system() -> bool {
    env::var_os(DRIVER).is_some_and(|driver| driver == "system")
}

/// Devices are taken one after the other.
fn one_by_one() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn skip<T>(reason: &str) -> Option<T> {
    let test = std::thread::current().name().unwrap_or("a CUDA test").to_owned();
    println!("skipped: {test}: {reason}");
    None
}
