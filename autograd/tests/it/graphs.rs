//! Graphs: values used more than once, passes that share an attempt, ownership of gradients, and
//! dependencies.

use std::cell::Cell;
use std::rc::Rc;

use lowtide_autograd::{
    Attempt, AutogradResult as Result, Dependencies, LeafId, Needs, Pass, Var, check,
};
use lowtide_tensor::{DType, RandomKey, Tensor};

use crate::common::{Outcome, bits, cpu, gradients_of, recording, tensor, values};

#[test]
fn a_value_used_twice_gets_both_contributions() -> Outcome {
    let x = Tensor::from_slice(&cpu(), [3], &[1.0_f32, -2.0, 0.5])?;
    let (leaves, gradients) = gradients_of(&[&x], |_, mut vars| {
        let x = vars.remove(0);
        x.clone().mul(x)?.sum_all()
    })?;
    let gradient = gradients.get(leaves[0]).expect("x has an influence");
    assert_eq!(gradient.to_vec::<f32>()?, [2.0, -4.0, 1.0]);
    Ok(())
}

#[test]
fn a_leaf_entered_twice_has_one_gradient() -> Outcome {
    let x = Tensor::from_slice(&cpu(), [2], &[3.0_f32, 4.0])?;
    let (pass, attempt) = recording();
    let leaf = LeafId::new();
    let product = pass.leaf(leaf, &x)?.mul(pass.leaf(leaf, &x)?)?;
    pass.backward(product.sum_all()?)?;
    assert_eq!(attempt.len(), 1);
    let gradients = attempt.into_gradients();
    assert_eq!(gradients.get(leaf).unwrap().to_vec::<f32>()?, [6.0, 8.0]);
    Ok(())
}

/// The function `eˣ · 3x + √(eˣ) - eˣ`: one value feeds three branches that meet again.
fn diamond(x: Var) -> Result<Var> {
    let e = x.clone().exp()?;
    let product = e.clone().mul(x.mul_scalar(3.0)?)?;
    product.add(e.clone().sqrt()?)?.sub(e)
}

#[test]
fn branches_that_meet_again_add_up() -> Outcome {
    let device = cpu();
    let numbers = values("diamond", 6, -1.0, 1.0);
    let x = Tensor::from_slice(&device, [2, 3], &numbers)?;
    check::gradients(|_, mut vars| diamond(vars.remove(0)), std::slice::from_ref(&x))?;

    let (leaves, gradients) =
        gradients_of(&[&x], |_, mut vars| diamond(vars.remove(0))?.sum_all())?;
    let found = gradients.get(leaves[0]).unwrap().to_vec::<f64>()?;
    for (x, found) in numbers.into_iter().zip(found) {
        let expected = x.exp() * (3.0 * x + 3.0) + x.exp().sqrt() / 2.0 - x.exp();
        assert!((found - expected).abs() <= 1e-14 * 16.0, "at {x}: {found}, not {expected}");
    }
    Ok(())
}

#[test]
fn a_gradient_that_two_values_share_is_not_added_to_in_place() -> Outcome {
    let device = cpu();
    let inputs = ["x", "w"]
        .map(|name| Tensor::from_slice(&device, [3], &values(name, 3, -1.0, 1.0)).expect("memory"));
    let shared = |pass: &Pass, mut vars: Vec<Var>| {
        let (a, b) = (vars.remove(0).exp()?, vars.remove(0).exp()?);
        let early = a.clone().mul_scalar(5.0)?;
        // The rule of the sum returns one buffer for a and b. The rule of `early`, which runs next,
        // adds to the gradient of a.
        let sum = a.add(b)?;
        sum.mul(pass.constant(Tensor::full(&device, [3], DType::F64, 2.0)?))?.add(early)
    };
    check::gradients(shared, &inputs)?;
    Ok(())
}

#[test]
fn passes_of_one_attempt_add_up() -> Outcome {
    let device = cpu();
    let w = tensor(&device, "w", [5]);
    let batches = ["first", "second", "third"].map(|name| tensor(&device, name, [5]));
    let leaf = LeafId::new();
    let run = |attempt: &Attempt, x: &Tensor| -> Result<()> {
        let pass = Pass::train(RandomKey::new(1), attempt);
        let y = pass.leaf(leaf, &w)?.mul(pass.constant(x.clone()))?.exp()?;
        pass.backward(y.sum_all()?)
    };
    let together = Attempt::new();
    let mut sum = Tensor::zeros(&device, [5], DType::F32)?;
    for batch in &batches {
        run(&together, batch)?;
        let alone = Attempt::new();
        run(&alone, batch)?;
        sum.add_(alone.into_gradients().get(leaf).unwrap())?;
    }
    assert_eq!(bits(together.into_gradients().get(leaf).unwrap()), bits(&sum));
    Ok(())
}

