//! cuBLASLt: matrix products by NVIDIA's own kernels, where the library is found.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lowtide_allocator::cuda::{
    CudaDevice, CudaError, CudaStreams, Driver, Library, MissingLibrary,
};
use lowtide_allocator::{Buffer, Stream, function_table};

use super::blas_error::BlasError;
use super::blas_plan::{Call, Key, ProductPlan};
use crate::dtype::DType;
use crate::write_mode::WriteMode;

/// File names of the library, each with the first CUDA version that has it. The last name is the
/// name in an installation for developers, of any version.
#[cfg(windows)]
const NAMES: [(&str, usize); 2] = [("cublasLt64_13.dll", 13_000), ("cublasLt64_12.dll", 12_000)];
#[cfg(not(windows))]
const NAMES: [(&str, usize); 4] = [
    ("libcublasLt.so.13", 13_000),
    ("libcublasLt.so.12", 12_000),
    ("libcublasLt.so.11", 11_000),
    ("libcublasLt.so", 0),
];

/// Largest number of plans that are kept. A training has a few for each layer. All plans are
/// dropped when a program with ever new shapes reaches the limit.
const PLANS_MAX: usize = 1024;

function_table! {
    BlasTable:
    all have {
        create = "cublasLtCreate" (*mut *mut c_void);
        destroy = "cublasLtDestroy" (*mut c_void);
        operation_create = "cublasLtMatmulDescCreate" (*mut *mut c_void, c_int, c_int);
        operation_set = "cublasLtMatmulDescSetAttribute"
            (*mut c_void, c_int, *const c_void, usize);
        operation_destroy = "cublasLtMatmulDescDestroy" (*mut c_void);
        layout_create = "cublasLtMatrixLayoutCreate" (*mut *mut c_void, c_int, u64, u64, i64);
        layout_set = "cublasLtMatrixLayoutSetAttribute" (*mut c_void, c_int, *const c_void, usize);
        layout_destroy = "cublasLtMatrixLayoutDestroy" (*mut c_void);
        preference_create = "cublasLtMatmulPreferenceCreate" (*mut *mut c_void);
        preference_set = "cublasLtMatmulPreferenceSetAttribute"
            (*mut c_void, c_int, *const c_void, usize);
        preference_destroy = "cublasLtMatmulPreferenceDestroy" (*mut c_void);
        choose = "cublasLtMatmulAlgoGetHeuristic" (
            *mut c_void, *mut c_void, *mut c_void, *mut c_void, *mut c_void, *mut c_void,
            *mut c_void, c_int, *mut Choice, *mut c_int
        );
        multiply = "cublasLtMatmul" (
            *mut c_void, *mut c_void, *const c_void, *const c_void, *mut c_void, *const c_void,
            *mut c_void, *const c_void, *const c_void, *mut c_void, *mut c_void, *mut c_void,
            *const [u64; 8], *mut c_void, usize, *mut c_void
        );
    }
    some have {}
}

/// `cublasLtMatmulHeuristicResult_t`: a kernel, and what it needs.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Choice {
    pub(super) algorithm: [u64; 8],
    pub(super) workspace_bytes: usize,
    pub(super) state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

/// Precision of f32 factors, whose sums are of f32 in any case. Factors of other types are not
/// rounded: half types are summed in f32, f64 in f64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Precision {
    /// The factors are not rounded.
    F32,
    /// The factors are rounded to 10 bits of mantissa, for tensor cores.
    Tf32,
}

/// The order of a factor in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Order {
    /// Row by row.
    Rows,
    /// Column by column, which is the transpose row by row.
    Columns,
}

/// Layout of a factor or of the result, in elements. Stored rows lie one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MatrixLayout {
    /// The order in memory; a result has `Rows`.
    pub order: Order,
    /// Distance from one stored row to the next; at least the length of a row.
    pub leading: usize,
    /// Distance from one matrix of the batch to the next; 0 repeats a factor.
    pub batch_stride: usize,
}

/// An operation of a product in addition to its sums, with a vector of the result's type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Epilogue {
    /// No epilogue.
    Nothing,
    /// Adds a vector of `n` elements to every row. Not for a product that is added to `y`.
    Bias,
    /// Writes the sums of the rows of `a`, `m` elements. Only for a single matrix, and not for a
    /// product that is added to `y`. If `aᵀ` is the gradient of a layer's output, the sums are the
    /// gradient of the layer's bias. The library supports this epilogue for sums of f32.
    RowSums,
}

