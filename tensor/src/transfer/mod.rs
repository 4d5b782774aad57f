//! Copies: bytes of the host to a tensor and back, and tensors from one device to another.

#[cfg(feature = "cuda")]
mod cuda;

use std::ops::Range;

use lowtide_allocator::{Category, PinnedBuffer};

use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::device::Device;
use crate::dtype::{DType, Element, for_each_dtype};
use crate::error::{Result, TensorError};
use crate::launch::{FullKernel, Operands};
use crate::layout::{Layout, Nest};
use crate::tensor::Tensor;

/// Elements of the host in native byte order, row-major.
pub(crate) enum HostBytes<'a> {
    /// Bytes that may change when the copy has been enqueued.
    Any(&'a [u8]),
    /// Bytes of a page-locked block, which the copy may read when it runs.
    PageLocked(&'a PinnedBuffer, Range<usize>),
}

impl<'a> HostBytes<'a> {
    pub(crate) fn bytes(&self) -> &'a [u8] {
        match self {
            HostBytes::Any(bytes) => bytes,
            HostBytes::PageLocked(block, range) => &block.as_slice()[range.clone()],
        }
    }
}

/// A copy to all of a new tensor.
pub(crate) struct Upload<'a> {
    pub(crate) op: &'static str,
    pub(crate) from: HostBytes<'a>,
    pub(crate) dtype: DType,
}

impl FullKernel for Upload<'_> {
    fn name(&self) -> &'static str {
        self.op
    }

    fn cost(&self) -> Cost {
        Cost { class: OpClass::Copy, flops: 0.0, bytes: 2.0 * self.from.bytes().len() as f64 }
    }

    fn cpu(self, _: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        for_each_dtype!(self.dtype, T => {
            let mut out = operands.write::<T>(0);
            let layout = *out.layout();
            scatter(self.from.bytes(), &layout, out.data());
        });
        Ok(())
    }
}

/// A copy to memory that kernels may use at the same time.
pub(crate) struct Overwrite<'a>(pub(crate) Upload<'a>);

impl FullKernel for Overwrite<'_> {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn cost(&self) -> Cost {
        self.0.cost()
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        self.0.cpu(cpu, operands)
    }
}

/// Overwrites the elements of `layout` in `data` by `bytes`. `data` begins with the first element.
fn scatter<T: Element>(mut bytes: &[u8], layout: &Layout, data: &mut [T]) {
    let nest = Nest::new(layout.shape(), [layout.strides()]);
    nest.runs(layout.shape().element_count(), |[at], len| {
        let (head, tail) = bytes.split_at(len * size_of::<T>());
        bytemuck::cast_slice_mut(&mut data[at..][..len]).copy_from_slice(head);
        bytes = tail;
    });
}

/// A copy of all elements to the host, in row-major order.
pub(crate) struct Download<'a, T> {
    pub(crate) values: &'a mut Vec<T>,
}

impl<T: Element> FullKernel for Download<'_, T> {
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
}

/// A copy to a tensor of another device.
struct Send<'a> {
    to: &'a Tensor,
}

impl Send<'_> {
    const NAME: &'static str = "to_device";

    fn write<T: Element>(&self, elements: &[T]) -> Result<()> {
        let bytes = bytemuck::cast_slice(elements);
        let upload = Upload { op: Send::NAME, from: HostBytes::Any(bytes), dtype: T::DTYPE };
        self.to.device().launch(Overwrite(upload), &[], &[self.to])
    }
}

impl FullKernel for Send<'_> {
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
}

impl Tensor {
    /// A contiguous copy on `device`, which counts for `category` there. Between two NVIDIA devices
    /// the elements go through memory of the host.
    ///
    /// # Errors
    /// `OutOfMemory` of `device`. An NVIDIA device reports failures of earlier work too.
    #[track_caller]
    pub fn to_device(&self, device: &Device, category: Category) -> Result<Tensor> {
        let mut copy = Tensor::empty_in(device, category, *self.shape(), self.dtype())?;
        copy.copy_across_(self)?;
        Ok(copy)
    }

    /// Overwrites this tensor with the elements of `source`, which may be on another device. See
    /// [`Tensor::to_device`].
    ///
    /// # Errors
    /// `Shape` or `DType` unless both tensors have the same shape and type; `Frozen`, `Overlap`. An
    /// NVIDIA device reports failures of earlier work too.
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
        // Both devices wait for the copy, so its time counts on each.
        if let Some(sim) = to.device().simulation().filter(|_| to.device() != source.device()) {
            sim.advance(Send { to }.cost(), to.device().rates());
        }
        Ok(())
    }
}

/// Appends the elements of `layout` in `data` to `values`. `data` begins with the first element.
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
