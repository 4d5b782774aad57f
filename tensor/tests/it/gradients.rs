//! Gradients through activations against finite differences of the activations.

use lowtide_tensor::{DType, Tensor, TensorResult as Result};
use proptest::prelude::*;

use crate::common::{
    all_floats, assert_close, download, epsilon, laid_out, sample, shapes, styles, writable_styles,
};
use crate::naive::Array;

/// What the gradient is computed from.
#[derive(Clone, Copy, PartialEq)]
enum Of {
    X,
    Y,
}

type Pair = fn(&Tensor, &Tensor) -> Result<Tensor>;
type InPlace = fn(&mut Tensor, &Tensor) -> Result<()>;

macro_rules! gradients {
    ($($name:ident $in_place:ident $of:ident ($($number:expr),*) = $formula:expr;)*) => {
        [$((
            stringify!($name),
            |dy: &Tensor, x: &Tensor| dy.$name(x $(, $number)*),
            |dy: &mut Tensor, x: &Tensor| dy.$in_place(x $(, $number)*),
            Of::$of,
            $formula,
        )),*]
    };
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

type Gradient = (&'static str, Pair, InPlace, Of, fn(f64) -> f64);

const GRADIENTS: &[Gradient] = &gradients! {
    relu_backward relu_backward_ Y () = |x| x.max(0.0);
    sigmoid_backward sigmoid_backward_ Y () = sigmoid;
    tanh_backward tanh_backward_ Y () = f64::tanh;
    gelu_backward gelu_backward_ X () = |x| 0.5 * x * (1.0 + libm::erf(x / 2.0f64.sqrt()));
    gelu_tanh_backward gelu_tanh_backward_ X () = |x| {
        let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
        0.5 * x * (1.0 + inner.tanh())
    };
    silu_backward silu_backward_ X () = |x| x * sigmoid(x);
    elu_backward elu_backward_ X (1.5) = |x| if x > 0.0 { x } else { 1.5 * x.exp_m1() };
    leaky_relu_backward leaky_relu_backward_ X (0.25) = |x| if x > 0.0 { x } else { 0.25 * x };
    softplus_backward softplus_backward_ X (2.0, 2.0) = |x| {
        if 2.0 * x > 2.0 { x } else { (2.0 * x).exp().ln_1p() / 2.0 }
    };
    mish_backward mish_backward_ X () = |x| x * x.exp().ln_1p().tanh();
    hardswish_backward hardswish_backward_ X () = |x| x * (x + 3.0).clamp(0.0, 6.0) / 6.0;
    hardsigmoid_backward hardsigmoid_backward_ X () = |x| (x + 3.0).clamp(0.0, 6.0) / 6.0;
    hardtanh_backward hardtanh_backward_ Y (-0.375, 1.75) = |x| x.clamp(-0.375, 1.75);
    selu_backward selu_backward_ X () = |x| {
        1.0507009873554805 * if x > 0.0 { x } else { 1.6732632423543772 * x.exp_m1() }
    };
    softsign_backward softsign_backward_ X () = |x| x / (1.0 + x.abs());
    logsigmoid_backward logsigmoid_backward_ X () = |x| -(-x).exp().ln_1p();
};

proptest! {
    #[test]
    fn gradients_are_the_slopes_of_the_activations(
        dims in shapes(),
        styles in (writable_styles(), styles()),
        dtype in all_floats(),
        seed in 0..50usize,
    ) {
        const STEP: f64 = 1e-5;
        let (dy, dy_twin) = sample(&dims, styles.0, dtype, seed);
        // From -4.7 to 4.8, and no corner of any of them among the values.
        let x_twin = sample(&dims, styles.1, dtype, seed + 1).1.map(|x| 2.53125 * x + 0.0625);
        for (name, gradient, in_place, of, f) in GRADIENTS {
            // As the type rounds them.
            let x_twin = download(&laid_out(&x_twin, styles.1, dtype));
            let source = match of {
                Of::X => laid_out(&x_twin, styles.1, dtype),
                Of::Y => laid_out(&x_twin.map(f), styles.1, dtype),
            };
            let slope = x_twin.map(|x| (f(x + STEP) - f(x - STEP)) / (2.0 * STEP));
            let expected = dy_twin.zip(&slope, &dims, |dy, slope| dy * slope);
            let found = gradient(&dy, &source).unwrap();
            let differences = 1e-8 / epsilon(dtype);
            assert_close(&found, &expected, 16 + differences as usize);
            let mut target = laid_out(&dy_twin, styles.0, dtype);
            in_place(&mut target, &source).unwrap();
            prop_assert_eq!(download(&target), download(&found), "{}", name);
        }
    }
}

#[test]
fn gradients_take_one_shape_and_floats() {
    let x = Tensor::zeros(crate::common::shared(), [2, 3], DType::F32).unwrap();
    let row = Tensor::zeros(crate::common::shared(), [3], DType::F32).unwrap();
    let whole = Tensor::zeros(crate::common::shared(), [2, 3], DType::I64).unwrap();
    for (name, gradient, in_place, ..) in GRADIENTS {
        let errors = [
            gradient(&x, &row).unwrap_err(),
            in_place(&mut x.clone(), &row).unwrap_err(),
            gradient(&whole, &whole).unwrap_err(),
            gradient(&x, &whole).unwrap_err(),
        ];
        assert!(errors.iter().all(|error| error.to_string().starts_with(name)), "{errors:?}");
    }
}

#[test]
fn nothing_grows_where_the_argument_is_large() {
    let x = Tensor::from_slice(crate::common::shared(), [4], &[-1e4f32, -100.0, 100.0, 1e4]);
    let (x, dy) =
        (x.as_ref().unwrap(), Tensor::full(crate::common::shared(), [4], DType::F32, 2.0));
    let dy = dy.unwrap();
    let expected = Array::new(&[4], vec![0.0, 0.0, 2.0, 2.0]);
    for gradient in [
        Tensor::gelu_backward,
        Tensor::gelu_tanh_backward,
        Tensor::silu_backward,
        Tensor::mish_backward,
        Tensor::hardswish_backward,
    ] {
        assert_close(&gradient(&dy, x).unwrap(), &expected, 1);
    }
}
