//! Every public operation of tensors has a rule or a reason to have none, and no rule silently
//! drops a gradient.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use lowtide_autograd::{AutogradResult as Result, LeafId, Var};
use lowtide_tensor::{Closeness, DType, Device, Side, SortOrder, Tensor};

use crate::common::{Outcome, cpu, recording, rust_files};
use crate::rules::{Case, all};

/// Operations without a rule, grouped by reason.
const WITHOUT_RULE: [(&str, &[&str]); 7] = [
    (
        "makes a tensor from numbers, shapes or chance",
        &[
            "arange",
            "empty",
            "empty_in",
            "eye",
            "from_bytes",
            "from_mapped",
            "from_page_locked",
            "from_slice",
            "full",
            "linspace",
            "multinomial",
            "one_hot",
            "ones",
            "permutation",
            "quantized_state",
            "zeros",
        ],
    ),
    (
        "writes into a tensor, which values of a pass are not",
        &[
            "add_scaled_",
            "bernoulli_",
            "copy_",
            "decode_rows_into",
            "fill_",
            "masked_copy_",
            "matmul_add_",
            "normal_",
            "random_integers_",
            "scale_and_check_finite",
            "set_bytes_",
            "uniform_",
            "update_",
            "update_all_",
            "update_running_",
            "zero_",
        ],
    ),
    (
        "reads values or sizes for the program, or is part of an update",
        &[
            "allclose",
            "check_writable",
            "decode",
            "decode_rows",
            "encode",
            "from_parts",
            "parts",
            "size_bytes",
            "copied",
            "equal",
            "item",
            "item_assuming",
            "new",
            "of",
            "quantile_places",
            "quantiles_at",
            "read",
            "reserve_updates",
            "squared_norm",
            "to_bytes",
            "to_vec",
            "update_norms",
        ],
    ),
    (
        "gives places or counts, whose number depends on values",
        &["bincount", "bincount_assuming", "nonzero", "nonzero_assuming"],
    ),
    (
        "gives different elements, which rules would select by their places",
        &["unique", "unique_consecutive"],
    ),
    (
        "is a gradient itself",
        &[
            "linear_cross_entropy_gradients",
            "linear_cross_entropy_input_gradient",
            "linear_weight_gradient",
        ],
    ),
    ("counts elements, in their type", &["histc"]),
];

type Unary = fn(&Tensor) -> lowtide_tensor::TensorResult<Tensor>;
type Binary = fn(&Tensor, &Tensor) -> lowtide_tensor::TensorResult<Tensor>;

/// Operations whose results are truth values, counts or places, which have no gradient.
const OF_ONE: [(&str, Unary); 26] = [
    ("all", |x| x.all(&[0])),
    ("all_keep", |x| x.all_keep(&[0])),
    ("any", |x| x.any(&[0])),
    ("any_keep", |x| x.any_keep(&[0])),
    ("argmax", |x| x.argmax()),
    ("argmax_all", |x| x.argmax_all()),
    ("argmax_axis", |x| x.argmax_axis(0)),
    ("argmax_keep", |x| x.argmax_keep(0)),
    ("argmin", |x| x.argmin()),
    ("argmin_all", |x| x.argmin_all()),
    ("argmin_axis", |x| x.argmin_axis(0)),
    ("argmin_keep", |x| x.argmin_keep(0)),
    ("argsort", |x| x.argsort(0, SortOrder::Ascending)),
    ("count_nonzero", |x| x.count_nonzero(&[0])),
    ("count_nonzero_keep", |x| x.count_nonzero_keep(&[0])),
    ("eq_scalar", |x| x.eq_scalar(0.0)),
    ("ge_scalar", |x| x.ge_scalar(0.0)),
    ("gt_scalar", |x| x.gt_scalar(0.0)),
    ("le_scalar", |x| x.le_scalar(0.0)),
    ("lt_scalar", |x| x.lt_scalar(0.0)),
    ("ne_scalar", |x| x.ne_scalar(0.0)),
    ("is_finite", Tensor::is_finite),
    ("is_inf", Tensor::is_inf),
    ("is_nan", Tensor::is_nan),
    ("logical_not", Tensor::logical_not),
    ("nonzero_static", |x| x.nonzero_static(3, -1)),
];
const OF_TWO: [(&str, Binary); 13] = [
    ("bucketize", |a, b| a.bucketize(&b.select(0, 0)?, Side::Left)),
    ("eq", Tensor::eq),
    ("ge", Tensor::ge),
    ("gt", Tensor::gt),
    ("isclose", |a, b| a.isclose(b, Closeness::default())),
    ("isin", Tensor::isin),
    ("le", Tensor::le),
    ("logical_and", Tensor::logical_and),
    ("logical_or", Tensor::logical_or),
    ("logical_xor", Tensor::logical_xor),
    ("lt", Tensor::lt),
    ("ne", Tensor::ne),
    ("searchsorted", |a, b| a.searchsorted(b, Side::Left)),
];

