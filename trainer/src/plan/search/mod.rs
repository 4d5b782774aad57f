//! The planner: the fastest way to run a training that fits the budget.
//!
//! The best plan runs the whole batch at once and keeps everything for backward. If that plan does
//! not fit, the search tries smaller micro-batches, and ways to keep less: recomputing cheap
//! results, recomputing as few blocks as possible, or offloading saved tensors to the host. Each
//! choice takes the largest micro-batches that fit. The plan is the choice with the least simulated
//! time.

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

/// The freedom to split batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Splitting {
    Allowed,
    Forbidden,
    /// Only parts of exactly this number of samples are allowed.
    Shards(usize),
}

/// A model needs at least this number of blocks for each block in a recomputed group.
const BLOCKS_PER_RUN_LEN: usize = 8;

/// Largest number of blocks in a recomputed group. In a model of 80 blocks that each save five
/// times the bytes of their input, groups of four need the least memory.
const AT_ONCE_MAX: usize = 4;

/// The search tries smaller and smaller block counts. It stops when this number of consecutive
/// counts needed more memory than the best count so far. With a smaller count, fewer inputs and
/// more saved tensors are kept. So the need first falls and then rises, except for small
/// differences from the placement of blocks.
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
    /// Number of blocks that may be recomputed.
    block_count: usize,
    /// True if the update may be fused. A fused update requires a single model, a division and an
    /// optimizer that support it, sequential summation, and an allocator that can promise memory.
    can_fuse: bool,
    /// Every candidate that was rehearsed, in order.
    tried: Vec<Candidate>,
    forecasts: Forecasts,
}

