//! The plan of a training: its knobs, and the peak that a rehearsal found.

pub(crate) mod calibration;
pub(crate) mod events;
pub(crate) mod forecast;
pub(crate) mod fused_proofs;
pub(crate) mod knobs;
pub(crate) mod packed_lengths;
pub(crate) mod planner;
pub(crate) mod recovery;
pub(crate) mod rehearsal;
pub(crate) mod run_shape;
pub(crate) mod search;

use std::fmt;

use lowtide_allocator::Bytes;

use crate::plan::forecast::Forecast;
use crate::plan::knobs::Knobs;

/// The way in which a training runs, and the memory that it needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Samples of a logical batch.
    pub batch_size: usize,
    /// The chosen knobs.
    pub knobs: Knobs,
    /// Number of samples that are evaluated at once: the most that do not raise the peak, but at
    /// least the size of a micro-batch.
    pub evaluation_batch: usize,
    /// Bytes of memory that the plan may use.
    pub budget_bytes: usize,
    /// Bytes of the copy from which checkpoints are written while the run goes on. 0 if the run
    /// waits for checkpoints, or if the copy is not in the device's memory.
    pub checkpoint_copy_bytes: usize,
    /// Bytes of device memory for the first part of the next batch, which is copied during a step.
    /// 0 if the host does the copies, or if there is no room.
    pub copy_ahead_bytes: usize,
    /// Bytes of host memory into which the loaders of the run read batches, outside the budget; 0
    /// for a plan of single steps.
    pub staging_bytes: usize,
    /// Bytes of host memory that hold the samples of the run, without mapped files and outside the
    /// budget; 0 for a plan of single steps.
    pub data_bytes: usize,
    /// The forecast from the rehearsal of this plan.
    pub forecast: Forecast,
    /// Rehearsed knobs that do not fit, with their peaks. Larger micro-batches come first, then
    /// fewer measures to save memory.
    pub rejected: Vec<(Knobs, usize)>,
}

impl Plan {
    /// The reasons why no faster plan was chosen, and the costs of the chosen knobs, in words.
    pub fn reasons(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        let is_faster = |(knobs, _): &&(Knobs, usize)| knobs.is_at_least(&self.knobs);
        let faster = self.rejected.iter().filter(is_faster);
        let nearest = faster.min_by_key(|(_, peak_bytes)| *peak_bytes);
        match nearest {
            None => reasons
                .push("the whole batch fits with everything kept: no way is faster".to_owned()),
            Some(&(knobs, peak_bytes)) => {
                let over = (peak_bytes - self.budget_bytes) as u64;
                let [needs, over] = [peak_bytes as u64, over].map(Bytes);
                reasons.push(format!("{knobs} would need {needs}, {over} more than there is"));
            }
        }
        if let (true, Some(coupling)) = (nearest.is_some(), &self.forecast.coupling) {
            reasons.push(format!("batches are not split: samples are coupled in {coupling}"));
        }
        if self.knobs.cheap_recomputed {
            let what = "cheap results, those of norms and activation functions, are computed again";
            reasons.push(format!("{what} in backward: the same bits, for little time"));
        }
        if self.knobs.recomputed_blocks > 0 {
            let what = "blocks are computed again in backward: the same bits";
            reasons.push(format!("{what}, for a second forward pass"));
        }
        if self.knobs.offloaded_blocks > 0 {
            let bytes = Bytes(self.forecast.offloaded_peak_bytes as u64);
            let what = if self.knobs.offloaded_blocks > self.knobs.recomputed_blocks {
                "what blocks save for backward waits in memory of the host"
            } else {
                "inputs of blocks wait in memory of the host until backward"
            };
            reasons.push(format!("{what}, {bytes} of it: the same bits, for two copies"));
        }
        if self.knobs.fused_update {
            let reason = "a fused update gives the same bits: no gradient waits for the others";
            reasons.push(reason.to_owned());
        }
        if self.knobs.micro_batch < self.batch_size {
            reasons.push("parts give the same numbers up to the order of additions".to_owned());
        }
        reasons
    }

    /// Number of micro-batches of a batch.
    pub fn micro_batches(&self) -> usize {
        self.batch_size.div_ceil(self.knobs.micro_batch.max(1))
    }

    /// The peak of reserved bytes over the whole run: exact.
    pub fn predicted_peak_bytes(&self) -> usize {
        self.forecast.peak_bytes
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micro_batch = self.knobs.micro_batch;
        let parts = self.micro_batches();
        let peak = self.predicted_peak_bytes();
        let plural = if parts == 1 { "" } else { "es" };
        write!(f, "batch {} in {parts} micro-batch{plural} of {micro_batch}", self.batch_size)?;
        self.knobs.fmt_means(f)?;
        let [within, budget] = [peak, self.budget_bytes].map(|bytes| Bytes(bytes as u64));
        write!(f, ", peak {within} ({peak} bytes) of {budget}")
    }
}
