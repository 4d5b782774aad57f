//! What the peer's suite has and lowtide does not, by name, with the reason; and where results or
//! errors differ on purpose.

use crate::outcome::Reason;

/// Names that there is no call for, with the reason.
#[derive(Clone, Copy, Debug)]
pub struct Missing {
    /// Why there is no call.
    pub reason: &'static str,
    /// Whether people who train networks use them: to be built.
    pub to_build: bool,
    /// The names; one that ends in `*` stands for all that begin so.
    pub names: &'static [&'static str],
}

/// Errors of the peer that have a meaning in lowtide: the operation, a part of what the peer's
/// message matches, and the meaning.
pub(super) const MEANINGS: &[(&str, &str, &str)] = &[
    ("arange", "inconsistent with step", "a range whose steps lead away from its end is empty"),
    ("masked_fill", "0-dimensional value tensor", "values broadcast, as in `where_cond`"),
    ("nn.functional.group_norm", "number of channels", "nothing is normalised to nothing"),
    ("nn.functional.group_norm", "HxW", "nothing is normalised to nothing"),
    ("nn.functional.max_pool1d", "optional 0 dim batch", "no channels give no channels"),
    ("nn.functional.rms_norm", "at least 1-dimensional", "each element is a row of its own"),
];

/// Samples whose result is another one in lowtide: the operation, a part of the failure's words,
/// what it counts as, and why.
pub(super) const DIFFERENCES: &[(&str, &str, Reason, &str)] = &[
    (
        "arange",
        "result 0: element",
        Reason::Choice,
        "of integers, PyTorch truncates start and step, and lowtide the numbers",
    ),
    (
        "cat",
        "index 1 is out of range for length 1",
        Reason::Choice,
        "PyTorch leaves out a tensor of shape [0] beside others of any rank",
    ),
    (
        "gather",
        "shapes [5] and [2, 0] do not fit together",
        Reason::Choice,
        "in PyTorch an index without elements may have any rank",
    ),
    (
        "sum_to_size",
        ", not i64",
        Reason::Choice,
        "of one shape, PyTorch sums a tensor without dimensions and leaves all others as they are",
    ),
    (
        "take_along_dim",
        "index -1 is out of range",
        Reason::Choice,
        "indices do not count from the end",
    ),
    (
        "nn.functional.batch_norm",
        "shapes [0] and [0, 0] do not fit together",
        Reason::Choice,
        "a batch has a dimension for samples and one for channels",
    ),
    (
        "nn.functional.linear",
        "shapes [8, 3] and [3] do not fit together",
        Reason::Form,
        "a weight of one output as a vector",
    ),
    (
        "nn.functional.linear",
        "and [2] do not fit together",
        Reason::Form,
        "a weight of one output as a vector",
    ),
    (
        "nn.functional.linear",
        "and [4] do not fit together",
        Reason::Form,
        "a weight of one output as a vector",
    ),
    (
        "nn.functional.conv_transpose2d",
        "2, 4, 4] and [2, 2, 4, 5] do not fit together",
        Reason::Form,
        "an output padding that is only less than the dilation",
    ),
    (
        "nn.functional.linear_cross_entropy",
        "do not fit together",
        Reason::Form,
        "several targets for a row of the input",
    ),
    (
        "nn.functional.scaled_dot_product_attention",
        "do not fit together",
        Reason::Form,
        "queries that all samples share",
    ),
];

/// All of them.
pub const MISSING: &[Missing] = &[];
