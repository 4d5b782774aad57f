use lowtide_tensor::{Arrival, Existing, ScatterReduction};

use super::{Entry, both, in_place, out};

pub(super) fn ops() -> Vec<Entry> {
    let mut ops = both! { i;
        scatter scatter_ (0, &i.places, &i.b);
        scatter_add scatter_add_ (0, &i.places, &i.b);
        index_add index_add_ (1, &i.rows, &i.b.narrow(1, 0, 500)?);
        index_copy index_copy_ (1, &i.rows, &i.b.narrow(1, 0, 500)?);
        index_put index_put_ (&[&i.rows], &i.b.narrow(0, 3, 1)?, Arrival::Add);
        put put_ (&i.places, &i.b.narrow(0, 0, 60)?, Arrival::Replace);
        index_fill index_fill_ (1, &i.rows, 2.5);
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
        out!(nonzero_static, i => i.mask.nonzero_static(50_000, -1)),
        out!(masked_scatter, i => i.a.masked_scatter(&i.mask, &i.b)),
        out!(masked_scatter_backward, i => i.a.masked_scatter_backward(&i.mask, [70_000])),
    ]);
    ops.extend(places());
    ops
}

fn places() -> Vec<Entry> {
    vec![
        out!(index, i => i.a.index(&[&i.rows, &i.rows])),
        out!(take, i => i.a.transpose(0, 1)?.take(&i.places)),
        out!(take_along_dim, i => i.a.take_along_dim(&i.places.narrow(1, 0, 1)?, 0)),
        out!(scatter_reduce, i => {
            let (mean, existing) = (ScatterReduction::Mean, Existing::Included);
            i.a.scatter_reduce(0, &i.places, &i.b, mean, existing)
        }),
        out!(index_reduce, i => {
            let (product, existing) = (ScatterReduction::Prod, Existing::Replaced);
            i.a.index_reduce(1, &i.rows, &i.b.narrow(1, 0, 500)?, product, existing)
        }),
        out!(select_scatter, i => i.a.select_scatter(&i.b.select(0, 3)?, 0, 5)),
        out!(slice_scatter, i => i.a.slice_scatter(&i.b.narrow(0, 0, 20)?, 0, 1..61, 3)),
        out!(diagonal_scatter, i => i.a.diagonal_scatter(&i.b.diagonal(2, 0, 1)?, 1, 0, 1)),
    ]
}
