//! ONNX's operators without a call, by name, with the reason.

use crate::call::Stop;
use crate::ops::Missing;
use crate::outcome::Reason;

const CONTROL_FLOW: &str = "branches and loops of a graph, which in lowtide are Rust's own";
const CHANCE: &str = "numbers that are drawn: the results depend on chance";
const KINDS: &str = "sequences, optional values and texts, which are no tensors";

/// Cases that are known to fail, as in `ops/missing.rs`.
pub const FAILURES: &[(&str, &str, usize, &str)] = &[(
    "onnx.Attention",
    "f16",
    1,
    "of the result in f64, 0.46919, lowtide's 0.46899 is the nearer one",
)];

/// Cases whose results differ from ONNX by lowtide's documentation, as in `ops/missing.rs`.
pub const DIFFERENCES: &[(&str, &[&str], &str, &str)] = &[
    (
        "onnx.ReduceMax",
        &[],
        "amax: index 0 is out of range for length 0",
        "the largest of no elements is an error, as in PyTorch",
    ),
    (
        "onnx.ReduceMin",
        &[],
        "amin: index 0 is out of range for length 0",
        "the smallest of no elements is an error, as in PyTorch",
    ),
];

/// Every operator of ONNX's node tests without a call.
pub const MISSING: &[Missing] = &[
    Missing {
        reason: "images at places that a network computes",
        to_build: true,
        names: "onnx.DeformConv onnx.RoiAlign",
    },
    Missing { reason: CONTROL_FLOW, to_build: false, names: "onnx.If onnx.Loop onnx.Scan" },
    Missing {
        reason: CHANCE,
        to_build: false,
        names: "\
            onnx.Bernoulli onnx.RandomUniformLike onnx.RandomNormal onnx.RandomNormalLike \
            onnx.RandomUniform onnx.Multinomial",
    },
    Missing {
        reason: KINDS,
        to_build: false,
        names: "\
            onnx.Optional onnx.OptionalGetElement onnx.OptionalHasElement onnx.RegexFullMatch \
            onnx.Sequence* onnx.SplitToSequence onnx.ConcatFromSequence onnx.String* \
            onnx.TfIdfVectorizer onnx.ai.onnx.ml.LabelEncoder",
    },
    Missing {
        reason: "quantised numbers",
        to_build: false,
        names: "\
            onnx.ConvInteger onnx.DequantizeLinear onnx.DynamicQuantizeLinear \
            onnx.MatMulInteger onnx.QLinearConv onnx.QLinearMatMul onnx.QuantizeLinear",
    },
    Missing {
        reason: "bits of integers",
        to_build: false,
        names: "onnx.BitCast onnx.BitShift onnx.Bitwise*",
    },
    Missing {
        reason: "Fourier transforms and windows of signals",
        to_build: false,
        names: "\
            onnx.DFT onnx.STFT onnx.MelWeightMatrix onnx.BlackmanWindow onnx.HammingWindow \
            onnx.HannWindow",
    },
    Missing {
        reason: "decompositions of matrices and linear systems",
        to_build: false,
        names: "onnx.Det",
    },
    Missing {
        reason: "files of images, and boxes chosen after a network has run",
        to_build: false,
        names: "onnx.ImageDecoder onnx.NonMaxSuppression",
    },
    Missing {
        reason: "trees and tables of classical machine learning",
        to_build: false,
        names: "\
            onnx.ai.onnx.ml.ArrayFeatureExtractor onnx.ai.onnx.ml.Binarizer \
            onnx.ai.onnx.ml.TreeEnsemble",
    },
];

/// The verdict on a node whose operator has no call.
pub(super) fn stop(op: &str) -> Stop {
    let name = format!("onnx.{op}");
    let reason = match MISSING.iter().find(|missing| missing.has(&name)) {
        Some(missing) if missing.reason == CONTROL_FLOW => Reason::ControlFlow,
        Some(missing) if missing.reason == CHANCE => Reason::Random,
        Some(missing) if missing.reason == KINDS => Reason::NoSuchType,
        Some(missing) if !missing.to_build => Reason::OutOfScope,
        _ => Reason::Operation,
    };
    Stop::NotApplicable(reason, op.to_owned())
}
