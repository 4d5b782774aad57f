//! Copies on NVIDIA devices.

use super::{Download, HostBytes, Overwrite, Send, Upload, gather, scatter};
use crate::cuda::{Cuda, CudaOperands, OnCuda};
use crate::dtype::{Element, for_each_dtype};
use crate::error::Result;

impl OnCuda for Upload<'_> {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let place = operands.write(0);
        match self.from {
            HostBytes::Any(bytes) => cuda.write_new(&place, bytes),
            HostBytes::PageLocked(block, range) => cuda.write_new_from(&place, block, range),
        }
    }
}

impl OnCuda for Overwrite<'_> {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let Upload { from, dtype, .. } = self.0;
        let (bytes, to) = (from.bytes(), operands.write(0));
        if to.layout().is_contiguous() {
            return cuda.write(&to, bytes);
        }
        for_each_dtype!(dtype, T => {
            let mut data = cuda.read::<T>(&to)?;
            scatter(bytes, to.layout(), &mut data);
            cuda.write(&to, bytemuck::cast_slice(&data))
        })
    }
}

impl<T: Element> OnCuda for Download<'_, T> {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let from = operands.read(0);
        gather(&cuda.read(&from)?, from.layout(), self.values);
        Ok(())
    }
}

impl OnCuda for Send<'_> {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let from = operands.read(0);
        for_each_dtype!(self.to.dtype(), T => {
            let data = cuda.read::<T>(&from)?;
            if from.layout().is_contiguous() {
                return self.write(&data);
            }
            let mut elements = Vec::with_capacity(self.to.element_count());
            gather(&data, from.layout(), &mut elements);
            self.write::<T>(&elements)
        })
    }
}
