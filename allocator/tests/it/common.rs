use std::process::Command;

use lowtide_allocator::{
    AllocError, Buffer, CachingAllocator, Category, Charge, MemorySource, SimSource,
};
use proptest::prelude::*;

pub(crate) const PAGE_BYTES: usize = 4096;
/// A capacity that no program here comes near.
pub(crate) const PLENTY: usize = 1 << 40;

/// Environment variable of the process that runs the body of a test, so that a crash fails one
/// test.
const CHILD: &str = "LOWTIDE_TEST_CHILD";

/// Runs `body`, the whole test `name`, in a process that runs nothing else.
pub(crate) fn in_a_process_of_its_own(name: &str, body: impl FnOnce()) {
    if std::env::var_os(CHILD).is_some() {
        return body();
    }
    let output = Command::new(std::env::current_exe().expect("a test runs from a file"))
        .args([name, "--exact", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .expect("a process");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let is_passed = output.status.success() && text.contains("1 passed");
    assert!(is_passed, "{}: {text}", output.status);
}

/// One step of a random program. Indices are taken modulo the number of live objects.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    Allocate(Category, usize),
    Free(usize),
    Charge(Category, usize),
    Raise(usize, usize),
    Discharge(usize),
    Trim,
    SetCapacity(usize),
}

/// An allocator, and the objects that a program holds of it.
pub(crate) struct World {
    pub(crate) memory: CachingAllocator,
    pub(crate) buffers: Vec<Buffer>,
    pub(crate) charges: Vec<Charge>,
}

impl World {
    pub(crate) fn new(source: impl MemorySource + 'static) -> World {
        World::of(CachingAllocator::new(source).expect("address ranges"))
    }

    pub(crate) fn sim(capacity_bytes: usize) -> World {
        World::new(SimSource::with_capacity(capacity_bytes).page_bytes(PAGE_BYTES))
    }

    pub(crate) fn of(memory: CachingAllocator) -> World {
        World { memory, buffers: Vec::new(), charges: Vec::new() }
    }

    /// Runs one step. Returns the offset if the step allocated.
    pub(crate) fn step(&mut self, op: Op) -> Result<Option<usize>, AllocError> {
        let pick = |index: usize, len: usize| (len > 0).then(|| index % len);
        match op {
            Op::Allocate(category, size_bytes) => {
                let buffer = self.memory.allocate_in(category, size_bytes)?;
                let offset = buffer.offset();
                self.buffers.push(buffer);
                return Ok(Some(offset));
            }
            Op::Free(index) => {
                if let Some(index) = pick(index, self.buffers.len()) {
                    drop(self.buffers.swap_remove(index));
                }
            }
            Op::Charge(category, size_bytes) => {
                self.charges.push(self.memory.charge(category, size_bytes)?);
            }
            Op::Raise(index, size_bytes) => {
                if let Some(index) = pick(index, self.charges.len()) {
                    self.charges[index].raise_to(size_bytes)?;
                }
            }
            Op::Discharge(index) => {
                if let Some(index) = pick(index, self.charges.len()) {
                    drop(self.charges.swap_remove(index));
                }
            }
            Op::Trim => {
                self.memory.trim();
            }
            Op::SetCapacity(bytes) => self.memory.set_capacity(bytes),
        }
        Ok(None)
    }

    /// Runs steps up to the first failure. Returns the offsets of the allocations.
    pub(crate) fn run(&mut self, program: &[Op]) -> Result<Vec<usize>, AllocError> {
        let mut offsets = Vec::new();
        for &op in program {
            offsets.extend(self.step(op)?);
            self.memory.check_invariants();
        }
        Ok(offsets)
    }
}

pub(crate) fn category() -> impl Strategy<Value = Category> {
    prop::sample::select(Category::ALL.to_vec())
}

/// Sizes below a block, of a few blocks, and of a few pages.
pub(crate) fn size_bytes() -> impl Strategy<Value = usize> {
    prop_oneof![0..600_usize, 0..6 * PAGE_BYTES, (0..40_usize).prop_map(|n| n * 1024)]
}

/// Steps that do not change the capacity.
pub(crate) fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (category(), size_bytes()).prop_map(|(category, size)| Op::Allocate(category, size)),
        7 => any::<usize>().prop_map(Op::Free),
        1 => (category(), size_bytes()).prop_map(|(category, size)| Op::Charge(category, size)),
        1 => (any::<usize>(), size_bytes()).prop_map(|(index, size)| Op::Raise(index, size)),
        1 => any::<usize>().prop_map(Op::Discharge),
        1 => Just(Op::Trim),
    ]
}

pub(crate) fn program() -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(op(), 1..120)
}

/// A program with every kind of step, for tests that go through its requests one by one.
pub(crate) fn fixed_program() -> Vec<Op> {
    use Category::{Activation, Gradient, Input, OptimizerState, Parameter, Workspace};
    vec![
        Op::Allocate(Parameter, 10_000),
        Op::Allocate(Input, 700),
        Op::Allocate(Activation, 30_000),
        Op::Charge(Workspace, 5_000),
        Op::Allocate(Activation, 9_000),
        Op::Free(2),
        Op::Allocate(Gradient, 8_000),
        Op::Raise(0, 9_000),
        Op::Free(1),
        Op::Allocate(OptimizerState, 20_000),
        Op::Allocate(Workspace, 50_000),
        Op::Free(4),
        Op::Allocate(Workspace, 0),
        Op::Discharge(0),
        Op::Allocate(Activation, 45_000),
        Op::Charge(Workspace, 1),
        Op::Allocate(Parameter, 1),
    ]
}
