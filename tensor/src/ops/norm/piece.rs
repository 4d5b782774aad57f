//! The passes over a piece of a row whose elements have weights of their own.

use std::ops::Range;

use crate::cpu::lines::{Stored, fold, is_exact};
use crate::cpu::math::Math;
use crate::cpu::simd::Simd;

/// Elements of a row that are looked at together: all operands of them stay in the L1 cache.
pub(super) const PIECE_LEN: usize = 512;

/// Lanes in which a piece is summed on every processor, so that the order does not depend on it.
const SUM_LANES: usize = 32;
/// Vectors with that many lanes: the narrowest have four.
const SUM_VECTORS_MAX: usize = SUM_LANES / 4;

/// The pieces of a row.
#[inline(always)]
pub(super) fn pieces(len: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len).step_by(PIECE_LEN).map(move |at| at..len.min(at + PIECE_LEN))
}

/// Room for the operands of a piece in the type to compute in.
pub(super) struct Wide<T> {
    /// dy, or the bias; zeros, if there is none.
    other: [T; PIECE_LEN],
    x: [T; PIECE_LEN],
    /// Ones, if there are no weights.
    weight: [T; PIECE_LEN],
}

/// The operands of a piece of a row.
pub(super) struct Piece<'a, T> {
    /// dy, or the bias.
    other: &'a [T],
    x: &'a [T],
    weight: &'a [T],
}

impl<T: Math> Wide<T> {
    #[inline(always)]
    pub(super) fn new() -> Self {
        let zeros = [T::ZERO; PIECE_LEN];
        Wide { other: zeros, x: zeros, weight: [T::ONE; PIECE_LEN] }
    }

    #[inline(always)]
    pub(super) fn x<'a, E: Stored<Lane = T>>(&'a mut self, x: &'a [E]) -> &'a [T] {
        lanes(x, &mut self.x)
    }

    #[inline(always)]
    pub(super) fn operands<'a, E: Stored<Lane = T>>(
        &'a mut self,
        x: &'a [E],
        [weight, other]: [Option<&'a [E]>; 2],
        places: Range<usize>,
    ) -> Piece<'a, T> {
        let Wide { other: wide_other, x: wide_x, weight: wide_weight } = self;
        let weight = match weight {
            Some(weight) => lanes(&weight[places.clone()], wide_weight),
            None => &wide_weight[..places.len()],
        };
        let other = match other {
            Some(other) => lanes(&other[places.clone()], wide_other),
            None => &wide_other[..places.len()],
        };
        Piece { other, x: lanes(&x[places], wide_x), weight }
    }
}

/// Elements in the type to compute in: where they lie, if they are of that type.
#[inline(always)]
fn lanes<'a, E: Stored>(from: &'a [E], wide: &'a mut [E::Lane; PIECE_LEN]) -> &'a [E::Lane] {
    if is_exact::<E, E::Lane>() {
        return bytemuck::cast_slice(from);
    }
    let wide = &mut wide[..from.len()];
    E::cast_slice(from, wide);
    wide
}

/// `Σ (x - shift)` and `Σ (x - shift)²` of a piece.
#[inline(always)]
pub(super) fn moments<T: Math, S: Simd<T>>(simd: S, x: &[T], shift: T) -> [f64; 2] {
    let (one, zero) = (simd.splat(T::ONE), simd.splat(T::ZERO));
    let less = simd.splat(-shift);
    let vectors = SUM_LANES / S::LANE_COUNT;
    let (mut rest, mut squares) = ([zero; SUM_VECTORS_MAX], [zero; SUM_VECTORS_MAX]);
    let whole = x.len() - x.len() % SUM_LANES;
    for at in (0..whole).step_by(SUM_LANES) {
        for index in 0..vectors {
            let x = simd.load(&x[at + index * S::LANE_COUNT..]);
            let distance = simd.mul_add(x, one, less);
            rest[index] = simd.mul_add(distance, one, rest[index]);
            squares[index] = simd.mul_add(distance, distance, squares[index]);
        }
    }
    let mut lanes = [[T::ZERO; SUM_LANES]; 2];
    for index in 0..vectors {
        simd.store(rest[index], &mut lanes[0][index * S::LANE_COUNT..]);
        simd.store(squares[index], &mut lanes[1][index * S::LANE_COUNT..]);
    }
    for at in whole..x.len() {
        let distance = x[at] - shift;
        lanes[0][at - whole] += distance;
        lanes[1][at - whole] += distance * distance;
    }
    [fold(&lanes[0], |a, b| a + b).to_f64(), fold(&lanes[1], |a, b| a + b).to_f64()]
}

