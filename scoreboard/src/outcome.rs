//! Verdicts on cases. The reasons why a case does not apply are a closed list.

use std::fmt;

use serde::Serialize;

/// The verdict on a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The peer's results, within its tolerance.
    Passed,
    /// The results computed in f64, within the tolerance, where the peer's own are not.
    PassedByTruth,
    /// Other results than the peer's; in words.
    Failed(String),
    /// Not asked of lowtide, or not by this suite.
    NotApplicable(Reason, String),
}

impl Outcome {
    /// The word in the JSON lines.
    pub fn word(&self) -> &'static str {
        match self {
            Outcome::Passed => "passed",
            Outcome::PassedByTruth => "passed_by_f64",
            Outcome::Failed(_) => "failed",
            Outcome::NotApplicable(..) => "not_applicable",
        }
    }
}

/// The reason why a case does not apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The operands have several element types: lowtide converts nothing by itself.
    MixedTypes,
    /// A function of floats, called with integers or truth values: lowtide wants them converted.
    NotOfIntegers,
    /// A dimension of a tensor without dimensions, which PyTorch takes for one of length 1.
    NoDimensions,
    /// An argument that is no value of the parameter's Rust type, or that lowtide's call does not
    /// have.
    DoesNotCompile,
    /// A type of elements that lowtide does not have.
    NoSuchType,
    /// The result depends on chance.
    Random,
    /// An error of the peer where lowtide has a meaning for the arguments.
    MoreGeneral,
    /// A result of the peer where lowtide's documentation says another one, or an error.
    Choice,
    /// The order of equal elements, which the peer leaves open. The values agree.
    Ties,
    /// A result no farther from f64 than the peer's own results are where the operands differ by a
    /// unit of their last place, in half types twice as far. Rounding errors are chance there, so
    /// the case does not count as passed.
    Roundings,
    /// An error of the peer for its own sample, or a result that only the peer can have.
    PeerCannot,
    /// An operation that networks are not trained with.
    OutOfScope,
    /// A branch or a loop of a graph: in lowtide, Rust's own.
    ControlFlow,
    /// The gradient of an operand that is a constant in lowtide; all else passed.
    NoGradient,
    /// An argument that lowtide does not have yet.
    Argument,
    /// The operation for integers or truth values.
    OfIntegers,
    /// A form of the operation (a rank, a mode) that lowtide does not have yet.
    Form,
    /// The operation itself.
    Operation,
}

impl Reason {
    /// All reasons, in the order of the report.
    pub const ALL: &[Reason] = &[
        Reason::MixedTypes,
        Reason::NotOfIntegers,
        Reason::NoDimensions,
        Reason::DoesNotCompile,
        Reason::NoSuchType,
        Reason::Random,
        Reason::MoreGeneral,
        Reason::Choice,
        Reason::Ties,
        Reason::Roundings,
        Reason::PeerCannot,
        Reason::OutOfScope,
        Reason::ControlFlow,
        Reason::NoGradient,
        Reason::Argument,
        Reason::OfIntegers,
        Reason::Form,
        Reason::Operation,
    ];

    /// True if lowtide lacks an operation, or a part of one.
    pub const fn is_missing(self) -> bool {
        matches!(
            self,
            Reason::NoGradient
                | Reason::Argument
                | Reason::OfIntegers
                | Reason::Form
                | Reason::Operation
        )
    }

    /// The line of the report.
    pub const fn text(self) -> &'static str {
        match self {
            Reason::MixedTypes => "operands of several element types; lowtide converts none itself",
            Reason::NotOfIntegers => "integers in a function of floats; lowtide wants a conversion",
            Reason::NoDimensions => "a dimension of a tensor that has none, as in NumPy an error",
            Reason::DoesNotCompile => "an error that Rust's types rule out",
            Reason::NoSuchType => "an element type that lowtide does not have",
            Reason::Random => "results that depend on chance",
            Reason::MoreGeneral => "an error of PyTorch's that has a meaning in lowtide",
            Reason::Choice => "a result of the peer's where lowtide documents another, or an error",
            Reason::Ties => "which of equal elements comes first, which PyTorch leaves open",
            Reason::Roundings => "as far from f64 as PyTorch is with operands one last digit away",
            Reason::PeerCannot => "PyTorch cannot compute its own sample",
            Reason::OutOfScope => "an operation that networks are not trained with",
            Reason::ControlFlow => "a branch or a loop of a graph, which in lowtide is Rust's own",
            Reason::NoGradient => "missing: a gradient of an operand that is a constant in lowtide",
            Reason::Argument => "missing: an argument",
            Reason::OfIntegers => "missing: the operation for integers or truth values",
            Reason::Form => "missing: a form of the operation",
            Reason::Operation => "missing: the operation",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// A law that every case has to keep, whatever its values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Law {
    /// Not checked: the operation was not called, or failed.
    #[default]
    Unknown,
    /// Kept.
    Kept,
    /// Broken; in words.
    Broken(String),
}

impl Law {
    /// The word in the JSON lines.
    pub fn word(&self) -> &'static str {
        match self {
            Law::Unknown => "unknown",
            Law::Kept => "kept",
            Law::Broken(_) => "broken",
        }
    }
}

/// The whole verdict.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The verdict on the values.
    pub outcome: Outcome,
    /// The simulated device makes the same allocations as the real one.
    pub allocations: Law,
    /// The result has the same bits with 1, 2 and 3 threads.
    pub bits: Law,
}

impl Verdict {
    /// True if the values are right and no law is broken.
    pub fn is_good(&self) -> bool {
        let is_broken = |law: &Law| matches!(law, Law::Broken(_));
        let failed = matches!(self.outcome, Outcome::Failed(_));
        !failed && !is_broken(&self.allocations) && !is_broken(&self.bits)
    }
}
