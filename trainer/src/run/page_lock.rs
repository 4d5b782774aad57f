//! Batches in page-locked memory, from which a device copies by itself.

use lowtide_allocator::{AllocError, SourceError};
use lowtide_data::{DataError, Loader};
use lowtide_tensor::{Device, TensorError};

use crate::error::Result;

/// Makes a loader build its batches in page-locked memory, from which an NVIDIA device copies
/// without the training thread. To be called before the first epoch of the loader. A run then
/// copies the first part of the next batch during a step, if the budget has
/// [room](crate::Plan::copy_ahead_bytes). The loader stays as it is for another device, or if there
/// is too little page-locked memory. Returns true if the loader has page-locked memory.
///
/// # Errors
/// Other errors of the driver.
///
/// # Panics
/// If an epoch of the loader still exists.
pub fn lock_pages(loader: &mut Loader, device: &Device) -> Result<bool> {
    let ring = match device.page_locked_ring(loader.page_locked_bytes()) {
        Err(TensorError::Alloc(error)) if is_short(&error) => None,
        ring => ring?,
    };
    let Some((memory, stream)) = ring else { return Ok(false) };
    match loader.lock_pages(&memory, stream) {
        Err(DataError::Staging { source }) if is_short(&source) => Ok(false),
        locked => Ok(locked.map(|()| true)?),
    }
}

fn is_short(error: &AllocError) -> bool {
    use AllocError::{OutOfMemory, Source};
    matches!(error, OutOfMemory(_) | Source(SourceError::OutOfMemory { .. }))
}
