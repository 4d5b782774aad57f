//! Passes over a piece of a row, where each element has a weight of its own.

use std::ops::Range;

use crate::cpu::math::SimdFloat;
use crate::cpu::simd::Simd;
use crate::dtype::{Element, is_same_type};

/// Elements of a piece, so that all of its operands stay in the L1 cache.
pub(super) const PIECE_LEN: usize = 512;

/// Lanes in which a piece is summed. All processors use this number, so that they sum in the same
/// order.
const SUM_LANES: usize = 32;
/// Largest number of vectors for all lanes: the narrowest vectors have four lanes.
const SUM_VECTORS_MAX: usize = SUM_LANES / 4;

/// The pieces of a row.
#[inline(always)]
pub(super) fn pieces(len: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len).step_by(PIECE_LEN).map(move |at| at..len.min(at + PIECE_LEN))
}

/// Memory for the operands of a piece in the type of the computation.
pub(super) struct Wide<T> {
    /// dy, or the bias, or zeros.
    other: [T; PIECE_LEN],
    x: [T; PIECE_LEN],
    /// The weights, or ones.
    weight: [T; PIECE_LEN],
}

/// The operands of a piece of a row, or of several rows with a common stride.
pub(super) struct Piece<'a, T> {
    /// dy, or the bias, with the length of the piece.
    other: &'a [T],
    x: &'a [T],
    /// The weight, with the length of the piece.
    weight: &'a [T],
}

impl<T: SimdFloat> Wide<T> {
    #[inline(always)]
    pub(super) fn new() -> Self {
        let zeros = [T::ZERO; PIECE_LEN];
        Wide { other: zeros, x: zeros, weight: [T::ONE; PIECE_LEN] }
    }

    #[inline(always)]
    pub(super) fn x<'a, E: Element<Compute = T>>(&'a mut self, x: &'a [E]) -> &'a [T] {
        lanes(x, &mut self.x)
    }

    #[inline(always)]
    pub(super) fn operands<'a, E: Element<Compute = T>>(
        &'a mut self,
        len: usize,
        x: &'a [E],
        [weight, other]: [Option<&'a [E]>; 2],
    ) -> Piece<'a, T> {
        let Wide { other: wide_other, x: wide_x, weight: wide_weight } = self;
        let weight = match weight {
            Some(weight) => lanes(weight, wide_weight),
            None => &wide_weight[..len],
        };
        let other = match other {
            Some(other) => lanes(other, wide_other),
            None => &wide_other[..len],
        };
        Piece { other, x: lanes(x, wide_x), weight }
    }
}

/// Elements in the type of the computation: in place, if they have this type.
#[inline(always)]
fn lanes<'a, E: Element<Compute: SimdFloat>>(
    from: &'a [E],
    wide: &'a mut [E::Compute; PIECE_LEN],
) -> &'a [E::Compute] {
    if is_same_type::<E, E::Compute>() {
        return bytemuck::cast_slice(from);
    }
    let wide = &mut wide[..from.len()];
    E::cast_slice(from, wide);
    wide
}

/// Lanes that each sum `N` terms of the elements of a piece.
struct PieceSums<V, const N: usize>([[V; SUM_VECTORS_MAX]; N]);

impl<V: Copy, const N: usize> PieceSums<V, N> {
    #[inline(always)]
    fn new<T: SimdFloat, S: Simd<T, Vector = V>>(simd: S) -> Self {
        PieceSums([[simd.splat(T::ZERO); SUM_VECTORS_MAX]; N])
    }

    /// The sums over all lanes. The second half is added to the first half until one lane is left.
    /// Vectors are added, because adding single lanes from memory took hundreds of instructions.
    #[inline(always)]
    fn totals<T: SimdFloat, S: Simd<T, Vector = V>>(mut self, simd: S) -> [f64; N] {
        let mut totals = [0.0; N];
        for (total, sums) in totals.iter_mut().zip(&mut self.0) {
            let mut count = SUM_LANES / S::LANE_COUNT;
            while count > 1 {
                count /= 2;
                for index in 0..count {
                    sums[index] = simd.add(sums[index], sums[index + count]);
                }
            }
            *total = simd.sum(sums[0]).to_f64();
        }
        totals
    }
}

