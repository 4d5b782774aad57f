//! Ctrl-C ends a run after the current step, and all files are written.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lowtide_trainer::{Flow, Observer, Result, StepReport, TrainError, Training};

/// Stops the run after the first interrupt.
pub(super) struct Interrupt {
    asked: Arc<AtomicBool>,
}

impl Interrupt {
    /// Listens for interrupts from now on. The second one ends the process at once.
    pub(super) fn listen() -> Result<Self> {
        /// The exit code that a shell reports for a process that an interrupt ended.
        const EXIT_INTERRUPTED: i32 = 130;
        let asked = Arc::new(AtomicBool::new(false));
        let handler_asked = Arc::clone(&asked);
        let handler = move || {
            if handler_asked.swap(true, Ordering::Relaxed) {
                std::process::exit(EXIT_INTERRUPTED);
            }
        };
        ctrlc::set_handler(handler).map_err(|error| TrainError::Setting {
            place: "interrupt handler".to_owned(),
            problem: error.to_string(),
        })?;
        Ok(Interrupt { asked })
    }

    /// True if an interrupt came.
    pub(super) fn came(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }
}

impl Observer for &Interrupt {
    fn on_step(&mut self, _: &StepReport, _: &mut dyn Training) -> Result<Flow> {
        Ok(if self.came() { Flow::Stop } else { Flow::Continue })
    }
}
