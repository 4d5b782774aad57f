//! Softmax cross-entropy of logits `[outer, classes, inner]` with labels `[outer, inner]`.
//!
//! - forward: lse = max + ln Σ_c exp(x`[c]` - max) of each position; the loss is the sum over the
//!   positions that count, see `mod.rs`.
//! - backward: dx`[c]` = dy · (p`[c]` · (a + bW) - a · `[c = label]` - b · w`[c]`), and 0 for
//!   positions that do not count, with p = exp(x - lse), a = (1 - ε) · w`[label]`, b = ε / C and W
//!   = Σ w.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::cpu::chunk::{Chunked, for_each_chunk, for_each_chunk2};
use crate::cpu::lines::{AllLines, Blocks, Lanes, Lines, LinesKernel, load, store};
use crate::cpu::math::SimdFloat;
use crate::cpu::pool::Pool;
use crate::cpu::simd::Fused;
use crate::dtype::{Element, Float};

/// The labels of the positions and the options that interpret them.
#[derive(Clone, Copy)]
pub(super) struct Targets<'a, E> {
    pub(super) blocks: Blocks,
    pub(super) labels: &'a [i64],
    pub(super) ignore_index: i64,
    pub(super) smoothing: f64,
    pub(super) weight: Option<&'a [E]>,
}

impl<'a, E: Element<Compute: SimdFloat>> Targets<'a, E> {
    pub(super) fn class_count(&self) -> usize {
        self.blocks.len
    }

    /// The label of a position; `None` if the position does not count, an error if the label is no
    /// class.
    #[inline(always)]
    pub(super) fn label(&self, position: usize) -> Result<Option<usize>, usize> {
        let label = self.labels[position];
        if label == self.ignore_index {
            return Ok(None);
        }
        match usize::try_from(label) {
            Ok(label) if label < self.class_count() => Ok(Some(label)),
            _ => Err(position),
        }
    }

    #[inline(always)]
    pub(super) fn weight_of(&self, class: usize) -> E::Compute {
        self.weight.map_or(E::Compute::ONE, |weight| weight[class].cast())
    }

    /// The sum W in the module's formula.
    fn weight_sum(&self) -> f64 {
        match self.weight {
            Some(weight) => weight.iter().map(|w| w.to_f64()).sum(),
            None => self.class_count() as f64,
        }
    }

    /// Checks all labels. The error is the first position whose label is neither a class nor the
    /// ignored one.
    pub(super) fn check(&self) -> Result<(), usize> {
        (0..self.labels.len()).try_for_each(|position| self.label(position).map(drop))
    }

    /// The index of the first position of `lines`.
    #[inline(always)]
    fn position(&self, lines: &Lines) -> usize {
        position(self.blocks, lines)
    }

    /// The targets of `positions` positions, from row or slab `from` on.
    pub(super) fn part(&self, from: usize, positions: usize) -> Self {
        let first = from * self.blocks.inner;
        Targets { labels: &self.labels[first..first + positions], ..*self }
    }
}

/// The index of the first position of `lines`.
#[inline(always)]
pub(super) fn position(blocks: Blocks, lines: &Lines) -> usize {
    let slab_len = blocks.len * blocks.inner;
    lines.start / slab_len * blocks.inner + lines.start % slab_len
}

/// The class weights of the next line, for `len` classes from `class` on; the rest is 0.
#[inline(always)]
pub(super) fn weights<E: Element<Compute: SimdFloat>, const W: usize>(
    weight: Option<&[E]>,
    lines: &Lines,
    class: &mut usize,
    len: usize,
) -> [E::Compute; W] {
    let (zero, one) = (E::Compute::ZERO, E::Compute::ONE);
    let (mut line, first) = ([zero; W], *class);
    match (lines.lanes, weight) {
        (Lanes::Columns, _) => line = [weight.map_or(one, |weight| weight[first].cast()); W],
        (Lanes::Row, Some(weight)) => load(&weight[first..first + len], zero, &mut line),
        (Lanes::Row, None) => line[..len].fill(one),
    }
    *class += if lines.lanes == Lanes::Row { len } else { 1 };
    line
}

