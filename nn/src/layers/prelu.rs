//! A rectifier whose slope below 0 is learned; x: [B, C, ..], a: [C] or [1].
//!
//! He et al., "Delving deep into rectifiers" (2015).

use lowtide_autograd::{Needs, Pass, Var};
use lowtide_tensor::{Device, Tensor};

use crate::error::Result;
use crate::module::Module;
use crate::node::parameters;
use crate::parameter::Parameter;

/// `x` above 0, else `a · x`, `torch.nn.PReLU`.
#[derive(Clone, Debug)]
pub struct PReLU {
    weight: Parameter,
}

impl PReLU {
    /// A slope for each of `channels` channels; one slope for all channels if `channels` is 1.
    /// Slopes start at 1/4.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn new(device: &Device, channels: usize) -> Result<Self> {
        Ok(PReLU { weight: Parameter::full(device, [channels], 0.25)? })
    }
}

parameters!(PReLU { weight });

impl Module for PReLU {
    /// # Shapes
    /// `input: [B, C, ..] → [B, C, ..]`; a layer with one slope takes any shape
    ///
    /// # Errors
    /// `Shape`, `DType`, `OutOfMemory`.
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        let slope = self.weight.var(pass)?;
        Ok(Var::apply("prelu", [input, slope], |[x, a], save| {
            let slopes = along_channels(&a, x.shape().len())?;
            let y = x.gt_scalar(0.0)?.where_cond(&x, &x.mul(&slopes)?)?;
            let (saved_x, saved_a) = (save.keep(&x), save.keep(&a));
            // dx = dy where x > 0, a · dy elsewhere; da = Σ dy · x where x ≤ 0
            let rule = move |dy: Tensor, needs: Needs| {
                let (x, a) = (saved_x.unpack()?, saved_a.unpack()?);
                let slopes = along_channels(&a, x.shape().len())?;
                let is_above = x.gt_scalar(0.0)?;
                let mut gradients = vec![None, None];
                if needs.input(0) {
                    gradients[0] = Some(is_above.where_cond(&dy, &dy.mul(&slopes)?)?);
                }
                if needs.input(1) {
                    let mut share = dy.mul(&x)?;
                    share.masked_fill_(&is_above, 0.0)?;
                    gradients[1] = Some(share.sum_to(*slopes.shape())?.reshape(*a.shape())?);
                }
                Ok(gradients)
            };
            Ok((y, rule))
        })?)
    }
}

/// `a: [C]` reshaped to broadcast to `[B, C, ..]` with `rank` dimensions.
fn along_channels(a: &Tensor, rank: usize) -> lowtide_tensor::TensorResult<Tensor> {
    let mut dims = vec![1; rank];
    if a.element_count() != 1 {
        dims.resize(rank.max(1), 1);
        let axis = 1.min(dims.len() - 1);
        dims[axis] = a.element_count();
    }
    a.reshape(&dims[..])
}
