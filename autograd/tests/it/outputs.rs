//! Outputs, hooks and detached values: where gradients start, can be observed, and stop.

use std::cell::RefCell;
use std::rc::Rc;

use lowtide_autograd::{
    Attempt, AutogradError, AutogradResult as Result, LeafId, Needs, Pass, Var,
};
use lowtide_tensor::{Device, RandomKey, Tensor, TensorError};

use crate::common::{Outcome, bits, cpu, gradients_of, live_bytes, recording, tensor};

fn numbers(device: &Device, values: &[f32]) -> Tensor {
    Tensor::from_slice(device, [values.len()], values).expect("memory")
}

#[test]
fn nothing_flows_through_a_detached_value() -> Outcome {
    let x = numbers(&cpu(), &[2.0, 3.0]);
    let (leaves, gradients) = gradients_of(&[&x], |_, mut vars| {
        let x = vars.remove(0);
        let factor = x.clone().exp()?.detach();
        assert!(!factor.needs_gradient());
        x.mul(factor)?.sum_all()
    })?;
    let expected = [2.0_f32.exp(), 3.0_f32.exp()];
    let found = gradients.get(leaves[0]).unwrap().to_vec::<f32>()?;
    assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() <= 1e-6 * b), "{found:?}");
    Ok(())
}

#[test]
fn a_section_without_gradients_records_nothing_and_ends() -> Outcome {
    let device = cpu();
    let x = tensor(&device, "x", [128]);
    let (pass, attempt) = recording();
    let (outer, leaf) = (LeafId::new(), LeafId::new());
    let y = pass.leaf(outer, &x)?;
    let before = live_bytes(&device);
    let silent = pass.without_gradients(|| -> Result<Var> {
        assert!(!pass.is_recording());
        pass.without_gradients(|| ());
        y.clone().exp()?.mul(pass.leaf(leaf, &x)?)?.exp()
    })?;
    assert!(pass.is_recording() && !silent.needs_gradient());
    assert_eq!(live_bytes(&device) - before, 512, "the result and nothing else");
    pass.backward(y.mul(silent)?.sum_all()?)?;
    let gradients = attempt.into_gradients();
    assert!(gradients.get(leaf).is_none() && gradients.get(outer).is_some());
    Ok(())
}

#[test]
fn a_section_that_fails_ends_too() {
    let (pass, _attempt) = recording();
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        pass.without_gradients(|| panic!("in the middle"))
    }));
    assert!(outcome.is_err() && pass.is_recording());
}

#[test]
fn gradients_of_any_values_with_seeds_of_any_shape() -> Outcome {
    let device = cpu();
    let (a, b) = (numbers(&device, &[1.0, 2.0]), numbers(&device, &[3.0, 5.0]));
    let (pass, attempt) = recording();
    let a = pass.leaf(LeafId::new(), &a)?;
    let b = pass.input(b)?;
    let product = a.clone().mul(b.clone())?;
    let doubled = product.clone().mul_scalar(2.0)?;
    let constant = pass.constant(numbers(&device, &[1.0]));
    let seed = numbers(&device, &[1.0, 10.0]);
    let inputs = [b.clone(), product.clone(), a, constant, b, doubled.clone()];
    let found = pass.gradients(vec![(doubled, seed.clone()), (product, seed)], &inputs)?;
    let found: Vec<_> = found.iter().map(|x| x.as_ref().map(|x| x.to_vec::<f32>())).collect();
    // d/d product = 2 seed + seed, d/db = 3 seed · a, d/da = 3 seed · b.
    let expected: [Option<&[f32]>; 6] = [
        Some(&[3.0, 60.0]),
        Some(&[3.0, 30.0]),
        Some(&[9.0, 150.0]),
        None,
        Some(&[3.0, 60.0]),
        Some(&[1.0, 10.0]),
    ];
    for (found, expected) in found.into_iter().zip(expected) {
        assert_eq!(found.transpose()?.as_deref(), expected);
    }
    assert!(attempt.is_empty(), "leaves get nothing");
    Ok(())
}

/// The identity, whose rule notes that it ran.
fn probe(x: Var, name: &'static str, notes: &Rc<RefCell<Vec<&'static str>>>) -> Result<Var> {
    let notes = Rc::clone(notes);
    Var::apply("probe", [x], |[x], _| {
        let rule = move |dy: Tensor, _: Needs| {
            notes.borrow_mut().push(name);
            Ok(vec![Some(dy)])
        };
        Ok((x, rule))
    })
}

#[test]
fn only_what_is_asked_for_is_walked() -> Outcome {
    let device = cpu();
    let x = tensor(&device, "x", [3]);
    let (pass, _attempt) = recording();
    let notes = Rc::new(RefCell::new(Vec::new()));
    let a = pass.input(x.clone())?;
    let b = pass.leaf(LeafId::new(), &x)?;
    let y = probe(a.clone(), "a", &notes)?.mul(probe(b, "b", &notes)?)?;
    let found = pass.gradients(vec![(y, tensor(&device, "seed", [3]))], &[a])?;
    assert!(found[0].is_some());
    assert_eq!(*notes.borrow(), ["a"]);
    Ok(())
}

