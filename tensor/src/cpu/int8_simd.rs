//! Vectors of 8-bit integers, whose products are summed in 32 bits without rounding.

#![allow(unsafe_code, reason = "vector instructions and the proof that they exist")]

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

#[cfg(target_arch = "x86_64")]
use super::simd::is_allowed;

/// Largest number of codes that an instruction set takes at once. Rows of x are padded with zeros
/// to a multiple.
pub(super) const STEP_LEN_MAX: usize = 64;

/// One instruction set; a value of the type is the proof that the processor has it.
pub(super) trait Int8Simd: Copy {
    /// Sums of 32 bits. Parts of a dot product may wrap; the sum of a whole dot product is exact.
    type Sums: Copy;
    /// Codes, ready to be multiplied.
    type Codes: Copy;
    /// Number of codes in a step.
    const STEP_LEN: usize;
    /// Offset that is added to each code of w. Sums are too large by the offset times the sum of
    /// the codes of x.
    const OFFSET: i32;
    /// All sums 0.
    fn zero(self) -> Self::Sums;
    /// The first `STEP_LEN` codes of w, of a slice that has at least as many.
    fn weights(self, from: &[i8]) -> Self::Codes;
    /// [`Int8Simd::weights`] of a slice that may be shorter. Zeros replace missing codes.
    #[inline(always)]
    fn some_weights(self, from: &[i8]) -> Self::Codes {
        if from.len() >= Self::STEP_LEN {
            return self.weights(from);
        }
        let mut codes = [0; STEP_LEN_MAX];
        codes[..from.len()].copy_from_slice(from);
        self.weights(&codes)
    }
    /// The first `STEP_LEN` codes of x, of a slice that has at least as many.
    fn activations(self, from: &[i8]) -> Self::Codes;
    /// Adds the products of a step.
    fn add_products(self, sums: Self::Sums, w: Self::Codes, x: Self::Codes) -> Self::Sums;
    /// The sum of all lanes.
    fn total(self, sums: Self::Sums) -> i32;
}

/// Portable sums, which the compiler vectorises as it can.
#[derive(Clone, Copy)]
pub(super) struct Portable;

impl Int8Simd for Portable {
    type Sums = i32;
    type Codes = [i8; STEP_LEN_MAX];
    const STEP_LEN: usize = STEP_LEN_MAX;
    const OFFSET: i32 = 0;
    #[inline(always)]
    fn zero(self) -> Self::Sums {
        0
    }
    #[inline(always)]
    fn weights(self, from: &[i8]) -> Self::Codes {
        from[..STEP_LEN_MAX].try_into().expect("as many codes")
    }
    #[inline(always)]
    fn activations(self, from: &[i8]) -> Self::Codes {
        self.weights(from)
    }
    #[inline(always)]
    fn add_products(self, sums: Self::Sums, w: Self::Codes, x: Self::Codes) -> Self::Sums {
        let product = |(&w, &x): (&i8, &i8)| i32::from(w) * i32::from(x);
        sums + w.iter().zip(&x).map(product).sum::<i32>()
    }
    #[inline(always)]
    fn total(self, sums: Self::Sums) -> i32 {
        sums
    }
}

/// AVX2; made only by [`Avx2::detect`].
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(super) struct Avx2(());

#[cfg(target_arch = "x86_64")]
impl Avx2 {
    pub(super) fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx2") && is_allowed(256)).then_some(Self(()))
    }
}

/// Codes are widened to 16 bits, and their products are summed in 32 bits without loss; `maddubs`
/// would saturate.
#[cfg(target_arch = "x86_64")]
impl Int8Simd for Avx2 {
    type Sums = __m256i;
    type Codes = __m256i;
    const STEP_LEN: usize = 16;
    const OFFSET: i32 = 0;
    #[inline(always)]
    fn zero(self) -> Self::Sums {
        // SAFETY: needs AVX2, which `self` proves.
        unsafe { _mm256_setzero_si256() }
    }
    #[inline(always)]
    fn weights(self, from: &[i8]) -> Self::Codes {
        let from = &from[..16];
        // SAFETY: every x86-64 processor has the instruction; the line above checked the length.
        let bytes = unsafe { _mm_loadu_si128(from.as_ptr().cast()) };
        // SAFETY: needs AVX2, which `self` proves.
        unsafe { _mm256_cvtepi8_epi16(bytes) }
    }
    #[inline(always)]
    fn activations(self, from: &[i8]) -> Self::Codes {
        self.weights(from)
    }
    #[inline(always)]
    fn add_products(self, sums: Self::Sums, w: Self::Codes, x: Self::Codes) -> Self::Sums {
        // SAFETY: needs AVX2, which `self` proves.
        let pairs = unsafe { _mm256_madd_epi16(w, x) };
        // SAFETY: needs AVX2, which `self` proves.
        unsafe { _mm256_add_epi32(sums, pairs) }
    }
    #[inline(always)]
    fn total(self, sums: Self::Sums) -> i32 {
        let mut lanes = [0; 8];
        // SAFETY: needs AVX2, which `self` proves, and room for 8 lanes.
        unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), sums) };
        lanes.iter().sum()
    }
}

