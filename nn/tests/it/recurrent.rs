//! States, directions and errors of LSTM and GRU.

use lowtide_autograd::{Attempt, AutogradError, Pass, Var, check};
use lowtide_nn::{
    CellOptions, Directions, Gru, GruCell, Lstm, LstmCell, LstmState, Module, NnError,
    NnResult as Result, Parameters, RecurrentOptions, Rnn, RnnActivation, RnnCell,
};
use lowtide_tensor::{DType, Tensor, TensorError};

use crate::common::{KEY, Outcome, cpu, f64s, names, widen};
use crate::zoo::fill;

const TWO_LAYERS: RecurrentOptions = RecurrentOptions {
    bias: true,
    inputs: 3,
    hidden: 2,
    layers: 2,
    dropout: 0.0,
    directions: Directions::Forward,
};

fn prepared<M: Parameters>(mut model: M) -> M {
    fill(&mut model);
    widen(&mut model);
    model
}

fn values(var: &Var) -> Vec<f64> {
    var.value().to_vec::<f64>().expect("f64 on the CPU")
}

/// Two parts `[B, T, D]`, concatenated along T.
fn joined(parts: [&Var; 2]) -> Result<Vec<f64>> {
    Ok(Tensor::cat(&parts.map(Var::value), 1)?.to_vec::<f64>()?)
}

#[test]
fn a_sequence_in_two_parts_is_the_whole() -> Outcome {
    let device = cpu();
    let (lstm, gru) = (
        prepared(Lstm::new(&device, KEY, TWO_LAYERS)?),
        prepared(Gru::new(&device, KEY, TWO_LAYERS)?),
    );
    let x = f64s(&device, "x", [2, 5, 3]);
    let pass = Pass::eval();
    let part = |start, len| x.narrow(1, start, len).map(|x| pass.constant(x));

    let (whole, ends) = lstm.run(&pass, part(0, 5)?, None)?;
    assert_eq!(ends.h.shape()[..], [2, 2, 2]);
    let (first, middle) = lstm.run(&pass, part(0, 2)?, None)?;
    let (second, last) = lstm.run(&pass, part(2, 3)?, Some(middle))?;
    assert_eq!(joined([&first, &second])?, values(&whole));
    assert_eq!([values(&last.h), values(&last.c)], [values(&ends.h), values(&ends.c)]);

    let (whole, ends) = gru.run(&pass, part(0, 5)?, None)?;
    let (first, middle) = gru.run(&pass, part(0, 2)?, None)?;
    let (second, last) = gru.run(&pass, part(2, 3)?, Some(middle))?;
    assert_eq!(joined([&first, &second])?, values(&whole));
    assert_eq!(values(&last), values(&ends));
    Ok(())
}

#[test]
fn walking_backward_is_walking_the_reverse() -> Outcome {
    let device = cpu();
    let options = RecurrentOptions { layers: 1, directions: Directions::Both, ..TWO_LAYERS };
    let mut model = Lstm::new(&device, KEY, options)?;
    // The backward direction gets the parameters of the forward direction.
    let mut first = Vec::new();
    model.visit(&mut |name, parameter| {
        if let Some(source) = name.ends_with("_reverse").then(|| first.remove(0)) {
            parameter.value_mut().copy_(&source).expect("not frozen");
        } else {
            first.push(parameter.value().clone());
        }
    });
    widen(&mut model);
    let x = f64s(&device, "x", [2, 4, 3]);
    let pass = Pass::eval();
    let run =
        |x: Tensor| -> Result<Tensor> { Ok(model.forward(&pass, pass.constant(x))?.into_value()) };
    let (y, mirrored) = (run(x.clone())?, run(x.flip(&[1])?)?);
    let backward = y.narrow(2, 2, 2)?.flip(&[1])?;
    assert_eq!(backward.to_vec::<f64>()?, mirrored.narrow(2, 0, 2)?.to_vec::<f64>()?);
    Ok(())
}

