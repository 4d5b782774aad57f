//! Casts of weights are made once per step, count as parameters and are freed in backward. A model
//! with all kinds of operations has the bits of the model that casts by hand.

use lowtide_allocator::Category;
use lowtide_amp::Autocast;
use lowtide_autograd::{Attempt, AutogradResult as Result, LeafId, Pass, Var};
use lowtide_tensor::{DType, Device, RandomKey, Tensor};

use crate::autocast::{Outcome, bits, cpu, tensor};

/// A block with a norm, a residual sum, a bias, and a weight that is used twice.
struct Model {
    weight: Tensor,
    bias: Tensor,
    scale: Tensor,
    leaves: [LeafId; 3],
}

impl Model {
    fn new(device: &Device) -> Self {
        Model {
            weight: tensor(device, "weight", &[16, 16]),
            bias: tensor(device, "bias", &[16]),
            scale: tensor(device, "scale", &[16]),
            leaves: [LeafId::new(), LeafId::new(), LeafId::new()],
        }
    }

    /// The loss. `cast` converts to the type that a policy would choose.
    fn loss(&self, pass: &Pass, x: Var, cast: impl Fn(Var, DType) -> Result<Var>) -> Result<Var> {
        let half = DType::BF16;
        let w = || pass.leaf(self.leaves[0], &self.weight);
        let b = pass.leaf(self.leaves[1], &self.bias)?;
        let scale = pass.leaf(self.leaves[2], &self.scale)?;
        let normed = cast(x.clone(), DType::F32)?.layer_norm(1, Some(scale), None, 1e-5)?;
        let inner = cast(normed, half)?.linear(cast(w()?, half)?, Some(cast(b, half)?))?.gelu()?;
        let outer = inner.linear(cast(w()?, half)?, None)?;
        let y = x.add(cast(outer, DType::F32)?)?;
        let labels = Tensor::from_slice(y.value().device(), [4], &[3_i64, 0, 15, 7])?;
        Ok(y.cross_entropy(&labels, -100)?.0)
    }

    fn gradients(&self, attempt: Attempt) -> Vec<Vec<u32>> {
        let gradients = attempt.into_gradients();
        let of = |leaf| gradients.get(leaf).expect("it has influence");
        self.leaves.iter().map(|&leaf| bits(of(leaf))).collect()
    }
}

/// Runs a pass over one of two micro-batches.
fn pass_of(attempt: &Attempt, index: u64) -> Pass {
    Pass::train(RandomKey::new(1), attempt).with_first_sample(4 * index)
}

#[test]
fn model_has_the_gradients_of_a_twin_that_casts_by_hand() -> Outcome {
    let device = cpu();
    let model = Model::new(&device);
    let x = |index| tensor(&device, &format!("x {index}"), &[4, 16]);
    let (twin, cast) = (Attempt::new(), Attempt::new());
    for index in 0..2 {
        let pass = pass_of(&twin, index);
        let loss = model.loss(&pass, pass.constant(x(index)), Var::to_dtype)?;
        let expected = bits(loss.value());
        pass.backward_seeded(loss, 0.5)?;

        let pass = pass_of(&cast, index).with_casts(Autocast::bf16());
        let loss = model.loss(&pass, pass.constant(x(index)), |x, _| Ok(x))?;
        assert_eq!(bits(loss.value()), expected);
        pass.backward_seeded(loss, 0.5)?;
    }
    assert_eq!(model.gradients(cast), model.gradients(twin));
    Ok(())
}

#[test]
fn recomputed_segment_has_the_bits_of_one_that_is_kept() -> Outcome {
    let device = cpu();
    let run = |again: bool| -> Result<Vec<Vec<u32>>> {
        let model = Model::new(&device);
        let (attempt, leaves) = (Attempt::new(), model.leaves);
        let pass = pass_of(&attempt, 0).with_casts(Autocast::bf16());
        let x = pass.input(tensor(&device, "x", &[4, 16]))?;
        let segment = move |pass: &Pass, x: Var| model.loss(pass, x, |x, _| Ok(x));
        let loss = if again { pass.checkpoint(x, segment)? } else { segment(&pass, x)? };
        attempt.end_casts();
        pass.backward(loss)?;
        let gradients = attempt.into_gradients();
        Ok(leaves.iter().map(|&leaf| bits(gradients.get(leaf).expect("influence"))).collect())
    };
    assert_eq!(run(true)?, run(false)?);
    Ok(())
}

fn parameter_bytes(device: &Device) -> usize {
    device.allocator().statistics().by_category[Category::Parameter].current_bytes
}

/// Bytes of the bf16 copy of a weight of shape `[512, 512]`.
const CAST_BYTES: usize = 512 * 512 * 2;

