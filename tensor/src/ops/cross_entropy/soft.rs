//! Cross-entropy of logits with class probabilities: `Σ_n Σ_c t'[n, c] · (lse[n] - x[n, c])`, with
//! `t'[n, c] = w[c] · ((1 - ε) · t[n, c] + ε / C)`, targets t, class weights w and label smoothing
//! ε, as in PyTorch. Classes with a weight of 0 add nothing, even if their logits are infinite.
//!
//! - backward: `dx[n, c] = dy · (exp(x[n, c] - lse[n]) · Σ_c t'[n, c] - t'[n, c])`.
//!
//! x, target: [N, C, ..].

use std::ops::Range;

use super::cpu::{exponentials, log_sum_exp, position, weights};
use super::launches::Inputs;
use super::{CrossEntropy, Labelling};
use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::cpu::chunk::{Chunked, for_each_chunk, for_each_chunk2};
use crate::cpu::lines::{AllLines, Blocks, Lines, LinesKernel, load, store};
use crate::cpu::math::SimdFloat;
use crate::cpu::simd::Fused;
use crate::dtype::{DType, Element, Float, for_each_float};
use crate::error::{Result, TensorError};
use crate::launch::{FullKernel, Operands};
use crate::ops::workspace::Workspace;
use crate::spec::DeviceKind;
use crate::tensor::Tensor;

/// The positions of a loss with probabilities. Kernels read the target first and the weight last.
#[derive(Clone, Copy)]
pub(super) struct Soft {
    name: &'static str,
    pub(super) dtype: DType,
    pub(super) blocks: Blocks,
    pub(super) smoothing: f64,
    pub(super) has_weight: bool,
}

/// Threads of a block of an NVIDIA device if the classes of a position are not contiguous. Each
/// thread takes a position of its own.
pub(super) const COLUMN_THREADS: usize = 256;

/// Number of blocks that keeps the largest devices busy. More positions go to the same blocks.
const BLOCKS_MAX: usize = 4096;

/// Number of sums that an NVIDIA device adds up. Each sum is over some of the positions.
pub(super) fn partial_count(blocks: Blocks) -> usize {
    let positions = blocks.outer * blocks.inner;
    let wanted = if blocks.inner == 1 { positions } else { positions.div_ceil(COLUMN_THREADS) };
    wanted.min(BLOCKS_MAX)
}

impl Soft {
    fn of(
        name: &'static str,
        x: &Tensor,
        target: &Tensor,
        labelling: &Labelling<'_>,
    ) -> Result<Self> {
        x.check_any_float(name)?;
        x.check_dtype(name, target)?;
        let (left, right) = (*x.shape(), *target.shape());
        if left.len() < 2 || left != right || left[1] == 0 {
            return Err(TensorError::Shape { op: name, left, right });
        }
        if let Some(weight) = labelling.weight {
            x.check_dtype(name, weight)?;
            weight.check_shape(name, [left[1]])?;
        }
        let (smoothing, has_weight) = (labelling.smoothing, labelling.weight.is_some());
        Ok(Soft { name, dtype: x.dtype(), blocks: Blocks::of(&left, 1), smoothing, has_weight })
    }

    fn cost_of(&self, passes: usize) -> Cost {
        let len = self.blocks.element_count();
        Cost {
            class: OpClass::Reduction,
            flops: 25.0 * len as f64,
            bytes: (passes * len * self.dtype.size_bytes()) as f64,
        }
    }

    /// Workspace for the sums over some of the positions.
    fn workspace(&self, kind: DeviceKind) -> Workspace {
        let len = match kind {
            DeviceKind::Cpu => self.blocks.outer.div_ceil(self.blocks.outer_per_task()),
            DeviceKind::Cuda => partial_count(self.blocks),
        };
        Workspace::new(DType::F64, [len])
    }

    fn targets<'a, E: Element>(&self, operands: &Operands<'a>) -> Targets<'a, E> {
        let last = operands.read_count() - 1;
        Targets {
            blocks: self.blocks,
            target: operands.read::<E>(0).slice(),
            smoothing: self.smoothing,
            weight: self.has_weight.then(|| operands.read::<E>(last).slice()),
        }
    }
}

#[derive(Clone, Copy)]
struct Targets<'a, E> {
    blocks: Blocks,
    target: &'a [E],
    smoothing: f64,
    weight: Option<&'a [E]>,
}

