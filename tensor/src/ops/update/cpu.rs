//! The loops of updates and norms. A tile is widened, computed and narrowed while it is in the L1
//! cache.

use std::any::TypeId;

use half::bf16;

use super::quantized::{BLOCK_BYTES, BLOCK_LEN, CodeMap};
use super::{NormFormula, Rounding, UpdateFormula};
use crate::cpu::chunk::{Chunked, Cut, Joined, for_each_chunk, for_each_joined_part};
use crate::cpu::math::SimdFloat;
use crate::cpu::pool::Pool;
use crate::cpu::simd::{Simd, SimdKernel};
use crate::dtype::Element;
use crate::random::RandomKey;

/// Elements of a task: enough to outweigh the cost of starting it, and all of a small layer.
const CHUNK_LEN: usize = 8 * 1024;
/// Elements that are widened at a time: a block of quantised states.
const TILE_LEN: usize = BLOCK_LEN;

/// Partial sums of a norm, which are on the stack.
const PART_COUNT: usize = 64;
/// Sums that the elements of a part alternate between.
const LANE_COUNT: usize = 8;

/// The inputs of a contiguous run.
pub(super) struct Run<'a, F, G, T, const SCALARS: usize> {
    pub(super) formula: F,
    pub(super) rounding: Rounding,
    pub(super) scalars: [T; SCALARS],
    /// The index of the run's first element in the whole parameter.
    pub(super) first: u64,
    pub(super) gradient: &'a [G],
}

/// A run's parameter and states. States of 8 bits are blocks; the run begins with a block.
pub(super) type Written<'a, P, X, const STATES: usize> = (&'a mut [P], [&'a mut [X]; STATES]);

/// Updates all runs as one job, so that threads share many short runs as well as a long one.
pub(super) fn update<F, P, G, T, const STATES: usize, const SCALARS: usize>(
    pool: &Pool,
    runs: &[Run<'_, F, G, T, SCALARS>],
    written: Vec<Written<'_, P, T, STATES>>,
) where
    F: UpdateFormula<STATES, SCALARS>,
    P: Element,
    G: Element,
    T: SimdFloat,
{
    let types = [TypeId::of::<P>(), TypeId::of::<G>()];
    let is_direct = types == [TypeId::of::<T>(); 2];
    for_each_joined_part(pool, cut(written, CHUNK_LEN), |run, chunk, (parameter, mut states)| {
        let (run, first) = (&runs[run], chunk * CHUNK_LEN);
        if is_direct && run.rounding == Rounding::Nearest {
            return run.direct(first, bytemuck::cast_slice_mut(parameter), states);
        }
        for (tile, parameter) in parameter.chunks_mut(TILE_LEN).enumerate() {
            let at = tile * TILE_LEN;
            let states = states.each_mut().map(|state| &mut state[at..][..parameter.len()]);
            run.tile(first + at, parameter, states);
        }
    });
}

/// [`update`] with states of 8 bits.
pub(super) fn update_quantized<F, P, G, T, const STATES: usize, const SCALARS: usize>(
    pool: &Pool,
    runs: &[Run<'_, F, G, T, SCALARS>],
    written: Vec<Written<'_, P, u8, STATES>>,
) where
    F: UpdateFormula<STATES, SCALARS>,
    P: Element,
    G: Element,
    T: SimdFloat,
{
    let joined = cut(written, CHUNK_LEN / BLOCK_LEN * BLOCK_BYTES);
    for_each_joined_part(pool, joined, |run, chunk, (parameter, states)| {
        let run = &runs[run];
        let maps = run.formula.state_ranges().map(CodeMap::of);
        for (tile, parameter) in parameter.chunks_mut(TILE_LEN).enumerate() {
            let len = parameter.len();
            let mut wide = [[0.0_f32; TILE_LEN]; STATES];
            let mut tiles = [[T::ZERO; TILE_LEN]; STATES];
            for (k, map) in maps.iter().enumerate() {
                let block = &states[k][tile * BLOCK_BYTES..][..BLOCK_BYTES];
                map.load(block, &mut wide[k][..len]);
                f32::cast_slice(&wide[k][..len], &mut tiles[k][..len]);
            }
            let at = chunk * CHUNK_LEN + tile * TILE_LEN;
            run.tile(at, parameter, tiles.each_mut().map(|tile| &mut tile[..len]));
            for (k, map) in maps.iter().enumerate() {
                T::cast_slice(&tiles[k][..len], &mut wide[k][..len]);
                let block = &mut states[k][tile * BLOCK_BYTES..][..BLOCK_BYTES];
                map.store(&wide[k][..len], block);
            }
        }
    });
}

fn cut<'a, P, X, const STATES: usize>(
    written: Vec<Written<'a, P, X, STATES>>,
    state_chunk_len: usize,
) -> Joined<Cut<'a, P, X, STATES>>
where
    P: Send,
    X: Send,
{
    let cut = |(parameter, states): Written<'a, P, X, STATES>| {
        let states = states.map(|state| Chunked::new(state, state_chunk_len));
        Cut::new(Chunked::new(parameter, CHUNK_LEN), states)
    };
    Joined::new(written.into_iter().map(cut).collect())
}

impl<F, G: Element, T: SimdFloat, const SCALARS: usize> Run<'_, F, G, T, SCALARS> {
    /// Updates the elements of the run from `at` on without conversions, the case of most models.
    fn direct<const STATES: usize>(
        &self,
        at: usize,
        parameter: &mut [T],
        states: [&mut [T]; STATES],
    ) where
        F: UpdateFormula<STATES, SCALARS>,
    {
        let (formula, scalars) = (self.formula, self.scalars);
        let gradient = bytemuck::cast_slice(&self.gradient[at..][..parameter.len()]);
        T::dispatch(Tile { formula, scalars, parameter, gradient, states });
    }

    /// Updates the elements of the run from `at` on.
    fn tile<P: Element, const STATES: usize>(
        &self,
        at: usize,
        parameter: &mut [P],
        states: [&mut [T]; STATES],
    ) where
        F: UpdateFormula<STATES, SCALARS>,
    {
        let len = parameter.len();
        let (mut wide, mut gradient) = ([T::ZERO; TILE_LEN], [T::ZERO; TILE_LEN]);
        P::cast_slice(parameter, &mut wide[..len]);
        G::cast_slice(&self.gradient[at..][..len], &mut gradient[..len]);
        let (formula, scalars) = (self.formula, self.scalars);
        T::dispatch(Tile {
            formula,
            scalars,
            parameter: &mut wide[..len],
            gradient: &gradient[..len],
            states,
        });
        match self.rounding {
            Rounding::Nearest => T::cast_slice(&wide[..len], parameter),
            Rounding::Stochastic(key) => {
                let first = self.first + at as u64;
                for (index, (to, from)) in parameter.iter_mut().zip(&wide).enumerate() {
                    *to = P::from_f32(round_stochastic(
                        from.to_f64() as f32,
                        key,
                        first + index as u64,
                    ));
                }
            }
        }
    }
}