/// Knobs that were rehearsed, with their forecast.
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

    /// A search that uses, and adds to, shared forecasts.
    pub(crate) fn sharing(self, forecasts: &Forecasts) -> Self {
        Search { forecasts: forecasts.clone(), ..self }
    }

    /// The plan for batches of `batch_size`, in shards or in micro-batches of at most
    /// `micro_batch_max` samples. A batch stays whole if splitting is forbidden, or if a rehearsal
    /// shows that its samples are coupled.
    ///
    /// # Errors
    /// `DoesNotFit` if there is no plan.
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

    /// The least budget for which [`Search::find`] has a plan for batches of `batch_size`. With one
    /// byte less there is no plan.
    ///
    /// If nothing fits, a search tries the same candidates for every budget. So a search whose
    /// budget is the least peak of these candidates finds the candidate with this peak.
    ///
    /// # Errors
    /// Errors of a rehearsal.
    pub(crate) fn least_budget(mut self, batch_size: usize, splitting: Splitting) -> Result<usize> {
        self.budget_bytes = 0;
        let fitting = self.fastest(batch_size, batch_size, splitting)?;
        assert!(fitting.is_none(), "nothing fits a budget of 0");
        Ok(self.least().forecast.peak_bytes)
    }

    /// The fastest candidate that fits.
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
            // Recomputing all blocks does not always need least memory, because the input of each
            // recomputed block is kept.
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
        // A trial computes the last micro-batch twice, which is only worth it if no other plan
        // fits.
        let may_fuse = self.can_fuse && !(has_plan && looks_first(options, scaler));
        found.push(if may_fuse { self.fused(sizes[0])? } else { None });
        let by_time =
            |a: &Candidate, b: &Candidate| a.forecast.seconds.total_cmp(&b.forecast.seconds);
        Ok(found.into_iter().flatten().min_by(by_time))
    }

    /// The micro-batch that is fastest without recomputation, among the batch size, its half, its
    /// quarter and so on. In a pipeline, stages wait less for small micro-batches.
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
    /// `Setting` for impossible knobs; `DoesNotFit`.
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

    /// The candidate with a fused update, in micro-batches of this size, and with the least
    /// recomputation that fits. Smaller micro-batches do not help, because with several of them all
    /// gradients exist after the first.
    fn fused(&mut self, micro_batch: usize) -> Result<Option<Candidate>> {
        let knobs = Knobs { micro_batch, fused_update: true, ..Knobs::default() };
        let kept = match self.rehearse(knobs) {
            // Backward reads a parameter that no leaf announces.
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

    /// The candidate that fits with the least recomputation, but more than in `knobs`. If
    /// recomputing everything is not enough, it also has the fewest offloaded blocks that fit.
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

    /// Largest number of blocks in a recomputed group. A block saves about ten times the bytes of
    /// its input. In a model with few blocks, recomputing a group needs more memory than the inputs
    /// that the group does not keep.
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

    /// The knobs that fit a step with the same micro-batch, with the least recomputation and
    /// offloading, but more than in `knobs`. With `wants_all`, everything is recomputed and
    /// offloaded.
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

    /// Levels of recomputation and offloading, from nothing to everything.
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

    /// The candidate with the largest of these sizes that fits with offloading, and with the fewest
    /// offloaded blocks. `recomputed` gives the recomputation. Sizes are in falling order.
    fn offloaded(&mut self, sizes: &[usize], recomputed: Thrift) -> Result<Option<Candidate>> {
        let (mut sizes, thrift) = (sizes, recomputed.offloading(self.block_count));
        while let Some(all) = self.largest(sizes, thrift)? {
            let micro_batch = all.knobs.micro_batch;
            let fewest = self.fewest_offloaded(0, all)?;
            if self.fits(&fewest) {
                return Ok(Some(fewest));
            }
            // Parts of this size need too much host memory; smaller sizes are next.
            sizes = &sizes[sizes.partition_point(|&size| size >= micro_batch)..];
        }
        Ok(None)
    }

    /// The candidate with the largest of these sizes that fits the device with this `thrift`. Sizes
    /// are in falling order.
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
            // The smallest size does not always need least memory: sizes with the same number of
            // pages need the same, and a second micro-batch needs a second set of gradients.
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

    /// The candidate with the largest micro-batch that fits with `thrift` for some blocks, of a
    /// model that fits neither with `thrift` for no block nor with `thrift` for all. `knob` counts
    /// the blocks. Only the largest and the smallest size are tried. The search begins with all
    /// blocks and tries fewer as long as the need falls.
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

    /// The candidate that fits with the fewest recomputed blocks, but more than `count`. `all`,
    /// with every block recomputed, fits.
    fn fewest_blocks(&mut self, count: usize, all: Candidate) -> Result<Candidate> {
        self.fewest(count, all, RECOMPUTED, Self::fits)
    }

    /// The candidate that fits the device with the fewest offloaded blocks, but more than `count`.
    /// `all`, with every block offloaded, fits.
    fn fewest_offloaded(&mut self, count: usize, all: Candidate) -> Result<Candidate> {
        self.fewest(count, all, OFFLOADED, Self::fits_device)
    }

    /// The candidate with the smallest value of `knob` above `count` for which `fits` returns true.
    /// `fits` returns true for the candidate `all`.
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

    /// Bytes of host memory to which tensors may be offloaded.
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

    /// The candidate that needs least memory among the candidates that fit the host. Ties go to the
    /// larger parts, and then to the fewer blocks.
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

/// Number of `sizes` that are larger than the micro-batch of a candidate. Sizes are in falling
/// order.
fn count_above(sizes: &[usize], found: Option<&Candidate>) -> usize {
    let end = found.map_or(0, |found| found.knobs.micro_batch);
    sizes.iter().take_while(|&&size| size > end).count()
}

/// Different part sizes for cutting `batch_size` into equal parts, the largest first.
fn part_sizes(batch_size: usize) -> Vec<usize> {
    let mut sizes: Vec<usize> = (1..=batch_size).map(|parts| batch_size.div_ceil(parts)).collect();
    sizes.dedup();
    sizes
}
