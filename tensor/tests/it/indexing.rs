//! Elements chosen by indices, and elements sent to the places of indices.

use lowtide_tensor::{DType, Tensor, TensorError, TensorResult as Result, bf16};
use proptest::prelude::*;

use crate::common::{
    Style, all_floats, assert_close, assert_same, download, laid_out, sample, shapes, shared, sim,
    styles, writable_styles,
};
use crate::golden::fixture;
use crate::naive::{Array, index_of};

fn dtypes() -> impl Strategy<Value = DType> {
    prop::sample::select(DType::ALL.to_vec())
}

/// Indices below `len`, many of them repeated.
fn indices(dims: &[usize], len: usize, seed: usize) -> Array {
    let count = dims.iter().product();
    let value = |i: usize| ((i * i + i * seed + seed) % len.max(1)) as f64;
    Array::new(dims, (0..count).map(value).collect())
}

/// `index` with position `axis` replaced.
fn with(index: &[usize], axis: usize, at: f64) -> Vec<usize> {
    let mut index = index.to_vec();
    index[axis] = at as usize;
    index
}

fn gather_naive(x: &Array, axis: usize, index: &Array) -> Array {
    Array::from_fn(&index.dims, |at| x.at(&with(at, axis, index.at(at))))
}

/// `x` after `arrive(x's element, source's element)` for each index in order.
fn scatter_naive(
    x: &Array,
    axis: usize,
    index: &Array,
    source: &Array,
    arrive: impl Fn(f64, f64) -> f64,
) -> Array {
    let mut y = x.clone();
    for place in 0..index.len() {
        let at = index_of(&index.dims, place);
        let to = with(&at, axis, index.at(&at));
        let to = to.iter().zip(&x.dims).fold(0, |to, (&at, &dim)| to * dim + at);
        y.values[to] = arrive(y.values[to], source.at(&at));
    }
    y
}

/// An index for each slice along `axis`, spread over all other dimensions of `dims`.
fn spread(index: &Array, dims: &[usize], axis: usize) -> Array {
    let mut dims = dims.to_vec();
    dims[axis] = index.len();
    Array::from_fn(&dims, |at| index.values[at[axis]])
}

type InPlace = fn(&mut Tensor, usize, &Tensor, &Tensor) -> Result<()>;
type OutOfPlace = fn(&Tensor, usize, &Tensor, &Tensor) -> Result<Tensor>;

/// Checks that both forms of an operation give `expected`.
fn check_both(
    [x, index, source]: [&Tensor; 3],
    axis: usize,
    expected: &Array,
    (in_place, out_of_place): (InPlace, OutOfPlace),
    style: Style,
) {
    let version = x.version();
    assert_same(&out_of_place(x, axis, index, source).unwrap(), expected);
    assert_eq!(x.version(), version);
    let mut y = laid_out(&download(x), style, x.dtype());
    in_place(&mut y, axis, index, source).unwrap();
    assert_same(&y, expected);
}

/// Checks all four operations that send elements, for one shape.
fn check_arrivals(
    dims: &[usize],
    axis: usize,
    count: usize,
    [style, from, to]: [Style; 3],
    dtype: DType,
) {
    let (x, twin) = sample(dims, style, dtype, 1);
    let slices = indices(&[count], dims[axis], 3);
    let mut source_dims = dims.to_vec();
    source_dims[axis] = count;
    let (source, source_twin) = sample(&source_dims, from, dtype, 2);
    let index = laid_out(&slices, Style::Narrowed, DType::I64);
    let wide = spread(&slices, dims, axis);
    let whole = scatter_naive(&twin, axis, &wide, &source_twin, |_, b| b);
    let operands = [&x, &index, &source];
    check_both(operands, axis, &whole, (Tensor::index_copy_, Tensor::index_copy), to);

    // The indices are fewer than the elements along the other dimensions.
    let mut index_dims: Vec<usize> = dims.iter().map(|&dim| dim - usize::from(dim > 2)).collect();
    index_dims[axis] = count;
    let places = indices(&index_dims, dims[axis], 7);
    let index = laid_out(&places, from, DType::I64);
    let places = download(&index);
    let part = scatter_naive(&twin, axis, &places, &source_twin, |_, b| b);
    let operands = [&x, &index, &source];
    check_both(operands, axis, &part, (Tensor::scatter_, Tensor::scatter), to);
    if dtype == DType::Bool {
        return;
    }
    // u8 wraps, and both sides of a sum of multiples of 1/8 are exact.
    let add = |a: f64, b: f64| if dtype == DType::U8 { (a + b) % 256.0 } else { a + b };
    let sums = scatter_naive(&twin, axis, &places, &source_twin, add);
    check_both(operands, axis, &sums, (Tensor::scatter_add_, Tensor::scatter_add), to);
    let index = laid_out(&slices, Style::Contiguous, DType::I64);
    let sums = scatter_naive(&twin, axis, &wide, &source_twin, add);
    let operands = [&x, &index, &source];
    check_both(operands, axis, &sums, (Tensor::index_add_, Tensor::index_add), to);
}

