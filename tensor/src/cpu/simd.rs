//! Vectors of f32 and f64 in the widest form that the processor has, chosen at run time.
//!
//! A kernel is written once against [`Simd`] and compiled for each instruction set; `dispatch` of
//! [`SimdFloat`](super::math::SimdFloat) picks one. Detection is a load of a cached flag.

#![allow(unsafe_code, reason = "vector instructions and the proof that they exist")]

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// No instruction set has more lanes; buffers read by whole vectors keep this much slack.
pub(crate) const LANE_COUNT_MAX: usize = 16;

/// Whether an instruction set multiplies and adds in one go; what scalar formulas ask, which the
/// compiler vectorises (see `math/`).
pub(crate) trait Fused {
    /// `mul_add` is an instruction, not a slow library call.
    const IS_FUSED: bool;
}

/// One instruction set; a value of the type is the proof that the processor has it.
pub(crate) trait Simd<T>: Copy + Fused {
    /// `LANE_COUNT` values in a register.
    type Vector: Copy;
    /// Values in a vector.
    const LANE_COUNT: usize;
    /// Vectors that the processor has room for.
    const REGISTER_COUNT: usize;
    /// The same value in each lane.
    fn splat(self, value: T) -> Self::Vector;
    /// Runs a kernel as a function of its own: in a large one, a loop that fills the registers is
    /// likely to keep some of them in memory.
    fn call(self, kernel: impl SimdKernel<T>);
    /// The first `LANE_COUNT` values of a slice that has at least as many.
    fn load(self, from: &[T]) -> Self::Vector;
    /// Overwrites the first `LANE_COUNT` values of a slice that has at least as many.
    fn store(self, vector: Self::Vector, to: &mut [T]);
    /// a + b in each lane.
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// a·b + c in each lane, rounded once where the processor can.
    fn mul_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// All lanes added up: the second half to the first, until one is left.
    fn sum(self, vector: Self::Vector) -> T;
    /// Fetches the place of a value into the second-level cache ahead of its use.
    #[inline(always)]
    fn fetch(self, _from: &T) {}
    /// The [`sum`](Self::sum) of each vector.
    #[inline(always)]
    fn sum_each(self, vectors: &[Self::Vector], to: &mut [T]) {
        for (to, &vector) in to.iter_mut().zip(vectors) {
            *to = self.sum(vector);
        }
    }
    /// Turns a square of `LANE_COUNT` rows: row `r` of `from` starts at `r * from_stride` and
    /// becomes column `r` of `to`, whose rows are written in their order.
    #[inline(always)]
    fn transpose(self, from: &[T], from_stride: usize, to: &mut [T], to_stride: usize)
    where
        T: Copy,
    {
        for p in 0..Self::LANE_COUNT {
            for (r, to) in to[p * to_stride..][..Self::LANE_COUNT].iter_mut().enumerate() {
                *to = from[r * from_stride + p];
            }
        }
    }
}

/// A loop nest to be compiled for every instruction set. Its methods must be `#[inline(always)]`,
/// or the vectors end up in functions that may not use their instructions.
pub(crate) trait SimdKernel<T> {
    /// Runs it. `ROWS` × `COLS` accumulators and their operands fit the register file; who needs
    /// other numbers goes by `REGISTER_COUNT`.
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(self, simd: S);
}

/// No instruction set in particular: short arrays that the compiler vectorises as it can.
#[derive(Clone, Copy)]
struct Portable;

impl Fused for Portable {
    const IS_FUSED: bool = cfg!(target_arch = "aarch64");
}

#[inline(never)]
fn run_portable<T, K: SimdKernel<T>>(kernel: K, simd: Portable)
where
    Portable: Simd<T>,
{
    kernel.run::<_, 4, 2>(simd);
}