#[test]
fn gradients_of_inputs_and_states_agree_with_differences() -> Outcome {
    let device = cpu();
    let options = RecurrentOptions { directions: Directions::Both, ..TWO_LAYERS };
    let lstm = prepared(Lstm::new(&device, KEY, options)?);
    let gru = prepared(Gru::new(&device, KEY, options)?);
    let states = || f64s(&device, "states", [4, 2, 2]);
    // The loss weighs outputs and states. First both count, then only the states.
    let forward = |counts: [f64; 2]| {
        let lstm = lstm.clone();
        move |pass: &Pass, inputs: Vec<Var>| {
            let [x, h, c] = <[Var; 3]>::try_from(inputs).unwrap_or_else(|_| panic!("three"));
            let run = lstm.run(pass, x, Some(LstmState { h, c }));
            let (y, ends) = run.map_err(NnError::into_autograd)?;
            let ends = ends.h.mul_scalar(0.7)?.add(ends.c)?.sum_all()?.mul_scalar(counts[1])?;
            y.mul_scalar(counts[0])?.add(ends)
        }
    };
    for counts in [[1.0, 1.0], [0.0, 1.0]] {
        let inputs = [f64s(&device, "x", [2, 3, 3]), states(), f64s(&device, "c", [4, 2, 2])];
        check::gradients(forward(counts), &inputs)?;
    }
    let forward = |pass: &Pass, inputs: Vec<Var>| {
        let [x, h] = <[Var; 2]>::try_from(inputs).unwrap_or_else(|_| panic!("two"));
        let (y, ends) = gru.run(pass, x, Some(h)).map_err(NnError::into_autograd)?;
        y.add(ends.sum_all()?)
    };
    check::gradients(forward, &[f64s(&device, "x", [2, 3, 3]), states()])?;
    Ok(())
}

#[test]
fn states_alone_bring_gradients() -> Outcome {
    let device = cpu();
    let mut model = prepared(Gru::new(&device, KEY, TWO_LAYERS)?);
    let attempt = Attempt::new();
    let pass = Pass::train(KEY, &attempt);
    let x = pass.constant(f64s(&device, "x", [2, 3, 3]));
    let (_, ends) = model.run(&pass, x, None)?;
    pass.backward(ends.sum_all()?)?;
    assert_eq!(attempt.into_gradients().len(), names(&mut model).len());
    Ok(())
}

#[test]
fn dropout_is_between_layers_only() -> Outcome {
    let device = cpu();
    let x = f64s(&device, "x", [2, 3, 3]);
    let differs = |layers| -> Result<bool> {
        let options = RecurrentOptions { layers, dropout: 0.5, ..TWO_LAYERS };
        let model = prepared(Lstm::new(&device, KEY, options)?);
        let run = |pass: Pass| model.forward(&pass, pass.constant(x.clone()));
        Ok(values(&run(Pass::no_grad(KEY))?) != values(&run(Pass::eval())?))
    };
    assert!(!differs(1)? && differs(2)?);
    Ok(())
}

#[test]
fn what_does_not_fit_is_an_error_that_names_the_layer() -> Outcome {
    let device = cpu();
    let lstm = prepared(Lstm::new(&device, KEY, TWO_LAYERS)?);
    let pass = Pass::eval();
    for wrong in [&[2, 0, 3][..], &[2, 3], &[2, 2, 4]] {
        let x = f64s(&device, "x", [wrong.iter().product()]).reshape(wrong)?;
        let error = lstm.forward(&pass, pass.constant(x)).err().expect("a mistake");
        let NnError::Autograd(AutogradError::Tensor(TensorError::Shape { op, left, .. })) = error
        else {
            panic!("{error}");
        };
        assert_eq!(left[..], *wrong);
        assert_eq!(op, if wrong == [2, 2, 4] { "linear" } else { "lstm" });
    }
    for wrong in [
        RecurrentOptions { layers: 0, ..TWO_LAYERS },
        RecurrentOptions { dropout: 1.5, ..TWO_LAYERS },
    ] {
        let error = Gru::new(&device, KEY, wrong).err();
        assert!(matches!(error, Some(NnError::Option { .. })), "{error:?}");
    }
    Ok(())
}