proptest! {
    #[test]
    fn gather_and_index_select_follow_their_indices(
        dims in shapes(), style in styles(), index_style in styles(), dtype in dtypes(),
        axis in 0..5usize, count in 0..7usize,
    ) {
        prop_assume!(!dims.is_empty());
        let axis = axis % dims.len();
        let (x, twin) = sample(&dims, style, dtype, 1);
        let count = if dims[axis] == 0 { 0 } else { count };
        let slices = indices(&[count], dims[axis], 3);
        let index = laid_out(&slices, index_style, DType::I64);
        let slices = download(&index);
        let expected = gather_naive(&twin, axis, &spread(&slices, &dims, axis));
        assert_same(&x.index_select(axis, &index).unwrap(), &expected);

        let mut index_dims: Vec<usize> =
            dims.iter().map(|&dim| dim - usize::from(dim > 2)).collect();
        index_dims[axis] = count;
        let index = laid_out(&indices(&index_dims, dims[axis], 5), index_style, DType::I64);
        let expected = gather_naive(&twin, axis, &download(&index));
        assert_same(&x.gather(axis, &index).unwrap(), &expected);
    }

    #[test]
    fn embedding_and_its_gradient_are_inverse_directions(
        dims in prop::collection::vec(0..4usize, 0..=4), rows in 1..6usize, columns in 0..5usize,
        style in styles(), index_style in styles(), dtype in all_floats(),
    ) {
        let (table, twin) = sample(&[rows, columns], style, dtype, 1);
        let index = laid_out(&indices(&dims, rows, 3), index_style, DType::I64);
        let places = download(&index);
        let y_dims = [&dims[..], &[columns]].concat();
        let row = |at: &[usize]| places.at(&at[..at.len() - 1]) as usize;
        let expected = Array::from_fn(&y_dims, |at| twin.at(&[row(at), at[at.len() - 1]]));
        assert_same(&table.embedding(&index).unwrap(), &expected);
        let (dy, dy_twin) = sample(&y_dims, style, dtype, 2);
        let mut sums = Array::new(&[rows, columns], vec![0.0; rows * columns]);
        for place in 0..dy_twin.len() {
            let at = index_of(&y_dims, place);
            sums.values[row(&at) * columns + at[at.len() - 1]] += dy_twin.at(&at);
        }
        assert_close(&dy.embedding_backward(&index, rows).unwrap(), &sums, 1);
    }

    #[test]
    fn what_is_sent_arrives_in_order(
        dims in shapes(), style in styles(), from in styles(), to in writable_styles(),
        dtype in dtypes(), axis in 0..5usize, count in 0..7usize,
    ) {
        prop_assume!(!dims.is_empty());
        let axis = axis % dims.len();
        let count = if dims[axis] == 0 { 0 } else { count };
        check_arrivals(&dims, axis, count, [style, from, to], dtype);
    }

    #[test]
    fn one_hot_has_a_one_at_each_index(
        dims in prop::collection::vec(0..4usize, 0..=4), classes in 1..6usize,
        style in styles(), dtype in dtypes(),
    ) {
        let index = laid_out(&indices(&dims, classes, 3), style, DType::I64);
        let twin = download(&index);
        let expected = Array::from_fn(&[&dims[..], &[classes]].concat(), |at| {
            let (class, at) = at.split_last().unwrap();
            f64::from(u8::from(twin.at(at) == *class as f64))
        });
        assert_same(&index.one_hot(classes, dtype).unwrap(), &expected);
    }

    #[test]
    fn masks_keep_what_is_true_in_order(
        dims in shapes(), style in styles(), mask_style in styles(), dtype in dtypes(),
        dropped in 0..3usize,
    ) {
        let (x, twin) = sample(&dims, style, dtype, 1);
        // A mask of fewer dimensions is broadcast.
        let mask_dims = &dims[dropped.min(dims.len())..];
        let (mask, mask_twin) = sample(mask_dims, mask_style, DType::Bool, 2);
        let mask_twin = mask_twin.expand(&dims);
        let kept = twin.values.iter().zip(&mask_twin.values).filter(|(_, keep)| **keep != 0.0);
        let kept: Vec<f64> = kept.map(|(x, _)| *x).collect();
        assert_same(&x.masked_select(&mask).unwrap(), &Array::new(&[kept.len()], kept));
        let places = (0..twin.len()).filter(|&place| twin.values[place] != 0.0);
        let indices: Vec<f64> =
            places.clone().flat_map(|place| index_of(&dims, place)).map(|at| at as f64).collect();
        assert_same(&x.nonzero().unwrap(), &Array::new(&[places.count(), dims.len()], indices));
    }
}

