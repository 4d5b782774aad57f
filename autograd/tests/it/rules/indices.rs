use lowtide_autograd::AutogradResult as Result;
use lowtide_tensor::{Arrival, Device, Existing, ScatterReduction, Tensor};

use super::{AROUND_ZERO, Cases, pair};

fn index(device: &Device, shape: &[usize], values: &[i64]) -> lowtide_tensor::TensorResult<Tensor> {
    Tensor::from_slice(device, shape, values)
}

/// Places along an axis of length 3; some places occur twice.
const PLACES: [i64; 8] = [2, 0, 0, 1, 2, 2, 0, 1];

pub(super) fn indices(cases: &mut Cases) {
    for (axis, shape) in [(0, [4, 2]), (1, [2, 4]), (0, [1, 3]), (1, [2, 1])] {
        let x: [usize; 2] = if axis == 0 { [3, 4] } else { [2, 3] };
        let places = &PLACES[..shape[0] * shape[1]];
        cases.unary("gather", &x, AROUND_ZERO, move |x| {
            let index = index(x.value().device(), &shape, places)?;
            x.gather(axis, &index)
        });
        // Sources larger than the index, and of its size.
        for source in [shape, [shape[0] + 1, shape[1] + 2]] {
            cases.add("scatter", &[&x, &source], AROUND_ZERO, move |_, vars| {
                let (x, source) = pair(vars);
                let index = index(x.value().device(), &shape, places)?;
                x.mul_scalar(2.0)?.scatter(axis, &index, source)
            });
            cases.add("scatter_add", &[&x, &source], AROUND_ZERO, move |_, vars| {
                let (x, source) = pair(vars);
                let index = index(x.value().device(), &shape, places)?;
                x.scatter_add(axis, &index, source)
            });
        }
    }
    for axis in 0..3 {
        let mut source = [3, 3, 3];
        source[axis] = 5;
        let selected = &PLACES[..5];
        cases.unary("index_select", &[3, 3, 3], AROUND_ZERO, move |x| {
            let index = index(x.value().device(), &[5], selected)?;
            x.index_select(axis, &index)
        });
        cases.add("index_add", &[&[3, 3, 3], &source], AROUND_ZERO, move |_, vars| {
            let (x, source) = pair(vars);
            let index = index(x.value().device(), &[5], selected)?;
            x.index_add(axis, &index, source)
        });
        cases.add("index_copy", &[&[3, 3, 3], &source], AROUND_ZERO, move |_, vars| {
            let (x, source) = pair(vars);
            let index = index(x.value().device(), &[5], selected)?;
            // Once into a free buffer, and once into a buffer that something else needs.
            let y = x.clone().mul_scalar(2.0)?.index_copy(axis, &index, source.clone())?;
            y.mul(x.index_copy(axis, &index, source)?)
        });
    }
    for (mask_shape, bits) in
        [(&[2, 3][..], 0b101_101_u8), (&[3], 0b011), (&[], 0), (&[2, 1], 0b10)]
    {
        let mask = move |device: &Device| -> Result<Tensor> {
            let len = mask_shape.iter().product::<usize>();
            let values: Vec<f32> = (0..len).map(|at| f32::from(bits >> at & 1)).collect();
            Ok(Tensor::from_slice(device, mask_shape, &values)?.gt_scalar(0.0)?)
        };
        cases.unary("masked_select", &[2, 3], AROUND_ZERO, move |x| {
            let mask = mask(x.value().device())?;
            x.masked_select(&mask)
        });
        cases.unary("masked_select_assuming", &[1, 3], AROUND_ZERO, move |x| {
            let mask = mask(x.value().device())?;
            x.masked_select_assuming(&mask, 0)
        });
    }
}

const ARRIVALS: [Arrival; 2] = [Arrival::Replace, Arrival::Add];

