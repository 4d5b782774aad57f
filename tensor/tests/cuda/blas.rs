use lowtide_allocator::cuda::{CudaError, CudaStreams, Libraries};
use lowtide_allocator::{Buffer, CachingAllocator, Repeat, Stream};
use lowtide_tensor::DType;
use lowtide_tensor::cuda::gate::{
    Blas, BlasError, Epilogue, MatrixLayout, Order, PlanCounts, Precision, Product,
    ProductOperands, WriteMode,
};
use proptest::prelude::*;

use crate::gpu::Gpu;

/// A layout with `extra` elements between rows and `gap` elements between matrices, so that
/// addresses are not round.
fn layout(order: Order, [rows, columns]: [usize; 2], extra: usize, gap: usize) -> MatrixLayout {
    let [rows, columns] = stored(order, [rows, columns]);
    let leading = columns + extra;
    MatrixLayout { order, leading, batch_stride: rows * leading + gap }
}

fn stored(order: Order, [rows, columns]: [usize; 2]) -> [usize; 2] {
    if order == Order::Rows { [rows, columns] } else { [columns, rows] }
}

/// The index of an element in its block.
fn at(layout: &MatrixLayout, z: usize, row: usize, column: usize) -> usize {
    let [row, column] = stored(layout.order, [row, column]);
    z * layout.batch_stride + row * layout.leading + column
}

/// Number of elements that a batch covers.
fn len(layout: &MatrixLayout, batch: usize, size: [usize; 2]) -> usize {
    1 + at(layout, batch - 1, size[0] - 1, size[1] - 1)
}

fn product(batch: usize, [m, n, k]: [usize; 3], orders: [Order; 2], extra: usize) -> Product {
    Product {
        batch,
        m,
        n,
        k,
        y: layout(Order::Rows, [m, n], extra, extra),
        a: layout(orders[0], [m, k], extra, 0),
        b: layout(orders[1], [k, n], extra, 2 * extra),
        factors: DType::F32,
        result: DType::F32,
        precision: Precision::F32,
        start: WriteMode::Overwrite,
        epilogue: Epilogue::Nothing,
    }
}

/// Small whole numbers, so that every sum is exact.
fn numbers(len: usize, seed: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 7 + seed * 13) % 11) as f32 - 5.0).collect()
}

/// The product by the definition.
fn naive(product: &Product, y: &mut [f32], a: &[f32], b: &[f32]) {
    for z in 0..product.batch {
        for i in 0..product.m {
            for j in 0..product.n {
                let term = |l| a[at(&product.a, z, i, l)] * b[at(&product.b, z, l, j)];
                let sum: f32 = (0..product.k).map(term).sum();
                let y = &mut y[at(&product.y, z, i, j)];
                *y = if product.start == WriteMode::Accumulate { *y + sum } else { sum };
            }
        }
    }
}

struct Lab {
    blas: Blas,
    memory: CachingAllocator,
    streams: CudaStreams,
    gpu: Gpu,
}

impl Lab {
    fn of(gpu: Gpu) -> Option<Lab> {
        let (streams, memory) = gpu.memory();
        match Blas::of(streams.device()) {
            Ok(blas) => Some(Lab { blas, memory, streams, gpu }),
            Err(error) => {
                println!("skipped: {}: {error}", std::thread::current().name().unwrap_or("blas"));
                None
            }
        }
    }

    /// A block that has values after `offset` other elements.
    fn block(&self, offset: usize, values: &[f32]) -> Buffer {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let block = self.memory.allocate(4 * offset + bytes.len() + 64).unwrap();
        let range = 4 * offset..4 * offset + bytes.len();
        self.streams.upload(Stream::DEFAULT, &bytes, (&block, range)).unwrap();
        block
    }

    fn read(&self, block: &Buffer, offset: usize, len: usize) -> Vec<f32> {
        let mut bytes = vec![0; 4 * len];
        let range = 4 * offset..4 * (offset + len);
        self.streams.download(Stream::DEFAULT, (block, range), &mut bytes).unwrap();
        bytes.chunks(4).map(|word| f32::from_le_bytes(word.try_into().unwrap())).collect()
    }

