//! Results of collectives against plain loops.

use lowtide_ranks::{RanksError, all_reduce_each};
use lowtide_tensor::{DType, Tensor};
use proptest::prelude::*;

use super::common::{MOST, PATIENT, bits, cpu, numbers, on_ranks, own, tensor};

/// The sum of tensors along the tree.
fn along_the_tree(terms: &[Tensor]) -> Tensor {
    if let [one] = terms {
        return one.clone();
    }
    let (mut half, count) = (1, terms.len());
    while 2 * half < count {
        half *= 2;
    }
    along_the_tree(&terms[..half]).add(&along_the_tree(&terms[half..])).expect("memory")
}

fn terms(count: usize, len: usize, dtype: DType) -> Vec<Tensor> {
    let device = cpu();
    (0..count).map(|rank| tensor(&device, &numbers(rank, len), dtype)).collect()
}

fn dtypes() -> impl Strategy<Value = DType> {
    prop::sample::select(vec![DType::F32, DType::F64, DType::BF16, DType::F16])
}

/// Lengths of tensors: a bucket holds many of them, few of them, or none.
fn lens() -> impl Strategy<Value = usize> {
    prop::sample::select(vec![0, 3, 50_000, 70_000])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn every_rank_has_the_sum_along_the_tree(
        count in 1..=MOST, len in 0_usize..40, dtype in dtypes(),
    ) {
        let expected = bits(&along_the_tree(&terms(count, len, dtype)));
        let found = on_ranks(count, PATIENT, |rank, device| {
            let mut x = own(&*rank, &device, len, dtype);
            rank.all_reduce(&mut x).map(|()| bits(&x))
        });
        for found in found {
            prop_assert_eq!(&found.unwrap(), &expected);
        }
    }

    #[test]
    fn a_scattered_sum_gathered_is_the_sum(
        count in 1..=MOST.min(6), part in 0_usize..12, dtype in dtypes(),
    ) {
        let len = count * part;
        let expected = bits(&along_the_tree(&terms(count, len, dtype)));
        let found = on_ranks(count, PATIENT, |rank, device| {
            let from = own(&*rank, &device, len, dtype);
            let mut to = Tensor::zeros(&device, [part], dtype)?;
            let mut all = Tensor::zeros(&device, [len], dtype)?;
            rank.reduce_scatter(&from, &mut to)?;
            rank.all_gather(&to, &mut all)?;
            Ok::<_, RanksError>(bits(&all))
        });
        for found in found {
            prop_assert_eq!(&found.unwrap(), &expected);
        }
    }

    #[test]
    fn tensors_that_are_summed_together_have_the_sums_of_each(
        count in 1..=MOST.min(4),
        kinds in prop::collection::vec((lens(), dtypes()), 0..8),
    ) {
        let found = on_ranks(count, PATIENT, |rank, device| {
            let own = || -> Vec<Tensor> {
                kinds.iter().map(|&(len, dtype)| own(&*rank, &device, len, dtype)).collect()
            };
            let (mut together, mut alone) = (own(), own());
            all_reduce_each(&*rank, &mut together)?;
            alone.iter_mut().try_for_each(|x| rank.all_reduce(x))?;
            let bits = |all: &[Tensor]| all.iter().map(bits).collect::<Vec<_>>();
            Ok::<_, RanksError>((bits(&together), bits(&alone)))
        });
        for found in found {
            let (together, alone) = found.unwrap();
            prop_assert!(together == alone);
        }
    }

    /// The parts have any length that is long enough; the last parts are shorter or empty.
    #[test]
    fn parts_of_a_sum_in_place_are_gathered_to_the_sum(
        count in 1..=MOST.min(6), len in 0_usize..60, more in 0_usize..9, dtype in dtypes(),
    ) {
        let part_len = len.div_ceil(count) + more;
        let terms = terms(count, len, dtype);
        let expected = bits(&along_the_tree(&terms));
        let found = on_ranks(count, PATIENT, |rank, device| {
            let mut x = own(&*rank, &device, len, dtype);
            rank.reduce_part(&mut x, part_len)?;
            let part = bits(&x);
            rank.gather_parts(&mut x, part_len)?;
            Ok::<_, RanksError>((part, bits(&x)))
        });
        for (rank, found) in found.into_iter().enumerate() {
            let (part, whole) = found.unwrap();
            prop_assert_eq!(&whole, &expected);
            let (before, own) = (bits(&terms[rank]), rank * part_len..(rank + 1) * part_len);
            for (at, bits) in part.iter().enumerate() {
                let source = if own.contains(&at) { &expected } else { &before };
                prop_assert_eq!(bits, &source[at]);
            }
        }
    }
}