#[test]
fn weight_is_cast_once_a_step_and_counts_as_a_parameter() -> Outcome {
    let device = cpu();
    let w = tensor(&device, "w", &[512, 512]);
    let (leaf, attempt) = (LeafId::new(), Attempt::new());
    let before = parameter_bytes(&device);
    for index in 0..3 {
        let pass = pass_of(&attempt, index).with_casts(Autocast::bf16());
        let x = pass.constant(tensor(&device, "x", &[4, 512]));
        let once = x.linear(pass.leaf(leaf, &w)?, None)?;
        let twice = once.linear(pass.leaf(leaf, &w)?, None)?;
        assert_eq!(parameter_bytes(&device) - before, CAST_BYTES, "pass {index}");
        pass.backward(twice.sum_all()?)?;
        assert_eq!(parameter_bytes(&device) - before, CAST_BYTES, "kept for the next pass");
    }
    assert_eq!(attempt.into_gradients().get(leaf).unwrap().dtype(), DType::F32);
    assert_eq!(parameter_bytes(&device), before, "freed with the attempt");
    Ok(())
}

#[test]
fn casts_of_the_last_pass_are_freed_in_backward() -> Outcome {
    let device = cpu();
    let w = tensor(&device, "w", &[512, 512]);
    let (leaf, attempt) = (LeafId::new(), Attempt::new());
    let before = parameter_bytes(&device);
    let pass = pass_of(&attempt, 0).with_casts(Autocast::bf16());
    let x = pass.input(tensor(&device, "x", &[4, 512]))?;
    let y = x.clone().linear(pass.leaf(leaf, &w)?, None)?;
    attempt.end_casts();
    assert_eq!(parameter_bytes(&device) - before, CAST_BYTES, "backward needs it");
    pass.backward(y.sum_all()?)?;
    assert_eq!(parameter_bytes(&device), before, "the attempt is still there");
    drop(attempt);
    Ok(())
}

#[test]
fn weight_that_is_written_between_two_passes_is_cast_again() -> Outcome {
    let device = cpu();
    let mut w = tensor(&device, "w", &[16, 16]);
    let (leaf, attempt) = (LeafId::new(), Attempt::new());
    let y = |w: &Tensor| -> Result<Vec<u32>> {
        let pass = pass_of(&attempt, 0).with_casts(Autocast::bf16());
        let x = pass.constant(tensor(&device, "x", &[4, 16]));
        Ok(bits(x.linear(pass.leaf(leaf, w)?, None)?.value()))
    };
    let first = y(&w)?;
    assert_eq!(y(&w)?, first);
    w.mul_scalar_(2.0)?;
    let doubled = y(&w)?;
    assert_ne!(doubled, first);
    let other = w.copied()?;
    w.fill_(0.0)?;
    assert_eq!(y(&other)?, doubled, "another tensor in the leaf's place");
    Ok(())
}

#[test]
fn torch_autocast_cache_behavior_with_no_grad() -> Outcome {
    // A case of Lightning's: a cast that was made without gradients must not serve a pass with
    // gradients.
    let device = cpu();
    let w = tensor(&device, "w", &[16, 16]);
    let (leaf, attempt) = (LeafId::new(), Attempt::new());
    let pass = pass_of(&attempt, 0).with_casts(Autocast::bf16());
    let y = || -> Result<Var> {
        let x = pass.constant(tensor(&device, "x", &[4, 16]));
        x.linear(pass.leaf(leaf, &w)?, None)
    };
    let silent = pass.without_gradients(y)?;
    assert!(!silent.needs_gradient());
    let recorded = y()?;
    assert!(recorded.needs_gradient());
    assert_eq!(bits(recorded.value()), bits(silent.value()));
    pass.backward(recorded.sum_all()?)?;
    assert!(attempt.into_gradients().get(leaf).is_some());
    Ok(())
}

#[test]
fn what_is_kept_for_backward_are_the_casts() -> Outcome {
    let device = cpu();
    let kept = |casts: bool| -> Result<usize> {
        let w = tensor(&device, "w", &[256, 256]);
        let attempt = Attempt::new();
        let mut pass = pass_of(&attempt, 0);
        if casts {
            pass = pass.with_casts(Autocast::bf16());
        }
        let scope = device.category(Category::Activation);
        let mut x = pass.constant(tensor(&device, "x", &[512, 256]));
        for _ in 0..4 {
            x = x.linear(pass.leaf(LeafId::new(), &w)?, None)?.gelu()?;
        }
        drop(scope);
        let statistics = device.allocator().statistics();
        Ok(statistics.by_category[Category::Activation].current_bytes)
    };
    assert_eq!(kept(true)?, kept(false)? / 2);
    Ok(())
}
