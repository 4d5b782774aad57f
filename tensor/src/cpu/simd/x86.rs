//! Operations that are several instructions of AVX2 or AVX-512: sums over lanes, transposed
//! squares, and conversions of the half types.

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::{Avx2, Avx512, Simd};
use crate::dtype::{Element, same_type, same_type_mut};

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn sum_8(lanes: __m256) -> f32 {
    let fours = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps::<1>(lanes));
    let pairs = _mm_add_ps(fours, _mm_movehl_ps(fours, fours));
    _mm_cvtss_f32(_mm_add_ss(pairs, _mm_movehdup_ps(pairs)))
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn sum_4(lanes: __m256d) -> f64 {
    let pairs = _mm_add_pd(_mm256_castpd256_pd128(lanes), _mm256_extractf128_pd::<1>(lanes));
    _mm_cvtsd_f64(_mm_add_sd(pairs, _mm_unpackhi_pd(pairs, pairs)))
}

#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
pub(super) fn sum_16(lanes: __m512) -> f32 {
    let after = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(lanes)));
    sum_8(_mm256_add_ps(_mm512_castps512_ps256(lanes), after))
}

/// Sums sixteen vectors at a time. Halves of two vectors are added into one vector, then quarters
/// and so on, so that the lanes of a vector are added in the order of [`sum_16`]. The function is
/// not inlined, because it would leave too few registers for the loop before the call.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512vl")]
pub(super) fn sum_each_16(simd: Avx512, vectors: &[__m512], to: &mut [f32]) {
    assert_eq!(vectors.len(), to.len());
    for first in (0..vectors.len()).step_by(16) {
        let count = (vectors.len() - first).min(16);
        let mut v = [simd.splat(0.0f32); 16];
        v[..count].copy_from_slice(&vectors[first..][..count]);
        for i in 0..8 {
            let [a, b] = [v[2 * i], v[2 * i + 1]];
            let before = _mm512_shuffle_f32x4::<0x44>(a, b);
            v[i] = _mm512_add_ps(before, _mm512_shuffle_f32x4::<0xEE>(a, b));
        }
        for i in 0..4 {
            let [a, b] = [v[2 * i], v[2 * i + 1]];
            let even = _mm512_shuffle_f32x4::<0x88>(a, b);
            v[i] = _mm512_add_ps(even, _mm512_shuffle_f32x4::<0xDD>(a, b));
        }
        for i in 0..2 {
            let [a, b] = [v[2 * i], v[2 * i + 1]];
            let before = _mm512_shuffle_ps::<0x44>(a, b);
            v[i] = _mm512_add_ps(before, _mm512_shuffle_ps::<0xEE>(a, b));
        }
        let even = _mm512_shuffle_ps::<0x88>(v[0], v[1]);
        let all = _mm512_add_ps(even, _mm512_shuffle_ps::<0xDD>(v[0], v[1]));
        // Lanes 0, 4, 8 and 12 are the sums of the first four vectors, and so on.
        let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        let mut sums = [0.0f32; 16];
        simd.store(_mm512_permutexvar_ps(order, all), &mut sums);
        to[first..][..count].copy_from_slice(&sums[..count]);
    }
}

/// Transposes 8 rows of 8: exchanges pairs, then fours, then halves.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn transpose_8x8<E: Element>(
    simd: Avx2,
    from: &[E],
    from_stride: usize,
    to: &mut [f32],
    to_stride: usize,
) {
    let mut rows: [__m256; 8] = [simd.splat(0.0f32); 8];
    for (r, row) in rows.iter_mut().enumerate() {
        *row = Simd::<f32>::widen(simd, &from[r * from_stride..]);
    }
    let mut pairs = rows;
    for i in [0, 2, 4, 6] {
        pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
    }
    let mut fours = pairs;
    for i in [0, 4] {
        fours[i] = _mm256_shuffle_ps::<0x44>(pairs[i], pairs[i + 2]);
        fours[i + 1] = _mm256_shuffle_ps::<0xEE>(pairs[i], pairs[i + 2]);
        fours[i + 2] = _mm256_shuffle_ps::<0x44>(pairs[i + 1], pairs[i + 3]);
        fours[i + 3] = _mm256_shuffle_ps::<0xEE>(pairs[i + 1], pairs[i + 3]);
    }
    let mut columns = fours;
    for i in 0..4 {
        columns[i] = _mm256_permute2f128_ps::<0x20>(fours[i], fours[i + 4]);
        columns[i + 4] = _mm256_permute2f128_ps::<0x31>(fours[i], fours[i + 4]);
    }
    for (p, &column) in columns.iter().enumerate() {
        simd.store(column, &mut to[p * to_stride..]);
    }
}

