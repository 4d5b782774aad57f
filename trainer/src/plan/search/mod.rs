//! The planner: the fastest way to run a training that fits the budget.
//!
//! A batch is at best whole, with everything kept for backward. What does not fit is cut into the
//! largest parts that do, or keeps less: what is cheap is recomputed, or the fewest blocks beside
//! that with which the largest parts fit, or what blocks save waits in memory of the host. Of these
//! the one with least simulated time is the plan.

mod answer;
pub(crate) mod forecasts;
mod remedies;

use lowtide_nn::optim::Stateful;

use crate::error::{DoesNotFit, Remedy, Result, TrainError};
use crate::plan::Plan;
use crate::plan::events::PlannedEvent;
use crate::plan::forecast::Forecast;
use crate::plan::knobs::{Knobs, Thrift, block_count};
use crate::plan::rehearsal::RunInputs;
use crate::plan::search::forecasts::Forecasts;
use crate::step::fused::looks_first;
use crate::step::summation::Summation;
use crate::task::contract::Task;

/// Whether batches may be split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Splitting {
    Allowed,
    Forbidden,
    /// Only parts of this many samples are allowed.
    Shards(usize),
}

/// How many blocks a model has at least for each that is recomputed at once with others.
const BLOCKS_PER_RUN_LEN: usize = 8;

/// Blocks that are recomputed at once, at most: four of 80 need least where a block computes five
/// times what goes into it.
const AT_ONCE_MAX: usize = 4;

/// Counts of blocks one after the other that need more than one before them, after which fewer
/// blocks are not tried: with each that is kept, less is there of inputs and more of what it saves,
/// so that the need falls and rises once, up to how blocks lie in memory.
const OVER_COUNT_MAX: usize = 2;

/// A knob that counts blocks.
type CountOf = fn(&mut Knobs) -> &mut usize;

const RECOMPUTED: CountOf = |knobs| &mut knobs.recomputed_blocks;
const OFFLOADED: CountOf = |knobs| &mut knobs.offloaded_blocks;

/// A search for the plan of a run.
pub(crate) struct Search<'a, T, O> {
    inputs: RunInputs<'a, T, O>,
    events: &'a [PlannedEvent<'a>],
    budget_bytes: usize,
    /// Blocks that may be recomputed.
    block_count: usize,
    /// True if the update may be fused: of one model, by a division that allows it, summed
    /// micro-batch after micro-batch, by an optimizer that can, from an allocator that promises.
    can_fuse: bool,
    /// What was rehearsed, in that order.
    tried: Vec<Candidate>,
    forecasts: Forecasts,
}

/// Knobs that were rehearsed.
#[derive(Clone, Debug)]
struct Candidate {
    knobs: Knobs,
    forecast: Forecast,
}