/// The largest logit of each reduction, and `Σ exp(x - max)`.
#[inline(always)]
pub(super) fn exponentials<E: Element<Compute: SimdFloat>, F: Fused, const W: usize>(
    lines: &Lines,
    x: &[E],
) -> ([E::Compute; W], [E::Compute; W]) {
    let (zero, low) = (E::Compute::ZERO, E::Compute::NEG_INFINITY);
    let (mut line, mut max, mut sum) = ([zero; W], [low; W], [zero; W]);
    for places in lines.places() {
        load(&x[places], low, &mut line);
        for lane in 0..W {
            max[lane] = line[lane].maximum(max[lane]);
        }
    }
    lines.fold(&mut max, Float::maximum);
    for places in lines.places() {
        load(&x[places], low, &mut line);
        for lane in 0..W {
            sum[lane] += (line[lane] - max[lane]).exp_in::<F>();
        }
    }
    lines.fold(&mut sum, |a, b| a + b);
    (max, sum)
}

/// The log-sum-exp of the results of [`exponentials`].
#[inline(always)]
pub(super) fn log_sum_exp<T: Float>(max: T, sum: T) -> T {
    // The logits are all -∞, or contain ∞ or NaN. The shift would make each of these NaN.
    if max.is_finite() { max + sum.ln() } else { max }
}

/// Elements of f64 scratch of [`forward`]: a partial sum and a count for each task.
pub(super) fn forward_workspace_len(blocks: Blocks) -> usize {
    2 * blocks.outer.div_ceil(blocks.outer_per_task())
}

struct Forward<'a, E: Element> {
    targets: Targets<'a, E>,
    x: &'a [E],
    lse: &'a mut [E::Compute],
    /// The sum and the count.
    sums: &'a mut [f64],
    bad_position: &'a mut usize,
}

impl<E: Element<Compute: SimdFloat>> LinesKernel<E::Compute> for Forward<'_, E> {
    fn extent(&self) -> (Blocks, usize) {
        let blocks = self.targets.blocks;
        (blocks, self.lse.len() / blocks.inner)
    }

    #[inline(always)]
    fn lines<F: Fused, const W: usize>(&mut self, lines: &Lines) {
        let (zero, targets) = (E::Compute::ZERO, &self.targets);
        let mut line = [zero; W];
        let (max, sum) = exponentials::<E, F, W>(lines, self.x);
        // Σ w · (x - max).
        let mut weighted = [zero; W];
        if targets.smoothing > 0.0 {
            let mut class = 0;
            for places in lines.places() {
                let weights = weights::<E, W>(targets.weight, lines, &mut class, places.len());
                load(&self.x[places], zero, &mut line);
                for lane in 0..W {
                    if weights[lane] != zero {
                        weighted[lane] += weights[lane] * (line[lane] - max[lane]);
                    }
                }
            }
            lines.fold(&mut weighted, |a, b| a + b);
        }
        let position = targets.position(lines);
        for lane in 0..lines.reductions() {
            let (log, lse) = (sum[lane].ln(), log_sum_exp(max[lane], sum[lane]));
            self.lse[position + lane] = lse;
            let label = match targets.label(position + lane) {
                Ok(Some(label)) => label,
                Ok(None) => continue,
                Err(position) => {
                    *self.bad_position = position.min(*self.bad_position);
                    continue;
                }
            };
            let weight = targets.weight_of(label).to_f64();
            let logit = self.x[lines.start + lane + label * targets.blocks.inner].to_f64();
            let mut loss = (1.0 - targets.smoothing) * weight * (lse.to_f64() - logit);
            if targets.smoothing > 0.0 {
                let rest = targets.weight_sum() * log.to_f64() - weighted[lane].to_f64();
                loss += targets.smoothing / targets.class_count() as f64 * rest;
            }
            self.sums[0] += loss;
            self.sums[1] += weight;
        }
    }
}

/// Overwrites `lse`. Returns the sum and the count.
///
/// # Errors
/// The first position whose label is neither a class nor the ignored label.
pub(super) fn forward<E: Element<Compute: SimdFloat>>(
    pool: &Pool,
    targets: &Targets<'_, E>,
    x: &[E],
    lse: &mut [E::Compute],
    workspace: &mut [f64],
) -> Result<[f64; 2], usize> {
    let blocks = targets.blocks;
    let outer = blocks.outer_per_task();
    let (chunk_len, x_len) = (outer * blocks.inner, outer * blocks.len * blocks.inner);
    let bad_position = AtomicUsize::new(usize::MAX);
    let sums = &mut workspace[..forward_workspace_len(blocks)];
    // Without positions, no task would write its sums.
    sums.fill(0.0);
    let chunks = (Chunked::new(lse, chunk_len), Chunked::new(&mut *sums, 2));
    for_each_chunk2(pool, chunks.0, chunks.1, |index, lse, sums| {
        let targets = targets.part(index * outer, lse.len());
        let x = &x[index * x_len..][..lse.len() * blocks.len];
        let mut bad = usize::MAX;
        E::Compute::dispatch(AllLines(Forward { targets, x, lse, sums, bad_position: &mut bad }));
        if bad != usize::MAX {
            bad_position.fetch_min(index * chunk_len + bad, Ordering::Relaxed);
        }
    });
    match bad_position.into_inner() {
        usize::MAX => Ok([0, 1].map(|at| sums.iter().skip(at).step_by(2).sum())),
        position => Err(position),
    }
}