/// Transposes 16 rows of 16: exchanges pairs, then fours, then twice quarters. The function is not
/// inlined: inside the loops that pack, long rows took an eighth longer.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512vl")]
pub(super) fn transpose_16x16<E: Element>(
    simd: Avx512,
    from: &[E],
    from_stride: usize,
    to: &mut [f32],
    to_stride: usize,
) {
    let mut rows: [__m512; 16] = [simd.splat(0.0f32); 16];
    for (r, row) in rows.iter_mut().enumerate() {
        *row = Simd::<f32>::widen(simd, &from[r * from_stride..]);
    }
    let mut pairs = rows;
    for i in (0..16).step_by(2) {
        pairs[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
    }
    let mut fours = pairs;
    for i in (0..16).step_by(4) {
        fours[i] = _mm512_shuffle_ps::<0x44>(pairs[i], pairs[i + 2]);
        fours[i + 1] = _mm512_shuffle_ps::<0xEE>(pairs[i], pairs[i + 2]);
        fours[i + 2] = _mm512_shuffle_ps::<0x44>(pairs[i + 1], pairs[i + 3]);
        fours[i + 3] = _mm512_shuffle_ps::<0xEE>(pairs[i + 1], pairs[i + 3]);
    }
    // Takes even and odd quarters of the rows above and below.
    let mut quarters = fours;
    for i in [0, 1, 2, 3, 8, 9, 10, 11] {
        quarters[i] = _mm512_shuffle_f32x4::<0x88>(fours[i], fours[i + 4]);
        quarters[i + 4] = _mm512_shuffle_f32x4::<0xDD>(fours[i], fours[i + 4]);
    }
    // Takes even and odd quarters once more.
    let mut columns = quarters;
    for i in 0..8 {
        columns[i] = _mm512_shuffle_f32x4::<0x88>(quarters[i], quarters[i + 8]);
        columns[i + 8] = _mm512_shuffle_f32x4::<0xDD>(quarters[i], quarters[i + 8]);
    }
    for (p, &column) in columns.iter().enumerate() {
        simd.store(column, &mut to[p * to_stride..]);
    }
}

/// Widens 8 elements. bf16 is the upper half of an f32; f16 has an instruction.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn widen_8<E: Element>(simd: Avx2, from: &[E]) -> __m256 {
    if let Some(from) = same_type::<E, bf16>(from) {
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(load_8(from))))
    } else if let Some(from) = same_type::<E, f16>(from) {
        _mm256_cvtph_ps(load_8(from))
    } else {
        let from = &from[..8];
        simd.load(&std::array::from_fn::<f32, 8, _>(|lane| from[lane].cast()))
    }
}

/// [`widen_8`] for 16 elements.
#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
pub(super) fn widen_16<E: Element>(simd: Avx512, from: &[E]) -> __m512 {
    if let Some(from) = same_type::<E, bf16>(from) {
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(load_16(from))))
    } else if let Some(from) = same_type::<E, f16>(from) {
        _mm512_cvtph_ps(load_16(from))
    } else {
        let from = &from[..16];
        simd.load(&std::array::from_fn::<f32, 16, _>(|lane| from[lane].cast()))
    }
}

/// Rounds to the nearest number of the half type; ties go to the even number. The instruction for
/// bf16 is not used, since it makes subnormal numbers 0.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn narrow_8<E: Element>(simd: Avx2, from: __m256, to: &mut [E]) {
    if let Some(to) = same_type_mut::<E, bf16>(to) {
        let bits = _mm256_castps_si256(from);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF));
        let rounded = _mm256_add_epi32(bits, half);
        let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(1 << 22));
        let is_nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(from, from));
        let upper = _mm256_srli_epi32::<16>(_mm256_blendv_epi8(rounded, quiet, is_nan));
        // Takes the packed numbers of each half, and puts both halves side by side.
        let packed = _mm256_permute4x64_epi64::<0x08>(_mm256_packus_epi32(upper, upper));
        store_8(_mm256_castsi256_si128(packed), to);
    } else if let Some(to) = same_type_mut::<E, f16>(to) {
        store_8(_mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(from), to);
    } else {
        let mut lanes = [0.0f32; 8];
        simd.store(from, &mut lanes);
        to[..8].iter_mut().zip(lanes).for_each(|(to, lane)| *to = lane.cast());
    }
}

/// [`narrow_8`] for 16 lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
pub(super) fn narrow_16<E: Element>(simd: Avx512, from: __m512, to: &mut [E]) {
    if let Some(to) = same_type_mut::<E, bf16>(to) {
        let bits = _mm512_castps_si512(from);
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        let half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF));
        let rounded = _mm512_add_epi32(bits, half);
        let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(from, from);
        let all = _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(1 << 22));
        store_16(_mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(all)), to);
    } else if let Some(to) = same_type_mut::<E, f16>(to) {
        store_16(_mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(from), to);
    } else {
        let mut lanes = [0.0f32; 16];
        simd.store(from, &mut lanes);
        to[..16].iter_mut().zip(lanes).for_each(|(to, lane)| *to = lane.cast());
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_8<H: Element>(from: &[H]) -> __m128i {
    const { assert!(size_of::<H>() == 2) };
    let from = &from[..8];
    // SAFETY: the line above checked the length, 16 bytes.
    unsafe { _mm_loadu_si128(from.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_16<H: Element>(from: &[H]) -> __m256i {
    const { assert!(size_of::<H>() == 2) };
    let from = &from[..16];
    // SAFETY: the line above checked the length, 32 bytes.
    unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store_8<H: Element>(bits: __m128i, to: &mut [H]) {
    const { assert!(size_of::<H>() == 2) };
    let to = &mut to[..8];
    // SAFETY: the line above checked the length, 16 bytes.
    unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), bits) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store_16<H: Element>(bits: __m256i, to: &mut [H]) {
    const { assert!(size_of::<H>() == 2) };
    let to = &mut to[..16];
    // SAFETY: the line above checked the length, 32 bytes.
    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), bits) }
}
