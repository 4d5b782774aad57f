//! Gradients that leave an attempt as soon as they are complete, and attempts on trial.

use std::collections::BTreeMap;

use lowtide_autograd::{Attempt, AutogradResult as Result, LeafId, Pass, SavedPolicy, Var};
use lowtide_tensor::{DType, RandomKey, Tensor};

use crate::common::{BLOCK_LEN, bits, cpu, tensor};

type Leaves = [(LeafId, Tensor); 4];

fn leaves(dtype: DType) -> Leaves {
    let device = cpu();
    ["a", "b", "c", "d"].map(|name| {
        let value = tensor(&device, name, [BLOCK_LEN]).to_dtype(dtype).expect("memory");
        (LeafId::new(), value)
    })
}

/// Multiplies `x` by one leaf after the other. At each of `cuts`, the rest becomes a recomputed
/// segment.
fn chain(pass: &Pass, mut x: Var, uses: &[usize], cuts: &[usize], leaves: &Leaves) -> Result<Var> {
    for (at, &leaf) in uses.iter().enumerate() {
        if let Some((&cut, cuts)) = cuts.split_first()
            && cut == at
        {
            let (uses, leaves) = (uses[at..].to_vec(), leaves.clone());
            let cuts: Vec<usize> = cuts.iter().map(|cut| cut - at).collect();
            return pass.segment(&SavedPolicy::Recompute, x, move |pass, x| {
                chain(pass, x, &uses, &cuts, &leaves)
            });
        }
        let (id, value) = &leaves[leaf];
        x = x.mul(pass.leaf(*id, value)?)?.tanh()?;
    }
    Ok(x)
}

/// A pass over one part of a batch, and its loss.
fn part(attempt: &Attempt, part: u64, case: &Case, leaves: &Leaves) -> Result<(Pass, Var)> {
    let pass = Pass::train(RandomKey::new(part), attempt);
    let device = leaves[0].1.device();
    let x = tensor(device, &format!("x{part}"), [BLOCK_LEN]).to_dtype(case.dtype)?;
    let (id, value) = &leaves[case.uses[0]];
    let x = pass.constant(x).add(pass.leaf(*id, value)?)?;
    let loss = chain(&pass, x, &case.uses, &case.cuts, leaves)?.sum(&[0])?;
    Ok((pass, loss))
}

#[derive(Clone, Debug)]
struct Case {
    /// Indices of the leaves in the order of use.
    uses: Vec<usize>,
    cuts: Vec<usize>,
    dtype: DType,
    parts: u64,
}

fn case(seed: u64) -> Case {
    let key = RandomKey::new(seed);
    let below = |name: &str, nth: u64, bound: u64| {
        (f64::from(key.op(name).uniform(nth)) * bound as f64) as u64
    };
    let len = 1 + below("len", 0, 6);
    let uses = (0..len).map(|nth| below("uses", nth, 4) as usize).collect();
    let mut cuts: Vec<usize> =
        (0..below("cuts", 9, 3)).map(|nth| below("cuts", nth, len) as usize).collect();
    cuts.sort_unstable();
    cuts.dedup();
    let dtype = if seed.is_multiple_of(2) { DType::F32 } else { DType::BF16 };
    Case { uses, cuts, dtype, parts: 1 + below("parts", 0, 3) }
}

fn all_bits(tensor: &Tensor) -> (DType, Vec<u32>) {
    (tensor.dtype(), bits(&tensor.to_dtype(DType::F32).expect("memory")))
}

#[test]
fn taken_gradients_are_whole_and_their_leaves_may_be_written() {
    for seed in 0..200 {
        let case = case(seed);
        let leaves = leaves(case.dtype);
        let together = Attempt::new();
        for index in 0..case.parts {
            let (pass, loss) = part(&together, index, &case, &leaves).unwrap();
            pass.backward_seeded(loss, 0.5).unwrap();
        }
        let together = together.into_gradients();
        let expected: BTreeMap<LeafId, _> =
            leaves.iter().filter_map(|(id, _)| Some((*id, all_bits(together.get(*id)?)))).collect();

        let attempt = Attempt::new();
        for index in 0..case.parts - 1 {
            let (pass, loss) = part(&attempt, index, &case, &leaves).unwrap();
            pass.backward_seeded(loss, 0.5).unwrap();
        }
        let before: Vec<_> = attempt
            .leaves()
            .iter()
            .map(|&leaf| attempt.gradient(leaf).map(|sum| all_bits(&sum)))
            .collect();

        // A trial has the same sums and does not change the attempt.
        let trial = attempt.trial();
        let (pass, loss) = part(&trial, case.parts - 1, &case, &leaves).unwrap();
        let mut tried = BTreeMap::new();
        pass.backward_taking(loss, 0.5, |leaf, mut gradient| {
            assert!(tried.insert(leaf, all_bits(&gradient)).is_none(), "taken twice");
            gradient.fill_(0.0)?;
            Ok(())
        })
        .unwrap();
        assert_eq!(&tried, &expected);
        assert!(trial.is_empty());
        let after: Vec<_> = attempt
            .leaves()
            .iter()
            .map(|&leaf| attempt.gradient(leaf).map(|sum| all_bits(&sum)))
            .collect();
        assert_eq!(before, after);

        let (pass, loss) = part(&attempt, case.parts - 1, &case, &leaves).unwrap();
        let mut taken = BTreeMap::new();
        let mut values: BTreeMap<LeafId, Tensor> = leaves.iter().cloned().collect();
        pass.backward_taking(loss, 0.5, |leaf, gradient| {
            assert!(taken.insert(leaf, all_bits(&gradient)).is_none(), "taken twice");
            values.get_mut(&leaf).expect("a leaf").fill_(7.0)?;
            Ok(())
        })
        .unwrap();
        assert_eq!(&taken, &expected);
        assert!(attempt.is_empty());
    }
}

/// A chain without shared leaves has one gradient at a time.
#[test]
fn gradients_come_one_by_one() {
    let leaves = leaves(DType::F32);
    let uses = vec![0, 1, 2, 3];
    for cuts in [vec![], vec![2], vec![1, 3]] {
        let case = Case { uses: uses.clone(), cuts, dtype: DType::F32, parts: 1 };
        let attempt = Attempt::new();
        let (pass, loss) = part(&attempt, 0, &case, &leaves).unwrap();
        let mut order = Vec::new();
        let others = attempt.clone();
        pass.backward_taking(loss, 1.0, |leaf, _| {
            assert!(others.is_empty(), "{} wait", others.len());
            order.push(leaf);
            Ok(())
        })
        .unwrap();
        let expected: Vec<LeafId> = leaves.iter().rev().map(|(id, _)| *id).collect();
        assert_eq!(order, expected, "{:?}", case.cuts);
    }
}
