//! Code for a device: images, and the kernels in them.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::sync::Arc;

use cudarc::driver::sys::{CUfunction, CUfunction_attribute, CUjit_option, CUmodule};

use lowtide_allocator::cuda::{CudaDevice, CudaError};

use super::functions::Functions;
use super::kernel_error::KernelError;
use super::signature::{Parameter, Signature};

/// `CUDA_ERROR_INVALID_VALUE`.
const INVALID_VALUE: i32 = 1;

/// Room for the message of the driver's compiler about an image that it refuses.
const LOG_BYTES: usize = 8 << 10;

/// Code that is loaded on a device. Clones share the code. The code is unloaded after its last
/// clone and its last function are dropped, once all work on the device is done.
#[derive(Clone)]
pub struct Module {
    shared: Arc<Shared>,
}

struct Shared {
    device: CudaDevice,
    name: &'static str,
    functions: Functions,
    handle: Name<CUmodule>,
}

/// A handle of the driver, to a module or a function.
#[derive(Clone, Copy)]
struct Name<T>(T);

// SAFETY: 1. only the driver dereferences the pointer. 2. The driver allows modules and functions
// to be used from any thread that has their context current.
unsafe impl<T> Send for Name<T> {}
// SAFETY: a shared `Name` yields a copy of the pointer and nothing else; see `Send` for its use.
unsafe impl<T> Sync for Name<T> {}

/// A kernel that can be [launched](Function::launch). A function keeps its module loaded.
#[derive(Clone)]
pub struct Function {
    module: Arc<Shared>,
    signature: Signature,
    handle: Name<CUfunction>,
}

/// Resources of a kernel, as compiled for its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionNeeds {
    /// Number of registers of each thread.
    pub registers: usize,
    /// Bytes of shared memory of each block, without the bytes that a launch adds.
    pub shared_bytes: usize,
    /// Bytes of memory of each thread outside registers: large arrays, and values that did not fit.
    pub local_bytes: usize,
    /// Largest number of threads of a block.
    pub threads_max: usize,
}

impl Module {
    /// Loads an image: PTX, which the driver compiles for its device, or a cubin for just that
    /// device. `name` is for messages.
    ///
    /// # Errors
    /// The driver refuses the image, with the message of its compiler; or there is no memory.
    pub fn load(
        device: &CudaDevice,
        name: &'static str,
        image: &[u8],
    ) -> Result<Module, KernelError> {
        let not_loaded = |log, cause| KernelError::BadImage { module: name, log, cause };
        let functions = Functions::of(device.driver());
        let functions = functions.map_err(|cause| not_loaded(String::new(), cause))?;
        // PTX is text that ends with a zero; a cubin knows its own length.
        let image = [image, &[0]].concat();
        let mut log = vec![0_u8; LOG_BYTES];
        let options = [
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER as c_int,
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES as c_int,
        ];
        let log_len = std::ptr::without_provenance_mut(LOG_BYTES);
        let values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), log_len];
        let (count, mut handle) = (options.len() as c_uint, std::ptr::null_mut());
        let loaded = device.make_call("cuModuleLoadDataEx", || {
            let (image, options, values) =
                (image.as_ptr().cast(), options.as_ptr(), values.as_ptr());
            // SAFETY: 1. the driver reads the image to its end: the zero, or what its header says.
            // 2. The driver writes one pointer, and the log to a place of the length that it is
            // told.
            unsafe { (functions.module_load)(&mut handle, image, count, options, values) }
        });
        loaded.map_err(|cause| {
            let text = log.split(|&byte| byte == 0).next().unwrap_or_default();
            not_loaded(String::from_utf8_lossy(text).trim().to_owned(), cause)
        })?;
        let (device, handle) = (device.clone(), Name(handle));
        Ok(Module { shared: Arc::new(Shared { device, name, functions, handle }) })
    }

    /// A kernel of the module. Drivers since CUDA 12.4 report the parameters of a kernel, which are
    /// compared with the declaration.
    ///
    /// # Errors
    /// The module has no such kernel, or the kernel has other parameters.
    ///
    /// # Panics
    /// If the declared parameters take more than 4 KiB.
    pub fn function(&self, signature: &Signature) -> Result<Function, KernelError> {
        let Shared { name: module, functions, .. } = &*self.shared;
        let (module, name) = (*module, signature.name);
        assert!(signature.fits_a_launch(), "{name} takes more than a launch can give");
        let text = CString::new(name).expect("names have no zero inside");
        let mut handle = std::ptr::null_mut();
        let found = self.device().make_call("cuModuleGetFunction", || {
            let name: *const c_char = text.as_ptr();
            // SAFETY: the driver reads a string that ends with a zero, and writes one pointer.
            unsafe { (functions.function)(&mut handle, self.shared.handle.0, name) }
        });
        found.map_err(|cause| KernelError::NoKernel { module, kernel: name, cause })?;
        let (module, handle) = (self.shared.clone(), Name(handle));
        let function = Function { module, signature: *signature, handle };
        match function.first_difference()? {
            Some(index) => Err(KernelError::OtherParameters { kernel: name, index }),
            None => Ok(function),
        }
    }

    /// The device that the module is loaded on.
    pub fn device(&self) -> &CudaDevice {
        &self.shared.device
    }
}

