//! Waiting for memory that others have taken, and patience with failures that memory does not
//! explain.

use std::thread;
use std::time::{Duration, Instant};

use lowtide_allocator::OutOfMemory;

/// The first and the longest pause between two checks for memory.
const PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(1)];

/// The first and the longest pause after a failure although there was room.
const BACK_OFF: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(200)];

/// The sum of the pauses after failures in a row although there was room, unless the options say
/// how long to wait: enough for 50 failures.
const BACK_OFF_SUM: Duration = Duration::from_secs(10);

/// The growth of a pause. The factor is not whole, so that a user that allocates at regular
/// intervals is not met at the same moment each time.
const GROWTH: f64 = 1.6;

/// A wait with a deadline.
pub(crate) struct Waiting {
    deadline: Instant,
    pause: Duration,
}

impl Waiting {
    /// A wait of this length that begins now.
    pub(crate) fn new(wait: Duration) -> Waiting {
        Waiting { deadline: Instant::now() + wait, pause: PAUSES[0] }
    }

    /// Sleeps, longer each time. Returns false at once if the deadline has passed.
    pub(crate) fn pause(&mut self) -> bool {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        thread::sleep(self.pause.min(left));
        self.pause = self.pause.mul_f64(GROWTH).min(PAUSES[1]);
        true
    }
}

/// The pauses after failures in a row of the same work, although the allocator had room for the
/// request that failed. A driver may refuse for a moment; smaller parts would only change the
/// result.
pub(crate) struct BackOff {
    next: Duration,
    left: Duration,
}

impl BackOff {
    /// Pauses that add up to [`Options::wait`](crate::Options::wait), or to 10 seconds.
    pub(crate) fn new(wait: Option<Duration>) -> BackOff {
        BackOff { next: Duration::ZERO, left: wait.unwrap_or(BACK_OFF_SUM) }
    }

    /// Sleeps, longer each time; the first time not at all. Returns false at once if all pauses are
    /// spent.
    pub(crate) fn pause(&mut self) -> bool {
        let pause = self.next;
        if pause > self.left {
            return false;
        }
        thread::sleep(pause);
        self.left -= pause;
        self.next = pause.mul_f64(GROWTH).clamp(BACK_OFF[0], BACK_OFF[1]);
        true
    }
}

/// The decision after a failure whether the same work is tried again as it is.
pub(crate) struct Patience {
    is_first: bool,
    waiting: Waiting,
    back_off: BackOff,
}

impl Patience {
    /// Patience with one piece of work that begins now, by [`Options::wait`](crate::Options::wait).
    pub(crate) fn new(wait: Option<Duration>) -> Patience {
        let waiting = Waiting::new(wait.unwrap_or_default());
        Patience { is_first: true, waiting, back_off: BackOff::new(wait) }
    }

    /// Sleeps and returns true if another attempt may succeed: the first one, with empty caches; a
    /// further one if the allocator had room, or while there is time for memory to come back.
    pub(crate) fn tries_again(&mut self, failure: &OutOfMemory) -> bool {
        if std::mem::take(&mut self.is_first) {
            return true;
        }
        if had_room(failure) { self.back_off.pause() } else { self.waiting.pause() }
    }
}

/// True if the allocator's own numbers do not explain the failure.
pub(crate) fn had_room(failure: &OutOfMemory) -> bool {
    failure.missing_bytes == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_after_failures_although_there_was_room_suffice_for_fifty_in_a_row() {
        let (mut sum, mut pause) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..50 {
            sum += pause;
            pause = pause.mul_f64(GROWTH).clamp(BACK_OFF[0], BACK_OFF[1]);
        }
        assert!(sum <= BACK_OFF_SUM, "{sum:?}");
        let mut spent = BackOff { next: BACK_OFF[1], left: Duration::from_millis(1) };
        assert!(!spent.pause());
    }
}
