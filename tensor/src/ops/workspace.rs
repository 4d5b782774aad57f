//! Scratch memory of kernels, allocated right before the launch and freed after it.

use crate::device::Device;
use crate::dtype::DType;
use crate::error::Result;
use crate::launch::Kernel;
use crate::tensor::Tensor;

/// The most parts of a workspace.
const PARTS_MAX: usize = 2;

/// A block of scratch memory, cut into parts: the last operands that a kernel writes.
#[derive(Clone, Debug)]
pub(crate) struct Workspace {
    dtype: DType,
    /// Elements of each part.
    lens: [usize; PARTS_MAX],
    part_count: usize,
}

impl Workspace {
    /// A block of parts of these lengths.
    pub(crate) fn new<const N: usize>(dtype: DType, lens: [usize; N]) -> Self {
        const { assert!(N <= PARTS_MAX, "too many parts") };
        let mut all = [0; PARTS_MAX];
        all[..N].copy_from_slice(&lens);
        Workspace { dtype, lens: all, part_count: N }
    }

    /// An empty workspace: no block and no operands.
    pub(crate) fn none() -> Self {
        Self::new(DType::U8, [])
    }

    #[track_caller]
    fn allocate(&self, device: &Device) -> Result<Vec<Tensor>> {
        let lens = &self.lens[..self.part_count];
        match *lens {
            [] => return Ok(Vec::new()),
            [len] => return Ok(vec![Tensor::workspace(device, len, self.dtype)?]),
            _ => {}
        }
        let block = Tensor::workspace(device, lens.iter().sum(), self.dtype)?;
        let mut start = 0;
        let part = |&len: &usize| {
            let part = block.narrow(0, start, len);
            start += len;
            part
        };
        lens.iter().map(part).collect()
    }
}

impl Device {
    /// [`Device::launch`] of a kernel that writes the parts of a workspace after its results.
    /// Returns the parts. A caller that reads a device's number frees the parts after the read.
    ///
    /// # Errors
    /// As [`Device::launch`], and `OutOfMemory`.
    #[track_caller]
    pub(crate) fn launch_with(
        &self,
        workspace: &Workspace,
        kernel: impl Kernel,
        reads: &[&Tensor],
        writes: &[&Tensor],
    ) -> Result<Vec<Tensor>> {
        let parts = workspace.allocate(self)?;
        let writes: Vec<&Tensor> = writes.iter().copied().chain(&parts).collect();
        self.launch(kernel, reads, &writes)?;
        Ok(parts)
    }
}
