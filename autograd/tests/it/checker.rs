//! The finite-difference check must be able to fail.

use std::cell::Cell;

use lowtide_autograd::check::{self, CheckError, Tolerance};
use lowtide_autograd::{AutogradError, AutogradResult as Result, Needs, Var};
use lowtide_tensor::{Device, Tensor, TensorError};

use crate::common::{Outcome, cpu, values};

fn numbers(device: &Device, len: usize) -> Tensor {
    Tensor::from_slice(device, [len], &values("checker", len, 0.5, 1.5)).expect("memory")
}

/// The operation `x²` with `change` applied to its true derivative.
fn square(x: Var, change: impl Fn(&mut Tensor) -> Result<()> + 'static) -> Result<Var> {
    Var::apply("square", [x], |[x], _| {
        let y = x.mul(&x)?;
        let rule = move |dy: Tensor, _: Needs| {
            let mut dx = dy.mul(&x)?;
            dx.mul_scalar_(2.0)?;
            change(&mut dx)?;
            Ok(vec![Some(dx)])
        };
        Ok((y, rule))
    })
}

fn check_square(
    device: &Device,
    change: impl Fn(&mut Tensor) -> Result<()> + Clone + 'static,
) -> Result<(), CheckError> {
    check::gradients(|_, mut x| square(x.remove(0), change.clone()), &[numbers(device, 5)])
}

#[test]
fn a_right_rule_passes() -> Outcome {
    Ok(check_square(&cpu(), |_| Ok(()))?)
}

#[test]
fn a_wrong_factor_is_caught_at_the_first_element() {
    let error = check_square(&cpu(), |dx| Ok(dx.mul_scalar_(2.0)?)).unwrap_err();
    let CheckError::Mismatch { input, element, backward, numeric } = error else {
        panic!("{error}");
    };
    assert_eq!((input, element), (0, 0));
    assert!((backward - 2.0 * numeric).abs() < 1e-6, "{backward} is not twice {numeric}");
}

#[test]
fn a_factor_wrong_by_one_percent_is_caught() {
    let error = check_square(&cpu(), |dx| Ok(dx.mul_scalar_(1.01)?)).unwrap_err();
    assert!(matches!(error, CheckError::Mismatch { .. }), "{error}");
}

#[test]
fn an_error_in_the_last_element_alone_is_caught() {
    let error = check_square(&cpu(), |dx| Ok(dx.narrow(0, 4, 1)?.mul_scalar_(-1.0)?)).unwrap_err();
    assert!(matches!(error, CheckError::Mismatch { input: 0, element: 4, .. }), "{error}");
}

#[test]
fn the_second_input_is_checked_too() {
    let device = cpu();
    let error = check::gradients(
        |_, mut x| {
            let (a, b) = (x.remove(0), x.remove(0));
            a.add(square(b, |dx| Ok(dx.mul_scalar_(0.5)?))?)
        },
        &[numbers(&device, 3), numbers(&device, 3)],
    );
    let error = error.unwrap_err();
    assert!(matches!(error, CheckError::Mismatch { input: 1, element: 0, .. }), "{error}");
}

#[test]
fn a_missing_gradient_is_caught() {
    let device = cpu();
    let error = check::gradients(
        |pass, mut x| {
            let (a, b) = (x.remove(0), x.remove(0));
            a.mul(pass.constant(b.into_value()))
        },
        &[numbers(&device, 3), numbers(&device, 3)],
    );
    let error = error.unwrap_err();
    assert!(matches!(error, CheckError::Missing { input: 1, element: 0, .. }), "{error}");
}

#[test]
fn an_input_without_influence_needs_no_gradient() -> Outcome {
    let device = cpu();
    check::gradients(|_, mut x| x.remove(0).exp(), &[numbers(&device, 3), numbers(&device, 2)])?;
    Ok(())
}

#[test]
fn a_wider_tolerance_accepts_what_the_default_rejects() -> Outcome {
    let wide = Tolerance { relative: 0.05, ..Tolerance::default() };
    let off = |dx: &mut Tensor| Ok(dx.mul_scalar_(1.01)?);
    check::gradients_within(wide, |_, mut x| square(x.remove(0), off), &[numbers(&cpu(), 5)])?;
    Ok(())
}

#[test]
fn an_error_of_the_function_is_passed_on() {
    let error = check::gradients(|_, mut x| x.remove(0).reshape([7]), &[numbers(&cpu(), 5)]);
    let error = error.unwrap_err();
    let shape_error = |error: &AutogradError| {
        matches!(error, AutogradError::Tensor(TensorError::Shape { op: "reshape", .. }))
    };
    assert!(matches!(&error, CheckError::Autograd(error) if shape_error(error)), "{error}");
}

#[test]
fn inputs_are_left_alone_and_every_element_is_moved_both_ways() -> Outcome {
    let input = numbers(&cpu(), 4);
    let (before, version) = (input.to_vec::<f64>()?, input.version());
    let calls = Cell::new(0);
    let count = |_: &_, mut x: Vec<Var>| {
        calls.set(calls.get() + 1);
        x.remove(0).relu()?.mul_scalar(2.0)
    };
    check::gradients(count, std::slice::from_ref(&input))?;
    assert_eq!(calls.get(), 1 + 2 * 4);
    assert_eq!((input.to_vec::<f64>()?, input.version()), (before, version));
    Ok(())
}
