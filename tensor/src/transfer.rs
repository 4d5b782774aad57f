//! Bytes of the host to a tensor and back, and tensors from one device to another.

use lowtide_allocator::{Category, PinnedBuffer};

use crate::cpu::Cpu;
#[cfg(feature = "cuda")]
use crate::cuda::{Cuda, CudaOperands};
use crate::device::{Backend, Device};
use crate::dtype::{DType, Element, for_each_dtype};
use crate::error::{Result, TensorError};
use crate::launch::{Cost, Kernel, OpClass, Operands};
use crate::layout::{Layout, Nest};
use crate::tensor::Tensor;

/// To new memory, all of it.
pub(crate) struct Upload<'a> {
    pub(crate) op: &'static str,
    /// Native byte order, row-major.
    pub(crate) bytes: &'a [u8],
    /// The page-locked block that they are in, and where, if they are to be read there when the
    /// copy runs.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "for NVIDIA devices"))]
    pub(crate) locked: Option<(&'a PinnedBuffer, usize)>,
    pub(crate) dtype: DType,
}

impl Kernel for Upload<'_> {
    fn name(&self) -> &'static str {
        self.op
    }

    fn cost(&self) -> Cost {
        Cost { class: OpClass::Copy, flops: 0.0, bytes: 2.0 * self.bytes.len() as f64 }
    }

    fn cpu(self, _: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        for_each_dtype!(self.dtype, T => {
            let mut out = operands.write::<T>(0);
            let layout = *out.layout();
            scatter(self.bytes, &layout, out.data());
        });
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn check_cuda(&self, _: &CudaOperands<'_>) -> Result<()> {
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let place = operands.write(0);
        match self.locked {
            Some((from, start)) => {
                cuda.write_new_from(&place, (from, start..start + self.bytes.len()))
            }
            None => cuda.write_new(&place, self.bytes),
        }
    }
}

/// To memory that kernels may be at work on.
pub(crate) struct Overwrite<'a>(pub(crate) Upload<'a>);

impl Kernel for Overwrite<'_> {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn cost(&self) -> Cost {
        self.0.cost()
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        self.0.cpu(cpu, operands)
    }

    #[cfg(feature = "cuda")]
    fn check_cuda(&self, _: &CudaOperands<'_>) -> Result<()> {
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let Upload { bytes, dtype, .. } = self.0;
        let to = operands.write(0);
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

/// Overwrites the elements of `layout` with those in `bytes`; `data` is from the first to the last.
fn scatter<T: Element>(mut bytes: &[u8], layout: &Layout, data: &mut [T]) {
    let nest = Nest::new(layout.shape(), [layout.strides()]);
    nest.runs(layout.shape().element_count(), |[at], len| {
        let (head, tail) = bytes.split_at(len * size_of::<T>());
        bytemuck::cast_slice_mut(&mut data[at..][..len]).copy_from_slice(head);
        bytes = tail;
    });
}

/// All elements in row-major order.
pub(crate) struct Download<'a, T> {
    pub(crate) values: &'a mut Vec<T>,
}

impl<T: Element> Kernel for Download<'_, T> {
    fn name(&self) -> &'static str {
        "download"
    }

    fn cost(&self) -> Cost {
        Cost::default()
    }

    fn cpu(self, _: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        let view = operands.read::<T>(0);
        gather(view.data(), view.layout(), self.values);
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn check_cuda(&self, _: &CudaOperands<'_>) -> Result<()> {
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let from = operands.read(0);
        gather(&cuda.read(&from)?, from.layout(), self.values);
        Ok(())
    }
}

/// To a tensor of another device.
struct Send<'a> {
    to: &'a Tensor,
}

impl Send<'_> {
    const NAME: &'static str = "to_device";

    fn write<T: Element>(&self, elements: &[T]) -> Result<()> {
        let bytes = bytemuck::cast_slice(elements);
        let upload = Upload { op: Send::NAME, bytes, locked: None, dtype: T::DTYPE };
        self.to.device().launch(Overwrite(upload), &[], &[self.to])
    }
}

impl Kernel for Send<'_> {
    fn name(&self) -> &'static str {
        Send::NAME
    }

    fn cost(&self) -> Cost {
        Cost { class: OpClass::Transfer, flops: 0.0, bytes: self.to.size_bytes() as f64 }
    }

    fn cpu(self, _: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        for_each_dtype!(self.to.dtype(), T => {
            let from = operands.read::<T>(0);
            if from.layout().is_contiguous() {
                return self.write(from.slice());
            }
            let mut elements = Vec::with_capacity(self.to.element_count());
            gather(from.data(), from.layout(), &mut elements);
            self.write::<T>(&elements)
        })
    }

    #[cfg(feature = "cuda")]
    fn check_cuda(&self, _: &CudaOperands<'_>) -> Result<()> {
        Ok(())
    }

    #[cfg(feature = "cuda")]
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

impl Tensor {
    /// A contiguous copy on `device`, which counts for `category` there. Between two NVIDIA devices
    /// the elements go through memory of the host.
    ///
    /// # Errors
    /// `OutOfMemory` of `device`; of an NVIDIA device what it reports, also of work before.
    #[track_caller]
    pub fn to_device(&self, device: &Device, category: Category) -> Result<Tensor> {
        let mut copy = Tensor::empty_in(device, category, *self.shape(), self.dtype())?;
        copy.copy_across_(self)?;
        Ok(copy)
    }

    /// The elements of `source`, which may be on another device, as with [`Tensor::to_device`].
    ///
    /// # Errors
    /// `Shape` and `DType` unless both have the same; `Frozen`, `Overlap`; of an NVIDIA device what
    /// it reports, also of work before.
    #[track_caller]
    pub fn copy_across_(&mut self, source: &Tensor) -> Result<()> {
        let (op, to) = ("copy_across", &*self);
        if to.shape() != source.shape() {
            let (left, right) = (*to.shape(), *source.shape());
            return Err(TensorError::Shape { op, left, right });
        }
        if to.dtype() != source.dtype() {
            let (left, right) = (to.dtype(), source.dtype());
            return Err(TensorError::DType { op, left, right });
        }
        source.device().launch(Send { to }, &[source], &[])?;
        // Both devices wait for the copy: it is part of the time of each.
        if let (true, Backend::Sim(sim)) = (to.device() != source.device(), to.device().backend()) {
            sim.advance(Send { to }.cost());
        }
        Ok(())
    }
}

/// Adds the elements of `layout` to `values`; `data` is from the first to the last.
fn gather<T: Element>(data: &[T], layout: &Layout, values: &mut Vec<T>) {
    let nest = Nest::new(layout.shape(), [layout.strides()]);
    nest.rows(0, layout.shape().element_count(), |row| {
        let data = &data[row.starts[0]..];
        match nest.inner_strides()[0] {
            0 => values.extend(std::iter::repeat_n(data[0], row.len)),
            step => values.extend(data.iter().step_by(step).take(row.len)),
        }
    });
}
