//! The rule of table look-up.

use lowtide_tensor::Tensor;

use crate::error::Result;
use crate::rule::Needs;
use crate::var::Var;

impl Var {
    /// The rows `index` of the table `self`; see [`Tensor::embedding`]. The gradient has the size
    /// of the table. Backward keeps only the index.
    #[track_caller]
    pub fn embedding(self, index: &Tensor) -> Result<Var> {
        Var::apply("embedding", [self], |[table], save| {
            let (y, row_count) = (table.embedding(index)?, table.shape()[0]);
            let saved_index = save.keep(index);
            // dtable[r] = Σ dy[i] over the places i whose index is r
            let rule = move |dy: Tensor, _: Needs| {
                let index = saved_index.unpack()?;
                Ok(vec![Some(dy.embedding_backward(&index, row_count)?)])
            };
            Ok((y, rule))
        })
    }
}
