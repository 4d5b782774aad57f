//! Names of the peer's suite without a call, with the reason, and results and errors that differ on
//! purpose.

/// Names without a call, with the reason.
#[derive(Clone, Copy, Debug)]
pub struct Missing {
    /// The reason why there is no call.
    pub reason: &'static str,
    /// True if trainings of networks use the operations, so that lowtide should have them.
    pub to_build: bool,
    /// The names, separated by spaces. A name that ends in `*` stands for all names with this
    /// prefix.
    pub names: &'static str,
}

/// Arguments that are an error in the peer and have a meaning in lowtide: the operation, a part of
/// the peer's message, and the meaning.
pub(super) const MEANINGS: &[(&str, &str, &str)] = &[
    ("arange", "inconsistent with step", "a range whose steps lead away from its end is empty"),
    ("nn.BatchNorm1d", "eps must be positive", "an eps of 0 divides by the deviation itself"),
    ("nn.BatchNorm2d", "eps must be positive", "an eps of 0 divides by the deviation itself"),
    ("nn.BatchNorm3d", "eps must be positive", "an eps of 0 divides by the deviation itself"),
    ("nn.CircularPad1d", "expected 2D or 3D input", "the last dimensions are padded, of any rank"),
    ("cov", "cannot be negative", "a negative weight takes observations away"),
    ("isclose", "must be greater than or equal to zero", "then equal elements alone are close"),
    ("masked_fill", "0-dimensional value tensor", "values broadcast, as in `where_cond`"),
    ("nn.functional.group_norm", "number of channels", "nothing is normalised to nothing"),
    ("nn.functional.group_norm", "HxW", "nothing is normalised to nothing"),
    ("nn.functional.max_pool1d", "optional 0 dim batch", "no channels give no channels"),
    ("nn.functional.max_pool3d", "non-zero size", "no channels give no channels"),
    ("nn.functional.rms_norm", "at least 1-dimensional", "each element is a row of its own"),
];

/// Samples with another result in lowtide, as documented: the operation, the types (all if empty),
/// a part of the failure's text, and the difference.
pub(super) const DIFFERENCES: &[(&str, &[&str], &str, &str)] = &[
    (
        "arange",
        &["i64", "i32", "u8"],
        "result 0: element",
        "of integers, PyTorch truncates start and step, and lowtide the numbers",
    ),
    (
        "linspace",
        &["i64", "i32", "u8", "f16", "bf16"],
        "result 0: element",
        "PyTorch converts both ends to the type before, and lowtide the numbers",
    ),
    (
        "cat",
        &[],
        "index 1 is out of range for length 1",
        "PyTorch leaves out a tensor of shape [0] beside others of any rank",
    ),
    (
        "gather",
        &[],
        "shapes [5] and [2, 0] do not fit together",
        "in PyTorch an index without elements may have any rank",
    ),
    (
        "sum_to_size",
        &["i32", "u8", "bool"],
        ", not i64",
        "of one shape, PyTorch sums a tensor without dimensions and leaves all others as they are",
    ),
    (
        "nn.functional.batch_norm",
        &[],
        "shapes [0] and [0, 0] do not fit together",
        "a batch has a dimension for samples and one for channels",
    ),
    (
        "nn.functional.poisson_nll_loss",
        &["bf16"],
        ", not NaN",
        "of a count of 0, the gradient of PyTorch's approximation of Stirling is NaN",
    ),
    ("put", &[], "index -7 is out of range", "indices do not count from the end"),
    ("take", &[], "index -7 is out of range", "indices do not count from the end"),
    ("take_along_dim", &[], "index -1 is out of range", "indices do not count from the end"),
    (
        "nn.functional.softmin/with_dtype",
        &["u8"],
        "result 0: element",
        "PyTorch negates bytes, which wrap, before it converts them",
    ),
];

/// Known failures: the operation, the type, the number of cases, and the cause. The cases count as
/// failures, but a run without other failures is good.
pub(super) const FAILURES: &[(&str, &str, usize, &str)] = &[
    // Gradient of the vector, operands not contiguous: 250 products. Summed in order they are at
    // worst 3.1e-5 off f64; in PyTorch's several sums, 1.5e-5.
    ("matmul", "f32", 1, "a gradient is one sum of 250 products"),
    // Gradient of w: 125 products. Summed in order they are at worst 4.6e-5 off f64; in four random
    // orders, 5.3 to 9.2e-5; in PyTorch's several sums, 1.5e-5.
    ("nn.functional.conv_transpose3d", "f32", 3, "a gradient is one sum of 125 products"),
    // Gradient of the grid, operands not contiguous: 1.3e-5 off f64, PyTorch 1.1e-5. The mean over
    // 48 neighbours is 1.20e-5 and 1.18e-5; over 96 other cotangents, 1.41e-5 and 1.23e-5.
    ("nn.functional.grid_sample", "f32", 1, "roundings of sums that cancel, as far as PyTorch's"),
    // PyTorch's fused attention has this error as well. In f16, dq is 3.8e-3 off (RMS); in
    // PyTorch's fused attention, 4.0e-3; in its unfused attention, which computes in f32, 0.8e-3.
    // In bf16 the numbers are 0.030, 0.031 and 0.007.
    ("nn.functional.scaled_dot_product_attention", "bf16", 1, "Σ dy·y is of y rounded to bf16"),
    ("nn.functional.scaled_dot_product_attention", "f16", 1, "Σ dy·y is of y rounded to f16"),
    // Gradient of w, element 6: lowtide is 2e-6 off f64, PyTorch 2.1e-4, with terms up to 0.94.
    ("nn.functional.linear_cross_entropy/chunked_none", "f16", 1, "PyTorch's sum is the one off"),
];