/// AVX-512 with VNNI; made only by [`Vnni::detect`].
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(super) struct Vnni(());

#[cfg(target_arch = "x86_64")]
impl Vnni {
    pub(super) fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni");
        (has && is_allowed(512)).then_some(Self(()))
    }
}

/// The instruction multiplies unsigned bytes by signed bytes. An offset of 128 makes the codes of w
/// unsigned.
#[cfg(target_arch = "x86_64")]
impl Int8Simd for Vnni {
    type Sums = __m512i;
    type Codes = __m512i;
    const STEP_LEN: usize = 64;
    const OFFSET: i32 = 128;
    #[inline(always)]
    fn zero(self) -> Self::Sums {
        // SAFETY: needs AVX-512F, which `self` proves.
        unsafe { _mm512_setzero_si512() }
    }
    #[inline(always)]
    fn weights(self, from: &[i8]) -> Self::Codes {
        let codes = self.activations(from);
        // SAFETY: needs AVX-512F, which `self` proves.
        let signs = unsafe { _mm512_set1_epi8(i8::MIN) };
        // SAFETY: needs AVX-512F, which `self` proves.
        unsafe { _mm512_xor_si512(codes, signs) }
    }
    #[inline(always)]
    fn activations(self, from: &[i8]) -> Self::Codes {
        let from = &from[..64];
        // SAFETY: `self` proves AVX-512F; the line above checked the length.
        unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
    }
    #[inline(always)]
    fn add_products(self, sums: Self::Sums, w: Self::Codes, x: Self::Codes) -> Self::Sums {
        // SAFETY: needs AVX-512VNNI, which `self` proves.
        unsafe { _mm512_dpbusd_epi32(sums, w, x) }
    }
    #[inline(always)]
    fn total(self, sums: Self::Sums) -> i32 {
        // SAFETY: needs AVX-512F, which `self` proves.
        unsafe { _mm512_reduce_add_epi32(sums) }
    }
}

/// Work that is compiled for every instruction set. The methods must be `#[inline(always)]`: other
/// functions are compiled without the vector instructions.
pub(super) trait Int8Kernel {
    /// Runs the kernel by dot products, in tiles of `ROWS` × `COLS` sums, which fit the registers.
    fn dots<S: Int8Simd, const ROWS: usize, const COLS: usize>(self, simd: S);
    /// True if packing the codes first is worth its time. Only [`Vnni`] has instructions for packed
    /// codes.
    #[cfg(target_arch = "x86_64")]
    fn is_worth_packing(&self) -> bool;
    /// Runs the kernel with packed codes.
    #[cfg(target_arch = "x86_64")]
    fn packed(self, simd: Vnni);
}

/// Runs `kernel` with the best instruction set of this processor.
pub(super) fn dispatch<K: Int8Kernel>(kernel: K) {
    #[cfg(target_arch = "x86_64")]
    if let Some(simd) = Vnni::detect() {
        // SAFETY: needs AVX-512F, BW, VL and VNNI, which `simd` proves.
        return unsafe { run_vnni(kernel, simd) };
    } else if let Some(simd) = Avx2::detect() {
        // SAFETY: needs AVX2, which `simd` proves.
        return unsafe { run_avx2(kernel, simd) };
    }
    run_portable(kernel);
}

#[inline(never)]
fn run_portable<K: Int8Kernel>(kernel: K) {
    kernel.dots::<_, 1, 1>(Portable);
}

#[cfg(target_arch = "x86_64")]
#[inline(never)]
#[target_feature(enable = "avx2")]
fn run_avx2<K: Int8Kernel>(kernel: K, simd: Avx2) {
    kernel.dots::<_, 4, 2>(simd);
}

#[cfg(target_arch = "x86_64")]
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn run_vnni<K: Int8Kernel>(kernel: K, simd: Vnni) {
    if kernel.is_worth_packing() {
        kernel.packed(simd);
    } else {
        kernel.dots::<_, 4, 4>(simd);
    }
}
