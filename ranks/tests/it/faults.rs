//! A failure of one rank is reported on all ranks, and no rank hangs.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use lowtide_allocator::{Fault, Repeat};
use lowtide_ranks::{Collectives, RanksError, Result, all_reduce_each, vote};
use lowtide_tensor::{DType, Device, Tensor, TensorError};

use super::common::{PATIENT, bits, on_ranks, own};

/// A collective on two tensors of a rank: its input and its output.
type Operation = fn(&dyn Collectives, &mut [Tensor; 2]) -> Result<()>;

/// Every collective on tensors, with the lengths of the input and the output of one of three ranks.
const OPERATIONS: &[(&str, [usize; 2], Operation)] = &[
    ("all_reduce", [24, 0], |rank, [x, _]| rank.all_reduce(x)),
    ("all_reduce_each", [24, 8], |rank, tensors| all_reduce_each(rank, tensors)),
    ("reduce_scatter", [24, 8], |rank, [x, y]| rank.reduce_scatter(x, y)),
    ("all_gather", [8, 24], |rank, [x, y]| rank.all_gather(x, y)),
    ("reduce_part", [24, 0], |rank, [x, _]| rank.reduce_part(x, 8)),
    ("gather_parts", [24, 0], |rank, [x, _]| rank.gather_parts(x, 10)),
    ("broadcast", [24, 0], |rank, [x, _]| rank.broadcast(x, 1)),
];

/// Each allocation of a collective fails in turn on one rank. All ranks fail, and all can repeat
/// the collective.
#[test]
fn a_collective_without_memory_fails_on_all_ranks_and_can_be_done_again() {
    for &(name, lens, operation) in OPERATIONS {
        for faulty in 0..3 {
            let failures = (1..).take_while(|&nth| {
                let found = on_ranks(3, PATIENT, |rank, device| {
                    let run = |fault: Option<Fault>| {
                        let mut tensors = lens.map(|len| own(&*rank, &device, len, DType::F32));
                        fault.into_iter().for_each(|fault| device.allocator().inject_fault(fault));
                        let result = operation(&*rank, &mut tensors);
                        device.allocator().clear_fault();
                        result.map(|()| tensors.map(|x| bits(&x)))
                    };
                    let calm = run(None).unwrap();
                    let is_faulty = rank.rank().index == faulty;
                    let stormy = run(is_faulty.then_some(Fault { nth, repeat: Repeat::Once }));
                    assert_eq!(run(None).unwrap(), calm, "{name}");
                    stormy.map(|found| assert_eq!(found, calm, "{name}"))
                });
                if found.iter().all(Result::is_ok) {
                    return false;
                }
                for (rank, found) in found.into_iter().enumerate() {
                    match found.expect_err("of one, so of all") {
                        RanksError::Tensor(TensorError::Alloc(_)) => assert_eq!(rank, faulty),
                        RanksError::Failed { rank: other, .. } => {
                            assert_eq!((other, rank == faulty), (faulty, false));
                        }
                        other => panic!("{name}: {other}"),
                    }
                }
                true
            });
            // The root of a broadcast takes no memory.
            assert_eq!(failures.count() == 0, name == "broadcast" && faulty == 1, "{name}");
        }
    }
}

/// A failed rank refuses in place of any collective.
#[test]
fn a_rank_that_refuses_fails_the_call_of_the_others_and_all_may_go_on() {
    for &(name, lens, operation) in OPERATIONS {
        for refusing in [&[1][..], &[0, 2], &[0, 1, 2]] {
            let found = on_ranks(3, PATIENT, |rank, device| {
                let mut tensors = lens.map(|len| own(&*rank, &device, len, DType::F32));
                let refuses = refusing.contains(&rank.rank().index);
                let found = if refuses {
                    let have_all = rank.refuse("the disk is full");
                    have_all.map(|all| assert_eq!(all, refusing.len() == 3))
                } else {
                    operation(&*rank, &mut tensors)
                };
                rank.barrier().unwrap();
                (refuses, found)
            });
            for (refuses, found) in found {
                match found {
                    Ok(()) => assert!(refuses, "{name}"),
                    Err(RanksError::Failed { rank, op, reason }) => {
                        let name = name.trim_end_matches("_each");
                        assert_eq!((refuses, rank, op), (false, refusing[0], name));
                        assert_eq!(reason, "the disk is full");
                    }
                    Err(other) => panic!("{name}: {other}"),
                }
            }
        }
    }
    let found = on_ranks(2, PATIENT, |rank, _| match rank.rank().index {
        0 => rank.refuse("no").map(drop),
        _ => vote(&*rank, Ok(())),
    });
    assert!(matches!(found[1], Err(RanksError::Failed { rank: 0, .. })), "{found:?}");
}

