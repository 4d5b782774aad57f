//! `--process-budget`: the limit on the whole process, and the part that is left for the training.
//!
//! Counted is what a control group charges and cannot take back: anonymous and shared memory, page
//! tables, and the code that runs. Mapped files of data are not: the system drops their pages
//! before it lacks memory. Every part is an upper bound, by a formula where there is one, else by
//! what the process takes when the plan is made and an allowance for what comes after.

use lowtide_allocator::{
    HISTORY_BYTES, LimitOrigin, MemoryLimit, ProcessMemory, available_bytes, process_memory,
};
use lowtide_tensor::{Device, DeviceKind};
use lowtide_trainer::{DoesNotFit, Examples, Fit, Knobs, Plan, Remedy, Result, TrainError};
use serde_json::{Value, json};

use crate::command::rows::Row;
use crate::human::{exact_bytes, format_bytes};
use crate::timeline::EVENTS_MAX;

/// Code and static data that are in memory: 14 to 16 MiB when the plan is made, 17 to 20 at the end
/// of a run, of the binary's 40 (2026-11-24, x86-64). A bound with room makes the plan a function
/// of the recipe, not of what happens to be in memory.
const CODE_BYTES: usize = 22 << 20;

/// The heap beside what the other parts name, such as the recipe, the model's structure and the
/// text of the report: 2 to 4 MiB in runs of the recipes that ship (2026-11-24).
const HEAP_BYTES: usize = 8 << 20;

/// Growth of code and heap where they are larger when the plan is made.
const GROWTH_BYTES: usize = 5 << 20;

/// An event in the two recordings that the report has of a step while the second is made.
const RECORDED_BYTES: usize = 2 * 80;

/// Histories at once in a rehearsal during a run: the device's, that of the simulated one, and the
/// copy that is looked through. A recording is made of one copy.
const HISTORIES: usize = 3;

/// Stack and heap of a thread that computes or loads, and the system's own records of it. A product
/// of matrices packs 340 KB on the stack.
const THREAD_BYTES: usize = 1 << 20;

/// Points of the report's curves for a step: eight series of 16 bytes, in vectors that double.
const CURVES_BYTES_PER_STEP: usize = 256;

/// A page of 4 KiB has an entry of 8 bytes wherever it is shown: one in its segment, and up to
/// three in views of stitched blocks.
const BYTES_PER_PAGE_TABLE_BYTE: usize = 128;

/// Room for what is in no other part.
const MARGIN_BYTES: usize = 4 << 20;

/// Left of a control group for what the system keeps for a process and nothing above counts: files
/// that are being written, folders, sockets.
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
    /// The limit of the command line.
    pub(super) fn given(bytes: usize) -> ProcessBudget {
        ProcessBudget { bytes, origin: Origin::Option }
    }

    /// The limit by the control group of this process, where one limits its memory most: the bytes
    /// that are left there now and those that the process has, less 16 MiB.
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

/// The work of a command beside its device's memory.
pub(super) struct Work<'a> {
    pub(super) device: &'a Device,
    pub(super) fit: &'a Fit<'a>,
    /// Bytes that are copied from the device to be written, or read to be copied there, at once.
    pub(super) copied_bytes: usize,
    /// Steps that the report has curves of.
    pub(super) steps: u64,
    /// Bytes of the host that blocks may be offloaded to.
    pub(super) offload_bytes: usize,
}

/// The most that a process takes, in parts.
pub(super) struct Process {
    budget: ProcessBudget,
    /// All but the training and its page tables.
    beside: Vec<Part>,
    /// The training's part of the process; `None` where a device has its own memory.
    training_bytes: Option<usize>,
    /// True if `training_bytes` is less than what `--budget` allows.
    is_binding: bool,
}

struct Part {
    name: &'static str,
    bytes: usize,
    what: &'static str,
}

impl Process {
    /// Divides `budget`, now that the data is open and nothing is planned; the training also has
    /// the limit `given_bytes`, if there is one.
    ///
    /// # Errors
    /// `Setting` where the system does not say what a process takes; errors of the data.
    pub(super) fn divide(
        budget: ProcessBudget,
        work: &Work<'_>,
        given_bytes: Option<usize>,
    ) -> Result<Process> {
        let before = measured()?;
        // Workers then have the memory that they decode samples in.
        drop(Examples::of(work.fit)?);
        let beside = work.parts(&before, &measured()?);
        let fixed_bytes = beside.iter().map(|part| part.bytes).fold(0, usize::saturating_add);
        let left_bytes = most_beside_tables(budget.bytes.saturating_sub(fixed_bytes));
        let is_on_host = work.device.kind() == DeviceKind::Cpu;
        let is_binding = is_on_host && given_bytes.is_none_or(|given| left_bytes < given);
        let training_bytes =
            is_on_host.then(|| given_bytes.map_or(left_bytes, |given| given.min(left_bytes)));
        Ok(Process { budget, beside, training_bytes, is_binding })
    }

