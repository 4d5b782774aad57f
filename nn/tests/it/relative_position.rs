use lowtide_autograd::{Attempt, Pass};
use lowtide_nn::{
    NnError, NnResult as Result, Parameters, RelativePositionBias, RelativePositionOptions,
    RelativeSides,
};
use lowtide_tensor::{DType, Tensor};

use crate::common::{KEY, cpu};

/// A layer whose number for bucket b is `10 · b + head`.
fn numbered(options: RelativePositionOptions) -> Result<RelativePositionBias> {
    let device = cpu();
    let mut layer = RelativePositionBias::new(&device, KEY, options)?;
    let heads = options.heads;
    let numbers: Vec<f32> =
        (0..options.buckets * heads).map(|at| (10 * (at / heads) + at % heads) as f32).collect();
    layer.visit(&mut |_, weight| {
        let value = Tensor::from_slice(&device, [options.buckets, heads], &numbers);
        *weight.value_mut() = value.expect("room for a small table");
    });
    Ok(layer)
}

fn bias(options: RelativePositionOptions, lens: [usize; 2]) -> Result<Vec<f32>> {
    let layer = numbered(options)?;
    Ok(layer.bias(&Pass::eval(), lens)?.value().to_vec::<f32>()?)
}

#[test]
fn distances_have_the_numbers_that_t5_gives_them() -> Result<()> {
    // Expected buckets are those of `T5Attention._relative_position_bucket` in transformers 5.24,
    // for query 0.
    let options = RelativePositionOptions::new(1, RelativeSides::Both);
    let found = bias(options, [1, 200])?;
    for (distance, bucket) in [
        (0, 0),
        (1, 17),
        (7, 23),
        (8, 24),
        (11, 24),
        (12, 25),
        (15, 25),
        (16, 26),
        (22, 26),
        (23, 27),
        (32, 28),
        (45, 28),
        (46, 29),
        (64, 30),
        (90, 30),
        (91, 31),
        (128, 31),
        (199, 31),
    ] {
        assert_eq!(found[distance], 10.0 * bucket as f32, "{distance}");
    }
    // The last query has keys before it at every distance.
    let options = RelativePositionOptions { sides: RelativeSides::Before, ..options };
    let found = bias(options, [200, 200])?;
    let last = &found[199 * 200..];
    for (distance, bucket) in [
        (0, 0),
        (1, 1),
        (15, 15),
        (16, 16),
        (18, 16),
        (19, 17),
        (32, 21),
        (64, 26),
        (113, 31),
        (128, 31),
        (199, 31),
    ] {
        assert_eq!(last[199 - distance], 10.0 * bucket as f32, "{distance}");
    }
    assert!(found[1..200].iter().all(|&number| number == 0.0), "keys after the query");
    Ok(())
}

#[test]
fn every_head_has_numbers_of_its_own_and_their_gradient() -> Result<()> {
    let options = RelativePositionOptions {
        buckets: 4,
        distance_max: 3,
        ..RelativePositionOptions::new(2, RelativeSides::Both)
    };
    let expected = [0.0, 30.0, 30.0, 10.0, 0.0, 30.0, 1.0, 31.0, 31.0, 11.0, 1.0, 31.0];
    assert_eq!(bias(options, [2, 3])?, expected);
    let mut layer = numbered(options)?;
    let attempt = Attempt::new();
    let pass = Pass::train(KEY, &attempt);
    pass.backward(layer.bias(&pass, [2, 3])?.sum_all()?)?;
    let mut gradient = None;
    layer.visit(&mut |_, weight| gradient = attempt.gradient(weight.id()));
    let gradient = gradient.expect("the table has an influence").to_dtype(DType::F32)?;
    assert_eq!(gradient.to_vec::<f32>()?, [2.0, 2.0, 1.0, 1.0, 0.0, 0.0, 3.0, 3.0]);
    Ok(())
}

#[test]
fn tables_without_room_for_the_sides_are_refused() {
    let device = cpu();
    let whole = RelativePositionOptions::new(2, RelativeSides::Both);
    for (options, option) in [
        (RelativePositionOptions { buckets: 2, ..whole }, "buckets"),
        (RelativePositionOptions { buckets: 7, ..whole }, "buckets"),
        (RelativePositionOptions { buckets: 1, sides: RelativeSides::Before, ..whole }, "buckets"),
        (RelativePositionOptions { distance_max: 8, ..whole }, "distance_max"),
    ] {
        let error = RelativePositionBias::new(&device, KEY, options).err();
        assert!(
            matches!(error, Some(NnError::Option { name, .. }) if name == option),
            "{options:?}"
        );
    }
}
