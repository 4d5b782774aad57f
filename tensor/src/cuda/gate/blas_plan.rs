//! One product in the terms of cuBLASLt: descriptions, and the chosen kernel.
//!
//! The library stores matrices column by column. A matrix by rows is the transpose of a matrix by
//! columns, so the library computes `yᵀ = bᵀ·aᵀ`: its first factor is `b`, its second `a`.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lowtide_allocator::cuda::CudaDevice;

use super::blas::{BlasTable, Choice, Epilogue, MatrixLayout, Order, Precision, Product};
use super::blas_error::BlasError;
use crate::dtype::DType;

// Values of the library's header `cublasLt.h`.
const COMPUTE_32F: c_int = 68;
const COMPUTE_64F: c_int = 70;
const COMPUTE_32F_FAST_TF32: c_int = 77;
const R_32F: c_int = 0;
const R_64F: c_int = 1;
const R_16F: c_int = 2;
const R_16BF: c_int = 14;
const OPERATION_TRANSPOSE_A: c_int = 3;
const OPERATION_TRANSPOSE_B: c_int = 4;
const OPERATION_EPILOGUE: c_int = 7;
const OPERATION_BIAS: c_int = 8;
const TRANSPOSED: c_int = 1;
const EPILOGUE_BIAS: c_int = 4;
/// Sums over K of the second factor.
const EPILOGUE_BIAS_GRADIENT_B: c_int = 512;
const LAYOUT_BATCH_COUNT: c_int = 5;
const LAYOUT_BATCH_STRIDE: c_int = 6;
const PREFERENCE_WORKSPACE_BYTES: c_int = 1;
/// The attribute of A; the attributes of B, C and D follow.
const PREFERENCE_ALIGNMENT_A: c_int = 5;

/// No kernel gains from an alignment of more than 256.
const ALIGNMENT_BITS_MAX: u32 = 8;

/// Everything that a plan depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    product: Product,
    /// Alignments of `y`, `a`, `b` and the vector: by default the library assumes 256.
    alignments: [u32; 4],
    workspace_bytes: usize,
}

impl Key {
    pub(super) fn new(product: &Product, addresses: [u64; 4], workspace_bytes: usize) -> Key {
        let alignment = |address: u64| 1 << address.trailing_zeros().min(ALIGNMENT_BITS_MAX);
        let mut alignments = addresses.map(alignment);
        if product.epilogue == Epilogue::Nothing {
            alignments[3] = 0;
        }
        Key { product: *product, alignments, workspace_bytes }
    }

    pub(super) fn product(&self) -> &Product {
        &self.product
    }
}

/// The functions of the library, and the device that they work on.
#[derive(Clone)]
pub(super) struct Call {
    device: CudaDevice,
    table: Arc<BlasTable>,
}

impl Call {
    pub(super) fn new(device: &CudaDevice, table: BlasTable) -> Call {
        Call { device: device.clone(), table: Arc::new(table) }
    }

    pub(super) fn device(&self) -> &CudaDevice {
        &self.device
    }

    /// Makes a call with the device's context current.
    pub(super) fn make(
        &self,
        name: &'static str,
        work: impl FnOnce(&BlasTable) -> c_int,
    ) -> Result<(), BlasError> {
        let code = self.device.with_context(|| work(&self.table))?;
        BlasError::check(name, code)
    }

    /// Makes a call that releases something, and repeats the call once if it fails. There is no
    /// caller to report a second failure to.
    pub(super) fn give_back(&self, name: &'static str, mut work: impl FnMut(&BlasTable) -> c_int) {
        let _ = self.make(name, &mut work).or_else(|_| self.make(name, work));
    }
}

/// The kind of a description, which decides the function that destroys it.
#[derive(Clone, Copy)]
enum Kind {
    Operation,
    Layout,
    Preference,
}

/// An object of the library that describes a part of a product.
struct Description {
    call: Call,
    kind: Kind,
    handle: *mut c_void,
}

// SAFETY: only the library dereferences the pointer, which leads to memory of the host that nothing
// changes once it is set up. Any thread may pass it on.
unsafe impl Send for Description {}
// SAFETY: a shared description yields a copy of the pointer and nothing else; see `Send` for its
// use.
unsafe impl Sync for Description {}

