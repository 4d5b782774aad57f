use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use lowtide_allocator::cuda::pretend::{Library, LibraryError, Pretend, Watch};
use lowtide_allocator::cuda::{CudaDevice, CudaSource, CudaStreams, Driver, Libraries};
use lowtide_allocator::{CachingAllocator, Stream};

use crate::common::{PAGE_BYTES, PLENTY};

/// What a context takes on the pretend device.
pub(crate) const CONTEXT_BYTES: usize = 3 * PAGE_BYTES;

/// The device of a test that names no size.
pub(crate) const DEVICE_BYTES: usize = 32 << 20;

/// The pretend driver, for one test at a time. When it goes, nothing may be left on it.
pub(crate) struct Gpu {
    pub(crate) driver: Driver,
    pub(crate) pretend: Pretend,
    _turn: MutexGuard<'static, ()>,
}

impl Gpu {
    /// A driver as after its start; `None`, said aloud, where it cannot be built.
    pub(crate) fn take() -> Option<Gpu> {
        Gpu::with_capacity(DEVICE_BYTES)
    }

    pub(crate) fn with_capacity(bytes: usize) -> Option<Gpu> {
        static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let kernels = [root.join("tests/cuda/kernels"), root.join(KERNELS)];
        let kernels = kernels.each_ref().map(PathBuf::as_path);
        Gpu::of(FOLDER.get_or_init(|| build(&kernels, Watch::Accesses)), bytes)
    }

    /// A driver with the kernels of this folder alone.
    pub(crate) fn with_kernels(folder: &Path, watch: Watch) -> Option<Gpu> {
        Gpu::of(&build(&[folder], watch), DEVICE_BYTES)
    }

    fn of(folder: &Result<PathBuf, String>, bytes: usize) -> Option<Gpu> {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = match folder {
            Ok(folder) => folder,
            Err(reason) => {
                let test = std::thread::current().name().unwrap_or("a CUDA test").to_owned();
                println!("skipped: {test}: {reason}");
                return None;
            }
        };
        let driver = Driver::open(&Libraries::in_folders([folder.clone()])).unwrap();
        let pretend = Pretend::of(&driver).expect("the library that was just built");
        let gpu = Gpu { driver, pretend, _turn: turn };
        gpu.reset(bytes);
        Some(gpu)
    }

    pub(crate) fn reset(&self, capacity_bytes: usize) {
        self.pretend.reset(capacity_bytes, PAGE_BYTES, CONTEXT_BYTES);
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

    /// What nobody gave back, and how many.
    pub(crate) fn left(&self) -> Vec<(&'static str, u64)> {
        [
            "handles", "mappings", "ranges", "host", "streams", "events", "contexts", "modules",
            "queued",
        ]
        .map(|what| (what, self.pretend.live(what)))
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

/// Compiles the pretend driver and kernels. The folder that it is in, or why there is none.
fn build(kernels: &[&Path], watch: Watch) -> Result<PathBuf, String> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../xtask/pretend-gpu");
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
