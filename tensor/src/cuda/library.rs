//! Multipliers of matrices on a device: cuBLASLt, or the kernel of this crate where the library is
//! missing or fails.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use lowtide_allocator::cuda::CudaDevice;

use super::gate::{Blas, BlasError, Precision, Product};
use crate::error::Result;

/// The multiplier of matrices that a program asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Products {
    /// cuBLASLt, if it is found and can do the product; else the kernel of this crate.
    Library(Precision),
    /// The kernel of this crate, which adds half types up in f32 without tensor cores.
    Own,
}

impl Default for Products {
    fn default() -> Self {
        Products::Library(Precision::F32)
    }
}

/// The multiplier of matrices on a device, as found there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProductsBy {
    /// cuBLASLt. A product that it refuses is done by the kernel of this crate.
    Library {
        /// Version of the library, as it numbers itself.
        version: usize,
        /// File of the library, or only its name if the system's loader found it.
        path: PathBuf,
        /// Precision of the factors.
        precision: Precision,
    },
    /// The kernel of this crate, as was asked for.
    Own,
    /// The kernel of this crate, because the library cannot be used.
    OwnInstead(BlasError),
}

impl fmt::Display for ProductsBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProductsBy::Library { version, precision, .. } => {
                let precision = match precision {
                    Precision::F32 => "f32",
                    Precision::Tf32 => "tf32",
                };
                write!(f, "cuBLASLt {version} in {precision}")
            }
            ProductsBy::Own => f.write_str("lowtide's own kernel"),
            ProductsBy::OwnInstead(error) => write!(f, "lowtide's own kernel ({error})"),
        }
    }
}

/// Launches of products so far. A product may take several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProductCounts {
    /// Launches by cuBLASLt.
    pub library: u64,
    /// Launches by the kernel of this crate.
    pub own: u64,
}

/// The library of one device, opened on first use.
pub(super) struct Library {
    device: CudaDevice,
    products: Products,
    /// `None` before the first use.
    found: Mutex<Option<Result<Blas, BlasError>>>,
    has_told: AtomicBool,
    by_library: AtomicU64,
    by_own: AtomicU64,
}

impl Library {
    pub(super) fn new(device: &CudaDevice, products: Products) -> Library {
        Library {
            device: device.clone(),
            products,
            found: Mutex::default(),
            has_told: AtomicBool::new(false),
            by_library: AtomicU64::new(0),
            by_own: AtomicU64::new(0),
        }
    }

    /// The library and the precision of products; `None` if the kernel of this crate does them.
    ///
    /// # Errors
    /// The library failed for a reason that may pass, such as a lack of memory.
    pub(super) fn open(&self) -> Result<Option<(Blas, Precision)>> {
        let Products::Library(precision) = self.products else { return Ok(None) };
        let mut found = self.found();
        let opened = match &*found {
            Some(opened) => opened.clone(),
            None => {
                let opened = Blas::of(&self.device);
                if let Err(error) = &opened {
                    if !error.is_unusable() {
                        return Err(error.clone().into());
                    }
                    self.tell(error);
                }
                found.insert(opened).clone()
            }
        };
        Ok(opened.ok().map(|blas| (blas, precision)))
    }

    /// Notes that the library refused a product, which the kernel of this crate then does. A
    /// library that is useless on this device is not asked again.
    pub(super) fn refused(&self, error: &BlasError) {
        // A missing plan for an unusual shape is not worth a message.
        if matches!(error, BlasError::Call { .. }) {
            self.tell(error);
        }
        if error.is_unusable() {
            *self.found() = Some(Err(error.clone()));
        }
    }

    pub(super) fn count_library(&self) {
        self.by_library.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_own(&self) {
        self.by_own.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn counts(&self) -> ProductCounts {
        let [library, own] =
            [&self.by_library, &self.by_own].map(|count| count.load(Ordering::Relaxed));
        ProductCounts { library, own }
    }

    pub(super) fn by(&self) -> ProductsBy {
        let Products::Library(precision) = self.products else { return ProductsBy::Own };
        match self.open() {
            Ok(Some((blas, _))) => {
                let (version, path) = (blas.version(), blas.path().to_path_buf());
                ProductsBy::Library { version, path, precision }
            }
            _ => match &*self.found() {
                Some(Err(error)) => ProductsBy::OwnInstead(error.clone()),
                _ => ProductsBy::Own,
            },
        }
    }

    /// The products so far with the library's description of the kernel that it chose for each.
    pub(super) fn choices(&self) -> Vec<(Product, [u64; 8])> {
        match &*self.found() {
            Some(Ok(blas)) => blas.choices(),
            _ => Vec::new(),
        }
    }

    /// Reports once for each device, on standard error, that the kernel of this crate replaces the
    /// library.
    fn tell(&self, error: &BlasError) {
        if !self.has_told.swap(true, Ordering::Relaxed) {
            eprintln!("lowtide: matrix products by lowtide's own kernel: {error}");
        }
    }

    // The value is written whole, so a poisoned lock is taken over.
    fn found(&self) -> MutexGuard<'_, Option<Result<Blas, BlasError>>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
