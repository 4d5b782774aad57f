//! Tensors as text, laid out as PyTorch's `print` does: four digits, or powers of ten where the
//! numbers differ widely; columns aligned; only the edges of more than a thousand elements.

use std::fmt::{self, Display, Write};

use crate::dtype::{DType, Element, for_each_dtype};
use crate::error::Result;
use crate::tensor::Tensor;

const PRECISION: usize = 4;
/// Largest number of elements that are all shown; more elements are summarised.
const ELEMENT_COUNT_MAX: usize = 1000;
/// Elements that a summary shows at each end of a dimension.
const EDGE_LEN: usize = 3;
const LINE_COLUMNS: usize = 80;
const PREFIX: &str = "tensor(";

/// Writes `tensor([[1., 2.], [3., 4.]])`, and the element type unless it is f32, i64 or bool. A
/// tensor of a simulated device shows its shape instead of elements.
impl Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::from(PREFIX);
        let mut suffixes = Vec::new();
        let is_empty = self.element_count() == 0;
        if self.device().is_simulated() {
            text += "...";
            suffixes.push("device='sim'".to_owned());
        } else if is_empty {
            text += "[]";
        } else {
            let lines = Lines::new(self).map_err(|_| fmt::Error)?;
            lines.write(&mut text, self.shape(), PREFIX.len(), &mut lines.texts.iter());
        }
        let has_numbers = !is_empty && !self.device().is_simulated();
        if !has_numbers && (self.shape().len() != 1 || self.device().is_simulated()) {
            suffixes.push(format!("size={}", tuple(self.shape())));
        }
        let is_told = has_numbers && matches!(self.dtype(), DType::I64 | DType::Bool);
        if self.dtype() != DType::F32 && !is_told {
            suffixes.push(format!("dtype={}", self.dtype()));
        }
        f.write_str(&with_suffixes(text, &suffixes))
    }
}

/// A shape as Python writes it.
fn tuple(dims: &[usize]) -> String {
    let inside: Vec<String> = dims.iter().map(usize::to_string).collect();
    match dims.len() {
        1 => format!("({},)", inside[0]),
        _ => format!("({})", inside.join(", ")),
    }
}

/// Appends the suffixes. A suffix that does not fit on the last line begins a new line.
fn with_suffixes(mut text: String, suffixes: &[String]) -> String {
    // PyTorch counts two columns more than the last line has.
    let mut columns = text.len() + 2 - text.rfind('\n').map_or(0, |at| at + 1);
    for suffix in suffixes {
        if columns + suffix.len() + 2 > LINE_COLUMNS {
            let _ = write!(text, ",\n{:indent$}{suffix}", "", indent = PREFIX.len());
            columns = PREFIX.len() + suffix.len();
        } else {
            let _ = write!(text, ", {suffix}");
            columns += suffix.len() + 2;
        }
    }
    text.push(')');
    text
}

/// The elements to be shown, in row-major order, each as wide as the widest.
struct Lines {
    texts: Vec<String>,
    width: usize,
    is_summary: bool,
}

impl Lines {
    fn new(tensor: &Tensor) -> Result<Self> {
        let is_summary = tensor.element_count() > ELEMENT_COUNT_MAX;
        let mut width = 1;
        let mut texts = match tensor.dtype() {
            dtype if dtype.is_float() => {
                let mut numbers = Vec::new();
                visit_shown(tensor, 0, is_summary, &mut |part| {
                    for_each_dtype!(dtype, T => {
                        numbers.extend(part.to_vec::<T>()?.into_iter().map(Element::to_f64));
                    });
                    Ok(())
                })?;
                let texts = float_texts(&numbers);
                // Neither 0 nor infinities nor NaN widen a column.
                let is_usual = |x: f64| x.is_finite() && x != 0.0;
                let usual = texts.iter().zip(&numbers).filter(|&(_, &x)| is_usual(x));
                width = usual.map(|(text, _)| text.len()).max().unwrap_or(1);
                texts
            }
            DType::Bool => {
                let mut texts = Vec::new();
                visit_shown(tensor, 0, is_summary, &mut |part| {
                    let name = |is| if is { "True" } else { "False" }.to_owned();
                    texts.extend(part.to_vec::<bool>()?.into_iter().map(name));
                    Ok(())
                })?;
                texts
            }
            dtype => {
                let mut texts = Vec::new();
                visit_shown(tensor, 0, is_summary, &mut |part| {
                    for_each_dtype!(dtype, T => {
                        texts.extend(part.to_vec::<T>()?.iter().map(T::to_string));
                    });
                    Ok(())
                })?;
                texts
            }
        };
        if !tensor.dtype().is_float() {
            width = texts.iter().map(String::len).max().unwrap_or(1);
        }
        texts.iter_mut().for_each(|text| *text = format!("{text:>width$}"));
        Ok(Lines { texts, width, is_summary })
    }

