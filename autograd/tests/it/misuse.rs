//! Misuse that would silently give wrong gradients is an error that names the mistake.

use std::panic::Location;

use lowtide_autograd::{
    Attempt, AutogradError, AutogradResult as Result, InputGradients, LeafFault, LeafId, Needs,
    Pass, RuleFault, Var,
};
use lowtide_tensor::{DType, RandomKey, Tensor};

use crate::common::{Outcome, bits, cpu, recording, tensor};

type Given = fn(Tensor) -> Result<InputGradients>;

/// The error of backward through an operation of two inputs of shape `[2, 3]` whose rule returns
/// `given`.
fn error_of_rule(given: Given) -> AutogradError {
    let device = cpu();
    let (pass, attempt) = recording();
    let x =
        [LeafId::new(), LeafId::new()].map(|leaf| pass.leaf(leaf, &tensor(&device, "x", [2, 3])));
    let [a, b] = x.map(|x| x.expect("the pass is open"));
    let y = Var::apply("own", [a, b], move |[a, b], _| {
        Ok((a.add(&b)?, move |dy: Tensor, _: Needs| given(dy)))
    });
    let loss = y.and_then(Var::sum_all).expect("forward is right");
    let error = pass.backward(loss).expect_err("the rule is wrong");
    assert!(attempt.is_empty(), "nothing of a wrong rule is collected");
    error
}

fn check_fault(given: Given, expected: RuleFault, text: &str) {
    let error = error_of_rule(given);
    let AutogradError::Rule { op: "own", site, fault } = &error else { panic!("{error}") };
    assert_eq!((*fault, site.file()), (expected, file!()));
    assert_eq!(error.to_string(), format!("own at {site}: its rule {text}"));
}

#[test]
fn a_gradient_of_another_shape_than_its_input_is_an_error() {
    // Unchecked, broadcasting would add the gradient.
    let narrow: Given = |dy| Ok(vec![Some(dy.clone()), Some(dy.narrow(0, 0, 1)?)]);
    let shapes = [[1, 3].into(), [2, 3].into()];
    let expected = RuleFault::Shape { input: 1, found: shapes[0], expected: shapes[1] };
    check_fault(narrow, expected, "gave input 1 of shape [2, 3] a gradient of shape [1, 3]");
}

#[test]
fn a_gradient_of_another_type_than_its_input_is_an_error() {
    let half: Given = |dy| Ok(vec![Some(dy.to_dtype(DType::BF16)?), Some(dy)]);
    let expected = RuleFault::DType { input: 0, found: DType::BF16, expected: DType::F32 };
    check_fault(half, expected, "gave input 0 of type f32 a gradient of type bf16");
}

#[test]
fn too_few_gradients_or_a_missing_one_are_errors() {
    let few: Given = |dy| Ok(vec![Some(dy)]);
    let expected = RuleFault::Count { found: 1, expected: 2 };
    check_fault(few, expected, "gave 1 gradients for 2 inputs");
    let expected = RuleFault::Missing { input: 1 };
    let none: Given = |dy| Ok(vec![Some(dy), None]);
    check_fault(none, expected, "gave input 1 no gradient, though it needs one");
}

#[test]
fn a_rule_with_several_outputs_is_checked_alike() -> Outcome {
    let (pass, _attempt) = recording();
    let x = pass.leaf(LeafId::new(), &tensor(&cpu(), "x", [3]))?;
    let outputs = Var::apply_many("parts", vec![x], |x, _| {
        let rule = |dys: Vec<Option<Tensor>>, _: Needs| {
            let dy = dys.into_iter().flatten().next().expect("one came");
            Ok(vec![Some(dy.sum_all()?)])
        };
        Ok((vec![x[0].clone(), x[0].clone()], rule))
    })?;
    let loss = outputs.into_iter().next().expect("two").sum_all()?;
    let error = pass.backward(loss).unwrap_err();
    let fault = match &error {
        AutogradError::Rule { op: "parts", fault, .. } => *fault,
        _ => panic!("{error}"),
    };
    let expected = RuleFault::Shape { input: 0, found: [].into(), expected: [3].into() };
    assert_eq!(fault, expected);
    Ok(())
}

fn is_here(site: &Location<'_>, line: u32) -> bool {
    (site.file(), site.line()) == (file!(), line)
}

/// Checks that backward through a checkpoint of `segment` fails if `captured` was written before.
fn check_captured(
    captured: &Tensor,
    write: impl FnOnce(&Tensor) -> Result<u32>,
    segment: impl Fn(&Pass, Var) -> Result<Var> + 'static,
) -> Outcome {
    let (pass, attempt) = recording();
    let x = pass.leaf(LeafId::new(), &tensor(captured.device(), "x", [4]))?;
    let y = pass.checkpoint(x, segment)?;
    let line = write(captured)?;
    let error = pass.backward(y.sum_all()?).unwrap_err();
    let AutogradError::Modified { op: "checkpoint", written_at, .. } = error else {
        panic!("{error}");
    };
    assert!(is_here(written_at, line), "{written_at}");
    assert!(attempt.is_empty());
    Ok(())
}

