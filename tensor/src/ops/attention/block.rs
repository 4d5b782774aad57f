//! Sizes, operands, masks and blocks of both directions of attention.

use super::{AttentionOptions, Causal};
use crate::cpu::gemm::Matrix;
use crate::cpu::math::SimdFloat;
use crate::cpu::simd::Simd;
use crate::cpu::turn::turn_rows;
use crate::dtype::{Bool, Element};
use crate::operand_view::View;

/// Queries of a task. Each step multiplies them with the same number of keys.
pub(super) const BLOCK: usize = 64;

/// B, H, G, T, S, D and E.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) batch: usize,
    pub(super) heads: usize,
    pub(super) groups: usize,
    pub(super) queries: usize,
    pub(super) keys: usize,
    pub(super) dim: usize,
    pub(super) v_dim: usize,
}

/// A head of q and the head of k and v that serves it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heads {
    pub(super) b: usize,
    pub(super) h: usize,
    pub(super) g: usize,
}

/// An operand of four dimensions with any strides.
#[derive(Clone, Copy)]
pub(super) struct Source<'a, E> {
    data: &'a [E],
    strides: [usize; 4],
}

impl<'a, E: Element> Source<'a, E> {
    pub(super) fn new(view: View<'a, E>) -> Self {
        let strides = view.layout().strides();
        Source { data: view.data(), strides: std::array::from_fn(|axis| strides[axis]) }
    }

    /// The matrix of the last two dimensions at `[b, h]`.
    pub(super) fn at(&self, b: usize, h: usize) -> Matrix<'a, E> {
        let [b_stride, h_stride, row_stride, col_stride] = self.strides;
        let data = self.data.get(b * b_stride + h * h_stride..).unwrap_or_default();
        Matrix { data, row_stride, col_stride }
    }
}

#[derive(Clone, Copy)]
pub(super) enum Mask<'a, E> {
    None,
    /// The pairs that count.
    Keep(Source<'a, Bool>),
    /// The numbers to add to the scores.
    Add(Source<'a, E>),
}

#[derive(Clone, Copy)]
pub(super) struct Problem<'a, E> {
    pub(super) sizes: Sizes,
    pub(super) options: AttentionOptions,
    pub(super) q: Source<'a, E>,
    pub(super) k: Source<'a, E>,
    pub(super) v: Source<'a, E>,
    pub(super) mask: Mask<'a, E>,
}

impl<E: Element> Problem<'_, E> {
    pub(super) fn scale(&self) -> f64 {
        self.options.factor(self.sizes.dim)
    }

    /// Number of keys that causality lets query `i` see. The visible keys are the first ones.
    pub(super) fn visible(&self, i: usize) -> usize {
        let Sizes { queries, keys, .. } = self.sizes;
        match self.options.causal {
            Causal::No => keys,
            Causal::UpperLeft => keys.min(i + 1),
            Causal::LowerRight => keys.min((i + 1 + keys).saturating_sub(queries)),
        }
    }

    /// Adds the mask to rows of `width` scores, the first for pair `[i, j]`. A row holds one key
    /// with the queries from `i` on, or one query with the keys from `j` on.
    #[inline(always)]
    pub(super) fn add_mask<T: SimdFloat>(
        &self,
        heads: Heads,
        rows: Rows,
        [i, j]: [usize; 2],
        width: usize,
        scores: &mut [T],
    ) {
        let Sizes { queries, keys, .. } = self.sizes;
        let lanes = match rows {
            Rows::Keys => width.min(queries - i),
            Rows::Queries => width.min(keys - j),
        };
        let place = |matrix: [usize; 2]| match rows {
            Rows::Keys => [matrix[1], matrix[0]],
            Rows::Queries => matrix,
        };
        match &self.mask {
            Mask::None => {}
            Mask::Keep(mask) => {
                let mask = mask.at(heads.b, heads.h);
                let [row_step, lane_step] = place([mask.row_stride, mask.col_stride]);
                let start = i * mask.row_stride + j * mask.col_stride;
                for (row, scores) in scores.chunks_exact_mut(width).enumerate() {
                    let mask = &mask.data[start + row * row_step..];
                    for (lane, score) in scores[..lanes].iter_mut().enumerate() {
                        if !bool::from(mask[lane * lane_step]) {
                            *score = T::NEG_INFINITY;
                        }
                    }
                }
            }
            Mask::Add(mask) => {
                let mask = mask.at(heads.b, heads.h);
                let [row_step, lane_step] = place([mask.row_stride, mask.col_stride]);
                let start = i * mask.row_stride + j * mask.col_stride;
                for (row, scores) in scores.chunks_exact_mut(width).enumerate() {
                    let mask = &mask.data[start + row * row_step..];
                    for (lane, score) in scores[..lanes].iter_mut().enumerate() {
                        *score += mask[lane * lane_step].cast();
                    }
                }
            }
        }
    }

    /// Applies dropout to weights in the order of [`Problem::add_mask`].
    pub(super) fn multiply_dropout<T: SimdFloat>(
        &self,
        heads: Heads,
        rows: Rows,
        [i, j]: [usize; 2],
        width: usize,
        weights: &mut [T],
    ) {
        let Some(dropout) = self.options.dropout else { return };
        let Sizes { queries, keys, .. } = self.sizes;
        let kept = 1.0 - dropout.probability;
        let factor = T::from_f64(if kept > 0.0 { 1.0 / kept } else { 0.0 });
        let threshold = dropout.probability * (1u64 << 32) as f64;
        let row_count = weights.len() / width;
        let [query_count, key_count] = match rows {
            Rows::Keys => [width.min(queries - i), row_count],
            Rows::Queries => [row_count, width.min(keys - j)],
        };
        let sample = dropout.first_sample + heads.b as u64;
        let head = sample * self.sizes.heads as u64 + heads.h as u64;
        for query in 0..query_count {
            let row = head * queries as u64 + (i + query) as u64;
            for first in (0..key_count).step_by(4) {
                let block = row * keys.div_ceil(4) as u64 + ((j + first) / 4) as u64;
                let words = dropout.key.block(block);
                for (key, word) in (first..key_count).zip(words) {
                    let at = match rows {
                        Rows::Keys => key * width + query,
                        Rows::Queries => query * width + key,
                    };
                    let is_dropped = f64::from(word) < threshold;
                    weights[at] *= if is_dropped { T::ZERO } else { factor };
                }
            }
        }
    }
}

