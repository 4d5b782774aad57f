//! Softmax cross entropy of logits `[N, C]` against labels `[N]`, as a sum and a count.
//!
//! - forward: lse`[n]` = ln Σ over c of exp(logits`[n, c]`), loss = Σ over n of lse`[n]` -
//!   logits`[n, labels[n]]`, count = rows whose label is not the ignored one.
//! - backward: dlogits = dloss · (exp(logits - lse) - onehot(labels)), 0 in ignored rows.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::cpu::chunk::{Chunked, for_each_chunk, for_each_chunk2};
use crate::cpu::pool::Pool;
use crate::dtype::Float;

/// Logits of a task.
const CHUNK_LEN: usize = 4096;

/// Rows of a task: a function of the shape only, so that sums do not depend on threads.
fn rows_per_chunk(classes: usize) -> usize {
    (CHUNK_LEN / classes.max(1)).max(1)
}

/// Elements of scratch that [`forward`] needs: one partial sum for each task.
pub(crate) fn forward_workspace_len(rows: usize, classes: usize) -> usize {
    rows.div_ceil(rows_per_chunk(classes))
}

/// Overwrites `lse`, `loss[0]` and `count[0]`.
///
/// # Errors
/// The first row whose label is neither a class nor `ignore_index`; the outputs then hold
/// nothing of use.
#[expect(clippy::too_many_arguments, reason = "operands, results and scratch of one operation")]
pub(crate) fn forward<T: Float>(
    pool: &Pool,
    classes: usize,
    logits: &[T],
    labels: &[i64],
    ignore_index: i64,
    lse: &mut [T],
    loss: &mut [T],
    count: &mut [T],
    workspace: &mut [T],
) -> Result<(), usize> {
    assert_eq!([logits.len(), lse.len()], [labels.len() * classes, labels.len()]);
    assert_eq!([loss.len(), count.len()], [1, 1]);
    let chunk_rows = rows_per_chunk(classes);
    let bad_row = AtomicUsize::new(usize::MAX);
    let sums = &mut workspace[..labels.len().div_ceil(chunk_rows)];
    for_each_chunk2(
        pool,
        Chunked::new(lse, chunk_rows),
        Chunked::new(&mut *sums, 1),
        |chunk, lse, sum| {
            let mut total = 0.0;
            for (index, lse) in lse.iter_mut().enumerate() {
                let row = chunk * chunk_rows + index;
                let logits = &logits[row * classes..][..classes];
                *lse = log_sum_exp(logits);
                if labels[row] == ignore_index {
                    continue;
                }
                match usize::try_from(labels[row]).ok().and_then(|label| logits.get(label)) {
                    Some(&logit) => total += lse.to_f64() - logit.to_f64(),
                    None => {
                        bad_row.fetch_min(row, Ordering::Relaxed);
                    }
                }
            }
            sum[0] = T::from_f64(total);
        },
    );
    let counted = labels.iter().filter(|&&label| label != ignore_index).count();
    loss[0] = T::from_f64(sums.iter().map(|sum| sum.to_f64()).sum());
    count[0] = T::from_f64(counted as f64);
    match bad_row.into_inner() {
        usize::MAX => Ok(()),
        row => Err(row),
    }
}

/// ln Σ exp(x), shifted by the maximum so that it neither overflows nor vanishes.
fn log_sum_exp<T: Float>(x: &[T]) -> T {
    let max = x.iter().fold(T::NEG_INFINITY, |max, &x| max.maximum(x));
    if !max.is_finite() {
        // All -∞, or an ∞ or NaN among them: the shift would turn each into NaN.
        return max;
    }
    let sum = x.iter().fold(T::ZERO, |sum, &x| sum + (x - max).exp());
    max + sum.ln()
}