/// A sum of ones in bf16 would stop at 256.
#[test]
fn gradients_of_half_types_add_up_in_f32_over_passes() -> Outcome {
    let device = cpu();
    let ones = || Tensor::full(&device, [3], DType::BF16, 1.0);
    for recomputes in [false, true] {
        for (passes, dtype) in [(1, DType::BF16), (2, DType::F32), (600, DType::F32)] {
            let (leaf, attempt, w) = (LeafId::new(), Attempt::new(), ones()?);
            for step in 0..passes {
                let pass = Pass::train(RandomKey::new(step), &attempt);
                let w = w.clone();
                // Both uses belong to one pass, so the sum has the type of the leaf.
                let twice = move |pass: &Pass, x: Var| {
                    let half = pass.leaf(leaf, &w)?.mul_scalar(0.5)?;
                    half.add(pass.leaf(leaf, &w)?.mul_scalar(0.5)?)?.mul(x)
                };
                let x = pass.constant(ones()?);
                let y = if recomputes { pass.checkpoint(x, twice)? } else { twice(&pass, x)? };
                pass.backward(y.sum_all()?)?;
            }
            let gradients = attempt.into_gradients();
            let sum = gradients.get(leaf).expect("it counts");
            assert_eq!(sum.dtype(), dtype, "{passes} passes");
            let values = sum.to_dtype(DType::F32)?.to_vec::<f32>()?;
            assert_eq!(values, [passes as f32; 3]);
        }
    }
    Ok(())
}

#[test]
fn gradients_have_their_leafs_shape_and_type_and_are_contiguous() -> Outcome {
    let device = cpu();
    let wide = Tensor::from_slice(&device, [3, 2], &values("f64", 6, -1.0, 1.0))?;
    let matrix = tensor(&device, "f32", [3, 2]);
    for x in [wide.clone(), wide.transpose(0, 1)?, matrix.clone(), matrix.narrow(1, 1, 1)?] {
        for transposed in [false, true] {
            let (leaves, gradients) = gradients_of(&[&x], |_, mut vars| {
                let x = vars.remove(0);
                let x = if transposed { x.transpose(0, 1)? } else { x };
                x.clone().mul(x)?.sum_all()
            })?;
            let gradient = gradients.get(leaves[0]).unwrap();
            assert_eq!((gradient.shape(), gradient.dtype()), (x.shape(), x.dtype()));
            assert!(gradient.layout().is_contiguous(), "{x:?}, transposed: {transposed}");
        }
    }
    Ok(())
}

#[test]
fn a_gradient_without_dimensions_or_elements_is_one() -> Outcome {
    let device = cpu();
    let (scalar, empty) = (tensor(&device, "scalar", []), tensor(&device, "empty", [0, 3]));
    let (leaves, gradients) = gradients_of(&[&scalar, &empty], |_, mut vars| {
        let sum = vars.remove(1).exp()?.sum_all()?;
        sum.add(vars.remove(0))
    })?;
    assert_eq!(gradients.get(leaves[0]).unwrap().item::<f32>()?, 1.0);
    assert_eq!(gradients.get(leaves[1]).unwrap().shape(), empty.shape());
    Ok(())
}

#[test]
fn gradients_own_their_storage() -> Outcome {
    let device = cpu();
    let [a, b] = ["a", "b"].map(|name| tensor(&device, name, [2, 2]));
    // The rule of a sum returns one tensor for both inputs, the rule of a reshape a view of it.
    let (leaves, mut gradients) = gradients_of(&[&a, &b], |_, mut vars| {
        let sum = vars.remove(0).add(vars.remove(0).reshape([4])?.reshape([2, 2])?)?;
        sum.sum_all()
    })?;
    let all: Vec<&Tensor> = gradients.iter().collect();
    assert_eq!(all.len(), 2);
    assert!(!all[0].shares_storage(all[1]));
    assert!(all.iter().all(|gradient| gradient.is_reusable()));

    gradients.iter_mut().next().unwrap().mul_scalar_(8.0)?;
    assert_eq!(gradients.get(leaves[0]).unwrap().to_vec::<f32>()?, [8.0; 4]);
    assert_eq!(gradients.get(leaves[1]).unwrap().to_vec::<f32>()?, [1.0; 4]);
    Ok(())
}

#[test]
fn a_gradient_is_never_a_view_of_a_value() -> Outcome {
    let device = cpu();
    let [x, w] = ["x", "w"].map(|name| tensor(&device, name, [4]));
    let before = (bits(&x), bits(&w));
    let (_, mut gradients) =
        gradients_of(&[&x, &w], |_, mut vars| vars.remove(0).mul(vars.remove(0))?.sum_all())?;
    gradients.iter_mut().try_for_each(|gradient| gradient.fill_(7.0))?;
    assert_eq!((bits(&x), bits(&w)), before);
    Ok(())
}

#[test]
fn a_leaf_that_is_the_loss_has_gradient_one() -> Outcome {
    let x = Tensor::from_slice(&cpu(), [1, 1], &[5.0_f32])?;
    let (leaves, gradients) = gradients_of(&[&x], |_, mut vars| Ok(vars.remove(0)))?;
    assert_eq!(gradients.get(leaves[0]).unwrap().to_vec::<f32>()?, [1.0]);
    assert_eq!(gradients.get(leaves[0]).unwrap().shape(), x.shape());
    Ok(())
}