/// `y = a·b`, `y = y + a·b`, or `y = a·b` with an [`Epilogue`], for each matrix of a batch.
///
/// # Shapes
/// `a: [batch, m, k]`, `b: [batch, k, n]`, `y: [batch, m, n]`
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Product {
    /// Number of matrices.
    pub batch: usize,
    /// Rows of `a` and `y`.
    pub m: usize,
    /// Columns of `b` and `y`.
    pub n: usize,
    /// Columns of `a` and rows of `b`; not 0.
    pub k: usize,
    /// Type of the factors, a float.
    pub factors: DType,
    /// Type of the result and of the vector: the type of the factors, or f32 for factors of a half
    /// type.
    pub result: DType,
    /// The result, whose matrices do not overlap.
    pub y: MatrixLayout,
    /// The left factor.
    pub a: MatrixLayout,
    /// The right factor.
    pub b: MatrixLayout,
    /// Precision of the factors.
    pub precision: Precision,
    /// The treatment of the old `y`, which is overwritten or added to.
    pub start: WriteMode,
    /// The operation in addition to the sums.
    pub epilogue: Epilogue,
}

/// A range of bytes in a block.
pub type BlockBytes<'a> = (&'a Buffer, Range<usize>);

/// Operands of a [`Product`]. Each operand starts at the first byte of its range, at a multiple of
/// an element's size.
#[derive(Clone, Debug)]
pub struct ProductOperands<'a> {
    /// The result, which is written and shares no byte with a factor.
    pub y: BlockBytes<'a>,
    /// The left factor.
    pub a: BlockBytes<'a>,
    /// The right factor.
    pub b: BlockBytes<'a>,
    /// The epilogue's elements, which lie side by side.
    pub vector: Option<BlockBytes<'a>>,
    /// Memory that no other work uses, on this stream or another, at a multiple of 256. The length
    /// is part of the plan. If the workspace is empty, fewer kernels can be chosen.
    pub workspace: BlockBytes<'a>,
}

/// Numbers of plans that were made and found again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlanCounts {
    /// Number of calls that made a plan.
    pub made: u64,
    /// Number of calls that found a plan.
    pub found: u64,
}

/// cuBLASLt on one device. Clones share the library and its plans.
#[derive(Clone)]
pub struct Blas {
    shared: Arc<Shared>,
}

struct Shared {
    call: Call,
    handle: Handle,
    version: usize,
    path: PathBuf,
    plans: Mutex<Plans>,
}

/// The library's state for a device.
struct Handle(*mut c_void);

// SAFETY: only the library dereferences the pointer, and the library allows a handle to be used
// from any thread (cuBLASLt documentation, "Thread Safety").
unsafe impl Send for Handle {}
// SAFETY: a shared handle yields a copy of the pointer and nothing else; see `Send` for its use.
unsafe impl Sync for Handle {}

#[derive(Default)]
struct Plans {
    by_key: BTreeMap<Key, Arc<ProductPlan>>,
    counts: PlanCounts,
}

impl Blas {
    /// Loads the library for a device's driver: of the same major version of CUDA or an earlier
    /// one.
    ///
    /// The library keeps some memory of the device outside any budget, beside the context's.
    ///
    /// # Errors
    /// `Missing` if there is no library, `NewerThanDriver` if there is only a later version; or the
    /// library does not start.
    pub fn of(device: &CudaDevice) -> Result<Blas, BlasError> {
        let driver_version = device.driver().version()?;
        let serves = |version: usize| version / 1000 <= driver_version / 1000;
        let names = NAMES.map(|(name, version)| serves(version).then_some(name));
        let names: Vec<&'static str> = names.into_iter().flatten().collect();
        let (library, path) = match device.driver().libraries().load(&names) {
            Ok(found) => found,
            Err(missing) => return Err(newer_or(missing, device.driver(), driver_version)),
        };
        // SAFETY: 1. a library with these names is cuBLASLt: the search, or the user who named the
        // folder, promises so. Each function has had its type since CUDA 11. 2. The library is
        // never closed: it is forgotten below.
        let table = unsafe { BlasTable::load(&library) };
        let missing_symbol = |symbol| MissingLibrary::MissingSymbol { path: path.clone(), symbol };
        let table = table.map_err(missing_symbol)?;
        let [version, cuda_version] = ["cublasLtGetVersion\0", "cublasLtGetCudartVersion\0"]
            .map(|symbol| number_of(&library, symbol));
        std::mem::forget(library);
        if !serves(cuda_version) {
            let version = cuda_version;
            return Err(BlasError::NewerThanDriver { path, version, driver_version });
        }
        let call = Call::new(device, table);
        let mut handle = std::ptr::null_mut();
        call.make("cublasLtCreate", |table| {
            // SAFETY: the library writes one pointer, to a place for one.
            unsafe { (table.create)(&mut handle) }
        })?;
        let (handle, plans) = (Handle(handle), Mutex::default());
        Ok(Blas { shared: Arc::new(Shared { call, handle, version, path, plans }) })
    }

