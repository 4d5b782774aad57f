//! Rotary positions: the layer and its use in attention against numbers computed one by one.

use lowtide_autograd::{Attempt, Pass};
use lowtide_nn::models::Gpt;
use lowtide_nn::{
    Module, MultiHeadAttention, MultiHeadOptions, NnError, NnResult as Result, Parameters,
    RotaryEmbedding, RotaryPairs, RotaryScaling, TransformerDecoderLayer, TransformerEncoderLayer,
    TransformerOptions,
};
use lowtide_tensor::{Causal, DType, Device, Tensor};

use crate::common::{KEY, Outcome, cpu, f32s, f64s, names, widen};
use crate::zoo::{GPT, fill};

const BOTH: [RotaryPairs; 2] = [RotaryPairs::Interleaved, RotaryPairs::HalfSplit];

/// Rotates a row at `position` by complex numbers: `(a + ib) · exp(iφ)` for each pair.
fn turn(row: &mut [f64], position: usize, rotary: &RotaryEmbedding) {
    let count = rotary.turned.unwrap_or(row.len());
    for pair in 0..count / 2 {
        let [a, b] = match rotary.pairs {
            RotaryPairs::Interleaved => [2 * pair, 2 * pair + 1],
            RotaryPairs::HalfSplit => [pair, pair + count / 2],
        };
        let angle = position as f64 / rotary.base.powf(2.0 * pair as f64 / count as f64);
        let (x, y) = (row[a], row[b]);
        row[a] = x * angle.cos() - y * angle.sin();
        row[b] = y * angle.cos() + x * angle.sin();
    }
}

fn assert_close(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((found - expected).abs() <= 1e-12, "{index}: {found} {expected}");
    }
}

#[test]
fn rows_are_turned_by_their_positions() -> Outcome {
    let device = cpu();
    for pairs in BOTH {
        for (base, turned) in [(10_000.0, None), (7.0, Some(4)), (10_000.0, Some(0))] {
            let rotary = RotaryEmbedding { base, turned, ..RotaryEmbedding::new(pairs) };
            let x = f64s(&device, "x", [2, 3, 5, 6]);
            let pass = Pass::eval();
            let y = rotary.forward(&pass, pass.constant(x.clone()))?;
            let mut expected = x.to_vec::<f64>()?;
            for (row, values) in expected.chunks_mut(6).enumerate() {
                turn(values, row % 5, &rotary);
            }
            assert_close(&y.value().to_vec::<f64>()?, &expected);
        }
    }
    Ok(())
}

/// `x wᵀ + b` for rows of x.
fn linear(x: &[f64], w: &[f64], b: &[f64]) -> Vec<f64> {
    let width = w.len() / b.len();
    let row = |x: &[f64]| -> Vec<f64> {
        let dot = |w: &[f64]| x.iter().zip(w).map(|(x, w)| x * w).sum::<f64>();
        w.chunks(width).zip(b).map(|(w, b)| dot(w) + b).collect()
    };
    x.chunks(width).flat_map(row).collect()
}

/// Self-attention of one sequence, computed number by number.
fn naive(x: &[f64], parameters: &[Vec<f64>], options: &MultiHeadOptions) -> Vec<f64> {
    let MultiHeadOptions { width, heads, groups, causal, rotary, .. } = *options;
    let rotary = rotary.expect("it turns");
    let [w, b, w_out, b_out] = parameters else { panic!("four parameters") };
    let packed = linear(x, w, b);
    let (dim, len) = (width / heads, x.len() / width);
    let row = |position: usize, part: usize| {
        packed[(position * (heads + 2 * groups) + part) * dim..][..dim].to_vec()
    };
    let turned = |position: usize, part: usize| {
        let mut values = row(position, part);
        turn(&mut values, position, &rotary);
        values
    };
    let mut seen = vec![0.0; len * width];
    for (position, head) in (0..len).flat_map(|t| (0..heads).map(move |head| (t, head))) {
        let group = head / (heads / groups);
        let last = if causal == Causal::No { len - 1 } else { position };
        let q = turned(position, head);
        let weight = |at: usize| {
            let k = turned(at, heads + group);
            let score: f64 = q.iter().zip(&k).map(|(q, k)| q * k).sum();
            (score / (dim as f64).sqrt()).exp()
        };
        let weights: Vec<f64> = (0..=last).map(weight).collect();
        let total: f64 = weights.iter().sum();
        for (at, weight) in weights.iter().enumerate() {
            for (i, v) in row(at, heads + groups + group).into_iter().enumerate() {
                seen[position * width + head * dim + i] += weight / total * v;
            }
        }
    }
    linear(&seen, w_out, b_out)
}

