//! Checks of all gradients of a step at once: scaling, finiteness and norm.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;

use std::borrow::Borrow;
use std::iter;

use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::device::Device;
use crate::dtype::{DType, for_each_dtype};
use crate::error::{Result, TensorError};
use crate::launch::{FullKernel, Operands};
use crate::layout::Nest;
use crate::spec::DeviceKind;
use crate::tensor::Tensor;

/// Scales one tensor in place and raises `flag` to 1 if an element is infinite or NaN.
struct ScaleAndCheck {
    scale: f64,
    dtype: DType,
    len: usize,
}

impl FullKernel for ScaleAndCheck {
    fn name(&self) -> &'static str {
        "scale_and_check_finite"
    }

    fn cost(&self) -> Cost {
        let bytes = (2 * self.len * self.dtype.size_bytes()) as f64;
        Cost { class: OpClass::Reduction, flops: self.len as f64, bytes }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        let flag = operands.write::<f32>(0).slice();
        for_each_dtype!(self.dtype, E => {
            let mut x = operands.write::<E>(1);
            let nest = Nest::new(x.layout().shape(), [x.layout().strides()]);
            nest.runs(self.len, |[at], len| {
                let run = &mut x.data()[at..][..len];
                let is_finite = match self.dtype {
                    DType::F64 => {
                        cpu::scale_and_check::<f64>(cpu, bytemuck::cast_slice_mut(run), self.scale)
                    }
                    DType::F32 => {
                        let scale = self.scale as f32;
                        cpu::scale_and_check::<f32>(cpu, bytemuck::cast_slice_mut(run), scale)
                    }
                    _ => cpu::scale_and_check_half(cpu, run, self.scale as f32),
                };
                if !is_finite {
                    flag[0] = 1.0;
                }
            });
        });
        Ok(())
    }
}

/// [`ScaleAndCheck`] of contiguous tensors of one type, on an NVIDIA device.
struct ScaleAndCheckAll {
    scale: f64,
    dtype: DType,
    lens: Vec<usize>,
}

impl FullKernel for ScaleAndCheckAll {
    fn name(&self) -> &'static str {
        "scale_and_check_finite"
    }

    fn cost(&self) -> Cost {
        let len = self.lens.iter().sum();
        ScaleAndCheck { scale: self.scale, dtype: self.dtype, len }.cost()
    }

    fn cpu(self, _: &Cpu, _: &mut Operands<'_>) -> Result<()> {
        Err(TensorError::NoKernel { op: self.name(), device: "cpu" })
    }
}

/// Largest number of partial sums of a tensor's squares on an NVIDIA device.
const PARTIALS_MAX: usize = 1024;

/// Smallest number of elements of a partial sum.
const PARTIAL_LEN_MIN: usize = 256;

/// Partial sums of a tensor.
fn partial_count(len: usize) -> usize {
    len.div_ceil(PARTIAL_LEN_MIN).min(PARTIALS_MAX)
}

/// The largest number of tensors in one launch on an NVIDIA device.
const TENSORS_MAX: usize = 240;

/// Consecutive tensors that one launch can take: contiguous tensors of one type, or a single
/// tensor.
fn runs<T: Borrow<Tensor>>(tensors: &[T]) -> impl Iterator<Item = &[T]> {
    let mut rest = tensors;
    iter::from_fn(move || {
        let first = rest.first()?.borrow();
        let fits = |tensor: &T| {
            let tensor = tensor.borrow();
            tensor.layout().is_contiguous() && tensor.dtype() == first.dtype()
        };
        let is_cuda = first.device().kind() == DeviceKind::Cuda;
        let most = if is_cuda { TENSORS_MAX.min(rest.len()) } else { 1 };
        let count = rest[..most].iter().take_while(|tensor| fits(tensor)).count().max(1);
        let (run, others) = rest.split_at(count);
        rest = others;
        Some(run)
    })
}

/// Adds one tensor's sum of squares to the first destination. The second destination holds partial
/// sums, on devices that store them.
struct AddSquares {
    dtype: DType,
    len: usize,
}

