//! Ranks that do not arrive in time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lowtide_tensor::DType;

use super::common::{on_ranks, own};

#[test]
fn who_does_not_come_is_named_when_time_is_up() {
    let waiting = AtomicUsize::new(2);
    let found = on_ranks(4, Duration::from_millis(500), |rank, device| {
        rank.barrier()?;
        if rank.rank().index % 2 == 1 {
            // The rank is alive, but busy with something else.
            while waiting.load(Ordering::Relaxed) > 0 {
                std::thread::yield_now();
            }
            return rank.barrier();
        }
        let found = rank.all_reduce(&mut own(&*rank, &device, 3, DType::F32));
        waiting.fetch_sub(1, Ordering::Relaxed);
        found
    });
    for found in found {
        let found = found.expect_err("every further call fails").to_string();
        assert_eq!(found, "all_reduce: ranks 1, 3 did not arrive within 0.5 s");
    }
}
