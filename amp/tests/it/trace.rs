//! A recorded sequence of calls with PyTorch's answers. `fixtures/make_scaler_trace.py` explains
//! the lines.

use lowtide_amp::{AmpError, LossScaler, OrderFault};

use crate::scaler;

const TRACE: &str = include_str!("../fixtures/scaler_trace.txt");

#[test]
fn scaler_answers_every_call_as_pytorch_did() {
    let mut scaler = LossScaler::disabled();
    let (mut errors, mut skips) = (0, 0);
    for (index, line) in TRACE.lines().enumerate() {
        let words: Vec<&str> = line.split(' ').collect();
        if let ["new", scale, growth, backoff, interval] = words[..] {
            scaler = self::scaler(
                number(scale),
                growth.parse().expect("a factor"),
                backoff.parse().expect("a factor"),
                interval.parse().expect("a count"),
            );
            continue;
        }
        let (call, expected) = line.split_once(" = ").expect("an outcome");
        let before = scaler.clone();
        let outcome = match answer(&mut scaler, call) {
            Ok(outcome) => outcome,
            Err(AmpError::Order { fault, .. }) => {
                assert_eq!(scaler, before, "line {}: an error changed it", index + 1);
                format!("error {}", fault_name(fault))
            }
            Err(error) => panic!("line {}: {error}", index + 1),
        };
        assert!(same(&outcome, expected), "line {}: {line}, here {outcome}", index + 1);
        errors += usize::from(expected.starts_with("error"));
        skips += usize::from(expected == "skipped");
    }
    assert!(errors > 100 && skips > 20, "{errors} errors, {skips} skipped steps in the trace");
}

/// The scaler's answer to a call, in the words of the trace.
fn answer(scaler: &mut LossScaler, call: &str) -> Result<String, AmpError> {
    let words: Vec<&str> = call.split(' ').collect();
    let scale_and_tracker =
        |scaler: &LossScaler| format!("{} {}", f64::from(scaler.scale()), scaler.growth_tracker());
    match words[..] {
        ["unscale", name, a, b] => {
            let mut gradients = [number(a), number(b)];
            scaler.unscale(name, &mut [&mut gradients[..]][..])?;
            Ok(format!("{} {}", f64::from(gradients[0]), f64::from(gradients[1])))
        }
        ["step", name, a, b] => {
            let mut gradients = [number(a), number(b)];
            let steps = scaler.step(name, &mut [&mut gradients[..]][..])?;
            Ok(if steps { "stepped" } else { "skipped" }.to_owned())
        }
        ["update"] => scaler.update().map(|()| scale_and_tracker(scaler)),
        ["update_to", scale] => scaler.update_to(number(scale)).map(|()| scale_and_tracker(scaler)),
        _ => panic!("{call} is no call"),
    }
}

fn fault_name(fault: OrderFault) -> &'static str {
    match fault {
        OrderFault::UnscaledTwice => "unscaled-twice",
        OrderFault::UnscaledAfterStep => "unscaled-after-step",
        OrderFault::SteppedTwice => "stepped-twice",
        OrderFault::NothingChecked => "nothing-checked",
        other => panic!("{other:?} is not in the trace"),
    }
}

/// A number of the trace, all of which are f32.
fn number(word: &str) -> f32 {
    word.parse::<f64>().expect("a number") as f32
}

/// True if two outcomes have equal words and equal numbers.
fn same(found: &str, expected: &str) -> bool {
    let (found, expected): (Vec<&str>, Vec<&str>) =
        (found.split(' ').collect(), expected.split(' ').collect());
    let is_same = |(a, b): (&&str, &&str)| match (a.parse::<f64>(), b.parse::<f64>()) {
        (Ok(a), Ok(b)) => a == b || (a.is_nan() && b.is_nan()),
        _ => a == b,
    };
    found.len() == expected.len() && found.iter().zip(&expected).all(is_same)
}