    /// Enqueues a product on a stream of the device. The first product of its kind is planned,
    /// which takes the host some microseconds.
    ///
    /// # Streams
    /// As with [launches](super::Function::launch): a block that is used on a stream other than its
    /// own needs `Buffer::record_use`, and the stream has to wait for earlier work on the block.
    ///
    /// # Errors
    /// `Layout`, `Short`; `NoPlan` if the caller has to use its own kernel; or a call failed.
    pub fn enqueue(
        &self,
        streams: &CudaStreams,
        stream: Stream,
        product: &Product,
        operands: &ProductOperands<'_>,
    ) -> Result<(), BlasError> {
        let ProductOperands { y, a, b, vector, workspace } = operands;
        let Product { batch, m, n, k, factors, result, .. } = *product;
        if batch == 0 || m == 0 || n == 0 {
            return Ok(());
        }
        let (factor_bytes, result_bytes) = (factors.size_bytes(), result.size_bytes());
        let places = [
            (y, result_bytes),
            (a, factor_bytes),
            (b, factor_bytes),
            (workspace, 256),
            // Without a vector, `y` takes its place, because `y` always exists.
            (vector.as_ref().unwrap_or(y), result_bytes),
        ];
        let places = self.places(streams, places)?;
        let [(y, y_len), (a, a_len), (b, b_len), (workspace, workspace_bytes), (vector, len)] =
            places;
        if k == 0 {
            return Err(BlasError::NoPlan { workspace_bytes });
        }
        fits("y", product.y, [batch, m, n], (y_len, result_bytes))?;
        fits("a", product.a, [batch, m, k], (a_len, factor_bytes))?;
        fits("b", product.b, [batch, k, n], (b_len, factor_bytes))?;
        let needed_bytes = result_bytes
            * match product.epilogue {
                Epilogue::Nothing => 0,
                Epilogue::Bias => n,
                Epilogue::RowSums => m,
            };
        let given_bytes = if operands.vector.is_some() { len } else { 0 };
        if given_bytes < needed_bytes {
            return Err(BlasError::Short { operand: "vector", needed_bytes, given_bytes });
        }
        if product.epilogue == Epilogue::RowSums && batch > 1 {
            return Err(BlasError::NoPlan { workspace_bytes });
        }
        let plan = self.plan(&Key::new(product, [y, a, b, vector], workspace_bytes))?;
        let queue = streams.queue_pointer(stream)?;
        let scalars = Scalars::of(product);
        let (alpha, beta) = scalars.pointers();
        let [y, a, b, workspace, vector] = [y, a, b, workspace, vector].map(pointer);
        // Other threads with this plan wait until the library has read the address of the vector.
        let operation = plan.operation();
        operation.set_vector(vector)?;
        let handle = self.shared.handle.0;
        self.shared.call.make("cublasLtMatmul", |table| {
            let [y_layout, first, second] = plan.layouts();
            // SAFETY: 1. handle and plan are live, and the layouts cover bytes inside the ranges,
            // which were checked above to be of live blocks of this device. 2. The scalars are read
            // now, and the algorithm was chosen for this plan. 3. No reference of this process
            // leads to the memory that is written.
            unsafe {
                (table.multiply)(
                    handle,
                    operation.handle(),
                    alpha,
                    b,
                    first,
                    a,
                    second,
                    beta,
                    y,
                    y_layout,
                    y,
                    y_layout,
                    plan.algorithm(),
                    workspace,
                    workspace_bytes,
                    queue,
                )
            }
        })
    }

    /// The device that the library computes on.
    pub fn device(&self) -> &CudaDevice {
        self.shared.call.device()
    }

    /// The version number that the library reports; 0 if it reports none.
    pub fn version(&self) -> usize {
        self.shared.version
    }

    /// The path of the library's file, or only its name if the system's loader found it.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// The products that are planned, each with the library's description of the kernel that it
    /// chose. Equal descriptions of one version are the same kernel.
    pub fn choices(&self) -> Vec<(Product, [u64; 8])> {
        let plans = self.lock();
        plans.by_key.iter().map(|(key, plan)| (*key.product(), plan.words())).collect()
    }

    /// The numbers of plans that were made and found again so far.
    pub fn plan_counts(&self) -> PlanCounts {
        self.lock().counts
    }

