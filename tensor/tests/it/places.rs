//! Places named by several indices, reductions at the places of indices, and parts replaced.

use lowtide_tensor::{
    Arrival, DType, Existing, ScatterReduction, Tensor, TensorError, TensorResult as Result, bf16,
};
use proptest::prelude::*;

use crate::common::{
    Style, assert_close, assert_rounded, assert_same, broadcast_shapes, download, full_shapes,
    laid_out, rounded, sample, shapes, shared, sim, styles, upload, writable_styles,
};
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

/// The place in row-major order of each element that the indices name. All indices have one shape.
fn places(dims: &[usize], indices: &[Array]) -> Vec<usize> {
    let row_len: usize = dims[indices.len()..].iter().product();
    let place = |at: usize| {
        let named = indices.iter().zip(dims);
        named.fold(0, |place, (index, dim)| place * dim + index.values[at] as usize)
    };
    let rows = (0..indices[0].len()).map(place);
    rows.flat_map(|row| (0..row_len).map(move |i| row * row_len + i)).collect()
}

/// `x` after `arrive(element, value)` at each place in order.
fn put_naive(
    x: &Array,
    places: &[usize],
    values: &Array,
    arrive: impl Fn(f64, f64) -> f64,
) -> Array {
    let mut y = x.clone();
    for (&place, &value) in places.iter().zip(&values.values) {
        y.values[place] = arrive(y.values[place], value);
    }
    y
}

type Arrive = fn(f64, f64) -> f64;

/// The function of an element and an arriving value, for numbers whose sums are exact in f32.
fn arrive(arrival: Arrival, dtype: DType) -> Arrive {
    match arrival {
        Arrival::Replace => |_, value| value,
        Arrival::Add if dtype == DType::U8 => |x, value| (x + value) % 256.0,
        Arrival::Add => |x, value| x + value,
    }
}

fn arrivals(dtype: DType) -> Vec<Arrival> {
    if dtype == DType::Bool {
        return vec![Arrival::Replace];
    }
    vec![Arrival::Replace, Arrival::Add]
}

/// Checks all operations on several indices, for one shape.
fn check_places(
    dims: &[usize],
    index_dims: &[Vec<usize>],
    values_dims: &[usize],
    [style, from, to]: [Style; 3],
    dtype: DType,
) {
    let (x, twin) = sample(dims, style, dtype, 1);
    let lens = dims.iter().zip(index_dims).enumerate();
    let made: Vec<(Tensor, Array)> = lens
        .map(|(at, (&len, dims))| {
            let index = laid_out(&indices(dims, len, 3 + at), from, DType::I64);
            let twin = download(&index);
            (index, twin)
        })
        .collect();
    let named = index_dims.iter().fold(lowtide_tensor::Shape::new(&[]), |named, dims| {
        named.broadcast(&lowtide_tensor::Shape::new(dims)).expect("they broadcast")
    });
    let twins: Vec<Array> = made.iter().map(|(_, twin)| twin.expand(&named)).collect();
    let places = places(dims, &twins);
    let refs: Vec<&Tensor> = made.iter().map(|(index, _)| index).collect();
    let whole = [&named[..], &dims[refs.len()..]].concat();
    let taken = places.iter().map(|&place| twin.values[place]).collect();
    assert_same(&x.index(&refs).unwrap(), &Array::new(&whole, taken));

    let (values, values_twin) = sample(values_dims, from, dtype, 2);
    let values_twin = values_twin.expand(&whole);
    for arrival in arrivals(dtype) {
        let arrive = arrive(arrival, dtype);
        let expected = put_naive(&twin, &places, &values_twin, arrive);
        assert_rounded(&x.index_put(&refs, &values, arrival).unwrap(), &expected);
        let each = |x, value| rounded(arrive(x, value), dtype);
        let expected = put_naive(&twin, &places, &values_twin, each);
        let mut y = laid_out(&twin, to, dtype);
        y.index_put_(&refs, &values, arrival).unwrap();
        assert_same(&y, &expected);
    }
}

