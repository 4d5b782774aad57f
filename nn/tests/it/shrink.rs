//! Distillation, preferences and pruned weights against PyTorch: `fixtures/make_shrink.py`.

use lowtide_autograd::{Attempt, Pass, Var};
use lowtide_nn::models::{Gpt, GptShape};
use lowtide_nn::optim::{Adam, AdamOptions, Masked, Optimizer, Sgd, SgdOptions, Stateful};
use lowtide_nn::prune::{self, MagnitudeOptions};
use lowtide_nn::{
    Linear, Logits, Module, NnError, NnResult as Result, Parameter, Parameters, parameters,
    preference,
};
use lowtide_tensor::{DType, Device, RandomKey, Tensor};

use crate::common::{Outcome, cpu, f32s, f64s};

const VALUES: &str = include_str!("../fixtures/shrink.txt");

fn expected(name: &str) -> Vec<f64> {
    let mut lines = VALUES.lines().map(|line| line.split(' '));
    let mut line = lines.find(|line| line.clone().next() == Some(name)).expect("in the file");
    line.next();
    line.map(|value| value.parse().expect("a number")).collect()
}

/// The numbers of the script.
fn numbers(count: usize, seed: u64) -> Vec<f64> {
    let next = |state: &mut u64| {
        *state = (*state * 1_103_515_245 + 12345) % (1 << 31);
        Some(2.0 * *state as f64 / f64::from(1_u32 << 31) - 1.0)
    };
    let mut state = seed;
    std::iter::from_fn(|| next(&mut state)).take(count).collect()
}

#[track_caller]
fn assert_close(found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!(
            (found - expected).abs() <= tolerance * expected.abs().max(1.0),
            "{at}: {found} {expected}"
        );
    }
}

/// A parameter with these values.
fn leaf(device: &Device, values: &[f64], shape: &[usize]) -> Result<Parameter> {
    Ok(Parameter::new(Tensor::from_slice(device, lowtide_tensor::Shape::new(shape), values)?))
}

/// `(1 - a) CE + a T² KL`, the loss of the trainer.
fn loss_of(student: Logits, teacher: Logits, labels: &Tensor, [t, a]: [f64; 2]) -> Result<Var> {
    let soft = student.clone().distillation(teacher, labels, t)?.sum.mul_scalar(a)?;
    Ok(soft.add(student.cross_entropy(labels)?.sum.mul_scalar(1.0 - a)?)?)
}

#[test]
fn distillation_and_its_gradient_are_pytorchs() -> Outcome {
    let device = cpu();
    let scaled = |seed| numbers(16, seed).into_iter().map(|x| 3.0 * x).collect::<Vec<_>>();
    let labels = Tensor::from_slice(&device, [4], &[2_i64, -100, 0, 3])?;
    for (name, t, a) in [("1.0.0.5", 1.0, 0.5), ("2.0.0.3", 2.0, 0.3), ("4.0.1.0", 4.0, 1.0)] {
        let student = leaf(&device, &scaled(1), &[4, 4])?;
        let teacher = Tensor::from_slice(&device, [4, 4], &scaled(2))?;
        let attempt = Attempt::new();
        let pass = Pass::train(RandomKey::new(0), &attempt);
        let own = Logits::Whole(student.var(&pass)?);
        let loss = loss_of(own, Logits::Whole(pass.constant(teacher)), &labels, [t, a])?;
        let mut found = vec![loss.value().item::<f64>()?];
        pass.backward(loss)?;
        let gradients = attempt.into_gradients();
        found.extend(gradients.get(student.id()).expect("one").to_vec::<f64>()?);
        assert_close(&found, &expected(&format!("distillation.{name}")), 1e-13);
    }
    Ok(())
}

