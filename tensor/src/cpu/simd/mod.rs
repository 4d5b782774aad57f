//! Vectors of f32 and f64 in the widest form that the processor has, chosen at run time.
//!
//! A kernel is written once against [`Simd`] and compiled for each instruction set; `dispatch` of
//! [`SimdFloat`](super::math::SimdFloat) picks one. Detection is a load of a cached flag.

#![allow(unsafe_code, reason = "vector instructions and the proof that they exist")]

#[cfg(target_arch = "x86_64")]
mod pairs;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

#[cfg(target_arch = "x86_64")]
use self::x86::*;
use crate::dtype::{Element, same_type, same_type_mut};

/// Largest number of lanes of an instruction set. Buffers that are read by whole vectors have room
/// for this number of elements at their end.
pub(crate) const LANE_COUNT_MAX: usize = 16;

/// The property of an instruction set that scalar formulas need: fused multiply-add (see `math/`).
/// The compiler vectorises these formulas.
pub(crate) trait Fused {
    /// True if `mul_add` is an instruction, not a slow library call.
    const IS_FUSED: bool;
}

/// One instruction set; a value of the type is the proof that the processor has it.
pub(crate) trait Simd<T>: Copy + Fused {
    /// A register of `LANE_COUNT` values.
    type Vector: Copy;
    /// Number of values in a vector.
    const LANE_COUNT: usize;
    /// Number of vector registers.
    const REGISTER_COUNT: usize;
    /// A vector with one value in each lane.
    fn splat(self, value: T) -> Self::Vector;
    /// Runs a kernel as a function of its own. Inside a large function, a loop that fills the
    /// registers is likely to keep some of its vectors in memory.
    fn call(self, kernel: impl SimdKernel<T>);
    /// The first `LANE_COUNT` values of a slice that has at least as many.
    fn load(self, from: &[T]) -> Self::Vector;
    /// Overwrites the first `LANE_COUNT` values of a slice that has at least as many.
    fn store(self, vector: Self::Vector, to: &mut [T]);
    /// a + b in each lane.
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// a·b + c in each lane, rounded once where the processor can.
    fn mul_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// The sum of all lanes. The second half is added to the first, until one lane is left.
    fn sum(self, vector: Self::Vector) -> T;
    /// Fetches the memory of a value into the second-level cache ahead of its use.
    #[inline(always)]
    fn fetch<E>(self, _from: &E) {}
    /// The [`sum`](Self::sum) of each vector.
    #[inline(always)]
    fn sum_each(self, vectors: &[Self::Vector], to: &mut [T]) {
        for (to, &vector) in to.iter_mut().zip(vectors) {
            *to = self.sum(vector);
        }
    }
    /// The first `LANE_COUNT` elements of a slice that has at least as many, converted to `T`. Half
    /// types are converted to f32 only.
    #[inline(always)]
    fn widen<E: Element>(self, from: &[E]) -> Self::Vector
    where
        T: Element,
    {
        if let Some(from) = same_type::<E, T>(from) {
            return self.load(from);
        }
        let from = &from[..Self::LANE_COUNT];
        let mut lanes = [T::ZERO; LANE_COUNT_MAX];
        lanes.iter_mut().zip(from).for_each(|(lane, from)| *lane = from.cast());
        self.load(&lanes)
    }
    /// Converts the lanes with [`Element::cast`] and writes them to the first `LANE_COUNT` elements
    /// of a slice that has at least as many.
    #[inline(always)]
    fn narrow<E: Element>(self, from: Self::Vector, to: &mut [E])
    where
        T: Element,
    {
        if let Some(to) = same_type_mut::<E, T>(to) {
            return self.store(from, to);
        }
        let mut lanes = [T::ZERO; LANE_COUNT_MAX];
        self.store(from, &mut lanes);
        to[..Self::LANE_COUNT].iter_mut().zip(lanes).for_each(|(to, lane)| *to = lane.cast());
    }
    /// Transposes a square of `LANE_COUNT` rows: row `r` of `from` starts at `r * from_stride` and
    /// becomes column `r` of `to`. The rows of `to` are written in order.
    #[inline(always)]
    fn transpose<E: Element>(self, from: &[E], from_stride: usize, to: &mut [T], to_stride: usize)
    where
        T: Element,
    {
        for p in 0..Self::LANE_COUNT {
            for (r, to) in to[p * to_stride..][..Self::LANE_COUNT].iter_mut().enumerate() {
                *to = from[r * from_stride + p].cast();
            }
        }
    }
}

/// A loop nest that is compiled for every instruction set. The methods must be `#[inline(always)]`:
/// other functions are compiled without the vector instructions.
pub(crate) trait SimdKernel<T> {
    /// Runs the loops. `ROWS` × `COLS` accumulators and their operands fit the register file; a
    /// kernel that needs other numbers derives them from `REGISTER_COUNT`.
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(self, simd: S);
}

/// Portable vectors: short arrays, which the compiler vectorises as it can.
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

/// AVX2, FMA and F16C; made only by [`Avx2::detect`].
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
struct Avx2(());

/// AVX-512F and VL; made only by [`Avx512::detect`]. Without VL the compiler keeps vectors with a
/// narrow part in the first sixteen registers, and the rest in memory.
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
        let has = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
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

