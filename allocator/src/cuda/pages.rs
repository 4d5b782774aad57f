//! Virtual memory of a device: addresses, physical pages, and mappings.

use std::ffi::c_int;

use cudarc::driver::sys::{
    CUdevice_attribute, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags,
    CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationProp_st__bindgen_ty_1,
    CUmemAllocationType, CUmemLocation, CUmemLocationType,
};

use super::device::CudaDevice;
use super::error::CudaError;
use super::table::Handle;

// The methods below change memory of the device alone. No reference of this process leads to this
// memory: the processor cannot read it, and `Segment::opaque` has no pointer to it.
impl CudaDevice {
    /// The size of a physical page; an error if the device does not map memory in pages.
    pub(super) fn page_bytes(&self) -> Result<usize, CudaError> {
        let supported = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
        let mut page_bytes = 0;
        if self.attribute(supported)? != 0 {
            let kind = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
            let properties = self.properties();
            self.call("cuMemGetAllocationGranularity", |table| {
                // SAFETY: the driver reads one description and writes one number.
                unsafe { (table.granularity)(&mut page_bytes, &properties, kind as u32) }
            })?;
        }
        let is_page =
            page_bytes.is_power_of_two() && page_bytes >= crate::arena::extent::BLOCK_BYTES;
        is_page.then_some(page_bytes).ok_or(CudaError::NoVirtualMemory { index: self.index() })
    }

    /// Reserves addresses without memory, at a multiple of the page.
    pub(super) fn reserve(&self, size_bytes: usize, page_bytes: usize) -> Result<u64, CudaError> {
        let mut address = 0;
        self.call("cuMemAddressReserve", |table| {
            // SAFETY: the driver writes one address; no address is wished for and no flag is set.
            unsafe { (table.address_reserve)(&mut address, size_bytes, page_bytes, 0, 0) }
        })?;
        self.enter_range(address, size_bytes);
        Ok(address)
    }

    /// Frees reserved addresses. No memory may be mapped there.
    pub(super) fn free_range(&self, address: u64, size_bytes: usize) -> Result<(), CudaError> {
        self.give_back("cuMemAddressFree", |table| {
            // SAFETY: the driver refuses anything but a whole range without mappings.
            unsafe { (table.address_free)(address, size_bytes) }
        })?;
        self.leave_range(address);
        Ok(())
    }

    /// Creates physical memory of one page, without a mapping.
    pub(super) fn create(&self, page_bytes: usize) -> Result<Handle, CudaError> {
        let (mut handle, properties) = (0, self.properties());
        self.call("cuMemCreate", |table| {
            // SAFETY: the driver reads one description and writes one handle; flags have to be 0.
            unsafe { (table.create)(&mut handle, page_bytes, &properties, 0) }
        })?;
        Ok(handle)
    }

    /// Releases physical memory. The driver frees it when no address maps it.
    pub(super) fn release(&self, handle: Handle) -> Result<(), CudaError> {
        self.give_back("cuMemRelease", |table| {
            // SAFETY: the handle is the caller's, and the caller forgets the handle if this
            // succeeds.
            unsafe { (table.release)(handle) }
        })
    }

    /// Maps a physical page. No work may read the page before [`allow`](Self::allow).
    pub(super) fn show(
        &self,
        address: u64,
        page_bytes: usize,
        handle: Handle,
    ) -> Result<(), CudaError> {
        self.call("cuMemMap", |table| {
            // SAFETY: the driver refuses addresses that are not reserved or are mapped already.
            unsafe { (table.map)(address, page_bytes, 0, handle, 0) }
        })
    }

    /// Makes mapped pages readable and writable by the device.
    pub(super) fn allow(&self, address: u64, size_bytes: usize) -> Result<(), CudaError> {
        let flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let access = CUmemAccessDesc { location: self.location(), flags };
        self.call("cuMemSetAccess", |table| {
            // SAFETY: the driver reads one description, and the count is 1.
            unsafe { (table.set_access)(address, size_bytes, &access, 1) }
        })
    }

    /// Unmaps whole pages. The caller has waited for the work that uses them.
    pub(super) fn hide(&self, address: u64, size_bytes: usize) -> Result<(), CudaError> {
        self.give_back("cuMemUnmap", |table| {
            // SAFETY: the driver refuses parts of pages, and addresses without a mapping.
            unsafe { (table.unmap)(address, size_bytes) }
        })
    }

    fn location(&self) -> CUmemLocation {
        let type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        CUmemLocation { type_, id: self.raw() as c_int }
    }

    fn properties(&self) -> CUmemAllocationProp {
        CUmemAllocationProp {
            type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
            location: self.location(),
            win32HandleMetaData: std::ptr::null_mut(),
            allocFlags: CUmemAllocationProp_st__bindgen_ty_1 {
                compressionType: 0,
                gpuDirectRDMACapable: 0,
                usage: 0,
                reserved: [0; 4],
            },
        }
    }
}
