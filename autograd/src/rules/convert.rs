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
        Var::apply("to_dtype", [self], |[x], _| {
            // dx = dy as the type of x
            let rule = move |dy: Tensor, _: Needs| Ok(vec![Some(dy.to_dtype(from)?)]);
            Ok((x.to_dtype(dtype)?, rule))
        })
    }
}
