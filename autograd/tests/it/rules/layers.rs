use lowtide_autograd::check::Tolerance;
use lowtide_autograd::{AutogradResult as Result, Pass, Var};
use lowtide_tensor::{
    AttentionDropout, AttentionOptions, Causal, Device, Dropout, QuantFormat, Quantized, RandomKey,
    RotaryPairs, Scales, Tensor,
};

use super::{AROUND_ZERO, Cases, pair, with_weight};
use crate::common::{Outcome, cpu, gradients_of, values};

const EPS: f64 = 1e-5;

pub(super) fn products(cases: &mut Cases) {
    let shapes: [[&[usize]; 2]; 12] = [
        [&[2, 3], &[3, 4]],
        [&[1, 5], &[5, 1]],
        [&[3], &[3]],
        [&[3], &[3, 2]],
        [&[2, 3], &[3]],
        [&[2, 2, 3], &[3, 2]],
        [&[2, 2, 3], &[3]],
        [&[2, 3], &[2, 3, 2]],
        [&[3], &[2, 3, 2]],
        [&[2, 2, 3], &[2, 3, 2]],
        [&[2, 1, 2, 3], &[3, 3, 1]],
        [&[0, 2, 3], &[3, 2]],
    ];
    for shapes in shapes {
        cases.add("matmul", &shapes, AROUND_ZERO, |_, x| {
            let (a, b) = pair(x);
            a.matmul(b)
        });
    }
    let equations: [(&'static str, &[&[usize]]); 7] = [
        ("ij,jk->ik", &[&[2, 3], &[3, 4]]),
        ("...ij,...kj->...ik", &[&[2, 1, 2, 3], &[4, 2, 3]]),
        ("ii->i", &[&[3, 3]]),
        ("ij->", &[&[2, 3]]),
        ("i,j,ij->j", &[&[2], &[3], &[2, 3]]),
        ("bi,ij,bj->b", &[&[2, 3], &[3, 1], &[2, 3]]),
        ("ba", &[&[2, 3]]),
    ];
    for (equation, shapes) in equations {
        cases.add("einsum", shapes, AROUND_ZERO, move |_, x| Var::einsum(equation, x));
    }
    type Product = fn(Var, Var) -> Result<Var>;
    let others: [(&'static str, Product, [&[usize]; 2]); 4] = [
        ("bmm", Var::bmm, [&[2, 2, 3], &[2, 3, 2]]),
        ("dot", Var::dot, [&[3], &[3]]),
        ("matvec", Var::matvec, [&[2, 3], &[3]]),
        ("outer", Var::outer, [&[2], &[3]]),
    ];
    for (rule, function, shapes) in others {
        cases.add(rule, &shapes, AROUND_ZERO, move |_, x| {
            let (a, b) = pair(x);
            function(a, b)
        });
    }
    with_addends(cases);
    for x in [&[3, 4][..], &[4], &[2, 3, 4], &[2, 1, 2, 4], &[0, 4]] {
        let linear = |_: &Pass, x| with_weight(x, Var::linear);
        cases.add("linear", &[x, &[2, 4]], AROUND_ZERO, linear);
        cases.add("linear", &[x, &[2, 4], &[2]], AROUND_ZERO, linear);
        for bias in [&[][..], &[&[2][..]]] {
            let shapes = [&[x][..], bias].concat();
            // The format represents the elements of this matrix exactly.
            cases.add("linear_quantized", &shapes, AROUND_ZERO, |_, x| {
                let mut inputs = x.into_iter();
                let x = inputs.next().expect("an input");
                let w: Vec<f64> = (0..8).map(|i| f64::from(i * i % 7) - 3.0).collect();
                let w = Tensor::from_slice(x.value().device(), [2, 4], &w)?;
                let w = Quantized::encode(&w, QuantFormat::Nf4 { double: true })?;
                x.linear_quantized(&w, inputs.next())
            });
            cases.add("linear_int8", &shapes, AROUND_ZERO, |_, x| {
                let mut inputs = x.into_iter();
                let x = inputs.next().expect("an input");
                let w = int8_weight(x.value().device())?;
                x.linear_int8(&w, inputs.next())
            });
            // The result is a step function of x, so a difference has to span many steps. Each row
            // has 8 products of factors up to 3 and weights up to 1.5; x is off by at most half a
            // code, 1 / 127 for a largest element of 2.
            cases.0.last_mut().expect("just added").tolerance =
                Tolerance { step: 1.0, absolute: 8.0 * 3.0 * 1.5 / 127.0, relative: 0.0 };
        }
    }
}

/// A matrix that 8-bit codes represent exactly.
fn int8_weight(device: &Device) -> Result<Quantized> {
    let w: Vec<f64> = (0..8).map(|i| f64::from(i * i % 7) - 3.0).collect();
    let w = Tensor::from_slice(device, [2, 4], &w)?;
    Ok(Quantized::encode(&w, QuantFormat::Int8Rows)?)
}

/// The gradient is straight-through: the rounding of x does not count.
#[test]
fn gradients_of_int8_products_are_those_of_the_decoded_weight() -> Outcome {
    type Product = fn(Var, &Quantized, Option<Var>) -> Result<Var>;
    let device = cpu();
    let w = int8_weight(&device)?;
    let x = Tensor::from_slice(&device, [3, 4], &[0.3, -0.1, 0.7, 0.2].repeat(3))?;
    let b = Tensor::from_slice(&device, [2], &[0.5, 0.25])?;
    let gradients = |product: Product| -> Result<Vec<Vec<f64>>> {
        let (leaves, found) = gradients_of(&[&x, &b], |_, inputs| {
            let (x, b) = pair(inputs);
            product(x, &w, Some(b))?.sum_all()
        })?;
        let of = |leaf| found.get(leaf).expect("every input has one").to_vec::<f64>();
        Ok(leaves.into_iter().map(of).collect::<lowtide_tensor::TensorResult<_>>()?)
    };
    assert_eq!(gradients(Var::linear_int8)?, gradients(Var::linear_quantized)?);
    Ok(())
}

fn with_addends(cases: &mut Cases) {
    type Product = fn(Var, Var, Var, Scales) -> Result<Var>;
    let products: [(&'static str, Product, [&[usize]; 3]); 7] = [
        ("addmm", Var::addmm, [&[2, 4], &[2, 3], &[3, 4]]),
        ("addmm", Var::addmm, [&[4], &[2, 3], &[3, 4]]),
        ("addmm", Var::addmm, [&[], &[2, 0], &[0, 4]]),
        ("baddbmm", Var::baddbmm, [&[2, 2, 4], &[2, 2, 3], &[2, 3, 4]]),
        ("baddbmm", Var::baddbmm, [&[2, 1], &[2, 2, 3], &[2, 3, 4]]),
        ("addmv", Var::addmv, [&[2], &[2, 3], &[3]]),
        ("addmv", Var::addmv, [&[1], &[2, 3], &[3]]),
    ];
    for scales in [Scales::default(), Scales { beta: -0.5, alpha: 1.5 }] {
        for (rule, function, shapes) in products {
            cases.add(rule, &shapes, AROUND_ZERO, move |_, x| {
                let [x, a, b] = x.try_into().unwrap_or_else(|_| panic!("three inputs"));
                function(x, a, b, scales)
            });
        }
    }
}

/// Adds an operation without parameters, with each parameter alone, and with both.
fn with_parameters(
    cases: &mut Cases,
    rule: &'static str,
    x: &[usize],
    parameter: &[usize],
    function: impl Fn(Var, Option<Var>, Option<Var>) -> Result<Var> + Copy + 'static,
) {
    let one = |x: Vec<Var>| pair(x);
    cases.unary(rule, x, AROUND_ZERO, move |x| function(x, None, None));
    cases.add(rule, &[x, parameter], AROUND_ZERO, move |_, x| {
        let (x, weight) = one(x);
        function(x, Some(weight), None)
    });
    cases.add(rule, &[x, parameter], AROUND_ZERO, move |_, x| {
        let (x, bias) = one(x);
        function(x, None, Some(bias))
    });
    cases.add(rule, &[x, parameter, parameter], AROUND_ZERO, move |_, x| {
        with_weight(x, |x, weight, bias| function(x, Some(weight), bias))
    });
}

pub(super) fn normalizations(cases: &mut Cases) {
    for (x, axis_count) in [(&[3, 4][..], 1), (&[2, 2, 3], 2), (&[5], 1), (&[2, 1, 4], 1)] {
        let parameter = &x[x.len() - axis_count..];
        with_parameters(cases, "layer_norm", x, parameter, move |x, weight, bias| {
            x.layer_norm(axis_count, weight, bias, EPS)
        });
        cases.unary("rms_norm", x, AROUND_ZERO, move |x| x.rms_norm(axis_count, None, EPS));
        cases.add("rms_norm", &[x, parameter], AROUND_ZERO, move |_, x| {
            let (x, weight) = pair(x);
            x.rms_norm(axis_count, Some(weight), EPS)
        });
    }
    for (x, groups) in [(&[2, 4, 3][..], 2), (&[3, 4], 2), (&[1, 2, 2, 3], 1), (&[2, 3, 4], 3)] {
        with_parameters(cases, "group_norm", x, &x[1..2], move |x, weight, bias| {
            x.group_norm(groups, weight, bias, EPS)
        });
    }
    for x in [&[4, 3][..], &[2, 3, 3], &[2, 2, 2, 3]] {
        with_parameters(cases, "batch_norm", x, &x[1..2], |x, weight, bias| {
            Ok(x.batch_norm(weight, bias, EPS)?.0)
        });
        with_parameters(cases, "batch_norm_fixed", x, &x[1..2], |x, weight, bias| {
            let (device, channels) = (x.value().device().clone(), x.shape()[1]);
            let of = |name, low| {
                Tensor::from_slice(&device, [channels], &values(name, channels, low, 2.0))
            };
            x.batch_norm_fixed([&of("mean", -1.0)?, &of("variance", 0.5)?], weight, bias, EPS)
        });
    }
    for (shape, axis) in [(&[3, 4][..], 1), (&[3, 4], 0), (&[2, 3, 2], 1), (&[5], 0), (&[], 0)] {
        cases.unary("softmax", shape, AROUND_ZERO, move |x| x.softmax(axis));
        cases.unary("log_softmax", shape, AROUND_ZERO, move |x| x.log_softmax(axis));
        // The result is used a second time, so its gradient cannot be written over it.
        cases.unary("softmax", shape, AROUND_ZERO, move |x| {
            let y = x.clone().exp()?.softmax(axis)?;
            y.clone().mul(x)?.add(y)
        });
    }
}

pub(super) fn others(cases: &mut Cases) {
    let dropout = Dropout { probability: 0.4, key: RandomKey::new(5), first: 3 };
    cases.unary("dropout", &[3, 4], AROUND_ZERO, move |x| x.dropout(dropout));
    cases.unary("dropout", &[3, 4], AROUND_ZERO, move |x| x.exp()?.dropout(dropout)?.sin());
    for shape in [&[5][..], &[2, 3], &[], &[0]] {
        cases.unary("embedding", &[4, 3], AROUND_ZERO, move |table| {
            let index: Vec<i64> = [3, 0, 3, 1, 0, 3][..shape.iter().product()].to_vec();
            let index = Tensor::from_slice(table.value().device(), shape, &index)?;
            table.embedding(&index)
        });
    }
    attention(cases);
    rotary(cases);
}

fn rotary(cases: &mut Cases) {
    for pairs in [RotaryPairs::Interleaved, RotaryPairs::HalfSplit] {
        // The first call's input is shared; the second call's input has a free buffer.
        cases.unary("rotary", &[2, 3, 5], AROUND_ZERO, move |x| {
            let angles = Tensor::from_slice(x.value().device(), [3, 2], &values("a", 6, 0.0, 6.0))?;
            let (cos, sin) = (angles.cos()?, angles.sin()?);
            x.rotary(&cos, &sin, pairs)?.exp()?.rotary(&cos, &sin, pairs)
        });
        for [rotated, heads] in [[1, 2], [2, 2], [0, 2], [2, 3]] {
            cases.unary("rotary_heads", &[2, 3, heads * 5], AROUND_ZERO, move |x| {
                let angles = values("a", 6, 0.0, 6.0);
                let angles = Tensor::from_slice(x.value().device(), [3, 2], &angles)?;
                let (cos, sin) = (angles.cos()?, angles.sin()?);
                let rotate = |x: Var| x.rotary_heads(&cos, &sin, pairs, [rotated, heads]);
                rotate(rotate(x)?.exp()?)
            });
        }
    }
}

/// A random mask of truth values and an additive mask, both of the given shape.
fn mask(device: &Device, shape: &[usize]) -> lowtide_tensor::TensorResult<[Tensor; 2]> {
    let numbers = values("mask", shape.iter().product(), -1.0, 1.0);
    let added = Tensor::from_slice(device, shape, &numbers)?;
    Ok([added.gt_scalar(0.0)?, added])
}

fn attention(cases: &mut Cases) {
    let plain = AttentionOptions::default();
    let dropout = AttentionDropout { key: RandomKey::new(6), probability: 0.3, first_sample: 2 };
    let options = [
        plain,
        AttentionOptions { causal: Causal::UpperLeft, ..plain },
        AttentionOptions { causal: Causal::LowerRight, scale: Some(0.7), ..plain },
        AttentionOptions { dropout: Some(dropout), ..plain },
    ];
    // [heads of q, heads of k and v], [queries, keys], [dimensions of q, dimensions of v]
    for [heads, groups, queries, keys, dim, v_dim] in
        [[1, 1, 3, 3, 2, 2], [4, 2, 2, 3, 2, 1], [2, 1, 1, 4, 3, 2]]
    {
        let shapes = [[2, heads, queries, dim], [2, groups, keys, dim], [2, groups, keys, v_dim]];
        let shapes = shapes.each_ref().map(|shape| &shape[..]);
        for options in options {
            for kind in [None, Some(0), Some(1)] {
                cases.add("attention", &shapes, AROUND_ZERO, move |_, x| {
                    let [q, k, v] = x.try_into().unwrap_or_else(|_| panic!("three inputs"));
                    let masks = mask(q.value().device(), &[heads, queries, keys])?;
                    let mask = kind.map(|kind: usize| &masks[kind]);
                    q.attention(k, v, mask, options)
                });
            }
        }
    }
    for ([heads, groups], width) in [([2, 2], 12), ([4, 2], 16), ([3, 1], 5)] {
        for options in options {
            cases.unary("self_attention", &[2, 3, width], AROUND_ZERO, move |x| {
                x.self_attention([heads, groups], None, options)
            });
        }
    }
}