#[test]
fn half_types_give_what_f32_does_within_their_rounding() -> Outcome {
    // Tolerance for eight bits of mantissa, states near 1, and a few roundings at each of three
    // positions.
    const TOLERANCE: f64 = 16.0 / 256.0;
    let device = cpu();
    let x = f64s(&device, "x", [2, 3, 3]);
    let run = |dtype: DType, model: &mut dyn Module| -> Result<[Vec<f64>; 2]> {
        model.set_dtype(dtype)?;
        let attempt = Attempt::new();
        let pass = Pass::train(KEY, &attempt);
        let y = model.forward(&pass, pass.constant(x.to_dtype(dtype)?))?;
        assert_eq!(y.value().dtype(), dtype);
        let wide = |x: &Tensor| x.to_dtype(DType::F64).and_then(|x| x.to_vec::<f64>());
        let values = wide(y.value())?;
        pass.backward(y.sum_all()?)?;
        let gradients = attempt.into_gradients();
        let gradients =
            gradients.iter().map(wide).collect::<lowtide_tensor::TensorResult<Vec<_>>>()?;
        Ok([values, gradients.concat()])
    };
    let models: [Box<dyn Module>; 2] = [
        Box::new(Lstm::new(&device, KEY, TWO_LAYERS)?),
        Box::new(Gru::new(&device, KEY, TWO_LAYERS)?),
    ];
    for mut model in models {
        fill(&mut *model);
        let expected = run(DType::F32, &mut *model)?;
        let found = run(DType::BF16, &mut *model)?;
        for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
            let error = (found - expected).abs();
            assert!(error <= TOLERANCE * expected.abs().max(1.0), "{found} {expected}");
        }
        assert_eq!(found[1].len(), expected[1].len());
    }
    Ok(())
}

/// Copies the values of a layer's parameters to a cell. The layer's names have the suffix `_l0`.
fn copy_from_layer(cell: &mut dyn Parameters, layer: &mut dyn Parameters) {
    let mut all = std::collections::BTreeMap::new();
    layer.visit(&mut |name, parameter| {
        all.insert(name.replace("_l0", ""), parameter.value().clone());
    });
    cell.visit(&mut |name, parameter| *parameter.value_mut() = all[name].clone());
}

#[test]
fn cells_step_as_layers_walk() -> Outcome {
    let (device, pass) = (cpu(), Pass::eval());
    let one_layer = RecurrentOptions { layers: 1, ..TWO_LAYERS };
    let x = f64s(&device, "x", [2, 5, 3]);
    let step = |at| x.select(1, at).map(|x| pass.constant(x));
    for bias in [true, false] {
        let (options, cell) = (
            RecurrentOptions { bias, ..one_layer },
            CellOptions { bias, ..CellOptions::new(3, 2) },
        );
        let mut layer = prepared(Lstm::new(&device, KEY, options)?);
        let mut lstm = LstmCell::new(&device, KEY, cell)?;
        copy_from_layer(&mut lstm, &mut layer);
        let (y, ends) = layer.run(&pass, pass.constant(x.clone()), None)?;
        let mut state = None;
        for at in 0..5 {
            let now = lstm.step(&pass, step(at)?, state.take())?;
            assert_eq!(values(&now[0]), values(&y.clone().select(1, at)?.contiguous()?));
            state = Some(now);
        }
        let [_, c] = state.expect("five steps");
        assert_eq!(values(&c), values(&ends.c));

        let mut layer = prepared(Gru::new(&device, KEY, options)?);
        let mut gru = GruCell::new(&device, KEY, cell)?;
        copy_from_layer(&mut gru, &mut layer);
        let (y, _) = layer.run(&pass, pass.constant(x.clone()), None)?;
        let mut state = None;
        for at in 0..5 {
            let now = gru.step(&pass, step(at)?, state.take())?;
            assert_eq!(values(&now), values(&y.clone().select(1, at)?.contiguous()?));
            state = Some(now);
        }

        for activation in [RnnActivation::Tanh, RnnActivation::Relu] {
            let mut layer = prepared(Rnn::new(&device, KEY, options, activation)?);
            let mut rnn = RnnCell::new(&device, KEY, cell, activation)?;
            copy_from_layer(&mut rnn, &mut layer);
            let (y, _) = layer.run(&pass, pass.constant(x.clone()), None)?;
            let mut state = None;
            for at in 0..5 {
                let now = rnn.step(&pass, step(at)?, state.take())?;
                assert_eq!(values(&now), values(&y.clone().select(1, at)?.contiguous()?));
                state = Some(now);
            }
        }
    }
    Ok(())
}

