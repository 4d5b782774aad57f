//! Functions of one value without parameters, and softmax, as modules.

use lowtide_autograd::{AutogradError, Needs, Pass, Var};
use lowtide_tensor::{Axis, Tensor, TensorError};

use crate::checks::check_option;
use crate::error::Result;
use crate::module::Module;
use crate::node::parameters;

macro_rules! activations {
    ($($(#[$doc:meta])* $name:ident($input:ident) $forward:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $name;

        parameters!($name {});

        impl Module for $name {
            fn forward(&self, _: &Pass, $input: Var) -> Result<Var> {
                Ok($forward?)
            }
        }
    )*};
}

activations! {
    /// `x · Φ(x)` with the error function, `torch.nn.GELU`.
    GELU(x) x.gelu();
    /// The rectifier `max(x, 0)`, in place if the buffer can be reused; `torch.nn.ReLU`.
    ReLU(x) x.relu();
    /// `x / (1 + exp(-x))`, `torch.nn.SiLU`.
    SiLU(x) x.silu();
    /// The hyperbolic tangent, `torch.nn.Tanh`.
    Tanh(x) x.tanh();
    /// `1 / (1 + exp(-x))`, `torch.nn.Sigmoid`.
    Sigmoid(x) x.sigmoid();
    /// `ln(1 + exp(x))`, or x if x is above 20, `torch.nn.Softplus`.
    Softplus(x) x.softplus(1.0, 20.0);
    /// `x`, or `exp(x) - 1` below 0, `torch.nn.ELU`.
    ELU(x) x.elu(1.0);
    /// [`GELU`] approximated with a hyperbolic tangent, `torch.nn.GELU(approximate="tanh")`.
    TanhGELU(x) x.gelu_tanh();
    /// `x · tanh(ln(1 + exp(x)))`, `torch.nn.Mish`.
    Mish(x) x.mish();
    /// `x · clamp(x + 3, 0, 6) / 6`, `torch.nn.Hardswish`.
    Hardswish(x) x.hardswish();
    /// `clamp(x + 3, 0, 6) / 6`, `torch.nn.Hardsigmoid`.
    Hardsigmoid(x) x.hardsigmoid();
    /// `scale · x`, or `scale · α (exp(x) - 1)` below 0, with the constants of Klambauer et al.,
    /// "Self-normalizing neural networks" (2017), `torch.nn.SELU`.
    SELU(x) x.selu();
    /// `x / (1 + |x|)`, `torch.nn.Softsign`.
    Softsign(x) x.softsign();
    /// `-ln(1 + exp(-x))`, `torch.nn.LogSigmoid`.
    LogSigmoid(x) x.logsigmoid();
    /// `x - tanh(x)`, `torch.nn.Tanhshrink`.
    Tanhshrink(x) x.clone().tanh().and_then(|tanh| x.sub(tanh));
    /// `clamp(x, 0, 6)`, `torch.nn.ReLU6`.
    ReLU6(x) x.hardtanh(0.0, 6.0);
}

/// `x`, or `slope · x` below 0, `torch.nn.LeakyReLU`.
#[derive(Clone, Copy, Debug)]
pub struct LeakyReLU(pub f64);

impl Default for LeakyReLU {
    fn default() -> Self {
        LeakyReLU(0.01)
    }
}

parameters!(LeakyReLU {});

impl Module for LeakyReLU {
    fn forward(&self, _: &Pass, input: Var) -> Result<Var> {
        Ok(input.leaky_relu(self.0)?)
    }
}

/// `clamp(x, low, high)`, `torch.nn.Hardtanh`; the default is -1 to 1.
#[derive(Clone, Copy, Debug)]
pub struct Hardtanh(pub [f64; 2]);

impl Default for Hardtanh {
    fn default() -> Self {
        Hardtanh([-1.0, 1.0])
    }
}

parameters!(Hardtanh {});

impl Module for Hardtanh {
    /// # Errors
    /// `Option` if the first number is above the second, `OutOfMemory`.
    fn forward(&self, _: &Pass, input: Var) -> Result<Var> {
        let [low, high] = self.0;
        check_option("max_val", high, "[min_val, ∞)", |high| high >= low)?;
        Ok(input.hardtanh(low, high)?)
    }
}

/// `x` if it is above the first number, else the second number, `torch.nn.Threshold`.
#[derive(Clone, Copy, Debug)]
pub struct Threshold(pub f64, pub f64);

parameters!(Threshold {});

impl Module for Threshold {
    fn forward(&self, _: &Pass, input: Var) -> Result<Var> {
        let is_below = input.value().le_scalar(self.0)?;
        Ok(input.masked_fill(&is_below, self.1)?)
    }
}

/// `x`, or 0 if `|x|` is at most this number, `torch.nn.Hardshrink`; the default is 1/2.
#[derive(Clone, Copy, Debug)]
pub struct Hardshrink(pub f64);

impl Default for Hardshrink {
    fn default() -> Self {
        Hardshrink(0.5)
    }
}

parameters!(Hardshrink {});

impl Module for Hardshrink {
    fn forward(&self, _: &Pass, input: Var) -> Result<Var> {
        let is_small = input.value().abs()?.le_scalar(self.0)?;
        Ok(input.masked_fill(&is_small, 0.0)?)
    }
}

/// `x` moved towards 0 by this number, at most to 0, `torch.nn.Softshrink`; the default is 1/2.
#[derive(Clone, Copy, Debug)]
pub struct Softshrink(pub f64);

impl Default for Softshrink {
    fn default() -> Self {
        Softshrink(0.5)
    }
}

parameters!(Softshrink {});

impl Module for Softshrink {
    /// # Errors
    /// `Option` for a negative number, `OutOfMemory`.
    fn forward(&self, _: &Pass, input: Var) -> Result<Var> {
        check_option("lambd", self.0, "[0, ∞)", |lambda| lambda >= 0.0)?;
        // dx = 0 where |x| is at most this number, equality included, and dy elsewhere
        let is_near = input.value().abs()?.le_scalar(self.0)?;
        let near = input.clone().detach().clamp(-self.0, self.0)?;
        Ok(input.sub(near)?.masked_fill(&is_near, 0.0)?)
    }
}

/// The first half along a dimension times the sigmoid of the second half, `torch.nn.GLU` (Dauphin
/// et al. 2017). A negative dimension counts from the last, also in the layers below.
#[derive(Clone, Copy, Debug)]
pub struct GLU(pub isize);

parameters!(GLU {});

impl Module for GLU {
    /// # Shapes
    /// `input: [.., 2 N, ..] → [.., N, ..]`
    ///
    /// # Errors
    /// `Index` for a dimension that does not exist, `Shape` for an odd length, `OutOfMemory`.
    fn forward(&self, _: &Pass, input: Var) -> Result<Var> {
        let axis = Axis::from(self.0).index("glu", input.shape().len());
        let axis = axis.map_err(AutogradError::from)?;
        Ok(Var::apply("glu", [input], |[x], save| {
            let [value, gate] = halves(&x, axis)?;
            let (y, saved) = (value.mul(&gate.sigmoid()?)?, save.keep(&x));
            // With σ of the gate g: dvalue = dy · σ, dg = dy · value · σ (1 - σ)
            let rule = move |dy: Tensor, _: Needs| {
                let x = saved.unpack()?;
                let dx = Tensor::empty(dy.device(), *x.shape(), dy.dtype())?;
                let ([value, gate], [mut dvalue, mut dgate]) =
                    (halves(&x, axis)?, halves(&dx, axis)?);
                let sigmoid = gate.sigmoid()?;
                dvalue.copy_(&dy.mul(&sigmoid)?)?;
                let mut slope = sigmoid.neg()?;
                slope.add_scalar_(1.0)?;
                slope.mul_(&value)?;
                slope.mul_(&dvalue)?;
                dgate.copy_(&slope)?;
                Ok(vec![Some(dx)])
            };
            Ok((y, rule))
        })?)
    }
}

/// The first and the second half of `x` along a dimension.
fn halves(x: &Tensor, axis: usize) -> lowtide_autograd::AutogradResult<[Tensor; 2]> {
    let (op, shape) = ("glu", *x.shape());
    let len = shape[axis];
    if !len.is_multiple_of(2) {
        return Err(TensorError::Shape { op, left: shape, right: [2].into() }.into());
    }
    Ok([x.narrow(axis, 0, len / 2)?, x.narrow(axis, len / 2, len / 2)?])
}

/// `exp(x) / Σ exp(x)` along a dimension, `torch.nn.Softmax`.
#[derive(Clone, Copy, Debug)]
pub struct Softmax(pub isize);

parameters!(Softmax {});

impl Module for Softmax {
    fn forward(&self, _: &Pass, input: Var) -> Result<Var> {
        Ok(input.softmax(self.0)?)
    }
}

/// [`Softmax`] of `-x`, `torch.nn.Softmin`.
#[derive(Clone, Copy, Debug)]
pub struct Softmin(pub isize);

parameters!(Softmin {});

impl Module for Softmin {
    fn forward(&self, _: &Pass, input: Var) -> Result<Var> {
        Ok(input.neg()?.softmax(self.0)?)
    }
}

/// `x - ln Σ exp(x)` along a dimension, `torch.nn.LogSoftmax`.
#[derive(Clone, Copy, Debug)]
pub struct LogSoftmax(pub isize);

parameters!(LogSoftmax {});

impl Module for LogSoftmax {
    fn forward(&self, _: &Pass, input: Var) -> Result<Var> {
        Ok(input.log_softmax(self.0)?)
    }
}