/// Checks both operations on one index into all elements, for one shape.
fn check_flat(dims: &[usize], index_dims: &[usize], styles: [Style; 3], dtype: DType) {
    let [style, from, to] = styles;
    let (x, twin) = sample(dims, style, dtype, 1);
    let index = laid_out(&indices(index_dims, twin.len(), 5), from, DType::I64);
    let places: Vec<usize> = download(&index).values.iter().map(|&at| at as usize).collect();
    let taken = places.iter().map(|&place| twin.values[place]).collect();
    assert_same(&x.take(&index).unwrap(), &Array::new(index_dims, taken));
    let (source, source_twin) = sample(index_dims, from, dtype, 2);
    for arrival in arrivals(dtype) {
        let arrive = arrive(arrival, dtype);
        let expected = put_naive(&twin, &places, &source_twin, arrive);
        assert_rounded(&x.put(&index, &source, arrival).unwrap(), &expected);
        let each = |x, value| rounded(arrive(x, value), dtype);
        let expected = put_naive(&twin, &places, &source_twin, each);
        let mut y = laid_out(&twin, to, dtype);
        y.put_(&index, &source, arrival).unwrap();
        assert_same(&y, &expected);
    }
}

const REDUCTIONS: [ScatterReduction; 5] = [
    ScatterReduction::Sum,
    ScatterReduction::Prod,
    ScatterReduction::Mean,
    ScatterReduction::Amax,
    ScatterReduction::Amin,
];

/// The elements of `x` after a reduction of the values that arrive at each place, in order.
fn reduce_naive(
    x: &Array,
    axis: usize,
    [index, source]: [&Array; 2],
    (reduction, existing): (ScatterReduction, Existing),
    is_float: bool,
) -> Array {
    let mut arrived: Vec<Vec<f64>> = x.values.iter().map(|&x| vec![x]).collect();
    for place in 0..index.len() {
        let at = index_of(&index.dims, place);
        let mut to = at.clone();
        to[axis] = index.values[place] as usize;
        let to = to.iter().zip(&x.dims).fold(0, |to, (&at, &dim)| to * dim + at);
        arrived[to].push(source.at(&at));
    }
    let reduce = |all: &Vec<f64>| {
        let is_alone = all.len() == 1;
        let part = if existing == Existing::Replaced && !is_alone { &all[1..] } else { all };
        let sum: f64 = part.iter().sum();
        match reduction {
            ScatterReduction::Sum => sum,
            ScatterReduction::Prod => part.iter().product(),
            ScatterReduction::Mean if is_float => sum / part.len() as f64,
            ScatterReduction::Mean => (sum / part.len() as f64).floor(),
            ScatterReduction::Amax => part.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            ScatterReduction::Amin => part.iter().copied().fold(f64::INFINITY, f64::min),
        }
    };
    Array::new(&x.dims, arrived.iter().map(reduce).collect())
}

