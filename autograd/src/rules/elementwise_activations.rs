//! Rules of the activation functions: one pass over `dy`, in place if its buffer is free.

use lowtide_tensor::{DType, Tensor, bf16, f16};

use crate::error::Result;
use crate::rules::{from_input, from_output, reuse};
use crate::var::Var;

/// Stamps the rule of an activation from its methods in [`Tensor`]. `of input` saves the input. `of
/// output` saves the output; then the operation runs in place if the buffer is free, by the method
/// after `or`.
macro_rules! activations {
    ($($(#[$doc:meta])+
        pub fn $name:ident($($p:ident),*) of $saved:ident $(or $in_place:ident)?:
        $gradient:ident, $gradient_in_place:ident;
    )*) => {
        impl Var {$(
            $(#[$doc])+
            #[track_caller]
            pub fn $name(self $(, $p: f64)*) -> Result<Var> {
                let rule = move |dy: Tensor, of: Tensor| {
                    let in_place = |dy: &mut Tensor| dy.$gradient_in_place(&of $(, $p)*);
                    reuse(dy, in_place, |dy| dy.$gradient(&of $(, $p)*))
                };
                let y = move |x: &Tensor| x.$name($($p),*);
                activations!(@$saved $name, self, [$($in_place)?], y, rule)
            }
        )*}
    };
    (@input $name:ident, $x:ident, [], $y:expr, $rule:expr) => {
        from_input(stringify!($name), $x, $y, $rule)
    };
    (@output $name:ident, $x:ident, [$in_place:ident], $y:expr, $rule:expr) => {
        from_output(stringify!($name), $x, Tensor::$in_place, $y, $rule)
    };
}

activations! {
    /// `max(self, 0)`, in place if the buffer is free to reuse; `relu'(0) = 0`.
    // dx = dy where y > 0, else 0
    pub fn relu() of output or relu_: relu_backward, relu_backward_;

    /// `1 / (1 + e^-self)`.
    // dx = dy · y · (1 - y)
    pub fn sigmoid() of output or sigmoid_: sigmoid_backward, sigmoid_backward_;

    /// `self` where it is positive, `alpha · (e^self - 1)` elsewhere.
    // dx = dy where x > 0, else dy · alpha · eˣ. The output would do too, as dy · (y + alpha), but
    // y has lost the digits of eˣ where it is close to -alpha.
    pub fn elu(alpha) of input: elu_backward, elu_backward_;

    /// `self` where it is positive, `alpha · (e^(self/alpha) - 1)` elsewhere.
    // dx = dy where x > 0, else dy · e^(x/alpha)
    pub fn celu(alpha) of input: celu_backward, celu_backward_;

    /// `1.0507 · elu(self)` with `alpha` 1.6733; see [`Tensor::selu`].
    // dx = dy · scale where x > 0, else dy · alpha · scale · eˣ
    pub fn selu() of input: selu_backward, selu_backward_;

    /// `self / (1 + e^-self)`.
    // dx = dy · s · (1 + x · (1 - s)) with s = sigmoid x
    pub fn silu() of input: silu_backward, silu_backward_;

    /// `ln(1 + e^(beta·self)) / beta`, and `self` where `beta·self` is above `threshold`.
    // dx = dy · sigmoid(beta · x), and dy above the threshold
    pub fn softplus(beta, threshold) of input: softplus_backward, softplus_backward_;

    /// `self/2 · (1 + erf(self/√2))`.
    // dx = dy · (Φ(x) + x · φ(x)), Φ(x) = (1 + erf(x/√2)) / 2, φ(x) = e^(-x²/2) / √(2π)
    pub fn gelu() of input: gelu_backward, gelu_backward_;

    /// `self/2 · (1 + tanh(√(2/π) · (self + 0.044715·self³)))`.
    // With k = √(2/π), u = k (x + 0.044715 x³), t = tanh u:
    // dx = dy · ((1 + t) + x · (1 - t²) · k (1 + 3 · 0.044715 x²)) / 2
    pub fn gelu_tanh() of input: gelu_tanh_backward, gelu_tanh_backward_;

    /// `self · tanh(ln(1 + e^self))`.
    // dx = dy · (t + x · sigmoid(x) · (1 - t²)) with t = tanh(ln(1 + eˣ))
    pub fn mish() of input: mish_backward, mish_backward_;

    /// `self · min(max(self + 3, 0), 6) / 6`.
    // dx = dy · (x / 3 + 1 / 2) for -3 ≤ x ≤ 3, 0 below and dy above
    pub fn hardswish() of input: hardswish_backward, hardswish_backward_;

    /// `min(max(self + 3, 0), 6) / 6`.
    // dx = dy / 6 for -3 < x < 3, else 0
    pub fn hardsigmoid() of input: hardsigmoid_backward, hardsigmoid_backward_;

    /// `self / (1 + |self|)`.
    // dx = dy / (1 + |x|)²
    pub fn softsign() of input: softsign_backward, softsign_backward_;

    /// `ln(1 / (1 + e^-self))`, exact for large `|self|`.
    // dx = dy · sigmoid(-x)
    pub fn logsigmoid() of input: logsigmoid_backward, logsigmoid_backward_;
}

impl Var {
    /// `min(max(self, low), high)`, in place if the buffer is free to reuse; PyTorch's `hardtanh`.
    /// The slope at both limits is 0.
    #[track_caller]
    pub fn hardtanh(self, low: f64, high: f64) -> Result<Var> {
        // dx = dy where low < y < high, else 0. A clamped y is the limit rounded to the element
        // type, so the rule compares y with rounded limits.
        let dtype = self.value().dtype();
        let [low, high] = [low, high].map(|limit| rounded(dtype, limit));
        let rule = move |dy: Tensor, of: Tensor| {
            let in_place = |dy: &mut Tensor| dy.hardtanh_backward_(&of, low, high);
            reuse(dy, in_place, |dy| dy.hardtanh_backward(&of, low, high))
        };
        let in_place = move |x: &mut Tensor| x.clamp_(low, high);
        from_output("hardtanh", self, in_place, move |x| x.clamp(low, high), rule)
    }

    /// `self` where it is positive, `slope · self` elsewhere.
    #[track_caller]
    pub fn leaky_relu(self, slope: f64) -> Result<Var> {
        let op = "leaky_relu";
        // dx = dy where x > 0, else slope · dy. The rule needs only the sign of x, which y shares.
        let rule = move |dy: Tensor, of: Tensor| {
            let in_place = |dy: &mut Tensor| dy.leaky_relu_backward_(&of, slope);
            reuse(dy, in_place, |dy| dy.leaky_relu_backward(&of, slope))
        };
        // A negative slope makes negative inputs positive, so y does not have the sign of x.
        if slope < 0.0 {
            return from_input(op, self, move |x| x.leaky_relu(slope), rule);
        }
        let in_place = move |x: &mut Tensor| x.leaky_relu_(slope);
        from_output(op, self, in_place, move |x| x.leaky_relu(slope), rule)
    }
}

/// `x` rounded to the nearest number of the element type.
fn rounded(dtype: DType, x: f64) -> f64 {
    match dtype {
        DType::F32 => f64::from(x as f32),
        DType::F16 => f16::from_f32(x as f32).to_f64(),
        DType::BF16 => bf16::from_f32(x as f32).to_f64(),
        _ => x,
    }
}