/// Tensors large enough to be cut among threads, along either dimension of the destination.
#[test]
fn large_arrivals_are_those_of_small_ones() {
    use Style::{Contiguous, Expanded, Narrowed, Transposed};
    for (dims, axis, count) in [
        ([301, 83], 0, 402),
        ([83, 301], 1, 402),
        ([2, 20_011], 1, 20_011),
        ([20_011, 2], 0, 20_011),
        ([1, 20_011], 0, 3),
        ([41, 1], 0, 30_000),
    ] {
        for styles in [
            [Contiguous, Contiguous, Contiguous],
            [Transposed, Contiguous, Transposed],
            [Narrowed, Expanded, Narrowed],
        ] {
            check_arrivals(&dims, axis, count, styles, DType::F64);
        }
        check_arrivals(&dims, axis, count, [Contiguous; 3], DType::I32);
        let (x, twin) = sample(&dims, Transposed, DType::F32, 1);
        let slices = indices(&[count], dims[axis], 3);
        let index = laid_out(&slices, Contiguous, DType::I64);
        let expected = gather_naive(&twin, axis, &spread(&slices, &dims, axis));
        assert_same(&x.index_select(axis, &index).unwrap(), &expected);
        let wide = laid_out(&spread(&slices, &dims, axis), Contiguous, DType::I64);
        assert_same(&x.gather(axis, &wide).unwrap(), &expected);
    }
    let (x, twin) = sample(&[3, 20_011], Style::Transposed, DType::I64, 1);
    let mask = x.gt_scalar(10.0).unwrap();
    let kept: Vec<f64> = twin.values.iter().copied().filter(|&x| x > 10.0).collect();
    assert_same(&x.masked_select(&mask).unwrap(), &Array::new(&[kept.len()], kept));
}

#[test]
fn sums_of_half_types_round_once_unless_in_place() {
    // In bf16, 1 + 2⁻⁹ is 1, but the sum of 300 such steps counts.
    let x = Tensor::ones(shared(), [1], DType::BF16).unwrap();
    let steps = Tensor::full(shared(), [300], DType::BF16, 2f64.powi(-9)).unwrap();
    let index = Tensor::zeros(shared(), [300], DType::I64).unwrap();
    let value = |y: &Tensor| y.to_vec::<bf16>().unwrap()[0].to_f64();
    let sum = bf16::from_f64(1.0 + 300.0 / 512.0).to_f64();
    assert_eq!(value(&x.index_add(0, &index, &steps).unwrap()), sum);
    assert_eq!(value(&x.scatter_add(0, &index, &steps).unwrap()), sum);
    let mut y = x.copied().unwrap();
    y.index_add_(0, &index, &steps).unwrap();
    assert_eq!(value(&y), 1.0);
    let dy = steps.unsqueeze(1).unwrap();
    let table = dy.embedding_backward(&index, 2).unwrap();
    assert_eq!(table.to_vec::<bf16>().unwrap(), [300.0 / 512.0, 0.0].map(bf16::from_f64));
}

