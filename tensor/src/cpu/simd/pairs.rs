//! AVX-512 with products of bf16 pairs: factors have pairs of bf16 as lanes, sums have f32 as
//! lanes.

use std::arch::x86_64::*;
use std::sync::LazyLock;

use half::bf16;

use super::{Avx512, Fused, Simd, SimdKernel};
use crate::dtype::{Element, same_type_mut};

/// AVX-512 with BF16; made only by [`Pairs::detect`].
///
/// `vdpbf16ps` adds two products to each lane, and takes subnormal numbers for 0.
#[derive(Clone, Copy)]
pub(super) struct Pairs(Avx512);

impl Pairs {
    /// Only processors of AMD run `vdpbf16ps` at the rate of multiply-adds, and so do twice the
    /// work. On a Xeon it took as long as four multiply-adds (2026-11-26).
    pub(super) fn detect() -> Option<Self> {
        static IS_FAST: LazyLock<bool> = LazyLock::new(|| {
            let vendor = __cpuid(0);
            let bytes = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes);
            // Tests use the instruction on processors where it is slow, too.
            is_x86_feature_detected!("avx512bf16")
                && (cfg!(test) || bytes.concat() == b"AuthenticAMD")
        });
        Avx512::detect().filter(|_| super::is_allowed(PAIRS_BITS) && *IS_FAST).map(Self)
    }
}

/// The number of bits that stands for pairs in tests of narrower vectors.
pub(super) const PAIRS_BITS: usize = 1024;

impl Fused for Pairs {
    const IS_FUSED: bool = true;
}

impl Simd<f32> for Pairs {
    type Vector = __m512;
    const LANE_COUNT: usize = <Avx512 as Simd<f32>>::LANE_COUNT;
    const REGISTER_COUNT: usize = <Avx512 as Simd<f32>>::REGISTER_COUNT;
    #[inline(always)]
    fn splat(self, value: f32) -> Self::Vector {
        self.0.splat(value)
    }
    #[inline(always)]
    fn call(self, kernel: impl SimdKernel<f32>) {
        // SAFETY: needs the instruction set, which `self` proves.
        unsafe { run_pairs(kernel, self) }
    }
    #[inline(always)]
    fn load(self, from: &[f32]) -> Self::Vector {
        self.0.load(from)
    }
    #[inline(always)]
    fn store(self, vector: Self::Vector, to: &mut [f32]) {
        self.0.store(vector, to);
    }
    #[inline(always)]
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        Simd::<f32>::add(self.0, a, b)
    }
    /// Adds both products of the pairs of a and b to c, in each lane.
    #[inline(always)]
    fn mul_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector {
        // SAFETY: needs the instruction set, which `self` proves.
        unsafe { mul_add_pairs(a, b, c) }
    }
    #[inline(always)]
    fn sum(self, vector: Self::Vector) -> f32 {
        Simd::<f32>::sum(self.0, vector)
    }
    #[inline(always)]
    fn fetch<E>(self, from: &E) {
        Simd::<f32>::fetch(self.0, from);
    }
    #[inline(always)]
    fn sum_each(self, vectors: &[Self::Vector], to: &mut [f32]) {
        self.0.sum_each(vectors, to);
    }
    #[inline(always)]
    fn widen<E: Element>(self, from: &[E]) -> Self::Vector {
        Simd::<f32>::widen(self.0, from)
    }
    /// Rounds subnormal numbers to 0, as products do.
    #[inline(always)]
    fn narrow<E: Element>(self, from: Self::Vector, to: &mut [E]) {
        match same_type_mut::<E, bf16>(to) {
            // SAFETY: needs the instruction set, which `self` proves.
            Some(to) => unsafe { round(from, to) },
            None => Simd::<f32>::narrow(self.0, from, to),
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bf16")]
fn mul_add_pairs(a: __m512, b: __m512, c: __m512) -> __m512 {
    // SAFETY: both types have 64 bytes, and any bytes are a vector of bf16.
    let [a, b] = [a, b].map(|x| unsafe { std::mem::transmute::<__m512, __m512bh>(x) });
    _mm512_dpbf16_ps(c, a, b)
}

#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bf16")]
fn round(from: __m512, to: &mut [bf16]) {
    let to = &mut to[..16];
    let rounded = _mm512_cvtneps_pbh(from);
    // SAFETY: both types have 32 bytes, and any bytes are a vector of integers.
    let bits = unsafe { std::mem::transmute::<__m256bh, __m256i>(rounded) };
    // SAFETY: the first line checked the length, 32 bytes.
    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), bits) }
}

/// Compiles `kernel` with AVX-512 and BF16: 32 registers, 8×2 accumulators and their operands.
#[target_feature(enable = "avx512f,avx512vl,avx512bf16")]
#[inline(never)]
pub(super) fn run_pairs<K: SimdKernel<f32>>(kernel: K, simd: Pairs) {
    kernel.run::<_, 8, 2>(simd);
}
