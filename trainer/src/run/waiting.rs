//! Waiting for memory that others have taken, and patience with failures that memory does not
//! explain.

use std::thread;
use std::time::{Duration, Instant};

use lowtide_allocator::OutOfMemory;

/// The first and the longest pause between two checks for memory.
const PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(1)];

/// The first and the longest pause after a failure although there was room.
const BACK_OFF: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(200)];

/// Time from the first failure although there was room until work is not tried again as it is,
/// unless the options say how long to wait: enough for 50 failures of quick work.
const BACK_OFF_TIME: Duration = Duration::from_secs(10);

/// Number of attempts after failures although there was room, however long they take.
const BACK_OFF_ATTEMPTS: u32 = 3;

/// The growth of a pause. The factor is not whole, so that a user that allocates at regular
/// intervals is not met at the same moment each time.
const GROWTH: f64 = 1.6;

/// The longest wait: clocks cannot count more than some centuries.
const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);

/// A wait with a deadline.
pub(crate) struct Waiting {
    deadline: Instant,
    pause: Duration,
}

impl Waiting {
    /// A wait of this length that begins now.
    pub(crate) fn new(wait: Duration) -> Waiting {
        let now = Instant::now();
        let deadline = now.checked_add(wait).unwrap_or(now + CENTURY);
        Waiting { deadline, pause: PAUSES[0] }
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
    time: Duration,
    /// The end of the attempts, from the first failure on.
    deadline: Option<Instant>,
    attempts: u32,
    next: Duration,
}

impl BackOff {
    /// Attempts for the time of [`Options::wait`](crate::Options::wait), or for 10 seconds.
    pub(crate) fn new(wait: Option<Duration>) -> BackOff {
        let time = wait.unwrap_or(BACK_OFF_TIME);
        BackOff { time, deadline: None, attempts: 0, next: Duration::ZERO }
    }

    /// Sleeps, longer each time; the first time not at all. Returns false at once if the time is
    /// over after a few attempts.
    pub(crate) fn pause(&mut self) -> bool {
        let now = Instant::now();
        let end = now.checked_add(self.time).unwrap_or(now + CENTURY);
        let deadline = *self.deadline.get_or_insert(end);
        self.attempts += 1;
        if self.attempts > BACK_OFF_ATTEMPTS && now + self.next > deadline {
            return false;
        }
        thread::sleep(self.next);
        self.next = self.next.mul_f64(GROWTH).clamp(BACK_OFF[0], BACK_OFF[1]);
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
        assert!(sum < BACK_OFF_TIME, "{sum:?}");
    }

    #[test]
    fn work_is_tried_a_few_times_even_if_there_is_no_time_to_wait() {
        let mut none = BackOff::new(Some(Duration::ZERO));
        let tried = (0..10).take_while(|_| none.pause()).count();
        assert_eq!(tried, BACK_OFF_ATTEMPTS as usize);
        assert!(BackOff::new(Some(Duration::MAX)).pause());
        assert!(Waiting::new(Duration::MAX).pause());
    }
}
