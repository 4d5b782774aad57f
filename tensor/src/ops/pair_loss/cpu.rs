//! The formulas, over tiles, and the sum of a formula over all tiles.

use super::PairLoss;
use crate::cpu::Cpu;
use crate::cpu::chunk::for_each_chunk;
use crate::cpu::lines::fold;
use crate::cpu::math::SimdFloat;
use crate::cpu::simd::{Fused, Simd, SimdKernel};
use crate::cpu::tiles::{SOURCE_COUNT_MAX, Source, TILE_LEN};

/// Elements of a task of the sum.
const CHUNK_LEN: usize = 1 << 14;
/// Sums that are independent of each other, in the lanes of vectors.
const LANES: usize = 64;

/// Number of f64 partial sums of [`sum`].
pub(super) fn partial_count(len: usize) -> usize {
    len.div_ceil(CHUNK_LEN)
}

/// The part of a loss to compute.
#[derive(Clone, Copy)]
pub(super) enum Part<T> {
    Value,
    /// The derivative by x, times this number.
    Gradient(T),
}

struct Apply<'a, T> {
    part: Part<T>,
    loss: PairLoss,
    sources: &'a [&'a [T]],
    to: &'a mut [T],
}

impl<T: SimdFloat> SimdKernel<T> for Apply<'_, T> {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(self, _: S) {
        let Apply { part, loss, sources, to } = self;
        match part {
            Part::Value => value::<T, S>(loss, sources, to),
            Part::Gradient(seed) => gradient::<T, S>(loss, sources, seed, to),
        }
    }
}

/// `to = part(sources)`. The sources are x, t and perhaps a weight.
pub(super) fn apply<T: SimdFloat>(part: Part<T>, loss: PairLoss, sources: &[&[T]], to: &mut [T]) {
    T::dispatch(Apply { part, loss, sources, to });
}

#[inline(always)]
fn zip<T: Copy>(sources: &[&[T]], to: &mut [T], f: impl Fn(T, T) -> T) {
    let (x, t) = (&sources[0][..to.len()], &sources[1][..to.len()]);
    for i in 0..to.len() {
        to[i] = f(x[i], t[i]);
    }
}

/// Computes `f(x, t, weight)` for each element, with 1 for a missing weight.
#[inline(always)]
fn zip_weighted<T: SimdFloat>(sources: &[&[T]], to: &mut [T], f: impl Fn(T, T, T) -> T) {
    // One loop serves both cases: a formula with two calls is not inlined, and then not vectorised.
    let ones = [T::ONE; TILE_LEN];
    for (tile, to) in to.chunks_mut(TILE_LEN).enumerate() {
        let places = tile * TILE_LEN..tile * TILE_LEN + to.len();
        let (x, t) = (&sources[0][places.clone()], &sources[1][places.clone()]);
        let w = sources.get(2).map_or(&ones[..to.len()], |w| &w[places]);
        for i in 0..to.len() {
            to[i] = f(x[i], t[i], w[i]);
        }
    }
}

#[inline(always)]
fn magnitude<T: SimdFloat>(x: T) -> T {
    if x < T::ZERO { -x } else { x }
}

/// The sign of x: 0 for 0, NaN for NaN.
#[inline(always)]
fn sign<T: SimdFloat>(x: T) -> T {
    let y = if x > T::ZERO { T::ONE } else { x };
    if x < T::ZERO { -T::ONE } else { y }
}

#[inline(always)]
fn value<T: SimdFloat, F: Fused>(loss: PairLoss, sources: &[&[T]], to: &mut [T]) {
    let (zero, one, half) = (T::ZERO, T::ONE, T::from_f64(0.5));
    match loss {
        PairLoss::SquaredError => zip(sources, to, |x, t| (x - t) * (x - t)),
        PairLoss::AbsoluteError => zip(sources, to, |x, t| magnitude(x - t)),
        PairLoss::SmoothL1 { beta } => {
            let beta = T::from_f64(beta);
            zip(sources, to, |x, t| {
                let d = magnitude(x - t);
                if d < beta { half * d * d / beta } else { d - half * beta }
            });
        }
        PairLoss::Huber { delta } => {
            let delta = T::from_f64(delta);
            zip(sources, to, |x, t| {
                let d = magnitude(x - t);
                if d <= delta { half * d * d } else { delta * (d - half * delta) }
            });
        }
        PairLoss::BinaryCrossEntropy => {
            let least = T::from_f64(-100.0);
            zip(sources, to, |x, t| {
                let (log, log_rest) = (x.log_in::<F>(), (-x).log1p_in::<F>());
                (t - one) * log_rest.maximum(least) - t * log.maximum(least)
            });
        }
        PairLoss::BinaryCrossEntropyOfLogits => zip_weighted(sources, to, |x, t, w| {
            let softplus = (-magnitude(x)).exp_in::<F>().log1p_in::<F>() + (-x).maximum(zero);
            (one - t) * x + ((w - one) * t + one) * softplus
        }),
        PairLoss::KlDivergence => zip(sources, to, |x, t| {
            let entropy = if t == zero { zero } else { t * t.log_in::<F>() };
            entropy - t * x
        }),
        PairLoss::KlDivergenceOfLog => zip(sources, to, |x, t| t.exp_in::<F>() * (t - x)),
    }
}

