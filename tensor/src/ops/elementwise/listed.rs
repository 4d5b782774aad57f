//! The functions of the table as values, for tests that call every function.

use super::table;
use crate::error::Result;
use crate::tensor::Tensor;

/// A function of one tensor that the table of formulas declares.
#[derive(Debug)]
pub struct Function {
    /// The method's name.
    pub name: &'static str,
    /// The method that writes in place.
    pub in_place_name: &'static str,
    /// The names of the numbers that the methods take.
    pub scalars: &'static [&'static str],
    /// True if the formula has a number in `elementwise.cu`.
    pub is_numbered: bool,
    /// Calls the method.
    pub run: fn(&Tensor, &[f64]) -> Result<Tensor>,
    /// Calls the method that writes in place.
    pub run_in_place: fn(&mut Tensor, &[f64]) -> Result<()>,
    /// The methods of the function's gradient.
    pub gradient: Option<FunctionGradient>,
}

/// The methods of a gradient: from `dy`, and from the function's operand or result.
#[derive(Debug)]
pub struct FunctionGradient {
    /// The method's name.
    pub name: &'static str,
    /// The method that writes in place of `dy`.
    pub in_place_name: &'static str,
    /// `x` for a gradient of the operand, `y` for a gradient of the result.
    pub of: &'static str,
    /// The names of the numbers that the methods take.
    pub scalars: &'static [&'static str],
    /// Calls the method.
    pub run: fn(&Tensor, &Tensor, &[f64]) -> Result<Tensor>,
    /// Calls the method that writes in place.
    pub run_in_place: fn(&mut Tensor, &Tensor, &[f64]) -> Result<()>,
}

/// Every function of one tensor in the table.
pub fn functions() -> impl Iterator<Item = &'static Function> {
    table::FUNCTIONS.iter().flatten()
}