#[test]
fn attention_turns_queries_and_keys_of_every_head_and_no_values() -> Outcome {
    let device = cpu();
    for pairs in BOTH {
        for (groups, causal, turned) in
            [(2, Causal::No, None), (1, Causal::UpperLeft, Some(2)), (2, Causal::UpperLeft, None)]
        {
            let rotary =
                Some(RotaryEmbedding { base: 20.0, turned, ..RotaryEmbedding::new(pairs) });
            let options =
                MultiHeadOptions { groups, causal, rotary, ..MultiHeadOptions::new(8, 2) };
            let mut layer = MultiHeadAttention::new(&device, KEY, options)?;
            fill(&mut layer);
            widen(&mut layer);
            let mut parameters = Vec::new();
            layer.visit(&mut |_, parameter| {
                parameters.push(parameter.value().to_vec::<f64>().expect("f64"));
            });
            let x = f64s(&device, "x", [1, 5, 8]);
            let pass = Pass::eval();
            let y = layer.forward(&pass, pass.constant(x.clone()))?.value().to_vec::<f64>()?;
            assert_close(&y, &naive(&x.to_vec::<f64>()?, &parameters, &options));
            // Without a causal mask, cross-attention to the sequence itself gives self-attention.
            if causal == Causal::No {
                let own = || pass.constant(x.clone());
                let cross = layer.attend(&pass, own(), own(), None)?;
                assert_close(&cross.value().to_vec::<f64>()?, &y);
            }
        }
    }
    Ok(())
}

#[test]
fn scores_depend_on_how_far_positions_are_apart() -> Outcome {
    let device = cpu();
    for pairs in BOTH {
        let rotary = RotaryEmbedding::new(pairs);
        let pass = Pass::eval();
        // Every position has the same query and the same key.
        let rows = |name| f64s(&device, name, [1, 8]).expand([40, 8]);
        let turned = |name| -> Result<Tensor> {
            Ok(rotary.forward(&pass, pass.constant(rows(name)?))?.into_value())
        };
        let (q, k) = (turned("q")?, turned("k")?);
        let scores = q.matmul(&k.transpose(0, 1)?)?.to_vec::<f64>()?;
        for (at, score) in scores.iter().enumerate() {
            let (i, j) = (at / 40, at % 40);
            let same = scores[i.saturating_sub(j) * 40 + j.saturating_sub(i)];
            assert!((score - same).abs() <= 1e-13, "{i} {j}: {score} {same}");
        }
        assert!((scores[0] - scores[1]).abs() > 1e-3, "and they do depend on it");
    }
    Ok(())
}

#[test]
fn nothing_is_kept_but_tables() -> Outcome {
    let device = cpu();
    let kept = |rotary: Option<RotaryEmbedding>| -> Result<usize> {
        let options = MultiHeadOptions { rotary, ..MultiHeadOptions::new(64, 4) };
        let layer = MultiHeadAttention::new(&device, KEY, options)?;
        let live = || device.allocator().statistics().requested.current_bytes;
        let before = live();
        let pass = Pass::train(KEY, &Attempt::new());
        let x = pass.input(f32s(&device, "x", [8, 32, 64]))?;
        drop(layer.forward(&pass, x)?);
        Ok(live() - before)
    };
    let plain = kept(None)?;
    for pairs in BOTH {
        // A cosine and a sine for each of 32 positions and 8 pairs.
        assert_eq!(kept(Some(RotaryEmbedding::new(pairs)))?, plain + 2 * 32 * 8 * 4);
    }
    Ok(())
}