    /// The result of a product on operands from a seed, and the expected result.
    fn both(
        &self,
        product: &Product,
        seed: usize,
        offset: usize,
    ) -> Result<[Vec<f32>; 2], BlasError> {
        let Product { batch, m, n, k, .. } = *product;
        let mut y = numbers(len(&product.y, batch, [m, n]), seed);
        let a = numbers(len(&product.a, batch, [m, k]), seed + 1);
        let b = numbers(len(&product.b, batch, [k, n]), seed + 2);
        let blocks = [&y, &a, &b].map(|values| self.block(offset, values));
        let workspace = self.memory.allocate(4096).unwrap();
        let range = |values: &[f32]| 4 * offset..4 * (offset + values.len());
        let operands = ProductOperands {
            y: (&blocks[0], range(&y)),
            a: (&blocks[1], range(&a)),
            b: (&blocks[2], range(&b)),
            vector: None,
            workspace: (&workspace, 0..4096),
        };
        self.blas.enqueue(&self.streams, Stream::DEFAULT, product, &operands)?;
        let found = self.read(&blocks[0], offset, y.len());
        naive(product, &mut y, &a, &b);
        Ok([found, y])
    }
}

const ORDERS: [Order; 2] = [Order::Rows, Order::Columns];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn product_is_that_of_its_definition(
        size in proptest::array::uniform3(1_usize..9),
        batch in 1_usize..4,
        orders in proptest::array::uniform2(0_usize..2),
        extra in 0_usize..3,
        offset in 0_usize..5,
        repeats in proptest::bool::ANY,
        accumulates in proptest::bool::ANY,
    ) {
        let Some(lab) = Gpu::take().and_then(Lab::of) else { return Ok(()) };
        let mut product = product(batch, size, orders.map(|order| ORDERS[order]), extra);
        if repeats {
            product.b.batch_stride = 0;
        }
        if accumulates {
            product.start = WriteMode::Accumulate;
        }
        let [found, expected] = lab.both(&product, 1, offset).unwrap();
        prop_assert_eq!(found, expected);
    }
}

#[test]
fn plan_is_made_once_for_what_decides_it() {
    let Some(lab) = Gpu::take().and_then(Lab::of) else { return };
    let plain = product(2, [5, 4, 3], ORDERS, 1);
    let counts = |made, found| PlanCounts { made, found };
    for round in 0..3 {
        lab.both(&plain, round, 0).unwrap();
        assert_eq!(lab.blas.plan_counts(), counts(1, round as u64));
    }
    // Less aligned addresses need another plan: a kernel for more alignment would fault.
    lab.both(&plain, 0, 1).unwrap();
    lab.both(&Product { precision: Precision::Tf32, ..plain }, 0, 0).unwrap();
    lab.both(&product(2, [5, 4, 3], [Order::Rows; 2], 1), 0, 0).unwrap();
    lab.both(&product(2, [5, 4, 3], ORDERS, 2), 0, 0).unwrap();
    lab.both(&product(1, [5, 4, 3], ORDERS, 1), 0, 0).unwrap();
    assert_eq!(lab.blas.plan_counts(), counts(6, 2));
    lab.both(&plain, 0, 0).unwrap();
    assert_eq!(lab.blas.clone().plan_counts(), counts(6, 3));
}

#[test]
fn factors_are_rounded_where_that_is_asked_for_and_nowhere_else() {
    let Some(lab) = Gpu::pretend().and_then(Lab::of) else { return };
    let value = 1.0 + f32::EPSILON;
    let [one, y] = [[value].as_slice(), &[0.0]].map(|values| lab.block(0, values));
    let workspace = lab.memory.allocate(256).unwrap();
    let exact = product(1, [1, 1, 1], [Order::Rows; 2], 0);
    for (precision, expected) in [(Precision::F32, value * value), (Precision::Tf32, 1.0)] {
        let places = [&y, &one, &one].map(|block| (block, 0..4));
        let [y_place, a, b] = places;
        let workspace = (&workspace, 0..0);
        let operands = ProductOperands { y: y_place, a, b, vector: None, workspace };
        let product = Product { precision, ..exact };
        lab.blas.enqueue(&lab.streams, Stream::DEFAULT, &product, &operands).unwrap();
        assert_eq!(lab.read(&y, 0, 1), [expected], "{precision:?}");
    }
}

