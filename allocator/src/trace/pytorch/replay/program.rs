//! The events as a program, so that the clock sees the policy only.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::offers::Offers;
use crate::torch::{AddressRange, SegmentSource, StreamId, TorchPolicy};
use crate::trace::pytorch::snapshot::{Action, RecordedEvent};

/// A request or a free of a block that has a number, so that the clock sees the policy only.
enum Op {
    Allocate {
        block: usize,
        size_bytes: u64,
        stream: StreamId,
    },
    Free(usize),
    FreeAtStart(u64),
    ReleaseSegment(u64),
    /// Pages of the event with this index.
    Offer(AddressRange, usize),
    MapInVain(AddressRange),
    Unmap(AddressRange),
}

pub(crate) struct Program {
    ops: Vec<Op>,
    segments: VecDeque<(u64, u64)>,
    block_count: usize,
}

impl Program {
    /// Frees count when they are complete.
    pub(crate) fn compile(events: &[RecordedEvent]) -> Program {
        let mut program = Program { ops: Vec::new(), segments: VecDeque::new(), block_count: 0 };
        let mut numbers: BTreeMap<u64, usize> = BTreeMap::new();
        let mut mapped = Vec::new();
        for (index, event) in events.iter().enumerate() {
            let RecordedEvent { action, address, size_bytes, stream, .. } = *event;
            let range = AddressRange { address, size_bytes };
            if !matches!(action, Action::SegmentMap | Action::Alloc) {
                program.ops.extend(mapped.drain(..).map(Op::MapInVain));
            }
            match action {
                Action::Alloc => {
                    mapped.clear();
                    let block = program.block_count;
                    program.block_count += 1;
                    numbers.insert(address, block);
                    program.ops.push(Op::Allocate { block, size_bytes, stream });
                }
                Action::FreeCompleted => {
                    let op = numbers.remove(&address).map_or(Op::FreeAtStart(address), Op::Free);
                    program.ops.push(op);
                }
                Action::SegmentAlloc => program.segments.push_back((address, size_bytes)),
                Action::SegmentFree => program.ops.push(Op::ReleaseSegment(address)),
                Action::SegmentMap => {
                    mapped.push(range);
                    program.ops.push(Op::Offer(range, index));
                }
                Action::SegmentUnmap => program.ops.push(Op::Unmap(range)),
                _ => {}
            }
        }
        program
    }

    /// How many operations there are.
    pub(crate) fn len(&self) -> usize {
        self.ops.len()
    }

    pub(crate) fn run(&self, mut policy: TorchPolicy, mut offers: Offers) -> Duration {
        offers.segments.clone_from(&self.segments);
        policy.complete_all_frees();
        let mut addresses = vec![0; self.block_count];
        let start = Instant::now();
        for op in &self.ops {
            match *op {
                Op::Allocate { block, size_bytes, stream } => {
                    let placed = policy.allocate(size_bytes, stream, &mut offers);
                    addresses[block] = placed.ok().flatten().unwrap_or(0);
                }
                // A block that was pending at the start is free already.
                Op::Free(block) => drop(policy.free(addresses[block])),
                Op::FreeAtStart(address) => drop(policy.free(address)),
                Op::ReleaseSegment(address) => {
                    if let Ok(size_bytes) = policy.release_segment(address) {
                        offers.release(address, size_bytes);
                    }
                }
                Op::Offer(pages, event) => drop(offers.offer(&mut policy, pages, event)),
                Op::MapInVain(pages) => {
                    offers.pages.pop_front();
                    offers.force_map(&mut policy, pages);
                }
                Op::Unmap(pages) => drop(offers.force_unmap(&mut policy, pages)),
            }
        }
        start.elapsed()
    }
}
