//! The loop of an update: a tile is widened, computed and narrowed while it is in the L1 cache.

use half::bf16;

use super::quantized::{BLOCK_BYTES, BLOCK_LEN, CodeMap};
use super::{Rounding, UpdateFormula};
use crate::cpu::chunk::{Chunked, for_each_chunk_with};
use crate::cpu::pool::Pool;
use crate::cpu::simd::{Simd, SimdFloat, SimdKernel};
use crate::{Element, RandomKey};

/// Elements of a task: enough to outweigh handing it out, and all of a small layer.
const CHUNK_LEN: usize = 8 * 1024;
/// Elements that are widened at a time: a block of quantised states.
const TILE_LEN: usize = BLOCK_LEN;

/// The types that updates compute in.
pub(super) trait Wide: SimdFloat + 'static {}
impl Wide for f32 {}
impl Wide for f64 {}

/// What is the same for all elements of a contiguous run.
pub(super) struct Run<'a, F, G, T, const SCALARS: usize> {
    pub(super) formula: F,
    pub(super) rounding: Rounding,
    pub(super) scalars: [T; SCALARS],
    /// The run's first element's place in the whole.
    pub(super) first: u64,
    pub(super) gradient: &'a [G],
}

impl<F, G: Element, T: Wide, const SCALARS: usize> Run<'_, F, G, T, SCALARS> {
    pub(super) fn update<P: Element, const STATES: usize>(
        &self,
        pool: &Pool,
        parameter: &mut [P],
        states: [&mut [T]; STATES],
    ) where
        F: UpdateFormula<STATES, SCALARS>,
    {
        let states = states.map(|state| Chunked::new(state, CHUNK_LEN));
        let parameter = Chunked::new(parameter, CHUNK_LEN);
        for_each_chunk_with(pool, parameter, states, |chunk, parameter, mut states| {
            for (tile, parameter) in parameter.chunks_mut(TILE_LEN).enumerate() {
                let at = tile * TILE_LEN;
                let states = states.each_mut().map(|state| &mut state[at..][..parameter.len()]);
                self.tile(chunk * CHUNK_LEN + at, parameter, states);
            }
        });
    }

    /// [`Run::update`] with states in blocks of 8 bits, which hold the run from their start.
    pub(super) fn update_quantized<P: Element, const STATES: usize>(
        &self,
        pool: &Pool,
        parameter: &mut [P],
        states: [&mut [u8]; STATES],
    ) where
        F: UpdateFormula<STATES, SCALARS>,
    {
        let maps = self.formula.state_ranges().map(CodeMap::of);
        let chunk_bytes = CHUNK_LEN / BLOCK_LEN * BLOCK_BYTES;
        let states = states.map(|state| Chunked::new(state, chunk_bytes));
        let parameter = Chunked::new(parameter, CHUNK_LEN);
        for_each_chunk_with(pool, parameter, states, |chunk, parameter, states| {
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
                self.tile(at, parameter, tiles.each_mut().map(|tile| &mut tile[..len]));
                for (k, map) in maps.iter().enumerate() {
                    T::cast_slice(&tiles[k][..len], &mut wide[k][..len]);
                    let block = &mut states[k][tile * BLOCK_BYTES..][..BLOCK_BYTES];
                    map.store(&wide[k][..len], block);
                }
            }
        });
    }

    /// The elements from `at` of the run on.
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

/// `x` as a value of bf16, rounded up with the probability of how far it is on the way.
fn round_stochastic(x: f32, key: RandomKey, place: u64) -> f32 {
    if !x.is_finite() {
        return x;
    }
    // Eight places share a block of four words: 16 random bits each, as many as are cut off.
    let word = key.block(place / 8)[(place / 2 % 4) as usize];
    let bits = if place.is_multiple_of(2) { word & 0xFFFF } else { word >> 16 };
    // Rounding up from the largest value would give infinity, where nearest gives it, too.
    f32::from_bits((x.to_bits() + bits) & 0xFFFF_0000)
}

struct Tile<'a, F, T, const STATES: usize, const SCALARS: usize> {
    formula: F,
    scalars: [T; SCALARS],
    parameter: &'a mut [T],
    gradient: &'a [T],
    states: [&'a mut [T]; STATES],
}

impl<F, T: Wide, const STATES: usize, const SCALARS: usize> SimdKernel<T>
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
