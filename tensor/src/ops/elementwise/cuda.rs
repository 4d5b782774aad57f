//! The formulas on NVIDIA devices: which kernel does each, with which numbers.

use lowtide_allocator::cuda::{Argument, Kernel as Signature, Parameter};

use super::Elementwise;
use super::convert::{Copy, Fill};
use super::op::{Formula, Op};
use super::table::{Float, Number};
use crate::cuda::kernels::{
    CAST, ELEMENTWISE, FILL, Image, WALK_OF_1, WALK_OF_2, WALK_OF_3, grid, walk,
};
use crate::cuda::{Cuda, CudaOperands};
use crate::dtype::{DType, Element, for_each_dtype};
use crate::error::{Result, TensorError};
use crate::launch::Kernel;
use crate::layout::Layout;

/// `None` where there is no kernel, as the error that says so.
fn or_no_kernel<T>(kernel: Option<T>, op: &'static str) -> Result<T> {
    kernel.ok_or(TensorError::NoKernel { op, device: "cuda" })
}

/// By bits: every element has the same.
pub(super) fn fill(op: &Fill, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
    let to = operands.write(0);
    let mut bits = [0; 8];
    for_each_dtype!(op.dtype, T => {
        let value = [T::from_f64(op.value)];
        let bytes: &[u8] = bytemuck::cast_slice(&value);
        bits[..bytes.len()].copy_from_slice(bytes);
    });
    let size_bytes = op.dtype.size_bytes();
    if to.layout().is_contiguous() && bits[..size_bytes].iter().all(|byte| *byte == bits[0]) {
        return cuda.fill(&to, to.bytes(), bits[0]);
    }
    let kernel = Signature {
        name: ["fill_1", "fill_2", "fill_4", "fill_8"][size_bytes.ilog2() as usize],
        parameters: &[Parameter::Write, Parameter::U64, WALK_OF_1],
    };
    let shape = to.layout().shape();
    let bits = Argument::U64(u64::from_le_bytes(bits));
    let walk = walk(shape, [to.layout()]);
    let arguments = [to.to_write(), bits, Argument::Words(&walk)];
    cuda.launch(FILL, &kernel, grid(shape.element_count()), &arguments)
}

/// The kernel that copies or converts, and its image.
pub(super) fn copy_kernel(op: &Copy) -> Result<(Image, &'static str)> {
    use DType::{BF16, F16, F32, F64};
    let name = match (op.from, op.to) {
        (from, to) if from == to => {
            let names = ["copy_1", "copy_2", "copy_4", "copy_8"];
            return Ok((FILL, names[to.size_bytes().ilog2() as usize]));
        }
        (F32, F16) => Some("cast_f32_f16"),
        (F32, BF16) => Some("cast_f32_bf16"),
        (F16, F32) => Some("cast_f16_f32"),
        (F16, BF16) => Some("cast_f16_bf16"),
        (BF16, F32) => Some("cast_bf16_f32"),
        (BF16, F16) => Some("cast_bf16_f16"),
        (F32, F64) => Some("cast_f32_f64"),
        (F64, F32) => Some("cast_f64_f32"),
        _ => None,
    };
    Ok((CAST, or_no_kernel(name, op.name())?))
}

/// As the bytes are, or rounded to another float type.
pub(super) fn copy(op: &Copy, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
    let (from, to) = (operands.read(0), operands.write(0));
    let (shape, source) = (to.layout().shape(), from.layout());
    let is_same = op.from == op.to;
    if is_same && source.is_contiguous() && to.layout().is_contiguous() && source.shape() == shape {
        return cuda.copy(&from, &to);
    }
    let (image, name) = copy_kernel(op)?;
    let parameters = &[Parameter::Write, Parameter::Read, WALK_OF_2];
    let kernel = Signature { name, parameters };
    let source = source.expand(*shape).expect("the operation checked the shapes");
    let walk = walk(shape, [to.layout(), &source]);
    let arguments = [to.to_write(), from.to_read(), Argument::Words(&walk)];
    cuda.launch(image, &kernel, grid(shape.element_count()), &arguments)
}