#[test]
fn cells_have_pytorchs_names_and_refuse_what_does_not_fit() -> Outcome {
    let (device, pass) = (cpu(), Pass::eval());
    let mut cell = prepared(LstmCell::new(&device, KEY, CellOptions::new(3, 2))?);
    assert_eq!(names(&mut cell), ["weight_ih", "weight_hh", "bias_ih", "bias_hh"]);
    let var = |shape: [usize; 2]| pass.constant(f64s(&device, "x", shape));
    let x = || var([4, 3]);
    let state = |shape| Some([var([4, 2]), var(shape)]);
    assert!(cell.step(&pass, x(), state([4, 2])).is_ok());
    assert!(cell.step(&pass, x(), state([4, 3])).is_err());
    assert!(cell.step(&pass, x(), state([3, 2])).is_err());
    assert!(cell.step(&pass, var([4, 2]), None).is_err());
    assert!(cell.step(&pass, x().select(0, 0)?, None).is_err());
    let narrow = var([4, 2]).to_dtype(DType::F32)?;
    assert!(cell.step(&pass, x(), Some([narrow, var([4, 2])])).is_err());
    Ok(())
}

#[test]
fn projected_states_are_the_cells_times_the_projection() -> Outcome {
    let (device, pass) = (cpu(), Pass::eval());
    let options = RecurrentOptions { directions: Directions::Both, hidden: 4, ..TWO_LAYERS };
    let mut layer = prepared(Lstm::with_projection(&device, KEY, options, 2)?);
    let mut shapes = Vec::new();
    layer.visit(&mut |name, parameter| {
        shapes.push((name.to_owned(), parameter.value().shape().to_vec()));
    });
    let shape = |name: &str| &shapes.iter().find(|(own, _)| own == name).expect(name).1[..];
    assert_eq!(shape("weight_hh_l0_reverse"), [16, 2]);
    assert_eq!(shape("weight_hr_l0"), [2, 4]);
    assert_eq!(shape("weight_ih_l1"), [16, 4]);
    let x = f64s(&device, "x", [2, 5, 3]);
    let (y, ends) = layer.run(&pass, pass.constant(x.clone()), None)?;
    assert_eq!(y.shape()[..], [2, 5, 4]);
    assert_eq!([ends.h.shape()[..].to_vec(), ends.c.shape()[..].to_vec()], [[4, 2, 2], [4, 2, 4]]);

    // Running a sequence in two parts equals running the whole.
    let forward = RecurrentOptions { directions: Directions::Forward, ..options };
    let layer = prepared(Lstm::with_projection(&device, KEY, forward, 2)?);
    let part = |start, len| x.narrow(1, start, len).map(|x| pass.constant(x));
    let (whole, ends) = layer.run(&pass, part(0, 5)?, None)?;
    let (first, middle) = layer.run(&pass, part(0, 2)?, None)?;
    let (second, last) = layer.run(&pass, part(2, 3)?, Some(middle))?;
    assert_eq!(joined([&first, &second])?, values(&whole));
    assert_eq!([values(&last.h), values(&last.c)], [values(&ends.h), values(&ends.c)]);

    // One step from zeros equals the step of an LSTM without a projection, times the projection.
    let single = RecurrentOptions { layers: 1, ..forward };
    let mut layer = prepared(Lstm::with_projection(&device, KEY, single, 2)?);
    let mut projection = None;
    let mut plain = prepared(Lstm::new(&device, KEY, single)?);
    let mut all = std::collections::BTreeMap::new();
    layer.visit(&mut |name, parameter| match name {
        "weight_hr_l0" => projection = Some(parameter.value().clone()),
        _ => drop(all.insert(name.to_owned(), parameter.value().clone())),
    });
    plain.visit(&mut |name, parameter| match name {
        // This weight multiplies the state before, which is zeros.
        "weight_hh_l0" => {}
        _ => *parameter.value_mut() = all[name].clone(),
    });
    let (y, _) = layer.run(&pass, part(0, 1)?, None)?;
    let (h, _) = plain.run(&pass, part(0, 1)?, None)?;
    let projected = h.linear(pass.constant(projection.expect("a projection")), None)?;
    for (a, b) in values(&y).iter().zip(values(&projected)) {
        assert!((a - b).abs() < 1e-12, "{a}, not {b}");
    }
    for wrong in [0, 4, 5] {
        let error = Lstm::with_projection(&device, KEY, options, wrong).err();
        assert!(matches!(error, Some(NnError::Option { .. })), "{wrong}");
    }
    Ok(())
}
