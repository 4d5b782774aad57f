//! The inner loops of the gradient of w with pixels in the lanes. Pixels are contiguous in dy and
//! in a tile, so neither is transposed. The lanes of a sum are added up at its end. If bf16 is
//! multiplied in pairs, a lane is two neighbouring pixels of dy or of a tile.

#![expect(
    clippy::needless_range_loop,
    reason = "blocks of registers are indexed by row and column throughout"
)]

use super::tiling::Taps;
use crate::cpu::math::SimdFloat;
use crate::cpu::simd::{LANE_COUNT_MAX, Simd, SimdKernel};
use crate::dtype::{Element, same_type};

/// Pixels that are summed before their lanes are added up. Eight rows of dy of this length stay in
/// the first-level cache while all taps read the rows.
pub(super) const RUN_LEN: usize = 1024;

/// Taps of a block of registers.
const BLOCK_TAPS: usize = 3;

/// Pixels of a few images, in a row for each output channel.
#[derive(Clone, Copy)]
pub(super) struct PixelRows<'a, T> {
    pub(super) elements: &'a [T],
    /// Elements between neighbouring rows.
    pub(super) row_step: usize,
    /// Elements between neighbouring images.
    pub(super) image_step: usize,
}

/// dw`[O, K]` += Σ over images of dy`[O, P]` · tile`[K, P]`ᵀ. A step takes `STEP` pixels: one for
/// each lane, or two in pairs.
pub(super) struct PixelTile<'a, E, T, const STEP: usize> {
    pub(super) dy: PixelRows<'a, E>,
    pub(super) channels: usize,
    pub(super) pixel_count: usize,
    pub(super) taps: Taps<'a, E>,
    /// Rows of `k_len` sums.
    pub(super) dw: &'a mut [T],
    pub(super) k_len: usize,
}

/// Pixels of a step with one pixel in each lane. In pairs, a step has twice as many.
pub(super) const STEP_ONE_BY_ONE: usize = LANE_COUNT_MAX;
pub(super) const STEP_IN_PAIRS: usize = 2 * LANE_COUNT_MAX;

/// The lanes of a step: whole vectors of any instruction set.
type Lanes<T> = [T; LANE_COUNT_MAX];

/// Largest number of vectors of a step: every instruction set has at least four lanes.
const PARTS_MAX: usize = LANE_COUNT_MAX / 4;

/// The place of a block of registers in the product.
#[derive(Clone, Copy)]
struct At {
    first_pixel: usize,
    /// Number of pixels, at most `RUN_LEN`.
    pixel_count: usize,
    channel: usize,
    tap: usize,
}

impl<E: Element, T: SimdFloat, const STEP: usize> PixelTile<'_, E, T, STEP> {
    /// Adds the products to dw.
    pub(super) fn add(mut self) {
        let whole = self.pixel_count / STEP * STEP;
        if whole < self.pixel_count {
            self.add_rest(whole);
            self.pixel_count = whole;
        }
        match STEP {
            STEP_IN_PAIRS => T::dispatch_pairs(self),
            _ => T::dispatch(self),
        }
    }

    /// Adds the products of the pixels after the last whole step, one by one.
    fn add_rest(&mut self, first_pixel: usize) {
        let pixel_count = self.pixel_count - first_pixel;
        for channel in 0..self.channels {
            for tap in 0..self.taps.offsets.len() {
                let at = At { first_pixel, pixel_count, channel, tap };
                let mut sum = T::ZERO;
                for image in 0..self.taps.image_count {
                    let pairs = self.dy_row(image, at, 0).iter().zip(self.x_row(image, at, 0));
                    pairs.for_each(|(&dy, &x)| sum += dy.cast::<T>() * x.cast());
                }
                self.dw[channel * self.k_len + self.taps.first_k + tap] += sum;
            }
        }
    }
}

impl<E: Element, T: SimdFloat, const STEP: usize> SimdKernel<T> for PixelTile<'_, E, T, STEP> {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(mut self, simd: S) {
        for first_pixel in (0..self.pixel_count).step_by(RUN_LEN) {
            let pixel_count = RUN_LEN.min(self.pixel_count - first_pixel);
            let at = At { first_pixel, pixel_count, channel: 0, tap: 0 };
            // With three taps and all vectors of a step, sums take 24 of 32 registers, or 12 of 16.
            match S::REGISTER_COUNT / 4 * S::LANE_COUNT / LANE_COUNT_MAX {
                8.. => self.pass::<S, 8>(simd, at),
                4.. => self.pass::<S, 4>(simd, at),
                2.. => self.pass::<S, 2>(simd, at),
                _ => self.pass::<S, 1>(simd, at),
            }
        }
    }
}

