use lowtide_tensor::{
    AvgPool, Conv1dGeometry, Conv2dGeometry, ConvTranspose1dGeometry, ConvTranspose2dGeometry,
    Corners, Divisor, Interpolation, MaxPool, Pool1dGeometry, Pool2dGeometry, Resize, SizeRounding,
};

use super::{Entry, out};

const GEOMETRY: Conv2dGeometry =
    Conv2dGeometry { stride: [2, 1], padding: [1, 2], dilation: [1, 2], groups: 2 };
const TRANSPOSED: ConvTranspose2dGeometry = ConvTranspose2dGeometry {
    stride: [2, 1],
    padding: [1, 2],
    output_padding: [1, 0],
    dilation: [1, 2],
    groups: 2,
};
const LINE: Conv1dGeometry = Conv1dGeometry { stride: 2, padding: 1, dilation: 1, groups: 2 };
const TRANSPOSED_LINE: ConvTranspose1dGeometry =
    ConvTranspose1dGeometry { stride: 2, padding: 1, output_padding: 1, dilation: 1, groups: 2 };
const POOL: Pool2dGeometry = Pool2dGeometry { kernel: [3, 2], stride: [2, 2], padding: [1, 0] };
const DILATED: MaxPool = MaxPool { dilation: [1, 2], rounding: SizeRounding::Up };
const POOL_LINE: Pool1dGeometry = Pool1dGeometry { kernel: 3, stride: 2, padding: 1 };
const AVG: AvgPool = AvgPool { divisor: Divisor::Inside, rounding: SizeRounding::Down };
const LARGER: Resize = Resize::To([50, 33]);
const SMALLER: Resize = Resize::To([20, 41]);
const BILINEAR: Interpolation = Interpolation::Bilinear(Corners::Centers);

pub(super) fn ops() -> Vec<Entry> {
    [convolutions(), pools()].into_iter().flatten().collect()
}

fn convolutions() -> Vec<Entry> {
    vec![
        out!(conv2d, i => i.image.conv2d(&i.filter, Some(&i.filter_bias), GEOMETRY)),
        out!(conv2d_backward_input, i => {
            i.dy.conv2d_backward_input(&i.filter, *i.image.shape(), GEOMETRY)
        }),
        out!(conv2d_backward_weight, i => {
            i.dy.conv2d_backward_weight(&i.image, *i.filter.shape(), GEOMETRY)
        }),
        out!(conv1d, i => {
            i.image.select(3, 0)?.conv1d(&i.filter.select(3, 0)?, Some(&i.filter_bias), LINE)
        }),
        out!(conv1d_backward_input, i => {
            let x_shape = *i.image.select(3, 0)?.shape();
            i.dy.select(3, 0)?.conv1d_backward_input(&i.filter.select(3, 0)?, x_shape, LINE)
        }),
        out!(conv1d_backward_weight, i => {
            let w_shape = *i.filter.select(3, 0)?.shape();
            i.dy.select(3, 0)?.conv1d_backward_weight(&i.image.select(3, 0)?, w_shape, LINE)
        }),
        out!(conv_transpose2d, i => i.dy.conv_transpose2d(&i.filter, None, TRANSPOSED)),
        out!(conv_transpose2d_backward_input, i => {
            i.image.conv_transpose2d_backward_input(&i.filter, *i.dy.shape(), TRANSPOSED)
        }),
        out!(conv_transpose2d_backward_weight, i => {
            i.image.conv_transpose2d_backward_weight(&i.dy, *i.filter.shape(), TRANSPOSED)
        }),
        out!(conv_transpose1d, i => {
            i.dy.select(3, 0)?.conv_transpose1d(&i.filter.select(3, 0)?, None, TRANSPOSED_LINE)
        }),
        out!(conv_transpose1d_backward_input, i => {
            let (dy, w) = (i.image.select(3, 0)?, i.filter.select(3, 0)?);
            dy.conv_transpose1d_backward_input(&w, *i.dy.select(3, 0)?.shape(), TRANSPOSED_LINE)
        }),
        out!(conv_transpose1d_backward_weight, i => {
            let (dy, x) = (i.image.select(3, 0)?, i.dy.select(3, 0)?);
            let w_shape = *i.filter.select(3, 0)?.shape();
            dy.conv_transpose1d_backward_weight(&x, w_shape, TRANSPOSED_LINE)
        }),
    ]
}

fn pools() -> Vec<Entry> {
    vec![
        Entry {
            name: "max_pool2d",
            run: |i| i.image.max_pool2d(POOL).map(|(y, at)| vec![y, at]),
            half: true,
        },
        out!(max_pool2d_backward, i => {
            i.dpooled.max_pool2d_backward(&i.winners, *i.image.shape(), POOL)
        }),
        Entry {
            name: "max_pool2d_with",
            run: |i| i.image.max_pool2d_with(POOL, DILATED).map(|(y, at)| vec![y, at]),
            half: true,
        },
        out!(max_pool2d_with_backward, i => {
            let (y, winners) = i.image.max_pool2d_with(POOL, DILATED)?;
            y.max_pool2d_with_backward(&winners, *i.image.shape(), POOL, DILATED)
        }),
        Entry {
            name: "max_pool1d",
            run: |i| i.image.select(3, 0)?.max_pool1d(POOL_LINE).map(|(y, at)| vec![y, at]),
            half: true,
        },
        out!(max_pool1d_backward, i => {
            let (dy, winners) = (i.dpooled.select(3, 0)?, i.winners.select(3, 0)?);
            dy.max_pool1d_backward(&winners, *i.image.select(3, 0)?.shape(), POOL_LINE)
        }),
        out!(avg_pool2d, i => i.image.avg_pool2d(POOL, AVG)),
        out!(avg_pool2d_backward, i => i.dpooled.avg_pool2d_backward(*i.image.shape(), POOL, AVG)),
        out!(avg_pool1d, i => i.image.select(3, 0)?.avg_pool1d(POOL_LINE, AVG)),
        out!(avg_pool1d_backward, i => {
            let x_shape = *i.image.select(3, 0)?.shape();
            i.dpooled.select(3, 0)?.avg_pool1d_backward(x_shape, POOL_LINE, AVG)
        }),
        out!(adaptive_avg_pool2d, i => i.image.adaptive_avg_pool2d([7, 50])),
        out!(adaptive_avg_pool2d_backward, i => {
            i.dpooled.adaptive_avg_pool2d_backward(*i.image.shape())
        }),
        Entry {
            name: "adaptive_max_pool2d",
            run: |i| i.image.adaptive_max_pool2d([7, 50]).map(|(y, at)| vec![y, at]),
            half: true,
        },
        out!(adaptive_max_pool2d_backward, i => {
            let (_, winners) = i.image.adaptive_max_pool2d([20, 20])?;
            i.dpooled.adaptive_max_pool2d_backward(&winners, *i.image.shape())
        }),
        out!(upsample2d, i => i.image.upsample2d(LARGER, Interpolation::Nearest)),
        out!(upsample2d, i => i.image.upsample2d(LARGER, BILINEAR)),
        out!(upsample2d_backward, i => {
            i.dy.upsample2d_backward([6, 12, 13, 50].into(), SMALLER, Interpolation::Nearest)
        }),
        out!(upsample2d_backward, i => {
            i.dy.upsample2d_backward([6, 12, 13, 50].into(), SMALLER, BILINEAR)
        }),
    ]
}