/// Overwrites `dlogits`; `dloss` is the gradient of the sum. Labels are those of [`forward`],
/// which has refused the ones out of range.
#[expect(clippy::too_many_arguments, reason = "operands and result of one operation")]
pub(crate) fn backward<T: Float>(
    pool: &Pool,
    classes: usize,
    logits: &[T],
    labels: &[i64],
    ignore_index: i64,
    lse: &[T],
    dloss: T,
    dlogits: &mut [T],
) {
    assert_eq!([logits.len(), dlogits.len()], [labels.len() * classes; 2]);
    assert_eq!(lse.len(), labels.len());
    let chunk_rows = rows_per_chunk(classes);
    for_each_chunk(pool, dlogits, chunk_rows * classes, |chunk, dlogits| {
        for (index, dlogits) in dlogits.chunks_exact_mut(classes).enumerate() {
            let row = chunk * chunk_rows + index;
            if labels[row] == ignore_index {
                dlogits.fill(T::ZERO);
                continue;
            }
            let logits = &logits[row * classes..][..classes];
            for (dlogit, &logit) in dlogits.iter_mut().zip(logits) {
                *dlogit = dloss * (logit - lse[row]).exp();
            }
            let label = usize::try_from(labels[row]).expect("forward checked the labels");
            dlogits[label] = dlogits[label] - dloss;
        }
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const IGNORED: i64 = -100;

    fn check_against_definition<T: Float>(classes: usize, logits: &[f64], labels: &[i64]) {
        let epsilon = if size_of::<T>() == 4 { f64::from(f32::EPSILON) } else { f64::EPSILON };
        let pool = Pool::new(2);
        let rows = labels.len();
        let x: Vec<T> = logits.iter().map(|&x| T::from_f64(x)).collect();
        let nan = T::from_f64(f64::NAN);
        let mut lse = vec![nan; rows];
        let (mut loss, mut count) = ([nan], [nan]);
        let mut workspace = vec![nan; forward_workspace_len(rows, classes)];
        let outcome = forward(
            &pool,
            classes,
            &x,
            labels,
            IGNORED,
            &mut lse,
            &mut loss,
            &mut count,
            &mut workspace,
        );
        assert_eq!(outcome, Ok(()));
        let dloss = 0.75;
        let mut dx = vec![nan; x.len()];
        backward(&pool, classes, &x, labels, IGNORED, &lse, T::from_f64(dloss), &mut dx);

        let (mut total, mut counted) = (0.0, 0);
        for (row, &label) in labels.iter().enumerate() {
            let x: Vec<f64> = x[row * classes..][..classes].iter().map(|x| x.to_f64()).collect();
            let sum: f64 = x.iter().map(|x| x.exp()).sum();
            assert!((lse[row].to_f64() - sum.ln()).abs() <= 32.0 * epsilon, "lse of row {row}");
            for c in 0..classes {
                let onehot = f64::from(u8::from(label == c as i64));
                let expected =
                    if label == IGNORED { 0.0 } else { dloss * (x[c].exp() / sum - onehot) };
                let found = dx[row * classes + c].to_f64();
                assert!((found - expected).abs() <= 64.0 * epsilon, "({row}, {c}): {found}");
            }
            if label != IGNORED {
                total += sum.ln() - x[label as usize];
                counted += 1;
            }
        }
        assert_eq!(count[0].to_f64(), f64::from(counted));
        // One rounding to T beside the errors of the rows, and those of this sum in f64.
        let tolerance = 32.0 * epsilon * (1.0 + total.abs() + f64::from(counted))
            + f64::from(counted) * f64::EPSILON * total.abs();
        assert!((loss[0].to_f64() - total).abs() <= tolerance, "{} {total}", loss[0]);
    }

    proptest! {
        #[test]
        fn sums_and_gradients_agree_with_the_definition(
            (classes, labels) in (1..=11usize).prop_flat_map(|classes| {
                let label = prop_oneof![1 => Just(IGNORED), 4 => 0..classes as i64];
                (Just(classes), prop::collection::vec(label, 0..=1200))
            }),
            seed in 0..1000usize,
        ) {
            let logits: Vec<f64> = (0..classes * labels.len())
                .map(|i| ((i * 31 + seed) % 97) as f64 / 16.0 - 3.0)
                .collect();
            check_against_definition::<f32>(classes, &logits, &labels);
            check_against_definition::<f64>(classes, &logits, &labels);
        }
    }

    fn forward_of(classes: usize, logits: &[f32], labels: &[i64]) -> (Result<(), usize>, f32) {
        let mut lse = vec![0.0; labels.len()];
        let (mut loss, mut count) = ([0.0], [0.0]);
        let mut workspace = vec![0.0; forward_workspace_len(labels.len(), classes)];
        let outcome = forward(
            &Pool::new(2),
            classes,
            logits,
            labels,
            IGNORED,
            &mut lse,
            &mut loss,
            &mut count,
            &mut workspace,
        );
        (outcome, loss[0])
    }

    #[test]
    fn first_label_out_of_range_is_named() {
        let logits = vec![0.5; 3 * 5000];
        let mut labels = vec![1; 5000];
        assert_eq!(forward_of(3, &logits, &labels).0, Ok(()));
        labels[4000] = 3;
        assert_eq!(forward_of(3, &logits, &labels).0, Err(4000));
        labels[2500] = -1;
        assert_eq!(forward_of(3, &logits, &labels).0, Err(2500));
    }

    #[test]
    fn large_logits_do_not_overflow() {
        assert_eq!(forward_of(2, &[1000.0, -1000.0], &[0]).1, 0.0);
        assert_eq!(forward_of(2, &[1000.0, -1000.0], &[1]).1, 2000.0);
        assert!(forward_of(2, &[f32::NAN, 0.0], &[1]).1.is_nan());
        assert_eq!(forward_of(2, &[f32::NEG_INFINITY, 4.0], &[1]).1, 0.0);
    }
}