macro_rules! portable {
    ($($float:ty),*) => {$(
        impl Simd<$float> for Portable {
            type Vector = [$float; 4];
            const LANE_COUNT: usize = 4;
            const REGISTER_COUNT: usize = if cfg!(target_arch = "aarch64") { 32 } else { 16 };
            #[inline(always)]
            fn splat(self, value: $float) -> Self::Vector {
                [value; 4]
            }
            #[inline(always)]
            fn call(self, kernel: impl SimdKernel<$float>) {
                run_portable(kernel, self);
            }
            #[inline(always)]
            fn load(self, from: &[$float]) -> Self::Vector {
                [from[0], from[1], from[2], from[3]]
            }
            #[inline(always)]
            fn store(self, vector: Self::Vector, to: &mut [$float]) {
                to[..4].copy_from_slice(&vector);
            }
            #[inline(always)]
            fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
                std::array::from_fn(|lane| a[lane] + b[lane])
            }
            #[inline(always)]
            fn mul_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector {
                let mut y = c;
                for lane in 0..4 {
                    y[lane] = if Self::IS_FUSED {
                        a[lane].mul_add(b[lane], c[lane])
                    } else {
                        a[lane] * b[lane] + c[lane]
                    };
                }
                y
            }
            #[inline(always)]
            fn sum(self, vector: Self::Vector) -> $float {
                (vector[0] + vector[2]) + (vector[1] + vector[3])
            }
        }
    )*};
}
portable!(f32, f64);

/// AVX2 and FMA; made only by [`Avx2::detect`].
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
struct Avx2(());

/// AVX-512F and VL; made only by [`Avx512::detect`]. Without VL the compiler puts what has a narrow
/// part into the first sixteen registers, and the rest into memory.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
struct Avx512(());

#[cfg(target_arch = "x86_64")]
impl Fused for Avx2 {
    const IS_FUSED: bool = true;
}

#[cfg(target_arch = "x86_64")]
impl Fused for Avx512 {
    const IS_FUSED: bool = true;
}

#[cfg(target_arch = "x86_64")]
impl Avx2 {
    fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        (has && is_allowed(256)).then_some(Self(()))
    }
}

#[cfg(target_arch = "x86_64")]
impl Avx512 {
    fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl");
        (has && is_allowed(512)).then_some(Self(()))
    }
}

/// Whether vectors of so many bits may be used: always, but in a test of narrower ones.
#[cfg(all(target_arch = "x86_64", not(test)))]
#[inline(always)]
pub(super) fn is_allowed(_bits: usize) -> bool {
    true
}

#[cfg(all(target_arch = "x86_64", test))]
pub(super) fn is_allowed(bits: usize) -> bool {
    bits <= WIDEST_BITS.get()
}

#[cfg(test)]
thread_local! {
    static WIDEST_BITS: std::cell::Cell<usize> = const { std::cell::Cell::new(usize::MAX) };
}

/// Runs a test with each instruction set of this processor. Only this thread is narrowed: a pool
/// has to have no other.
#[cfg(test)]
pub(crate) fn on_every_instruction_set(test: impl Fn()) {
    for bits in [128, 256, usize::MAX] {
        WIDEST_BITS.set(bits);
        test();
    }
}