impl Description {
    fn make(
        call: &Call,
        kind: Kind,
        name: &'static str,
        create: impl FnOnce(&BlasTable, &mut *mut c_void) -> c_int,
    ) -> Result<Description, BlasError> {
        let mut handle = std::ptr::null_mut();
        call.make(name, |table| create(table, &mut handle))?;
        Ok(Description { call: call.clone(), kind, handle })
    }

    fn operation(call: &Call, product: &Product) -> Result<Description, BlasError> {
        let (compute, scale) = match (product.factors, product.precision) {
            (DType::F64, _) => (COMPUTE_64F, R_64F),
            (DType::F32, Precision::Tf32) => (COMPUTE_32F_FAST_TF32, R_32F),
            _ => (COMPUTE_32F, R_32F),
        };
        Self::make(call, Kind::Operation, "cublasLtMatmulDescCreate", |table, handle| {
            // SAFETY: the library takes numbers and writes one pointer, to a place for one.
            unsafe { (table.operation_create)(handle, compute, scale) }
        })
    }

    /// A matrix that is stored in rows of `columns` elements: columns of the library.
    fn layout(
        call: &Call,
        [batch, rows, columns]: [usize; 3],
        (layout, dtype): (&MatrixLayout, DType),
    ) -> Result<Description, BlasError> {
        let (rows, columns) = match layout.order {
            Order::Rows => (rows, columns),
            Order::Columns => (columns, rows),
        };
        let element = match dtype {
            DType::F64 => R_64F,
            DType::F16 => R_16F,
            DType::BF16 => R_16BF,
            _ => R_32F,
        };
        let made =
            Self::make(call, Kind::Layout, "cublasLtMatrixLayoutCreate", |table, handle| {
                let (height, width) = (columns as u64, rows as u64);
                let leading = layout.leading as i64;
                // SAFETY: the library takes numbers and writes one pointer, to a place for one.
                unsafe { (table.layout_create)(handle, element, height, width, leading) }
            })?;
        made.set(LAYOUT_BATCH_COUNT, batch as c_int)?;
        made.set(LAYOUT_BATCH_STRIDE, layout.batch_stride as i64)?;
        Ok(made)
    }

    fn preference(call: &Call) -> Result<Description, BlasError> {
        Self::make(call, Kind::Preference, "cublasLtMatmulPreferenceCreate", |table, handle| {
            // SAFETY: the library writes one pointer, to a place for one.
            unsafe { (table.preference_create)(handle) }
        })
    }

    fn set<T: Copy>(&self, attribute: c_int, value: T) -> Result<(), BlasError> {
        let (pointer, size_bytes) = ((&raw const value).cast::<c_void>(), size_of::<T>());
        let (name, handle) = (self.names()[0], self.handle);
        self.call.make(name, |table| {
            let set = match self.kind {
                Kind::Operation => table.operation_set,
                Kind::Layout => table.layout_set,
                Kind::Preference => table.preference_set,
            };
            // SAFETY: the description is live; the library reads that many bytes of the value now.
            unsafe { set(handle, attribute, pointer, size_bytes) }
        })
    }

    /// The functions that set an attribute and that destroy the description.
    fn names(&self) -> [&'static str; 2] {
        match self.kind {
            Kind::Operation => ["cublasLtMatmulDescSetAttribute", "cublasLtMatmulDescDestroy"],
            Kind::Layout => ["cublasLtMatrixLayoutSetAttribute", "cublasLtMatrixLayoutDestroy"],
            Kind::Preference => {
                ["cublasLtMatmulPreferenceSetAttribute", "cublasLtMatmulPreferenceDestroy"]
            }
        }
    }
}

impl Drop for Description {
    fn drop(&mut self) {
        let (kind, handle, name) = (self.kind, self.handle, self.names()[1]);
        self.call.give_back(name, |table| {
            let destroy = match kind {
                Kind::Operation => table.operation_destroy,
                Kind::Layout => table.layout_destroy,
                Kind::Preference => table.preference_destroy,
            };
            // SAFETY: the description is this value's own and not used again; the library reads
            // descriptions while it enqueues, and not later.
            unsafe { destroy(handle) }
        });
    }
}

/// The operation of a plan, for one product at a time.
pub(super) struct Operation<'a> {
    description: MutexGuard<'a, Description>,
    has_vector: bool,
}

