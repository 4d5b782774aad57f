use lowtide_tensor::{Conv2dGeometry, Pool2dGeometry};

use super::{Op, not_half_yet, out};

const GEOMETRY: Conv2dGeometry =
    Conv2dGeometry { stride: [2, 1], padding: [1, 2], dilation: [1, 2], groups: 2 };
const POOL: Pool2dGeometry = Pool2dGeometry { kernel: [3, 2], stride: [2, 2], padding: [1, 0] };

pub(super) fn ops() -> Vec<Op> {
    not_half_yet(vec![
        out!(conv2d, i => i.image.conv2d(&i.filter, Some(&i.filter_bias), GEOMETRY)),
        out!(conv2d_backward_input, i => {
            i.dy.conv2d_backward_input(&i.filter, *i.image.shape(), GEOMETRY)
        }),
        out!(conv2d_backward_weight, i => {
            i.dy.conv2d_backward_weight(&i.image, *i.filter.shape(), GEOMETRY)
        }),
        Op {
            name: "max_pool2d",
            run: |i| i.image.max_pool2d(POOL).map(|(y, at)| vec![y, at]),
            half: true,
        },
        out!(max_pool2d_backward, i => {
            i.dpooled.max_pool2d_backward(&i.winners, *i.image.shape(), POOL)
        }),
    ])
}
