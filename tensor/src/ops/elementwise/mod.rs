//! Operations on each element, with broadcasting and in place: `y[i] = f(x[i], ..)`.

mod cpu;

use crate::cpu::Cpu;
use crate::dtype::{for_each_dtype, for_float};
use crate::{Cost, DType, Element, Float, Kernel, Operands, Result, Tensor, TensorError};
use cpu::{Destination, Map, Zip};

pub(crate) use cpu::strided;

/// A function of one float.
#[derive(Clone, Copy, Debug)]
enum Unary {
    Neg,
    Exp,
    Log,
    Sqrt,
    Relu,
    AddScalar(f64),
    MulScalar(f64),
}

impl Unary {
    fn name(self) -> &'static str {
        match self {
            Unary::Neg => "neg",
            Unary::Exp => "exp",
            Unary::Log => "log",
            Unary::Sqrt => "sqrt",
            Unary::Relu => "relu",
            Unary::AddScalar(_) => "add_scalar",
            Unary::MulScalar(_) => "mul_scalar",
        }
    }

    /// The formulas; chosen once, outside the loop.
    fn run<T: Float>(self, operands: impl Map<T>) {
        match self {
            Unary::Neg => operands.map(|x| -x),
            Unary::Exp => operands.map(T::exp),
            Unary::Log => operands.map(T::ln),
            Unary::Sqrt => operands.map(T::sqrt),
            Unary::Relu => operands.map(|x| x.maximum(T::ZERO)),
            Unary::AddScalar(c) => operands.map(|x| x + T::from_f64(c)),
            Unary::MulScalar(c) => operands.map(|x| x * T::from_f64(c)),
        }
    }
}

/// A function of two floats.
#[derive(Clone, Copy, Debug)]
enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    AddScaled(f64),
    ReluBackward,
}

impl Binary {
    fn name(self) -> &'static str {
        match self {
            Binary::Add => "add",
            Binary::Sub => "sub",
            Binary::Mul => "mul",
            Binary::Div => "div",
            Binary::AddScaled(_) => "add_scaled",
            Binary::ReluBackward => "relu_backward",
        }
    }

    /// The formulas; chosen once, outside the loop.
    fn run<T: Float>(self, operands: impl Zip<T>) {
        match self {
            Binary::Add => operands.zip(|a, b| a + b),
            Binary::Sub => operands.zip(|a, b| a - b),
            Binary::Mul => operands.zip(|a, b| a * b),
            Binary::Div => operands.zip(|a, b| a / b),
            Binary::AddScaled(c) => operands.zip(|a, b| a + T::from_f64(c) * b),
            // A NaN lets its gradient through, as in PyTorch.
            Binary::ReluBackward => operands.zip(|dy, y| if y <= T::ZERO { T::ZERO } else { dy }),
        }
    }
}

/// Reads one element of each operand, writes one, and computes `flops` for it.
fn cost(len: usize, operand_count: usize, dtype: DType, flops: f64) -> Cost {
    let bytes = (len * operand_count * dtype.size_bytes()) as f64;
    Cost { flops: flops * len as f64, bytes }
}

/// A unary formula over `len` elements of type `dtype`.
struct UnaryKernel {
    op: Unary,
    dtype: DType,
    len: usize,
}

impl Kernel for UnaryKernel {
    fn name(&self) -> &'static str {
        self.op.name()
    }

    fn cost(&self) -> Cost {
        cost(self.len, 2, self.dtype, 1.0)
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        for_float!(self.dtype, T => {
            let out = operands.write::<T>(0);
            match operands.read_count() {
                0 => self.op.run(Destination { cpu, inputs: [], out }),
                _ => self.op.run(Destination { cpu, inputs: [operands.read(0)], out }),
            }
        }, else unreachable!("checked to be a float"));
        Ok(())
    }
}

/// A binary formula over `len` elements of type `dtype`.
struct BinaryKernel {
    op: Binary,
    dtype: DType,
    len: usize,
}

impl Kernel for BinaryKernel {
    fn name(&self) -> &'static str {
        self.op.name()
    }

    fn cost(&self) -> Cost {
        cost(self.len, 3, self.dtype, 1.0)
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        for_float!(self.dtype, T => {
            let out = operands.write::<T>(0);
            match operands.read_count() {
                1 => self.op.run(Destination { cpu, inputs: [operands.read(0)], out }),
                _ => {
                    let inputs = [operands.read(0), operands.read(1)];
                    self.op.run(Destination { cpu, inputs, out });
                }
            }
        }, else unreachable!("checked to be a float"));
        Ok(())
    }
}

/// Converts or copies `len` elements.
struct Convert {
    from: DType,
    to: DType,
    len: usize,
}

