//! Rules of the matrix products.

use lowtide_tensor::Tensor;

use crate::rules::when;
use crate::{Needs, Result, Var};

impl Var {
    /// The matrix product `[M, K] · [K, N]`; see [`Tensor::matmul`].
    #[track_caller]
    pub fn matmul(self, other: Var) -> Result<Var> {
        Var::apply("matmul", [self, other], |[a, b], save| {
            let y = a.matmul(&b)?;
            let (saved_a, saved_b) = (save.keep(&a), save.keep(&b));
            // da = dy · bᵀ, db = aᵀ · dy
            let rule = move |dy: Tensor, needs: Needs| {
                let (a, b) = (saved_a.unpack()?, saved_b.unpack()?);
                let da = when(needs.input(0), || Ok(dy.matmul(&b.transpose(0, 1)?)?))?;
                let db = when(needs.input(1), || Ok(a.transpose(0, 1)?.matmul(&dy)?))?;
                Ok(vec![da, db])
            };
            Ok((y, rule))
        })
    }

    /// `x wᵀ + b` for `self = x`; see [`Tensor::linear`].
    #[track_caller]
    pub fn linear(self, w: Var, b: Option<Var>) -> Result<Var> {
        Var::apply_to(
            "linear",
            [Some(self), Some(w), b].into_iter().flatten().collect(),
            |inputs, save| {
                let (x, w, b) = (&inputs[0], &inputs[1], inputs.get(2));
                let y = x.linear(w, b)?;
                let (saved_x, saved_w, has_bias) = (save.keep(x), save.keep(w), b.is_some());
                // dx = dy · w, dw = dyᵀ · x, db = the sum of dy over the rows
                let rule = move |dy: Tensor, needs: Needs| {
                    let (x, w) = (saved_x.unpack()?, saved_w.unpack()?);
                    let dw = when(needs.input(1), || Ok(dy.transpose(0, 1)?.matmul(&x)?))?;
                    drop(x);
                    let dx = when(needs.input(0), || Ok(dy.matmul(&w)?))?;
                    let mut gradients = vec![dx, dw];
                    if has_bias {
                        gradients.push(when(needs.input(2), || Ok(dy.sum(&[0])?))?);
                    }
                    Ok(gradients)
                };
                Ok((y, rule))
            },
        )
    }
}
