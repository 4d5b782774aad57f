use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use proptest::prelude::*;

use crate::common::PAGE_BYTES;
use crate::streams::{StreamOp, StreamWorld, stream_program};

/// Bytes of a cell.
const CELL: usize = 512;
const PAGE: usize = PAGE_BYTES / CELL;

/// Streams that may still use free memory, and the time at which its last owner freed it.
#[derive(Clone, Debug, Default, PartialEq)]
struct Marks {
    users: BTreeSet<usize>,
    since: u64,
}

#[derive(Clone, Debug, PartialEq)]
enum Cell {
    Live,
    Free(Marks),
}

/// A hole: adjacent cells that the same streams used.
#[derive(Clone, Debug)]
struct Hole {
    start: usize,
    len: usize,
    marks: Marks,
}

/// A naive copy of placement on streams, cell by cell: each cell has an owner or possible users.
#[derive(Default)]
struct Naive {
    /// Cells up to the end of the last live block.
    cells: Vec<Cell>,
    /// Live blocks in the order of the program's own list: runs and users of each.
    blocks: Vec<(Vec<Range<usize>>, BTreeSet<usize>)>,
    /// Streams that may still work beyond the last cell, with the time of their last free there.
    beyond: BTreeMap<usize, u64>,
    used_end: usize,
    /// (Waiter, awaited stream) to the time of the last wait.
    waited: BTreeMap<(usize, usize), u64>,
    clock: u64,
    waits: Vec<(usize, usize)>,
}

impl Naive {
    fn holes(&self) -> Vec<Hole> {
        let mut holes: Vec<Hole> = Vec::new();
        for (at, cell) in self.cells.iter().enumerate() {
            let Cell::Free(marks) = cell else { continue };
            match holes.last_mut() {
                Some(hole) if hole.start + hole.len == at && hole.marks.users == marks.users => {
                    hole.len += 1;
                    hole.marks.since = hole.marks.since.max(marks.since);
                }
                _ => holes.push(Hole { start: at, len: 1, marks: marks.clone() }),
            }
        }
        holes
    }

    /// Gives the cells of a hole the age of the youngest cell.
    fn settle(&mut self) {
        for hole in self.holes() {
            self.cells[hole.start..hole.start + hole.len].fill(Cell::Free(hole.marks));
        }
    }

    fn merge_across_streams(&mut self) {
        let mut at = 0;
        while at < self.cells.len() {
            let row = self.cells[at..].iter().map_while(|cell| match cell {
                Cell::Free(marks) => Some(marks.clone()),
                Cell::Live => None,
            });
            let row: Vec<Marks> = row.collect();
            let mut all = Marks::default();
            for marks in &row {
                all.users.extend(&marks.users);
                all.since = all.since.max(marks.since);
            }
            self.cells[at..at + row.len()].fill(Cell::Free(all));
            at += row.len() + 1;
        }
    }

    fn missing(&self, waiter: usize, on: usize, since: u64) -> bool {
        on != waiter && self.waited.get(&(waiter, on)).is_none_or(|&waited| waited <= since)
    }

    /// The streams to wait for, without streams that other streams among them have waited for.
    fn fewest(&self, waiter: usize, users: impl Iterator<Item = (usize, u64)>) -> BTreeSet<usize> {
        let mut left: BTreeMap<usize, u64> =
            users.filter(|&(on, since)| self.missing(waiter, on, since)).collect();
        let mut chosen = BTreeSet::new();
        while !left.is_empty() {
            let stands_for = |by: usize| -> Vec<usize> {
                let known = left.iter().filter(|&(&on, &since)| !self.missing(by, on, since));
                known.map(|(&on, _)| on).collect()
            };
            let by_worth =
                |&(by, since): &(usize, u64)| (stands_for(by).len(), since, std::cmp::Reverse(by));
            let users = left.iter().map(|(&by, &since)| (by, since));
            let (best, _) = users.max_by_key(by_worth).unwrap();
            let gone = stands_for(best);
            chosen.insert(best);
            left.retain(|on, _| !gone.contains(on));
        }
        chosen
    }

    fn waits_for(&self, waiter: usize, marks: &Marks) -> BTreeSet<usize> {
        self.fewest(waiter, marks.users.iter().map(|&on| (on, marks.since)))
    }

    fn waits_beyond(&self, waiter: usize) -> BTreeSet<usize> {
        if self.cells.len() >= self.used_end {
            return BTreeSet::new();
        }
        self.fewest(waiter, self.beyond.iter().map(|(&on, &since)| (on, since)))
    }

    fn best(&self, len: usize, on: usize, holes: &[Hole]) -> Option<(usize, BTreeSet<usize>)> {
        // The best fit of each set of users; of these, one that needs no wait, if there is one.
        let mut fits: BTreeMap<_, &Hole> = BTreeMap::new();
        for hole in holes.iter().filter(|hole| hole.len >= len) {
            let best = fits.entry(&hole.marks.users).or_insert(hole);
            if (hole.len, hole.start) < (best.len, best.start) {
                *best = hole;
            }
        }
        let ranked = fits.values().map(|hole| {
            let waits = self.waits_for(on, &hole.marks);
            (!waits.is_empty(), hole.len, hole.start, waits)
        });
        ranked.min().map(|(_, _, start, waits)| (start, waits))
    }