fn check_reductions(dims: &[usize], axis: usize, count: usize, styles: [Style; 2], dtype: DType) {
    let [style, from] = styles;
    let (x, twin) = sample(dims, style, dtype, 1);
    let mut source_dims = dims.to_vec();
    source_dims[axis] = count;
    let (source, source_twin) = sample(&source_dims, from, dtype, 2);
    let slices = indices(&[count], dims[axis], 3);
    let spread = Array::from_fn(&source_dims, |at| slices.values[at[axis]]);
    let mut index_dims: Vec<usize> = dims.iter().map(|&dim| dim - usize::from(dim > 2)).collect();
    index_dims[axis] = count;
    let index = laid_out(&indices(&index_dims, dims[axis], 7), from, DType::I64);
    let wide = download(&index);
    let slices = laid_out(&slices, Style::Narrowed, DType::I64);
    for reduction in REDUCTIONS {
        for existing in [Existing::Included, Existing::Replaced] {
            let how = (reduction, existing);
            let of =
                |index| reduce_naive(&twin, axis, [index, &source_twin], how, dtype.is_float());
            let scattered = x.scatter_reduce(axis, &index, &source, reduction, existing);
            let by_slices = x.index_reduce(axis, &slices, &source, reduction, existing);
            if dtype == DType::Bool && matches!(reduction, ScatterReduction::Mean) {
                assert!(matches!(scattered, Err(TensorError::DType { .. })));
                assert!(matches!(by_slices, Err(TensorError::DType { .. })));
                continue;
            }
            for (found, expected) in [(scattered, of(&wide)), (by_slices, of(&spread))] {
                let found = found.unwrap();
                assert_eq!(found.dtype(), dtype);
                // Elements are compared if the narrow type holds every value.
                let holds = |y: &f64| match dtype {
                    DType::Bool => true,
                    DType::U8 => (0.0..256.0).contains(y),
                    DType::I32 | DType::I64 => y.abs() < 2e9,
                    DType::F16 => y.abs() < 6e4,
                    _ => true,
                };
                if expected.values.iter().all(holds) {
                    let is_bool = dtype == DType::Bool;
                    let truth = |y: f64| if is_bool { f64::from(u8::from(y != 0.0)) } else { y };
                    assert_close(&found, &expected.map(truth), 8);
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn several_indices_name_what_their_twin_finds(
        dims in prop::collection::vec(1..5usize, 1..5),
        index_shapes in broadcast_shapes(),
        count in 1..5usize,
        one_row in any::<bool>(),
        style in styles(), from in styles(), to in writable_styles(), dtype in dtypes(),
    ) {
        let count = count.min(dims.len());
        let [named, a, b] = index_shapes;
        prop_assume!(named.len() + dims.len() - count <= 5);
        let index_dims: Vec<Vec<usize>> =
            (0..count).map(|at| if at % 2 == 0 { a.clone() } else { b.clone() }).collect();
        let named = if count == 1 { a } else { named };
        let row = &dims[count..];
        let values = if one_row { row.to_vec() } else { [&named[..], row].concat() };
        check_places(&dims, &index_dims, &values, [style, from, to], dtype);
    }

    #[test]
    fn an_index_into_all_elements_counts_in_row_major_order(
        dims in shapes(), index_dims in shapes(),
        style in styles(), from in styles(), to in writable_styles(), dtype in dtypes(),
    ) {
        let is_empty = |dims: &[usize]| dims.contains(&0);
        prop_assume!(!is_empty(&dims) || is_empty(&index_dims));
        check_flat(&dims, &index_dims, [style, from, to], dtype);
    }

    #[test]
    fn what_is_sent_is_reduced_at_its_place(
        dims in shapes(), style in styles(), from in styles(), dtype in dtypes(),
        axis in 0..5usize, count in 0..7usize,
    ) {
        prop_assume!(!dims.is_empty());
        let axis = axis % dims.len();
        let count = if dims[axis] == 0 { 0 } else { count };
        check_reductions(&dims, axis, count, [style, from], dtype);
    }

    #[test]
    fn parts_are_replaced_and_nothing_else(
        dims in full_shapes(2..=5), style in styles(), from in styles(), to in writable_styles(),
        dtype in dtypes(), axis in 0..5usize, at in 0..5usize, step in 1..4usize,
        offset in -3..4isize,
    ) {
        let axis = axis % dims.len();
        let (x, twin) = sample(&dims, style, dtype, 1);
        let at = at % dims[axis];
        // The numbers of places, to see which places a view has.
        let numbers = Array::new(&dims, (0..twin.len()).map(|at| at as f64).collect());
        let replaced = |part: &Array| {
            let (source, values) = sample(&part.dims, from, dtype, 2);
            let places: Vec<usize> = part.values.iter().map(|&at| at as usize).collect();
            (source, put_naive(&twin, &places, &values, |_, value| value))
        };
        let (source, expected) = replaced(&numbers.select(axis, at));
        assert_same(&x.select_scatter(&source, axis, at).unwrap(), &expected);
        let (source, expected) = replaced(&numbers.slice(axis, at, step));
        assert_same(&x.slice_scatter(&source, axis, at..dims[axis], step).unwrap(), &expected);
        let other = (axis + 1) % dims.len();
        let diagonal = numbers.diagonal(offset, axis, other);
        let (source, expected) = replaced(&diagonal);
        assert_same(&x.diagonal_scatter(&source, offset, axis, other).unwrap(), &expected);

        let index = laid_out(&indices(&[3], dims[axis], 2), from, DType::I64);
        let chosen = download(&index).values;
        let expected = Array::from_fn(&dims, |place| {
            if chosen.contains(&(place[axis] as f64)) { 1.0 } else { twin.at(place) }
        });
        assert_same(&x.index_fill(axis, &index, 1.0).unwrap(), &expected);
        let mut y = laid_out(&twin, to, dtype);
        y.index_fill_(axis, &index, 1.0).unwrap();
        assert_same(&y, &expected);
    }

    #[test]
    fn masks_take_from_a_source_in_order(
        shapes in broadcast_shapes(), style in styles(), from in styles(), dtype in dtypes(),
        more in 0..3usize, count in 0..40usize,
    ) {
        let [dims, a, b] = shapes;
        let (x, twin) = sample(&a, style, dtype, 1);
        let (mask, mask_twin) = sample(&b, from, DType::Bool, 2);
        let (twin, kept) = (twin.expand(&dims), mask_twin.expand(&dims));
        let len = kept.values.iter().filter(|&&keep| keep != 0.0).count();
        let (source, source_twin) = sample(&[len + more, 1], from, dtype, 3);
        let mut next = source_twin.values.iter();
        let mut choose = |(&x, &keep): (&f64, &f64)| match keep != 0.0 {
            true => *next.next().unwrap(),
            false => x,
        };
        let values = twin.values.iter().zip(&kept.values).map(&mut choose).collect();
        let y = x.masked_scatter(&mask, &source).unwrap();
        assert_same(&y, &Array::new(&dims, values));
        // The gradient packs the elements that the mask keeps.
        let mut packed: Vec<f64> = (twin.values.iter().zip(&kept.values))
            .filter(|(_, keep)| **keep != 0.0).map(|(x, _)| *x).collect();
        packed.resize(len + more, 0.0);
        let whole = x.expand(&dims[..]).unwrap();
        let found = whole.masked_scatter_backward(&mask, [len + more, 1]).unwrap();
        assert_same(&found, &Array::new(&[len + more, 1], packed));

        let (x, twin) = sample(&dims, style, dtype, 1);
        let nonzero = (0..twin.len()).filter(|&place| twin.values[place] != 0.0);
        let mut rows: Vec<Vec<f64>> = nonzero
            .map(|place| index_of(&dims, place).iter().map(|&at| at as f64).collect())
            .collect();
        rows.resize(count, vec![-7.0; dims.len()]);
        let expected = Array::new(&[count, dims.len()], rows.concat());
        assert_same(&x.nonzero_static(count, -7).unwrap(), &expected);
    }

    #[test]
    fn indices_along_an_axis_are_broadcast(
        shapes in broadcast_shapes(), axis in 0..5usize, style in styles(), from in styles(),
        count in 0..4usize,
    ) {
        let [mut dims, mut a, mut b] = shapes;
        prop_assume!(!dims.is_empty());
        for shape in [&mut a, &mut b] {
            shape.splice(0..0, vec![1; dims.len() - shape.len()]);
        }
        let axis = axis % dims.len();
        (a[axis], b[axis]) = (3, count);
        dims[axis] = count;
        let (x, twin) = sample(&a, style, DType::F32, 1);
        let index = laid_out(&indices(&b, 3, 4), from, DType::I64);
        let at = download(&index).expand(&dims);
        dims[axis] = 3;
        let twin = twin.expand(&dims);
        let expected = Array::from_fn(&at.dims, |place| {
            let mut from = place.to_vec();
            from[axis] = at.at(place) as usize;
            twin.at(&from)
        });
        assert_same(&x.take_along_dim(&index, axis).unwrap(), &expected);
    }
}

/// Tensors large enough to be cut among threads, with rows that are contiguous and that are not.
#[test]
fn large_tensors_are_as_small_ones() {
    use Style::{Contiguous, Expanded, Narrowed, Transposed};
    for styles in [
        [Contiguous, Contiguous, Contiguous],
        [Transposed, Expanded, Transposed],
        [Narrowed, Contiguous, Narrowed],
    ] {
        check_places(&[41, 5, 83], &[vec![300], vec![300]], &[300, 83], styles, DType::F64);
        check_places(&[41, 5, 83], &[vec![7, 50]], &[83], styles, DType::I32);
        check_places(&[211, 3], &[vec![20_011], vec![1]], &[20_011], styles, DType::F32);
        check_flat(&[211, 30], &[20_011], styles, DType::F64);
        check_reductions(&[301, 83], 0, 402, [styles[0], styles[1]], DType::F64);
        check_reductions(&[2, 11], 1, 20_011, [styles[0], styles[1]], DType::I64);
    }
    let (x, twin) = sample(&[200, 301], Transposed, DType::F32, 1);
    let mask = x.gt_scalar(0.5).unwrap();
    let count = twin.values.iter().filter(|&&x| x > 0.5).count();
    let source: Vec<f32> = (0..count).map(|i| i as f32).collect();
    let source = Tensor::from_slice(shared(), [count], &source).unwrap();
    let mut numbers = (0..count).map(|i| i as f64);
    let mut number = |x: f64| if x > 0.5 { numbers.next().unwrap() } else { x };
    let expected = twin.values.iter().map(|&x| number(x)).collect();
    let y = x.masked_scatter(&mask, &source).unwrap();
    assert_same(&y, &Array::new(&[200, 301], expected));
}

#[test]
fn reductions_in_half_types_round_once() {
    // In bf16, 1 + 2⁻⁹ is 1, but the sum of 300 such steps counts.
    let x = Tensor::ones(shared(), [1], DType::BF16).unwrap();
    let steps = Tensor::full(shared(), [300], DType::BF16, 2f64.powi(-9)).unwrap();
    let index = Tensor::zeros(shared(), [300], DType::I64).unwrap();
    let sum = bf16::from_f64(1.0 + 300.0 / 512.0);
    let (of_all, reduction) = (Existing::Included, ScatterReduction::Sum);
    let y = x.scatter_reduce(0, &index, &steps, reduction, of_all).unwrap();
    assert_eq!(y.to_vec::<bf16>().unwrap(), [sum]);
    let y = x.index_put(&[&index], &steps, Arrival::Add).unwrap();
    assert_eq!(y.to_vec::<bf16>().unwrap(), [sum]);
    assert_eq!(x.put(&index, &steps, Arrival::Add).unwrap().to_vec::<bf16>().unwrap(), [sum]);
}

#[test]
fn a_nan_that_arrives_wins_over_larger_and_smaller_ones() {
    let x = Tensor::from_slice(shared(), [2], &[1.0_f32, 2.0]).unwrap();
    let source = Tensor::from_slice(shared(), [3], &[5.0_f32, f32::NAN, -5.0]).unwrap();
    let index = Tensor::from_slice(shared(), [3], &[0_i64, 0, 1]).unwrap();
    for reduction in [ScatterReduction::Amax, ScatterReduction::Amin] {
        let y = x.scatter_reduce(0, &index, &source, reduction, Existing::Included).unwrap();
        assert!(y.to_vec::<f32>().unwrap()[0].is_nan());
    }
}

#[test]
fn mistakes_are_errors_and_nothing_is_written() {
    let x = Tensor::ones(shared(), [3, 2], DType::F32).unwrap();
    let of = |values: &[i64]| Tensor::from_slice(shared(), [values.len()], values).unwrap();
    #[track_caller]
    fn is_index<T>(outcome: Result<T>, bad: i64, bound: usize) {
        match outcome.err() {
            Some(TensorError::Index { index, len, .. }) => {
                assert_eq!((index as i64, len), (bad, bound));
            }
            other => panic!("{other:?}"),
        }
    }
    #[track_caller]
    fn is_shape<T>(outcome: Result<T>) {
        assert!(matches!(outcome.err(), Some(TensorError::Shape { .. })));
    }
    #[track_caller]
    fn is_dtype<T>(outcome: Result<T>) {
        assert!(matches!(outcome.err(), Some(TensorError::DType { .. })));
    }
    let (row, one) = (
        x.select(0, 0).unwrap().copied().unwrap(),
        Tensor::ones(shared(), [], DType::F32).unwrap(),
    );
    let mut y = x.clone();
    for bad in [3, -1, i64::MIN] {
        let (i, j) = (of(&[0, bad]), of(&[1, 1]));
        is_index(x.index(&[&i]), bad, 3);
        is_index(x.index(&[&j, &i]), bad, 2);
        is_index(y.index_put_(&[&i, &j], &one, Arrival::Add), bad, 3);
        is_index(y.index_put_(&[&i], &row, Arrival::Replace), bad, 3);
        is_index(y.index_fill_(0, &i, 7.0), bad, 3);
        let source = x.narrow(0, 0, 2).unwrap();
        let (sum, all) = (ScatterReduction::Sum, Existing::Replaced);
        is_index(x.index_reduce(0, &i, &source, sum, all), bad, 3);
    }
    is_index(x.take(&of(&[6])), 6, 6);
    is_index(y.put_(&of(&[0, 6]), &row, Arrival::Replace), 6, 6);
    is_index(x.index(&[]), 0, 3);
    let i = of(&[0]);
    is_index(x.index(&[&i, &i, &i]), 3, 3);
    is_shape(x.index(&[&of(&[0, 1]), &of(&[0, 1, 1])]));
    is_shape(y.index_put_(&[&i], &x, Arrival::Add));
    is_shape(y.put_(&of(&[0, 1]), &one, Arrival::Add));
    is_shape(x.select_scatter(&one, 0, 0));
    is_shape(x.take_along_dim(&i, 0));
    is_index(x.select_scatter(&row, 0, 3), 3, 3);
    let whole = Tensor::ones(shared(), [2], DType::I32).unwrap();
    is_dtype(x.index(&[&whole]));
    is_dtype(x.take(&whole));
    is_dtype(x.index_put(&[&i], &whole, Arrival::Add));
    is_dtype(x.select_scatter(&whole, 0, 0));
    is_dtype(x.masked_scatter(&whole, &x));
    let truths = Tensor::ones(shared(), [3, 2], DType::Bool).unwrap();
    let truth = truths.select(0, 0).unwrap();
    is_dtype(truths.index_put(&[&i], &truth, Arrival::Add));
    is_index(x.masked_scatter(&truths, &row), 5, 2);
    assert_eq!((x.to_vec::<f32>().unwrap(), x.version()), (vec![1.0; 6], 1));
}

#[test]
fn shapes_that_values_do_not_decide_are_known_on_a_simulated_device() {
    let device = sim(1);
    let x = Tensor::zeros(&device, [4, 5], DType::F32).unwrap();
    let mask = upload(&device, &Array::new(&[5], vec![1.0; 5]), DType::Bool);
    assert_eq!(x.nonzero_static(7, -1).unwrap().shape()[..], [7, 2]);
    assert_eq!(x.masked_scatter(&mask, &x).unwrap().shape()[..], [4, 5]);
    assert!(device.assumptions().is_empty());
}
