//! The schedule of a pipeline: the time at which each stage works on each micro-batch.

/// Work of a stage on a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Forward(usize),
    Backward(usize),
}

/// The order of a stage's work, the same as in the course of a batch.
fn order(index: usize, stage_count: usize, count: usize) -> Vec<Work> {
    let ahead = count.min(stage_count - 1 - index);
    let mut order: Vec<Work> = (0..ahead).map(Work::Forward).collect();
    for next in ahead..count {
        order.extend([Work::Forward(next), Work::Backward(next - ahead)]);
    }
    order.extend((count - ahead..count).map(Work::Backward));
    order
}

/// Seconds that `count` micro-batches take to go through the stages, forwards and backwards.
/// `stages` has the seconds of each stage for one micro-batch in either direction.
pub fn seconds_of(stages: &[[f64; 2]], count: usize) -> f64 {
    let orders: Vec<Vec<Work>> =
        (0..stages.len()).map(|index| order(index, stages.len(), count)).collect();
    // The time at which each stage becomes free, and the index of its next work.
    let (mut free, mut next) = (vec![0.0_f64; stages.len()], vec![0; stages.len()]);
    let mut forwards = vec![vec![None; count]; stages.len()];
    let mut backwards = forwards.clone();
    let mut goes_on = true;
    while goes_on {
        goes_on = false;
        for index in 0..stages.len() {
            let Some(&work) = orders[index].get(next[index]) else { continue };
            let ready: Option<f64> = match work {
                Work::Forward(_) if index == 0 => Some(0.0),
                Work::Forward(part) => forwards[index - 1][part],
                Work::Backward(part) if index + 1 == stages.len() => forwards[index][part],
                Work::Backward(part) => backwards[index + 1][part],
            };
            let Some(ready) = ready else { continue };
            let start = free[index].max(ready);
            let (end, place) = match work {
                Work::Forward(part) => (start + stages[index][0], &mut forwards[index][part]),
                Work::Backward(part) => (start + stages[index][1], &mut backwards[index][part]),
            };
            *place = Some(end);
            free[index] = end;
            next[index] += 1;
            goes_on = true;
        }
    }
    free.into_iter().fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::{Work, order, seconds_of};

    /// Equal stages are idle for the time that n - 1 of them need for one micro-batch.
    #[test]
    fn equal_stages_wait_for_the_first_and_the_last_micro_batch() {
        for (stages, count) in [(1, 3), (2, 1), (2, 4), (4, 4), (4, 3), (4, 16), (8, 2)] {
            let seconds = seconds_of(&vec![[1.0, 2.0]; stages], count);
            assert_eq!(seconds, 3.0 * (count + stages - 1) as f64, "{stages} {count}");
        }
    }

    #[test]
    fn the_slowest_stage_is_never_idle_in_between() {
        let seconds = seconds_of(&[[1.0, 2.0], [3.0, 6.0], [1.0, 2.0]], 10);
        // 1.0 is the first forward pass of the stage before, 2.0 its last backward pass.
        assert_eq!(seconds, 1.0 + 90.0 + 2.0);
    }

    /// Largest number of micro-batches that wait for their backward pass.
    #[test]
    fn a_stage_keeps_as_many_micro_batches_as_there_are_stages_from_it_on() {
        for (stages, count) in [(4, 8), (4, 2), (3, 3)] {
            for index in 0..stages {
                let (mut kept, mut most) = (0_usize, 0);
                for work in order(index, stages, count) {
                    kept = if matches!(work, Work::Forward(_)) { kept + 1 } else { kept - 1 };
                    most = most.max(kept);
                }
                assert_eq!((kept, most), (0, count.min(stages - index)));
            }
        }
    }
}
