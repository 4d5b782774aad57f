//! A formula with its scalars: its types and its cost.

use super::table::{Float, Gradient, Number, Test};

/// A formula of the table over one to three sources.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Op {
    pub(super) formula: Formula,
    /// The scalars inside the formula, in the table's order; 0 for missing ones.
    pub(super) scalars: [f64; 2],
}

/// A formula, by the section of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Formula {
    Number(Number),
    Float(Float),
    Test(Test),
    Gradient(Gradient),
}

/// The element types that a formula is defined for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Domain {
    Floats,
    FloatsAndIntegers,
    Everything,
}

impl<T: Into<Formula>> From<T> for Op {
    fn from(formula: T) -> Op {
        Op { formula: formula.into(), scalars: [0.0; 2] }
    }
}

impl Op {
    /// A formula with its scalars, as many as the table says.
    pub(super) fn with(formula: impl Into<Formula>, scalars: &[f64]) -> Op {
        let scalars = std::array::from_fn(|index| scalars.get(index).copied().unwrap_or(0.0));
        Op { formula: formula.into(), scalars }
    }

    pub(super) fn domain(self) -> Domain {
        match self.formula {
            Formula::Float(_) | Formula::Gradient(_) => Domain::Floats,
            // Choices move elements of any type.
            Formula::Number(Number::Where | Number::MaskedFill) | Formula::Test(_) => {
                Domain::Everything
            }
            Formula::Number(_) => Domain::FloatsAndIntegers,
        }
    }

    /// True if the operand at `index` is a mask of truth values.
    pub(super) fn is_mask(self, index: usize) -> bool {
        match self.formula {
            Formula::Number(Number::Where) => index == 0,
            Formula::Number(Number::MaskedFill) => index == 1,
            _ => false,
        }
    }

    /// True if the last source is a divisor, which must not be 0 for integers.
    pub(super) fn is_division(self) -> bool {
        use Number::{DivFloor, DivTrunc, Fmod, Remainder};
        matches!(self.formula, Formula::Number(DivFloor | DivTrunc | Fmod | Remainder))
    }

    /// True if the scalars inside the formula are f64 for all types of elements.
    pub(super) fn has_scalars_apart(self) -> bool {
        matches!(self.formula, Formula::Test(Test::IsClose | Test::IsCloseOrNan))
    }

    pub(super) fn source_count(self) -> usize {
        match self.formula {
            Formula::Number(formula) => formula.source_count(),
            Formula::Float(formula) => formula.source_count(),
            Formula::Test(formula) => formula.source_count(),
            Formula::Gradient(_) => 2,
        }
    }

    /// Arithmetic operations for each element, for the simulated time.
    pub(super) fn flops(self) -> f64 {
        match self.formula {
            Formula::Number(formula) => formula.flops(),
            Formula::Float(formula) => formula.flops(),
            Formula::Test(formula) => formula.flops(),
            Formula::Gradient(formula) => formula.flops(),
        }
    }
}
