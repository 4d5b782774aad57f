//! `--process-budget`: the limit on the whole process, and the part that is left for the training.
//!
//! The count has everything that a control group charges and cannot take back: anonymous and shared
//! memory, page tables, and resident code. Mapped data files are not counted, because the system
//! drops their pages before it runs out of memory. Every part is an upper bound: by a formula if
//! there is one, else the present size of the process plus an allowance for growth.

use lowtide_allocator::{
    HISTORY_BYTES, LimitOrigin, MemoryLimit, ProcessMemory, available_bytes, process_memory,
};
use lowtide_tensor::{Device, DeviceKind};
use lowtide_trainer::{DoesNotFit, Examples, Fit, Knobs, Plan, Remedy, Result, TrainError};
use serde_json::{Value, json};

use crate::command::rows::Row;
use crate::human::{exact_bytes, format_bytes};
use crate::timeline::EVENTS_MAX;

/// Resident code and static data. Of the binary's 40 MiB, 14 to 16 MiB are resident when the plan
/// is made, and 17 to 20 at the end of a run (2026-11-24, x86-64). The bound leaves room, so that
/// the plan depends on the recipe and not on the pages that happen to be resident.
const CODE_BYTES: usize = 24 << 20;

/// The heap besides the other parts, such as the recipe, the model's structure and the text of the
/// report: 2 to 4 MiB in runs of the shipped recipes (2026-11-24).
const HEAP_BYTES: usize = 8 << 20;

/// Allowance for growth of code and heap after the plan, if they are already larger than the
/// constants.
const GROWTH_BYTES: usize = 5 << 20;

/// Bytes of an event in two recordings of a step. The report holds one while the second is made.
const RECORDED_BYTES: usize = 2 * 80;

/// Number of histories that exist at once in a rehearsal during a run: the device's, the simulated
/// device's, and a copy for reading. A recording is made from a single copy.
const HISTORIES: usize = 3;

/// Stack and heap of a computing or loading thread, and the system's records of it. A matrix
/// product packs 340 KB on the stack.
const THREAD_BYTES: usize = 1 << 20;

/// Bytes of the report's curves for a step: eight series of 16 bytes, in vectors that double.
const CURVES_BYTES_PER_STEP: usize = 256;

/// Bytes that are mapped by a byte of page tables. A page of 4 KiB has an entry of 8 bytes for each
/// mapping: one in its segment, and up to three in views of stitched blocks.
const BYTES_PER_PAGE_TABLE_BYTE: usize = 128;

/// Unit to which measured parts are rounded up.
const MEASURED_UNIT_BYTES: usize = 1 << 20;

/// Room for everything that the other parts do not count.
const MARGIN_BYTES: usize = 4 << 20;

/// Bytes of the process for an element of a tensor that is quantised, or that is copied from a
/// device to a file: a number of four bytes, and its code or its second copy.
pub(super) const ENCODED_BYTES_PER_ELEMENT: usize = 8;

/// Part of a control group that is left for memory that the system keeps for a process and that
/// nothing above counts: files being written, folders, sockets.
const GROUP_RESERVE_BYTES: usize = 16 << 20;

/// The limit on a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProcessBudget {
    pub(super) bytes: usize,
    origin: Origin,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Option,
    ControlGroup,
}

impl ProcessBudget {
    /// The limit given on the command line.
    pub(super) fn given(bytes: usize) -> ProcessBudget {
        ProcessBudget { bytes, origin: Origin::Option }
    }

    /// The limit of this process's control group, if it is the tightest one: the bytes still free
    /// there, plus the bytes of the process, less 16 MiB.
    pub(super) fn of_control_group() -> Option<ProcessBudget> {
        let LimitOrigin::ControlGroup { .. } = MemoryLimit::of_this_process().origin else {
            return None;
        };
        let (left_bytes, now) = (available_bytes()?, process_memory()?);
        let own_bytes = now.anonymous_bytes + now.shared_bytes + now.page_table_bytes;
        let bytes = (left_bytes + own_bytes).saturating_sub(GROUP_RESERVE_BYTES);
        Some(ProcessBudget { bytes, origin: Origin::ControlGroup })
    }