impl Function {
    /// Name of the kernel in its module.
    pub fn name(&self) -> &'static str {
        self.signature.name
    }

    /// The declared parameters of the kernel, in order.
    pub fn parameters(&self) -> &'static [Parameter] {
        self.signature.parameters
    }

    /// Registers, memory and threads of the kernel, as compiled for the device.
    ///
    /// # Errors
    /// The driver refused.
    pub fn needs(&self) -> Result<FunctionNeeds, KernelError> {
        let read = |attribute| self.attribute(attribute);
        Ok(FunctionNeeds {
            registers: read(CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            shared_bytes: read(CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
            local_bytes: read(CUfunction_attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
            threads_max: read(CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
        })
    }

    /// Lets launches add this number of bytes of shared memory to each block. The default limit is
    /// 48 KiB.
    ///
    /// # Errors
    /// The device has less.
    pub fn allow_shared_bytes(&self, size_bytes: u32) -> Result<(), KernelError> {
        let kind = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as c_int;
        let value = c_int::try_from(size_bytes).unwrap_or(c_int::MAX);
        self.call("cuFuncSetAttribute", || {
            // SAFETY: the function's module is loaded; the driver takes numbers.
            unsafe { (self.functions().set_function_attribute)(self.handle.0, kind, value) }
        })
    }

    pub(super) fn handle(&self) -> CUfunction {
        self.handle.0
    }

    pub(super) fn device(&self) -> &CudaDevice {
        &self.module.device
    }

    pub(super) fn functions(&self) -> &Functions {
        &self.module.functions
    }

    pub(super) fn signature(&self) -> &Signature {
        &self.signature
    }

    fn attribute(&self, attribute: CUfunction_attribute) -> Result<usize, KernelError> {
        let mut value = 0;
        self.call("cuFuncGetAttribute", || {
            let (get, attribute) = (self.functions().function_attribute, attribute as c_int);
            // SAFETY: the function's module is loaded; the driver writes one number.
            unsafe { get(&mut value, attribute, self.handle.0) }
        })?;
        Ok(usize::try_from(value).unwrap_or(0))
    }

    /// The index of the first parameter that differs from the declaration; `None` if none differs
    /// or the driver does not report parameters.
    fn first_difference(&self) -> Result<Option<usize>, KernelError> {
        let Some(tell) = self.functions().parameter else { return Ok(None) };
        let parameters = self.parameters();
        let mut end = 0;
        for index in 0..=parameters.len() {
            let expected = parameters.get(index).map(|parameter| {
                let offset = parameter.offset_after(end);
                end = offset + parameter.size_bytes();
                (offset, parameter.size_bytes())
            });
            let (mut offset, mut size_bytes) = (0, 0);
            let told = self.call("cuFuncGetParamInfo", || {
                // SAFETY: the function's module is loaded; the driver writes two numbers.
                unsafe { tell(self.handle.0, index, &mut offset, &mut size_bytes) }
            });
            let found = match told {
                Ok(()) => Some((offset, size_bytes)),
                // The driver's answer to an index behind the last parameter.
                Err(KernelError::Call {
                    cause: CudaError::Call { code: INVALID_VALUE, .. },
                    ..
                }) => None,
                Err(error) => return Err(error),
            };
            if found != expected {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    /// Makes a call of the driver about this function.
    pub(super) fn call(
        &self,
        name: &'static str,
        work: impl FnOnce() -> c_int,
    ) -> Result<(), KernelError> {
        let kernel = self.name();
        self.device().make_call(name, work).map_err(|cause| KernelError::Call { kernel, cause })
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Work that runs the code has to end first. A device that is lost unloads nothing.
        if self.device.synchronize().or_else(|_| self.device.synchronize()).is_err() {
            return;
        }
        let _ = self.device.make_call_twice("cuModuleUnload", || {
            // SAFETY: the module is this value's own, no function of it is left, and the work that
            // used it is done.
            unsafe { (self.functions.module_unload)(self.handle.0) }
        });
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Module").field("name", &self.shared.name).finish_non_exhaustive()
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Function").field("signature", &self.signature).finish_non_exhaustive()
    }
}