#[inline(always)]
fn gradient<T: SimdFloat, F: Fused>(loss: PairLoss, sources: &[&[T]], seed: T, to: &mut [T]) {
    let one = T::ONE;
    match loss {
        PairLoss::SquaredError => {
            let seed = seed + seed;
            zip(sources, to, |x, t| seed * (x - t));
        }
        PairLoss::AbsoluteError => zip(sources, to, |x, t| seed * sign(x - t)),
        PairLoss::SmoothL1 { beta } => {
            let beta = T::from_f64(beta);
            zip(sources, to, |x, t| {
                let d = x - t;
                seed * if magnitude(d) < beta { d / beta } else { sign(d) }
            });
        }
        PairLoss::Huber { delta } => {
            let delta = T::from_f64(delta);
            zip(sources, to, |x, t| {
                let d = x - t;
                seed * if magnitude(d) <= delta { d } else { delta * sign(d) }
            });
        }
        PairLoss::BinaryCrossEntropy => {
            let least = T::from_f64(1e-12);
            zip(sources, to, |x, t| seed * (x - t) / ((one - x) * x).maximum(least));
        }
        PairLoss::BinaryCrossEntropyOfLogits => zip_weighted(sources, to, |x, t, w| {
            let rest = one / (one + x.exp_in::<F>());
            seed * ((one - t) - ((w - one) * t + one) * rest)
        }),
        PairLoss::KlDivergence => zip(sources, to, |_, t| -(seed * t)),
        PairLoss::KlDivergenceOfLog => zip(sources, to, |_, t| -(seed * t.exp_in::<F>())),
    }
}

/// `Σ loss`: in lanes for a tile, then in f64 over all tiles.
pub(super) fn sum<T: SimdFloat>(
    cpu: &Cpu,
    loss: PairLoss,
    sources: &[&dyn Source<T>],
    len: usize,
    partials: &mut [f64],
) -> T {
    let partials = &mut partials[..partial_count(len)];
    for_each_chunk(cpu.pool(), partials, 1, |index, partial| {
        let mut slots = [[T::ZERO; TILE_LEN]; SOURCE_COUNT_MAX];
        let mut result = [T::ZERO; TILE_LEN];
        let mut total = 0.0;
        let end = len.min((index + 1) * CHUNK_LEN);
        for from in (index * CHUNK_LEN..end).step_by(TILE_LEN) {
            let tile_len = TILE_LEN.min(end - from);
            let mut tiles: [&[T]; SOURCE_COUNT_MAX] = [&[]; SOURCE_COUNT_MAX];
            for ((tile, slot), source) in tiles.iter_mut().zip(&mut slots).zip(sources) {
                let slot = &mut slot[..tile_len];
                *tile = source.borrow(from, tile_len).unwrap_or_else(|| {
                    source.write(from, slot);
                    slot
                });
            }
            apply(Part::Value, loss, &tiles[..sources.len()], &mut result[..tile_len]);
            total += lane_sum(&result[..tile_len]);
        }
        partial[0] = total;
    });
    T::from_f64(partials.iter().sum())
}

fn lane_sum<T: SimdFloat>(values: &[T]) -> f64 {
    let mut lanes = [T::ZERO; LANES];
    for line in values.chunks(LANES) {
        lanes.iter_mut().zip(line).for_each(|(lane, &x)| *lane += x);
    }
    fold(&lanes, |a, b| a + b).to_f64()
}