/// The names of the public operations, as the sources of the tensor crate declare them.
fn declared() -> BTreeSet<String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tensor/src");
    let mut files = rust_files(&source.join("ops"));
    files.extend(["create.rs", "read.rs", "tensor.rs", "views.rs"].map(|file| source.join(file)));
    let mut names = BTreeSet::new();
    for file in files {
        let text = std::fs::read_to_string(file).expect("a source");
        let code: Vec<_> = text.lines().filter(|line| !line.trim().starts_with("//")).collect();
        let text = code.join("\n");
        // Macros declare operations in their argument list: `pub fn exp, exp_ = ...;`.
        for function in text.split("pub fn ").skip(1).filter(|name| !name.starts_with('$')) {
            let signature = function.split('{').next().unwrap_or_default();
            let entry = signature.split(['=', '(', '<']).next().unwrap_or_default();
            if entry.contains(',') || signature.contains(" = Test::") {
                names.extend(entry.split(',').map(|name| name.trim().to_owned()));
            } else if signature.contains("-> Result<") {
                names.extend(signature.split(['(', '<']).next().map(str::to_owned));
            }
        }
    }
    names
}

#[test]
fn every_public_operation_has_a_rule_or_a_reason_to_have_none() {
    let rules: BTreeSet<&str> = all().iter().map(|case| case.rule).collect();
    let mut reasons: BTreeMap<&str, &str> = BTreeMap::new();
    let listed = WITHOUT_RULE.iter().flat_map(|(why, names)| names.iter().map(move |n| (*n, *why)));
    let counts = OF_ONE.iter().map(|(name, _)| *name).chain(OF_TWO.iter().map(|(name, _)| *name));
    for (name, why) in listed.chain(counts.map(|name| (name, "has no float result"))) {
        assert!(reasons.insert(name, why).is_none(), "{name} stands twice");
        assert!(!rules.contains(name), "{name} has a rule, and is said to have none: it {why}");
    }
    let declared = declared();
    assert!(declared.len() > 300, "{}", declared.len());
    let mut without = Vec::new();
    for name in &declared {
        let name = name.as_str();
        // In-place variants share the rule, and `_backward` operations are parts of rules.
        let twin = name.strip_suffix('_').unwrap_or(name);
        let covered = [name, twin].iter().any(|n| rules.contains(n) || reasons.contains_key(n));
        if !covered && !twin.ends_with("_backward") && !twin.contains("_backward_") {
            without.push(name);
        }
    }
    assert!(without.is_empty(), "neither a rule nor a reason: {without:?}");
    let gone: Vec<_> = reasons.keys().filter(|name| !declared.contains(**name)).collect();
    assert!(gone.is_empty(), "no operations any more: {gone:?}");
}

#[test]
fn operations_said_to_have_no_float_result_have_none() -> Outcome {
    let device = cpu();
    let x = Tensor::from_slice(&device, [2, 2], &[1.0_f64, 0.0, -1.0, 0.5])?;
    for (name, op) in OF_ONE {
        assert!(!op(&x)?.dtype().is_float(), "{name}");
    }
    for (name, op) in OF_TWO {
        assert!(!op(&x, &x)?.dtype().is_float(), "{name}");
    }
    Ok(())
}

/// True if the result needs a gradient, and the gradients of the inputs. Inputs that `wanted`
/// selects are leaves, all others are constants.
fn gradients(
    device: &Device,
    (index, case): (usize, &Case),
    wanted: impl Fn(usize) -> bool,
) -> Result<(bool, Vec<Option<Vec<f64>>>)> {
    let (pass, attempt) = recording();
    let (mut leaves, mut inputs) = (Vec::new(), Vec::new());
    for (at, shape) in case.shapes.iter().enumerate() {
        let value = Tensor::from_slice(device, &shape[..], &case.values(index, at))?;
        leaves.push(LeafId::new());
        inputs.push(if wanted(at) { pass.leaf(leaves[at], &value)? } else { pass.constant(value) });
    }
    let y: Var = (case.function)(&pass, inputs)?;
    let needs = y.needs_gradient();
    let weights = Tensor::full(device, *y.shape(), DType::F64, 0.75)?;
    pass.backward(y.mul(pass.constant(weights))?.sum_all()?)?;
    let found = attempt.into_gradients();
    let gradient = |leaf: &LeafId| found.get(*leaf).map(Tensor::to_vec::<f64>).transpose();
    Ok((needs, leaves.iter().map(gradient).collect::<lowtide_tensor::TensorResult<_>>()?))
}

#[test]
fn no_rule_drops_a_gradient_whichever_inputs_need_one() -> Outcome {
    let device = cpu();
    for (index, case) in all().iter().enumerate() {
        let name = format!("{} of {:?}", case.rule, case.shapes);
        let (_, whole) = gradients(&device, (index, case), |_| true)?;
        for alone in 0..case.shapes.len() {
            let (needs, found) = gradients(&device, (index, case), |at| at == alone)?;
            assert!(needs, "{name}: input {alone} needs a gradient, the result does not");
            for (at, found) in found.iter().enumerate() {
                assert_eq!(found.is_some(), at == alone, "{name}: input {at} for {alone} alone");
            }
            assert!(whole[alone].is_some(), "{name}: input {alone} has no gradient");
            assert_eq!(found[alone], whole[alone], "{name}: input {alone} alone");
        }
    }
    Ok(())
}
