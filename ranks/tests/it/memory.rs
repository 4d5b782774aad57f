//! The memory of collectives, on ranks and on a single rank that simulates the others.

use lowtide_allocator::{Fault, Repeat};
use lowtide_ranks::{Collectives, Mirror, Rank, Result, all_reduce_each};
use lowtide_tensor::{DType, Device, Tensor};

use super::common::{MOST, PATIENT, on_ranks};

/// Calls every operation once, with tensors of `len` elements per rank.
fn everything(rank: &dyn Collectives, device: &Device, len: usize) -> Result<()> {
    let Rank { index, count } = rank.rank();
    let mut x = Tensor::zeros(device, [len * count], DType::F32)?;
    let mut part = Tensor::zeros(device, [len], DType::F32)?;
    rank.all_reduce(&mut x)?;
    all_reduce_each(rank, [&mut x, &mut part])?;
    rank.reduce_scatter(&x, &mut part)?;
    rank.all_gather(&part, &mut x)?;
    rank.reduce_part(&mut x, len)?;
    rank.gather_parts(&mut x, len + 1)?;
    rank.broadcast(&mut x, 0)?;
    if count > 1 {
        let pair = index ^ 1;
        let is_first = index < pair;
        for sends in [is_first, !is_first] {
            if sends { rank.send(&x, pair) } else { rank.receive(&mut x, pair) }?;
        }
        rank.trade(Some(&part), Some(&mut x.narrow(0, 0, len)?), pair)?;
    }
    Ok(())
}

/// The number of requests to the device's allocator, and the peak of reserved bytes.
fn used(device: &Device) -> (u64, usize) {
    let allocator = device.allocator();
    (allocator.request_count(), allocator.statistics().reserved.peak_bytes)
}

#[test]
fn a_simulated_rank_alone_allocates_what_one_of_many_does() {
    let cases = [(1, 3 << 16), (2, 3 << 16), (4, 3 << 16), (8, 3 << 16), (2, 5 << 19)];
    for (count, len) in cases.into_iter().filter(|&(count, _)| count <= MOST) {
        let found = on_ranks(count, PATIENT, |rank, device| {
            everything(&*rank, &device, len).unwrap();
            (used(&device), device.spec())
        });
        for (index, (real, spec)) in found.into_iter().enumerate() {
            let device = Device::sim(spec).unwrap();
            let rank = Mirror::new(Rank { index, count }).unwrap();
            everything(&rank, &device, len).unwrap();
            assert_eq!(used(&device), real, "rank {index} of {count}");
        }
    }
}

/// A rank allocates one piece for each other rank. A piece has at most the size of the part that
/// the rank sums, 4 MiB, and an equal share of 16 MiB.
#[test]
fn a_sum_takes_a_piece_for_each_other_rank() {
    let cases = [(2, 4 << 18), (4, 4 << 18), (8, 4 << 18), (2, 4 << 20), (9, 18 << 20)];
    for (count, len) in cases.into_iter().filter(|&(count, _)| count <= MOST) {
        let found = on_ranks(count, PATIENT, |rank, device| {
            let mut x = Tensor::zeros(&device, [len], DType::F32).unwrap();
            let allocated = |device: &Device| device.allocator().statistics().allocated;
            let before = allocated(&device).current_bytes;
            rank.all_reduce(&mut x).unwrap();
            allocated(&device).peak_bytes - before
        });
        let others = count - 1;
        let piece = (4 * len / count).min(4 << 20).min((16 << 20) / others);
        assert!(found.iter().all(|&peak| peak == others * piece), "{count}: {found:?}");
    }
}

/// Bytes of the live blocks on a rank's device.
fn live_bytes(device: &Device) -> usize {
    device.allocator().statistics().allocated.current_bytes
}

/// A step that is rolled back has to find its memory free, at any progress of the other ranks.
#[test]
fn no_rank_holds_a_tensor_of_another_once_a_collective_has_ended() {
    for _ in 0..20 {
        let found = on_ranks(4, PATIENT, |rank, device| {
            everything(&*rank, &device, 33).unwrap();
            live_bytes(&device)
        });
        assert_eq!(found, [0; 4]);
    }
    for _ in 0..20 {
        let found = on_ranks(4, PATIENT, |rank, device| {
            let mut x = Tensor::zeros(&device, [99], DType::F32).unwrap();
            if rank.rank().index == 1 {
                device.allocator().inject_fault(Fault { nth: 1, repeat: Repeat::Once });
            }
            rank.all_reduce(&mut x).expect_err("one rank has no memory");
            drop(x);
            live_bytes(&device)
        });
        assert_eq!(found, [0; 4]);
    }
    type Alone = fn(&dyn Collectives, &mut Tensor) -> Result<()>;
    let alone: [Alone; 2] = [|rank, x| rank.all_reduce(x), |rank, x| rank.send(x, 1)];
    for alone in alone {
        let found = on_ranks(2, PATIENT, |rank, device| {
            if rank.rank().index == 0 {
                let mut x = Tensor::zeros(&device, [9], DType::F32).unwrap();
                alone(&*rank, &mut x).expect_err("the other one is gone");
            }
            live_bytes(&device)
        });
        assert_eq!(found, [0; 2]);
    }
}