struct Backward<'a, E: Element> {
    targets: Targets<'a, E>,
    /// The logits; if absent, dx holds them.
    x: Option<&'a [E]>,
    lse: &'a [E::Compute],
    dloss: E::Compute,
    dx: &'a mut [E],
}

impl<E: Element<Compute: SimdFloat>> LinesKernel<E::Compute> for Backward<'_, E> {
    fn extent(&self) -> (Blocks, usize) {
        let blocks = self.targets.blocks;
        (blocks, self.lse.len() / blocks.inner)
    }

    #[inline(always)]
    fn lines<F: Fused, const W: usize>(&mut self, lines: &Lines) {
        let (zero, targets) = (E::Compute::ZERO, &self.targets);
        let position = targets.position(lines);
        let classes = targets.class_count() as f64;
        let [keep, spread] =
            [1.0 - targets.smoothing, targets.smoothing / classes].map(E::Compute::from_f64);
        let weight_sum =
            if targets.smoothing > 0.0 { E::Compute::from_f64(targets.weight_sum()) } else { zero };
        // The state of each lane: lse, the factors of p and of w, and a mask of positions that
        // count.
        let mut lse = [zero; W];
        let (mut scale, mut shift) = ([zero; W], [zero; W]);
        let mut is_counted = [false; W];
        // For each lane: the place of the label, and the value of dx there.
        let mut at_label = [(0, zero); W];
        for lane in 0..lines.reductions() {
            lse[lane] = self.lse[position + lane];
            let Ok(Some(label)) = targets.label(position + lane) else { continue };
            let weight = targets.weight_of(label);
            is_counted[lane] = true;
            scale[lane] = self.dloss * (keep * weight + spread * weight_sum);
            shift[lane] = self.dloss * spread;
            let place = lines.start + lane + label * targets.blocks.inner;
            let logit: E::Compute = self.x.unwrap_or(self.dx)[place].cast();
            let p = (logit - lse[lane]).exp_in::<F>();
            let rest = self.dloss * keep * weight + shift[lane] * weight;
            at_label[lane] = (place, scale[lane] * p - rest);
        }
        if lines.lanes == Lanes::Row {
            (lse, scale, shift) = ([lse[0]; W], [scale[0]; W], [shift[0]; W]);
            is_counted = [is_counted[0]; W];
        }
        let mut line = [zero; W];
        let mut class = 0;
        for places in lines.places() {
            load(&self.x.unwrap_or(self.dx)[places.clone()], zero, &mut line);
            for lane in 0..W {
                let p = (line[lane] - lse[lane]).exp_in::<F>();
                line[lane] = if is_counted[lane] { scale[lane] * p } else { zero };
            }
            if targets.smoothing > 0.0 {
                let weights = weights::<E, W>(targets.weight, lines, &mut class, places.len());
                for lane in 0..W {
                    line[lane] = line[lane] - shift[lane] * weights[lane];
                }
            }
            store(&line, &mut self.dx[places]);
        }
        for lane in (0..lines.reductions()).filter(|&lane| is_counted[lane]) {
            let (place, value) = at_label[lane];
            self.dx[place] = value.cast();
        }
    }
}

/// Overwrites `dx`. If `x` is missing, `dx` holds the logits. `dloss` is the gradient of the sum.
/// The labels have been checked before.
pub(super) fn backward<E: Element<Compute: SimdFloat>>(
    pool: &Pool,
    targets: &Targets<'_, E>,
    x: Option<&[E]>,
    lse: &[E::Compute],
    dloss: E::Compute,
    dx: &mut [E],
) {
    let blocks = targets.blocks;
    let outer = blocks.outer_per_task();
    let chunk_len = outer * blocks.len * blocks.inner;
    for_each_chunk(pool, dx, chunk_len, |index, dx| {
        let positions = dx.len() / blocks.len;
        let first = index * outer * blocks.inner;
        let targets = targets.part(index * outer, positions);
        let lse = &lse[first..first + positions];
        let x = x.map(|x| &x[index * chunk_len..][..dx.len()]);
        E::Compute::dispatch(AllLines(Backward { targets, x, lse, dloss, dx }));
    });
}
