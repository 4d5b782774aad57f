//! Every mistake has its own error, which names the line of the mistake.

use std::panic::Location;

use lowtide_autograd::{Attempt, AutogradError, LeafId, Needs, Pass, Var};
use lowtide_tensor::{RandomKey, Tensor, TensorError};

use crate::common::{Outcome, cpu, recording, tensor};

fn is_at(site: &Location<'_>, line: u32) -> bool {
    (site.file(), site.line()) == (file!(), line)
}

fn check_modified(error: AutogradError, op: &str, saved_line: u32, written_line: u32) {
    let AutogradError::Modified { op: found, saved_at, written_at } = &error else {
        panic!("{error}");
    };
    assert_eq!(*found, op);
    assert!(is_at(saved_at, saved_line), "{op} was called on line {saved_line}: {error}");
    assert!(is_at(written_at, written_line), "written on line {written_line}: {error}");
    let text = error.to_string();
    for site in [saved_at, written_at] {
        assert!(text.contains(&site.to_string()), "{text} does not name {site}");
    }
}

#[test]
fn a_saved_input_that_is_written_is_reported_with_both_sites() -> Outcome {
    let mut x = tensor(&cpu(), "x", [3]);
    let (pass, attempt) = recording();
    let (y, saved) = (pass.leaf(LeafId::new(), &x)?.log()?, line!());
    let written = line!() + 1;
    x.fill_(2.0)?;
    let error = pass.backward(y.sum_all()?).unwrap_err();
    check_modified(error, "log", saved, written);
    assert!(attempt.is_empty());
    Ok(())
}

#[test]
fn a_saved_output_that_is_written_is_reported_with_both_sites() -> Outcome {
    let x = tensor(&cpu(), "x", [3]);
    let (pass, _attempt) = recording();
    let (y, saved) = (pass.leaf(LeafId::new(), &x)?.exp()?, line!());
    let mut alias = y.value().clone();
    let loss = y.sum_all()?;
    let written = line!() + 1;
    alias.mul_scalar_(2.0)?;
    check_modified(pass.backward(loss).unwrap_err(), "exp", saved, written);
    Ok(())
}

#[test]
fn a_write_through_a_view_counts() -> Outcome {
    let device = cpu();
    let (x, w) = (tensor(&device, "x", [2, 3]), tensor(&device, "w", [4, 3]));
    let (pass, _attempt) = recording();
    // The weight is kept for the gradient of x.
    let (x, leaf) = (pass.leaf(LeafId::new(), &x)?, pass.leaf(LeafId::new(), &w)?);
    let saved = line!() + 1;
    let y = x.linear(leaf, None)?;
    let written = line!() + 1;
    w.narrow(0, 1, 1)?.fill_(0.0)?;
    check_modified(pass.backward(y.sum_all()?).unwrap_err(), "linear", saved, written);
    Ok(())
}

#[test]
fn a_users_own_saved_tensor_is_watched_too() -> Outcome {
    let mut x = tensor(&cpu(), "x", [3]);
    let (pass, _attempt) = recording();
    let saved = line!() + 1;
    let y = Var::apply("own", [pass.leaf(LeafId::new(), &x)?], |[x], save| {
        let saved = save.keep(&x);
        let rule = move |dy: Tensor, _: Needs| Ok(vec![Some(dy.mul(&saved.unpack()?)?)]);
        Ok((x.exp()?, rule))
    })?;
    let written = line!() + 1;
    x.fill_(1.0)?;
    check_modified(pass.backward(y.sum_all()?).unwrap_err(), "own", saved, written);
    Ok(())
}

#[test]
fn a_write_after_backward_harms_nobody() -> Outcome {
    let mut x = tensor(&cpu(), "x", [3]);
    let (pass, attempt) = recording();
    let y = pass.leaf(LeafId::new(), &x)?.exp()?;
    pass.backward(y.sum_all()?)?;
    x.fill_(0.0)?;
    assert_eq!(attempt.len(), 1);
    Ok(())
}

fn check_consumed(error: AutogradError, op: &str, line: u32) {
    let AutogradError::Consumed { op: found, site } = &error else { panic!("{error}") };
    assert_eq!(*found, op);
    assert!(is_at(site, line), "{op} was called on line {line}: {error}");
}

#[test]
fn nothing_of_a_pass_can_be_used_after_backward() -> Outcome {
    let x = tensor(&cpu(), "x", [3]);
    let (pass, _attempt) = recording();
    let y = pass.leaf(LeafId::new(), &x)?.exp()?;
    let loss = y.clone().sum_all()?;
    pass.backward(loss.clone())?;

    check_consumed(pass.backward(loss).err().unwrap(), "backward", line!());
    check_consumed(pass.leaf(LeafId::new(), &x).err().unwrap(), "leaf", line!());
    check_consumed(y.clone().exp().err().unwrap(), "exp", line!());
    check_consumed(y.clone().add(y.clone()).err().unwrap(), "add", line!());
    assert_eq!(y.into_value().shape(), x.shape(), "the value itself is still there");
    Ok(())
}