/// Ranks leave a sequence of calls at different places, and go on together.
#[test]
fn ranks_that_refuse_until_all_do_have_left_every_call() {
    for places in [[0, 1, 2], [2, 2, 0], [3, 3, 1], [1, 3, 3]] {
        let found = on_ranks(3, PATIENT, |rank, _| {
            let place = places[rank.rank().index];
            let calls = (0..place).try_for_each(|_| rank.barrier());
            let mut refusals = 1;
            while !rank.refuse("I have failed").unwrap() {
                refusals += 1;
            }
            let said = rank.exchange(&[7]).unwrap();
            (calls.is_ok(), refusals, said)
        });
        let first = places.iter().min().unwrap();
        for ((is_ok, refusals, said), place) in found.into_iter().zip(places) {
            assert_eq!(is_ok, place == *first, "{places:?}");
            assert_eq!(refusals, if place == *first { 2 } else { 1 }, "{places:?}");
            assert_eq!(said, [[7]; 3]);
        }
    }
}

#[test]
fn another_operation_type_or_size_on_one_rank_is_an_error_on_all() {
    type Other = fn(&dyn Collectives, &Device) -> Result<()>;
    let others: [(&str, Other); 4] = [
        ("exchange", |rank, _| rank.barrier()),
        ("all_reduce of 5 f32", |rank, device| {
            rank.all_reduce(&mut Tensor::zeros(device, [5], DType::F32)?)
        }),
        ("all_reduce of 4 f64", |rank, device| {
            rank.all_reduce(&mut Tensor::zeros(device, [4], DType::F64)?)
        }),
        ("broadcast of 4 f32 from rank 2", |rank, device| {
            rank.broadcast(&mut Tensor::zeros(device, [4], DType::F32)?, 2)
        }),
    ];
    for (name, other) in others {
        let found = on_ranks(3, PATIENT, |rank, device| {
            let found = match rank.rank().index {
                1 => other(&*rank, &device),
                _ => rank.all_reduce(&mut Tensor::zeros(&device, [4], DType::F32).unwrap()),
            };
            // The ranks are still together.
            vote(&*rank, Ok(())).unwrap();
            found.expect_err("two calls").to_string()
        });
        assert_eq!(found[0], format!("rank 1 calls {name}, this rank calls all_reduce of 4 f32"));
        assert_eq!(found[1], format!("rank 0 calls all_reduce of 4 f32, this rank calls {name}"));
        assert_eq!(found[2], found[0]);
    }
}

#[test]
fn one_vote_against_it_is_the_answer_of_all() {
    for reasons in [["", "no memory", ""], ["first", "second", ""]] {
        let found = on_ranks(3, PATIENT, |rank, _| {
            let own = reasons[rank.rank().index];
            let refused = vote(&*rank, if own.is_empty() { Ok(()) } else { Err(own) });
            (refused.expect_err("a vote against it").to_string(), vote(&*rank, Ok(())).is_ok())
        });
        let first = reasons.iter().position(|reason| !reason.is_empty()).unwrap();
        let expected = format!("rank {first} is not ready: {}", reasons[first]);
        assert!(found.iter().all(|found| *found == (expected.clone(), true)), "{found:?}");
    }
    let found = on_ranks(2, PATIENT, |rank, _| vote(&*rank, Err("")).is_err());
    assert_eq!(found, [true, true], "a vote without a reason counts");
}

#[test]
fn a_rank_that_ends_ends_the_others_at_once() {
    let found = on_ranks(3, PATIENT, |rank, device| match rank.rank().index {
        1 => None,
        _ => rank.all_reduce(&mut own(&*rank, &device, 3, DType::F32)).err(),
    });
    for rank in [0, 2] {
        assert!(matches!(found[rank], Some(RanksError::Lost { rank: 1 })), "{:?}", found[rank]);
    }
}

