//! Rules of distances between rows.

use lowtide_tensor::{Shape, Tensor, TensorError};

use crate::error::Result;
use crate::rule::Needs;
use crate::rules::when;
use crate::var::Var;

impl Var {
    /// Distances `‖self[m] - other[r]‖` of the given order between the rows of both; see
    /// [`Tensor::cdist`]. The dimensions before the last two are broadcast. The gradient is 0 where
    /// the distance is 0.
    #[track_caller]
    pub fn cdist(self, other: Var, order: f64) -> Result<Var> {
        let (left, right) = (*self.shape(), *other.shape());
        let mismatch = || TensorError::Shape { op: "cdist", left, right };
        let ([a @ .., _, _], [b @ .., _, _]) = (&left[..], &right[..]) else {
            return Err(mismatch().into());
        };
        let outer = Shape::new(a).broadcast(&Shape::new(b)).ok_or_else(mismatch)?;
        let whole = |shape: &Shape, outer_rank: usize| {
            let dims: Vec<usize> = outer.iter().chain(&shape[outer_rank..]).copied().collect();
            Shape::new(&dims)
        };
        let (x, y) = (whole(&left, a.len()), whole(&right, b.len()));
        let inputs = [self.expand(x)?, other.expand(y)?];
        Var::apply("cdist", inputs, |[x, y], save| {
            let distances = x.cdist(&y, order)?;
            let saved = [&x, &y, &distances].map(|tensor| save.keep(tensor));
            // With f(t, d) the derivative of the distance d with respect to the difference t:
            // dx[m] = Σ_r dd[m, r] · f(x[m] - y[r], d[m, r]),
            // dy[r] = Σ_m dd[m, r] · f(y[r] - x[m], d[m, r])
            let rule = move |dd: Tensor, needs: Needs| {
                let [x, y, d] = saved.map(|saved| saved.unpack());
                let (x, y, d) = (x?, y?, d?);
                let dx = when(needs.input(0), || Ok(dd.cdist_backward(&d, &x, &y, order)?))?;
                let dy = when(needs.input(1), || {
                    let [dd, d] = [&dd, &d].map(|pairs| pairs.transpose(-1, -2));
                    Ok(dd?.cdist_backward(&d?, &y, &x, order)?)
                })?;
                Ok(vec![dx, dy])
            };
            Ok((distances, rule))
        })
    }

    /// The CTC loss: the negative logarithm of the probability of each target sequence, where
    /// `self` holds log-probabilities `[T, N, C]`; see [`Tensor::ctc_loss`]. Backward keeps only
    /// the operands and recomputes the sums over alignments.
    #[track_caller]
    pub fn ctc_loss(self, targets: &Tensor, lengths: [&Tensor; 2], blank: usize) -> Result<Var> {
        Var::apply("ctc_loss", [self], |[x], save| {
            let loss = x.ctc_loss(targets, lengths, blank)?;
            let saved = [&x, targets, lengths[0], lengths[1]].map(|tensor| save.keep(tensor));
            // dx[t, n, c] = -dy[n] · (the probability that the alignment is at c at t)
            let rule = move |dy: Tensor, _: Needs| {
                let [x, targets, steps, lens] = saved.map(|saved| saved.unpack());
                let dx = dy.ctc_loss_backward(&x?, &targets?, [&steps?, &lens?], blank)?;
                Ok(vec![Some(dx)])
            };
            Ok((loss, rule))
        })
    }
}