/// The elements from `at` on, padded with `pad` to a whole line.
#[inline(always)]
fn last_line<T: Copy>(x: &[T], at: usize, pad: T) -> [T; SUM_LANES] {
    let mut line = [pad; SUM_LANES];
    line[..x.len() - at].copy_from_slice(&x[at..]);
    line
}

/// `Σ (x - shift)` and `Σ (x - shift)²` of a piece.
#[inline(always)]
pub(super) fn moments<T: SimdFloat, S: Simd<T>>(simd: S, x: &[T], shift: T) -> [f64; 2] {
    let mut sums = PieceSums::<S::Vector, 2>::new(simd);
    let whole = x.len() - x.len() % SUM_LANES;
    for at in (0..whole).step_by(SUM_LANES) {
        add_moments(simd, &x[at..at + SUM_LANES], shift, &mut sums);
    }
    if whole < x.len() {
        add_moments(simd, &last_line(x, whole, shift), shift, &mut sums);
    }
    sums.totals(simd)
}

#[inline(always)]
fn add_moments<T: SimdFloat, S: Simd<T>>(
    simd: S,
    line: &[T],
    shift: T,
    PieceSums([rest, squares]): &mut PieceSums<S::Vector, 2>,
) {
    let (one, less) = (simd.splat(T::ONE), simd.splat(-shift));
    for index in 0..SUM_LANES / S::LANE_COUNT {
        let x = simd.load(&line[index * S::LANE_COUNT..]);
        let distance = simd.mul_add(x, one, less);
        rest[index] = simd.add(distance, rest[index]);
        squares[index] = simd.mul_add(distance, distance, squares[index]);
    }
}

