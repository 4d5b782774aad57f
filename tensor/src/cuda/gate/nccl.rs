//! NCCL: bytes from one NVIDIA device to another, where the library is found.
//!
//! NCCL carries only messages, which have no types. Ranks compute their sums themselves, in an
//! order of their own.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use lowtide_allocator::cuda::{CudaDevice, CudaError, CudaStreams, Library, MissingLibrary};
use lowtide_allocator::{Stream, function_table};
use thiserror::Error;

use super::blas::BlockBytes;

/// The library has had this name since its version 2, on Linux alone.
const NAMES: [&str; 1] = ["libnccl.so.2"];

/// Largest number of blocks of a device that messages use while the device computes. The library's
/// buffers grow with this number, and 8 blocks fill the link between two devices.
const BLOCKS_MAX: c_int = 8;

/// The first version with all fields of [`Config`].
const VERSION_MIN: usize = 21_800;

function_table! {
    NcclTable:
    all have {
        version = "ncclGetVersion" (*mut c_int);
        id = "ncclGetUniqueId" (*mut NcclId);
        join = "ncclCommInitRankConfig" (*mut *mut c_void, c_int, NcclId, c_int, *mut Config);
        state = "ncclCommGetAsyncError" (*mut c_void, *mut c_int);
        finalize = "ncclCommFinalize" (*mut c_void);
        destroy = "ncclCommDestroy" (*mut c_void);
        abort = "ncclCommAbort" (*mut c_void);
        group_start = "ncclGroupStart" ();
        group_end = "ncclGroupEnd" ();
        send = "ncclSend" (*const c_void, usize, c_int, c_int, *mut c_void, *mut c_void);
        receive = "ncclRecv" (*mut c_void, usize, c_int, c_int, *mut c_void, *mut c_void);
    }
    some have {}
}

// Values of the library's header `nccl.h`.
const SUCCESS: c_int = 0;
const IN_PROGRESS: c_int = 7;
const UINT8: c_int = 1;
const UNDEFINED: c_int = c_int::MIN;
const MAGIC: c_uint = 0xcafe_beef;

/// `ncclConfig_t` of [`VERSION_MIN`]: later versions only add fields, and accept a shorter
/// structure.
#[repr(C)]
struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    is_blocking: c_int,
    cluster_size: c_int,
    blocks_min: c_int,
    blocks_max: c_int,
    network: *const c_char,
    shares_split: c_int,
}

/// The id of a group of ranks. One rank makes the id and gives it to the others.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NcclId(pub [u8; NcclId::BYTES]);

impl NcclId {
    /// Bytes of an id of the library.
    pub const BYTES: usize = 128;
}