    fn name(self) -> &'static str {
        match self.origin {
            Origin::Option => "--process-budget",
            Origin::ControlGroup => "its control group",
        }
    }
}

/// The work of a command besides the memory of its device.
pub(super) struct Work<'a> {
    pub(super) device: &'a Device,
    /// The data, if any is read.
    pub(super) fit: Option<&'a Fit<'a>>,
    /// Largest number of bytes that are copied at once from the device to a file, or from a file to
    /// the device.
    pub(super) copied_bytes: usize,
    /// Number of steps in the curves of the report.
    pub(super) steps: u64,
    /// Bytes of host memory to which blocks may be offloaded.
    pub(super) offload_bytes: usize,
}

/// The largest memory of a process, in parts.
pub(super) struct Process {
    budget: ProcessBudget,
    /// All parts except the training and its page tables.
    beside: Vec<Part>,
    /// The training's part of the process; `None` if the device has its own memory.
    training_bytes: Option<usize>,
    /// True if `training_bytes` is below the limit of `--budget`.
    is_binding: bool,
}

struct Part {
    name: &'static str,
    bytes: usize,
    what: &'static str,
}

impl Process {
    /// Divides `budget` when the data is open and nothing is planned yet. The training is also
    /// limited to `given_bytes`, if given.
    ///
    /// # Errors
    /// `Setting` if the system does not report the memory of a process; errors of the data.
    pub(super) fn divide(
        budget: ProcessBudget,
        work: &Work<'_>,
        given_bytes: Option<usize>,
    ) -> Result<Process> {
        let before = measured()?;
        if let Some(fit) = work.fit {
            // After this, workers have allocated the memory for decoding samples.
            drop(Examples::of(fit)?);
        }
        let beside = work.parts(&before, &measured()?);
        let fixed_bytes = beside.iter().map(|part| part.bytes).fold(0, usize::saturating_add);
        let left_bytes = most_beside_tables(budget.bytes.saturating_sub(fixed_bytes));
        let is_on_host = work.device.kind() == DeviceKind::Cpu;
        let is_binding = is_on_host && given_bytes.is_none_or(|given| left_bytes < given);
        let training_bytes =
            is_on_host.then(|| given_bytes.map_or(left_bytes, |given| given.min(left_bytes)));
        Ok(Process { budget, beside, training_bytes, is_binding })
    }

    /// The most memory for the training, if it is a part of the process.
    pub(super) fn training_bytes(&self) -> Option<usize> {
        self.training_bytes
    }

    /// The limit on the process.
    pub(super) fn budget_bytes(&self) -> usize {
        self.budget.bytes
    }

    /// The origin of the training's budget in words, if the limit on the process decides it.
    pub(super) fn origin_of_training(&self) -> Option<String> {
        let name = self.budget.name();
        self.is_binding.then(|| format!("what {name} allows, less the rest of the process"))
    }

    /// The bytes of the process with a training of `training_bytes`.
    fn bytes_with(&self, training_bytes: usize) -> usize {
        let beside = self.beside.iter().map(|part| part.bytes);
        beside.chain([training_bytes, tables_of(training_bytes)]).fold(0, usize::saturating_add)
    }

    /// The most memory that the process takes.
    pub(super) fn total_bytes(&self) -> usize {
        self.bytes_with(self.training_bytes.unwrap_or(0))
    }

    /// Returns the plan, or the reason why there is none, in bytes of the process if its limit
    /// decides.
    ///
    /// # Errors
    /// The error of `planned`; `DoesNotFit` if the other parts leave too little room.
    pub(super) fn checked(&self, planned: Result<Plan>) -> Result<Plan> {
        match planned {
            Err(TrainError::DoesNotFit(error)) if self.is_binding => {
                Err(Box::new(self.of_process(*error)).into())
            }
            Ok(plan) => {
                let total_bytes = self.total_bytes();
                self.check(total_bytes, total_bytes, plan.knobs).map(|()| plan)
            }
            Err(error) => Err(error),
        }
    }

