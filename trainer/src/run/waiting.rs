//! Waiting for memory that others have taken to come back.

use std::thread;
use std::time::{Duration, Instant};

/// How long it is until memory is looked for again: at first, and at most.
const PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(1)];

/// A wait that ends.
pub(crate) struct Waiting {
    deadline: Instant,
    pause: Duration,
}

impl Waiting {
    /// From now on, that long.
    pub(crate) fn new(wait: Duration) -> Waiting {
        Waiting { deadline: Instant::now() + wait, pause: PAUSES[0] }
    }

    /// Sleeps a while, longer each time; `false`, at once, when the time is over.
    pub(crate) fn pause(&mut self) -> bool {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        thread::sleep(self.pause.min(left));
        // By no whole factor: others that come and go at even times are not always met at one.
        self.pause = (self.pause * 8 / 5).min(PAUSES[1]);
        true
    }
}