#[test]
fn backward_from_several_values_adds_up() -> Outcome {
    let device = cpu();
    let (x, seed) = (numbers(&device, &[1.0, 2.0]), numbers(&device, &[3.0, 4.0]));
    let (pass, attempt) = recording();
    let leaf = LeafId::new();
    let x = pass.leaf(leaf, &x)?;
    let outputs = vec![
        (x.clone().mul_scalar(10.0)?, seed.clone()),
        (pass.constant(seed.clone()), seed.clone()),
        (x, seed),
    ];
    pass.backward_from(outputs)?;
    assert_eq!(attempt.into_gradients().get(leaf).unwrap().to_vec::<f32>()?, [33.0, 44.0]);
    Ok(())
}

#[test]
fn a_seed_is_like_its_output() -> Outcome {
    let device = cpu();
    let (pass, attempt) = recording();
    let y = pass.leaf(LeafId::new(), &tensor(&device, "x", [3]))?.exp()?;
    let wrong = tensor(&device, "seed", [2]);
    let error = pass.backward_from(vec![(y.clone(), wrong)]).unwrap_err();
    let expected = |error: &AutogradError| {
        matches!(error, AutogradError::Tensor(TensorError::Shape { op: "backward", .. }))
    };
    assert!(expected(&error), "{error}");
    let nothing = pass.backward_from(Vec::new()).unwrap_err();
    assert!(matches!(nothing, AutogradError::NoGraph), "{nothing}");
    // Neither mistake consumed the pass.
    pass.backward(y.sum_all()?)?;
    assert_eq!(attempt.len(), 1);
    Ok(())
}

/// The halves of a vector, `a = x[..n/2]` and `b = x[n/2..]`.
fn halves(x: Var, told: &Rc<RefCell<Vec<[bool; 2]>>>) -> Result<[Var; 2]> {
    let told = Rc::clone(told);
    let both = Var::apply_many("halves", vec![x], |mut inputs, _| {
        let x = inputs.remove(0);
        let (shape, half) = (*x.shape(), x.shape()[0] / 2);
        let outputs = vec![x.narrow(0, 0, half)?, x.narrow(0, half, half)?];
        let rule = move |dys: Vec<Option<Tensor>>, _: Needs| {
            told.borrow_mut().push([dys[0].is_some(), dys[1].is_some()]);
            let device = dys.iter().flatten().next().expect("one of them").device();
            let dx = Tensor::zeros(device, shape, lowtide_tensor::DType::F32)?;
            for (index, dy) in dys.iter().enumerate() {
                let Some(dy) = dy else { continue };
                dx.narrow(0, index * half, half)?.copy_(dy)?;
            }
            Ok(vec![Some(dx)])
        };
        Ok((outputs, rule))
    })?;
    Ok(both.try_into().unwrap_or_else(|_| panic!("two outputs")))
}

#[test]
fn an_operation_may_have_several_outputs_used_or_not() -> Outcome {
    let device = cpu();
    let x = numbers(&device, &[1.0, 2.0, 3.0, 4.0]);
    type Use = fn([Var; 2]) -> Result<Var>;
    let uses: [(Use, [bool; 2], [f32; 4]); 3] = [
        (|[a, _]| a.mul_scalar(5.0), [true, false], [5.0, 5.0, 0.0, 0.0]),
        (|[_, b]| b.clone().mul(b), [false, true], [0.0, 0.0, 6.0, 8.0]),
        (|[a, b]| b.clone().mul(a)?.add(b), [true, true], [3.0, 4.0, 2.0, 3.0]),
    ];
    for (using, seen, expected) in uses {
        let told = Rc::default();
        let (leaves, gradients) =
            gradients_of(&[&x], |_, mut vars| using(halves(vars.remove(0), &told)?)?.sum_all())?;
        assert_eq!(gradients.get(leaves[0]).unwrap().to_vec::<f32>()?, expected);
        assert_eq!(*told.borrow(), [seen], "the rule ran once, with what was used");
    }
    Ok(())
}

#[test]
fn a_hook_sees_the_whole_gradient_and_may_replace_it() -> Outcome {
    let device = cpu();
    let x = numbers(&device, &[1.0, 2.0]);
    let seen = Rc::new(RefCell::new(Vec::new()));
    let (leaves, gradients) = gradients_of(&[&x], |_, mut vars| {
        let x = vars.remove(0);
        let y = x.mul_scalar(3.0)?;
        let early = y.clone().mul_scalar(4.0)?;
        for factor in [10.0, 0.5] {
            let seen = Rc::clone(&seen);
            y.on_gradient(move |dy| {
                seen.borrow_mut().push(dy.to_vec::<f32>()?);
                Ok(dy.mul_scalar(factor)?)
            })?;
        }
        early.add(y)?.sum_all()
    })?;
    assert_eq!(*seen.borrow(), [[5.0, 5.0], [50.0, 50.0]], "both uses, one hook after the other");
    assert_eq!(gradients.get(leaves[0]).unwrap().to_vec::<f32>()?, [75.0, 75.0]);
    Ok(())
}