/// A contiguous run for sums of squares of the formula's values.
pub(super) struct NormRun<'a, F, P, G> {
    pub(super) formula: F,
    pub(super) parameter: &'a [P],
    pub(super) gradient: &'a [G],
}

impl<F: Copy + Sync, P: Element, G: Element> NormRun<'_, F, P, G> {
    /// `Σ value²` of each of the formula's values.
    pub(super) fn squares<T: SimdFloat, const STATES: usize, const NORMS: usize>(
        &self,
        pool: &Pool,
        states: [&[T]; STATES],
    ) -> [f64; NORMS]
    where
        F: NormFormula<STATES, NORMS>,
    {
        self.sum_tiles(pool, |at, len, sums| {
            self.tile(at, len, states.map(|state| &state[at..][..len]), sums);
        })
    }

    /// [`NormRun::squares`] with states of 8 bits.
    pub(super) fn squares_quantized<T: SimdFloat, const STATES: usize, const NORMS: usize>(
        &self,
        pool: &Pool,
        states: [&[u8]; STATES],
    ) -> [f64; NORMS]
    where
        F: NormFormula<STATES, NORMS>,
    {
        let maps = self.formula.state_ranges().map(CodeMap::of);
        self.sum_tiles(pool, |at, len, sums| {
            let mut tiles = [[T::ZERO; TILE_LEN]; STATES];
            for (k, map) in maps.iter().enumerate() {
                let mut values = [0.0_f32; TILE_LEN];
                let block = &states[k][at / BLOCK_LEN * BLOCK_BYTES..][..BLOCK_BYTES];
                map.load(block, &mut values[..len]);
                f32::cast_slice(&values[..len], &mut tiles[k][..len]);
            }
            self.tile::<T, STATES, NORMS>(at, len, tiles.each_ref().map(|tile| &tile[..len]), sums);
        })
    }

    /// The sums over all tiles in fixed parts; `tile(at, len, sums)` adds a tile to `sums`.
    fn sum_tiles<const NORMS: usize>(
        &self,
        pool: &Pool,
        tile: impl Fn(usize, usize, &mut [f64; NORMS]) + Sync,
    ) -> [f64; NORMS] {
        let len = self.parameter.len();
        let part_len = len.div_ceil(PART_COUNT).next_multiple_of(TILE_LEN).max(CHUNK_LEN);
        let mut parts = [[0.0; NORMS]; PART_COUNT];
        let parts_used = &mut parts[..len.div_ceil(part_len)];
        for_each_chunk(pool, parts_used, 1, |part, sums| {
            let end = len.min((part + 1) * part_len);
            for at in (part * part_len..end).step_by(TILE_LEN) {
                tile(at, TILE_LEN.min(end - at), &mut sums[0]);
            }
        });
        std::array::from_fn(|k| parts.iter().map(|sums| sums[k]).sum())
    }

    fn tile<T: SimdFloat, const STATES: usize, const NORMS: usize>(
        &self,
        at: usize,
        len: usize,
        states: [&[T]; STATES],
        sums: &mut [f64; NORMS],
    ) where
        F: NormFormula<STATES, NORMS>,
    {
        let (mut parameter, mut gradient) = ([T::ZERO; TILE_LEN], [T::ZERO; TILE_LEN]);
        P::cast_slice(&self.parameter[at..][..len], &mut parameter[..len]);
        G::cast_slice(&self.gradient[at..][..len], &mut gradient[..len]);
        let (formula, parameter, gradient) = (self.formula, &parameter[..len], &gradient[..len]);
        T::dispatch(NormTile { formula, parameter, gradient, states, sums });
    }
}