#[test]
fn preference_and_its_gradient_are_pytorchs() -> Outcome {
    let device = cpu();
    let negative = |seed| numbers(4, seed).into_iter().map(|x| -5.0 * x.abs()).collect::<Vec<_>>();
    for (name, beta) in [("0.1", 0.1), ("0.5", 0.5)] {
        let (chosen, rejected) =
            (leaf(&device, &negative(3), &[4])?, leaf(&device, &negative(4), &[4])?);
        let reference = [5, 6].map(|seed| Tensor::from_slice(&device, [4], &negative(seed)));
        let [c, r] = reference;
        let attempt = Attempt::new();
        let pass = Pass::train(RandomKey::new(0), &attempt);
        let pair = [chosen.var(&pass)?, rejected.var(&pass)?];
        let (loss, margins) = preference(pair, &[c?, r?], beta)?;
        assert_eq!(margins.shape()[..], [4]);
        assert_eq!(loss.count.item::<f64>()?, 4.0);
        let mut found = vec![loss.sum.value().item::<f64>()?];
        pass.backward(loss.sum)?;
        let gradients = attempt.into_gradients();
        for parameter in [&chosen, &rejected] {
            found.extend(gradients.get(parameter.id()).expect("one").to_vec::<f64>()?);
        }
        assert_close(&found, &expected(&format!("preference.{name}")), 1e-13);
    }
    let one = || f64s(&device, "x", [2]);
    let pass = Pass::eval();
    let pair = || [pass.constant(one()), pass.constant(one())];
    assert!(matches!(preference(pair(), &[one(), one()], 0.0), Err(NnError::Option { .. })));
    Ok(())
}

struct Two {
    first: Linear,
    second: Linear,
}

parameters!(Two { first, second });

#[test]
fn ten_steps_of_a_pruned_model_are_pytorchs() -> Outcome {
    let device = cpu();
    let x = Tensor::from_slice(&device, [2, 5], &numbers(10, 9))?;
    let momentum = SgdOptions { momentum: 0.9, weight_decay: 0.1, ..SgdOptions::new(0.1) };
    let optimizers: [(&str, Box<dyn Stateful>); 2] = [
        ("sgd", Box::new(Sgd::new(momentum)?)),
        ("adamw", Box::new(Adam::new(AdamOptions { learning_rate: 0.1, ..AdamOptions::adamw() })?)),
    ];
    for (name, optimizer) in optimizers {
        let linear = |seed, shape: [usize; 2]| -> Result<Linear> {
            let weight = leaf(&device, &numbers(shape[0] * shape[1], seed), &shape)?;
            Ok(Linear::from_parameters(weight, None))
        };
        let mut model = Two { first: linear(7, [4, 5])?, second: linear(8, [3, 4])? };
        let options = MagnitudeOptions { fraction: 0.4, ..Default::default() };
        let masks = prune::magnitude(&mut model, &options)?;
        let mut optimizer = Masked::new(optimizer, masks);
        for step in 0..10 {
            let attempt = Attempt::new();
            let pass = Pass::train(RandomKey::new(0).step(step), &attempt);
            let hidden = model.first.forward(&pass, pass.constant(x.clone()))?.tanh()?;
            let y = model.second.forward(&pass, hidden)?;
            pass.backward(y.clone().mul(y)?.sum_all()?)?;
            optimizer.step(&mut model, attempt)?;
        }
        let mut found = Vec::new();
        model.visit(&mut |_, own| found.extend(own.value().to_vec::<f64>().expect("f64")));
        assert_close(&found, &expected(&format!("pruned.{name}")), 1e-12);
    }
    Ok(())
}

/// Inputs and weights of the output layers of a student and a teacher, for `rows` rows and 11
/// classes.
fn linear(device: &Device, rows: usize) -> [Tensor; 4] {
    [
        f64s(device, "x", [rows, 5]),
        f64s(device, "w", [11, 5]),
        f64s(device, "teacher x", [rows, 7]),
        f64s(device, "teacher w", [11, 7]),
    ]
}

fn labels(device: &Device, rows: usize) -> Result<Tensor> {
    let label = |row: usize| if row % 5 == 3 { -100 } else { (row * 7 % 11) as i64 };
    Ok(Tensor::from_slice(device, [rows], &(0..rows).map(label).collect::<Vec<_>>())?)
}