    /// # Errors
    /// `DoesNotFit` if the limit decides, and a work without a plan does not fit that reserves
    /// `device_bytes`.
    pub(super) fn check_work(&self, device_bytes: usize) -> Result<()> {
        // Otherwise the device has less than the process, and says what is missing.
        let needed_bytes =
            if self.is_binding { self.bytes_with(device_bytes) } else { self.total_bytes() };
        // The next process measures its heap and its code anew, and may find a MiB more of each.
        self.check(needed_bytes, needed_bytes + 2 * MEASURED_UNIT_BYTES, Knobs::default())
    }

    /// # Errors
    /// `DoesNotFit` if the limit is below `least_bytes`. The error advises `needed_bytes`.
    fn check(&self, least_bytes: usize, needed_bytes: usize, knobs: Knobs) -> Result<()> {
        let budget_bytes = self.budget.bytes;
        if least_bytes <= budget_bytes {
            return Ok(());
        }
        let remedy = Remedy::ProcessBudget(needed_bytes);
        let error = DoesNotFit::beside(budget_bytes, needed_bytes, knobs, remedy);
        Err(Box::new(error).into())
    }

    /// Converts an error of the training into an error of the process.
    fn of_process(&self, error: DoesNotFit) -> DoesNotFit {
        let remedies = error.remedies.into_iter().map(|remedy| match remedy {
            Remedy::Budget(bytes) => Remedy::ProcessBudget(self.bytes_with(bytes)),
            Remedy::StatelessOptimizer { needed_bytes } => {
                Remedy::StatelessOptimizer { needed_bytes: self.bytes_with(needed_bytes) }
            }
            Remedy::EightBitStates { needed_bytes } => {
                Remedy::EightBitStates { needed_bytes: self.bytes_with(needed_bytes) }
            }
            Remedy::HalfPrecision { needed_bytes } => {
                Remedy::HalfPrecision { needed_bytes: self.bytes_with(needed_bytes) }
            }
            remedy => remedy,
        });
        DoesNotFit {
            budget_bytes: self.budget.bytes,
            needed_bytes: self.bytes_with(error.needed_bytes),
            remedies: remedies.collect(),
            ..error
        }
    }

    /// One line with the most memory of the process, and its limit.
    pub(super) fn headline(&self) -> String {
        let total = exact_bytes(self.total_bytes());
        let budget = format_bytes(self.budget.bytes as u64);
        format!("at most {total} of {budget}, by {}", self.budget.name())
    }

    /// The rows of the limit, and of the parts with a line each.
    pub(super) fn rows(&self) -> [Row; 2] {
        let parts = self.parts().into_iter().map(|Part { name, bytes, what }| {
            format!("  {name:<14}{:<30}{what}", exact_bytes(bytes))
        });
        let headline = Row::new("process", [self.headline()]).with("process", self.to_json());
        [headline, Row::block(parts)]
    }

    fn to_json(&self) -> Value {
        let parts = self.parts().into_iter().map(
            |Part { name, bytes, what }| json!({ "name": name, "bytes": bytes, "what": what }),
        );
        json!({
            "budget_bytes": self.budget.bytes,
            "budget_from": self.budget.name(),
            "bytes": self.total_bytes(),
            "parts": parts.collect::<Vec<_>>(),
        })
    }

    fn parts(&self) -> Vec<Part> {
        let part = |name, bytes, what| Part { name, bytes, what };
        let training = self.training_bytes.map(|bytes| {
            let tables = part("page tables", tables_of(bytes), "of the training, in its views too");
            [part("training", bytes, "the budget"), tables]
        });
        let beside = self.beside.iter().map(|&Part { name, bytes, what }| part(name, bytes, what));
        training.into_iter().flatten().chain(beside).collect()
    }
}

