//! Verdicts on cases. The reasons for a case that does not apply are a closed list.

use std::fmt;

use serde::Serialize;

/// The verdict on a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The results are within the tolerance of the peer's results.
    Passed,
    /// The results are within the tolerance of f64, but not of the peer's own results.
    PassedByTruth,
    /// The results differ from the peer's. The text describes the difference.
    Failed(String),
    /// The case is not expected of lowtide, or not of this suite.
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
    /// The operands have several element types: lowtide converts no types implicitly.
    MixedTypes,
    /// A function of floats is called with integers or truth values, which lowtide does not
    /// convert.
    NotOfIntegers,
    /// An argument is a dimension of a tensor without dimensions. PyTorch treats such a tensor as
    /// having one dimension of length 1.
    NoDimensions,
    /// An argument has no value in the parameter's Rust type, or lowtide's call does not have the
    /// argument.
    DoesNotCompile,
    /// lowtide does not have the element type.
    NoSuchType,
    /// The result is random.
    Random,
    /// The peer raises an error, but the arguments have a meaning in lowtide.
    MoreGeneral,
    /// The peer has a result, but lowtide documents another result or an error.
    Choice,
    /// The order of equal elements differs, which the peer leaves open. The values agree.
    Ties,
    /// The result is no farther from f64 than the peer's own results for operands that differ by a
    /// unit of the last place; for half types, no more than twice as far. Rounding errors are then
    /// chance, so the case does not count as passed.
    Roundings,
    /// The peer fails its own sample, or only the peer can have the result.
    PeerCannot,
    /// Networks are not trained with the operation.
    OutOfScope,
    /// The graph has a branch or a loop, which Rust's own control flow replaces in lowtide.
    ControlFlow,
    /// An operand is a constant in lowtide, so its gradient is missing. Everything else passed.
    NoGradient,
    /// lowtide does not have an argument yet.
    Argument,
    /// lowtide does not have the operation for integers or truth values yet.
    OfIntegers,
    /// lowtide does not have a form of the operation (a rank, a mode) yet.
    Form,
    /// lowtide does not have the operation yet.
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

    /// True if lowtide lacks an operation or a part of an operation.
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

/// A law that every case must satisfy, whatever its values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Law {
    /// The law was not checked: the operation was not called, or failed.
    #[default]
    Unknown,
    /// The law is satisfied.
    Kept,
    /// The law is broken. The text describes the difference.
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
    /// The law that the simulated device makes the same allocations as the real device.
    pub allocations: Law,
    /// The law that the result has the same bits with 1, 2 and 3 threads.
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
