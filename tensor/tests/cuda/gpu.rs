use std::env;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use lowtide_allocator::cuda::pretend::{Library, LibraryError, Order, Pretend, Watch};
use lowtide_allocator::cuda::{CudaDevice, Driver, Libraries};
use lowtide_tensor::Device;
use lowtide_tensor::cuda::CudaOptions;

const PAGE_BYTES: usize = 2 << 20;

/// Which driver the tests run on that can do with any: `system` is the one that the environment
/// leads to, which may be a real one; the pretend driver otherwise.
const DRIVER: &str = "LOWTIDE_TEST_DRIVER";

/// The pretend driver, or any, for one test at a time. When it goes, nothing may be left on a
/// pretend one.
pub(crate) struct Gpu {
    driver: Driver,
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
        match Driver::open(&Libraries::from_environment()) {
            Ok(driver) => Some(Gpu::of(driver, turn)),
            Err(error) => skip(&error.to_string()),
        }
    }

    /// A pretend device as after its start; `None`, said aloud, where its driver cannot be built.
    pub(crate) fn pretend() -> Option<Gpu> {
        static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
        let turn = turn();
        if is_on_system() {
            return skip("it needs the pretend driver, and the tests run on the system's");
        }
        let folder = match FOLDER.get_or_init(build) {
            Ok(folder) => folder,
            Err(reason) => return skip(reason),
        };
        let driver = Driver::open(&Libraries::in_folders([folder.clone()])).unwrap();
        Some(Gpu::of(driver, turn))
    }

    fn of(driver: Driver, turn: MutexGuard<'static, ()>) -> Gpu {
        let pretend = Pretend::of(&driver);
        if let Some(pretend) = &pretend {
            pretend.reset(64 << 20, PAGE_BYTES, PAGE_BYTES);
        }
        Gpu { driver, pretend: Controls(pretend), _turn: turn }
    }

    pub(crate) fn device(&self) -> Device {
        self.device_within(None)
    }

    pub(crate) fn device_within(&self, budget_bytes: Option<usize>) -> Device {
        self.device_with(CudaOptions { budget_bytes, ..Default::default() })
    }

    pub(crate) fn device_with(&self, options: CudaOptions) -> Device {
        Device::cuda_on(&CudaDevice::of(&self.driver, 0).unwrap(), options).unwrap()
    }

    /// Runs `test` with the threads of each block in three orders; in its own on a real device.
    pub(crate) fn in_every_order(&self, test: impl Fn()) {
        if self.pretend.0.is_none() {
            return test();
        }
        for order in [Order::Forwards, Order::Backwards, Order::Drawn(7)] {
            self.pretend.threads(order);
            test();
        }
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        let Some(pretend) = &self.pretend.0 else { return };
        let kinds = ["handles", "mappings", "ranges", "streams", "events", "contexts", "queued"];
        let left: Vec<(&str, u64)> =
            kinds.map(|kind| (kind, pretend.live(kind))).into_iter().collect();
        if !std::thread::panicking() {
            assert_eq!(pretend.complaint(), None);
            assert!(left.iter().all(|(_, count)| *count == 0), "left on the device: {left:?}");
        }
    }
}

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