#[test]
fn chunks_of_linear_logits_are_the_whole_ones() -> Outcome {
    let device = cpu();
    // One chunk, several chunks, and a short last chunk.
    for rows in [1, 16, 70, 200] {
        let [x, w, tx, tw] = linear(&device, rows);
        let labels = labels(&device, rows)?;
        let run = |is_whole: bool| -> Result<(f64, f64, Vec<f64>)> {
            let leaves = [Parameter::new(x.clone()), Parameter::new(w.clone())];
            let attempt = Attempt::new();
            let pass = Pass::train(RandomKey::new(0), &attempt);
            let logits = |input: Var, weight: Var| Logits::Linear { input, weight };
            let student = logits(leaves[0].var(&pass)?, leaves[1].var(&pass)?);
            let teacher = logits(pass.constant(tx.clone()), pass.constant(tw.clone()));
            assert_eq!((student.classes(), teacher.classes()), (11, 11));
            let (student, teacher) = if is_whole {
                (Logits::Whole(student.whole()?), Logits::Whole(teacher.whole()?))
            } else {
                (student, teacher)
            };
            let count = student.clone().distillation(teacher.clone(), &labels, 2.0)?.count;
            let loss = loss_of(student, teacher, &labels, [2.0, 0.4])?;
            let sum = loss.value().item::<f64>()?;
            pass.backward(loss)?;
            let gradients = attempt.into_gradients();
            let mut all = Vec::new();
            for leaf in &leaves {
                all.extend(gradients.get(leaf.id()).expect("one").to_vec::<f64>()?);
            }
            Ok((sum, count.item::<f64>()?, all))
        };
        let (whole, chunked) = (run(true)?, run(false)?);
        assert_close(&[chunked.0, chunked.1], &[whole.0, whole.1], 1e-13);
        assert_close(&chunked.2, &whole.2, 1e-12);
        let counted = (0..rows).filter(|row| row % 5 != 3).count();
        assert_eq!(whole.1, counted as f64);
    }
    Ok(())
}

#[test]
fn gradients_of_distillation_and_of_log_likelihoods_are_those_of_differences() -> Outcome {
    let device = cpu();
    let [x, w, tx, tw] = linear(&device, 6);
    let labels = labels(&device, 6)?;
    let sequences = labels.reshape([2, 3])?;
    let (teacher_x, teacher_w) = (tx.clone(), tw.clone());
    let distilled = move |_: &Pass, vars: Vec<Var>| {
        let [input, weight] = vars.try_into().unwrap_or_else(|_| unreachable!("two"));
        let pass = input.pass().clone();
        let teacher = Logits::Linear {
            input: pass.constant(teacher_x.clone()),
            weight: pass.constant(teacher_w.clone()),
        };
        let loss = Logits::Linear { input, weight }.distillation(teacher, &labels, 3.0);
        Ok(loss.map_err(NnError::into_autograd)?.sum)
    };
    lowtide_autograd::check::gradients(distilled, &[x.clone(), w.clone()])?;
    for is_whole in [true, false] {
        let sequences = sequences.clone();
        let likelihood = move |_: &Pass, vars: Vec<Var>| {
            let [input, weight] = vars.try_into().unwrap_or_else(|_| unreachable!("two"));
            let logits = Logits::Linear { input: input.reshape([2, 3, 5])?, weight };
            let run = || -> Result<Var> {
                let logits = if is_whole { Logits::Whole(logits.whole()?) } else { logits };
                let each = logits.log_likelihoods(&sequences)?;
                assert_eq!(each.shape()[..], [2]);
                // Each sequence has its own factor.
                let factors = Tensor::from_slice(each.value().device(), [2], &[1.0_f64, -2.5])?;
                let factors = each.pass().constant(factors);
                Ok(each.mul(factors)?.sum_all()?)
            };
            run().map_err(NnError::into_autograd)
        };
        lowtide_autograd::check::gradients(likelihood, &[x.clone(), w.clone()])?;
    }
    Ok(())
}

