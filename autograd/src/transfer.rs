//! Copies between devices: a kernel on the one that reads runs a kernel on the one that writes.

use lowtide_allocator::Category;
use lowtide_tensor::{
    Bool, Cost, Cpu, DType, Device, Element, Kernel, Operands, Tensor, TensorError, bf16, f16,
};

use crate::error::Result;

/// A contiguous copy of the contiguous `source` on `device`.
///
/// # Errors
/// `OutOfMemory` of `device`.
#[track_caller]
pub(crate) fn transfer(source: &Tensor, device: &Device, category: Category) -> Result<Tensor> {
    let copy = Tensor::empty_in(device, category, *source.shape(), source.dtype())?;
    let from = source.device();
    match source.dtype() {
        DType::F64 => from.launch(Send::<f64>::new(&copy), &[source], &[])?,
        DType::F32 => from.launch(Send::<f32>::new(&copy), &[source], &[])?,
        DType::F16 => from.launch(Send::<f16>::new(&copy), &[source], &[])?,
        DType::BF16 => from.launch(Send::<bf16>::new(&copy), &[source], &[])?,
        DType::I64 => from.launch(Send::<i64>::new(&copy), &[source], &[])?,
        DType::I32 => from.launch(Send::<i32>::new(&copy), &[source], &[])?,
        DType::U8 => from.launch(Send::<u8>::new(&copy), &[source], &[])?,
        DType::Bool => from.launch(Send::<Bool>::new(&copy), &[source], &[])?,
        other => return Err(TensorError::DType { op: "offload", left: other, right: other }.into()),
    }
    Ok(copy)
}

/// Reads its operand and has it written to `to`.
struct Send<'a, T> {
    to: &'a Tensor,
    element: std::marker::PhantomData<T>,
}

impl<'a, T> Send<'a, T> {
    fn new(to: &'a Tensor) -> Self {
        Send { to, element: std::marker::PhantomData }
    }
}

fn one_way(tensor: &Tensor) -> Cost {
    Cost { flops: 0.0, bytes: tensor.size_bytes() as f64 }
}

impl<T: Element> Kernel for Send<'_, T> {
    fn name(&self) -> &'static str {
        "offload"
    }

    fn cost(&self) -> Cost {
        one_way(self.to)
    }

    fn cpu(self, _: &Cpu, operands: &mut Operands<'_>) -> Result<(), TensorError> {
        let elements = operands.read::<T>(0).slice();
        self.to.device().launch(Receive { elements, cost: one_way(self.to) }, &[], &[self.to])
    }
}

struct Receive<'a, T> {
    elements: &'a [T],
    cost: Cost,
}

impl<T: Element> Kernel for Receive<'_, T> {
    fn name(&self) -> &'static str {
        "offload"
    }

    fn cost(&self) -> Cost {
        self.cost
    }

    fn cpu(self, _: &Cpu, operands: &mut Operands<'_>) -> Result<(), TensorError> {
        operands.write::<T>(0).slice().copy_from_slice(self.elements);
        Ok(())
    }
}