impl<'a, T: Task + Clone, O: Stateful + Clone> Search<'a, T, O> {
    pub(crate) fn new(
        inputs: RunInputs<'a, T, O>,
        events: &'a [PlannedEvent<'a>],
        budget_bytes: usize,
    ) -> Self {
        let RunInputs { device, task, optimizer, options, division, .. } = inputs;
        let block_count = block_count(task.clone().parameters(), &division.policies());
        let is_sequential = Summation::of(options) == Summation::Sequential;
        let can_fuse = task.turns().is_empty()
            && division.freedom().fused_update
            && is_sequential
            && optimizer.can_fuse()
            && device.allocator().can_promise();
        let (tried, forecasts) = (Vec::new(), Forecasts::default());
        Search { inputs, events, budget_bytes, block_count, can_fuse, tried, forecasts }
    }

    /// A search that shares what rehearsals show with others.
    pub(crate) fn sharing(self, forecasts: &Forecasts) -> Self {
        Search { forecasts: forecasts.clone(), ..self }
    }

    /// The plan for batches of `batch_size` in parts of at most `micro_batch_max`, or in shards;
    /// where splitting is forbidden, or a rehearsal shows that samples are coupled, of the whole.
    ///
    /// # Errors
    /// `DoesNotFit` when there is none.
    pub(crate) fn find(
        mut self,
        batch_size: usize,
        micro_batch_max: usize,
        splitting: Splitting,
    ) -> Result<Plan> {
        match self.fastest(batch_size, micro_batch_max, splitting)? {
            Some(found) => self.plan(batch_size, found),
            None => Err(self.does_not_fit(splitting)?.into()),
        }
    }

    /// The least budget for which [`Search::find`] has a plan for batches of `batch_size`: with a
    /// byte less it has none.
    ///
    /// A search of which nothing fits tries the same whatever the budget is, and in the budget of
    /// what needs least of that, it comes as far as there.
    ///
    /// # Errors
    /// Errors of a rehearsal.
    pub(crate) fn least_budget(mut self, batch_size: usize, splitting: Splitting) -> Result<usize> {
        self.budget_bytes = 0;
        let fitting = self.fastest(batch_size, batch_size, splitting)?;
        assert!(fitting.is_none(), "nothing fits a budget of 0");
        Ok(self.least().forecast.peak_bytes)
    }

    /// The fastest that fits.
    fn fastest(
        &mut self,
        batch_size: usize,
        micro_batch_max: usize,
        splitting: Splitting,
    ) -> Result<Option<Candidate>> {
        let mut sizes = match splitting {
            Splitting::Allowed => part_sizes(batch_size),
            Splitting::Forbidden => vec![batch_size],
            Splitting::Shards(leaf) => vec![leaf],
        };
        if splitting == Splitting::Allowed {
            sizes.retain(|&size| size <= micro_batch_max);
            let first = Knobs { micro_batch: sizes[0], ..Knobs::default() };
            if self.rehearse(first)?.forecast.coupling.is_some() {
                sizes = vec![batch_size];
            } else if self.inputs.division.freedom().small_is_faster {
                let fastest = self.fastest_size(batch_size)?;
                sizes.retain(|&size| size <= fastest);
            }
        }
        let mut larger = &sizes[..];
        let kept = self.largest(larger, Thrift::NONE)?;
        larger = &larger[..count_above(larger, kept.as_ref())];
        let cheap = self.largest(larger, Thrift::CHEAP)?;
        larger = &larger[..count_above(larger, cheap.as_ref())];
        let recomputed = match self.largest(larger, Thrift::blocks(self.block_count))? {
            Some(all) => Some(self.fewest_blocks(0, all)?),
            // Not always all blocks need least: the inputs of those are kept that are recomputed.
            None if kept.is_none() && cheap.is_none() => {
                self.some_blocks(&sizes, Thrift::blocks, RECOMPUTED)?
            }
            None => None,
        };
        let mut found = vec![kept, cheap, recomputed];
        for at_once in 2..=self.at_once_max() {
            let best = found.iter().flatten().map(|of| of.knobs.micro_batch).max();
            let end = best.map_or(sizes.len(), |best| sizes.partition_point(|&size| size > best));
            let thrift = Thrift::blocks(self.block_count).at_once(at_once);
            if let Some(all) = self.largest(&sizes[..end], thrift)? {
                found.push(Some(self.fewest_blocks(0, all)?));
            }
        }
        if self.can_offload() {
            found.push(self.offloaded(larger, Thrift::CHEAP)?);
            larger = &larger[..count_above(larger, found[2].as_ref())];
            let recomputed = Thrift::blocks(self.block_count);
            found.push(self.offloaded(larger, recomputed)?);
            for recomputed in [recomputed, Thrift::CHEAP] {
                if found.iter().all(Option::is_none) {
                    let offloading = |count| recomputed.offloading(count);
                    found.push(self.some_blocks(&sizes, offloading, OFFLOADED)?);
                }
            }
        }
        let has_plan = found.iter().any(Option::is_some);
        let &RunInputs { options, scaler, .. } = &self.inputs;
        // Twice the work is worth it only where nothing else helps.
        let may_fuse = self.can_fuse && !(has_plan && looks_first(options, scaler));
        found.push(if may_fuse { self.fused(sizes[0])? } else { None });
        let by_time =
            |a: &Candidate, b: &Candidate| a.forecast.seconds.total_cmp(&b.forecast.seconds);
        Ok(found.into_iter().flatten().min_by(by_time))
    }

    /// The fastest of the batch size, its half, its quarter and so on, where nothing is recomputed:
    /// the stages of a pipeline wait less for small parts.
    fn fastest_size(&mut self, batch_size: usize) -> Result<usize> {
        let (mut fastest, mut least_seconds) = (batch_size, f64::INFINITY);
        let halves =
            std::iter::successors(Some(batch_size), |&size| (size > 1).then(|| size.div_ceil(2)));
        for micro_batch in halves {
            let knobs = Knobs { micro_batch, ..Knobs::default() };
            let seconds = self.rehearse(knobs)?.forecast.seconds;
            if seconds < least_seconds {
                (fastest, least_seconds) = (micro_batch, seconds);
            }
        }
        Ok(fastest)
    }

    /// The plan for batches of `batch_size` with these knobs.
    ///
    /// # Errors
    /// `Setting` for knobs that cannot be, `DoesNotFit`.
    pub(crate) fn find_with(
        mut self,
        batch_size: usize,
        knobs: Knobs,
        splitting: Splitting,
    ) -> Result<Plan> {
        let wrong =
            |problem: String| Err(TrainError::Setting { place: "knobs".to_owned(), problem });
        let (blocks, size) = (self.block_count, knobs.micro_batch);
        if knobs.recomputed_blocks.max(knobs.offloaded_blocks) > blocks {
            return wrong(format!("{knobs}: the model has {blocks}"));
        }
        if knobs.offloaded_blocks > 0 && !self.can_offload() {
            return wrong(format!("{knobs}: there is no memory to offload to"));
        }
        if !(1..=batch_size).contains(&size) {
            return wrong(format!("micro-batches of {size} of a batch of {batch_size}"));
        }
        if knobs.fused_update && !self.can_fuse {
            return wrong("this optimizer updates all parameters together".to_owned());
        }
        if let Splitting::Shards(leaf) = splitting
            && size != leaf
        {
            return wrong(format!("micro-batches of {size}, where a leaf has {leaf} samples"));
        }
        let found = self.rehearse(knobs)?;
        let may_split = match splitting {
            Splitting::Allowed => found.forecast.coupling.is_none(),
            Splitting::Forbidden => false,
            Splitting::Shards(_) => true,
        };
        if size < batch_size && !may_split {
            return wrong("the batch may not be split".to_owned());
        }
        let (host_bytes, needed_bytes) = (self.host_bytes(), found.forecast.offloaded_peak_bytes);
        if needed_bytes > host_bytes {
            let remedy = Remedy::OffloadBudget(needed_bytes);
            let error = DoesNotFit::beside(host_bytes, needed_bytes, knobs, remedy);
            return Err(Box::new(error).into());
        }
        if !self.fits(&found) {
            return Err(self.does_not_fit(splitting)?.into());
        }
        self.plan(batch_size, found)
    }

    /// With a fused update, in parts of this size, and the least recomputation. Smaller parts do
    /// not help: all gradients are there after the first of several.
    fn fused(&mut self, micro_batch: usize) -> Result<Option<Candidate>> {
        let knobs = Knobs { micro_batch, fused_update: true, ..Knobs::default() };
        let kept = match self.rehearse(knobs) {
            // Backward reads a parameter that no leaf of it tells of.
            Err(error) if error.out_of_memory().is_none() => {
                self.can_fuse = false;
                return Ok(None);
            }
            kept => kept?,
        };
        if self.fits(&kept) {
            return Ok(Some(kept));
        }
        self.least_recomputation(knobs)
    }

    /// The candidate that fits with the least recomputed, and if that is not enough the fewest
    /// blocks offloaded, but more than with `knobs`.
    fn least_recomputation(&mut self, knobs: Knobs) -> Result<Option<Candidate>> {
        if !knobs.cheap_recomputed {
            let cheap = self.rehearse(Knobs { cheap_recomputed: true, ..knobs })?;
            if self.fits(&cheap) {
                return Ok(Some(cheap));
            }
        }
        let (blocks, offloaded) = (self.block_count, knobs.offloaded_blocks);
        let recomputed = Thrift::blocks(blocks).offloading(offloaded);
        if knobs.recomputed_blocks < blocks {
            let all = self.rehearse(knobs.keeping(recomputed))?;
            if self.fits(&all) {
                return self.fewest_blocks(knobs.recomputed_blocks, all).map(Some);
            }
        }
        for at_once in knobs.blocks_at_once.max(1) + 1..=self.at_once_max() {
            let all = self.rehearse(knobs.keeping(recomputed.at_once(at_once)))?;
            if self.fits(&all) {
                return self.fewest_blocks(knobs.recomputed_blocks.min(blocks - 1), all).map(Some);
            }
        }
        if !self.can_offload() || offloaded >= blocks {
            return Ok(None);
        }
        let all = self.rehearse(knobs.keeping(recomputed.offloading(blocks)))?;
        if !self.fits_device(&all) {
            return Ok(None);
        }
        let fewest = self.fewest_offloaded(offloaded, all)?;
        Ok(self.fits(&fewest).then_some(fewest))
    }

    /// Blocks that may be recomputed at once. What a block computes takes about ten times what goes
    /// into it: with fewer blocks than that for each of a run, a run needs more than it saves.
    fn at_once_max(&self) -> usize {
        (self.block_count / BLOCKS_PER_RUN_LEN).min(AT_ONCE_MAX)
    }

    /// See [`Trainer::survey`](crate::Trainer::survey).
    ///
    /// # Errors
    /// Errors of a rehearsal.
    pub(crate) fn survey(
        mut self,
        batch_size: usize,
        splitting: Splitting,
        planned: Option<Knobs>,
    ) -> Result<Vec<(Knobs, Forecast)>> {
        let largest = match splitting {
            Splitting::Shards(leaf) => leaf,
            _ => batch_size,
        };
        let halves =
            std::iter::successors(Some(largest), |&size| (size > 1).then(|| size.div_ceil(2)));
        for micro_batch in halves {
            for thrift in self.levels() {
                self.rehearse(Knobs { micro_batch, ..Knobs::default() }.keeping(thrift))?;
            }
            let is_coupled = self.tried[0].forecast.coupling.is_some();
            if splitting != Splitting::Allowed || is_coupled {
                break;
            }
        }
        if let Some(planned) = planned {
            self.rehearse(planned)?;
        }
        // What is copied ahead takes room that is left, so that only a plan says whether there is.
        let row = |of: &Candidate| {
            let is_planned = planned == Some(of.knobs);
            let forecast = if is_planned { self.copying_ahead(of)?.0 } else { of.forecast.clone() };
            Ok((of.knobs, forecast))
        };
        let mut rows: Vec<(Knobs, Forecast)> = self.tried.iter().map(row).collect::<Result<_>>()?;
        rows.sort_by(|(_, a), (_, b)| {
            a.seconds.total_cmp(&b.seconds).then(a.peak_bytes.cmp(&b.peak_bytes))
        });
        let mut least_bytes = usize::MAX;
        rows.retain(|(knobs, forecast)| {
            let needs_less = forecast.peak_bytes < least_bytes;
            least_bytes = least_bytes.min(forecast.peak_bytes);
            needs_less || planned == Some(*knobs)
        });
        Ok(rows)
    }

    /// The least recomputation and offloading, but more than with `knobs`, with which a step in the
    /// same parts fits; or of everything.
    ///
    /// # Errors
    /// Errors of a rehearsal.
    pub(crate) fn recompute_more(mut self, knobs: Knobs, wants_all: bool) -> Result<Option<Knobs>> {
        if !wants_all {
            let least = self.least_recomputation(knobs)?;
            return Ok(least.map(|candidate| candidate.knobs));
        }
        let thrift = Thrift::blocks(self.block_count);
        let offloaded = if self.can_offload() { self.block_count } else { 0 };
        let all = knobs.keeping(thrift.offloading(offloaded));
        let fits = all != knobs && {
            let all = self.rehearse(all)?;
            self.fits(&all)
        };
        Ok(fits.then_some(all))
    }

    /// How much may be recomputed and offloaded, in steps.
    fn levels(&self) -> Vec<Thrift> {
        let (mut levels, blocks) = (vec![Thrift::NONE, Thrift::CHEAP], self.block_count);
        levels.extend((blocks > 0).then(|| Thrift::blocks(blocks)));
        if self.can_offload() {
            levels.extend([Thrift::CHEAP, Thrift::blocks(blocks)].map(|t| t.offloading(blocks)));
        }
        levels
    }

    fn can_offload(&self) -> bool {
        self.inputs.options.offload.is_some() && self.block_count > 0
    }

    /// The largest of these sizes, which fall, that fits with blocks offloaded beside what is
    /// recomputed, with as few as do.
    fn offloaded(&mut self, sizes: &[usize], recomputed: Thrift) -> Result<Option<Candidate>> {
        let (mut sizes, thrift) = (sizes, recomputed.offloading(self.block_count));
        while let Some(all) = self.largest(sizes, thrift)? {
            let micro_batch = all.knobs.micro_batch;
            let fewest = self.fewest_offloaded(0, all)?;
            if self.fits(&fewest) {
                return Ok(Some(fewest));
            }
            // These parts need too much memory of the host; smaller parts are next.
            sizes = &sizes[sizes.partition_point(|&size| size >= micro_batch)..];
        }
        Ok(None)
    }

    /// The largest of these sizes, which fall, that fits the device with as little kept.
    fn largest(&mut self, sizes: &[usize], thrift: Thrift) -> Result<Option<Candidate>> {
        let Some(last) = sizes.len().checked_sub(1) else { return Ok(None) };
        let knobs_at =
            |index: usize| Knobs { micro_batch: sizes[index], ..Knobs::default() }.keeping(thrift);
        let whole = self.rehearse(knobs_at(0))?;
        if self.fits_device(&whole) {
            return Ok(Some(whole));
        }
        let mut found = self.rehearse(knobs_at(last))?;
        if !self.fits_device(&found) {
            // Not always the smallest needs least: of parts that take as many pages the largest
            // does, and a second part needs a second set of gradients.
            for index in 1..last {
                let candidate = self.rehearse(knobs_at(index))?;
                if self.fits_device(&candidate) {
                    return Ok(Some(candidate));
                }
            }
            return Ok(None);
        }
        let (mut over, mut within) = (0, last);
        while within - over > 1 {
            let middle = over.midpoint(within);
            let candidate = self.rehearse(knobs_at(middle))?;
            if self.fits_device(&candidate) {
                (within, found) = (middle, candidate);
            } else {
                over = middle;
            }
        }
        Ok(Some(found))
    }

    /// The largest parts that fit with `thrift` for some of the blocks, where no parts fit with
    /// `thrift` for none or for all of them; `knob` counts these blocks. Of the sizes only the
    /// largest and the smallest are tried. Counts are tried from all blocks down, as long as fewer
    /// blocks need less memory.
    fn some_blocks(
        &mut self,
        sizes: &[usize],
        thrift: impl Fn(usize) -> Thrift,
        knob: CountOf,
    ) -> Result<Option<Candidate>> {
        let ends = [0, sizes.len() - 1].map(|at| sizes[at]);
        for micro_batch in ends {
            let (mut least_bytes, mut over_count) = (usize::MAX, 0);
            for count in (1..=self.block_count).rev() {
                let knobs = Knobs { micro_batch, ..Knobs::default() };
                let candidate = self.rehearse(knobs.keeping(thrift(count)))?;
                if self.fits(&candidate) {
                    return self.fewest(0, candidate, knob, Self::fits).map(Some);
                }
                let is_over = candidate.forecast.peak_bytes > least_bytes;
                over_count = if is_over { over_count + 1 } else { 0 };
                if over_count == OVER_COUNT_MAX {
                    break;
                }
                least_bytes = least_bytes.min(candidate.forecast.peak_bytes);
            }
        }
        Ok(None)
    }

    /// The candidate that fits with fewest blocks recomputed, but more than `count`, where `all`
    /// fits.
    fn fewest_blocks(&mut self, count: usize, all: Candidate) -> Result<Candidate> {
        self.fewest(count, all, RECOMPUTED, Self::fits)
    }

    /// The candidate that fits the device with fewest blocks offloaded, but more than `count`,
    /// where `all` fits.
    fn fewest_offloaded(&mut self, count: usize, all: Candidate) -> Result<Candidate> {
        self.fewest(count, all, OFFLOADED, Self::fits_device)
    }

    /// The candidate that `fits` with least of one of the knobs, but more than `count`.
    fn fewest(
        &mut self,
        count: usize,
        all: Candidate,
        knob: CountOf,
        fits: fn(&Self, &Candidate) -> bool,
    ) -> Result<Candidate> {
        let (mut over, mut found) = (count, all);
        loop {
            let mut knobs = found.knobs;
            let within = *knob(&mut knobs);
            if within - over <= 1 {
                return Ok(found);
            }
            let middle = over.midpoint(within);
            *knob(&mut knobs) = middle;
            let candidate = self.rehearse(knobs)?;
            if fits(self, &candidate) {
                found = candidate;
            } else {
                over = middle;
            }
        }
    }

    fn fits(&self, candidate: &Candidate) -> bool {
        let offloaded_bytes = candidate.forecast.offloaded_peak_bytes;
        self.fits_device(candidate) && offloaded_bytes <= self.host_bytes()
    }

    fn fits_device(&self, candidate: &Candidate) -> bool {
        candidate.forecast.peak_bytes <= self.budget_bytes
    }

    /// Bytes of the host that tensors may be offloaded to.
    fn host_bytes(&self) -> usize {
        let host = self.inputs.options.offload.as_ref();
        host.map_or(0, |host| host.allocator().capacity_bytes())
    }

    /// The candidate with these knobs. Each set of knobs is rehearsed once.
    fn rehearse(&mut self, knobs: Knobs) -> Result<Candidate> {
        if let Some(known) = self.tried.iter().find(|candidate| candidate.knobs == knobs) {
            return Ok(known.clone());
        }
        let forecast = self.forecasts.of(&self.inputs, self.events, knobs, 0)?;
        let candidate = Candidate { knobs, forecast };
        self.tried.push(candidate.clone());
        Ok(candidate)
    }

    /// The candidate that needs least memory among those that fit the host. On ties the planner's
    /// preference decides: the largest parts, and the fewest blocks.
    fn least(&self) -> &Candidate {
        let order =
            |candidate: &&Candidate| (candidate.forecast.peak_bytes, preference(&candidate.knobs));
        let host_bytes = self.host_bytes();
        let fits_host = |of: &&Candidate| of.forecast.offloaded_peak_bytes <= host_bytes;
        let least = self.tried.iter().filter(fits_host).min_by_key(order);
        least.expect("a batch has at least one part, kept on the device")
    }
}

/// A key by which preferred knobs sort first: larger parts, then fewer measures to save memory.
fn preference(knobs: &Knobs) -> (usize, bool, usize, usize, usize, bool) {
    let &Knobs { cheap_recomputed, recomputed_blocks, offloaded_blocks, fused_update, .. } = knobs;
    let (parts, at_once) = (usize::MAX - knobs.micro_batch, knobs.blocks_at_once);
    (parts, fused_update, offloaded_blocks, recomputed_blocks, at_once, cheap_recomputed)
}

/// How many of `sizes`, which fall, are larger than those of a candidate.
fn count_above(sizes: &[usize], found: Option<&Candidate>) -> usize {
    let end = found.map_or(0, |found| found.knobs.micro_batch);
    sizes.iter().take_while(|&&size| size > end).count()
}

/// Different ways to cut `batch_size` into equal parts, the largest parts first.
fn part_sizes(batch_size: usize) -> Vec<usize> {
    let mut sizes: Vec<usize> = (1..=batch_size).map(|parts| batch_size.div_ceil(parts)).collect();
    sizes.dedup();
    sizes
}
