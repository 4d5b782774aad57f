use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::{env, fs};

use lowtide_allocator::cuda::pretend::Pretend;
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
        static TURN: Mutex<()> = Mutex::new(());
        static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = match FOLDER.get_or_init(build) {
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
        ["handles", "mappings", "ranges", "host", "streams", "events", "contexts", "queued"]
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

/// Compiles the pretend driver. The folder that it is in, or why there is none.
fn build() -> Result<PathBuf, String> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Err("the pretend driver is for Linux on x86-64".to_owned());
    }
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../xtask/pretend-gpu");
    let files = ["device.cc", "memory.cc", "work.cc"].map(|name| sources.join(name));
    if !files[0].exists() {
        return Err("the pretend driver is no part of this package".to_owned());
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pretend-gpu");
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    // Under another name first: a second run may be loading the library right now.
    let fresh = folder.join(format!("fresh-{}.so", std::process::id()));
    let compiler = env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let mut command = Command::new(&compiler);
    // cudarc asks for `libcuda.so`: by this name it finds what is loaded already.
    command.args(["-std=c++17", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fvisibility=hidden"]);
    command.args(["-shared", "-Wl,-soname,libcuda.so", "-o"]).arg(&fresh).args(&files);
    match command.output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => panic!("{compiler}: {}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => return Err(format!("no C++ compiler `{compiler}` here: {error}")),
    }
    let renamed = fs::rename(&fresh, folder.join("libcuda.so.1"));
    renamed.map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(folder)
}
