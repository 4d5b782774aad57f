use super::{Op, not_half_yet, out};

pub(super) fn ops() -> Vec<Op> {
    not_half_yet(vec![
        out!(matmul, i => i.left.matmul(&i.right)),
        out!(linear, i => i.right.transpose(0, 1)?.linear(&i.left, Some(&i.bias))),
    ])
}