pub(super) fn places(cases: &mut Cases) {
    // Some places occur twice. One index has fewer dimensions and is broadcast.
    let pairs = |device: &Device| -> Result<[Tensor; 2]> {
        let rows = index(device, &[2, 1], &[1, 0])?;
        Ok([rows, index(device, &[3], &[2, 0, 2])?])
    };
    cases.unary("index", &[2, 3, 2], AROUND_ZERO, move |x| {
        let [i, j] = pairs(x.value().device())?;
        x.index(&[&i, &j])
    });
    cases.unary("index", &[3, 2], AROUND_ZERO, |x| {
        let rows = index(x.value().device(), &[4], &PLACES[..4])?;
        x.index(&[&rows])
    });
    cases.unary("take", &[2, 3], AROUND_ZERO, |x| {
        let places = index(x.value().device(), &[2, 2], &[5, 0, 5, 2])?;
        x.take(&places)
    });
    for arrival in ARRIVALS {
        // Values of the full shape, and a row and a number that are broadcast.
        for values in [&[2, 3, 2][..], &[3, 1], &[]] {
            cases.add("index_put", &[&[2, 3, 2], values], AROUND_ZERO, move |_, vars| {
                let (x, values) = pair(vars);
                let [i, j] = pairs(x.value().device())?;
                x.mul_scalar(2.0)?.index_put(&[&i, &j], values, arrival)
            });
        }
        cases.add("index_put", &[&[3, 2], &[4, 2]], AROUND_ZERO, move |_, vars| {
            let (x, values) = pair(vars);
            let rows = index(x.value().device(), &[4], &PLACES[..4])?;
            let y = x.clone().mul_scalar(2.0)?.index_put(&[&rows], values.clone(), arrival)?;
            y.mul(x.index_put(&[&rows], values, arrival)?)
        });
        cases.add("put", &[&[2, 3], &[2, 2]], AROUND_ZERO, move |_, vars| {
            let (x, source) = pair(vars);
            let places = index(x.value().device(), &[2, 2], &[5, 0, 5, 2])?;
            x.put(&places, source, arrival)
        });
    }
    cases.unary("take_along_dim", &[3, 4], AROUND_ZERO, |x| {
        let places = index(x.value().device(), &[5, 1], &PLACES[..5])?;
        x.take_along_dim(&places, 0)
    });
    cases.unary("take_along_dim", &[2, 3, 1], AROUND_ZERO, |x| {
        let places = index(x.value().device(), &[1, 2, 4], &PLACES)?;
        x.take_along_dim(&places, 1)
    });
}

pub(super) fn reductions(cases: &mut Cases) {
    use ScatterReduction as R;
    for reduction in [R::Sum, R::Prod, R::Mean, R::Amax, R::Amin] {
        for existing in [Existing::Included, Existing::Replaced] {
            for (axis, shape, source) in [(0, [4, 2], [5, 4]), (1, [2, 4], [2, 4])] {
                let x: [usize; 2] = if axis == 0 { [3, 4] } else { [2, 3] };
                cases.add("scatter_reduce", &[&x, &source], AROUND_ZERO, move |_, vars| {
                    let (x, source) = pair(vars);
                    let places = index(x.value().device(), &shape, &PLACES)?;
                    x.scatter_reduce(axis, &places, source, reduction, existing)
                });
            }
            let shapes: [&[usize]; 2] = [&[2, 4, 2], &[2, 5, 2]];
            cases.add("index_reduce", &shapes, AROUND_ZERO, move |_, vars| {
                let (x, source) = pair(vars);
                // No source element reaches position 3.
                let places = index(x.value().device(), &[5], &PLACES[..5])?;
                x.index_reduce(1, &places, source, reduction, existing)
            });
        }
    }
}

pub(super) fn parts(cases: &mut Cases) {
    for axis in 0..3 {
        cases.unary("index_fill", &[3, 3, 3], AROUND_ZERO, move |x| {
            let places = index(x.value().device(), &[2], &[2, 2])?;
            let y = x.clone().mul_scalar(2.0)?.index_fill(axis, &places, 0.5)?;
            y.mul(x.index_fill(axis, &places, 2.0)?)
        });
        cases.add("select_scatter", &[&[3, 3, 3], &[3, 3]], AROUND_ZERO, move |_, vars| {
            let (x, source) = pair(vars);
            x.select_scatter(source, axis, 2)
        });
        let mut part = [4, 4, 4];
        part[axis] = 2;
        cases.add("slice_scatter", &[&[4, 4, 4], &part], AROUND_ZERO, move |_, vars| {
            let (x, source) = pair(vars);
            x.slice_scatter(source, axis, 0..4, 2)
        });
    }
    for (offset, len) in [(0, 3), (1, 3), (-2, 1)] {
        let shapes: [&[usize]; 2] = [&[3, 2, 4], &[2, len]];
        cases.add("diagonal_scatter", &shapes, AROUND_ZERO, move |_, vars| {
            let (x, source) = pair(vars);
            x.diagonal_scatter(source, offset, 0, 2)
        });
    }
    for (mask_shape, bits) in [(&[2, 3][..], 0b101_101_u8), (&[3], 0b011), (&[2, 1], 0b10)] {
        let mask = move |device: &Device| -> Result<Tensor> {
            let len = mask_shape.iter().product::<usize>();
            let values: Vec<bool> = (0..len).map(|at| bits >> at & 1 == 1).collect();
            Ok(Tensor::from_slice(device, mask_shape, &values)?)
        };
        for x in [&[2, 3][..], &[1, 3]] {
            // The source has more elements than the mask selects.
            cases.add("masked_scatter", &[x, &[7, 1]], AROUND_ZERO, move |_, vars| {
                let (x, source) = pair(vars);
                let mask = mask(x.value().device())?;
                x.masked_scatter(&mask, source)
            });
        }
    }
}