    /// Addresses and lengths of ranges that are inside blocks of the device, each at a multiple of
    /// its alignment.
    fn places(
        &self,
        streams: &CudaStreams,
        places: [(&BlockBytes<'_>, usize); 5],
    ) -> Result<[(u64, usize); 5], BlasError> {
        let mut found = [(0, 0); 5];
        let mut is_aligned = true;
        for (found, ((block, range), alignment)) in found.iter_mut().zip(places) {
            *found = streams.place(block, range.clone())?;
            is_aligned &= found.0.is_multiple_of(alignment as u64);
        }
        let (address, size_bytes) = found[0];
        if streams.device() != self.device() || !is_aligned {
            return Err(CudaError::NotOfDevice { address, size_bytes }.into());
        }
        Ok(found)
    }

    fn plan(&self, key: &Key) -> Result<Arc<ProductPlan>, BlasError> {
        let mut plans = self.lock();
        if let Some(plan) = plans.by_key.get(key).cloned() {
            plans.counts.found += 1;
            return Ok(plan);
        }
        let plan = Arc::new(ProductPlan::new(&self.shared.call, self.shared.handle.0, key)?);
        if plans.by_key.len() >= PLANS_MAX {
            plans.by_key.clear();
        }
        plans.by_key.insert(*key, plan.clone());
        plans.counts.made += 1;
        Ok(plan)
    }

    fn lock(&self) -> MutexGuard<'_, Plans> {
        self.shared.plans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.plans.get_mut().unwrap_or_else(PoisonError::into_inner).by_key.clear();
        let handle = self.handle.0;
        self.call.give_back("cublasLtDestroy", |table| {
            // SAFETY: the handle is this value's own and not used again; the library waits for work
            // that uses what it frees.
            unsafe { (table.destroy)(handle) }
        });
    }
}

impl fmt::Debug for Blas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blas").field("device", self.device()).finish_non_exhaustive()
    }
}

/// A version number that a function of the library returns; 0 if there is no such function.
fn number_of(library: &Library, symbol: &str) -> usize {
    // SAFETY: in every version that has it, the function takes nothing and returns a size.
    match unsafe { library.get::<unsafe extern "C" fn() -> usize>(symbol) } {
        // SAFETY: as above; the library is open.
        Ok(tell) => unsafe { tell() },
        Err(_) => 0,
    }
}

/// `NewerThanDriver` if a folder has a library that is too new for the driver; else the error of
/// the search.
fn newer_or(missing: MissingLibrary, driver: &Driver, driver_version: usize) -> BlasError {
    let is_later = |version: usize| version / 1000 > driver_version / 1000;
    let mut later = NAMES.iter().filter(|(_, version)| is_later(*version));
    let found =
        later.find_map(|&(name, version)| Some((driver.libraries().find(&[name])?, version)));
    match found {
        Some((path, version)) => BlasError::NewerThanDriver { path, version, driver_version },
        None => missing.into(),
    }
}

/// Factors of the product and of the old `y`, in the type of the sums.
enum Scalars {
    F32([f32; 2]),
    F64([f64; 2]),
}

impl Scalars {
    fn of(product: &Product) -> Scalars {
        let beta = if product.start == WriteMode::Accumulate { 1.0 } else { 0.0 };
        match product.factors {
            DType::F64 => Scalars::F64([1.0, beta]),
            _ => Scalars::F32([1.0, beta as f32]),
        }
    }

    fn pointers(&self) -> (*const c_void, *const c_void) {
        match self {
            Scalars::F32([alpha, beta]) => ((&raw const *alpha).cast(), (&raw const *beta).cast()),
            Scalars::F64([alpha, beta]) => ((&raw const *alpha).cast(), (&raw const *beta).cast()),
        }
    }
}

fn pointer(address: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(address as usize)
}

/// `Ok` if a batch of matrices lies inside its bytes and no row overlaps the next row. The matrices
/// of a result must not overlap each other either.
fn fits(
    operand: &'static str,
    layout: MatrixLayout,
    [batch, rows, columns]: [usize; 3],
    (given_bytes, element_bytes): (usize, usize),
) -> Result<(), BlasError> {
    let (rows, columns) = match layout.order {
        Order::Rows => (rows, columns),
        Order::Columns => (columns, rows),
    };
    let span = |count: usize, stride: usize| (count - 1).checked_mul(stride);
    let matrix_len = span(rows, layout.leading).and_then(|start| start.checked_add(columns));
    let matrix_len = matrix_len.filter(|&len| {
        let is_written_once = batch == 1 || layout.batch_stride >= len;
        let can_be_written = layout.order == Order::Rows && is_written_once;
        layout.leading >= columns && (operand != "y" || can_be_written)
    });
    let needed_bytes = matrix_len
        .zip(span(batch, layout.batch_stride))
        .and_then(|(len, start)| len.checked_add(start)?.checked_mul(element_bytes))
        .filter(|_| c_int::try_from(batch).is_ok())
        .ok_or(BlasError::Layout { operand })?;
    if needed_bytes > given_bytes {
        return Err(BlasError::Short { operand, needed_bytes, given_bytes });
    }
    Ok(())
}
