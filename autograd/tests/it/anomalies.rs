//! Anomaly detection names the operation that made the first value that is not finite.

use lowtide_autograd::{AutogradError, AutogradResult as Result, LeafId, Pass, Phase, Var};
use lowtide_tensor::Tensor;

use crate::common::{Outcome, cpu, recording};

fn looking(x: &[f32]) -> Result<(Pass, Var)> {
    let pass = recording().0.with_anomaly_detection();
    let x = Tensor::from_slice(&cpu(), [x.len()], x)?;
    let x = pass.leaf(LeafId::new(), &x)?;
    Ok((pass, x))
}

#[test]
fn a_nan_of_forward_is_traced_to_its_first_operation() -> Outcome {
    let (pass, x) = looking(&[1.0, -1.0])?;
    let y = x.add_scalar(0.0)?;
    let (y, line) = (y.log()?, line!());
    let y = y.exp()?.mul_scalar(2.0)?;
    let anomaly = pass.anomaly().expect("seen");
    assert_eq!((anomaly.op, anomaly.phase, anomaly.has_nan), ("log", Phase::Forward, true));
    assert_eq!((anomaly.site.file(), anomaly.site.line()), (file!(), line));
    let error = pass.backward(y.sum_all()?).unwrap_err();
    assert!(matches!(error, AutogradError::NonFinite(found) if found == anomaly), "{error}");
    let text = error.to_string();
    assert!(text.contains("log") && text.contains(&anomaly.site.to_string()), "{text}");
    Ok(())
}

#[test]
fn an_infinity_that_is_meant_does_not_hide_a_nan() -> Outcome {
    let (pass, x) = looking(&[1.0, 0.0])?;
    let masked = x.clone().log()?;
    assert_eq!(pass.anomaly().map(|anomaly| (anomaly.op, anomaly.has_nan)), Some(("log", false)));
    let y = masked.clone().sub(masked)?;
    assert_eq!(pass.anomaly().map(|anomaly| (anomaly.op, anomaly.has_nan)), Some(("sub", true)));
    // The mask alone is no error as long as the loss is finite.
    drop(y);
    pass.backward(x.sum_all()?)?;
    Ok(())
}

#[test]
fn a_gradient_that_is_not_finite_names_the_operation_whose_rule_gave_it() -> Outcome {
    let (pass, x) = looking(&[4.0, 0.0])?;
    let x = x.mul_scalar(3.0)?;
    let (y, line) = (x.sqrt()?, line!());
    let loss = y.mul_scalar(2.0)?.sum_all()?;
    assert_eq!(pass.anomaly(), None);
    let error = pass.backward(loss).unwrap_err();
    let AutogradError::NonFinite(anomaly) = &error else { panic!("{error}") };
    assert_eq!((anomaly.op, anomaly.phase, anomaly.has_nan), ("sqrt", Phase::Backward, false));
    assert_eq!((anomaly.site.file(), anomaly.site.line()), (file!(), line));
    Ok(())
}

#[test]
fn an_operation_inside_a_recomputed_segment_is_named() -> Outcome {
    let (pass, x) = looking(&[4.0, 0.0])?;
    let y = pass.checkpoint(x, |_, x| x.sqrt()?.mul_scalar(1.0))?;
    let error = pass.backward(y.sum_all()?).unwrap_err();
    let named = matches!(&error, AutogradError::NonFinite(anomaly) if anomaly.op == "sqrt");
    assert!(named, "{error}");
    Ok(())
}

#[test]
fn a_pass_that_does_not_look_allocates_and_reports_nothing() -> Outcome {
    let requests = |looks: bool| -> Result<u64> {
        let device = cpu();
        let (mut pass, _attempt) = recording();
        if looks {
            pass = pass.with_anomaly_detection();
        }
        let x = Tensor::from_slice(&device, [2], &[-1.0_f32, 0.0])?;
        let before = device.allocator().request_count();
        let y = pass.leaf(LeafId::new(), &x)?.log()?.sum_all()?;
        if !looks {
            assert_eq!(pass.anomaly(), None);
            pass.backward(y)?;
        }
        Ok(device.allocator().request_count() - before)
    };
    // Forward allocates two results and a workspace; backward the seed, the spread, the quotient.
    assert!(requests(false)? < requests(true)?);
    Ok(())
}