impl<T: SimdFloat> Piece<'_, T> {
    /// `Σ dy·w` and `Σ dy·w·(x - mean)`.
    #[inline(always)]
    pub(super) fn products<S: Simd<T>>(&self, simd: S, mean: T) -> [f64; 2] {
        let Piece { other: dy, x, weight } = self;
        let mut sums = PieceSums::<S::Vector, 2>::new(simd);
        let whole = x.len() - x.len() % SUM_LANES;
        for at in (0..whole).step_by(SUM_LANES) {
            let places = at..at + SUM_LANES;
            let line = [&dy[places.clone()], &x[places.clone()], &weight[places]];
            add_products(simd, line, mean, &mut sums);
        }
        if whole < x.len() {
            let zero = T::ZERO;
            let [dy, x] = [last_line(dy, whole, zero), last_line(x, whole, mean)];
            let line: [&[T]; 3] = [&dy, &x, &last_line(weight, whole, zero)];
            add_products(simd, line, mean, &mut sums);
        }
        sums.totals(simd)
    }

    /// `y = (x - mean) · rstd · w + b` of `ROWS` rows that are `stride` apart, each with a scale
    /// `[mean, rstd]`. w and b are read once for all rows.
    #[inline(always)]
    pub(super) fn normalized<S: Simd<T>, const ROWS: usize>(
        &self,
        simd: S,
        stride: usize,
        scales: &[[T; 2]; ROWS],
        y: &mut [T],
    ) {
        let Piece { other: bias, x, weight } = self;
        let (one, zero) = (simd.splat(T::ONE), simd.splat(T::ZERO));
        let whole = weight.len() - weight.len() % S::LANE_COUNT;
        for at in (0..whole).step_by(S::LANE_COUNT) {
            let (w, b) = (simd.load(&weight[at..]), simd.load(&bias[at..]));
            for (row, &[mean, rstd]) in scales.iter().enumerate() {
                let at = row * stride + at;
                let distance = simd.mul_add(simd.load(&x[at..]), one, simd.splat(-mean));
                let hat = simd.mul_add(distance, simd.splat(rstd), zero);
                simd.store(simd.mul_add(hat, w, b), &mut y[at..]);
            }
        }
        for at in whole..weight.len() {
            for (row, &[mean, rstd]) in scales.iter().enumerate() {
                let x = x[row * stride + at];
                y[row * stride + at] = (x - mean) * rstd * weight[at] + bias[at];
            }
        }
    }

    /// `dx = rstd · (dy·w - sum - x̂ · product)` of `ROWS` rows that are `stride` apart, each with
    /// a scale `[mean, rstd, sum, product]`. Adds dy·x̂ and dy to the gradients of weight and bias,
    /// which are read and written once for all rows.
    #[inline(always)]
    pub(super) fn gradients<S: Simd<T>, const ROWS: usize>(
        &self,
        simd: S,
        stride: usize,
        scales: &[[T; 4]; ROWS],
        dx: &mut [T],
        parameters: &mut Option<[&mut [T]; 2]>,
    ) {
        let Piece { other: dy, x, weight } = self;
        let (one, zero) = (simd.splat(T::ONE), simd.splat(T::ZERO));
        let whole = weight.len() - weight.len() % S::LANE_COUNT;
        for at in (0..whole).step_by(S::LANE_COUNT) {
            let w = simd.load(&weight[at..]);
            let (mut dw, mut db) = match parameters {
                Some([dw, db]) => (simd.load(&dw[at..]), simd.load(&db[at..])),
                None => (zero, zero),
            };
            for (row, &[mean, rstd, sum, product]) in scales.iter().enumerate() {
                let at = row * stride + at;
                let (dy, rstd) = (simd.load(&dy[at..]), simd.splat(rstd));
                let distance = simd.mul_add(simd.load(&x[at..]), one, simd.splat(-mean));
                let hat = simd.mul_add(distance, rstd, zero);
                let rest = simd.mul_add(dy, w, simd.splat(-sum));
                let rest = simd.mul_add(hat, simd.splat(-product), rest);
                simd.store(simd.mul_add(rest, rstd, zero), &mut dx[at..]);
                dw = simd.mul_add(dy, hat, dw);
                db = simd.add(dy, db);
            }
            if let Some([to_dw, to_db]) = parameters {
                simd.store(dw, &mut to_dw[at..]);
                simd.store(db, &mut to_db[at..]);
            }
        }
        for at in whole..weight.len() {
            for (row, &[mean, rstd, sum, product]) in scales.iter().enumerate() {
                let (dy, x) = (dy[row * stride + at], x[row * stride + at]);
                let hat = (x - mean) * rstd;
                dx[row * stride + at] = rstd * (dy * weight[at] - sum - hat * product);
                if let Some([dw, db]) = parameters {
                    dw[at] += dy * hat;
                    db[at] += dy;
                }
            }
        }
    }
}

#[inline(always)]
fn add_products<T: SimdFloat, S: Simd<T>>(
    simd: S,
    [dy, x, weight]: [&[T]; 3],
    mean: T,
    PieceSums([sum, product]): &mut PieceSums<S::Vector, 2>,
) {
    let (one, zero, less) = (simd.splat(T::ONE), simd.splat(T::ZERO), simd.splat(-mean));
    for index in 0..SUM_LANES / S::LANE_COUNT {
        let at = index * S::LANE_COUNT;
        let scaled = simd.mul_add(simd.load(&dy[at..]), simd.load(&weight[at..]), zero);
        let distance = simd.mul_add(simd.load(&x[at..]), one, less);
        sum[index] = simd.add(scaled, sum[index]);
        product[index] = simd.mul_add(scaled, distance, product[index]);
    }
}
