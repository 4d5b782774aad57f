//! The rule of dropout.

use lowtide_tensor::{Dropout, Tensor};

use crate::error::Result;
use crate::rule::Needs;
use crate::rules::{change, reuse};
use crate::var::Var;

impl Var {
    /// Sets random elements to 0 and scales the others up; see [`Tensor::dropout`]. Backward keeps
    /// only the random key.
    #[track_caller]
    pub fn dropout(self, dropout: Dropout) -> Result<Var> {
        let in_place = move |x: &mut Tensor| x.dropout_(dropout);
        let fresh = move |x: &Tensor| x.dropout(dropout);
        Var::apply("dropout", [self], |[x], save| {
            // dx = dy · m, for the factors m of y = x · m
            let rule = move |dy: Tensor, _: Needs| Ok(vec![Some(reuse(dy, in_place, fresh)?)]);
            Ok((change(save, x, in_place, fresh)?, rule))
        })
    }
}
