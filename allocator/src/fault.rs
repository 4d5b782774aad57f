//! Injected failures of requests and source calls.

/// Repetitions of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// Only the nth call fails. Later calls succeed, so that a test sees the recovery.
    Once,
    /// The nth call and the calls after it fail, this many in all; 0 counts as 1. A caller that
    /// tries again at once fails again.
    Times(u64),
    /// The nth call and every later one fail. A caller that retries without end shows up.
    Forever,
}

/// A fault: the nth call from now fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Number of the call that fails; 1 is the next call, and 0 counts as 1.
    pub nth: u64,
    /// Repetition of the failure.
    pub repeat: Repeat,
}

impl Fault {
    /// Counts one event of an armed fault down. Returns true if the event fails.
    pub(crate) fn fires(armed: &mut Option<Fault>) -> bool {
        let Some(fault) = armed else { return false };
        if fault.nth > 1 {
            fault.nth -= 1;
            return false;
        }
        match fault.repeat {
            Repeat::Once | Repeat::Times(0 | 1) => *armed = None,
            Repeat::Times(count) => fault.repeat = Repeat::Times(count - 1),
            Repeat::Forever => {}
        }
        true
    }
}
