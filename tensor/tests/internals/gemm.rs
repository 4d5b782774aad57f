//! Products against the definition, over generated shapes, strides and types.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use lowtide_tensor::testing::WriteMode;
use lowtide_tensor::testing::cpu::{
    MatrixProducts, Multiplied, cpu, has_pairs, on_every_instruction_set,
};
use lowtide_tensor::{Cpu, DType, Element, Float, bf16, f16};
use proptest::prelude::*;

/// Small integers, so that every order of summation gives the same bits.
fn values<T: Float>(len: usize, seed: usize) -> Vec<T> {
    (0..len).map(|i| T::from_f64(((i * 5 + seed + i / 7) % 11) as f64 - 5.0)).collect()
}

/// y = or += a · b of one type, for `size` (M, K, N).
fn gemm<T: Multiplied<T, T>>(
    cpu: &Cpu,
    size: [usize; 3],
    a: (&[T], [usize; 2]),
    b: (&[T], [usize; 2]),
    start: WriteMode,
    y: (&mut [T], [usize; 2]),
) {
    T::multiply(cpu, MatrixProducts { batch: None, size, a, b, bias: &[], start }, y);
}

/// Strides of an `[rows, cols]` matrix: row-major or column-major, `gap` elements apart.
fn strides(rows: usize, cols: usize, column_major: bool, gap: usize) -> [usize; 2] {
    if column_major { [1 + gap, rows * (1 + gap)] } else { [cols * (1 + gap), 1 + gap] }
}

fn check_product<T: Float + Multiplied<T, T>>(
    cpu: &Cpu,
    [m, k, n]: [usize; 3],
    [a_turned, b_turned, y_turned]: [bool; 3],
    gap: usize,
    start: WriteMode,
) {
    let a_strides = strides(m, k, a_turned, gap);
    let b_strides = strides(k, n, b_turned, 0);
    let y_strides = strides(m, n, y_turned, gap);
    let a = values::<T>(m * k * (1 + gap), 1);
    let b = values::<T>(k * n, 2);
    let mut y = values::<T>(m * n * (1 + gap), 3);
    if start == WriteMode::Overwrite {
        // Overwriting must not read: 0 · NaN would show.
        y.fill(T::from_f64(f64::NAN));
    }
    let before = y.clone();
    gemm(cpu, [m, k, n], (&a, a_strides), (&b, b_strides), start, (&mut y, y_strides));
    let mut written = vec![false; y.len()];
    for i in 0..m {
        for j in 0..n {
            let at = i * y_strides[0] + j * y_strides[1];
            let mut expected = if start == WriteMode::Overwrite { T::ZERO } else { before[at] };
            for p in 0..k {
                let a = a[i * a_strides[0] + p * a_strides[1]];
                expected += a * b[p * b_strides[0] + j * b_strides[1]];
            }
            assert_eq!(y[at], expected, "({i}, {j}) of {m}x{k}x{n}");
            written[at] = true;
        }
    }
    for (at, written) in written.iter().enumerate() {
        let same = y[at].to_f64().to_bits() == before[at].to_f64().to_bits();
        assert!(*written || same, "element {at} is not y's");
    }
}

fn len() -> impl Strategy<Value = usize> {
    prop_oneof![0..=5usize, 6..=40usize, 120..=140usize, 190..=200usize, 380..=400usize]
}

