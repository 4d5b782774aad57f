//! Random keys by path and count.

use std::collections::BTreeSet;

use lowtide_autograd::{Attempt, Pass};
use lowtide_tensor::RandomKey;

fn pass() -> Pass {
    Pass::train(RandomKey::new(3).step(7), &Attempt::new())
}

#[test]
fn every_draw_has_its_own_key_that_is_the_same_in_another_pass() {
    let draw = |pass: &Pass| {
        let mut blocks = vec![pass.draw().block(0)];
        pass.within("layers", || {
            blocks.push(pass.draw().block(0));
            for layer in ["0", "1", "0"] {
                pass.within(layer, || {
                    blocks.extend([pass.draw().block(0), pass.draw().block(0)]);
                });
            }
        });
        blocks.push(pass.draw().block(0));
        blocks
    };
    let blocks = draw(&pass());
    let distinct: BTreeSet<[u32; 4]> = blocks.iter().copied().collect();
    assert_eq!(distinct.len(), 9, "each is its own, also where a module is used twice");
    assert_eq!(blocks, draw(&pass()));
}

#[test]
fn what_one_module_draws_does_not_move_anothers_numbers() {
    let in_second = |draws_of_first: usize| {
        let pass = pass();
        pass.within("first", || {
            for _ in 0..draws_of_first {
                pass.draw();
            }
        });
        pass.within("second", || pass.draw().block(0))
    };
    assert_eq!(in_second(0), in_second(5));
}

#[test]
fn a_path_ends_with_its_module() {
    let pass = pass();
    pass.within("a", || pass.within("b", || assert_eq!(pass.path(), "a.b")));
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        pass.within("c", || panic!("inside"))
    }));
    assert!(outcome.is_err());
    assert_eq!(pass.path(), "");
}

#[test]
fn a_pass_knows_its_first_sample() {
    assert_eq!(pass().first_sample(), 0);
    assert_eq!(pass().with_first_sample(48).first_sample(), 48);
}
