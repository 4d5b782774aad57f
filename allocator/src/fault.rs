//! Failure on purpose: which request or source call fails.

/// Repetitions of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// The nth time only: what comes after it succeeds, so recovery can be seen.
    Once,
    /// The nth time and ever after: nothing must loop on it.
    Forever,
}

/// The nth time from now fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// 1 is the next one; 0 is taken as 1.
    pub nth: u64,
    /// Repetition of the failure.
    pub repeat: Repeat,
}

impl Fault {
    /// Counts one event of an armed fault down, and says whether it fails.
    pub(crate) fn fires(armed: &mut Option<Fault>) -> bool {
        let Some(fault) = armed else { return false };
        if fault.nth > 1 {
            fault.nth -= 1;
            return false;
        }
        if fault.repeat == Repeat::Once {
            *armed = None;
        }
        true
    }
}
