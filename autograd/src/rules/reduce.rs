//! Rules of the reductions: the gradient is spread over what was summed.

use lowtide_tensor::{Shape, Tensor};

use crate::{Needs, Result, Var};

impl Var {
    /// The sums over `axes`; see [`Tensor::sum`].
    #[track_caller]
    pub fn sum(self, axes: &[usize]) -> Result<Var> {
        Var::apply("sum", [self], |[x], _| {
            let (x_shape, y) = (*x.shape(), x.sum(axes)?);
            let kept = |axis: usize| if axes.contains(&axis) { 1 } else { x_shape[axis] };
            let spread = Shape::new(&(0..x_shape.len()).map(kept).collect::<Vec<_>>());
            // dx[.., r, ..] = dy[..] for every r
            let rule =
                move |dy: Tensor, _: Needs| Ok(vec![Some(dy.reshape(spread)?.expand(x_shape)?)]);
            Ok((y, rule))
        })
    }

    /// The sum of all elements, without dimensions.
    #[track_caller]
    pub fn sum_all(self) -> Result<Var> {
        let axes: Vec<usize> = (0..self.shape().len()).collect();
        self.sum(&axes)
    }

    /// The mean of all elements, without dimensions.
    #[track_caller]
    pub fn mean_all(self) -> Result<Var> {
        let len = self.value().element_count();
        self.sum_all()?.mul_scalar(1.0 / len as f64)
    }
}