#[test]
fn operands_that_do_not_fit_are_refused_before_the_library_is_asked() {
    let Some(lab) = Gpu::pretend().and_then(Lab::of) else { return };
    let good = product(2, [4, 3, 5], [Order::Rows; 2], 0);
    let blocks = [0, 1, 2, 3].map(|_| lab.memory.allocate(4096).unwrap());
    let calls = lab.gpu.pretend.calls("");
    let enqueue = |product: &Product, bytes: [usize; 4]| {
        let [y, a, b, w] = std::array::from_fn(|index| (&blocks[index], 0..bytes[index]));
        let operands = ProductOperands { y, a, b, vector: None, workspace: w };
        lab.blas.enqueue(&lab.streams, Stream::DEFAULT, product, &operands)
    };
    let whole = [4 * 24, 4 * 40, 4 * 30, 0];
    let biased = Product { epilogue: Epilogue::Bias, ..good };
    let error = BlasError::Short { operand: "vector", needed_bytes: 12, given_bytes: 0 };
    assert_eq!(enqueue(&biased, whole), Err(error));
    let summed = Product { epilogue: Epilogue::RowSums, ..good };
    let error = BlasError::Short { operand: "vector", needed_bytes: 16, given_bytes: 0 };
    assert_eq!(enqueue(&summed, whole), Err(error));
    for (operand, index) in [("y", 0), ("a", 1), ("b", 2)] {
        let mut bytes = whole;
        bytes[index] -= 4;
        let (needed_bytes, given_bytes) = (whole[index], bytes[index]);
        let error = BlasError::Short { operand, needed_bytes, given_bytes };
        assert_eq!(enqueue(&good, bytes), Err(error));
    }
    let change = |operand: &str, change: fn(&mut MatrixLayout)| {
        let mut product = good;
        change(match operand {
            "y" => &mut product.y,
            "a" => &mut product.a,
            _ => &mut product.b,
        });
        enqueue(&product, [4096, 4096, 4096, 0])
    };
    for operand in ["y", "a", "b"] {
        let error = Err(BlasError::Layout { operand });
        assert_eq!(change(operand, |layout| layout.leading -= 1), error);
        assert_eq!(change(operand, |layout| layout.leading = usize::MAX), error);
        assert_eq!(change(operand, |layout| layout.batch_stride = usize::MAX), error);
    }
    let error = Err(BlasError::Layout { operand: "y" });
    assert_eq!(change("y", |layout| layout.batch_stride -= 1), error);
    assert_eq!(change("y", |layout| layout.order = Order::Columns), error);
    assert!(matches!(
        enqueue(&good, [1 << 20, 160, 120, 0]),
        Err(BlasError::Driver(CudaError::NotOfDevice { .. }))
    ));
    // A product with nothing to sum up is for the caller's own kernel; a product with nothing to
    // write is done.
    let none = enqueue(&Product { k: 0, ..good }, whole).unwrap_err();
    assert!(none.is_unsupported(), "{none}");
    assert_eq!(enqueue(&Product { n: 0, ..good }, whole), Ok(()));
    assert_eq!(lab.gpu.pretend.calls(""), calls);
    assert_eq!(lab.blas.plan_counts(), PlanCounts::default());
    enqueue(&good, whole).unwrap();
    lab.streams.synchronize(Stream::DEFAULT).unwrap();
}