proptest! {
    #[test]
    fn product_agrees_with_the_definition(
        size in [len(), len(), len()],
        turned in [any::<bool>(), any::<bool>(), any::<bool>()],
        gap in 0..=1usize,
        start in prop_oneof![Just(WriteMode::Overwrite), Just(WriteMode::Accumulate)],
    ) {
        let cpu = cpu(2);
        check_product::<f32>(&cpu, size, turned, gap, start);
        check_product::<f64>(&cpu, size, turned, gap, start);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn product_agrees_with_the_definition_on_every_instruction_set(
        size in [len(), len(), len()],
        turned in [any::<bool>(), any::<bool>(), any::<bool>()],
    ) {
        let cpu = cpu(1);
        on_every_instruction_set(|| {
            check_product::<f32>(&cpu, size, turned, 0, WriteMode::Overwrite);
            check_product::<f64>(&cpu, size, turned, 0, WriteMode::Overwrite);
        });
    }
}

/// A product of operands that are stored in any type.
#[derive(Clone, Copy, Debug)]
struct StoredCase {
    size: [usize; 3],
    /// True for each of a, b and y that is stored transposed.
    turned: [bool; 3],
    gap: usize,
    count: usize,
    has_bias: bool,
    start: WriteMode,
}

fn stored_case() -> impl Strategy<Value = StoredCase> {
    let rows = prop_oneof![0..=9usize, 45..=55usize];
    let depth = prop_oneof![0..=5usize, 30..=70usize, 190..=200usize, 380..=400usize];
    let cols = prop_oneof![0..=9usize, 30..=70usize, 95..=130usize];
    let start = prop_oneof![Just(WriteMode::Overwrite), Just(WriteMode::Accumulate)];
    let flags = (any::<[bool; 3]>(), any::<bool>());
    (rows, depth, cols, flags, 0..=1usize, 1..=2usize, start).prop_map(
        |(m, k, n, (turned, has_bias), gap, count, start)| StoredCase {
            size: [m, k, n],
            turned,
            gap,
            count,
            has_bias,
            start,
        },
    )
}

impl StoredCase {
    /// The products of `count` matrices, one after the other, into a copy of `y`.
    fn run<A: Multiplied<B, Y>, B: Element, Y: Element>(
        &self,
        cpu: &Cpu,
        (a, b): (&[A], &[B]),
        bias: &[Y],
        y: &[Y],
    ) -> Vec<Y> {
        let [a_strides, b_strides, y_strides] = self.strides();
        let mut y = y.to_vec();
        let products = MatrixProducts {
            batch: Some((self.count, self.lens())),
            size: self.size,
            a: (a, a_strides),
            b: (b, b_strides),
            bias,
            start: self.start,
        };
        A::multiply(cpu, products, (&mut y, y_strides));
        y
    }

    /// Rows and columns of a, b and y.
    fn shapes(&self) -> [[usize; 2]; 3] {
        let [m, k, n] = self.size;
        [[m, k], [k, n], [m, n]]
    }

    fn strides(&self) -> [[usize; 2]; 3] {
        let shapes = self.shapes();
        [0, 1, 2].map(|x| strides(shapes[x][0], shapes[x][1], self.turned[x], self.gap))
    }

    /// Elements of one matrix each.
    fn lens(&self) -> [usize; 3] {
        self.shapes().map(|[rows, cols]| rows * cols * (1 + self.gap))
    }

    /// Operands, a bias and the elements of y before the product: numbers by place and seed.
    fn operands<A: Element, B: Element, Y: Element>(
        &self,
        number: impl Fn(usize, usize) -> f32,
    ) -> (Vec<A>, Vec<B>, Vec<Y>, Vec<Y>) {
        fn all<E: Element>(len: usize, number: impl Fn(usize) -> f32) -> Vec<E> {
            (0..len).map(|i| E::from_f32(number(i))).collect()
        }
        let [a, b, y] = self.lens().map(|len| len * self.count);
        let bias = if self.has_bias { self.size[2] } else { 0 };
        // Overwriting must not read: NaN would show.
        let held = |i| if self.start == WriteMode::Overwrite { f32::NAN } else { number(i, 3) };
        (
            all(a, |i| number(i, 1)),
            all(b, |i| number(i, 2)),
            all(bias, |i| number(i, 4)),
            all(y, held),
        )
    }
}

fn widened<E: Element>(from: &[E]) -> Vec<f32> {
    from.iter().map(|x| x.cast()).collect()
}

/// Bits, so that NaN is equal to itself.
fn bits<E: Element>(values: &[E]) -> Vec<u64> {
    values.iter().map(|x| x.to_f64().to_bits()).collect()
}

/// Every element is the sum of the definition, in numbers whose sums are exact, rounded once.
fn check_stored_definition<A: Multiplied<B, Y>, B: Element, Y: Element>(
    cpu: &Cpu,
    case: &StoredCase,
) {
    let small = |i: usize, seed: usize| ((i * 5 + seed + i / 7) % 11) as f32 - 5.0;
    let (a, b, bias, held) = case.operands::<A, B, Y>(small);
    let found = case.run(cpu, (&a, &b), &bias, &held);
    let ([m, k, n], lens) = (case.size, case.lens());
    let (a, b) = (widened(&a), widened(&b));
    let [a_strides, b_strides, y_strides] = case.strides();
    let mut expected = held.clone();
    for (q, i) in (0..case.count).flat_map(|q| (0..m).map(move |i| (q, i))) {
        for j in 0..n {
            let y = &mut expected[q * lens[2] + i * y_strides[0] + j * y_strides[1]];
            let mut sum: f32 = match case.start {
                WriteMode::Accumulate => y.cast(),
                WriteMode::Overwrite => bias.get(j).map_or(0.0, |bias| bias.cast()),
            };
            for p in 0..k {
                let a = a[q * lens[0] + i * a_strides[0] + p * a_strides[1]];
                sum += a * b[q * lens[1] + p * b_strides[0] + j * b_strides[1]];
            }
            *y = Y::from_f32(sum);
        }
    }
    let names = [A::DTYPE, B::DTYPE, Y::DTYPE];
    assert_eq!(bits(&found), bits(&expected), "{names:?}: {case:?}");
}

/// Numbers from -1 to 1.
fn noise(i: usize, seed: usize) -> f32 {
    let bits = (i as u32 ^ (seed as u32) << 28).wrapping_mul(2_654_435_761) >> 8;
    bits as f32 / (1 << 23) as f32 - 1.0
}

/// Compares a product with the product of the same numbers in f32, rounded once: the bits are
/// equal. Products of pairs round otherwise, and are as near to the exact result as the f32 sum.
fn check_stored_rounding<A: Multiplied<B, Y>, B: Element, Y: Element>(
    cpu: &Cpu,
    case: &StoredCase,
) {
    let (a, b, bias, held) = case.operands::<A, B, Y>(noise);
    let found = case.run(cpu, (&a, &b), &bias, &held);
    let (wide_a, wide_b) = (widened(&a), widened(&b));
    let wide = case.run(cpu, (&wide_a, &wide_b), &widened(&bias), &widened(&held));
    let expected: Vec<Y> = wide.into_iter().map(Y::from_f32).collect();
    let names = [A::DTYPE, B::DTYPE, Y::DTYPE];
    let depth = case.size[1];
    if names[..2] != [DType::BF16; 2] || !has_pairs() {
        return assert_eq!(bits(&found), bits(&expected), "{names:?}: {case:?}");
    }
    // Each step of either sum rounds, a sum of numbers below 1 and of any sign.
    let bound = 4.0 * depth as f64 * f64::from(f32::EPSILON);
    let rounding = if Y::DTYPE == DType::BF16 { bf16::EPSILON.to_f64() } else { 0.0 };
    for (found, expected) in found.iter().zip(&expected) {
        let [found, expected] = [found, expected].map(|x| x.to_f64());
        let is_near = (found - expected).abs() <= bound + rounding * expected.abs();
        assert!(is_near || (found.is_nan() && expected.is_nan()), "{found}, {expected}: {case:?}");
    }
}

/// `$check` for all types that callers have operands and results of.
macro_rules! for_stored_types {
    ($check:ident, $cpu:expr, $case:expr) => {
        $check::<f16, f16, f16>($cpu, $case);
        $check::<bf16, bf16, bf16>($cpu, $case);
        $check::<f16, f16, f32>($cpu, $case);
        $check::<bf16, bf16, f32>($cpu, $case);
        $check::<f32, f16, f16>($cpu, $case);
        $check::<f32, bf16, bf16>($cpu, $case);
        $check::<f32, bf16, f32>($cpu, $case);
    };
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn half_types_agree_with_the_definition_on_every_instruction_set(case in stored_case()) {
        let cpu = cpu(1);
        on_every_instruction_set(|| {
            for_stored_types!(check_stored_definition, &cpu, &case);
        });
    }

    #[test]
    fn half_types_have_the_bits_of_f32_rounded_on_every_instruction_set(case in stored_case()) {
        let cpu = cpu(1);
        on_every_instruction_set(|| {
            for_stored_types!(check_stored_rounding, &cpu, &case);
        });
    }
}

#[test]
fn half_types_have_the_bits_of_f32_rounded_in_many_panels_on_any_threads() {
    let (has_bias, start) = (true, WriteMode::Overwrite);
    for turned in [[false; 3], [true, false, false], [false, true, false], [false, false, true]] {
        for size in [[420, 400, 330], [3, 200, 2500], [2500, 200, 3]] {
            let case = StoredCase { size, turned, gap: 0, count: 1, has_bias, start };
            for threads in [1, 2, 3] {
                check_stored_rounding::<bf16, bf16, bf16>(&cpu(threads), &case);
                check_stored_rounding::<f32, f16, f16>(&cpu(threads), &case);
            }
        }
    }
}

#[test]
fn products_of_pairs_have_the_same_bits_in_any_panels_on_any_threads() {
    let (has_bias, start) = (true, WriteMode::Overwrite);
    for turned in [[false; 3], [true, false, false], [false, true, false], [false, false, true]] {
        let case = StoredCase { size: [420, 801, 330], turned, gap: 0, count: 1, has_bias, start };
        let (a, b, bias, held) = case.operands::<bf16, bf16, bf16>(noise);
        let [one, two, three] =
            [1, 2, 3].map(|threads| case.run(&cpu(threads), (&a, &b), &bias, &held));
        assert_eq!(bits(&one), bits(&two), "{case:?}");
        assert_eq!(bits(&one), bits(&three), "{case:?}");
        if turned == [false; 3] {
            // The first rows alone lie in other tiles.
            let case = StoredCase { size: [5, 801, 330], ..case };
            let few = case.run(&cpu(1), (&a, &b), &bias, &held);
            assert_eq!(bits(&one[..5 * 330]), bits(&few[..5 * 330]));
        }
    }
}

/// Rows of bf16 are pairs as they lie, unless those of a product start in the middle of one.
#[test]
fn rows_of_bf16_may_start_anywhere() {
    let [m, k, n] = [9, 40, 20];
    let small = |len: usize, step: usize| -> Vec<bf16> {
        (0..len).map(|i| bf16::from_f64((i * step % 7) as f64 - 3.0)).collect()
    };
    for (first, stride) in [(0, m * k), (1, m * k), (0, m * k + 1), (1, m * k + 1)] {
        let (all, b) = (small(first + stride + m * k, 3), small(k * n, 5));
        let (a, mut y) = (&all[first..], vec![0.0f32; 2 * m * n]);
        let products = MatrixProducts {
            batch: Some((2, [stride, 0, m * n])),
            size: [m, k, n],
            a: (a, [k, 1]),
            b: (&b, [n, 1]),
            bias: &[],
            start: WriteMode::Overwrite,
        };
        bf16::multiply(&cpu(1), products, (&mut y, [n, 1]));
        for (at, &found) in y.iter().enumerate() {
            let (product, i, j) = (at / (m * n), at / n % m, at % n);
            let a = &a[product * stride + i * k..][..k];
            let products = a.iter().enumerate().map(|(p, a)| a.to_f32() * b[p * n + j].to_f32());
            assert_eq!(found, products.sum::<f32>(), "{first}, {stride}: ({i}, {j}) of {product}");
        }
    }
}

#[test]
fn long_sums_agree_with_the_definition() {
    let cpu = cpu(2);
    for turned in [[false; 3], [true, false, false], [false, true, false]] {
        check_product::<f32>(&cpu, [9, 1300, 17], turned, 0, WriteMode::Overwrite);
        check_product::<f32>(&cpu, [9, 1300, 17], turned, 0, WriteMode::Accumulate);
    }
}

/// Panels of one tile of rows multiply all of the depth before the next columns, others do not.
#[test]
fn few_rows_of_a_long_depth_agree_with_the_definition() {
    let cpu = cpu(2);
    for size in [[1, 900, 200], [7, 1000, 130], [18, 5000, 8], [30, 3000, 5]] {
        for [a_turned, b_turned] in [[false, false], [false, true], [true, true]] {
            let turned = [a_turned, b_turned, false];
            check_product::<f32>(&cpu, size, turned, 0, WriteMode::Overwrite);
            check_product::<f64>(&cpu, size, turned, 0, WriteMode::Accumulate);
        }
    }
}

#[test]
fn rows_that_share_a_set_of_the_cache_agree_with_the_definition() {
    let cpu = cpu(3);
    for start in [WriteMode::Overwrite, WriteMode::Accumulate] {
        // Rows 4096 bytes apart, which are packed; and more rows than a panel has.
        check_product::<f32>(&cpu, [50, 1024, 40], [false; 3], 0, start);
        check_product::<f64>(&cpu, [50, 512, 40], [false; 3], 0, start);
        check_product::<f32>(&cpu, [800, 1024, 12], [false; 3], 0, start);
        check_product::<f64>(&cpu, [400, 512, 20], [false, true, false], 0, start);
    }
}

#[test]
fn thread_count_does_not_change_a_bit() {
    check_any_thread_count([200, 700, 300]);
    // More rows than a panel has, which are cut by the number of threads.
    check_any_thread_count([800, 1024, 40]);
}

fn check_any_thread_count(size: [usize; 3]) {
    let [m, k, n] = size;
    let noise = |len: usize, seed: u32| -> Vec<f32> {
        (0..len as u32).map(|i| ((i ^ seed).wrapping_mul(2_654_435_761) >> 9) as f32).collect()
    };
    let (a, b) = (noise(m * k, 1), noise(k * n, 2));
    let results = [1, 2, 3].map(|threads| {
        let mut y = vec![0.0; m * n];
        gemm(
            &cpu(threads),
            size,
            (&a, [k, 1]),
            (&b, [n, 1]),
            WriteMode::Overwrite,
            (&mut y, [n, 1]),
        );
        y
    });
    assert_eq!(results[0], results[1]);
    assert_eq!(results[0], results[2]);
}

#[test]
#[should_panic(expected = "a is 2x3")]
fn a_matrix_outside_its_slice_is_refused() {
    let (a, b, mut y) = ([0.0f32; 5], [0.0; 6], [0.0; 4]);
    let start = WriteMode::Overwrite;
    gemm(&cpu(1), [2, 3, 2], (&a, [3, 1]), (&b, [2, 1]), start, (&mut y, [2, 1]));
}

#[test]
#[should_panic(expected = "elements of y overlap")]
fn an_overlapping_destination_is_refused() {
    let (a, b, mut y) = ([0.0f32; 4], [0.0; 4], [0.0; 4]);
    let start = WriteMode::Overwrite;
    gemm(&cpu(1), [2, 2, 2], (&a, [2, 1]), (&b, [1, 2]), start, (&mut y, [0, 1]));
}

thread_local! {
    /// Allocations of this thread; other tests run beside this one.
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is handed to `System` with its arguments unchanged, and the counting
// allocates nothing: the cell is constant-initialised and has no destructor.
unsafe impl GlobalAlloc for Counting {
    // SAFETY: the caller's obligations are those of `System`.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that is ending has no cell any more; nothing is measured there.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's obligations are those of `System`.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: the caller's obligations are those of `System`.
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's obligations are those of `System`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn products_take_no_memory() {
    let cpu = cpu(1);
    let taken = |[m, k, n]: [usize; 3], turned: bool| {
        let (a, b, mut y) = (vec![1.0f64; m * k], vec![1.0; k * n], vec![0.0; m * n]);
        let a_strides = if turned { [1, m] } else { [k, 1] };
        let (size, start) = ([m, k, n], WriteMode::Overwrite);
        let before = ALLOCATIONS.get();
        gemm(&cpu, size, (&a, a_strides), (&b, [n, 1]), start, (&mut y, [n, 1]));
        ALLOCATIONS.get() - before
    };
    assert!(ALLOCATIONS.get() > 0, "allocations of this thread are counted");
    for turned in [false, true] {
        assert_eq!(taken([5, 6, 7], turned), 0);
        assert_eq!(taken([500, 600, 700], turned), 0);
    }
}