#[test]
fn a_rank_that_panics_ends_the_others_at_once() {
    let found = on_ranks(2, PATIENT, |rank, _| match rank.rank().index {
        0 => Some(rank.barrier()),
        _ => {
            let panicking = AssertUnwindSafe(move || {
                let _own = rank;
                resume_unwind(Box::new("a planted panic"));
            });
            assert!(catch_unwind(panicking).is_err());
            None
        }
    });
    assert!(matches!(found[0], Some(Err(RanksError::Lost { rank: 1 }))), "{found:?}");
}

#[test]
fn a_rank_that_gives_up_says_why() {
    let found = on_ranks(3, PATIENT, |rank, _| {
        if rank.rank().index == 2 {
            rank.abort("the disk is full");
        }
        rank.barrier().expect_err("one gave up").to_string()
    });
    assert!(
        found.iter().all(|found| found == "rank 2 has given up: the disk is full"),
        "{found:?}"
    );
}

#[test]
fn ranks_that_do_not_exist_are_named() {
    let found = on_ranks(2, PATIENT, |rank, device| {
        let mut x = own(&*rank, &device, 3, DType::F32);
        let own = rank.rank().index;
        let found = [
            rank.send(&x, 2).unwrap_err(),
            rank.receive(&mut x, own).unwrap_err(),
            rank.broadcast(&mut x, 5).unwrap_err(),
        ];
        rank.barrier().unwrap();
        found.map(|error| error.to_string())
    });
    assert_eq!(found[0], [2, 0, 5].map(|rank| format!("there is no rank {rank} among 2")),);
}

#[test]
fn what_is_received_has_to_be_what_is_sent() {
    let found = on_ranks(2, PATIENT, |rank, device| {
        let mut x = own(&*rank, &device, 3 + rank.rank().index, DType::F32);
        let found = match rank.rank().index {
            0 => rank.send(&x, 1),
            _ => rank.receive(&mut x, 0),
        };
        rank.barrier().unwrap();
        found.unwrap_err().to_string()
    });
    assert_eq!(found[0], "rank 1 calls trade of 4 f32, this rank calls trade of 3 f32");
    assert_eq!(found[1], "rank 0 calls trade of 3 f32, this rank calls trade of 4 f32");
}

/// Both ranks give f32; one rank takes i32.
#[test]
fn what_is_traded_has_to_be_the_same_on_both_sides() {
    let found = on_ranks(2, PATIENT, |rank, device| {
        let index = rank.rank().index;
        let x = own(&*rank, &device, 3, DType::F32);
        let mut y = Tensor::zeros(&device, [3], [DType::I32, DType::F32][index]).unwrap();
        let found = rank.trade(Some(&x), Some(&mut y), 1 - index);
        rank.barrier().unwrap();
        found.unwrap_err().to_string()
    });
    assert_eq!(found[0], "rank 1 calls trade of 3 f32, this rank calls trade of 3 i32");
    assert_eq!(found[1], "rank 0 calls trade of 3 i32, this rank calls trade of 3 f32");
}

/// A declined trade leaves the tensors unchanged, and both ranks can continue.
#[test]
fn a_trade_that_is_declined_fails_on_the_other_side() {
    for decliner in [0, 1] {
        let found = on_ranks(2, PATIENT, |rank, device| {
            let index = rank.rank().index;
            let (x, mut y) =
                (own(&*rank, &device, 9, DType::F32), own(&*rank, &device, 9, DType::F32));
            let found = if index == decliner {
                rank.decline(1 - index, "no memory")
            } else {
                rank.trade(Some(&x), Some(&mut y), 1 - index)
            };
            assert_eq!(bits(&x), bits(&y));
            // Both ranks may decline.
            rank.decline(1 - index, "nor now").unwrap();
            rank.trade(Some(&x), Some(&mut y), 1 - index).unwrap();
            (found.err().map(|error| error.to_string()), bits(&x), bits(&y))
        });
        assert_eq!(found[decliner].0, None);
        let declined = format!("rank {decliner} failed in trade: no memory");
        assert_eq!(found[1 - decliner].0, Some(declined));
        assert_eq!((&found[0].1, &found[1].1), (&found[1].2, &found[0].2));
    }
}
