use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use lowtide_allocator::cuda::pretend::{Library, LibraryError, Order, Pretend, Watch};
use lowtide_allocator::cuda::{CudaDevice, Driver, Libraries};
use lowtide_tensor::Device;

const PAGE_BYTES: usize = 2 << 20;

/// The pretend driver, for one test at a time. When it goes, nothing may be left on it.
pub(crate) struct Gpu {
    driver: Driver,
    pub(crate) pretend: Pretend,
    _turn: MutexGuard<'static, ()>,
}

impl Gpu {
    /// A device as after its start; `None`, said aloud, where the driver cannot be built.
    pub(crate) fn take() -> Option<Gpu> {
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
        pretend.reset(64 << 20, PAGE_BYTES, PAGE_BYTES);
        Some(Gpu { driver, pretend, _turn: turn })
    }

    pub(crate) fn device(&self) -> Device {
        self.device_within(None)
    }

    pub(crate) fn device_within(&self, budget_bytes: Option<usize>) -> Device {
        Device::cuda_on(&CudaDevice::of(&self.driver, 0).unwrap(), budget_bytes).unwrap()
    }

    /// Runs `test` with the threads of each block in three orders.
    pub(crate) fn in_every_order(&self, test: impl Fn()) {
        for order in [Order::Forwards, Order::Backwards, Order::Drawn(7)] {
            self.pretend.threads(order);
            test();
        }
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        let kinds = ["handles", "mappings", "ranges", "streams", "events", "contexts", "queued"];
        let left: Vec<(&str, u64)> =
            kinds.map(|kind| (kind, self.pretend.live(kind))).into_iter().collect();
        if !std::thread::panicking() {
            assert_eq!(self.pretend.complaint(), None);
            assert!(left.iter().all(|(_, count)| *count == 0), "left on the device: {left:?}");
        }
    }
}

/// Compiles the pretend driver and the kernels of this crate for it. Where it is, or why there is
/// none.
fn build() -> Result<PathBuf, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources = root.join("../xtask/pretend-gpu");
    if !sources.exists() {
        return Err("the pretend driver is no part of this package".to_owned());
    }
    let kernels = root.join("src/cuda/kernels");
    let library = Library { sources: &sources, kernels: &[&kernels], watch: Watch::Accesses };
    match library.build(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("pretend-gpu")) {
        Ok(folder) => Ok(folder),
        Err(error @ (LibraryError::OtherMachine | LibraryError::NoCompiler { .. })) => {
            Err(error.to_string())
        }
        Err(error) => panic!("{error}"),
    }
}