impl Work<'_> {
    /// The parts of the process besides the training. `before` is the memory before the first batch
    /// of each set was read, `now` is the memory afterwards.
    fn parts(&self, before: &ProcessMemory, now: &ProcessMemory) -> Vec<Part> {
        let &Work { device, fit, copied_bytes, steps, offload_bytes } = self;
        let data_bytes = fit.map_or(0, Fit::data_bytes);
        let batches_bytes = fit.map_or(0, |fit| fit.staging_bytes() + fit.order_bytes());
        // Data may already be in the heap; the rest of the heap belongs to the program.
        let heap_bytes = grown(now.anonymous_bytes.saturating_sub(data_bytes));
        let code_bytes = grown(now.code_bytes);
        let steps = usize::try_from(steps).unwrap_or(usize::MAX);
        let recorded_bytes = EVENTS_MAX as usize * RECORDED_BYTES;
        let records_bytes = (HISTORIES * HISTORY_BYTES + recorded_bytes)
            .saturating_add(steps.saturating_mul(CURVES_BYTES_PER_STEP));
        let workers = fit.map_or(0, Fit::worker_count);
        let threads = device.threads() + workers;
        // The heap already has the decoding buffers of the first batch, and later samples may need
        // the same again. A growth below the normal size of threads is not decoding.
        let decoded_bytes = now.anonymous_bytes.saturating_sub(before.anonymous_bytes);
        let is_decoded = decoded_bytes > workers.max(1) * THREAD_BYTES;
        let part = |name, bytes, what| Part { name, bytes, what };
        let parts = [
            part("batches", batches_bytes, "read ahead, and their order"),
            part("data", data_bytes, "samples in memory; mapped files can be given back"),
            part("offload", offload_bytes, "what waits for backward beside the device"),
            part("copies", copied_bytes, "model and optimizer on their way to or from a file"),
            part("records", records_bytes, "history of allocations, for plans and report"),
            part("decoding", if is_decoded { decoded_bytes } else { 0 }, "larger samples"),
            part("threads", threads * THREAD_BYTES, "stacks and heaps of those that work"),
            part("code", code_bytes.max(CODE_BYTES), "of the program and its libraries"),
            part("heap", heap_bytes.max(HEAP_BYTES), "everything else in the program"),
            part("margin", MARGIN_BYTES, "for what is not counted"),
        ];
        parts.into_iter().filter(|part| part.bytes > 0).collect()
    }
}

/// Measured bytes with the allowance for growth, rounded up, so that the needs of two processes
/// differ seldom, and by known steps.
fn grown(bytes: usize) -> usize {
    (bytes + GROWTH_BYTES).next_multiple_of(MEASURED_UNIT_BYTES)
}

/// The present memory of this process.
fn measured() -> Result<ProcessMemory> {
    process_memory().ok_or_else(|| TrainError::Setting {
        place: "--process-budget".to_owned(),
        problem: "only Linux says what a process takes".to_owned(),
    })
}

/// Bytes of the page tables of a training of `bytes`.
fn tables_of(bytes: usize) -> usize {
    bytes.div_ceil(BYTES_PER_PAGE_TABLE_BYTE)
}

/// The largest number of bytes that fits into `room_bytes` together with its page tables.
fn most_beside_tables(room_bytes: usize) -> usize {
    let tables_bytes = room_bytes.div_ceil(BYTES_PER_PAGE_TABLE_BYTE + 1);
    room_bytes - tables_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn training_and_its_page_tables_fill_the_room_to_the_byte() {
        for room_bytes in (0..2000).chain([6 << 20, (6 << 20) + 1, 1 << 40]) {
            let bytes = most_beside_tables(room_bytes);
            assert!(bytes + tables_of(bytes) <= room_bytes, "{room_bytes}");
            let more = bytes + 1;
            assert!(more + tables_of(more) > room_bytes, "{room_bytes}");
        }
    }
}
