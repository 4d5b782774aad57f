use super::{Op, both, in_place, out};

pub(super) fn ops() -> Vec<Op> {
    let mut ops = both! { i;
        scatter scatter_ (0, &i.places, &i.b);
        scatter_add scatter_add_ (0, &i.places, &i.b);
        index_add index_add_ (1, &i.rows, &i.b.narrow(1, 0, 500)?);
        index_copy index_copy_ (1, &i.rows, &i.b.narrow(1, 0, 500)?);
    };
    ops.extend([
        out!(gather, i => i.a.gather(0, &i.places)),
        out!(index_select, i => i.a.index_select(1, &i.rows)),
        out!(embedding, i => i.a.embedding(&i.rows)),
        out!(embedding_backward, i => i.logits.embedding_backward(&i.rows, 41)),
        out!(one_hot, i => i.rows.one_hot(37, i.a.dtype())),
        out!(masked_select_assuming, i => {
            // A third of the mask is 0.
            i.a.masked_select_assuming(&i.mask, 65 * 1001 - 21688)
        }),
        out!(nonzero_assuming, i => i.mask.nonzero_assuming(65 * 1001 - 21688)),
    ]);
    ops
}