#[cfg(target_arch = "x86_64")]
macro_rules! x86 {
    ($($set:ty, $float:ty, $vector:ty, $lanes:literal of $registers:literal, $run:ident,
       $splat:ident, $load:ident, $store:ident,
       $add:ident, $mul_add:ident, $sum:ident
       $(, $transpose:ident $(, $sum_each:ident)?)?;)*) => {$(
        impl Simd<$float> for $set {
            type Vector = $vector;
            const LANE_COUNT: usize = $lanes;
            const REGISTER_COUNT: usize = $registers;
            #[inline(always)]
            fn splat(self, value: $float) -> Self::Vector {
                // SAFETY: needs the instruction set, which `self` proves.
                unsafe { $splat(value) }
            }
            #[inline(always)]
            fn call(self, kernel: impl SimdKernel<$float>) {
                // SAFETY: needs the instruction set, which `self` proves.
                unsafe { $run(kernel, self) }
            }
            #[inline(always)]
            fn load(self, from: &[$float]) -> Self::Vector {
                let from = &from[..$lanes];
                // SAFETY: `self` proves the instruction set; the line above checked the length.
                unsafe { $load(from.as_ptr()) }
            }
            #[inline(always)]
            fn store(self, vector: Self::Vector, to: &mut [$float]) {
                let to = &mut to[..$lanes];
                // SAFETY: `self` proves the instruction set; the line above checked the length.
                unsafe { $store(to.as_mut_ptr(), vector) }
            }
            #[inline(always)]
            fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
                // SAFETY: needs the instruction set, which `self` proves.
                unsafe { $add(a, b) }
            }
            #[inline(always)]
            fn mul_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector {
                // SAFETY: needs the instruction set, which `self` proves.
                unsafe { $mul_add(a, b, c) }
            }
            #[inline(always)]
            fn sum(self, vector: Self::Vector) -> $float {
                // SAFETY: needs the instruction set, which `self` proves.
                unsafe { $sum(vector) }
            }
            #[inline(always)]
            fn fetch(self, from: &$float) {
                // SAFETY: every x86-64 processor has it, and a reference is a valid address.
                unsafe { _mm_prefetch::<_MM_HINT_T1>(std::ptr::from_ref(from).cast()) }
            }
            $(
                #[inline(always)]
                fn transpose(
                    self,
                    from: &[$float],
                    from_stride: usize,
                    to: &mut [$float],
                    to_stride: usize,
                ) {
                    // SAFETY: needs the instruction set, which `self` proves.
                    unsafe { $transpose(self, from, from_stride, to, to_stride) }
                }
                $(
                    #[inline(always)]
                    fn sum_each(self, vectors: &[Self::Vector], to: &mut [$float]) {
                        // SAFETY: needs the instruction set, which `self` proves.
                        unsafe { $sum_each(self, vectors, to) }
                    }
                )?
            )?
        }
    )*};
}
#[cfg(target_arch = "x86_64")]
x86! {
    Avx2, f32, __m256, 8 of 16, run_avx2, _mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps,
        _mm256_add_ps, _mm256_fmadd_ps, sum_8, transpose_8x8;
    Avx2, f64, __m256d, 4 of 16, run_avx2, _mm256_set1_pd, _mm256_loadu_pd, _mm256_storeu_pd,
        _mm256_add_pd, _mm256_fmadd_pd, sum_4;
    Avx512, f32, __m512, 16 of 32, run_avx512, _mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps,
        _mm512_add_ps, _mm512_fmadd_ps, sum_16, transpose_16x16, sum_each_16;
    Avx512, f64, __m512d, 8 of 32, run_avx512, _mm512_set1_pd, _mm512_loadu_pd, _mm512_storeu_pd,
        _mm512_add_pd, _mm512_fmadd_pd, sum_8_wide;
}

#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
fn sum_8(lanes: __m256) -> f32 {
    let fours = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps::<1>(lanes));
    let pairs = _mm_add_ps(fours, _mm_movehl_ps(fours, fours));
    _mm_cvtss_f32(_mm_add_ss(pairs, _mm_movehdup_ps(pairs)))
}

#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
fn sum_4(lanes: __m256d) -> f64 {
    let pairs = _mm_add_pd(_mm256_castpd256_pd128(lanes), _mm256_extractf128_pd::<1>(lanes));
    _mm_cvtsd_f64(_mm_add_sd(pairs, _mm_unpackhi_pd(pairs, pairs)))
}

#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
fn sum_16(lanes: __m512) -> f32 {
    let after = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(lanes)));
    sum_8(_mm256_add_ps(_mm512_castps512_ps256(lanes), after))
}

#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
fn sum_8_wide(lanes: __m512d) -> f64 {
    let after = _mm512_extractf64x4_pd::<1>(lanes);
    sum_4(_mm256_add_pd(_mm512_castpd512_pd256(lanes), after))
}

/// Sixteen at a time: halves of two vectors are added up in one, then quarters and so on, so that
/// the lanes of a vector meet in the order of [`sum_16`]. A call, because the loop before it would
/// have to do with the registers that this leaves.
#[cfg(target_arch = "x86_64")]
#[inline(never)]
#[target_feature(enable = "avx512f,avx512vl")]
fn sum_each_16(simd: Avx512, vectors: &[__m512], to: &mut [f32]) {
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
        // Every fourth is the sum of one of the first four vectors, and so on.
        let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        let mut sums = [0.0f32; 16];
        simd.store(_mm512_permutexvar_ps(order, all), &mut sums);
        to[first..][..count].copy_from_slice(&sums[..count]);
    }
}