#[test]
fn a_failed_backward_consumes_the_pass() -> Outcome {
    let mut x = tensor(&cpu(), "x", [3]);
    let (pass, _attempt) = recording();
    let loss = pass.leaf(LeafId::new(), &x)?.log()?.sum_all()?;
    x.fill_(2.0)?;
    pass.backward(loss.clone()).unwrap_err();
    check_consumed(pass.backward(loss).unwrap_err(), "backward", line!());
    Ok(())
}

#[test]
fn backward_starts_from_one_number() -> Outcome {
    let x = tensor(&cpu(), "x", [2, 3]);
    let (pass, attempt) = recording();
    let y = pass.leaf(LeafId::new(), &x)?;
    let error = pass.backward(y.clone()).unwrap_err();
    let AutogradError::NotScalar { shape } = &error else { panic!("{error}") };
    assert_eq!(shape, x.shape());
    // The pass is still usable after the mistake.
    pass.backward(y.sum_all()?)?;
    assert_eq!(attempt.len(), 1);
    Ok(())
}

#[test]
fn backward_needs_a_leaf() -> Outcome {
    let x = tensor(&cpu(), "x", [3]);
    let (recording, _attempt) = recording();
    let silent = [Pass::eval(), Pass::no_grad(RandomKey::new(1))];
    let of_silent = silent.map(|pass| {
        let loss = pass.leaf(LeafId::new(), &x)?.sum_all()?;
        pass.backward(loss)
    });
    let of_constant = recording.backward(recording.constant(x).sum_all()?);
    for outcome in of_silent.into_iter().chain([of_constant]) {
        let error = outcome.unwrap_err();
        assert!(matches!(error, AutogradError::NoGraph), "{error}");
    }
    Ok(())
}

#[test]
fn an_operation_without_a_rule_is_an_error_where_a_gradient_is_needed() -> Outcome {
    let x = tensor(&cpu(), "x", [3]);
    let (pass, _attempt) = recording();
    let negate = |x: Tensor| Ok(x.neg()?);
    let leaf = pass.leaf(LeafId::new(), &x)?;
    let (error, line) = (leaf.apply_without_rule("negate", negate).err().unwrap(), line!());
    let AutogradError::NoRule { op: "negate", site } = &error else { panic!("{error}") };
    assert!(is_at(site, line), "called on line {line}: {error}");

    let silent = Pass::eval().leaf(LeafId::new(), &x)?;
    for free in [pass.constant(x.clone()), silent] {
        let y = free.apply_without_rule("negate", negate)?;
        assert_eq!(y.value().to_vec::<f32>()?, x.neg()?.to_vec::<f32>()?);
        assert!(!y.needs_gradient());
    }
    Ok(())
}

#[test]
fn values_of_two_passes_do_not_meet() -> Outcome {
    let x = tensor(&cpu(), "x", [3]);
    let attempt = Attempt::new();
    let passes = [1, 2].map(|seed| Pass::train(RandomKey::new(seed), &attempt));
    let [a, b] = passes.each_ref().map(|pass| pass.leaf(LeafId::new(), &x));
    let (error, line) = (a?.mul(b?).err().unwrap(), line!());
    let AutogradError::Passes { op: "mul", site } = &error else { panic!("{error}") };
    assert!(is_at(site, line), "called on line {line}: {error}");
    Ok(())
}

#[test]
fn a_pass_does_not_walk_another_ones_record() -> Outcome {
    let x = tensor(&cpu(), "x", [3]);
    let attempt = Attempt::new();
    let [one, other] = [1, 2].map(|seed| Pass::train(RandomKey::new(seed), &attempt));
    let loss = one.leaf(LeafId::new(), &x)?.sum_all()?;
    other.leaf(LeafId::new(), &x)?.exp()?.sum_all()?;
    let (error, line) = (other.backward(loss.clone()).unwrap_err(), line!());
    let AutogradError::Passes { op: "backward", site } = &error else { panic!("{error}") };
    assert!(is_at(site, line), "called on line {line}: {error}");
    // Neither pass was consumed by the mistake.
    one.backward(loss)?;
    assert_eq!(attempt.len(), 1);
    Ok(())
}

#[test]
fn shape_errors_of_an_operation_name_it_and_both_shapes() -> Outcome {
    let device = cpu();
    let (pass, _attempt) = recording();
    let a = pass.leaf(LeafId::new(), &tensor(&device, "a", [2, 3]))?;
    let b = pass.constant(tensor(&device, "b", [4]));
    let error = a.add(b).err().unwrap();
    let AutogradError::Tensor(TensorError::Shape { op: "add", left, right }) = error else {
        panic!("{error}");
    };
    assert_eq!((&left[..], &right[..]), (&[2, 3][..], &[4][..]));
    Ok(())
}