#[test]
fn a_captured_constant_that_is_written_before_the_second_run_is_an_error() -> Outcome {
    let mask = tensor(&cpu(), "mask", [4]);
    let inside = mask.clone();
    let write = |mask: &Tensor| {
        mask.clone().fill_(0.0)?;
        Ok(line!() - 1)
    };
    check_captured(&mask, write, move |pass, x| x.mul(pass.constant(inside.clone())))
}

#[test]
fn a_captured_mask_of_an_operation_that_is_written_is_an_error() -> Outcome {
    let mask = Tensor::from_slice(&cpu(), [4], &[true, false, true, false])?;
    let inside = mask.clone();
    let write = |mask: &Tensor| {
        mask.narrow(0, 1, 1)?.fill_(1.0)?;
        Ok(line!() - 1)
    };
    check_captured(&mask, write, move |_, x| x.masked_fill(&inside, 0.0))
}

#[test]
fn a_constant_captured_by_a_nested_segment_is_watched_too() -> Outcome {
    let mask = tensor(&cpu(), "mask", [4]);
    let inside = mask.clone();
    let write = |mask: &Tensor| {
        mask.clone().mul_scalar_(2.0)?;
        Ok(line!() - 1)
    };
    check_captured(&mask, write, move |pass, x| {
        let inside = inside.clone();
        let x = x.exp()?;
        pass.checkpoint(x, move |pass, x| x.mul(pass.constant(inside.clone())))
    })
}

#[test]
fn what_a_segment_makes_or_fills_itself_may_differ_in_versions() -> Outcome {
    let device = cpu();
    let scratch = Tensor::zeros(&device, [4], DType::F32)?;
    let gradient = |again: bool| -> Result<Vec<u32>> {
        let (pass, attempt) = recording();
        let leaf = LeafId::new();
        let x = pass.leaf(leaf, &tensor(&device, "x", [4]))?;
        let inside = scratch.clone();
        let function = move |pass: &Pass, x: Var| {
            // Both runs overwrite the whole tensor.
            inside.clone().fill_(3.0)?;
            let own = Tensor::ones(inside.device(), [4], DType::F32)?;
            x.mul(pass.constant(inside.clone()))?.mul(pass.constant(own))
        };
        let y = if again { pass.checkpoint(x, function)? } else { function(&pass, x)? };
        pass.backward(y.sum_all()?)?;
        Ok(bits(attempt.into_gradients().get(leaf).expect("it has one")))
    };
    assert_eq!(gradient(true)?, gradient(false)?);
    Ok(())
}

/// The fault of a pass that uses `second` under the identity that an earlier pass of the step used
/// for `first`.
fn fault_of_second(first: &Tensor, second: &Tensor) -> Result<LeafFault> {
    let (attempt, leaf) = (Attempt::new(), LeafId::new());
    let passes = [1, 2].map(|seed| Pass::train(RandomKey::new(seed), &attempt));
    passes[0].leaf(leaf, first)?;
    let line = line!() + 1;
    let error = passes[1].leaf(leaf, second).err().expect("another value");
    let AutogradError::Leaf { op: "leaf", site, fault } = error else { panic!("{error}") };
    assert!(is_here(site, line), "{site}");
    Ok(fault)
}

#[test]
fn one_identity_for_two_shapes_or_types_in_a_step_is_an_error() -> Outcome {
    let x = tensor(&cpu(), "x", [3]);
    let fault = fault_of_second(&x, &x.narrow(0, 0, 1)?)?;
    let text = "one identity stands for f32 [3] and for f32 [1]";
    assert_eq!(fault.to_string(), text);
    let fault = fault_of_second(&x.to_dtype(DType::BF16)?, &x)?;
    assert_eq!(fault.to_string(), "one identity stands for bf16 [3] and for f32 [3]");
    Ok(())
}

#[test]
fn a_leaf_of_integers_is_an_error_in_every_pass() -> Outcome {
    let index = Tensor::from_slice(&cpu(), [2], &[1_i64, 2])?;
    let (recording, _attempt) = recording();
    for pass in [recording, Pass::eval()] {
        let outcomes =
            [("leaf", pass.leaf(LeafId::new(), &index)), ("input", pass.input(index.clone()))];
        for (name, outcome) in outcomes {
            let error = outcome.err().expect("integers have no gradient");
            let AutogradError::Leaf { op, fault, .. } = &error else { panic!("{error}") };
            assert_eq!((*op, *fault), (name, LeafFault::Integers { dtype: DType::I64 }));
        }
    }
    Ok(())
}
