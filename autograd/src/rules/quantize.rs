//! The rule of products with a quantised matrix, which never has a gradient.

use lowtide_tensor::{Quantized, Shape, Tensor};

use crate::error::Result;
use crate::rule::Needs;
use crate::rules::{unbroadcast, when};
use crate::var::Var;

impl Var {
    /// `x wᵀ + b` for `self = x` and a quantised w; see [`Tensor::linear_quantized`]. Nothing is
    /// kept for backward but w.
    #[track_caller]
    pub fn linear_quantized(self, w: &Quantized, b: Option<Var>) -> Result<Var> {
        let w = w.clone();
        Var::apply_to(
            // A policy of types takes it for what it is.
            "linear",
            [Some(self), b].into_iter().flatten().collect(),
            |inputs, _| {
                let (x, b) = (&inputs[0], inputs.get(1));
                let (y, has_bias) = (x.linear_quantized(&w, b)?, b.is_some());
                let outputs = Shape::new(&[w.shape()[0]]);
                // dx = dy · w, db = the sum of dy over the rows
                let rule = move |dy: Tensor, needs: Needs| {
                    let dx = when(needs.input(0), || Ok(dy.linear_quantized_backward(&w)?))?;
                    let mut gradients = vec![dx];
                    if has_bias {
                        gradients.push(when(needs.input(1), || unbroadcast(&dy, outputs))?);
                    }
                    Ok(gradients)
                };
                Ok((y, rule))
            },
        )
    }
}