    fn is_cut(&self, len: usize) -> bool {
        self.is_summary && len > 2 * EDGE_LEN
    }

    /// Writes a tensor of shape `dims` that starts `indent` columns into its line.
    fn write<'a>(
        &self,
        text: &mut String,
        dims: &[usize],
        indent: usize,
        elements: &mut impl Iterator<Item = &'a String>,
    ) {
        let Some((&len, inner)) = dims.split_first() else {
            text.extend(elements.next().map(String::as_str));
            return;
        };
        text.push('[');
        let shown = if self.is_cut(len) { 2 * EDGE_LEN + 1 } else { len };
        let per_line = (LINE_COLUMNS.saturating_sub(indent) / (self.width + 2)).max(1);
        for index in 0..shown {
            let is_gap = self.is_cut(len) && index == EDGE_LEN;
            if index > 0 && (!inner.is_empty() || index % per_line == 0) {
                let breaks = inner.len().max(1);
                let _ = write!(text, ",{:\n<breaks$}{:width$}", "", "", width = indent + 1);
            } else if index > 0 {
                text.push_str(", ");
            }
            match (is_gap, inner.is_empty()) {
                (true, true) => text.push_str(" ..."),
                (true, false) => text.push_str("..."),
                _ => self.write(text, inner, indent + 1, elements),
            }
        }
        text.push(']');
    }
}

/// Calls `visit` for the parts of `tensor` that are shown, in row-major order.
fn visit_shown(
    tensor: &Tensor,
    axis: usize,
    is_summary: bool,
    visit: &mut dyn FnMut(&Tensor) -> Result<()>,
) -> Result<()> {
    if !is_summary || axis == tensor.shape().len() {
        return visit(tensor);
    }
    let len = tensor.shape()[axis];
    let indices =
        (0..len).filter(|&at| len <= 2 * EDGE_LEN || at < EDGE_LEN || at >= len - EDGE_LEN);
    if axis + 1 == tensor.shape().len() {
        if len <= 2 * EDGE_LEN {
            return visit(tensor);
        }
        visit(&tensor.narrow(axis, 0, EDGE_LEN)?)?;
        return visit(&tensor.narrow(axis, len - EDGE_LEN, EDGE_LEN)?);
    }
    indices
        .into_iter()
        .try_for_each(|at| visit_shown(&tensor.narrow(axis, at, 1)?, axis + 1, is_summary, visit))
}

/// The numbers as texts, all in the form that suits all of them.
fn float_texts(numbers: &[f64]) -> Vec<String> {
    let usual = || numbers.iter().copied().filter(|x| x.is_finite() && *x != 0.0);
    let (min, max) =
        usual().fold((f64::INFINITY, 0.0f64), |(min, max), x| (min.min(x.abs()), max.max(x.abs())));
    let has_usual = usual().next().is_some();
    let is_whole = usual().all(|x| x == x.trunc());
    let is_scientific = has_usual && (max / min > 1000.0 || max > 1e8 || min < 1e-4);
    let format = |&x: &f64| match x {
        _ if x.is_nan() => "nan".to_owned(),
        _ if is_scientific => scientific(x),
        _ if is_whole && x.is_finite() => format!("{x:.0}."),
        _ if is_whole => format!("{x}"),
        _ => format!("{x:.PRECISION$}"),
    };
    numbers.iter().map(format).collect()
}

/// `1.0000e+05`: the exponent has a sign and two digits at least.
fn scientific(x: f64) -> String {
    let text = format!("{x:.PRECISION$e}");
    match text.split_once('e') {
        Some((digits, exponent)) => {
            let (sign, exponent) = match exponent.strip_prefix('-') {
                Some(exponent) => ('-', exponent),
                None => ('+', exponent),
            };
            format!("{digits}e{sign}{exponent:0>2}")
        }
        None => text,
    }
}
