//! The rule of dropout.

use lowtide_tensor::{Dropout, Tensor};

use crate::error::Result;
use crate::rule::Needs;
use crate::rules::reuse;
use crate::var::Var;

impl Var {
    /// Takes out elements at random and scales the others up; see [`Tensor::dropout`]. Nothing but
    /// the key is kept for backward.
    #[track_caller]
    pub fn dropout(self, dropout: Dropout) -> Result<Var> {
        let apply = move |x| reuse(x, |x| x.dropout_(dropout), |x| x.dropout(dropout));
        Var::apply("dropout", [self], |[x], _| {
            // dx = dy · m, for the factors m of y = x · m
            let rule = move |dy: Tensor, _: Needs| Ok(vec![Some(apply(dy)?)]);
            Ok((apply(x)?, rule))
        })
    }
}