/// The side that the rows of a block of scores stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rows {
    Keys,
    Queries,
}

/// Rows `first..first + rows` of `x`, in place if they are of type `T`, else converted.
#[inline(always)]
pub(super) fn block<'a, E: Element, T: Element>(
    x: Matrix<'a, E>,
    first: usize,
    [rows, cols]: [usize; 2],
    scratch: &'a mut [T],
) -> Matrix<'a, T> {
    let x = x.rows_from(first);
    match x.cast() {
        Some(x) => x,
        None if rows * cols == 0 => Matrix { data: scratch, row_stride: 0, col_stride: 1 },
        None => x.converted([rows, cols], scratch),
    }
}

/// Rows `first..first + rows` of `x` times `factor`.
#[inline(always)]
pub(super) fn scaled<'a, E: Element, T: SimdFloat>(
    x: Matrix<'_, E>,
    first: usize,
    [rows, cols]: [usize; 2],
    factor: T,
    to: &'a mut [T],
) -> Matrix<'a, T> {
    let x = x.rows_from(first);
    for (row, to) in to.chunks_exact_mut(cols.max(1)).take(rows).enumerate() {
        let from = &x.data[row * x.row_stride..];
        if x.col_stride == 1 {
            to.iter_mut().zip(from).for_each(|(to, &x)| *to = x.cast::<T>() * factor);
        } else {
            for (col, to) in to.iter_mut().enumerate() {
                *to = from[col * x.col_stride].cast::<T>() * factor;
            }
        }
    }
    Matrix { data: to, row_stride: cols, col_stride: 1 }
}

/// e^x of a score minus a larger score, or minus the log-sum-exp that includes the score.
///
/// The difference comes first, because it is exact for the largest score. Scores in units of ln 2
/// would save a product, but a log-sum-exp, which is stored in units of 1, would be rounded twice
/// more.
#[inline(always)]
pub(super) fn exp_fast<T: SimdFloat, S: Simd<T>>(x: T) -> T {
    (x * T::from_f64(std::f64::consts::LOG2_E)).exp2_fast_in::<S>()
}

/// Transposes rows `first..first + rows` of `x` times `factor`, in panels of `width` rows:
/// `[panels][cols][width]`, with zeros for missing rows.
#[inline(always)]
pub(super) fn transposed<E: Element, T: SimdFloat, S: Simd<T>>(
    simd: S,
    x: Matrix<'_, E>,
    first: usize,
    [rows, cols]: [usize; 2],
    width: usize,
    factor: T,
    to: &mut [T],
) {
    if cols == 0 {
        return;
    }
    for (panel, to) in to.chunks_exact_mut(cols * width).take(rows.div_ceil(width)).enumerate() {
        let (row, count) = (panel * width, width.min(rows - panel * width));
        let from = &x.data[(first + row) * x.row_stride..];
        if x.col_stride == 1 {
            let (from, to) = ((from, x.row_stride), (&mut *to, width));
            turn_rows(simd, from, [count, cols], to, |x| x.cast::<T>() * factor, |x| x);
        } else {
            for lane in 0..count {
                for (col, to) in to[lane..].iter_mut().step_by(width).enumerate() {
                    let from = from[lane * x.row_stride + col * x.col_stride];
                    *to = from.cast::<T>() * factor;
                }
            }
        }
        if count < width {
            to.chunks_exact_mut(width).for_each(|to| to[count..].fill(T::ZERO));
        }
    }
}

/// Copies rows of `x` in panels of `width` columns: `[panels][stride][width]`, padded with zeros.
#[inline(always)]
pub(super) fn panels<T: SimdFloat>(
    x: Matrix<'_, T>,
    [rows, cols]: [usize; 2],
    [stride, width]: [usize; 2],
    to: &mut [T],
) {
    for (panel, to) in to.chunks_exact_mut(stride * width).take(cols.div_ceil(width)).enumerate() {
        let first = panel * width;
        let count = width.min(cols - first);
        for (row, to) in to.chunks_exact_mut(width).take(rows).enumerate() {
            let (to, rest) = to.split_at_mut(count);
            let from = &x.data[row * x.row_stride + first * x.col_stride..];
            if x.col_stride == 1 {
                to.copy_from_slice(&from[..count]);
            } else {
                for (lane, to) in to.iter_mut().enumerate() {
                    *to = from[lane * x.col_stride];
                }
            }
            rest.fill(T::ZERO);
        }
    }
}

/// Transposes panels back to rows of `cols`: the inverse of [`transposed`] without a factor.
#[inline(always)]
pub(super) fn transposed_back<T: SimdFloat, E: Element, S: Simd<T>>(
    simd: S,
    x: &[T],
    cols: usize,
    width: usize,
    to: &mut [E],
) {
    if cols == 0 {
        return;
    }
    for (to, x) in to.chunks_mut(cols * width).zip(x.chunks_exact(cols * width)) {
        let size = [cols, to.len() / cols];
        turn_rows(simd, (x, width), size, (to, cols), |x| x, T::cast);
    }
}
