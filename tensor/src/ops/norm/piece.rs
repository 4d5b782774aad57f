//! The gradients of a piece of a row whose elements have weights of their own.

use std::ops::Range;

use crate::cpu::lines::{Stored, fold, is_exact};
use crate::cpu::math::Math;

/// Elements of a row that are looked at together: all operands of them stay in the L1 cache.
pub(super) const PIECE_LEN: usize = 512;

/// Room for the operands of a piece in the type to compute in.
pub(super) struct Wide<T> {
    dy: [T; PIECE_LEN],
    x: [T; PIECE_LEN],
    /// Ones, if there are no weights.
    weight: [T; PIECE_LEN],
}

/// The operands of a piece of a row.
pub(super) struct Piece<'a, T> {
    dy: &'a [T],
    x: &'a [T],
    weight: &'a [T],
}

impl<T: Math> Wide<T> {
    #[inline(always)]
    pub(super) fn new() -> Self {
        let zeros = [T::ZERO; PIECE_LEN];
        Wide { dy: zeros, x: zeros, weight: [T::ONE; PIECE_LEN] }
    }

    #[inline(always)]
    pub(super) fn operands<'a, E: Stored<Lane = T>>(
        &'a mut self,
        dy: &'a [E],
        x: &'a [E],
        weight: Option<&'a [E]>,
        places: Range<usize>,
    ) -> Piece<'a, T> {
        let Wide { dy: wide_dy, x: wide_x, weight: wide_weight } = self;
        Piece {
            dy: lanes(&dy[places.clone()], wide_dy),
            x: lanes(&x[places.clone()], wide_x),
            weight: match weight {
                Some(weight) => lanes(&weight[places], wide_weight),
                None => &wide_weight[..places.len()],
            },
        }
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

// Loops over plain slices, and no closures: those would be compiled for any processor.
impl<T: Math> Piece<'_, T> {
    /// `Σ dy·w` and `Σ dy·w·x̂` with `x̂ = (x - mean) · rstd`.
    #[inline(always)]
    pub(super) fn sums(&self, scale: [T; 2]) -> [f64; 2] {
        const W: usize = 32;
        let mut lanes = [[T::ZERO; W]; 2];
        let whole = self.x.len() - self.x.len() % W;
        for at in (0..whole).step_by(W) {
            let (dy, x) = (&self.dy[at..at + W], &self.x[at..at + W]);
            let weight = &self.weight[at..at + W];
            for lane in 0..W {
                let terms = terms([dy[lane], x[lane], weight[lane]], scale);
                lanes[0][lane] += terms[0];
                lanes[1][lane] += terms[1];
            }
        }
        for at in whole..self.x.len() {
            let terms = terms([self.dy[at], self.x[at], self.weight[at]], scale);
            lanes[0][at - whole] += terms[0];
            lanes[1][at - whole] += terms[1];
        }
        lanes.map(|lanes| fold(&lanes, |a, b| a + b).to_f64())
    }

    /// Overwrites dx and adds to the gradients of weight and bias.
    #[inline(always)]
    pub(super) fn gradients(
        &self,
        [mean, rstd, sum, product]: [T; 4],
        dx: &mut [T],
        parameters: &mut Option<[&mut [T]; 2]>,
    ) {
        let operands = self.dy.iter().zip(self.x).zip(self.weight);
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