impl Operation<'_> {
    /// Sets the address of the bias vector for the next product, if its epilogue has a bias.
    pub(super) fn set_vector(&self, vector: *mut c_void) -> Result<(), BlasError> {
        if self.has_vector { self.description.set(OPERATION_BIAS, vector) } else { Ok(()) }
    }

    pub(super) fn handle(&self) -> *mut c_void {
        self.description.handle
    }
}

/// The plan of a product, without its operands.
pub(super) struct ProductPlan {
    /// During a call the library reads the address of the vector from here.
    operation: Mutex<Description>,
    has_vector: bool,
    /// Layouts of `y`, the first factor and the second.
    layouts: [Description; 3],
    algorithm: [u64; 8],
}

impl ProductPlan {
    pub(super) fn new(
        call: &Call,
        handle: *mut c_void,
        key: &Key,
    ) -> Result<ProductPlan, BlasError> {
        let Product { batch, m, n, k, y, a, b, factors, result, epilogue, .. } = key.product;
        let operation = Description::operation(call, &key.product)?;
        for (attribute, order) in
            [(OPERATION_TRANSPOSE_A, b.order), (OPERATION_TRANSPOSE_B, a.order)]
        {
            if order == Order::Columns {
                operation.set(attribute, TRANSPOSED)?;
            }
        }
        let layouts = [
            Description::layout(call, [batch, m, n], (&y, result))?,
            Description::layout(call, [batch, k, n], (&b, factors))?,
            Description::layout(call, [batch, m, k], (&a, factors))?,
        ];
        let [y, a, b, vector] = key.alignments;
        let epilogue = match epilogue {
            Epilogue::Nothing => None,
            Epilogue::Bias => Some(EPILOGUE_BIAS),
            Epilogue::RowSums => Some(EPILOGUE_BIAS_GRADIENT_B),
        };
        if let Some(epilogue) = epilogue {
            operation.set(OPERATION_EPILOGUE, epilogue)?;
            // An address with the alignment that each product by this plan has.
            let address: *mut c_void = std::ptr::without_provenance_mut(vector as usize);
            operation.set(OPERATION_BIAS, address)?;
        }
        let preference = Description::preference(call)?;
        preference.set(PREFERENCE_WORKSPACE_BYTES, key.workspace_bytes)?;
        for (attribute, alignment) in (PREFERENCE_ALIGNMENT_A..).zip([b, a, y, y]) {
            preference.set(attribute, alignment)?;
        }
        let (mut choice, mut count) = (Choice::default(), 0);
        let [to, first, second] = layouts.each_ref().map(|layout| layout.handle);
        let (operation_handle, preference) = (operation.handle, &preference);
        let no_plan = BlasError::NoPlan { workspace_bytes: key.workspace_bytes };
        let chosen = call.make("cublasLtMatmulAlgoGetHeuristic", |table| {
            let preference = preference.handle;
            // SAFETY: all descriptions are live; the library writes one choice and one number, to
            // places for them.
            unsafe {
                (table.choose)(
                    handle,
                    operation_handle,
                    first,
                    second,
                    to,
                    to,
                    preference,
                    1,
                    &mut choice,
                    &mut count,
                )
            }
        });
        chosen.map_err(|error| if error.is_of_product() { no_plan.clone() } else { error })?;
        if count < 1 || choice.state != 0 || choice.workspace_bytes > key.workspace_bytes {
            return Err(no_plan);
        }
        let operation = Mutex::new(operation);
        let has_vector = epilogue.is_some();
        Ok(ProductPlan { operation, has_vector, layouts, algorithm: choice.algorithm })
    }

    pub(super) fn operation(&self) -> Operation<'_> {
        let description = self.operation.lock().unwrap_or_else(PoisonError::into_inner);
        Operation { description, has_vector: self.has_vector }
    }

    pub(super) fn layouts(&self) -> [*mut c_void; 3] {
        self.layouts.each_ref().map(|layout| layout.handle)
    }

    pub(super) fn algorithm(&self) -> *const [u64; 8] {
        &raw const self.algorithm
    }

    /// The chosen algorithm as numbers, to compare.
    pub(super) fn words(&self) -> [u64; 8] {
        self.algorithm
    }
}