#[test]
fn half_types_turn_as_f32_does_within_their_rounding() -> Outcome {
    let device = cpu();
    let x = f32s(&device, "x", [2, 6, 8]);
    let run = |dtype: DType| -> Result<Vec<f64>> {
        let pass = Pass::eval();
        let rotary = RotaryEmbedding::new(RotaryPairs::HalfSplit);
        let y = rotary.forward(&pass, pass.constant(x.to_dtype(dtype)?))?;
        assert_eq!(y.value().dtype(), dtype);
        Ok(y.value().to_dtype(DType::F64)?.to_vec::<f64>()?)
    };
    let expected = run(DType::F32)?;
    for (dtype, unit) in [(DType::BF16, 1.0 / 256.0), (DType::F16, 1.0 / 2048.0)] {
        for (found, expected) in run(dtype)?.iter().zip(&expected) {
            // Tolerance for the roundings of x, of the table and of the result; values are below 2.
            assert!((found - expected).abs() <= 4.0 * unit, "{dtype}: {found} {expected}");
        }
    }
    Ok(())
}

fn refused<T>(result: Result<T>, option: &str) {
    let error = result.err().unwrap_or_else(|| panic!("{option} was accepted"));
    assert!(matches!(error, NnError::Option { name, .. } if name == option), "{error}");
}

#[test]
fn heads_that_cannot_be_turned_are_refused() -> Outcome {
    let device = cpu();
    let whole = RotaryEmbedding::new(RotaryPairs::HalfSplit);
    let with = |rotary, width| {
        let options = MultiHeadOptions { rotary: Some(rotary), ..MultiHeadOptions::new(width, 2) };
        MultiHeadAttention::new(&device, KEY, options)
    };
    refused(with(whole, 6), "turned");
    refused(with(RotaryEmbedding { turned: Some(6), ..whole }, 8), "turned");
    refused(with(RotaryEmbedding { turned: Some(3), ..whole }, 8), "turned");
    for base in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        refused(with(RotaryEmbedding { base, ..whole }, 8), "base");
    }
    with(RotaryEmbedding { turned: Some(2), ..whole }, 6)?;
    let model = Gpt::new(&device, KEY, GPT)?;
    refused(model.with_rotary(RotaryEmbedding { turned: Some(6), ..whole }), "turned");
    Ok(())
}

#[test]
fn layers_of_a_transformer_turn_in_attention_to_their_own_sequence() -> Outcome {
    let device = cpu();
    let plain = TransformerOptions { hidden: 6, dropout: 0.0, ..TransformerOptions::new(4, 2) };
    let rotary = Some(RotaryEmbedding::new(RotaryPairs::HalfSplit));
    // Reversing the input tests the order: only positions can tell the elements apart.
    let x = f32s(&device, "x", [1, 4, 4]);
    let pass = Pass::eval();
    let differs = |run: &dyn Fn(Tensor) -> Result<Tensor>| -> Result<bool> {
        let (y, turned) = (run(x.clone())?, run(x.flip(&[1])?)?.flip(&[1])?);
        let distance = y.sub(&turned)?.abs()?.to_dtype(DType::F64)?.amax(&[0, 1, 2])?;
        Ok(distance.item::<f64>()? > 1e-4)
    };
    for (options, expected) in [(plain, false), (TransformerOptions { rotary, ..plain }, true)] {
        let encoder = TransformerEncoderLayer::new(&device, KEY, options)?;
        let forward = |x| Ok(encoder.forward(&pass, pass.constant(x))?.into_value());
        assert_eq!(differs(&forward)?, expected);
        let decoder = TransformerDecoderLayer::new(&device, KEY, options)?;
        let memory = f32s(&device, "memory", [1, 3, 4]);
        let decode = |x| {
            let (x, memory) = (pass.constant(x), pass.constant(memory.clone()));
            Ok(decoder.decode(&pass, x, memory, [None, None])?.into_value())
        };
        assert_eq!(differs(&decode)?, expected);
        // Positions of the memory do not count: they belong to another sequence.
        let of_memory = |memory| {
            let (x, memory) = (pass.constant(x.clone()), pass.constant(memory));
            decoder
                .decode(&pass, x, memory, [None, None])?
                .value()
                .to_vec::<f32>()
                .map_err(NnError::from)
        };
        let (one, other) = (of_memory(memory.clone())?, of_memory(memory.flip(&[1])?)?);
        assert!(one.iter().zip(&other).all(|(a, b)| (a - b).abs() < 1e-5), "{one:?} {other:?}");
    }
    Ok(())
}

