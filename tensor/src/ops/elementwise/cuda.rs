//! The formulas on NVIDIA devices: the kernel of each formula, and its numbers.

use super::Elementwise;
use super::convert::{Copy, Fill};
use super::division::CheckDivisor;
use super::op::{Formula, Op};
use super::table::{Float, Gradient, Number, Test};
use crate::cuda::gate::{Argument, Grid, Parameter, Signature};
use crate::cuda::kernels::{
    CAST, ELEMENTWISE, FILL, INTEGERS, Image, SPECIAL, WALK_OF_1, WALK_OF_2, WALK_OF_3, WALK_OF_5,
    bits_of, grid, kernel_number, typed_name, walk, walk_of,
};
use crate::cuda::{Checked, Cuda, CudaOperands, OnCuda};
use crate::dtype::{DType, Element};
use crate::error::{Result, TensorError};
use crate::layout::{Layout, Nest, RANK_MAX};
use Parameter::{Read, U32, U64, Words, Write};

/// The name of a kernel over a walk, for elements of any type.
macro_rules! walk_name {
    ($name:literal, $dtype:expr) => {
        match $dtype {
            DType::I64 => concat!($name, "_i64"),
            DType::I32 => concat!($name, "_i32"),
            DType::U8 | DType::Bool => concat!($name, "_u8"),
            dtype => typed_name!($name, dtype),
        }
    };
}

/// The kernel parameter `struct Numbers`, in words.
const NUMBERS: Parameter = Words(3);

/// The kernel, or the error that there is none.
fn or_no_kernel<T>(kernel: Option<T>, op: &'static str) -> Result<T> {
    kernel.ok_or(TensorError::NoKernel { op, device: "cuda" })
}

// Enqueues filling with the bits of the value.
impl OnCuda for Fill {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let to = operands.write(0);
        let (bits, size_bytes) = (bits_of(self.dtype, self.value), self.dtype.size_bytes());
        let bytes = &bits.to_le_bytes()[..size_bytes];
        if to.layout().is_contiguous() && bytes.iter().all(|byte| *byte == bytes[0]) {
            return cuda.fill(&to, to.bytes(), bytes[0]);
        }
        let kernel = Signature {
            name: ["fill_1", "fill_2", "fill_4", "fill_8"][size_bytes.ilog2() as usize],
            parameters: &[Parameter::Write, Parameter::U64, WALK_OF_1],
        };
        let shape = to.layout().shape();
        let bits = Argument::U64(bits);
        let walk = walk(shape, [to.layout()]);
        let arguments = [to.to_write(), bits, Argument::Words(&walk)];
        cuda.launch(FILL, &kernel, grid(shape.element_count()), &arguments)
    }
}

/// The kernel that copies or converts, and its image.
fn copy_kernel(op: &Copy) -> (Image, &'static str) {
    if op.from == op.to {
        let names = ["copy_1", "copy_2", "copy_4", "copy_8"];
        return (FILL, names[op.to.size_bytes().ilog2() as usize]);
    }
    macro_rules! names {
        ($from:literal) => {
            match op.to {
                DType::F64 => concat!("cast_", $from, "_f64"),
                DType::F32 => concat!("cast_", $from, "_f32"),
                DType::F16 => concat!("cast_", $from, "_f16"),
                DType::BF16 => concat!("cast_", $from, "_bf16"),
                DType::I64 => concat!("cast_", $from, "_i64"),
                DType::I32 => concat!("cast_", $from, "_i32"),
                DType::U8 => concat!("cast_", $from, "_u8"),
                DType::Bool => concat!("cast_", $from, "_bool"),
            }
        };
    }
    let name = match op.from {
        DType::F64 => names!("f64"),
        DType::F32 => names!("f32"),
        DType::F16 => names!("f16"),
        DType::BF16 => names!("bf16"),
        DType::I64 => names!("i64"),
        DType::I32 => names!("i32"),
        DType::U8 => names!("u8"),
        DType::Bool => names!("bool"),
    };
    (CAST, name)
}

// Enqueues copying the bytes, or their conversion to another type.
impl OnCuda for Copy {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let (from, to) = (operands.read(0), operands.write(0));
        let (shape, source) = (to.layout().shape(), from.layout());
        let is_same = self.from == self.to;
        if is_same
            && source.is_contiguous()
            && to.layout().is_contiguous()
            && source.shape() == shape
        {
            return cuda.copy(&from, &to);
        }
        let (image, name) = copy_kernel(&self);
        let parameters = &[Parameter::Write, Parameter::Read, WALK_OF_2];
        let kernel = Signature { name, parameters };
        let source = source.expand(*shape).expect("the operation checked the shapes");
        let walk = walk(shape, [to.layout(), &source]);
        let arguments = [to.to_write(), from.to_read(), Argument::Words(&walk)];
        cuda.launch(image, &kernel, grid(shape.element_count()), &arguments)
    }
}

/// The number of a formula in the kernel, and the scalars of the formula. The kernel is in
/// `elementwise.cu`, for integers in `integers.cu`.
struct KernelFormula {
    number: u32,
    scalars: [f64; 2],
}

