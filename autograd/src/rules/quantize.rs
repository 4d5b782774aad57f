//! Rules of products with a quantised matrix, which never has a gradient.

use lowtide_tensor::{Quantized, Shape, Tensor, TensorResult};

use crate::error::Result;
use crate::rule::Needs;
use crate::rules::{unbroadcast, when};
use crate::var::Var;

impl Var {
    /// `x wᵀ + b` with `self = x` and a quantised w; see [`Tensor::linear_quantized`]. Backward
    /// keeps only w.
    #[track_caller]
    pub fn linear_quantized(self, w: &Quantized, b: Option<Var>) -> Result<Var> {
        product(self, w, b, Tensor::linear_quantized)
    }

    /// [`Var::linear_quantized`] as a product of integers, which quantises x to 8 bits too; see
    /// [`Tensor::linear_int8`]. The gradient ignores the rounding of x (straight-through, as in
    /// LLM.int8()): dx equals the dx of [`Var::linear_quantized`].
    #[track_caller]
    pub fn linear_int8(self, w: &Quantized, b: Option<Var>) -> Result<Var> {
        product(self, w, b, Tensor::linear_int8)
    }
}

#[track_caller]
fn product(
    x: Var,
    w: &Quantized,
    b: Option<Var>,
    forward: impl FnOnce(&Tensor, &Quantized, Option<&Tensor>) -> TensorResult<Tensor>,
) -> Result<Var> {
    let w = w.clone();
    Var::apply_to(
        // The name that cast policies know.
        "linear",
        [Some(x), b].into_iter().flatten().collect(),
        |inputs, _| {
            let (x, b) = (&inputs[0], inputs.get(1));
            let (y, has_bias) = (forward(x, &w, b)?, b.is_some());
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