impl<'a, E: Element<Compute: SimdFloat>> Targets<'a, E> {
    /// The targets of the task that begins with row or slab `from`.
    fn part(&self, from: usize, len: usize) -> Self {
        let first = from * self.blocks.len * self.blocks.inner;
        Targets { target: &self.target[first..first + len], ..*self }
    }

    /// t' of the next line, from `class` on; 0 beyond the last class.
    #[inline(always)]
    fn next_line<const W: usize>(
        &self,
        lines: &Lines,
        class: &mut usize,
        places: Range<usize>,
    ) -> [E::Compute; W] {
        let classes = self.blocks.len as f64;
        let [keep, spread] =
            [1.0 - self.smoothing, self.smoothing / classes].map(E::Compute::from_f64);
        let weights = weights::<E, W>(self.weight, lines, class, places.len());
        let mut line = [E::Compute::ZERO; W];
        load(&self.target[places], E::Compute::ZERO, &mut line);
        for lane in 0..W {
            line[lane] = weights[lane] * (keep * line[lane] + spread);
        }
        line
    }
}

struct Forward<'a, E: Element> {
    targets: Targets<'a, E>,
    x: &'a [E],
    lse: &'a mut [E::Compute],
    sum: &'a mut f64,
}

impl<E: Element<Compute: SimdFloat>> LinesKernel<E::Compute> for Forward<'_, E> {
    fn extent(&self) -> (Blocks, usize) {
        (self.targets.blocks, self.lse.len() / self.targets.blocks.inner)
    }

    #[inline(always)]
    fn lines<F: Fused, const W: usize>(&mut self, lines: &Lines) {
        let zero = E::Compute::ZERO;
        let (max, powers) = exponentials::<E, F, W>(lines, self.x);
        // The lanes of Σ t' and Σ t' · (x - max).
        let (mut line, mut total, mut product) = ([zero; W], [zero; W], [zero; W]);
        let mut class = 0;
        for places in lines.places() {
            let target = self.targets.next_line::<W>(lines, &mut class, places.clone());
            load(&self.x[places], zero, &mut line);
            for lane in 0..W {
                total[lane] += target[lane];
                let term = target[lane] * (line[lane] - max[lane]);
                product[lane] += if target[lane] == zero { zero } else { term };
            }
        }
        lines.fold(&mut total, |a, b| a + b);
        lines.fold(&mut product, |a, b| a + b);
        let position = position(self.targets.blocks, lines);
        for lane in 0..lines.reductions() {
            self.lse[position + lane] = log_sum_exp(max[lane], powers[lane]);
            let log = powers[lane].ln().to_f64();
            *self.sum += total[lane].to_f64() * log - product[lane].to_f64();
        }
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
        (self.targets.blocks, self.lse.len() / self.targets.blocks.inner)
    }

    #[inline(always)]
    fn lines<F: Fused, const W: usize>(&mut self, lines: &Lines) {
        let zero = E::Compute::ZERO;
        let position = position(self.targets.blocks, lines);
        let (mut line, mut lse, mut total) = ([zero; W], [zero; W], [zero; W]);
        let mut class = 0;
        for places in lines.places() {
            let target = self.targets.next_line::<W>(lines, &mut class, places);
            for lane in 0..W {
                total[lane] += target[lane];
            }
        }
        lines.fold(&mut total, |a, b| a + b);
        lse[..lines.reductions()].copy_from_slice(&self.lse[position..][..lines.reductions()]);
        if lines.reductions() == 1 {
            lse = [lse[0]; W];
        }
        let dloss = self.dloss;
        class = 0;
        for places in lines.places() {
            let target = self.targets.next_line::<W>(lines, &mut class, places.clone());
            load(&self.x.unwrap_or(self.dx)[places.clone()], zero, &mut line);
            for lane in 0..W {
                let p = (line[lane] - lse[lane]).exp_in::<F>();
                line[lane] = dloss * (p * total[lane] - target[lane]);
            }
            store(&line, &mut self.dx[places]);
        }
    }
}

/// Reads target, x and perhaps the weight.
pub(super) struct ForwardKernel(pub(super) Soft);