    /// The most that the training may take, where it is a part of the process.
    pub(super) fn training_bytes(&self) -> Option<usize> {
        self.training_bytes
    }

    /// The limit on the process.
    pub(super) fn budget_bytes(&self) -> usize {
        self.budget.bytes
    }

    /// The origin of the training's budget, in words, where the limit on the process decides it.
    pub(super) fn origin_of_training(&self) -> Option<String> {
        let name = self.budget.name();
        self.is_binding.then(|| format!("what {name} allows, less the rest of the process"))
    }

    /// The bytes of the process with a training of `training_bytes`.
    fn bytes_with(&self, training_bytes: usize) -> usize {
        let beside = self.beside.iter().map(|part| part.bytes);
        beside.chain([training_bytes, tables_of(training_bytes)]).fold(0, usize::saturating_add)
    }

    /// The most that the process takes.
    pub(super) fn total_bytes(&self) -> usize {
        self.bytes_with(self.training_bytes.unwrap_or(0))
    }

    /// A plan, or why there is none: in bytes of the process where these decide.
    ///
    /// # Errors
    /// The error of `planned`; `DoesNotFit` if what is beside a device's memory is too much.
    pub(super) fn checked(&self, planned: Result<Plan>) -> Result<Plan> {
        match planned {
            Err(TrainError::DoesNotFit(error)) if self.is_binding => {
                Err(Box::new(self.of_process(*error)).into())
            }
            Ok(plan) => self.check_room(plan.knobs).map(|()| plan),
            Err(error) => Err(error),
        }
    }

    /// # Errors
    /// `DoesNotFit` if what is beside the training is too much already.
    pub(super) fn check_room(&self, knobs: Knobs) -> Result<()> {
        let (budget_bytes, needed_bytes) = (self.budget.bytes, self.total_bytes());
        if needed_bytes <= budget_bytes {
            return Ok(());
        }
        let remedy = Remedy::ProcessBudget(needed_bytes);
        let error = DoesNotFit::beside(budget_bytes, needed_bytes, knobs, remedy);
        Err(Box::new(error).into())
    }

    /// An error of the training as an error of the process.
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

    /// One line: the most that the process takes, and its limit.
    pub(super) fn headline(&self) -> String {
        let total = exact_bytes(self.total_bytes());
        let budget = format_bytes(self.budget.bytes as u64);
        format!("at most {total} of {budget}, by {}", self.budget.name())
    }

    /// The limit, and the parts with a line each.
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
    /// The parts of the process beside the training, by what the process takes `before` the first
    /// batch of each set has been read and `now`.
    fn parts(&self, before: &ProcessMemory, now: &ProcessMemory) -> Vec<Part> {
        let &Work { device, fit, copied_bytes, steps, offload_bytes } = self;
        let data_bytes = fit.data_bytes();
        // Data may be in the heap already; the rest of the heap is the program's.
        let heap_bytes = now.anonymous_bytes.saturating_sub(data_bytes) + GROWTH_BYTES;
        let code_bytes = now.code_bytes + GROWTH_BYTES;
        let steps = usize::try_from(steps).unwrap_or(usize::MAX);
        let recorded_bytes = EVENTS_MAX as usize * RECORDED_BYTES;
        let records_bytes = (HISTORIES * HISTORY_BYTES + recorded_bytes)
            .saturating_add(steps.saturating_mul(CURVES_BYTES_PER_STEP));
        let workers = fit.worker_count();
        let threads = device.threads() + workers;
        // The heap has those of the first batch; later ones may be as much larger. Less than a
        // thread has in any case is no decoding.
        let decoded_bytes = now.anonymous_bytes.saturating_sub(before.anonymous_bytes);
        let is_decoded = decoded_bytes > workers.max(1) * THREAD_BYTES;
        let part = |name, bytes, what| Part { name, bytes, what };
        let parts = [
            part("batches", fit.staging_bytes() + fit.order_bytes(), "read ahead, and their order"),
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

/// The memory that this process takes now.
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

/// The most bytes that fit into `room_bytes` with their page tables.
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
