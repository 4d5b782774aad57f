//! Launches: arguments packed as the driver takes them, and the one call that enqueues a kernel.

use std::ffi::c_void;

use lowtide_allocator::Stream;
use lowtide_allocator::cuda::{CudaError, CudaStreams};

use super::functions::Extent;
use super::kernel_error::KernelError;
use super::module::Function;
use super::signature::{Argument, Grid, Signature};

/// Arguments as the driver takes them: each at a multiple of its own size.
struct Packed {
    words: Vec<u64>,
    len: usize,
    /// The memory that the arguments name.
    extents: Vec<Extent>,
}

impl Packed {
    /// Room for the arguments of a kernel.
    fn new(signature: &Signature) -> Packed {
        let words = vec![0; signature.argument_bytes().div_ceil(8)];
        Packed { words, len: 0, extents: Vec::new() }
    }

    fn push(&mut self, value: u64, size_bytes: usize) {
        let offset = self.len.next_multiple_of(size_bytes);
        // The words are little-endian on every machine that has such a device.
        self.words[offset / 8] |= value << (8 * (offset % 8));
        self.len = offset + size_bytes;
    }

    fn push_memory(&mut self, address: u64, size_bytes: usize, is_written: u64) {
        self.push(address, 8);
        let size_bytes = size_bytes as u64;
        self.extents.push(Extent { address, size_bytes, is_written });
    }

    fn push_argument(
        &mut self,
        streams: &CudaStreams,
        argument: &Argument<'_>,
    ) -> Result<(), CudaError> {
        match *argument {
            Argument::Read(block, start, end) => {
                let (address, size_bytes) = streams.place(block, start..end)?;
                self.push_memory(address, size_bytes, 0);
            }
            Argument::Write(block, start, end) => {
                let (address, size_bytes) = streams.place(block, start..end)?;
                self.push_memory(address, size_bytes, 1);
            }
            Argument::WritePinned(pinned) => {
                let block = pinned.block();
                self.push_memory(block.address(), block.size_bytes(), 1);
            }
            Argument::Nothing => self.push(0, 8),
            Argument::I32(value) => self.push(u64::from(value.cast_unsigned()), 4),
            Argument::U32(value) => self.push(u64::from(value), 4),
            Argument::I64(value) => self.push(value.cast_unsigned(), 8),
            Argument::U64(value) => self.push(value, 8),
            Argument::F32(value) => self.push(u64::from(value.to_bits()), 4),
            Argument::F64(value) => self.push(value.to_bits(), 8),
            Argument::Words(words) => words.iter().for_each(|&word| self.push(word, 8)),
            Argument::Floats(floats) => {
                floats.iter().for_each(|float| self.push(u64::from(float.to_bits()), 4));
            }
            Argument::Pointers(all) => {
                all.iter().try_for_each(|memory| self.push_argument(streams, memory))?;
            }
        }
        Ok(())
    }
}

impl Function {
    /// Enqueues a launch of the kernel on a stream.
    ///
    /// Each argument is checked against the declared parameter, and each block against the memory
    /// of the device.
    ///
    /// # Errors
    /// An argument is of another kind than its parameter or is outside its block, or the driver
    /// refused. If the kernel fails while it runs, a later call of any kind reports the failure.
    ///
    /// # Streams
    /// As for copies: a block that is used on a stream other than its own needs
    /// `Buffer::record_use`, and the stream has to wait for earlier work on the block.
    ///
    /// # Safety
    /// 1. The kernel has the parameters that were declared. Drivers since CUDA 12.4 are asked; for
    ///    other drivers the caller ensures this. 2. With these arguments and this grid the kernel
    ///    uses no memory but its own and the bytes of the blocks that it is given, and writes only
    ///    blocks that are given to be written: a kernel could reach the page-locked memory of the
    ///    driver for the host. 3. A page-locked block that the kernel is given is of a
    ///    [`CudaHostSource`](lowtide_allocator::cuda::CudaHostSource), and the host does not touch
    ///    the block until it has waited for the stream.
    pub unsafe fn launch(
        &self,
        streams: &CudaStreams,
        stream: Stream,
        grid: Grid,
        arguments: &[Argument<'_>],
    ) -> Result<(), KernelError> {
        let kernel = self.name();
        if self.device() != streams.device() {
            return Err(KernelError::OtherDevice { kernel });
        }
        let packed = self.pack(streams, arguments)?;
        if grid.blocks.contains(&0) {
            return Ok(());
        }
        let queue = streams.queue_pointer(stream);
        let queue = queue.map_err(|cause| KernelError::Call { kernel, cause })?.cast();
        let ([bx, by, bz], [tx, ty, tz]) = (grid.blocks, grid.threads);
        let mut len = packed.len;
        // CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE and CU_LAUNCH_PARAM_END.
        let extra: [*mut c_void; 5] = [
            std::ptr::without_provenance_mut(1),
            packed.words.as_ptr().cast_mut().cast(),
            std::ptr::without_provenance_mut(2),
            (&raw mut len).cast(),
            std::ptr::null_mut(),
        ];
        let (handle, functions) = (self.handle(), self.functions());
        self.call("cuLaunchKernel", || {
            if let Some(extents) = functions.extents {
                // SAFETY: the function reads that many extents, and is the pretend driver's.
                unsafe { extents(packed.extents.as_ptr(), packed.extents.len()) };
            }
            let (shared, none, extra) = (grid.shared_bytes, std::ptr::null(), extra.as_ptr());
            // SAFETY: 1. the function is of this device and its module is loaded. 2. The driver
            // copies the arguments, whose address and length `extra` tells, before it returns.
            // 3. What the kernel does with them is the caller's promise.
            unsafe {
                (functions.launch)(handle, bx, by, bz, tx, ty, tz, shared, queue, none, extra)
            }
        })
    }

    fn pack(
        &self,
        streams: &CudaStreams,
        arguments: &[Argument<'_>],
    ) -> Result<Packed, KernelError> {
        let (kernel, parameters) = (self.name(), self.parameters());
        let wrong = |index: usize| {
            let expected = parameters.get(index).copied();
            KernelError::WrongArgument { kernel, index, expected }
        };
        if arguments.len() != parameters.len() {
            return Err(wrong(arguments.len().min(parameters.len())));
        }
        let mut packed = Packed::new(self.signature());
        for (index, (argument, &parameter)) in arguments.iter().zip(parameters).enumerate() {
            if !argument.fits(parameter) {
                return Err(wrong(index));
            }
            let pushed = packed.push_argument(streams, argument);
            pushed.map_err(|cause| KernelError::Call { kernel, cause })?;
        }
        Ok(packed)
    }
}
