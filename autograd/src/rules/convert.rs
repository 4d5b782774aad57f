//! Rules of the conversions between element types.

use lowtide_tensor::{DType, Tensor};

use crate::error::Result;
use crate::rule::Needs;
use crate::var::Var;

impl Var {
    /// The same values as another float type, or this value if it has that type; see
    /// [`Tensor::to_dtype`]. A conversion to integers or truth values has no gradient: the result
    /// is a constant.
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

    /// [`Var::to_dtype`] for a cast policy: a leaf is converted once in a step.
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
            save.is_cheap(&y, [source], move |x| Ok(x[0].to_dtype(dtype)?));
            // dx = dy as the type of x
            let rule = move |dy: Tensor, _: Needs| Ok(vec![Some(dy.to_dtype(from)?)]);
            Ok((y, rule))
        })
    }
}
