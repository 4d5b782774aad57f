//! Rules of the activation functions.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_PI, PI};

use lowtide_tensor::Tensor;

use crate::rules::{from_input, from_output, times};
use crate::{Result, Var};

/// The cubic term of the approximation by Hendrycks and Gimpel, "Gaussian error linear units"
/// (2016).
const GELU_CUBIC: f64 = 0.044715;

impl Var {
    /// `max(self, 0)`, in place if the buffer is free to reuse; `relu'(0) = 0`.
    #[track_caller]
    pub fn relu(self) -> Result<Var> {
        // dx = dy where y > 0, else 0
        from_output("relu", self, Tensor::relu_, Tensor::relu, |mut dy, y| {
            if dy.is_reusable() {
                dy.relu_backward_(&y)?;
                return Ok(dy);
            }
            Ok(dy.relu_backward(&y)?)
        })
    }

    /// `self` where it is positive, `slope · self` elsewhere.
    #[track_caller]
    pub fn leaky_relu(self, slope: f64) -> Result<Var> {
        let op = "leaky_relu";
        // dx = dy where x > 0, else slope · dy
        let rule = move |dy: Tensor, of: Tensor| {
            Ok(of.gt_scalar(0.0)?.where_cond(&dy, &dy.mul_scalar(slope)?)?)
        };
        // A negative slope makes negative inputs positive: then the sign is the input's alone.
        if slope < 0.0 {
            return from_input(op, self, move |x| x.leaky_relu(slope), rule);
        }
        let in_place = move |x: &mut Tensor| x.leaky_relu_(slope);
        from_output(op, self, in_place, move |x| x.leaky_relu(slope), rule)
    }

    /// `self` where it is positive, `alpha · (e^self - 1)` elsewhere.
    #[track_caller]
    pub fn elu(self, alpha: f64) -> Result<Var> {
        let op = "elu";
        // dx = dy where x > 0, else dy · alpha · eˣ = dy · (y + alpha)
        if alpha < 0.0 {
            return from_input(
                op,
                self,
                move |x| x.elu(alpha),
                move |dy, x| {
                    let mut slope = x.exp()?;
                    slope.mul_scalar_(alpha)?;
                    slope.mul_(&dy)?;
                    Ok(x.gt_scalar(0.0)?.where_cond(&dy, &slope)?)
                },
            );
        }
        let in_place = move |x: &mut Tensor| x.elu_(alpha);
        from_output(
            op,
            self,
            in_place,
            move |x| x.elu(alpha),
            move |dy, y| {
                let mut slope = y.add_scalar(alpha)?;
                slope.mul_(&dy)?;
                Ok(y.gt_scalar(0.0)?.where_cond(&dy, &slope)?)
            },
        )
    }

    /// `1 / (1 + e^-self)`.
    #[track_caller]
    pub fn sigmoid(self) -> Result<Var> {
        // dx = dy · y · (1 - y)
        from_output("sigmoid", self, Tensor::sigmoid_, Tensor::sigmoid, |dy, y| {
            let mut slope = y.neg()?;
            slope.add_scalar_(1.0)?;
            slope.mul_(&y)?;
            times(dy, &slope)
        })
    }

    /// `self / (1 + e^-self)`.
    #[track_caller]
    pub fn silu(self) -> Result<Var> {
        // dx = dy · s · (1 + x · (1 - s)) with s = sigmoid x
        from_input("silu", self, Tensor::silu, |dy, x| {
            let s = x.sigmoid()?;
            let mut slope = s.neg()?;
            slope.add_scalar_(1.0)?;
            slope.mul_(&x)?;
            slope.add_scalar_(1.0)?;
            slope.mul_(&s)?;
            times(dy, &slope)
        })
    }

    /// `ln(1 + e^(beta·self)) / beta`, and `self` where `beta·self` is above `threshold`.
    #[track_caller]
    pub fn softplus(self, beta: f64, threshold: f64) -> Result<Var> {
        // dx = dy · sigmoid(beta · x), and dy above the threshold
        from_input(
            "softplus",
            self,
            move |x| x.softplus(beta, threshold),
            move |dy, x| {
                let mut slope = x.mul_scalar(beta)?;
                let linear = slope.gt_scalar(threshold)?;
                slope.sigmoid_()?;
                slope.masked_fill_(&linear, 1.0)?;
                times(dy, &slope)
            },
        )
    }

    /// `self/2 · (1 + erf(self/√2))`.
    #[track_caller]
    pub fn gelu(self) -> Result<Var> {
        // dx = dy · (Φ(x) + x · φ(x)), Φ(x) = (1 + erf(x/√2)) / 2, φ(x) = e^(-x²/2) / √(2π)
        from_input("gelu", self, Tensor::gelu, |dy, x| {
            let mut density = x.mul(&x)?;
            density.mul_scalar_(-0.5)?;
            density.exp_()?;
            density.mul_(&x)?;
            let mut slope = x.mul_scalar(FRAC_1_SQRT_2)?;
            slope.erf_()?;
            slope.add_scalar_(1.0)?;
            slope.mul_scalar_(0.5)?;
            slope.add_scaled_(&density, 1.0 / (2.0 * PI).sqrt())?;
            times(dy, &slope)
        })
    }

    /// `self/2 · (1 + tanh(√(2/π) · (self + 0.044715·self³)))`.
    #[track_caller]
    pub fn gelu_tanh(self) -> Result<Var> {
        // With k = √(2/π), u = k (x + 0.044715 x³), t = tanh u:
        // dx = dy · ((1 + t) + x · (1 - t²) · k (1 + 3 · 0.044715 x²)) / 2
        from_input("gelu_tanh", self, Tensor::gelu_tanh, |dy, x| {
            let k = FRAC_2_PI.sqrt();
            let square = x.mul(&x)?;
            let mut t = square.mul_scalar(k * GELU_CUBIC)?;
            t.add_scalar_(k)?;
            t.mul_(&x)?;
            t.tanh_()?;
            let mut inner = square;
            inner.mul_scalar_(3.0 * k * GELU_CUBIC)?;
            inner.add_scalar_(k)?;
            inner.mul_(&x)?;
            // slope = 1 + t + inner · (1 - t²)
            let mut slope = t.mul(&t)?;
            slope.neg_()?;
            slope.add_scalar_(1.0)?;
            slope.mul_(&inner)?;
            slope.add_(&t)?;
            slope.add_scalar_(1.0)?;
            slope.mul_scalar_(0.5)?;
            times(dy, &slope)
        })
    }
}
