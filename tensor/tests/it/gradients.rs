//! Gradients through activations against finite differences of the activations.

use lowtide_tensor::testing::{FunctionGradient, functions};
use lowtide_tensor::{DType, Tensor, TensorError};
use proptest::prelude::*;

use crate::common::{
    all_floats, assert_close, download, epsilon, laid_out, sample, scalars, shapes, styles,
    writable_styles,
};
use crate::elementwise::definition;
use crate::naive::Array;

/// The gradients of the table whose functions have no poles between -5 and 5.
fn gradients() -> impl Iterator<Item = (&'static str, &'static FunctionGradient)> {
    let gradients =
        functions().filter_map(|function| Some((function.name, function.gradient.as_ref()?)));
    gradients.filter(|(name, _)| *name != "digamma")
}

#[test]
fn gradients_of_all_activations_are_checked() {
    assert!(gradients().count() >= 16, "{} gradients", gradients().count());
}

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
        // Values from -4.7 to 4.8, and none at a corner of a function.
        let x_twin = sample(&dims, styles.1, dtype, seed + 1).1.map(|x| 2.53125 * x + 0.0625);
        for (name, gradient) in gradients() {
            let (f, scalars) = (definition(name), scalars(gradient.scalars));
            // The values after rounding to the type.
            let x_twin = download(&laid_out(&x_twin, styles.1, dtype));
            let of_twin = if gradient.of == "y" { x_twin.map(f) } else { x_twin.clone() };
            let source = laid_out(&of_twin, styles.1, dtype);
            let slope = x_twin.map(|x| (f(x + STEP) - f(x - STEP)) / (2.0 * STEP));
            let expected = dy_twin.zip(&slope, &dims, |dy, slope| dy * slope);
            let found = (gradient.run)(&dy, &source, &scalars).unwrap();
            let differences = 1e-8 / epsilon(dtype);
            assert_close(&found, &expected, 16 + differences as usize);
            let mut target = laid_out(&dy_twin, styles.0, dtype);
            (gradient.run_in_place)(&mut target, &source, &scalars).unwrap();
            prop_assert_eq!(download(&target), download(&found), "{}", name);
        }
    }
}

#[test]
fn gradients_take_one_shape_and_floats() {
    let x = Tensor::zeros(crate::common::shared(), [2, 3], DType::F32).unwrap();
    let row = Tensor::zeros(crate::common::shared(), [3], DType::F32).unwrap();
    let whole = Tensor::zeros(crate::common::shared(), [2, 3], DType::I64).unwrap();
    for (_, gradient) in gradients() {
        let scalars = scalars(gradient.scalars);
        let errors = [
            (gradient.run)(&x, &row, &scalars).unwrap_err(),
            (gradient.run_in_place)(&mut x.clone(), &row, &scalars).unwrap_err(),
            (gradient.run)(&whole, &whole, &scalars).unwrap_err(),
            (gradient.run)(&x, &whole, &scalars).unwrap_err(),
        ];
        let is_named = |error: &TensorError| error.to_string().starts_with(gradient.name);
        assert!(errors.iter().all(is_named), "{errors:?}");
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