impl FullKernel for AddSquares {
    fn name(&self) -> &'static str {
        "squared_norm"
    }

    fn cost(&self) -> Cost {
        let bytes = (self.len * self.dtype.size_bytes()) as f64;
        Cost { class: OpClass::Reduction, flops: 2.0 * self.len as f64, bytes }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        let sum = operands.write::<f64>(0).slice();
        for_each_dtype!(self.dtype, T => {
            sum[0] += cpu::sum_of_squares(cpu, operands.read::<T>(0).slice());
        });
        Ok(())
    }
}

/// [`AddSquares`] of contiguous tensors of one type, on an NVIDIA device. The bits are those of
/// separate launches in order. The second destination holds the partial sums of all tensors, then
/// the sum of each tensor.
struct AddSquaresAll {
    dtype: DType,
    lens: Vec<usize>,
}

impl FullKernel for AddSquaresAll {
    fn name(&self) -> &'static str {
        "squared_norm"
    }

    fn cost(&self) -> Cost {
        AddSquares { dtype: self.dtype, len: self.lens.iter().sum() }.cost()
    }

    fn cpu(self, _: &Cpu, _: &mut Operands<'_>) -> Result<()> {
        Err(TensorError::NoKernel { op: self.name(), device: "cpu" })
    }
}

/// Checks that the tensor holds floats, half types included.
fn check_any_float(op: &'static str, tensor: &Tensor) -> Result<()> {
    if tensor.dtype().is_float() {
        return Ok(());
    }
    Err(TensorError::DType { op, left: tensor.dtype(), right: DType::F32 })
}

/// Multiplies float tensors by `scale` in place. Returns a one-element f32 tensor: 1 if any result
/// is infinite or NaN, 0 if all are finite. A scale of exactly 1 leaves the bits unchanged.
///
/// # Errors
/// `DType`, `Device`, `Frozen`, `Overlap` (on an expanded view), `OutOfMemory`, all of them before
/// anything is written. An NVIDIA device may refuse a launch after the launches of earlier tensors
/// are enqueued.
#[track_caller]
pub fn scale_and_check_finite<'a>(
    device: &Device,
    tensors: impl IntoIterator<Item = &'a mut Tensor>,
    scale: f64,
) -> Result<Tensor> {
    let op = "scale_and_check_finite";
    let tensors: Vec<&mut Tensor> = tensors.into_iter().collect();
    let flag = Tensor::zeros(device, [1], DType::F32)?;
    let kernel = |tensor: &Tensor| {
        let (dtype, len) = (tensor.dtype(), tensor.element_count());
        ScaleAndCheck { scale, dtype, len }
    };
    for tensor in &tensors {
        check_any_float(op, tensor)?;
        device.check_launch(op, &[], &[&flag, tensor])?;
    }
    for run in runs(&tensors) {
        let writes = iter::once(&flag).chain(run.iter().map(|tensor| &**tensor));
        let writes: Vec<&Tensor> = writes.collect();
        // Each tensor passed the check alone. Tensors that share memory are scaled one after the
        // other.
        if run.len() > 1 && device.check_launch(op, &[], &writes).is_ok() {
            let (dtype, lens) = (run[0].dtype(), lens(&writes[1..]));
            device.launch(ScaleAndCheckAll { scale, dtype, lens }, &[], &writes)?;
            continue;
        }
        for tensor in &writes[1..] {
            device.launch(kernel(tensor), &[], &[&flag, tensor])?;
        }
    }
    Ok(flag)
}

fn lens(tensors: &[&Tensor]) -> Vec<usize> {
    tensors.iter().map(|tensor| tensor.element_count()).collect()
}

