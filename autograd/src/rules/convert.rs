//! Rules of the conversions between element types.

use lowtide_tensor::{DType, Tensor};

use crate::error::Result;
use crate::rule::Needs;
use crate::var::Var;

impl Var {
    /// Converts to another float type; see [`Tensor::to_dtype`]. A value that has the type already
    /// is returned as it is. The result of a conversion to integers or truth values is a constant.
    #[track_caller]
    pub fn to_dtype(self, dtype: DType) -> Result<Var> {
        let from = self.value().dtype();
        if from == dtype {
            return Ok(self);
        }
        if !dtype.is_float() {
            return Ok(self.pass().constant(self.value().to_dtype(dtype)?));
        }
        self.convert(from, |x| Ok(x.to_dtype(dtype)?))
    }

    /// [`Var::to_dtype`] for a cast policy, which converts each leaf once in a step.
    #[track_caller]
    pub(crate) fn cast(self, dtype: DType) -> Result<Var> {
        let Some(leaf) = self.leaf() else { return self.to_dtype(dtype) };
        let (from, pass) = (self.value().dtype(), self.pass().clone());
        self.convert(from, |x| pass.cast_leaf(leaf, x, dtype))
    }

    #[track_caller]
    fn convert(self, from: DType, forward: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Var> {
        Var::apply("to_dtype", [self], |[x], save| {
            let (source, y) = (save.source(&x), forward(&x)?);
            let dtype = y.dtype();
            save.add_recipe(&y, [source], move |x| Ok(x[0].to_dtype(dtype)?));
            // dx = dy as the type of x
            let rule = move |dy: Tensor, _: Needs| Ok(vec![Some(dy.to_dtype(from)?)]);
            Ok((y, rule))
        })
    }
}
