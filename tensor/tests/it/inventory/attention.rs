use lowtide_tensor::{AttentionOptions, Causal, RotaryPairs, Tensor, TensorResult as Result};

use super::{Entry, Inputs, both, in_place, out};

/// q of [6, 8, 40, 41], and k and v from its first four and last four heads.
fn operands(i: &Inputs) -> Result<[Tensor; 3]> {
    Ok([i.image.clone(), i.image.narrow(1, 0, 4)?, i.image.narrow(1, 4, 4)?])
}

/// 65 rows of the logits, for the cosines or the sines of rotations.
fn rows(i: &Inputs, first: usize) -> Result<Tensor> {
    i.logits.narrow(0, first, 65)
}

pub(super) fn ops() -> Vec<Entry> {
    const OPTIONS: AttentionOptions =
        AttentionOptions { causal: Causal::UpperLeft, scale: None, dropout: None };
    let mut ops = both! { i;
        rotary rotary_ (&rows(i, 0)?, &rows(i, 65)?, RotaryPairs::HalfSplit);
        rotary_backward rotary_backward_ (&rows(i, 0)?, &rows(i, 65)?, RotaryPairs::HalfSplit);
    };
    ops.extend([
        Entry {
            name: "attention",
            run: |i| {
                let [q, k, v] = operands(i)?;
                let found = q.attention(&k, &v, None, &OPTIONS)?;
                Ok(vec![found.y, found.log_sum_exp])
            },
            half: true,
        },
        Entry {
            name: "attention_backward",
            run: |i| {
                let [q, k, v] = operands(i)?;
                let found = q.attention(&k, &v, None, &OPTIONS)?;
                Ok(q.attention_backward([&q, &k, &v], None, &found, &OPTIONS)?.into())
            },
            half: true,
        },
    ]);
    ops
}
