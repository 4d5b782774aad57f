//! Turns: steps that train several models one after the other.

use lowtide_autograd::{Attempt, LeafId, Pass, Turn};
use lowtide_tensor::{DType, RandomKey, Tensor};

use crate::common::cpu;

#[test]
fn only_leaves_of_the_turn_have_gradients_and_values_are_the_same() {
    let device = cpu();
    let value = |x: f64| Tensor::full(&device, [3], DType::F64, x).expect("memory");
    let (mine, other) = (LeafId::new(), LeafId::new());
    let run = |turn: Option<Turn>| {
        let attempt = Attempt::new();
        let mut pass = Pass::train(RandomKey::new(1), &attempt);
        if let Some(turn) = turn {
            pass = pass.with_turn(turn);
        }
        let a = pass.leaf(mine, &value(2.0)).expect("a float");
        let b = pass.leaf(other, &value(5.0)).expect("a float");
        let loss = a.mul(b.clone()).and_then(|c| c.mul(b)).and_then(|c| c.sum(&[0]));
        let loss = loss.expect("memory");
        let sum = loss.value().item::<f64>().expect("cpu");
        pass.backward(loss).expect("memory");
        let gradients = attempt.into_gradients();
        let of = |leaf| gradients.get(leaf).map(|g| g.to_vec::<f64>().expect("cpu")[0]);
        (sum, of(mine), of(other))
    };
    assert_eq!(run(None), (150.0, Some(25.0), Some(20.0)));
    assert_eq!(run(Some(Turn::new("mine", [mine]))), (150.0, Some(25.0), None));
    assert_eq!(run(Some(Turn::new("other", [other]))), (150.0, None, Some(20.0)));
    let turn = Turn::new("mine", [mine]);
    let pass = Pass::eval().with_turn(turn);
    assert_eq!(pass.turn().expect("it has one").model(), "mine");
}

#[test]
fn nothing_is_saved_for_leaves_of_other_turns() {
    let device = cpu();
    let value = Tensor::full(&device, [1024], DType::F64, 2.0).expect("memory");
    let leaf = LeafId::new();
    let saved = |turn: Turn| {
        let before = device.allocator().live_blocks().len();
        let attempt = Attempt::new();
        let pass = Pass::train(RandomKey::new(1), &attempt).with_turn(turn);
        let mut x = pass.leaf(leaf, &value).expect("a float");
        for _ in 0..5 {
            x = x.exp().expect("memory");
        }
        device.allocator().live_blocks().len() - before
    };
    assert_eq!(saved(Turn::new("its", [leaf])), 5);
    assert_eq!(saved(Turn::new("another", [])), 1, "only the result lives");
}

#[test]
fn normal_numbers_do_not_depend_on_how_the_batch_is_split() {
    let device = cpu();
    let rows = |first: u64, len: usize| {
        let pass = Pass::no_grad(RandomKey::new(5)).with_first_sample(first);
        pass.draw();
        pass.normal(&device, [len, 7]).expect("memory").to_vec::<f32>().expect("cpu")
    };
    let whole = rows(0, 40);
    assert_eq!([rows(0, 11), rows(11, 29)].concat(), whole);
    let mean = whole.iter().sum::<f32>() / whole.len() as f32;
    let variance = whole.iter().map(|x| x * x).sum::<f32>() / whole.len() as f32;
    assert!(mean.abs() < 0.2 && (0.7..1.3).contains(&variance), "{mean} {variance}");
    assert_ne!(whole[..7], whole[7..14]);
}