impl<E: Element, T: SimdFloat, const STEP: usize> PixelTile<'_, E, T, STEP> {
    /// Computes all of dw over a run, O rows at a time.
    #[inline(always)]
    fn pass<S: Simd<T>, const O: usize>(&mut self, simd: S, mut at: At) {
        while at.channel + O <= self.channels {
            self.rows::<S, O>(simd, &mut at);
        }
        while O > 4 && at.channel + 4 <= self.channels {
            self.rows::<S, 4>(simd, &mut at);
        }
        while at.channel < self.channels {
            self.rows::<S, 1>(simd, &mut at);
        }
    }

    #[inline(always)]
    fn rows<S: Simd<T>, const O: usize>(&mut self, simd: S, at: &mut At) {
        at.tap = 0;
        while at.tap + BLOCK_TAPS <= self.taps.offsets.len() {
            self.block::<S, O, BLOCK_TAPS>(simd, *at);
            at.tap += BLOCK_TAPS;
        }
        while at.tap < self.taps.offsets.len() {
            self.block::<S, O, 1>(simd, *at);
            at.tap += 1;
        }
        at.channel += O;
    }

    /// Computes O rows and K columns of dw.
    #[inline(always)]
    fn block<S: Simd<T>, const O: usize, const K: usize>(&mut self, simd: S, at: At) {
        let mut sums = [[[T::ZERO; LANE_COUNT_MAX]; K]; O];
        for image in 0..self.taps.image_count {
            simd.call(RegisterBlock { product: self, at, image, sums: &mut sums });
        }
        let mut vectors = [[simd.splat(T::ZERO); K]; O];
        for o in 0..O {
            for k in 0..K {
                vectors[o][k] = add_parts(simd, &sums[o][k]);
            }
        }
        let mut found = [[T::ZERO; K]; O];
        simd.sum_each(vectors.as_flattened(), found.as_flattened_mut());
        for o in 0..O {
            let dw =
                &mut self.dw[(at.channel + o) * self.k_len + self.taps.first_k + at.tap..][..K];
            for k in 0..K {
                dw[k] += found[o][k];
            }
        }
    }

    /// The pixels of the tile that a tap reads in an image.
    #[inline(always)]
    fn x_row(&self, image: usize, at: At, k: usize) -> &[E] {
        let start = image * self.taps.image_len + self.taps.offsets[at.tap + k] + at.first_pixel;
        &self.taps.tile[start..][..at.pixel_count]
    }

    #[inline(always)]
    fn dy_row(&self, image: usize, at: At, o: usize) -> &[E] {
        &self.dy.elements[self.dy_start(image, at, o)..][..at.pixel_count]
    }

    #[inline(always)]
    fn dy_start(&self, image: usize, at: At, o: usize) -> usize {
        image * self.dy.image_step + (at.channel + o) * self.dy.row_step + at.first_pixel
    }
}

/// The sum of the vectors of a step. The second half is added to the first until one vector is
/// left, in the order of sums over the lanes of a vector.
#[inline(always)]
fn add_parts<T: SimdFloat, S: Simd<T>>(simd: S, step: &Lanes<T>) -> S::Vector {
    let lanes = S::LANE_COUNT;
    match LANE_COUNT_MAX / lanes {
        1 => simd.load(step),
        2 => simd.add(simd.load(step), simd.load(&step[lanes..])),
        _ => {
            let even = simd.add(simd.load(step), simd.load(&step[2 * lanes..]));
            let odd = simd.add(simd.load(&step[lanes..]), simd.load(&step[3 * lanes..]));
            simd.add(even, odd)
        }
    }
}

/// Loads a vector of a step.
#[inline(always)]
fn load<E: Element, T: SimdFloat, S: Simd<T>>(simd: S, step: &[E], part: usize) -> S::Vector {
    let first = part * S::LANE_COUNT;
    match same_type::<E, T>(step) {
        Some(step) => simd.load(&step[first..]),
        None => {
            let lanes: Lanes<T> = bytemuck::pod_read_unaligned(bytemuck::cast_slice(step));
            simd.load(&lanes[first..])
        }
    }
}

/// The products of one image for O rows and K columns of dw. Each lane of a step has its own sum,
/// so that results do not depend on the instruction set.
struct RegisterBlock<'a, 'b, E, T, const STEP: usize, const O: usize, const K: usize> {
    product: &'a PixelTile<'b, E, T, STEP>,
    at: At,
    image: usize,
    sums: &'a mut [[Lanes<T>; K]; O],
}

impl<E: Element, T: SimdFloat, const STEP: usize, const O: usize, const K: usize> SimdKernel<T>
    for RegisterBlock<'_, '_, E, T, STEP, O, K>
{
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(self, simd: S) {
        let RegisterBlock { product, at, image, sums: all } = self;
        let (lanes, parts) = (S::LANE_COUNT, LANE_COUNT_MAX / S::LANE_COUNT);
        let step_count = at.pixel_count / STEP;
        // Slices of arrays with equal lengths avoid a check of each load. The checks would move the
        // sums out of their registers.
        let mut x: [&[[E; STEP]]; K] = [&[]; K];
        let mut dy: [&[[E; STEP]]; O] = [&[]; O];
        for k in 0..K {
            x[k] = &product.x_row(image, at, k).as_chunks().0[..step_count];
        }
        for o in 0..O {
            dy[o] = &product.dy_row(image, at, o).as_chunks().0[..step_count];
        }
        // Each group of taps prefetches one of the next rows.
        let is_asked = at.tap < O * BLOCK_TAPS;
        let start = product.dy_start(image, at, O + at.tap / BLOCK_TAPS);
        let next = product.dy.elements.get(start..start + at.pixel_count).filter(|_| is_asked);
        let next = next.map_or(dy[0], |next| &next.as_chunks().0[..step_count]);
        let mut sums = [[[simd.splat(T::ZERO); K]; O]; PARTS_MAX];
        for part in 0..parts {
            for o in 0..O {
                for k in 0..K {
                    sums[part][o][k] = simd.load(&all[o][k][part * lanes..]);
                }
            }
        }
        for step in 0..step_count {
            simd.fetch(&next[step][0]);
            for part in 0..parts {
                let mut vectors = [simd.splat(T::ZERO); K];
                for k in 0..K {
                    vectors[k] = load(simd, &x[k][step], part);
                }
                for o in 0..O {
                    let dy = load(simd, &dy[o][step], part);
                    for k in 0..K {
                        sums[part][o][k] = simd.mul_add(dy, vectors[k], sums[part][o][k]);
                    }
                }
            }
        }
        for part in 0..parts {
            for o in 0..O {
                for k in 0..K {
                    simd.store(sums[part][o][k], &mut all[o][k][part * lanes..]);
                }
            }
        }
    }
}