    /// Runs of cells for a block, and the streams to wait for.
    fn place(&mut self, len: usize, on: usize) -> (Vec<Range<usize>>, BTreeSet<usize>) {
        let holes = self.holes();
        let own = holes.iter().filter(|hole| hole.marks.users == BTreeSet::from([on]));
        let own: Vec<Hole> = own.cloned().collect();
        let found = self.best(len, on, &own).or_else(|| self.best(len, on, &holes));
        if let Some((start, waits)) = found {
            return (std::iter::once(start..start + len).collect(), waits);
        }
        let kinds: BTreeSet<_> = holes.iter().map(|hole| &hole.marks.users).collect();
        if kinds.len() > 1 {
            self.merge_across_streams();
        }
        let holes = self.holes();
        if let Some((start, waits)) = self.best(len, on, &holes) {
            return (std::iter::once(start..start + len).collect(), waits);
        }
        self.stitch(len, on, &holes).unwrap_or_else(|| {
            let top = self.cells.len();
            (std::iter::once(top..top + len).collect(), self.waits_beyond(on))
        })
    }

    fn stitch(
        &self,
        len: usize,
        on: usize,
        holes: &[Hole],
    ) -> Option<(Vec<Range<usize>>, BTreeSet<usize>)> {
        let run = |hole: &Hole| {
            let end = (hole.start + hole.len) / PAGE * PAGE;
            end.saturating_sub(hole.start.next_multiple_of(PAGE))
        };
        let mut left: Vec<&Hole> = holes.iter().filter(|hole| run(hole) > 0).collect();
        if len < PAGE || left.is_empty() {
            return None;
        }
        left.sort_by_key(|hole| std::cmp::Reverse((hole.len, hole.start)));
        let (mut runs, mut waits, mut missing) = (Vec::new(), BTreeSet::new(), len);
        while missing > 0 && !left.is_empty() {
            // All of the largest holes while they are too small, then the smallest hole that is
            // large enough.
            let enough = (0..left.len()).filter(|&index| run(left[index]) >= missing);
            let rest = enough.min_by_key(|&index| (left[index].len, left[index].start));
            let index = if run(left[0]) < missing { 0 } else { rest.unwrap() };
            let hole = left.remove(index);
            let (start, len) = (hole.start.next_multiple_of(PAGE), run(hole).min(missing));
            runs.push(start..start + len);
            waits.extend(self.waits_for(on, &hole.marks));
            missing -= len;
        }
        if missing > 0 {
            waits.extend(self.waits_beyond(on));
            let page_end = self.cells.len().next_multiple_of(PAGE);
            runs.push(page_end..page_end + missing);
        }
        Some((runs, waits))
    }

    fn allocate(&mut self, on: usize, requested_bytes: usize) -> Vec<Range<usize>> {
        let (runs, waits) = self.place(requested_bytes.max(1).div_ceil(CELL), on);
        for awaited in waits {
            self.clock += 1;
            // A wait covers also the work that the awaited stream has waited for.
            let known: Vec<(usize, u64)> = self
                .waited
                .range((awaited, 0)..(awaited + 1, 0))
                .map(|(&(_, third), &until)| (third, until))
                .collect();
            for (third, until) in known {
                let own = self.waited.entry((on, third)).or_default();
                *own = until.max(*own);
            }
            self.waited.insert((on, awaited), self.clock);
            self.waits.push((on, awaited));
        }
        // Cells skipped before the end of a page count as freed by the new block's stream.
        let skipped = Marks { users: BTreeSet::from([on]), since: self.clock };
        for run in &runs {
            if run.end > self.cells.len() {
                self.cells.resize(run.end, Cell::Free(skipped.clone()));
            }
            self.cells[run.clone()].fill(Cell::Live);
        }
        self.blocks.push((runs.clone(), BTreeSet::from([on])));
        runs.iter().map(|run| run.start * CELL..run.end * CELL).collect()
    }

    fn free(&mut self, index: usize) {
        let (runs, users) = self.blocks.swap_remove(index);
        self.clock += 1;
        let marks = Marks { users, since: self.clock };
        for run in runs {
            self.cells[run].fill(Cell::Free(marks.clone()));
        }
        self.settle();
        if let Some(Cell::Free(_)) = self.cells.last() {
            self.used_end = self.used_end.max(self.cells.len());
        }
        while let Some(Cell::Free(marks)) = self.cells.last() {
            for &on in &marks.users {
                let since = self.beyond.entry(on).or_default();
                *since = marks.since.max(*since);
            }
            self.cells.pop();
        }
    }

    fn step(&mut self, op: StreamOp) -> Vec<Range<usize>> {
        let count = self.blocks.len();
        match op {
            StreamOp::Allocate(on, size_bytes) => return self.allocate(on, size_bytes),
            StreamOp::UseOn(index, on) if count > 0 => {
                self.blocks[index % count].1.insert(on);
            }
            StreamOp::Free(index) if count > 0 => self.free(index % count),
            // Cached and charged memory has no effect.
            _ => {}
        }
        Vec::new()
    }
}

proptest! {
    #[test]
    fn places_and_waits_are_those_of_the_naive_one(program in stream_program()) {
        let (mut world, mut naive) = (StreamWorld::new(), Naive::default());
        for &op in &program {
            let expected = naive.step(op);
            prop_assert_eq!(world.step(op).unwrap(), expected, "{:?}", op);
            world.memory.check_invariants();
        }
        prop_assert_eq!(world.waits(), naive.waits);
    }
}