/// Every name of PyTorch 2.15's `op_db` without a call.
pub const MISSING: &[Missing] = &[
    Missing {
        reason: "bits of integers",
        to_build: false,
        names: "\
            __rand__ __ror__ __rxor__ bitwise_* gcd lcm hash_tensor",
    },
    Missing {
        reason: "numbers of the program as tensors: `tril` of a mask, two numbers serve",
        to_build: false,
        names: "linspace/tensor_overload tril_indices triu_indices",
    },
    Missing {
        reason: "losses that few networks use",
        to_build: false,
        names: "nn.functional.multilabel_margin_loss",
    },
    Missing {
        reason: "a layer in lowtide, not an operation: for a suite of modules",
        to_build: false,
        names: "\
            nn.functional.multi_head_attention_forward nn.functional.prelu",
    },
    Missing {
        reason: "results that depend on chance",
        to_build: false,
        names: "\
            bernoulli cauchy exponential geometric log_normal multinomial \
            nn.functional.alpha_dropout nn.functional.dropout2d nn.functional.dropout3d \
            nn.functional.feature_alpha_dropout/* nn.functional.fractional_max_pool2d \
            nn.functional.fractional_max_pool3d nn.functional.rrelu normal normal/in_place \
            normal/number_mean rand_like randint randint_like randn randn_like uniform",
    },
    Missing {
        reason: "parts of PyTorch's own gradients and kernels",
        to_build: false,
        names: "\
            _* max_pool2d_with_indices_backward native_* torch.* jiterator_* \
            bmm/triton_optimized nn.functional.batch_norm/without_cudnn",
    },
    Missing {
        reason: "PyTorch's handling of memory, types and Python values",
        to_build: false,
        names: "\
            alias_copy as_strided* atleast_* broadcast_shapes clone empty* fill item new_* \
            resize_* to to_sparse unravel_index unsafe_chunk unsafe_split zero_ char short",
    },
    Missing {
        reason: "complex numbers",
        to_build: false,
        names: "\
            H angle cdouble cfloat chalf complex conj conj_physical imag isreal mH \
            nn.functional.silu/complex polar real resolve_conj resolve_neg view_as_complex \
            view_as_real",
    },
    Missing {
        reason: "decompositions of matrices and linear systems",
        to_build: false,
        names: "\
            cholesky_* geqrf linalg.* logdet lu lu_* matrix_exp ormqr pca_lowrank pinverse svd \
            svd_lowrank triangular_solve norm/nuc",
    },
    Missing {
        reason: "Fourier transforms and windows of signals",
        to_build: false,
        names: "\
            fft.* istft signal.* stft",
    },
    Missing {
        reason: "special functions of mathematics and statistics",
        to_build: false,
        names: "\
            cumulative_trapezoid frexp gradient histogram histogramdd i0 igamma igammac \
            logspace logspace/tensor_overload mvlgamma/* nextafter polygamma/* special.* \
            trapezoid trapz",
    },
    Missing {
        reason: "sparse and masked tensors",
        to_build: false,
        names: "\
            masked.* sparse.*",
    },
    Missing {
        reason: "layers that few networks use",
        to_build: false,
        names: "nn.Bilinear nn.LPPool1d nn.LPPool2d nn.MultiLabelMarginLoss",
    },
    Missing {
        reason: "in lowtide the function `linear_cross_entropy`, which `opinfo` has",
        to_build: false,
        names: "nn.LinearCrossEntropyLoss",
    },
    Missing {
        reason: "optimizers",
        to_build: false,
        names: "optim.ASGD optim.LBFGS optim.SparseAdam",
    },
    Missing {
        reason: "layers of volumes, or pooled by chance",
        to_build: false,
        names: "\
            nn.FractionalMaxPool2d nn.FractionalMaxPool3d nn.LPPool3d",
    },
    Missing {
        reason: "layers whose sizes follow from their first input",
        to_build: false,
        names: "nn.Lazy*",
    },
];

impl Missing {
    /// True if `names` contains the name, or a pattern `prefix*` that the name matches.
    pub fn has(&self, name: &str) -> bool {
        self.names.split_whitespace().any(|entry| match entry.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => entry == name,
        })
    }
}
