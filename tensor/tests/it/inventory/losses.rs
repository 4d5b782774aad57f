use super::{Op, not_half_yet, out};

pub(super) fn ops() -> Vec<Op> {
    not_half_yet(vec![
        Op {
            name: "cross_entropy",
            run: |i| {
                let found = i.logits.cross_entropy(&i.labels, -100)?;
                Ok(vec![found.sum, found.count, found.log_sum_exp])
            },
            half: true,
        },
        out!(cross_entropy_backward, i => {
            i.scalar.cross_entropy_backward(&i.logits, &i.labels, &i.lse, -100)
        }),
    ])
}
