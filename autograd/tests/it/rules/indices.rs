use lowtide_autograd::AutogradResult as Result;
use lowtide_tensor::{Device, Tensor};

use super::{AROUND_ZERO, Cases, pair};

fn index(device: &Device, shape: &[usize], values: &[i64]) -> lowtide_tensor::TensorResult<Tensor> {
    Tensor::from_slice(device, shape, values)
}

/// Places along an axis of length 3; some of them twice.
const PLACES: [i64; 8] = [2, 0, 0, 1, 2, 2, 0, 1];

pub(super) fn indices(cases: &mut Cases) {
    for (axis, shape) in [(0, [4, 2]), (1, [2, 4]), (0, [1, 3]), (1, [2, 1])] {
        let x: [usize; 2] = if axis == 0 { [3, 4] } else { [2, 3] };
        let places = &PLACES[..shape[0] * shape[1]];
        cases.unary("gather", &x, AROUND_ZERO, move |x| {
            let index = index(x.value().device(), &shape, places)?;
            x.gather(axis, &index)
        });
        // A source larger than the index, and one of its size.
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
            // Into a buffer that is free, and into one that is somebody else's.
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