/// A formula's number in `elementwise.cu`, and its scalars.
pub(super) struct KernelFormula {
    number: u32,
    scalars: [f64; 2],
}

impl KernelFormula {
    /// Of addition, subtraction, multiplication and division, which f64 has a kernel for.
    fn is_arithmetic(&self) -> bool {
        self.number < 4
    }
}

/// The kernels over one source or two, by the type that they compute in.
#[derive(Clone, Copy)]
pub(super) enum Family {
    UnaryF32,
    BinaryF32,
    BinaryF64,
}

/// The kernel of a formula that is launched with so many operands to read.
pub(super) fn kernel_of(op: &Elementwise, read_count: usize) -> Result<(Family, KernelFormula)> {
    let scalar_count = usize::from(op.scalar.is_some());
    // In place, the destination is the first source.
    let is_in_place = read_count + scalar_count < op.op.source_count();
    let source_count = read_count + usize::from(is_in_place);
    let formula = |scalar| kernel_formula(op.op, scalar);
    let found = match (op.dtype, op.result, source_count) {
        (DType::F32, DType::F32, 1) => formula(op.scalar).map(|f| (Family::UnaryF32, f)),
        _ if scalar_count > 0 => None,
        (DType::F32, DType::F32, 2) => formula(None).map(|f| (Family::BinaryF32, f)),
        (DType::F64, DType::F64, 2) => {
            formula(None).filter(KernelFormula::is_arithmetic).map(|f| (Family::BinaryF64, f))
        }
        _ => None,
    };
    or_no_kernel(found, op.name)
}

/// Enqueues a formula of f32, or arithmetic of f64.
pub(super) fn formula(op: &Elementwise, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
    let (family, formula) = kernel_of(op, operands.read_count())?;
    let to = operands.write(0);
    let shape = *to.layout().shape();
    let mut sources: Vec<_> = (0..operands.read_count()).map(|i| operands.read(i)).collect();
    // In place, the destination is the first source.
    if sources.len() + usize::from(op.scalar.is_some()) < op.op.source_count() {
        sources.insert(0, to);
    }
    let expanded =
        |layout: &Layout| layout.expand(shape).expect("the operation checked the shapes");
    let layouts: Vec<Layout> = sources.iter().map(|source| expanded(source.layout())).collect();
    let is_plain = to.layout().is_contiguous() && layouts.iter().all(Layout::is_contiguous);
    let (len, grid) = (Argument::U64(shape.element_count() as u64), grid(shape.element_count()));
    use Parameter::{F32, F64, Read, U32, U64, Write};
    match (family, &*sources, &*layouts) {
        (Family::UnaryF32, [x], [layout]) => {
            let [p, q] = formula.scalars.map(|scalar| Argument::F32(scalar as f32));
            let (y, x, number) = (to.to_write(), x.to_read(), Argument::U32(formula.number));
            if is_plain {
                let parameters = &[Write, Read, U64, U32, F32, F32];
                let kernel = Signature { name: "unary_f32", parameters };
                return cuda.launch(ELEMENTWISE, &kernel, grid, &[y, x, len, number, p, q]);
            }
            let walk = walk(&shape, [to.layout(), layout]);
            let parameters = &[Write, Read, U32, F32, F32, WALK_OF_2];
            let kernel = Signature { name: "unary_f32_walk", parameters };
            let arguments = [y, x, number, p, q, Argument::Words(&walk)];
            cuda.launch(ELEMENTWISE, &kernel, grid, &arguments)
        }
        (Family::BinaryF32, [a, b], [a_layout, b_layout]) => {
            let (number, p) = (Argument::U32(formula.number), formula.scalars[0] as f32);
            let (y, a, b) = (to.to_write(), a.to_read(), b.to_read());
            if is_plain {
                let parameters = &[Write, Read, Read, U64, U32, F32];
                let kernel = Signature { name: "binary_f32", parameters };
                let arguments = [y, a, b, len, number, Argument::F32(p)];
                return cuda.launch(ELEMENTWISE, &kernel, grid, &arguments);
            }
            let walk = walk(&shape, [to.layout(), a_layout, b_layout]);
            let parameters = &[Write, Read, Read, U32, F32, WALK_OF_3];
            let kernel = Signature { name: "binary_f32_walk", parameters };
            let arguments = [y, a, b, number, Argument::F32(p), Argument::Words(&walk)];
            cuda.launch(ELEMENTWISE, &kernel, grid, &arguments)
        }
        (Family::BinaryF64, [a, b], [a_layout, b_layout]) => {
            let walk = walk(&shape, [to.layout(), a_layout, b_layout]);
            let parameters = &[Write, Read, Read, U32, F64, WALK_OF_3];
            let kernel = Signature { name: "binary_f64_walk", parameters };
            let (number, p) = (Argument::U32(formula.number), Argument::F64(formula.scalars[0]));
            let (y, a, b) = (to.to_write(), a.to_read(), b.to_read());
            let arguments = [y, a, b, number, p, Argument::Words(&walk)];
            cuda.launch(ELEMENTWISE, &kernel, grid, &arguments)
        }
        _ => unreachable!("a formula has the sources that its kernel was found by"),
    }
}