#[test]
fn teacher_equal_to_the_student_teaches_nothing_and_shapes_are_checked() -> Outcome {
    let device = cpu();
    let pass = Pass::eval();
    let [x, w, tx, _] = linear(&device, 20);
    let labels = labels(&device, 20)?;
    let of = |x: &Tensor, w: &Tensor| Logits::Linear {
        input: pass.constant(x.clone()),
        weight: pass.constant(w.clone()),
    };
    let none = of(&x, &w).distillation(of(&x, &w), &labels, 2.0)?.sum.value().item::<f64>()?;
    assert!(none.abs() < 1e-13, "{none}");
    for temperature in [0.0, -1.0, f64::NAN] {
        let outcome = of(&x, &w).distillation(of(&x, &w), &labels, temperature);
        assert!(matches!(outcome, Err(NnError::Option { name: "temperature", .. })));
    }
    let other = f64s(&device, "other classes", [12, 7]);
    assert!(of(&x, &w).distillation(of(&tx, &other), &labels, 2.0).is_err());
    let logits = Logits::Whole(pass.constant(x.clone()));
    assert!(logits.log_likelihoods(&labels).is_err(), "sequences have two dimensions");
    Ok(())
}

#[test]
fn language_models_are_distilled_with_an_eighth_of_the_logits_at_a_time() -> Outcome {
    let device = cpu();
    let shape = GptShape { vocabulary: 4096, context: 64, width: 8, heads: 2, blocks: 1 };
    let [student, teacher] = [1, 2].map(|seed| Gpt::new(&device, RandomKey::new(seed), shape));
    let (student, teacher) = (student?, teacher?);
    let (rows, memory) = (4, device.allocator());
    let ids: Vec<i64> = (0..rows * 64).map(|at| (at * 37 % 4096) as i64).collect();
    let tokens = Tensor::from_slice(&device, [rows, 64], &ids)?;
    let peak_of = |is_whole: bool| -> Result<(usize, f64)> {
        let attempt = Attempt::new();
        let pass = Pass::train(RandomKey::new(0), &attempt);
        let read = |model: &Gpt, pass: &Pass| -> Result<Logits> {
            let logits = model.logits(pass, pass.constant(tokens.clone()))?;
            Ok(if is_whole { Logits::Whole(logits.whole()?) } else { logits })
        };
        memory.trim();
        memory.reset_peaks();
        let before = memory.statistics().allocated.current_bytes;
        let taught = read(&teacher, &Pass::eval())?;
        let loss = read(&student, &pass)?.distillation(taught, &tokens, 2.0)?.sum;
        let sum = f64::from(loss.value().item::<f32>()?);
        pass.backward(loss)?;
        Ok((memory.statistics().allocated.peak_bytes - before, sum))
    };
    let (whole, chunked) = (peak_of(true)?, peak_of(false)?);
    assert!((whole.1 - chunked.1).abs() < 1e-4 * whole.1, "{whole:?} {chunked:?}");
    let logits_bytes = 4 * rows * 64 * 4096;
    assert!(whole.0 > 3 * logits_bytes && chunked.0 < logits_bytes, "{whole:?} {chunked:?}");
    Ok(())
}

#[test]
fn half_types_are_distilled_in_f32() -> Outcome {
    let device = cpu();
    let pass = Pass::eval();
    let labels = labels(&device, 8)?;
    let logits = |name: &str, dtype: DType| -> Result<Logits> {
        Ok(Logits::Whole(pass.constant(f32s(&device, name, [8, 11]).to_dtype(dtype)?)))
    };
    let wide = logits("a", DType::F32)?.distillation(logits("b", DType::F32)?, &labels, 2.0)?;
    let half = logits("a", DType::BF16)?.distillation(logits("b", DType::BF16)?, &labels, 2.0)?;
    let [wide, half] = [wide, half].map(|loss| loss.sum.value().item::<f32>());
    let (wide, half) = (wide?, half?);
    assert!((wide - half).abs() < 0.02 * wide, "{wide} {half}");
    Ok(())
}
