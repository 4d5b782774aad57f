//! Products of packed codes with VNNI, whose instruction adds four products to each lane.
//!
//! A *sliver* holds up to 48 rows of w: four codes of one row, then four of the next, and so on for
//! the whole depth. Every row of x is multiplied with the sliver while the sliver lies in the
//! first-level cache; a tile of sums stays in registers. Products of floats use the same scheme,
//! see `gemm_panel.rs`.

#![allow(unsafe_code, reason = "vector instructions, and the innermost loop reads unchecked")]

use std::arch::x86_64::*;

use super::int8_simd::{Int8Simd, Vnni};

/// Rows of w in a vector.
pub(super) const LANES: usize = 16;
/// Number of codes that a lane takes at once.
const LANE_LEN: usize = 4;
/// Number of codes of a row of w that are packed at once.
const BLOCK_LEN: usize = LANES * LANE_LEN;

/// Bytes of a sliver whose rows fill `vectors` vectors, with `depth` codes of each row.
pub(super) const fn sliver_bytes(vectors: usize, depth: usize) -> usize {
    depth.next_multiple_of(BLOCK_LEN) * vectors * LANES
}

/// Packs `depth` codes of each of `rows` rows. The rows are `stride` codes apart, and the first row
/// starts where `w` starts. The sliver holds arbitrary numbers beyond the rows and the depth.
#[inline(always)]
pub(super) fn pack(
    simd: Vnni,
    w: &[i8],
    stride: usize,
    [rows, depth]: [usize; 2],
    sliver: &mut [u8],
) {
    let vectors = rows.div_ceil(LANES);
    let steps = sliver.as_chunks_mut::<BLOCK_LEN>().0;
    for (block, steps) in steps.chunks_exact_mut(LANES * vectors).enumerate() {
        let p = block * BLOCK_LEN;
        if p >= depth {
            return;
        }
        for vector in 0..vectors {
            let mut lanes = [simd.zero(); LANES];
            for (lane, row) in lanes.iter_mut().zip(vector * LANES..rows) {
                *lane = simd.some_weights(&w[row * stride + p..]);
            }
            // SAFETY: needs AVX-512F, which `simd` proves.
            unsafe { transpose(&mut lanes) };
            for (to, &lane) in steps[vector..].iter_mut().step_by(vectors).zip(&lanes) {
                // SAFETY: `simd` proves AVX-512F; `to` has as many bytes as a vector.
                unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), lane) };
            }
        }
    }
}

/// Transposes 16 rows of 16 groups of 4 codes: exchanges pairs, then fours, then twice quarters.
#[inline]
#[target_feature(enable = "avx512f")]
fn transpose(rows: &mut [__m512i; LANES]) {
    let mut pairs = *rows;
    for i in (0..16).step_by(2) {
        pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    let mut fours = pairs;
    for i in (0..16).step_by(4) {
        fours[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
        fours[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
        fours[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
        fours[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
    }
    // Takes even and odd quarters of the rows above and below.
    let mut quarters = fours;
    for i in [0, 1, 2, 3, 8, 9, 10, 11] {
        quarters[i] = _mm512_shuffle_i32x4::<0x88>(fours[i], fours[i + 4]);
        quarters[i + 4] = _mm512_shuffle_i32x4::<0xDD>(fours[i], fours[i + 4]);
    }
    // Takes even and odd quarters once more.
    for i in 0..8 {
        rows[i] = _mm512_shuffle_i32x4::<0x88>(quarters[i], quarters[i + 8]);
        rows[i + 8] = _mm512_shuffle_i32x4::<0xDD>(quarters[i], quarters[i + 8]);
    }
}

/// Rows of x that are multiplied with a sliver.
pub(super) struct Tile<'a> {
    /// Number of codes in each row.
    pub(super) depth: usize,
    /// The codes from the first row on; 0 beyond the depth, up to the next multiple of 4.
    pub(super) x: &'a [i8],
    /// Number of codes from one row to the next.
    pub(super) stride: usize,
    pub(super) sliver: &'a [u8],
    /// The sum of the codes of each row of x, if the sums of products begin here; see
    /// [`Int8Simd::OFFSET`]. `None` if the sums go on.
    pub(super) start: Option<&'a [i32]>,
}

impl Tile<'_> {
    /// Writes the products of `R` rows and a sliver of `C` vectors to the sums, or adds them if the
    /// sums have begun. Rows of sums are `sums_stride` apart. Returns `R`.
    #[inline(always)]
    pub(super) fn run<const R: usize, const C: usize>(
        &self,
        simd: Vnni,
        sums: &mut [i32],
        sums_stride: usize,
    ) -> usize {
        let steps = self.depth.div_ceil(LANE_LEN);
        let x = &self.x[..(R - 1) * self.stride + steps * LANE_LEN];
        let sliver = &self.sliver.as_chunks::<BLOCK_LEN>().0[..steps * C];
        let mut tile = [[simd.zero(); C]; R];
        for (r, tile) in tile.iter_mut().enumerate() {
            for (c, tile) in tile.iter_mut().enumerate() {
                *tile = match self.start {
                    Some(start) => simd.splat(start[r].wrapping_mul(-Vnni::OFFSET)),
                    None => simd.load(&sums[r * sums_stride + c * LANES..]),
                };
            }
        }
        for (step, w) in sliver.chunks_exact(C).enumerate() {
            let w: [__m512i; C] = std::array::from_fn(|c| simd.vector(&w[c]));
            for (r, tile) in tile.iter_mut().enumerate() {
                // SAFETY: step < steps and r < R, so four codes from there on are inside `x`.
                let codes = unsafe { x.as_ptr().add(r * self.stride + step * LANE_LEN) };
                // SAFETY: as above, and any four bytes are an i32.
                let x = simd.splat(unsafe { codes.cast::<i32>().read_unaligned() });
                for (tile, &w) in tile.iter_mut().zip(&w) {
                    *tile = simd.add_products(*tile, w, x);
                }
            }
        }
        for (r, tile) in tile.iter().enumerate() {
            for (c, &tile) in tile.iter().enumerate() {
                simd.store(tile, &mut sums[r * sums_stride + c * LANES..]);
            }
        }
        R
    }
}

impl Vnni {
    /// A vector with one value in each lane.
    #[inline(always)]
    fn splat(self, value: i32) -> __m512i {
        // SAFETY: needs AVX-512F, which `self` proves.
        unsafe { _mm512_set1_epi32(value) }
    }

    /// The bytes as a vector.
    #[inline(always)]
    fn vector(self, from: &[u8; BLOCK_LEN]) -> __m512i {
        // SAFETY: `self` proves AVX-512F; there are as many bytes as a vector has.
        unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
    }

    /// The first 16 sums of a slice that has at least as many.
    #[inline(always)]
    fn load(self, from: &[i32]) -> __m512i {
        let from = &from[..LANES];
        // SAFETY: `self` proves AVX-512F; the line above checked the length.
        unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
    }

    /// Overwrites the first 16 sums of a slice that has at least as many.
    #[inline(always)]
    fn store(self, sums: __m512i, to: &mut [i32]) {
        let to = &mut to[..LANES];
        // SAFETY: `self` proves AVX-512F; the line above checked the length.
        unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), sums) };
    }
}