/// The terms are eight leaves. Each rank has a power of two of them.
#[test]
fn sums_of_leaves_do_not_depend_on_the_number_of_ranks() {
    let (leaves, len) = (8, 33);
    let sum_of = |count: usize| {
        let found = on_ranks(count, PATIENT, |rank, device| {
            let each = leaves / count;
            let first = rank.rank().index * each;
            let own: Vec<Tensor> = (first..first + each)
                .map(|leaf| tensor(&device, &numbers(leaf, len), DType::F32))
                .collect();
            let mut sum = along_the_tree(&own);
            rank.all_reduce(&mut sum).map(|()| bits(&sum))
        });
        let found: Vec<_> = found.into_iter().map(Result::unwrap).collect();
        assert!(found.windows(2).all(|pair| pair[0] == pair[1]), "ranks differ");
        found[0].clone()
    };
    let one = sum_of(1);
    for count in [2, 4, 8].into_iter().filter(|&count| count <= MOST) {
        assert_eq!(sum_of(count), one, "{count} ranks");
    }
}

#[test]
fn the_shape_of_a_sum_is_kept_and_a_part_of_a_tensor_can_be_summed() {
    let found = on_ranks(3, PATIENT, |rank, device| {
        let mut whole = own(&*rank, &device, 12, DType::F64).reshape([4, 3])?;
        let mut part = whole.narrow(0, 1, 2)?;
        rank.all_reduce(&mut part)?;
        whole.add_scalar_(0.0)?;
        Ok::<_, RanksError>((whole.shape().to_vec(), whole.to_vec::<f64>()?))
    });
    for (rank, found) in found.into_iter().enumerate() {
        let (shape, values) = found.unwrap();
        assert_eq!(shape, [4, 3]);
        let all: Vec<Vec<f64>> = (0..3).map(|rank| numbers(rank, 12)).collect();
        for (at, value) in values.into_iter().enumerate() {
            let sum = (all[0][at] + all[1][at]) + all[2][at];
            assert_eq!(value, if (3..9).contains(&at) { sum } else { all[rank][at] });
        }
    }
}

#[test]
fn what_the_root_has_is_what_all_have() {
    for root in 0..3 {
        let found = on_ranks(3, PATIENT, |rank, device| {
            let mut x = own(&*rank, &device, 5, DType::F32);
            rank.broadcast(&mut x, root).map(|()| bits(&x))
        });
        let expected = bits(&tensor(&cpu(), &numbers(root, 5), DType::F32));
        assert!(found.into_iter().all(|found| found.unwrap() == expected));
    }
}

#[test]
fn words_come_by_rank_and_as_long_as_they_are() {
    let found = on_ranks(4, PATIENT, |rank, _| rank.exchange(&vec![7; rank.rank().index]));
    for found in found {
        assert_eq!(found.unwrap(), [vec![], vec![7], vec![7; 2], vec![7; 3]]);
    }
}

/// The tensors consist of several pieces, and the ranks have different numbers of pieces.
#[test]
fn two_ranks_give_each_other_what_the_other_had() {
    for lens in [[9, 9], [3 << 20, 5], [5, 3 << 20], [1 << 20, (2 << 20) + 1]] {
        let found = on_ranks(2, PATIENT, |rank, device| {
            let index = rank.rank().index;
            let x = own(&*rank, &device, lens[index], DType::F32);
            let mut y = Tensor::zeros(&device, [lens[1 - index]], DType::F32).unwrap();
            rank.trade(Some(&x), Some(&mut y), 1 - index).unwrap();
            (bits(&x), bits(&y))
        });
        assert!(found[0].0 == found[1].1 && found[1].0 == found[0].1, "{lens:?}");
    }
}

/// Each rank sends its tensor around the ring, with barriers in between.
#[test]
fn what_is_sent_around_comes_back() {
    let count = 4;
    let found = on_ranks(count, PATIENT, |rank, device| {
        let index = rank.rank().index;
        let (next, before) = ((index + 1) % count, (index + count - 1) % count);
        let mut x = own(&*rank, &device, 9, DType::F32);
        for _ in 0..count {
            // One rank has to receive first, or all would wait for a receiver.
            if index == 0 {
                let mut received = Tensor::zeros(&device, [9], DType::F32)?;
                rank.receive(&mut received, before)?;
                rank.send(&x, next)?;
                x = received;
            } else {
                rank.send(&x, next)?;
                rank.receive(&mut x, before)?;
            }
            rank.barrier()?;
        }
        Ok::<_, RanksError>(bits(&x))
    });
    for (rank, found) in found.into_iter().enumerate() {
        assert_eq!(found.unwrap(), bits(&tensor(&cpu(), &numbers(rank, 9), DType::F32)));
    }
}
