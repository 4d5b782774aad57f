//! Forecasts that several searches share.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use lowtide_nn::optim::Stateful;

use crate::error::Result;
use crate::plan::events::PlannedEvent;
use crate::plan::forecast::Forecast;
use crate::plan::knobs::Knobs;
use crate::plan::rehearsal::RunInputs;
use crate::task::contract::Task;

/// Forecasts from the rehearsals of one training. A forecast does not depend on the budget, so
/// searches for several budgets, and a survey, rehearse the same knobs only once.
///
/// Clones share their forecasts. All searches that share forecasts must have the same task,
/// optimizer, options and events; live blocks are compared.
#[derive(Clone, Debug, Default)]
pub struct Forecasts(Rc<RefCell<HashMap<Rehearsed, Forecast>>>);

/// Inputs of a rehearsal that may differ between searches with shared forecasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Rehearsed {
    layout_hash: u64,
    knobs: Knobs,
    evaluation_batch: Option<usize>,
    held_bytes: usize,
    copy_ahead_bytes: usize,
}

impl Forecasts {
    /// The forecast of a run with these knobs, with memory for batches that are copied ahead.
    ///
    /// # Errors
    /// Errors of a rehearsal.
    pub(crate) fn of<T: Task + Clone, O: Stateful + Clone>(
        &self,
        inputs: &RunInputs<'_, T, O>,
        events: &[PlannedEvent<'_>],
        knobs: Knobs,
        copy_ahead_bytes: usize,
    ) -> Result<Forecast> {
        let &RunInputs { device, evaluation_batch, held_bytes, .. } = inputs;
        let layout_hash = device.allocator().layout_hash();
        let key = Rehearsed { layout_hash, knobs, evaluation_batch, held_bytes, copy_ahead_bytes };
        if let Some(known) = self.0.borrow().get(&key) {
            return Ok(known.clone());
        }
        let forecast = inputs.rehearse_beside(copy_ahead_bytes, events, knobs)?;
        self.0.borrow_mut().insert(key, forecast.clone());
        Ok(forecast)
    }
}
