//! The memory of fused steps, known from rehearsals.

use lowtide_data::BatchView;
use lowtide_nn::optim::Stateful;

use crate::error::Result;
use crate::plan::events::PlannedEvent;
use crate::plan::knobs::Knobs;
use crate::plan::rehearsal::RunInputs;
use crate::task::contract::Task;

/// The state in which a step was rehearsed: the hash of the live blocks, the knobs, and the shapes
/// of the batch.
type Beginning = (u64, Knobs, Vec<Vec<usize>>);

/// Bytes that fused steps reserve, by the state in which a step begins.
#[derive(Debug, Default)]
pub(crate) struct Proofs(Vec<(Beginning, usize)>);

/// Largest number of remembered proofs. A run has few layouts, and a rehearsal takes milliseconds.
const PROOFS_MAX: usize = 64;

impl Proofs {
    /// Bytes that a fused step on this batch reserves, beginning with the present state of the
    /// device.
    ///
    /// # Errors
    /// Errors of the rehearsal.
    pub(crate) fn reserved_bytes<T: Task + Clone, O: Stateful + Clone>(
        &mut self,
        inputs: &RunInputs<'_, T, O>,
        batch: &BatchView<'_>,
        knobs: Knobs,
    ) -> Result<usize> {
        let shapes = batch.fields().map(|field| field.shape()).collect();
        let beginning = (inputs.device.allocator().layout_hash(), knobs, shapes);
        if let Some((_, bytes)) = self.0.iter().find(|(known, _)| *known == beginning) {
            return Ok(*bytes);
        }
        let forecast = inputs.rehearse(&[PlannedEvent::Step(*batch)], knobs)?;
        if self.0.len() == PROOFS_MAX {
            self.0.remove(0);
        }
        self.0.push((beginning, forecast.peak_bytes));
        Ok(forecast.peak_bytes)
    }
}
