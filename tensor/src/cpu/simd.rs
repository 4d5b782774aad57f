//! Vectors of f32 and f64 in the widest form that the processor has, chosen at run time.
//!
//! A kernel is written once against [`Simd`] and compiled for each instruction set;
//! [`SimdFloat::dispatch`] picks one. Detection is a load of a cached flag.

#![allow(unsafe_code, reason = "vector instructions and the proof that they exist")]

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use crate::dtype::Float;

/// No instruction set has more lanes; buffers read by whole vectors keep this much slack.
pub(crate) const LANE_COUNT_MAX: usize = 16;

/// Whether an instruction set multiplies and adds in one go; what scalar formulas ask, which the
/// compiler vectorises (see `math.rs`).
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
    /// The same value in each lane.
    fn splat(self, value: T) -> Self::Vector;
    /// The first `LANE_COUNT` values of a slice that has at least as many.
    fn load(self, from: &[T]) -> Self::Vector;
    /// Overwrites the first `LANE_COUNT` values of a slice that has at least as many.
    fn store(self, vector: Self::Vector, to: &mut [T]);
    /// a·b + c in each lane, rounded once where the processor can.
    fn mul_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
}

/// A loop nest to be compiled for every instruction set. Its methods must be `#[inline(always)]`,
/// or the vectors end up in functions that may not use their instructions.
pub(crate) trait SimdKernel<T> {
    /// Runs it. `ROWS` × `COLS` accumulators of the product kernels fit the register file.
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(self, simd: S);
}

/// A float with vector instructions.
pub(crate) trait SimdFloat: Float {
    /// Runs `kernel` with the best instruction set of this processor.
    fn dispatch<K: SimdKernel<Self>>(kernel: K);
}

/// No instruction set in particular: short arrays that the compiler vectorises as it can.
#[derive(Clone, Copy)]
struct Portable;

impl Fused for Portable {
    const IS_FUSED: bool = cfg!(target_arch = "aarch64");
}

macro_rules! portable {
    ($($float:ty),*) => {$(
        impl Simd<$float> for Portable {
            type Vector = [$float; 4];
            const LANE_COUNT: usize = 4;
            #[inline(always)]
            fn splat(self, value: $float) -> Self::Vector {
                [value; 4]
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
        }
    )*};
}
portable!(f32, f64);

/// AVX2 and FMA; made only by [`Avx2::detect`].
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
struct Avx2(());

/// AVX-512F; made only by [`Avx512::detect`].
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
        (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")).then_some(Self(()))
    }
}

#[cfg(target_arch = "x86_64")]
impl Avx512 {
    fn detect() -> Option<Self> {
        is_x86_feature_detected!("avx512f").then_some(Self(()))
    }
}

#[cfg(target_arch = "x86_64")]
macro_rules! x86 {
    ($($set:ty, $float:ty, $vector:ty, $lanes:literal,
       $splat:ident, $load:ident, $store:ident, $mul_add:ident;)*) => {$(
        impl Simd<$float> for $set {
            type Vector = $vector;
            const LANE_COUNT: usize = $lanes;
            #[inline(always)]
            fn splat(self, value: $float) -> Self::Vector {
                // SAFETY: needs the instruction set, which `self` proves.
                unsafe { $splat(value) }
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
            fn mul_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector {
                // SAFETY: needs the instruction set, which `self` proves.
                unsafe { $mul_add(a, b, c) }
            }
        }
    )*};
}
#[cfg(target_arch = "x86_64")]
x86! {
    Avx2, f32, __m256, 8,
        _mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_fmadd_ps;
    Avx2, f64, __m256d, 4,
        _mm256_set1_pd, _mm256_loadu_pd, _mm256_storeu_pd, _mm256_fmadd_pd;
    Avx512, f32, __m512, 16,
        _mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_fmadd_ps;
    Avx512, f64, __m512d, 8,
        _mm512_set1_pd, _mm512_loadu_pd, _mm512_storeu_pd, _mm512_fmadd_pd;
}

/// Compiles `kernel` with AVX2 and FMA: 16 registers, 6×2 accumulators and their operands.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn run_avx2<T, K: SimdKernel<T>>(kernel: K, simd: Avx2)
where
    Avx2: Simd<T>,
{
    kernel.run::<_, 6, 2>(simd);
}

/// Compiles `kernel` with AVX-512F: 32 registers, 8×2 accumulators and their operands.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn run_avx512<T, K: SimdKernel<T>>(kernel: K, simd: Avx512)
where
    Avx512: Simd<T>,
{
    kernel.run::<_, 8, 2>(simd);
}

macro_rules! simd_float {
    ($($float:ty),*) => {$(
        impl SimdFloat for $float {
            fn dispatch<K: SimdKernel<Self>>(kernel: K) {
                #[cfg(target_arch = "x86_64")]
                if let Some(simd) = Avx512::detect() {
                    // SAFETY: needs AVX-512F, which `simd` proves.
                    return unsafe { run_avx512(kernel, simd) };
                } else if let Some(simd) = Avx2::detect() {
                    // SAFETY: needs AVX2 and FMA, which `simd` proves.
                    return unsafe { run_avx2(kernel, simd) };
                }
                kernel.run::<_, 4, 2>(Portable);
            }
        }
    )*};
}
simd_float!(f32, f64);

#[cfg(test)]
mod tests {
    use super::*;

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

    fn check_axpy<T: SimdFloat>(run: impl Fn(Axpy<'_, T>)) {
        let x: Vec<T> = (0..32).map(|i| T::from_f64(f64::from(i))).collect();
        let mut y = vec![T::ONE; 32];
        run(Axpy(T::from_f64(3.0), &x, &mut y));
        assert!((0..32).all(|i| y[i] == T::from_f64(3.0 * i as f64 + 1.0)), "{y:?}");
    }

    #[test]
    fn every_instruction_set_computes_the_same() {
        check_axpy::<f32>(|kernel| f32::dispatch(kernel));
        check_axpy::<f64>(|kernel| f64::dispatch(kernel));
        check_axpy::<f32>(|kernel| kernel.run::<_, 4, 2>(Portable));
        check_axpy::<f64>(|kernel| kernel.run::<_, 4, 2>(Portable));
        #[cfg(target_arch = "x86_64")]
        if let Some(simd) = Avx2::detect() {
            // SAFETY: needs AVX2 and FMA, which `simd` proves.
            check_axpy::<f32>(|kernel| unsafe { run_avx2(kernel, simd) });
            // SAFETY: needs AVX2 and FMA, which `simd` proves.
            check_axpy::<f64>(|kernel| unsafe { run_avx2(kernel, simd) });
        }
    }
}