#[test]
fn a_language_model_that_turns_has_no_table_of_positions_and_takes_any_length() -> Outcome {
    let device: Device = cpu();
    let rotary = RotaryEmbedding::new(RotaryPairs::HalfSplit);
    let mut learned = Gpt::new(&device, KEY, GPT)?;
    let mut model = Gpt::new(&device, KEY, GPT)?.with_rotary(rotary)?;
    let mut expected = names(&mut learned);
    expected.retain(|name| name != "pos.weight");
    assert_eq!(names(&mut model), expected);
    let run = |model: &Gpt, len: usize| -> Result<Vec<usize>> {
        let pass = Pass::eval();
        let tokens = Tensor::zeros(&device, [1, len], DType::I64)?;
        Ok(model.forward(&pass, pass.constant(tokens))?.shape().to_vec())
    };
    assert!(run(&learned, GPT.context + 1).is_err());
    assert_eq!(run(&model, GPT.context + 1)?, [1, GPT.context + 1, GPT.vocabulary]);
    Ok(())
}

/// The angles of position 1, from tables of two positions.
fn rates(rotary: &RotaryEmbedding, width: usize) -> Result<Vec<f64>> {
    let device = cpu();
    let tables = rotary.tables(&device, [2, width], DType::F64)?;
    // Rotating (1, 0) gives the cosine and the sine.
    let ones: Vec<f64> = (0..2 * width).map(|at| f64::from(at % width < width / 2)).collect();
    let x = Tensor::from_slice(&device, [1, 2, width], &ones)?;
    let y = tables.turn(Pass::eval().constant(x))?.value().to_vec::<f64>()?;
    let row = &y[width..];
    Ok((0..width / 2).map(|pair| row[width / 2 + pair].atan2(row[pair])).collect())
}

#[test]
fn scaled_angles_are_smaller_for_pairs_that_turn_slowly() -> Outcome {
    let plain = RotaryEmbedding { base: 100.0, ..RotaryEmbedding::new(RotaryPairs::HalfSplit) };
    let before = rates(&plain, 8)?;
    let linear = Some(RotaryScaling::Linear { factor: 4.0 });
    let divided: Vec<f64> = before.iter().map(|rate| rate / 4.0).collect();
    assert_close(&rates(&RotaryEmbedding { scaling: linear, ..plain }, 8)?, &divided);
    // In 20 positions, the pairs make 3.18, 1.01, 0.318 and 0.101 turns.
    let by_turns = RotaryScaling::ByTurns { factor: 4.0, context: 20, turns: [0.2, 2.0] };
    let found = rates(&RotaryEmbedding { scaling: Some(by_turns), ..plain }, 8)?;
    let expected: Vec<f64> = before
        .iter()
        .map(|rate| {
            let kept = ((rate * 20.0 / std::f64::consts::TAU - 0.2) / 1.8).clamp(0.0, 1.0);
            kept * rate + (1.0 - kept) * rate / 4.0
        })
        .collect();
    assert_close(&found, &expected);
    assert_close(&[found[0], found[3]], &[before[0], divided[3]]);
    assert!(divided[1] < found[1] && found[1] < before[1], "{found:?}");
    // The fractional indices for 2 and 0.2 turns are 0.40 and 2.40: the mix runs from pair 0 to
    // pair 3.
    let (factor, context, turns) = (4.0, 20, [0.2, 2.0]);
    let yarn = RotaryScaling::Yarn { factor, context, turns, attention: 1.1 };
    let shares = [0.0, 1.0 / 3.0, 2.0 / 3.0, 1.0];
    let expected: Vec<f64> =
        before.iter().zip(shares).map(|(rate, share)| rate * (1.0 - 0.75 * share)).collect();
    let yarn = RotaryEmbedding { scaling: Some(yarn), ..plain };
    assert_close(&rates(&yarn, 8)?, &expected);
    let row = Tensor::ones(&cpu(), [1, 8], DType::F64)?;
    let pass = Pass::eval();
    let turned = yarn.forward(&pass, pass.constant(row))?.value().to_vec::<f64>()?;
    assert_close(&turned, &[1.1; 8]);
    let still = RotaryScaling::Yarn { factor, context, turns, attention: 0.0 };
    refused(RotaryEmbedding { scaling: Some(still), ..plain }.check(8), "attention");
    refused(
        RotaryEmbedding { scaling: Some(RotaryScaling::Linear { factor: 0.0 }), ..plain }.check(8),
        "factor",
    );
    let equal = RotaryScaling::ByTurns { factor: 2.0, context: 20, turns: [1.0, 1.0] };
    refused(RotaryEmbedding { scaling: Some(equal), ..plain }.check(8), "turns");
    Ok(())
}