impl Kernel for Convert {
    fn name(&self) -> &'static str {
        "copy"
    }

    fn cost(&self) -> Cost {
        let bytes = self.len * (self.from.size_bytes() + self.to.size_bytes());
        Cost { flops: 0.0, bytes: bytes as f64 }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        if self.from == self.to {
            // Not through f64, which would round large integers.
            for_each_dtype!(self.to, T => {
                cpu::update(cpu, operands.write::<T>(0), [operands.read::<T>(0)], |_, [x]| x);
            });
            return Ok(());
        }
        for_each_dtype!(self.from, I => for_each_dtype!(self.to, O => {
            let out = operands.write::<O>(0);
            let input = operands.read::<I>(0);
            cpu::update(cpu, out, [input], |_, [x]| O::from_f64(x.to_f64()));
        }));
        Ok(())
    }
}

struct Fill {
    value: f64,
    dtype: DType,
    len: usize,
}

impl Kernel for Fill {
    fn name(&self) -> &'static str {
        "fill"
    }

    fn cost(&self) -> Cost {
        cost(self.len, 1, self.dtype, 0.0)
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        for_each_dtype!(self.dtype, T => {
            let value = T::from_f64(self.value);
            cpu::update(cpu, operands.write::<T>(0), [] as [crate::View<'_, T>; 0], |_, []| value);
        });
        Ok(())
    }
}

impl Tensor {
    #[track_caller]
    fn unary(&self, op: Unary) -> Result<Tensor> {
        self.check_float(op.name())?;
        let y = Tensor::empty(self.device(), *self.shape(), self.dtype())?;
        let kernel = UnaryKernel { op, dtype: self.dtype(), len: self.element_count() };
        self.device().launch(kernel, &[self], &[&y])?;
        Ok(y)
    }

    #[track_caller]
    fn unary_(&mut self, op: Unary) -> Result<()> {
        self.check_float(op.name())?;
        let kernel = UnaryKernel { op, dtype: self.dtype(), len: self.element_count() };
        self.device().launch(kernel, &[], &[self])
    }

    #[track_caller]
    fn binary(&self, other: &Tensor, op: Binary) -> Result<Tensor> {
        self.check_float(op.name())?;
        self.check_dtype(op.name(), other)?;
        let (left, right) = (*self.shape(), *other.shape());
        let mismatch = TensorError::Shape { op: op.name(), left, right };
        let shape = left.broadcast(&right).ok_or(mismatch)?;
        let y = Tensor::empty(self.device(), shape, self.dtype())?;
        let kernel = BinaryKernel { op, dtype: self.dtype(), len: shape.element_count() };
        self.device().launch(kernel, &[&self.expand(shape)?, &other.expand(shape)?], &[&y])?;
        Ok(y)
    }

    #[track_caller]
    fn binary_(&mut self, other: &Tensor, op: Binary) -> Result<()> {
        self.check_float(op.name())?;
        self.check_dtype(op.name(), other)?;
        let (left, right) = (*self.shape(), *other.shape());
        if left.broadcast(&right) != Some(left) {
            return Err(TensorError::Shape { op: op.name(), left, right });
        }
        let kernel = BinaryKernel { op, dtype: self.dtype(), len: self.element_count() };
        self.device().launch(kernel, &[&other.expand(left)?], &[self])
    }

    /// `self + other`, broadcast.
    ///
    /// # Errors
    /// `Shape`, `DType` (both the same float type), `OutOfMemory`. So for all of this family;
    /// the in-place forms also `Frozen` and `Overlap`, and never `OutOfMemory`.
    #[track_caller]
    pub fn add(&self, other: &Tensor) -> Result<Tensor> {
        self.binary(other, Binary::Add)
    }

    /// `self - other`, broadcast; errors as [`Tensor::add`].
    #[track_caller]
    pub fn sub(&self, other: &Tensor) -> Result<Tensor> {
        self.binary(other, Binary::Sub)
    }

    /// `self · other`, element by element, broadcast; errors as [`Tensor::add`].
    #[track_caller]
    pub fn mul(&self, other: &Tensor) -> Result<Tensor> {
        self.binary(other, Binary::Mul)
    }

    /// `self / other`, broadcast; errors as [`Tensor::add`].
    #[track_caller]
    pub fn div(&self, other: &Tensor) -> Result<Tensor> {
        self.binary(other, Binary::Div)
    }

    /// `self += other`; `other` broadcasts to this shape.
    #[track_caller]
    pub fn add_(&mut self, other: &Tensor) -> Result<()> {
        self.binary_(other, Binary::Add)
    }

    /// `self -= other`; `other` broadcasts to this shape.
    #[track_caller]
    pub fn sub_(&mut self, other: &Tensor) -> Result<()> {
        self.binary_(other, Binary::Sub)
    }

    /// `self *= other`; `other` broadcasts to this shape.
    #[track_caller]
    pub fn mul_(&mut self, other: &Tensor) -> Result<()> {
        self.binary_(other, Binary::Mul)
    }

    /// `self /= other`; `other` broadcasts to this shape.
    #[track_caller]
    pub fn div_(&mut self, other: &Tensor) -> Result<()> {
        self.binary_(other, Binary::Div)
    }

    /// `self += scale · other`; `other` broadcasts to this shape.
    #[track_caller]
    pub fn add_scaled_(&mut self, other: &Tensor, scale: f64) -> Result<()> {
        self.binary_(other, Binary::AddScaled(scale))
    }

    /// `-self`; errors as [`Tensor::add`].
    #[track_caller]
    pub fn neg(&self) -> Result<Tensor> {
        self.unary(Unary::Neg)
    }

    /// `e^self`; errors as [`Tensor::add`].
    #[track_caller]
    pub fn exp(&self) -> Result<Tensor> {
        self.unary(Unary::Exp)
    }

    /// The natural logarithm; errors as [`Tensor::add`].
    #[track_caller]
    pub fn log(&self) -> Result<Tensor> {
        self.unary(Unary::Log)
    }

    /// The square root; errors as [`Tensor::add`].
    #[track_caller]
    pub fn sqrt(&self) -> Result<Tensor> {
        self.unary(Unary::Sqrt)
    }

    /// `max(self, 0)`; NaN stays NaN. Errors as [`Tensor::add`].
    #[track_caller]
    pub fn relu(&self) -> Result<Tensor> {
        self.unary(Unary::Relu)
    }

    /// [`Tensor::relu`] in place.
    #[track_caller]
    pub fn relu_(&mut self) -> Result<()> {
        self.unary_(Unary::Relu)
    }

    /// The gradient through `y = relu(x)`, in place on `self = dy`: 0 where `y` is not positive.
    #[track_caller]
    pub fn relu_backward_(&mut self, y: &Tensor) -> Result<()> {
        self.check_shape("relu_backward", *y.shape())?;
        self.binary_(y, Binary::ReluBackward)
    }

    /// The gradient through `y = relu(x)` for `dy = self`; errors as [`Tensor::add`].
    #[track_caller]
    pub fn relu_backward(&self, y: &Tensor) -> Result<Tensor> {
        self.check_shape("relu_backward", *y.shape())?;
        self.binary(y, Binary::ReluBackward)
    }

    /// `self + value`; errors as [`Tensor::add`].
    #[track_caller]
    pub fn add_scalar(&self, value: f64) -> Result<Tensor> {
        self.unary(Unary::AddScalar(value))
    }

    /// `self · value`; errors as [`Tensor::add`].
    #[track_caller]
    pub fn mul_scalar(&self, value: f64) -> Result<Tensor> {
        self.unary(Unary::MulScalar(value))
    }

    /// `self *= value`.
    #[track_caller]
    pub fn mul_scalar_(&mut self, value: f64) -> Result<()> {
        self.unary_(Unary::MulScalar(value))
    }

    /// Every element `value`, converted as `as` does. Any element type.
    ///
    /// # Errors
    /// `Frozen`, `Overlap` (on an expanded view).
    #[track_caller]
    pub fn fill_(&mut self, value: f64) -> Result<()> {
        let kernel = Fill { value, dtype: self.dtype(), len: self.element_count() };
        self.device().launch(kernel, &[], &[self])
    }

    /// The elements of `source`, broadcast to this shape and converted to this type.
    ///
    /// # Errors
    /// `Shape`, `Frozen`, `Overlap`.
    #[track_caller]
    pub fn copy_(&mut self, source: &Tensor) -> Result<()> {
        let len = self.element_count();
        let kernel = Convert { from: source.dtype(), to: self.dtype(), len };
        let (left, right) = (*self.shape(), *source.shape());
        if left.broadcast(&right) != Some(left) {
            return Err(TensorError::Shape { op: kernel.name(), left, right });
        }
        self.device().launch(kernel, &[&source.expand(left)?], &[self])
    }

    /// The same values as another type, as `as` converts them; shares the storage when the type
    /// is the same.
    ///
    /// # Errors
    /// `OutOfMemory`.
    #[track_caller]
    pub fn to_dtype(&self, dtype: DType) -> Result<Tensor> {
        if dtype == self.dtype() {
            return Ok(self.clone());
        }
        let mut converted = Tensor::empty(self.device(), *self.shape(), dtype)?;
        converted.copy_(self)?;
        Ok(converted)
    }
}