/// The square of the Euclidean norm of all elements of all (float) tensors together, as a
/// one-element f64 tensor. Take the root on the host. Copies tensors that are not contiguous.
///
/// # Errors
/// `DType`, `Device`, `OutOfMemory`.
#[track_caller]
pub fn squared_norm<'a>(
    device: &Device,
    tensors: impl IntoIterator<Item = &'a Tensor>,
) -> Result<Tensor> {
    let tensors: Vec<&Tensor> = tensors.into_iter().collect();
    tensors.iter().try_for_each(|tensor| check_any_float("squared_norm", tensor))?;
    let sum = Tensor::zeros(device, [1], DType::F64)?;
    let of_run = |run: &[&Tensor]| match run {
        [one] => partial_count(one.element_count()),
        all => all.iter().map(|tensor| partial_count(tensor.element_count()) + 1).sum(),
    };
    let is_cuda = device.kind() == DeviceKind::Cuda;
    let partial_count = runs(&tensors).map(of_run).max().filter(|_| is_cuda).unwrap_or(0);
    let partials = Tensor::workspace(device, partial_count, DType::F64)?;
    for run in runs(&tensors) {
        if run.len() > 1 {
            let kernel = AddSquaresAll { dtype: run[0].dtype(), lens: lens(run) };
            device.launch(kernel, run, &[&sum, &partials])?;
            continue;
        }
        let kernel = AddSquares { dtype: run[0].dtype(), len: run[0].element_count() };
        device.launch(kernel, &[&run[0].contiguous()?], &[&sum, &partials])?;
    }
    Ok(sum)
}

/// The results of [`scale_and_check_finite`] and [`squared_norm`] for tensors that come one by one,
/// in any order, and are freed afterwards. The results have the same bits as the functions over all
/// tensors together.
pub struct RunningCheck {
    flag: Tensor,
    /// The sum of squares of each tensor.
    squares: Tensor,
    partials: Tensor,
}

impl RunningCheck {
    /// A check of `count` tensors on `device`.
    ///
    /// # Errors
    /// `OutOfMemory`.
    #[track_caller]
    pub fn new(device: &Device, count: usize) -> Result<Self> {
        let partial_count = if device.kind() == DeviceKind::Cuda { PARTIALS_MAX } else { 0 };
        Ok(RunningCheck {
            flag: Tensor::zeros(device, [1], DType::F32)?,
            squares: Tensor::zeros(device, [count], DType::F64)?,
            partials: Tensor::workspace(device, partial_count, DType::F64)?,
        })
    }

    /// Multiplies a tensor by `scale` in place and checks it. `index` is its place among all
    /// tensors. Copies a tensor that is not contiguous.
    ///
    /// # Errors
    /// `DType`, `Device`, `Frozen`, `OutOfMemory`.
    #[track_caller]
    pub fn add(&mut self, index: usize, tensor: &mut Tensor, scale: f64) -> Result<()> {
        let op = "running_check";
        check_any_float(op, tensor)?;
        let (dtype, len) = (tensor.dtype(), tensor.element_count());
        let device = tensor.device().clone();
        device.launch(ScaleAndCheck { scale, dtype, len }, &[], &[&self.flag, tensor])?;
        let square = self.squares.narrow(0, index, 1)?;
        device.launch(
            AddSquares { dtype, len },
            &[&tensor.contiguous()?],
            &[&square, &self.partials],
        )
    }

    /// The results so far, to read together with other numbers: an f32 tensor, 0 if all elements
    /// are finite, else 1; and an f64 tensor, the sum of squares of each tensor.
    pub fn tensors(&self) -> [&Tensor; 2] {
        [&self.flag, &self.squares]
    }

    /// True if all elements are finite, and the sum of their squares. Waits for the device. A
    /// simulated device assumes finite elements and a sum of 0.
    ///
    /// # Errors
    /// The error of a device that fails.
    #[track_caller]
    pub fn read(&self) -> Result<(bool, f64)> {
        let is_finite = self.flag.item_assuming(0.0f32)? == 0.0;
        if self.squares.device().is_simulated() {
            return Ok((is_finite, 0.0));
        }
        // Added in order, from 0 on, as on a device.
        let sum = self.squares.to_vec::<f64>()?.into_iter().fold(0.0, |sum, square| sum + square);
        Ok((is_finite, sum))
    }
}