struct NormTile<'a, F, T, const STATES: usize, const NORMS: usize> {
    formula: F,
    parameter: &'a [T],
    gradient: &'a [T],
    states: [&'a [T]; STATES],
    sums: &'a mut [f64; NORMS],
}

impl<F, T: SimdFloat, const STATES: usize, const NORMS: usize> SimdKernel<T>
    for NormTile<'_, F, T, STATES, NORMS>
where
    F: NormFormula<STATES, NORMS>,
{
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(self, _: S) {
        // Sums are in lanes, so that additions do not wait for each other.
        let mut lanes = [[0.0; LANE_COUNT]; NORMS];
        for start in (0..self.parameter.len()).step_by(LANE_COUNT) {
            for i in start..self.parameter.len().min(start + LANE_COUNT) {
                let states = self.states.map(|state| state[i]);
                let values = self.formula.element(self.parameter[i], self.gradient[i], states);
                for (lanes, value) in lanes.iter_mut().zip(values) {
                    let value = value.to_f64();
                    lanes[i - start] += value * value;
                }
            }
        }
        for (sum, lanes) in self.sums.iter_mut().zip(lanes) {
            *sum += lanes.iter().sum::<f64>();
        }
    }
}

/// Rounds `x` to bf16: up with the probability that makes the mean exact.
fn round_stochastic(x: f32, key: RandomKey, place: u64) -> f32 {
    if !x.is_finite() {
        return x;
    }
    // Eight places share a block of four words. Each has 16 random bits, the number of bits that
    // are cut off.
    let word = key.block(place / 8)[(place / 2 % 4) as usize];
    let bits = if place.is_multiple_of(2) { word & 0xFFFF } else { word >> 16 };
    // Rounding up from the largest value gives infinity, as rounding to nearest does.
    f32::from_bits((x.to_bits() + bits) & 0xFFFF_0000)
}

struct Tile<'a, F, T, const STATES: usize, const SCALARS: usize> {
    formula: F,
    scalars: [T; SCALARS],
    parameter: &'a mut [T],
    gradient: &'a [T],
    states: [&'a mut [T]; STATES],
}

impl<F, T: SimdFloat, const STATES: usize, const SCALARS: usize> SimdKernel<T>
    for Tile<'_, F, T, STATES, SCALARS>
where
    F: UpdateFormula<STATES, SCALARS>,
{
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(self, _: S) {
        let len = self.parameter.len();
        let gradient = &self.gradient[..len];
        let states = self.states.map(|state| &mut state[..len]);
        for i in 0..len {
            let mut old = [T::ZERO; STATES];
            for k in 0..STATES {
                old[k] = states[k][i];
            }
            let (parameter, new) =
                self.formula.element(self.scalars, self.parameter[i], gradient[i], old);
            self.parameter[i] = parameter;
            for k in 0..STATES {
                states[k][i] = new[k];
            }
        }
    }
}

const _: () = assert!(CHUNK_LEN.is_multiple_of(TILE_LEN));
const _: () = assert!(bf16::MANTISSA_DIGITS == 8, "16 bits are cut off an f32");
