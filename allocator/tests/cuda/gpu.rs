use std::env;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use lowtide_allocator::cuda::pretend::{Library, LibraryError, Order, Pretend, Watch};
use lowtide_allocator::cuda::{CudaDevice, CudaSource, CudaStreams, Driver, Libraries};
use lowtide_allocator::{CachingAllocator, Stream};

use crate::common::{PAGE_BYTES, PLENTY};

/// What a context takes on the pretend device.
pub(crate) const CONTEXT_BYTES: usize = 3 * PAGE_BYTES;

/// The device of a test that names no size.
pub(crate) const DEVICE_BYTES: usize = 32 << 20;

/// Which driver the tests run on that can do with any: `system` is the one that the environment
/// leads to, which may be a real one; the pretend driver otherwise.
const DRIVER: &str = "LOWTIDE_TEST_DRIVER";

/// Where the workspace is, for tests that have been carried to another machine.
const WORKSPACE: &str = "LOWTIDE_TEST_WORKSPACE";

/// The pretend driver, or any, for one test at a time. When it goes, nothing may be left on a
/// pretend one.
pub(crate) struct Gpu {
    pub(crate) driver: Driver,
    pub(crate) pretend: Controls,
    _turn: MutexGuard<'static, ()>,
}

/// The controls of the pretend driver, for who took one.
pub(crate) struct Controls(Option<Pretend>);

impl Deref for Controls {
    type Target = Pretend;

    fn deref(&self) -> &Pretend {
        self.0.as_ref().expect("who uses the controls takes the device by `Gpu::pretend`")
    }
}

impl Gpu {
    /// A device of any driver, a real one where the tests run on the system's; `None`, said aloud,
    /// where there is none.
    pub(crate) fn take() -> Option<Gpu> {
        if !is_on_system() {
            return Gpu::pretend();
        }
        let turn = turn();
        let driver = match Driver::open(&Libraries::from_environment()) {
            Ok(driver) => driver,
            Err(error) => return skip(&error.to_string()),
        };
        let pretend = Controls(Pretend::of(&driver));
        let gpu = Gpu { driver, pretend, _turn: turn };
        gpu.reset(DEVICE_BYTES);
        Some(gpu)
    }

    /// A pretend driver as after its start; `None`, said aloud, where it cannot be built.
    pub(crate) fn pretend() -> Option<Gpu> {
        Gpu::with_capacity(DEVICE_BYTES)
    }

    pub(crate) fn with_capacity(bytes: usize) -> Option<Gpu> {
        static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
        let root = package();
        let kernels = [root.join("tests/cuda/kernels"), root.join(KERNELS)];
        let kernels = kernels.each_ref().map(PathBuf::as_path);
        Gpu::of(FOLDER.get_or_init(|| build(&kernels, Watch::Accesses)), bytes)
    }

    /// A driver with the kernels of this folder alone.
    pub(crate) fn with_kernels(folder: &Path, watch: Watch) -> Option<Gpu> {
        Gpu::of(&build(&[folder], watch), DEVICE_BYTES)
    }

    fn of(folder: &Result<PathBuf, String>, bytes: usize) -> Option<Gpu> {
        let turn = turn();
        if is_on_system() {
            return skip("it needs the pretend driver, and the tests run on the system's");
        }
        let folder = match folder {
            Ok(folder) => folder,
            Err(reason) => return skip(reason),
        };
        let driver = Driver::open(&Libraries::in_folders([folder.clone()])).unwrap();
        let pretend = Pretend::of(&driver).expect("the library that was just built");
        let gpu = Gpu { driver, pretend: Controls(Some(pretend)), _turn: turn };
        gpu.reset(bytes);
        Some(gpu)
    }

    pub(crate) fn reset(&self, capacity_bytes: usize) {
        if let Some(pretend) = &self.pretend.0 {
            pretend.reset(capacity_bytes, PAGE_BYTES, CONTEXT_BYTES);
        }
    }

    /// The order of threads, where it can be chosen.
    pub(crate) fn order(&self, order: Order) {
        if let Some(pretend) = &self.pretend.0 {
            pretend.threads(order);
        }
    }

    /// What is wrong with the kernel that lost the device, where it can be known.
    pub(crate) fn complaint(&self) -> Option<String> {
        self.pretend.0.as_ref().and_then(Pretend::complaint)
    }

    pub(crate) fn device(&self) -> CudaDevice {
        CudaDevice::of(&self.driver, 0).unwrap()
    }

    pub(crate) fn streams(&self) -> CudaStreams {
        CudaStreams::new(&self.device())
    }

    pub(crate) fn memory(&self) -> (CudaStreams, CachingAllocator) {
        let streams = self.streams();
        let memory = CachingAllocator::new(source(&streams)).unwrap();
        (streams, memory)
    }

    /// What nobody gave back, and how many, where it can be known.
    pub(crate) fn left(&self) -> Vec<(&'static str, u64)> {
        let Some(pretend) = &self.pretend.0 else { return Vec::new() };
        [
            "handles", "mappings", "ranges", "host", "streams", "events", "contexts", "modules",
            "programs", "queued",
        ]
        .map(|what| (what, pretend.live(what)))
        .into_iter()
        .filter(|&(_, count)| count > 0)
        .collect()
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        let left = self.left();
        // A device that this test lost is not the next one's.
        self.reset(DEVICE_BYTES);
        if !std::thread::panicking() {
            assert_eq!(left, [], "left on the device");
        }
    }
}

/// A source that says that it has more than any program needs.
pub(crate) fn source(streams: &CudaStreams) -> Arc<CudaSource> {
    Arc::new(CudaSource::with_capacity(streams, PLENTY).unwrap())
}

pub(crate) fn stream(index: usize) -> Stream {
    Stream::new(index).unwrap()
}

/// The kernels of tensors, from this package's folder.
pub(crate) const KERNELS: &str = "../tensor/src/cuda/kernels";

fn is_on_system() -> bool {
    env::var_os(DRIVER).is_some_and(|driver| driver == "system")
}

/// Devices are taken one after the other.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn skip<T>(reason: &str) -> Option<T> {
    let test = std::thread::current().name().unwrap_or("a CUDA test").to_owned();
    println!("skipped: {test}: {reason}");
    None
}

/// The folder of this package.
pub(crate) fn package() -> PathBuf {
    env::var_os(WORKSPACE).map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")),
        |root| PathBuf::from(root).join("allocator"),
    )
}

/// Compiles the pretend driver and kernels. The folder that it is in, or why there is none.
fn build(kernels: &[&Path], watch: Watch) -> Result<PathBuf, String> {
    let sources = package().join("../xtask/pretend-gpu");
    if !sources.exists() {
        return Err("the pretend driver is no part of this package".to_owned());
    }
    let library = Library { sources: &sources, kernels, watch };
    match library.build(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("pretend-gpu")) {
        Ok(folder) => Ok(folder),
        Err(error @ (LibraryError::OtherMachine | LibraryError::NoCompiler { .. })) => {
            Err(error.to_string())
        }
        Err(error) => panic!("{error}"),
    }
}
