//! Waiting for memory that others have taken.

use std::thread;
use std::time::{Duration, Instant};

/// The first and the longest pause between two checks for memory.
const PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(1)];

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
        // The factor is not whole, so that a user that allocates at regular intervals is not met at
        // the same moment each time.
        self.pause = (self.pause * 8 / 5).min(PAUSES[1]);
        true
    }
}