/// The number of a formula in `special.cu`; `None` if the file lacks the formula.
fn special_number(formula: Formula) -> Option<u32> {
    Some(match formula {
        Formula::Float(Float::ErfInv) => const { kernel_number(SPECIAL_FORMULAS, "ERF_INV") },
        Formula::Float(Float::LGamma) => const { kernel_number(SPECIAL_FORMULAS, "LGAMMA") },
        Formula::Float(Float::Digamma) => const { kernel_number(SPECIAL_FORMULAS, "DIGAMMA") },
        Formula::Gradient(Gradient::Digamma) => {
            const { kernel_number(SPECIAL_FORMULAS, "D_DIGAMMA") }
        }
        _ => return None,
    })
}

/// Enqueues a formula of `special.cu`.
fn special(op: &Elementwise, number: u32, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
    let y = operands.write(0);
    let mut sources: Vec<_> = (0..operands.read_count()).map(|i| operands.read(i)).collect();
    // In place, the destination is the first source.
    if sources.len() < op.op.source_count() {
        sources.insert(0, y);
    }
    let (a, b) = (sources[0], sources.get(1));
    let of_b = b.map_or(&[0; RANK_MAX][..], |b| b.layout().strides());
    let strides = [y.layout().strides(), a.layout().strides(), of_b];
    let walk = walk_of(&Nest::new(y.layout().shape(), strides), op.len);
    let name = typed_name!("special", op.dtype);
    let kernel = Signature { name, parameters: &[Write, Read, Read, U32, WALK_OF_3] };
    let arguments = [
        y.to_write(),
        a.to_read(),
        b.map_or(Argument::Nothing, |b| b.to_read()),
        Argument::U32(number),
        Argument::Words(&walk),
    ];
    cuda.launch(SPECIAL.of(op.dtype), &kernel, grid(op.len), &arguments)
}

/// Threads of the block that checks all divisors.
const DIVISOR_THREADS: u32 = 512;

// Enqueues a check of all divisors: the next read of a value reports a divisor of 0.
impl OnCuda for CheckDivisor {
    fn check(&self, _: &CudaOperands<'_>) -> Result<()> {
        divisors_number(self.name).map(drop)
    }

    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let x = operands.read(0);
        let name = match self.dtype {
            DType::I64 => "check_divisors_i64",
            DType::I32 => "check_divisors_i32",
            _ => "check_divisors_u8",
        };
        let kernel = Signature { name, parameters: &[Write, Read, U64, WALK_OF_1] };
        let walk = walk(x.layout().shape(), [x.layout()]);
        let number = Argument::U64(divisors_number(self.name)?);
        cuda.with_complaint(|complaint| {
            let arguments = [complaint, x.to_read(), number, Argument::Words(&walk)];
            cuda.launch(INTEGERS, &kernel, Grid::row(1, DIVISOR_THREADS), &arguments)
        })
    }
}

/// The operation's number for the kernel that checks divisors.
pub(super) fn divisors_number(op: &'static str) -> Result<u64> {
    or_no_kernel(Checked::Divisors(op).number(), op)
}

/// The number and scalars of a formula for kernels; an error if no kernel takes the types.
fn kernel_formula(op: &Elementwise) -> Result<KernelFormula> {
    let Op { formula, scalars } = op.op;
    let result = if matches!(formula, Formula::Test(_)) { DType::Bool } else { op.dtype };
    let adds = matches!(formula, Formula::Number(Number::Add));
    let scalars = if adds { [1.0, 0.0] } else { scalars };
    let number = match formula {
        _ if op.result != result => None,
        _ if !op.dtype.is_float() => integer_number(formula),
        Formula::Number(Number::Add) => Some(const { kernel_number(FORMULAS, "ADD_SCALED") }),
        Formula::Number(formula) => formula.kernel_number(),
        Formula::Float(formula) => formula.kernel_number(),
        Formula::Gradient(formula) => formula.kernel_number(),
        Formula::Test(formula) => formula.kernel_number(),
    };
    or_no_kernel(number.map(|number| KernelFormula { number, scalars }), op.name)
}

/// The number of a formula in `integers.cu`; `None` if the file lacks the formula.
fn integer_number(formula: Formula) -> Option<u32> {
    macro_rules! number {
        ($name:literal) => {
            const { kernel_number(INTEGER_FORMULAS, $name) }
        };
    }
    Some(match formula {
        Formula::Number(formula) => match formula {
            Number::Abs => number!("ABS"),
            Number::Neg => number!("NEG"),
            Number::Sign => number!("SIGN"),
            Number::Relu => number!("RELU"),
            Number::Clamp => number!("CLAMP"),
            Number::Add | Number::AddScaled => number!("ADD_SCALED"),
            Number::Sub => number!("SUB"),
            Number::Mul => number!("MUL"),
            Number::Maximum => number!("MAXIMUM"),
            Number::Minimum => number!("MINIMUM"),
            Number::Where => number!("WHERE"),
            Number::MaskedFill => number!("MASKED_FILL"),
            Number::AddCMul => number!("ADDCMUL"),
            Number::DivFloor => number!("DIV_FLOOR"),
            Number::DivTrunc => number!("DIV_TRUNC"),
            Number::Remainder => number!("REMAINDER"),
            Number::Fmod => number!("FMOD"),
            Number::Fmax => number!("MAXIMUM"),
            Number::Fmin => number!("MINIMUM"),
            Number::Heaviside => number!("HEAVISIDE"),
        },
        Formula::Test(formula) => match formula {
            Test::Not => number!("NOT"),
            Test::Eq => number!("EQ"),
            Test::Ne => number!("NE"),
            Test::Lt => number!("LT"),
            Test::Le => number!("LE"),
            Test::Gt => number!("GT"),
            Test::Ge => number!("GE"),
            Test::And => number!("AND"),
            Test::Or => number!("OR"),
            Test::Xor => number!("XOR"),
            _ => return None,
        },
        _ => return None,
    })
}

