//! The choice of a token.

use std::cmp::Ordering;

use super::Sampling;

/// The index of the token that is chosen in a step for a sequence.
pub(super) fn choose(logits: &[f64], sampling: Sampling, [step, row]: [u64; 2]) -> usize {
    let more_likely = |&a: &usize, &b: &usize| logits[b].total_cmp(&logits[a]).then(a.cmp(&b));
    let Sampling::Random { key, temperature, top_k, top_p } = sampling else {
        return (0..logits.len()).min_by(more_likely).unwrap_or_default();
    };
    // `RandomKey::step` is not used, because the given key may be a step of another key.
    let draw = f64::from(key.op(&step.to_string()).uniform(row));
    let left = most_likely(logits.len(), top_k, more_likely);
    let largest = left.first().map_or(0.0, |&index| logits[index]);
    let weight = |&index: &usize| ((logits[index] - largest) / temperature).exp();
    let weights: Vec<f64> = left.iter().map(weight).collect();
    let count = nucleus(&weights, top_p);
    let mut rest = draw * weights[..count].iter().sum::<f64>();
    for (&index, weight) in left[..count].iter().zip(&weights) {
        rest -= weight;
        if rest < 0.0 {
            return index;
        }
    }
    // Rounding may leave a rest of the probability, which belongs to the last token.
    count.checked_sub(1).map_or(0, |last| left[last])
}

/// The first `count` indices in an order, or all indices.
fn most_likely(
    len: usize,
    count: Option<usize>,
    order: impl Fn(&usize, &usize) -> Ordering + Copy,
) -> Vec<usize> {
    let mut indices: Vec<usize> = (0..len).collect();
    if let Some(count) = count.filter(|&count| count < len) {
        // Vocabularies are large, so only the remaining tokens are sorted.
        indices.select_nth_unstable_by(count, order);
        indices.truncate(count);
    }
    indices.sort_unstable_by(order);
    indices
}

/// The smallest number of the largest `weights` whose sum is at least the share `top_p` of the sum
/// of all weights.
fn nucleus(weights: &[f64], top_p: f64) -> usize {
    let enough = top_p * weights.iter().sum::<f64>();
    let mut sum = 0.0;
    // A weight counts if the sum of the weights before it is not enough.
    let count = weights.iter().take_while(|&&weight| {
        let is_left = sum < enough;
        sum += weight;
        is_left
    });
    count.count().max(1).min(weights.len())
}

#[cfg(test)]
mod tests {
    use lowtide_tensor::RandomKey;

    use super::{Sampling, choose, nucleus};

    const LOGITS: [f64; 5] = [0.0, 2.0, 1.0, 2.0, -3.0];

    fn random(temperature: f64, top_k: Option<usize>, top_p: f64) -> Sampling {
        Sampling::Random { key: RandomKey::new(7), temperature, top_k, top_p }
    }

    fn shares(sampling: Sampling) -> [f64; 5] {
        const DRAWS: u64 = 20_000;
        let mut counts = [0.0; 5];
        (0..DRAWS).for_each(|step| counts[choose(&LOGITS, sampling, [step, 3])] += 1.0);
        counts.map(|count| count / DRAWS as f64)
    }

    #[test]
    fn greedy_is_the_first_of_the_largest() {
        assert_eq!(choose(&LOGITS, Sampling::Greedy, [0, 0]), 1);
        assert_eq!(choose(&LOGITS, random(1.0, Some(1), 1.0), [0, 0]), 1);
        assert_eq!(choose(&LOGITS, random(1.0, None, 1e-9), [5, 0]), 1);
    }

    #[test]
    fn shares_are_those_of_the_softmax_of_what_is_left() {
        for (temperature, top_k, left) in
            [(1.0, None, 5), (0.5, None, 5), (2.0, Some(3), 3), (1.0, Some(2), 2)]
        {
            let order = [1, 3, 2, 0, 4];
            let weight = |index: usize| (LOGITS[index] / temperature).exp();
            let sum: f64 = order[..left].iter().map(|&index| weight(index)).sum();
            let found = shares(random(temperature, top_k, 1.0));
            for (place, &index) in order.iter().enumerate() {
                let expected = if place < left { weight(index) / sum } else { 0.0 };
                assert!((found[index] - expected).abs() < 0.015, "{found:?} at {index}");
            }
        }
    }

    #[test]
    fn a_nucleus_is_the_fewest_that_are_enough() {
        let weights = [4.0, 3.0, 2.0, 1.0];
        for (top_p, count) in [(0.01, 1), (0.4, 1), (0.41, 2), (0.7, 2), (0.91, 4), (1.0, 4)] {
            assert_eq!(nucleus(&weights, top_p), count, "{top_p}");
        }
        assert_eq!(nucleus(&[], 0.5), 0);
    }
}