#[test]
fn indices_out_of_range_are_named_and_nothing_is_written() {
    for (len, bad) in [(3, 3), (3, -1), (3, i64::MIN), (40_000, 3)] {
        let mut values = vec![0i64; len];
        values[len - 2] = bad;
        let index = Tensor::from_slice(shared(), [len], &values).unwrap();
        let x = Tensor::ones(shared(), [3], DType::F32).unwrap();
        let source = Tensor::full(shared(), [len], DType::F32, 7.0).unwrap();
        #[track_caller]
        fn check<T>(outcome: Result<T>, name: &str, bad: i64) {
            match outcome.err() {
                Some(TensorError::Index { op, index, len: 3 }) => {
                    assert_eq!((op, index as i64), (name, bad));
                }
                other => panic!("{name}: {other:?}"),
            }
        }
        let mut y = x.clone();
        check(y.scatter_(0, &index, &source), "scatter", bad);
        check(y.scatter_add_(0, &index, &source), "scatter_add", bad);
        check(y.index_add_(0, &index, &source), "index_add", bad);
        check(y.index_copy_(0, &index, &source), "index_copy", bad);
        check(x.scatter(0, &index, &source), "scatter", bad);
        check(x.scatter_add(0, &index, &source), "scatter_add", bad);
        check(x.index_add(0, &index, &source), "index_add", bad);
        check(x.index_copy(0, &index, &source), "index_copy", bad);
        check(x.gather(0, &index), "gather", bad);
        check(x.index_select(0, &index), "index_select", bad);
        check(x.unsqueeze(1).unwrap().embedding(&index), "embedding", bad);
        let dy = source.unsqueeze(1).unwrap();
        check(dy.embedding_backward(&index, 3), "embedding_backward", bad);
        check(index.one_hot(3, DType::U8), "one_hot", bad);
        assert_eq!((x.to_vec::<f32>().unwrap(), x.version()), (vec![1.0; 3], 1));
    }
}

#[test]
fn lengths_that_values_decide_are_assumed_on_a_simulated_device() {
    let device = sim(1);
    let x = Tensor::zeros(&device, [4, 5], DType::F32).unwrap();
    let mask = Tensor::zeros(&device, [5], DType::Bool).unwrap();
    let unavailable = |outcome: Result<Tensor>, name: &str| match outcome {
        Err(TensorError::ValueUnavailable { op, .. }) => assert_eq!(op, name),
        other => panic!("{name}: {other:?}"),
    };
    unavailable(x.masked_select(&mask), "masked_select");
    unavailable(x.nonzero(), "nonzero");
    assert_eq!(x.masked_select_assuming(&mask, 20).unwrap().shape()[..], [20]);
    assert_eq!(x.nonzero_assuming(7).unwrap().shape()[..], [7, 2]);
    let assumed: Vec<f64> = device.assumptions().iter().map(|assumed| assumed.value).collect();
    assert_eq!(assumed, [20.0, 7.0]);
    assert!(device.assumptions().iter().all(|assumed| assumed.site.file() == file!()));
    let error = x.nonzero_assuming(21).unwrap_err();
    assert!(matches!(error, TensorError::Index { op: "nonzero", index: 21, len: 21 }));
}

#[test]
fn indexing_equals_pytorch() {
    let fixture = fixture("moves");
    let of = |name: &str| &fixture[name];
    let check = |name: &str, found: Tensor| assert_same(&found, &download(of(name)));
    let [x, special, index, rows] = ["x", "special", "index", "rows"].map(of);
    let [source, table, tokens, dy] = ["source", "table", "tokens", "dy"].map(of);
    check("nonzero", special.nonzero().unwrap());
    check("masked_select", x.masked_select(&x.gt_scalar(0.25).unwrap()).unwrap());
    check("gather", x.gather(1, index).unwrap());
    check("index_select", x.index_select(0, rows).unwrap());
    check("scatter_add", x.scatter_add(1, index, source).unwrap());
    check("scatter", x.scatter(1, &index.narrow(1, 0, 1).unwrap(), source).unwrap());
    check("index_add", x.index_add(0, rows, source).unwrap());
    let two = |x: &Tensor| x.narrow(0, 0, 2).unwrap();
    check("index_copy", x.index_copy(0, &two(rows), &two(source)).unwrap());
    check("one_hot", tokens.one_hot(12, DType::I64).unwrap());
    check("embedding", table.embedding(tokens).unwrap());
    check("embedding.grad", dy.embedding_backward(tokens, 12).unwrap());
}

#[test]
fn places_are_counted_on_across_tasks() {
    let is_kept = |i: &i64| i % 1000 == 7;
    let mask: Vec<bool> = (0..40_000).map(|i| is_kept(&i)).collect();
    let mask = Tensor::from_slice(shared(), [200, 200], &mask).unwrap();
    let places = (0..40_000).filter(is_kept).flat_map(|i| [i / 200, i % 200]);
    let found = mask.nonzero().unwrap().to_vec::<i64>().unwrap();
    assert_eq!(found, places.collect::<Vec<i64>>());
}