#[test]
fn what_does_not_lead_to_the_loss_has_no_gradient() -> Outcome {
    let device = cpu();
    let [x, before, after] = ["x", "before", "after"].map(|name| tensor(&device, name, [2]));
    let (leaves, gradients) = gradients_of(&[&x, &before, &after], |_, vars| {
        let [x, before, after] = vars.try_into().unwrap_or_else(|_| panic!("three"));
        before.exp()?.mul(x.clone())?;
        let loss = x.sum_all()?;
        after.mul(loss.clone())?;
        Ok(loss)
    })?;
    assert_eq!(gradients.len(), 1);
    assert_eq!(gradients.get(leaves[0]).unwrap().to_vec::<f32>()?, [1.0; 2]);
    Ok(())
}

#[test]
fn a_value_depends_on_the_leaves_and_inputs_that_lead_to_it() -> Outcome {
    let (device, (pass, _attempt)) = (cpu(), recording());
    let [used, unused, inner] = [LeafId::new(), LeafId::new(), LeafId::new()];
    let values = ["a", "b", "c"].map(|name| tensor(&device, name, [2]));
    let inputs = [pass.input(values[0].clone())?, pass.input(values[1].clone())?];
    let _other = pass.leaf(unused, &values[0])?.add(inputs[0].clone())?;
    let x = pass.leaf(used, &values[1])?.mul(inputs[1].clone())?;
    let weight = values[2].clone();
    // The leaves of a recomputed segment count, too.
    let y = pass.checkpoint(x, move |pass, x| x.mul(pass.leaf(inner, &weight)?))?;
    let found = pass.dependencies(&y, &inputs)?;
    assert_eq!(found.leaves, [used, inner].into());
    assert_eq!(found.inputs, [1].into());
    let constant = pass.constant(values[0].clone());
    assert_eq!(pass.dependencies(&constant, &inputs)?, Dependencies::default());
    pass.backward(y.sum_all()?)?;
    Ok(())
}

#[test]
fn the_seed_scales_the_gradient() -> Outcome {
    let x = tensor(&cpu(), "x", [3]);
    let (pass, attempt) = recording();
    let leaf = LeafId::new();
    pass.backward_seeded(pass.leaf(leaf, &x)?.sum_all()?, 1024.0)?;
    assert_eq!(attempt.into_gradients().get(leaf).unwrap().to_vec::<f32>()?, [1024.0; 3]);
    Ok(())
}

#[test]
fn a_rule_is_told_which_inputs_need_a_gradient() -> Outcome {
    let device = cpu();
    let [x, c] = ["x", "c"].map(|name| tensor(&device, name, [2]));
    let seen = Rc::new(Cell::new([true; 2]));
    let told = Rc::clone(&seen);
    gradients_of(&[&x], |pass, mut vars| {
        let y = Var::apply("second", [pass.constant(c), vars.remove(0)], |[_, x], _| {
            let rule = move |dy: Tensor, needs: Needs| {
                told.set([needs.input(0), needs.input(1)]);
                Ok(vec![None, Some(dy)])
            };
            Ok((x, rule))
        })?;
        y.sum_all()
    })?;
    assert_eq!(seen.get(), [false, true]);
    Ok(())
}

#[test]
fn gradients_come_in_the_order_of_their_leaves_and_are_taken_once() -> Outcome {
    let device = cpu();
    let inputs = [1.0_f32, 2.0, 3.0].map(|x| Tensor::from_slice(&device, [1], &[x]));
    let inputs = inputs.into_iter().collect::<lowtide_tensor::TensorResult<Vec<_>>>()?;
    let (leaves, mut gradients) = gradients_of(&inputs.iter().collect::<Vec<_>>(), |_, vars| {
        let scaled = vars.into_iter().zip([1.0, 2.0, 3.0]).rev().map(|(x, i)| x.mul_scalar(i));
        scaled.reduce(|a, b| a?.add(b?)).expect("three")
    })?;
    let values = gradients.iter().map(Tensor::item::<f32>);
    assert_eq!(values.collect::<lowtide_tensor::TensorResult<Vec<_>>>()?, [1.0, 2.0, 3.0]);
    assert_eq!(gradients.remove(leaves[1]).unwrap().item::<f32>()?, 2.0);
    assert!(gradients.remove(leaves[1]).is_none());
    assert_eq!((gradients.len(), gradients.is_empty()), (2, false));
    Ok(())
}

#[test]
fn a_pass_knows_its_mode() {
    let (pass, attempt) = recording();
    assert!(pass.is_training() && attempt.is_empty());
    assert_eq!(pass.key(), RandomKey::new(5));
    assert!(Pass::no_grad(RandomKey::new(5)).is_training());
    assert!(!Pass::eval().is_training());
}