/// Errors of NCCL.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NcclError {
    /// NCCL is not on this machine, or cannot be used.
    #[error("no NCCL: {0}")]
    Missing(#[from] MissingLibrary),
    /// The library is older than 2.18.
    #[error("NCCL {path:?} is of version {version}, too old: 21800 is the first that will do")]
    Old {
        /// Path of the library's file.
        path: PathBuf,
        /// The version number that the library reports.
        version: usize,
    },
    /// The library refused, or reports that another rank has failed.
    #[error("{call} failed with {name} ({code})")]
    Call {
        /// Name of the function that was called.
        call: &'static str,
        /// Code that the function returned.
        code: i32,
        /// NVIDIA's name of the code.
        name: &'static str,
    },
    /// Other ranks did not come in time.
    #[error("{call} is not done after {} s", waited.as_secs_f64())]
    Late {
        /// Name of the function that was called.
        call: &'static str,
        /// Time that the call has waited.
        waited: Duration,
    },
    /// The communicator was given up before.
    #[error("the communicator was given up")]
    GivenUp,
    /// The driver refused, or an operand is no memory of the device.
    #[error(transparent)]
    Driver(#[from] CudaError),
}

/// `ncclResult_t`.
const CODES: [(c_int, &str); 7] = [
    (1, "ncclUnhandledCudaError"),
    (2, "ncclSystemError"),
    (3, "ncclInternalError"),
    (4, "ncclInvalidArgument"),
    (5, "ncclInvalidUsage"),
    (6, "ncclRemoteError"),
    (8, "ncclTimeout"),
];

/// `Ok` for a call that is done, or that continues in the background.
fn check(call: &'static str, code: c_int) -> Result<(), NcclError> {
    if matches!(code, SUCCESS | IN_PROGRESS) {
        return Ok(());
    }
    let known = CODES.iter().find(|(known, _)| *known == code);
    let name = known.map_or("a code without a name", |(_, name)| name);
    Err(NcclError::Call { call, code, name })
}

/// NCCL for one device.
#[derive(Clone)]
pub struct Nccl {
    device: CudaDevice,
    table: Arc<NcclTable>,
    version: usize,
    path: PathBuf,
}

impl Nccl {
    /// Loads the library from the folders of the driver's libraries.
    ///
    /// # Errors
    /// `Missing`, `Old`.
    pub fn of(device: &CudaDevice) -> Result<Nccl, NcclError> {
        let (library, path) = device.driver().libraries().load(&NAMES)?;
        let table = Nccl::table(&library).map_err(|symbol| {
            NcclError::Missing(MissingLibrary::MissingSymbol { path: path.clone(), symbol })
        })?;
        std::mem::forget(library);
        let mut version = 0;
        // SAFETY: the library writes one number, to a place for one.
        check("ncclGetVersion", unsafe { (table.version)(&mut version) })?;
        let version = usize::try_from(version).unwrap_or_default();
        if version < VERSION_MIN {
            return Err(NcclError::Old { path, version });
        }
        Ok(Nccl { device: device.clone(), table: Arc::new(table), version, path })
    }

    fn table(library: &Library) -> Result<NcclTable, &'static str> {
        // SAFETY: 1. a library with this name is NCCL: the search, or the user who named the
        // folder, promises so. Each function has had its type since 2.14. 2. The library is never
        // closed: the caller forgets it.
        unsafe { NcclTable::load(library) }
    }

    /// The device that the library was loaded for.
    pub fn device(&self) -> &CudaDevice {
        &self.device
    }

    /// The version number that the library reports: 10000 times the major version, plus 100 times
    /// the minor version, plus the patch.
    pub fn version(&self) -> usize {
        self.version
    }

    /// The path of the library's file, or only its name if the system's loader found it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// An id for ranks that are going to [join](Nccl::join).
    ///
    /// # Errors
    /// `Call`, `Driver`.
    pub fn new_id(&self) -> Result<NcclId, NcclError> {
        let mut id = NcclId([0; NcclId::BYTES]);
        // SAFETY: the library writes one id, to a place for one.
        self.make("ncclGetUniqueId", |table| unsafe { (table.id)(&mut id) })?;
        Ok(id)
    }

    /// Joins `count` ranks of one id, as rank `index`. Each rank has a device of its own. Neither
    /// this call nor a later one waits for other ranks for longer than `timeout`.
    ///
    /// The library takes memory of the device for a communicator, outside any budget.
    ///
    /// # Errors
    /// `Call`, also if two ranks have one device; `Late`, `Driver`.
    pub fn join(
        &self,
        id: &NcclId,
        index: usize,
        count: usize,
        timeout: Duration,
    ) -> Result<Communicator, NcclError> {
        let mut config = Config {
            size: size_of::<Config>(),
            magic: MAGIC,
            version: VERSION_MIN as c_uint,
            is_blocking: 0,
            cluster_size: UNDEFINED,
            blocks_min: UNDEFINED,
            blocks_max: BLOCKS_MAX,
            network: std::ptr::null(),
            shares_split: UNDEFINED,
        };
        let (call, mut handle) = ("ncclCommInitRankConfig", std::ptr::null_mut());
        let joined = self.make(call, |table| {
            // SAFETY: the library reads an id and a configuration of the size that it says, and
            // writes one pointer, to a place for one.
            unsafe { (table.join)(&mut handle, count as c_int, *id, index as c_int, &mut config) }
        });
        let handle = Mutex::new((!handle.is_null()).then_some(Handle(handle)));
        let communicator = Communicator { nccl: self.clone(), handle, timeout };
        joined.and_then(|()| communicator.settle(call)).inspect_err(|_| communicator.give_up())?;
        Ok(communicator)
    }

    /// Makes a call with the device's context current.
    fn make(
        &self,
        call: &'static str,
        work: impl FnOnce(&NcclTable) -> c_int,
    ) -> Result<(), NcclError> {
        check(call, self.device.with_context(|| work(&self.table))?)
    }
}

impl fmt::Debug for Nccl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Nccl { device, version, path, .. } = self;
        f.debug_struct("Nccl")
            .field("device", device)
            .field("version", version)
            .field("path", path)
            .finish_non_exhaustive()
    }
}

struct Handle(*mut c_void);

// SAFETY: only the library dereferences the pointer. Any thread may use it, one thread at a time
// (NCCL documentation, "Thread Safety"), which the mutex around it ensures.
unsafe impl Send for Handle {}

/// One of several ranks that have joined.
pub struct Communicator {
    nccl: Nccl,
    /// `None` after the communicator was given up.
    handle: Mutex<Option<Handle>>,
    timeout: Duration,
}