/// True if vectors of `bits` may be used: always, but in a test of narrower ones.
#[cfg(all(target_arch = "x86_64", not(feature = "testing")))]
#[inline(always)]
pub(super) fn is_allowed(_bits: usize) -> bool {
    true
}

#[cfg(all(target_arch = "x86_64", feature = "testing"))]
pub(super) fn is_allowed(bits: usize) -> bool {
    bits <= WIDEST_BITS.get()
}

#[cfg(feature = "testing")]
thread_local! {
    static WIDEST_BITS: std::cell::Cell<usize> = const { std::cell::Cell::new(usize::MAX) };
}

/// Runs a test with each instruction set of this processor. Only this thread is narrowed: a pool
/// has to have no other.
#[cfg(feature = "testing")]
pub(crate) fn on_every_instruction_set(test: impl Fn()) {
    for bits in [128, 256, 512, usize::MAX] {
        WIDEST_BITS.set(bits);
        test();
    }
}

#[cfg(target_arch = "x86_64")]
macro_rules! x86 {
    ($($set:ty, $float:ty, $vector:ty, $lanes:literal of $registers:literal, $run:ident,
       $splat:ident, $load:ident, $store:ident,
       $add:ident, $mul_add:ident, $sum:ident
       $(, $transpose:ident, $widen:ident, $narrow:ident $(, $sum_each:ident)?)?;)*) => {$(
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
            fn fetch<E>(self, from: &E) {
                // SAFETY: every x86-64 processor has the instruction, and a reference is a valid
                // address.
                unsafe { _mm_prefetch::<_MM_HINT_T1>(std::ptr::from_ref(from).cast()) }
            }
            $(
                #[inline(always)]
                fn widen<E: Element>(self, from: &[E]) -> Self::Vector {
                    match same_type::<E, $float>(from) {
                        Some(from) => self.load(from),
                        // SAFETY: needs the instruction set, which `self` proves.
                        None => unsafe { $widen(self, from) },
                    }
                }
                #[inline(always)]
                fn narrow<E: Element>(self, from: Self::Vector, to: &mut [E]) {
                    match same_type_mut::<E, $float>(to) {
                        Some(to) => self.store(from, to),
                        // SAFETY: needs the instruction set, which `self` proves.
                        None => unsafe { $narrow(self, from, to) },
                    }
                }
                #[inline(always)]
                fn transpose<E: Element>(
                    self,
                    from: &[E],
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
        _mm256_add_ps, _mm256_fmadd_ps, sum_8, transpose_8x8, widen_8, narrow_8;
    Avx2, f64, __m256d, 4 of 16, run_avx2, _mm256_set1_pd, _mm256_loadu_pd, _mm256_storeu_pd,
        _mm256_add_pd, _mm256_fmadd_pd, sum_4;
    Avx512, f32, __m512, 16 of 32, run_avx512, _mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps,
        _mm512_add_ps, _mm512_fmadd_ps, sum_16, transpose_16x16, widen_16, narrow_16,
        sum_each_16;
}

/// Compiles `kernel` with AVX2, FMA and F16C: 16 registers, 6×2 accumulators and their operands.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
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
fn run_avx512<K: SimdKernel<f32>>(kernel: K, simd: Avx512) {
    kernel.run::<_, 8, 2>(simd);
}

/// The name of the instruction set that [`dispatch_f32`] chooses.
pub(super) fn instruction_set() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    if Avx512::detect().is_some() {
        return "AVX-512";
    } else if Avx2::detect().is_some() {
        return "AVX2";
    }
    "portable"
}

/// Runs `kernel` with the best instruction set of this processor.
pub(super) fn dispatch_f32<K: SimdKernel<f32>>(kernel: K) {
    #[cfg(target_arch = "x86_64")]
    if let Some(simd) = Avx512::detect() {
        // SAFETY: needs AVX-512F and VL, which `simd` proves.
        return unsafe { run_avx512(kernel, simd) };
    } else if let Some(simd) = Avx2::detect() {
        // SAFETY: needs AVX2, FMA and F16C, which `simd` proves.
        return unsafe { run_avx2(kernel, simd) };
    }
    run_portable(kernel, Portable);
}

/// [`dispatch_f32`] for f64, without AVX-512: f64 is for checks, where a shorter build is worth
/// more than speed.
pub(super) fn dispatch_f64<K: SimdKernel<f64>>(kernel: K) {
    #[cfg(target_arch = "x86_64")]
    if let Some(simd) = Avx2::detect() {
        // SAFETY: needs AVX2, FMA and F16C, which `simd` proves.
        return unsafe { run_avx2(kernel, simd) };
    }
    run_portable(kernel, Portable);
}

/// True if [`dispatch_pairs`] may be called: products of bf16 pairs are faster on this processor.
pub(crate) fn has_pairs() -> bool {
    #[cfg(target_arch = "x86_64")]
    return pairs::Pairs::detect().is_some();
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Runs `kernel` with vectors whose `mul_add` adds the products of pairs of bf16.
///
/// # Panics
/// If [`has_pairs`] is false.
pub(super) fn dispatch_pairs<K: SimdKernel<f32>>(kernel: K) {
    #[cfg(target_arch = "x86_64")]
    if let Some(simd) = pairs::Pairs::detect() {
        // SAFETY: needs AVX-512 and BF16, which `simd` proves.
        return unsafe { pairs::run_pairs(kernel, simd) };
    }
    let _ = kernel;
    unreachable!("this processor has no products of pairs")
}