impl FullKernel for ForwardKernel {
    fn name(&self) -> &'static str {
        self.0.name
    }

    fn cost(&self) -> Cost {
        self.0.cost_of(2)
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        let blocks = self.0.blocks;
        let outer = blocks.outer_per_task();
        for_each_float!(self.0.dtype, E as T => {
            let (targets, x) = (self.0.targets::<E>(operands), operands.read::<E>(1).slice());
            let [sum, count, lse] = [0, 1, 2].map(|index| operands.write::<T>(index).slice());
            let sums = operands.write::<f64>(3).slice();
            // Without positions, no task would write its sums.
            sums.fill(0.0);
            count[0] = T::from_f64(lse.len() as f64);
            let parts = (Chunked::new(lse, outer * blocks.inner), Chunked::new(&mut *sums, 1));
            for_each_chunk2(cpu.pool(), parts.0, parts.1, |index, lse, sums| {
                let targets = targets.part(index * outer, lse.len() * blocks.len);
                let x = &x[index * outer * blocks.len * blocks.inner..][..targets.target.len()];
                T::dispatch(AllLines(Forward { targets, x, lse, sum: &mut sums[0] }));
            });
            sum[0] = T::from_f64(sums.iter().sum());
        });
        Ok(())
    }
}

/// Reads target, lse, dy, x if dx does not hold it, and perhaps the weight.
pub(super) struct BackwardKernel(pub(super) Soft);

impl FullKernel for BackwardKernel {
    fn name(&self) -> &'static str {
        self.0.name
    }

    fn cost(&self) -> Cost {
        self.0.cost_of(3)
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        let has_x = operands.read_count() - usize::from(self.0.has_weight) == 4;
        let blocks = self.0.blocks;
        let outer = blocks.outer_per_task();
        let chunk_len = outer * blocks.len * blocks.inner;
        for_each_float!(self.0.dtype, E as T => {
            let targets = self.0.targets::<E>(operands);
            let [lse, dy] = [1, 2].map(|index| operands.read::<T>(index).slice());
            let x = has_x.then(|| operands.read::<E>(3).slice());
            let dx = operands.write::<E>(0).slice();
            for_each_chunk(cpu.pool(), dx, chunk_len, |index, dx| {
                let targets = targets.part(index * outer, dx.len());
                let lse = &lse[index * outer * blocks.inner..][..dx.len() / blocks.len];
                let x = x.map(|x| &x[index * chunk_len..][..dx.len()]);
                T::dispatch(AllLines(Backward { targets, x, lse, dloss: dy[0], dx }));
            });
        });
        Ok(())
    }
}

impl Tensor {
    /// The cross-entropy of `self = x` with class probabilities, summed over all positions:
    /// `Σ t'[n, c] · (lse[n] - x[n, c])` with `t' = weight[c] · ((1 - smoothing) · target +
    /// smoothing / C)`, as in PyTorch. The count is the number of positions: no position is
    /// ignored.
    ///
    /// # Shapes
    /// `x, target: [N, C, ..] → [], [], [N, ..]`
    ///
    /// # Errors
    /// `Shape`, `DType` (all of one float type), `OutOfMemory`.
    #[track_caller]
    pub fn soft_cross_entropy(
        &self,
        target: &Tensor,
        labelling: &Labelling<'_>,
    ) -> Result<CrossEntropy> {
        let soft = Soft::of("soft_cross_entropy", self, target, labelling)?;
        let workspace = soft.workspace(self.device().kind());
        let inputs = Inputs { x: self, target, weight: labelling.weight };
        inputs.forward(ForwardKernel(soft), &workspace)
    }

    /// The gradient of the logits through [`Tensor::soft_cross_entropy`], for `self = dy`, the
    /// gradient of the sum.
    ///
    /// # Errors
    /// The errors of [`Tensor::soft_cross_entropy`].
    #[track_caller]
    pub fn soft_cross_entropy_backward(
        &self,
        x: &Tensor,
        target: &Tensor,
        log_sum_exp: &Tensor,
        labelling: &Labelling<'_>,
    ) -> Result<Tensor> {
        let soft = Soft::of("soft_cross_entropy_backward", x, target, labelling)?;
        let inputs = Inputs { x, target, weight: labelling.weight };
        inputs.backward(BackwardKernel(soft), log_sum_exp, self)
    }

    /// [`Tensor::soft_cross_entropy_backward`] written over the logits, for `self = x`. All
    /// operands must be contiguous, because nothing may be allocated.
    ///
    /// # Errors
    /// The errors of [`Tensor::soft_cross_entropy`], `Strided`, `Frozen`, `Overlap`.
    #[track_caller]
    pub fn soft_cross_entropy_backward_(
        &mut self,
        target: &Tensor,
        log_sum_exp: &Tensor,
        dy: &Tensor,
        labelling: &Labelling<'_>,
    ) -> Result<()> {
        let soft = Soft::of("soft_cross_entropy_backward", self, target, labelling)?;
        self.overwrite_logits(BackwardKernel(soft), target, log_sum_exp, dy, labelling.weight)
    }
}