impl Communicator {
    /// Enqueues messages to other ranks and from other ranks. For each message that one rank gives,
    /// the other rank has to take a message of the same size, in the same order between any two
    /// ranks. The work is done when the other ranks have come to the same messages.
    ///
    /// # Streams
    /// As with [launches](super::Function::launch).
    ///
    /// # Errors
    /// `Call`, `Late`, `GivenUp`, `Driver`. After an error the communicator cannot be used any
    /// more, unless the error is that an operand is no memory of the device.
    pub fn exchange(
        &self,
        streams: &CudaStreams,
        stream: Stream,
        gifts: &[(usize, BlockBytes<'_>)],
        takings: &[(usize, BlockBytes<'_>)],
    ) -> Result<(), NcclError> {
        let place = |(rank, (block, range)): &(usize, BlockBytes<'_>)| {
            let (address, size_bytes) = streams.place(block, range.clone())?;
            if streams.device() != &self.nccl.device {
                return Err(CudaError::NotOfDevice { address, size_bytes });
            }
            Ok((*rank as c_int, address as usize as *mut c_void, size_bytes))
        };
        let gifts = gifts.iter().map(place).collect::<Result<Vec<_>, _>>()?;
        let takings = takings.iter().map(place).collect::<Result<Vec<_>, _>>()?;
        let queue = streams.queue_pointer(stream)?;
        let Nccl { device, table, .. } = &self.nccl;
        let locked = self.lock();
        let handle = locked.as_ref().ok_or(NcclError::GivenUp)?.0;
        device.with_context(|| {
            // SAFETY: begins a group of this thread, which is ended below.
            check("ncclGroupStart", unsafe { (table.group_start)() })?;
            let mut gifts = gifts.iter().map(|&(to, from, size_bytes)| {
                // SAFETY: the communicator is live while it is locked. The bytes that are read are
                // of a live block of this device, and the order of the streams keeps them
                // unchanged.
                unsafe { (table.send)(from, size_bytes, UINT8, to, handle, queue) }
            });
            let mut takings = takings.iter().map(|&(from, to, size_bytes)| {
                // SAFETY: as above; no reference of this process leads to the bytes that are
                // written.
                unsafe { (table.receive)(to, size_bytes, UINT8, from, handle, queue) }
            });
            let said = gifts
                .try_for_each(|code| check("ncclSend", code))
                .and_then(|()| takings.try_for_each(|code| check("ncclRecv", code)));
            // SAFETY: ends the group that was begun above, even if a call inside it failed.
            let ended = check("ncclGroupEnd", unsafe { (table.group_end)() });
            said.and(ended)
        })??;
        drop(locked);
        self.settle("ncclGroupEnd")
    }

    /// Aborts all messages that are under way on the device, and refuses later ones: for use when
    /// another rank does not come any more.
    pub fn give_up(&self) {
        if let Some(Handle(handle)) = self.lock().take() {
            // SAFETY: the handle is live, and was taken out of the mutex, so no other call can find
            // it. A failure has no caller to report to.
            let _ = self.nccl.make("ncclCommAbort", |table| unsafe { (table.abort)(handle) });
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Handle>> {
        // A panic leaves the option whole: the handle is there or not.
        self.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a call that continues in the background is done.
    fn settle(&self, call: &'static str) -> Result<(), NcclError> {
        let begin = Instant::now();
        loop {
            let mut state = SUCCESS;
            {
                let locked = self.lock();
                let handle = locked.as_ref().ok_or(NcclError::GivenUp)?.0;
                self.nccl.make("ncclCommGetAsyncError", |table| {
                    // SAFETY: the communicator is live while it is locked; the library writes one
                    // number, to a place for one.
                    unsafe { (table.state)(handle, &mut state) }
                })?;
            }
            check(call, state)?;
            if state == SUCCESS {
                return Ok(());
            }
            if begin.elapsed() > self.timeout {
                return Err(NcclError::Late { call, waited: self.timeout });
            }
            thread::yield_now();
        }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        let handle = self.lock().as_ref().map(|handle| handle.0);
        let Some(handle) = handle else { return };
        // SAFETY: the handle is live, and only this value has it.
        let ended = self.nccl.make("ncclCommFinalize", |table| unsafe { (table.finalize)(handle) });
        match ended.and_then(|()| self.settle("ncclCommFinalize")) {
            Ok(()) => {
                // SAFETY: as above, and the handle is not used again. After a failure nothing more
                // can be done.
                let _ =
                    self.nccl.make("ncclCommDestroy", |table| unsafe { (table.destroy)(handle) });
            }
            Err(_) => self.give_up(),
        }
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Communicator").field("nccl", &self.nccl).finish_non_exhaustive()
    }
}