#[test]
fn a_hook_on_a_leaf_sees_the_sum_of_its_pass() -> Outcome {
    let x = numbers(&cpu(), &[1.0, 2.0]);
    let (leaves, gradients) = gradients_of(&[&x], |_, mut vars| {
        let x = vars.remove(0);
        x.on_gradient(|dy| {
            assert_eq!(dy.to_vec::<f32>()?, [2.0, 4.0]);
            Ok(dy.mul_scalar(-1.0)?)
        })?;
        x.clone().mul(x)?.sum_all()
    })?;
    assert_eq!(gradients.get(leaves[0]).unwrap().to_vec::<f32>()?, [-2.0, -4.0]);
    Ok(())
}

#[test]
fn a_hook_must_give_back_what_it_got_in_shape_and_type() -> Outcome {
    let x = tensor(&cpu(), "x", [2]);
    let (pass, _attempt) = recording();
    let x = pass.leaf(LeafId::new(), &x)?.exp()?;
    x.on_gradient(|dy| Ok(dy.sum_all()?))?;
    let error = pass.backward(x.sum_all()?).unwrap_err();
    let shape =
        matches!(&error, AutogradError::Tensor(TensorError::Shape { op: "gradient hook", .. }));
    assert!(shape, "{error}");
    Ok(())
}

#[test]
fn a_hook_where_no_gradient_comes_by_is_never_called() -> Outcome {
    let x = tensor(&cpu(), "x", [2]);
    let (pass, _attempt) = recording();
    for pass in [Pass::eval(), Pass::no_grad(RandomKey::new(1)), pass.clone()] {
        pass.constant(x.clone()).on_gradient(|_| panic!("called"))?;
    }
    let y = pass.leaf(LeafId::new(), &x)?;
    y.clone().exp()?.on_gradient(|_| panic!("called"))?;
    pass.backward(y.sum_all()?)?;
    Ok(())
}

#[test]
fn more_inputs_than_there_are_bits_in_a_word_get_their_gradients() -> Outcome {
    let device = cpu();
    let x = tensor(&device, "x", [2]);
    let (pass, attempt) = recording();
    let leaves: Vec<LeafId> = (0..100).map(|_| LeafId::new()).collect();
    let mut inputs = Vec::new();
    for (index, &leaf) in leaves.iter().enumerate() {
        let constant = index % 7 == 3;
        inputs.push(if constant { pass.constant(x.clone()) } else { pass.leaf(leaf, &x)? });
    }
    let sum = Var::apply_to("sum of many", inputs, |inputs, _| {
        let mut y = inputs[0].copied()?;
        inputs[1..].iter().try_for_each(|x| y.add_(x))?;
        let count = inputs.len();
        let rule = move |dy: Tensor, needs: Needs| {
            Ok((0..count).map(|index| needs.input(index).then(|| dy.clone())).collect())
        };
        Ok((y, rule))
    })?;
    pass.backward(sum.sum_all()?)?;
    let gradients = attempt.into_gradients();
    for (index, &leaf) in leaves.iter().enumerate() {
        assert_eq!(gradients.get(leaf).is_some(), index % 7 != 3, "input {index}");
    }
    Ok(())
}

#[test]
fn buffer_updates_are_the_last_ones_and_come_out_with_the_attempt() -> Outcome {
    use lowtide_autograd::BufferId;
    let device = cpu();
    let (stored, ids) = (numbers(&device, &[1.0]), [BufferId::new(), BufferId::new()]);
    let attempt = Attempt::new();
    for step in 0..3 {
        let pass = Pass::train(RandomKey::new(step), &attempt);
        for id in [ids[1], ids[0]] {
            let mean = pass.buffer(id, &stored);
            pass.update_buffer(id, mean.mul_scalar(2.0)?);
        }
    }
    let silent = [Pass::eval(), Pass::no_grad(RandomKey::new(0))];
    silent.iter().for_each(|pass| pass.update_buffer(ids[0], stored.clone()));
    Pass::buffers_only(RandomKey::new(0), &attempt).update_buffer(ids[1], stored.clone());

    let (gradients, mut updates) = attempt.into_parts();
    assert!(gradients.is_empty());
    let order: Vec<BufferId> = updates.iter().map(|(id, _)| id).collect();
    assert_eq!((order, updates.len()), (ids.to_vec(), 2));
    assert_eq!(updates.remove(ids[0]).unwrap().to_vec::<f32>()?, [8.0]);
    assert_eq!(bits(updates.get(ids[1]).unwrap()), bits(&stored));
    assert_eq!(stored.to_vec::<f32>()?, [1.0], "the buffer itself is left alone");
    Ok(())
}