/// Turns 8 rows of 8: pairs, then fours, then halves change places.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
fn transpose_8x8(simd: Avx2, from: &[f32], from_stride: usize, to: &mut [f32], to_stride: usize) {
    let mut rows: [__m256; 8] = [simd.splat(0.0f32); 8];
    for (r, row) in rows.iter_mut().enumerate() {
        *row = simd.load(&from[r * from_stride..]);
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

/// Turns 16 rows of 16: pairs, fours, then quarters change places, twice.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
fn transpose_16x16(
    simd: Avx512,
    from: &[f32],
    from_stride: usize,
    to: &mut [f32],
    to_stride: usize,
) {
    let mut rows: [__m512; 16] = [simd.splat(0.0f32); 16];
    for (r, row) in rows.iter_mut().enumerate() {
        *row = simd.load(&from[r * from_stride..]);
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
    // Even and odd quarters of the rows above and of those below, ...
    let mut quarters = fours;
    for i in [0, 1, 2, 3, 8, 9, 10, 11] {
        quarters[i] = _mm512_shuffle_f32x4::<0x88>(fours[i], fours[i + 4]);
        quarters[i + 4] = _mm512_shuffle_f32x4::<0xDD>(fours[i], fours[i + 4]);
    }
    // ... and the same once more.
    let mut columns = quarters;
    for i in 0..8 {
        columns[i] = _mm512_shuffle_f32x4::<0x88>(quarters[i], quarters[i + 8]);
        columns[i + 8] = _mm512_shuffle_f32x4::<0xDD>(quarters[i], quarters[i + 8]);
    }
    for (p, &column) in columns.iter().enumerate() {
        simd.store(column, &mut to[p * to_stride..]);
    }
}

/// Compiles `kernel` with AVX2 and FMA: 16 registers, 6×2 accumulators and their operands.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
#[inline(never)]
fn run_avx2<T, K: SimdKernel<T>>(kernel: K, simd: Avx2)
where
    Avx2: Simd<T>,
{
    kernel.run::<_, 6, 2>(simd);
}

/// Compiles `kernel` with AVX-512F and VL: 32 registers, 8×2 accumulators and their operands.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl")]
#[inline(never)]
fn run_avx512<T, K: SimdKernel<T>>(kernel: K, simd: Avx512)
where
    Avx512: Simd<T>,
{
    kernel.run::<_, 8, 2>(simd);
}

/// What [`dispatch_f32`] chooses, in words.
pub(super) fn instruction_set() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    if Avx512::detect().is_some() {
        return "AVX-512";
    } else if Avx2::detect().is_some() {
        return "AVX2";
    }
    "portable"
}

macro_rules! dispatch {
    ($($name:ident $float:ty),*) => {$(
        /// Runs `kernel` with the best instruction set of this processor.
        pub(super) fn $name<K: SimdKernel<$float>>(kernel: K) {
            #[cfg(target_arch = "x86_64")]
            if let Some(simd) = Avx512::detect() {
                // SAFETY: needs AVX-512F and VL, which `simd` proves.
                return unsafe { run_avx512(kernel, simd) };
            } else if let Some(simd) = Avx2::detect() {
                // SAFETY: needs AVX2 and FMA, which `simd` proves.
                return unsafe { run_avx2(kernel, simd) };
            }
            run_portable(kernel, Portable);
        }
    )*};
}
dispatch!(dispatch_f32 f32, dispatch_f64 f64);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::math::SimdFloat;
    use crate::dtype::Float;

    /// An instruction set that is narrowed away is not used, so the tests run with each.
    #[test]
    fn narrowing_takes_instruction_sets_away() {
        struct Lanes<'a>(&'a mut Vec<usize>);
        impl SimdKernel<f32> for Lanes<'_> {
            fn run<S: Simd<f32>, const ROWS: usize, const COLS: usize>(self, _: S) {
                self.0.push(S::LANE_COUNT);
            }
        }
        let seen = std::cell::RefCell::new(Vec::new());
        on_every_instruction_set(|| f32::dispatch(Lanes(&mut seen.borrow_mut())));
        let seen = seen.into_inner();
        assert_eq!((seen.len(), seen[0]), (3, 4), "{seen:?}");
        assert!(seen.is_sorted(), "{seen:?}");
        #[cfg(target_arch = "x86_64")]
        {
            let is_wide = is_x86_feature_detected!("avx512vl");
            assert!(!is_wide || seen == [4, 8, 16], "{seen:?}");
        }
    }

    /// y += a·x.
    struct Axpy<'a, T>(T, &'a [T], &'a mut [T]);

    impl<T: Float> SimdKernel<T> for Axpy<'_, T> {
        #[inline(always)]
        fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(self, simd: S) {
            let Axpy(a, x, y) = self;
            assert!(S::LANE_COUNT <= LANE_COUNT_MAX);
            for (x, y) in x.chunks_exact(S::LANE_COUNT).zip(y.chunks_exact_mut(S::LANE_COUNT)) {
                simd.store(simd.mul_add(simd.splat(a), simd.load(x), simd.load(y)), y);
            }
        }
    }

    fn check_axpy<T: SimdFloat>() {
        let x: Vec<T> = (0..32).map(|i| T::from_f64(f64::from(i))).collect();
        let mut y = vec![T::ONE; 32];
        T::dispatch(Axpy(T::from_f64(3.0), &x, &mut y));
        assert!((0..32).all(|i| y[i] == T::from_f64(3.0 * i as f64 + 1.0)), "{y:?}");
    }

    #[test]
    fn every_instruction_set_computes_the_same() {
        on_every_instruction_set(|| {
            check_axpy::<f32>();
            check_axpy::<f64>();
        });
    }

    /// So many vectors of numbers whose sum depends on the order.
    struct SumEach(usize);

    impl<T: Float> SimdKernel<T> for SumEach {
        #[inline(always)]
        fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(self, simd: S) {
            let mut vectors = [simd.splat(T::ZERO); 40];
            for (i, vector) in vectors.iter_mut().enumerate() {
                let lanes = std::array::from_fn::<_, LANE_COUNT_MAX, _>(|lane| {
                    T::from_f64(1.0 / (i * LANE_COUNT_MAX + lane + 1) as f64)
                });
                *vector = simd.load(&lanes);
            }
            let mut sums = [T::ZERO; 40];
            simd.sum_each(&vectors[..self.0], &mut sums[..self.0]);
            for (i, &sum) in sums.iter().enumerate() {
                let expected = if i < self.0 { simd.sum(vectors[i]) } else { T::ZERO };
                assert_eq!(sum, expected, "{i} of {}", self.0);
            }
        }
    }

    #[test]
    fn sums_of_many_vectors_are_those_of_each() {
        on_every_instruction_set(|| {
            for count in [0, 1, 3, 12, 16, 24, 40] {
                f32::dispatch(SumEach(count));
                f64::dispatch(SumEach(count));
            }
        });
    }

    /// A square of numbers that are all different becomes the one with rows for columns.
    struct Turn;

    impl<T: Float> SimdKernel<T> for Turn {
        #[inline(always)]
        fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(self, simd: S) {
            let (lanes, from_stride, to_stride) = (S::LANE_COUNT, 20, 17);
            let from: Vec<T> = (0..lanes * from_stride).map(|i| T::from_f64(i as f64)).collect();
            let mut to = vec![T::ZERO; lanes * to_stride];
            simd.transpose(&from, from_stride, &mut to, to_stride);
            for (r, p) in (0..lanes).flat_map(|r| (0..lanes).map(move |p| (r, p))) {
                assert!(
                    to[p * to_stride + r] == from[r * from_stride + p],
                    "({r}, {p}) of {lanes}"
                );
            }
        }
    }

    #[test]
    fn every_instruction_set_turns_a_square() {
        on_every_instruction_set(|| {
            f32::dispatch(Turn);
            f64::dispatch(Turn);
        });
    }

    /// Thirds have a sum in every order, and rounded it tells the orders apart.
    struct AddUp;

    impl<T: Float> SimdKernel<T> for AddUp {
        #[inline(always)]
        fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(self, simd: S) {
            for seed in 0..100 {
                let number = |lane: usize| T::from_f64(((lane * 37 + seed) % 101) as f64 / 3.0);
                let mut lanes: Vec<T> = (0..S::LANE_COUNT).map(number).collect();
                let found = simd.sum(simd.load(&lanes));
                while lanes.len() > 1 {
                    let after = lanes.split_off(lanes.len() / 2);
                    lanes.iter_mut().zip(after).for_each(|(lane, other)| *lane += other);
                }
                assert!(found == lanes[0], "{found:?} instead of {lanes:?}");
            }
        }
    }

    #[test]
    fn every_instruction_set_adds_lanes_up_in_the_same_order() {
        on_every_instruction_set(|| {
            f32::dispatch(AddUp);
            f64::dispatch(AddUp);
        });
    }
}
