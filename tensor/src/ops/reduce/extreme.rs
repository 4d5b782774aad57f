//! The positions and values of the largest or the smallest elements.

use super::fold::{Fold, Reducible};
use super::plan::{Along, Block, Tasks};
use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::cpu::arithmetic::Arithmetic;
use crate::cpu::chunk::{Chunked, for_each_chunk, for_each_chunk2};
use crate::cpu::math::SimdFloat;
use crate::cpu::simd::{Simd, SimdKernel};
use crate::dtype::{DType, Element, for_each_dtype};
use crate::error::Result;
use crate::launch::{FullKernel, Operands};

/// The end of the order to search for: the largest or the smallest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Largest,
    Smallest,
}

impl End {
    /// True if `x` is nearer to the end than `best`; NaN is the nearest.
    #[inline(always)]
    fn is_better<A: Arithmetic>(self, x: A, best: A) -> bool {
        let is_beyond = if self == End::Largest { x > best } else { x < best };
        is_beyond | (x.is_nan() & !best.is_nan())
    }

    fn fold(self) -> Fold {
        if self == End::Largest { Fold::Max } else { Fold::Min }
    }
}

/// The best elements so far of some outputs, and their positions among the reduced elements.
pub(super) struct Best<'a, A> {
    pub(super) values: &'a mut [A],
    pub(super) positions: &'a mut [i64],
}

/// Updates the best elements with the elements of `block`, which follow all earlier ones. Compiled
/// for every instruction set.
struct Improving<'a, T: Reducible> {
    end: End,
    block: Block<'a, T>,
    best: Best<'a, T::Accumulator>,
}

impl<T: Reducible> SimdKernel<T::Registers> for Improving<'_, T> {
    #[inline(always)]
    fn run<S: Simd<T::Registers>, const ROWS: usize, const COLS: usize>(self, _: S) {
        let Improving { end, block, best: Best { values, positions } } = self;
        if block.along == Along::Rows {
            for k in 0..block.count {
                let (run, output) = (block.run(k), block.output + k);
                if let Some((at, value)) = first_better::<T>(end, run, values[output]) {
                    values[output] = value;
                    positions[output] = (block.reduced + at) as i64;
                }
            }
            return;
        }
        let values = &mut values[block.outputs()];
        let positions = &mut positions[block.outputs()];
        for index in 0..block.count {
            let (line, at) = (block.run(index), (block.reduced + index) as i64);
            for k in 0..values.len() {
                let x: T::Accumulator = line[k].cast();
                let is_better = end.is_better(x, values[k]);
                values[k] = if is_better { x } else { values[k] };
                positions[k] = if is_better { at } else { positions[k] };
            }
        }
    }
}

/// The best element of `run` and its first position, if it is better than `best`. The value comes
/// first, which vectorises; then the position, which a long row rarely needs.
#[inline(always)]
fn first_better<T: Reducible>(
    end: End,
    run: &[T],
    best: T::Accumulator,
) -> Option<(usize, T::Accumulator)> {
    const LANE_COUNT: usize = 32;
    let better = |a: T, b: T| if end == End::Largest { a.larger(b) } else { a.smaller(b) };
    let &first = run.first()?;
    let mut value = first;
    let whole = run.len() / LANE_COUNT * LANE_COUNT;
    if whole > 0 {
        let mut lanes = [first; LANE_COUNT];
        let mut at = 0;
        while at < whole {
            let block = &run[at..at + LANE_COUNT];
            for lane in 0..LANE_COUNT {
                lanes[lane] = better(lanes[lane], block[lane]);
            }
            at += LANE_COUNT;
        }
        for x in lanes {
            value = better(value, x);
        }
    }
    for &x in &run[whole..] {
        value = better(value, x);
    }
    if !end.is_better(value.cast::<T::Accumulator>(), best) {
        return None;
    }
    let is_it = |x: T| (x == value) | (x.is_nan() & value.is_nan());
    let at = (0..run.len()).find(|&i| is_it(run[i]))?;
    Some((at, value.cast()))
}

/// The positions of the best elements over the trailing dimensions of an input
/// `[kept.., reduced..]`. Writes positions, partial values and positions, and the best values if
/// wanted.
pub(super) struct Extreme {
    pub(super) name: &'static str,
    pub(super) end: End,
    pub(super) kept_rank: usize,
    pub(super) dtype: DType,
    pub(super) len: usize,
    pub(super) has_values: bool,
}

impl FullKernel for Extreme {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cost(&self) -> Cost {
        Cost {
            class: OpClass::Reduction,
            flops: self.len as f64,
            bytes: (self.len * self.dtype.size_bytes()) as f64,
        }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        for_each_dtype!(self.dtype, E => self.run::<E, _>(cpu, operands));
        Ok(())
    }
}

impl Extreme {
    fn run<E: Element<Compute = T>, T: Reducible>(&self, cpu: &Cpu, operands: &mut Operands<'_>) {
        let x = operands.read::<E>(0);
        let positions = operands.write::<i64>(0).slice();
        let values = operands.write::<T::Accumulator>(1).slice();
        let places = operands.write::<i64>(2).slice();
        let plan = Tasks::new(x.layout(), self.kept_rank);
        let mut tasks: Vec<Best<'_, _>> = plan
            .pieces(values)
            .into_iter()
            .zip(plan.pieces(places))
            .map(|(values, positions)| Best { values, positions })
            .collect();
        for_each_chunk(cpu.pool(), &mut tasks, 1, |index, task| {
            let Best { values, positions } = &mut task[0];
            let (outputs, reduced) = plan.task(index);
            values.fill(self.end.fold().start());
            positions.fill(reduced.start as i64);
            plan.walk::<E, T>(x.data(), (outputs, reduced), |block| {
                let best = Best { values, positions };
                T::Registers::dispatch(Improving { end: self.end, block, best });
            });
        });
        drop(tasks);
        const CHUNK_LEN: usize = 1 << 12;
        // Parts come in order, so that the first of equal elements wins.
        let best = |k: usize| {
            (1..plan.parts()).map(|part| part * plan.outputs + k).fold(k, |best, other| {
                if self.end.is_better(values[other], values[best]) { other } else { best }
            })
        };
        if !self.has_values {
            for_each_chunk(cpu.pool(), positions, CHUNK_LEN, |index, chunk| {
                let outputs = index * CHUNK_LEN..;
                outputs.zip(chunk).for_each(|(k, position)| *position = places[best(k)]);
            });
            return;
        }
        let y = operands.write::<E>(3).slice();
        let (y, positions) = (Chunked::new(y, CHUNK_LEN), Chunked::new(positions, CHUNK_LEN));
        for_each_chunk2(cpu.pool(), y, positions, |index, y, positions| {
            for (i, (y, position)) in y.iter_mut().zip(positions).enumerate() {
                let from = best(index * CHUNK_LEN + i);
                (*y, *position) = (values[from].cast(), places[from]);
            }
        });
    }
}