impl<T: Math> Piece<'_, T> {
    /// `Σ dy·w` and `Σ dy·w·x̂` with `x̂ = (x - mean) · rstd`.
    #[inline(always)]
    pub(super) fn products(&self, scale: [T; 2]) -> [f64; 2] {
        let mut lanes = [[T::ZERO; SUM_LANES]; 2];
        let whole = self.x.len() - self.x.len() % SUM_LANES;
        for at in (0..whole).step_by(SUM_LANES) {
            let (dy, x) = (&self.other[at..at + SUM_LANES], &self.x[at..at + SUM_LANES]);
            let weight = &self.weight[at..at + SUM_LANES];
            for lane in 0..SUM_LANES {
                let terms = terms([dy[lane], x[lane], weight[lane]], scale);
                lanes[0][lane] += terms[0];
                lanes[1][lane] += terms[1];
            }
        }
        for at in whole..self.x.len() {
            let terms = terms([self.other[at], self.x[at], self.weight[at]], scale);
            lanes[0][at - whole] += terms[0];
            lanes[1][at - whole] += terms[1];
        }
        [fold(&lanes[0], |a, b| a + b).to_f64(), fold(&lanes[1], |a, b| a + b).to_f64()]
    }

    /// `y = (x - mean) · rstd · w + b`.
    #[inline(always)]
    pub(super) fn normalized<S: Simd<T>>(&self, simd: S, [mean, rstd]: [T; 2], y: &mut [T]) {
        let Piece { other: b, x, weight: w } = self;
        let (one, zero) = (simd.splat(T::ONE), simd.splat(T::ZERO));
        let (less, scale) = (simd.splat(-mean), simd.splat(rstd));
        let whole = y.len() - y.len() % S::LANE_COUNT;
        for at in (0..whole).step_by(S::LANE_COUNT) {
            let distance = simd.mul_add(simd.load(&x[at..]), one, less);
            let hat = simd.mul_add(distance, scale, zero);
            simd.store(simd.mul_add(hat, simd.load(&w[at..]), simd.load(&b[at..])), &mut y[at..]);
        }
        for at in whole..y.len() {
            y[at] = (x[at] - mean) * rstd * w[at] + b[at];
        }
    }

    /// `dx = rstd · (dy·w - sum - x̂ · product)`, and adds dy·x̂ and dy to the gradients of weight
    /// and bias.
    // The compiler makes vectors of these loops; written with vectors they took 1.1 times as long.
    #[inline(always)]
    pub(super) fn gradients(
        &self,
        [mean, rstd, sum, product]: [T; 4],
        dx: &mut [T],
        parameters: &mut Option<[&mut [T]; 2]>,
    ) {
        let operands = self.other.iter().zip(self.x).zip(self.weight);
        let Some([dw, db]) = parameters else {
            for (dx, ((&dy, &x), &w)) in dx.iter_mut().zip(operands) {
                *dx = rstd * (dy * w - sum - (x - mean) * rstd * product);
            }
            return;
        };
        let parameters = dw.iter_mut().zip(db.iter_mut());
        for ((dx, ((&dy, &x), &w)), (dw, db)) in dx.iter_mut().zip(operands).zip(parameters) {
            let hat = (x - mean) * rstd;
            *dx = rstd * (dy * w - sum - hat * product);
            *dw += dy * hat;
            *db += dy;
        }
    }
}

#[inline(always)]
fn terms<T: Math>([dy, x, w]: [T; 3], [mean, rstd]: [T; 2]) -> [T; 2] {
    let scaled = dy * w;
    [scaled, scaled * ((x - mean) * rstd)]
}