#[test]
fn every_call_that_fails_is_an_error_and_leaves_nothing() {
    let Some(gpu) = Gpu::pretend() else { return };
    let (streams, memory) = gpu.memory();
    let block = memory.allocate(4096).unwrap();
    streams.fill(Stream::DEFAULT, &block, 0..4096, 0).unwrap();
    let product = product(1, [4, 4, 4], ORDERS, 0);
    let place = |index: usize| (&block, index * 1024..(index + 1) * 1024);
    let [y, a, b, workspace] = [0, 1, 2, 3].map(place);
    let operands = ProductOperands { y, a, b, vector: None, workspace };
    let multiply = || -> Result<(), BlasError> {
        let blas = Blas::of(streams.device())?;
        blas.enqueue(&streams, Stream::DEFAULT, &product, &operands)
    };
    let before = gpu.pretend.calls("");
    multiply().unwrap();
    let calls = gpu.pretend.calls("") - before;
    let mut failures = 0;
    for nth in 1..=calls {
        gpu.pretend.fail("", 3, nth, Repeat::Once);
        let result = multiply();
        gpu.pretend.fail("", 0, 0, Repeat::Once);
        if let Err(error) = &result {
            failures += 1;
            assert!(error.to_string().contains("failed with"), "{error}");
        }
        assert_eq!(gpu.pretend.live("blas"), 0, "{nth} of {calls}: {result:?}");
    }
    // Calls that release something are repeated, so no request fails: 6 descriptions and the
    // handle, each with a call that restores the context.
    assert!(failures > calls / 2 && failures < calls, "{failures} of {calls}");
    gpu.pretend.fail("cublasLtMatmulAlgoGetHeuristic", 15, 1, Repeat::Once);
    let none = multiply().unwrap_err();
    assert_eq!(none, BlasError::NoPlan { workspace_bytes: 1024 });
    assert!(none.is_unsupported() && !none.is_out_of_memory());
    gpu.pretend.fail("cublasLtCreate", 3, 1, Repeat::Once);
    let full = multiply().unwrap_err();
    assert!(full.is_out_of_memory() && !full.is_unsupported(), "{full}");
    multiply().unwrap();
    streams.synchronize(Stream::DEFAULT).unwrap();
}

#[test]
fn product_waits_for_its_turn_on_the_stream() {
    let Some(lab) = Gpu::take().and_then(Lab::of) else { return };
    let product = product(1, [3, 3, 3], [Order::Rows; 2], 0);
    let [y, a, b] = [0.0, 1.0, 2.0].map(|value| lab.block(0, &[value; 9]));
    let workspace = lab.memory.allocate(256).unwrap();
    let operands = ProductOperands {
        y: (&y, 0..36),
        a: (&a, 0..36),
        b: (&b, 0..36),
        vector: None,
        workspace: (&workspace, 0..256),
    };
    let on = Stream::DEFAULT;
    lab.streams.fill_words(on, &a, 0..36, 3.0_f32.to_bits()).unwrap();
    lab.blas.enqueue(&lab.streams, on, &product, &operands).unwrap();
    lab.streams.fill_words(on, &b, 0..36, 0).unwrap();
    assert_eq!(lab.read(&y, 0, 9), [18.0; 9]);
}

#[test]
fn missing_library_is_a_reason_to_use_ones_own_kernel() {
    let Some(gpu) = Gpu::pretend() else { return };
    let folder = gpu.driver.path().parent().unwrap();
    let alone = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("driver-alone");
    let _ = std::fs::remove_dir_all(&alone);
    std::fs::create_dir_all(&alone).unwrap();
    std::fs::copy(folder.join("libcuda.so.1"), alone.join("libcuda.so.1")).unwrap();
    std::fs::write(alone.join("libcublasLt.so.12"), "no library").unwrap();
    let libraries = Libraries::in_folders([alone]);
    let driver = lowtide_allocator::cuda::Driver::open(&libraries).unwrap();
    let device = lowtide_allocator::cuda::CudaDevice::of(&driver, 0).unwrap();
    let error = Blas::of(&device).unwrap_err();
    assert!(matches!(error, BlasError::Missing(_)) && error.is_unsupported(), "{error}");
    assert!(error.to_string().contains("libcublasLt.so.12"), "{error}");
}
