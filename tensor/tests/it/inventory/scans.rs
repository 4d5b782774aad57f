use lowtide_tensor::SortOrder;

use super::{Op, out};

pub(super) fn ops() -> Vec<Op> {
    vec![
        out!(cumsum, i => i.image.cumsum(1)),
        out!(cumsum_backward, i => i.a.reshape([65 * 1001])?.cumsum_backward(0)),
        out!(cumprod, i => i.a.cumprod(1)),
        out!(argsort, i => i.a.argsort(0, SortOrder::Descending)),
        Op {
            name: "sort",
            run: |i| {
                let (values, positions) = i.a.sort(1, SortOrder::Ascending)?;
                Ok(vec![values, positions])
            },
            half: true,
        },
        Op {
            name: "topk",
            run: |i| {
                let (values, positions) = i.a.topk(17, 1, SortOrder::Descending)?;
                Ok(vec![values, positions])
            },
            half: true,
        },
    ]
}