// Enqueues a formula.
impl OnCuda for Elementwise {
    fn check(&self, _: &CudaOperands<'_>) -> Result<()> {
        match special_number(self.op.formula) {
            Some(_) => Ok(()),
            None => kernel_formula(self).map(drop),
        }
    }

    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        if let Some(number) = special_number(self.op.formula) {
            return special(&self, number, cuda, operands);
        }
        let KernelFormula { number, scalars } = kernel_formula(&self)?;
        let to = operands.write(0);
        let shape = *to.layout().shape();
        let mut given: Vec<_> = (0..operands.read_count()).map(|i| operands.read(i)).collect();
        // In place, the destination is the first source.
        if given.len() + usize::from(self.scalar.is_some()) < self.op.source_count() {
            given.insert(0, to);
        }
        // Up to three sources and a mask. A number as the last source has no memory.
        let (mut sources, mut places) = ([Argument::Nothing; 4], [None; 4]);
        let mut source_count = 0;
        for (index, operand) in given.iter().enumerate() {
            let at = if self.op.is_mask(index) { 3 } else { source_count };
            source_count += usize::from(at != 3);
            let layout = operand.layout().expand(shape).expect("the operation checked the shapes");
            (sources[at], places[at]) = (operand.to_read(), Some(layout));
        }
        let all_given = || places.iter().flatten();
        let is_float = self.dtype.is_float();
        let lies_in_order = to.layout().is_contiguous() && all_given().all(Layout::is_contiguous);
        let is_plain = is_float && lies_in_order;
        let none = [0; RANK_MAX];
        let strides = |place: &Option<Layout>| -> [usize; RANK_MAX] {
            let mut strides = none;
            let given = place.as_ref().map_or(&[][..], |layout| layout.strides());
            strides[..given.len()].copy_from_slice(given);
            strides
        };
        let of_sources = places.each_ref().map(strides);
        let [a, b, c, mask] = of_sources.each_ref().map(|strides| &strides[..shape.len()]);
        let nest = Nest::new(&shape, [to.layout().strides(), a, b, c, mask]);
        let (len, grid) = (shape.element_count(), grid(shape.element_count()));
        let walk = if is_plain { Vec::new() } else { walk_of(&nest, len) };
        let numbers =
            [self.scalar.unwrap_or(0.0), scalars[0], scalars[1]].map(|number| match is_float {
                true => number.to_bits(),
                false => i64::from_f64(number).cast_unsigned(),
            });
        let numbers = [Argument::U32(number), Argument::Words(&numbers)];
        let extent = if is_plain { Argument::U64(len as u64) } else { Argument::Words(&walk) };
        let (image, dtype) = match is_float {
            true => (ELEMENTWISE.of(self.dtype), self.dtype),
            false => (INTEGERS, self.dtype),
        };
        if matches!(self.op.formula, Formula::Test(_)) {
            let (name, parameters) = match is_plain {
                true => (typed_name!("test", dtype), &[Write, Read, Read, U32, NUMBERS, U64]),
                false => {
                    (walk_name!("test_walk", dtype), &[Write, Read, Read, U32, NUMBERS, WALK_OF_5])
                }
            };
            let arguments = [&[to.to_write()], &sources[..2], &numbers[..], &[extent]].concat();
            return cuda.launch(image, &Signature { name, parameters }, grid, &arguments);
        }
        let (name, parameters) = match is_plain {
            true => {
                (typed_name!("formula", dtype), &[Write, Read, Read, Read, Read, U32, NUMBERS, U64])
            }
            false => (
                walk_name!("formula_walk", dtype),
                &[Write, Read, Read, Read, Read, U32, NUMBERS, WALK_OF_5],
            ),
        };
        let arguments = [&[to.to_write()], &sources[..], &numbers[..], &[extent]].concat();
        cuda.launch(image, &Signature { name, parameters }, grid, &arguments)
    }
}

/// Files of kernels, whose first enum numbers the formulas.
pub(super) const FORMULAS: &str = include_str!("elementwise.cu");
const INTEGER_FORMULAS: &str = include_str!("integers.cu");
const SPECIAL_FORMULAS: &str = include_str!("special.cu");
