//! The bytes that each rule saves for backward, compared with PyTorch: the table of the rules'
//! README.

mod table;

use std::collections::BTreeSet;

use lowtide_autograd::{Attempt, AutogradResult as Result, Pass};
use lowtide_tensor::{DType, RandomKey, Tensor};

use self::table::{Beside, Row, table};
use crate::common::{Outcome, check_same_names, cpu};
use crate::rules::all;

const PYTORCH: &str = include_str!("../../fixtures/saved_bytes.txt");
const README: &str = include_str!("../../../src/rules/README.md");

/// Rules that equal a rule of the table with other shapes or numbers, or are composed of it.
const LIKE_OTHERS: [(&str, &[&str]); 38] = [
    ("adaptive_max_pool2d", &["max_pool2d_with"]),
    // Both save nothing: the model holds the codes.
    ("add", &["linear_int8", "linear_quantized"]),
    ("addmm", &["addmv", "baddbmm"]),
    ("amax", &["amax_keep", "aminmax", "aminmax_keep"]),
    ("amin", &["amin_keep"]),
    ("attention", &["self_attention"]),
    ("batch_norm", &["batch_norm_fixed"]),
    ("cat", &["column_stack", "dstack", "hstack", "vstack"]),
    ("cross_entropy", &["cross_entropy_with"]),
    ("cummax", &["cummin"]),
    ("expand", &["meshgrid"]),
    ("gather", &["take_along_dim"]),
    (
        "kthvalue",
        &[
            "kthvalue_keep",
            "median",
            "median_keep",
            "mode",
            "mode_keep",
            "nanmedian",
            "nanmedian_keep",
        ],
    ),
    ("logsumexp", &["logsumexp_keep"]),
    ("masked_select", &["masked_select_assuming"]),
    ("matmul", &["einsum"]),
    ("matrix_norm", &["matrix_norm_keep"]),
    ("max", &["max_keep"]),
    ("maximum", &["heaviside"]),
    ("mean", &["mean_keep"]),
    ("median_all", &["nanmedian_all"]),
    ("min", &["min_keep"]),
    ("nanmean", &["nanmean_keep"]),
    ("nansum", &["nansum_keep"]),
    ("narrow", &["chunk", "slice", "split", "split_with_sizes", "unbind"]),
    ("norm", &["norm_keep"]),
    ("pad", &["pad_or_crop"]),
    ("pair_loss", &["pair_loss_terms", "pair_loss_weighted"]),
    ("prod", &["prod_keep"]),
    ("quantile", &["nanquantile"]),
    ("reshape", &["contiguous", "flatten", "squeeze", "unsqueeze", "view"]),
    ("rotary", &["rotary_heads"]),
    ("scatter_reduce", &["index_reduce"]),
    ("select_scatter", &["diagonal_scatter", "slice_scatter"]),
    ("std", &["std_keep"]),
    ("sum", &["sum_keep"]),
    ("transpose", &["movedim", "movedims", "permute", "t"]),
    ("var", &["var_keep"]),
];

/// Bytes that only the record of the operation keeps alive.
fn saved_bytes(beside: &Beside, (_, shapes, run): &Row) -> Result<usize> {
    let device = beside.mask.device();
    let live = || device.allocator().statistics().requested.current_bytes;
    let before = live();
    let pass = Pass::train(RandomKey::new(1), &Attempt::new());
    let input = |shape: &&[usize]| {
        let mut x = Tensor::empty(device, *shape, DType::F32)?;
        x.uniform_(RandomKey::new(2), 0.1, 0.9)?;
        pass.input(x)
    };
    let inputs = shapes.iter().map(input).collect::<Result<_>>()?;
    drop(run(inputs, beside)?);
    Ok(live() - before)
}

#[test]
fn no_rule_keeps_more_than_pytorch() -> Outcome {
    let beside = Beside::new(&cpu())?;
    let (mut wrong, mut rows) = (Vec::new(), String::new());
    let mut expected = PYTORCH.lines();
    for row in table() {
        let ours = saved_bytes(&beside, &row)?;
        let name = row.0;
        let line = PYTORCH.lines().find(|line| line.split(' ').nth(1) == Some(name));
        let theirs = line.unwrap_or_else(|| panic!("no {name} in the fixture")).split(' ').next();
        let theirs: usize = theirs.expect("bytes").parse()?;
        if ours > theirs {
            wrong.push(format!("{name}: {ours}, PyTorch {theirs}"));
        }
        expected.next();
        rows += &format!("| {name} | {} | {} |\n", grouped(ours), grouped(theirs));
    }
    assert!(expected.next().is_none(), "as many rows in the fixture");
    print!("{rows}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(README.contains(&rows), "the table in the README differs:\n{rows}");
    Ok(())
}

/// A number of bytes with separators, as in 73,728.
fn grouped(bytes: usize) -> String {
    let digits = bytes.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[test]
fn every_rule_is_in_the_table_or_like_one_that_is() {
    let in_table: BTreeSet<&str> = table().iter().map(|row| row.0).collect();
    let mut named = in_table.clone();
    for (like, names) in LIKE_OTHERS {
        assert!(in_table.contains(like), "{like}");
        named.extend(names);
    }
    let named = named.into_iter().map(str::to_owned).collect();
    check_same_names(&named, &all().iter().map(|case| case.rule.to_owned()).collect());
}
