//! Rules of the activation functions: one pass over `dy`, in place where it is free.

use lowtide_tensor::Tensor;

use crate::error::Result;
use crate::rules::{from_input, from_output, reuse};
use crate::var::Var;

/// A gradient of `dy` and what was saved.
type Gradient = fn(&Tensor, &Tensor) -> lowtide_tensor::TensorResult<Tensor>;
type GradientInPlace = fn(&mut Tensor, &Tensor) -> lowtide_tensor::TensorResult<()>;

/// The gradient through an activation, of `of`: its input or its output.
fn through(dy: Tensor, of: &Tensor, in_place: GradientInPlace, fresh: Gradient) -> Result<Tensor> {
    reuse(dy, |dy| in_place(dy, of), |dy| fresh(dy, of))
}

impl Var {
    /// `max(self, 0)`, in place if the buffer is free to reuse; `relu'(0) = 0`.
    #[track_caller]
    pub fn relu(self) -> Result<Var> {
        // dx = dy where y > 0, else 0
        from_output("relu", self, Tensor::relu_, Tensor::relu, |dy, y| {
            through(dy, &y, Tensor::relu_backward_, Tensor::relu_backward)
        })
    }

    /// `self` where it is positive, `slope · self` elsewhere.
    #[track_caller]
    pub fn leaky_relu(self, slope: f64) -> Result<Var> {
        let op = "leaky_relu";
        // dx = dy where x > 0, else slope · dy. Only the sign of x counts, and y has the same one.
        let rule = move |dy: Tensor, of: Tensor| {
            let in_place = |dy: &mut Tensor| dy.leaky_relu_backward_(&of, slope);
            reuse(dy, in_place, |dy| dy.leaky_relu_backward(&of, slope))
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
        // dx = dy where x > 0, else dy · alpha · eˣ. That is also dy · (y + alpha), but y has lost
        // the digits of eˣ where it is close to -alpha.
        let rule = move |dy: Tensor, x: Tensor| {
            let in_place = |dy: &mut Tensor| dy.elu_backward_(&x, alpha);
            reuse(dy, in_place, |dy| dy.elu_backward(&x, alpha))
        };
        from_input("elu", self, move |x| x.elu(alpha), rule)
    }

    /// `1.0507 · elu(self)` with `alpha` 1.6733; see [`Tensor::selu`].
    #[track_caller]
    pub fn selu(self) -> Result<Var> {
        // dx = dy · scale where x > 0, else dy · alpha · scale · eˣ
        from_input("selu", self, Tensor::selu, |dy, x| {
            through(dy, &x, Tensor::selu_backward_, Tensor::selu_backward)
        })
    }

    /// `1 / (1 + e^-self)`.
    #[track_caller]
    pub fn sigmoid(self) -> Result<Var> {
        // dx = dy · y · (1 - y)
        from_output("sigmoid", self, Tensor::sigmoid_, Tensor::sigmoid, |dy, y| {
            through(dy, &y, Tensor::sigmoid_backward_, Tensor::sigmoid_backward)
        })
    }

    /// `self / (1 + e^-self)`.
    #[track_caller]
    pub fn silu(self) -> Result<Var> {
        // dx = dy · s · (1 + x · (1 - s)) with s = sigmoid x
        from_input("silu", self, Tensor::silu, |dy, x| {
            through(dy, &x, Tensor::silu_backward_, Tensor::silu_backward)
        })
    }

    /// `ln(1 + e^(beta·self)) / beta`, and `self` where `beta·self` is above `threshold`.
    #[track_caller]
    pub fn softplus(self, beta: f64, threshold: f64) -> Result<Var> {
        // dx = dy · sigmoid(beta · x), and dy above the threshold
        let rule = move |dy: Tensor, x: Tensor| {
            let in_place = |dy: &mut Tensor| dy.softplus_backward_(&x, beta, threshold);
            reuse(dy, in_place, |dy| dy.softplus_backward(&x, beta, threshold))
        };
        from_input("softplus", self, move |x| x.softplus(beta, threshold), rule)
    }

    /// `self/2 · (1 + erf(self/√2))`.
    #[track_caller]
    pub fn gelu(self) -> Result<Var> {
        // dx = dy · (Φ(x) + x · φ(x)), Φ(x) = (1 + erf(x/√2)) / 2, φ(x) = e^(-x²/2) / √(2π)
        from_input("gelu", self, Tensor::gelu, |dy, x| {
            through(dy, &x, Tensor::gelu_backward_, Tensor::gelu_backward)
        })
    }

    /// `self/2 · (1 + tanh(√(2/π) · (self + 0.044715·self³)))`.
    #[track_caller]
    pub fn gelu_tanh(self) -> Result<Var> {
        // With k = √(2/π), u = k (x + 0.044715 x³), t = tanh u:
        // dx = dy · ((1 + t) + x · (1 - t²) · k (1 + 3 · 0.044715 x²)) / 2
        from_input("gelu_tanh", self, Tensor::gelu_tanh, |dy, x| {
            through(dy, &x, Tensor::gelu_tanh_backward_, Tensor::gelu_tanh_backward)
        })
    }

    /// `self · tanh(ln(1 + e^self))`.
    #[track_caller]
    pub fn mish(self) -> Result<Var> {
        // dx = dy · (t + x · sigmoid(x) · (1 - t²)) with t = tanh(ln(1 + eˣ))
        from_input("mish", self, Tensor::mish, |dy, x| {
            through(dy, &x, Tensor::mish_backward_, Tensor::mish_backward)
        })
    }

    /// `self · min(max(self + 3, 0), 6) / 6`.
    #[track_caller]
    pub fn hardswish(self) -> Result<Var> {
        // dx = dy · (x / 3 + 1 / 2) for -3 ≤ x ≤ 3, 0 below and dy above
        from_input("hardswish", self, Tensor::hardswish, |dy, x| {
            through(dy, &x, Tensor::hardswish_backward_, Tensor::hardswish_backward)
        })
    }

    /// `min(max(self + 3, 0), 6) / 6`.
    #[track_caller]
    pub fn hardsigmoid(self) -> Result<Var> {
        // dx = dy / 6 for -3 < x < 3, else 0
        from_input("hardsigmoid", self, Tensor::hardsigmoid, |dy, x| {
            through(dy, &x, Tensor::hardsigmoid_backward_, Tensor::hardsigmoid_backward)
        })
    }

    /// `self / (1 + |self|)`.
    #[track_caller]
    pub fn softsign(self) -> Result<Var> {
        // dx = dy / (1 + |x|)²
        from_input("softsign", self, Tensor::softsign, |dy, x| {
            through(dy, &x, Tensor::softsign_backward_, Tensor::softsign_backward)
        })
    }

    /// `ln(1 / (1 + e^-self))`, exact for large `|self|`.
    #[track_caller]
    pub fn logsigmoid(self) -> Result<Var> {
        // dx = dy · sigmoid(-x)
        from_input("logsigmoid", self, Tensor::logsigmoid, |dy, x| {
            through(dy, &x, Tensor::logsigmoid_backward_, Tensor::logsigmoid_backward)
        })
    }
}