/// The place of a name in its enum in `elementwise.cu`: how formulas are told apart there. For
/// constants: the compiler looks, and a name that is not there is its error.
pub(super) const fn kernel_number(name: &str) -> u32 {
    let (text, name) = (include_str!("elementwise.cu").as_bytes(), name.as_bytes());
    let (mut at, mut number, mut is_in_enum) = (0, 0, false);
    while at < text.len() {
        match text[at] {
            b'{' if !is_in_enum => (is_in_enum, number) = (true, 0),
            b'}' => is_in_enum = false,
            b'/' => {
                while text[at] != b'\n' {
                    at += 1;
                }
            }
            b'A'..=b'Z' if is_in_enum => {
                let start = at;
                while is_of_name(text[at]) {
                    at += 1;
                }
                if is_same(text, start, at, name) {
                    return number;
                }
                number += 1;
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    panic!("elementwise.cu has no such formula")
}

const fn is_of_name(byte: u8) -> bool {
    byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_'
}

const fn is_same(text: &[u8], start: usize, end: usize, name: &[u8]) -> bool {
    let mut index = 0;
    while index < name.len() && start + index < end && text[start + index] == name[index] {
        index += 1;
    }
    index == name.len() && start + index == end
}

/// The number of a formula in `elementwise.cu`, and its scalars there.
fn kernel_formula(op: Op, scalar: Option<f64>) -> Option<KernelFormula> {
    let Op { formula, scalars } = op;
    let (number, scalars) = match (formula, scalar) {
        (Formula::Number(Number::Add), None) => (const { kernel_number("ADD_SCALED") }, [1.0, 0.0]),
        (Formula::Number(Number::Add), Some(scalar)) => {
            (const { kernel_number("ADD_SCALAR") }, [scalar, 0.0])
        }
        (Formula::Number(Number::Sub), Some(scalar)) => {
            (const { kernel_number("ADD_SCALAR") }, [-scalar, 0.0])
        }
        (Formula::Number(Number::Mul), Some(scalar)) => {
            (const { kernel_number("MUL_SCALAR") }, [scalar, 0.0])
        }
        (Formula::Float(Float::Div), Some(scalar)) => {
            (const { kernel_number("DIV_SCALAR") }, [scalar, 0.0])
        }
        (_, Some(_)) => return None,
        (Formula::Number(formula), None) => (formula.kernel_number()?, scalars),
        (Formula::Float(formula), None) => (formula.kernel_number()?, scalars),
        (Formula::Gradient(formula), None) => (formula.kernel_number()?, scalars),
        (Formula::Test(formula), None) => (formula.kernel_number()?, scalars),
    };
    Some(KernelFormula { number, scalars })
}
