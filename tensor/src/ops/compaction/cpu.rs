//! Packs the elements that a mask keeps, in row-major order.

use crate::cpu::Cpu;
use crate::cpu::chunk::for_each_chunk;
use crate::dtype::{Bool, Element};
use crate::layout::Nest;

/// Elements of the mask per chunk.
const CHUNK_LEN: usize = 1 << 14;

/// A mask of any type and a tensor of its shape; `nest` walks over both. A mask keeps elements that
/// are not 0.
pub(super) struct Mask<'a, M> {
    pub(super) data: &'a [M],
    pub(super) nest: Nest<2>,
    pub(super) len: usize,
}

impl<M: Element> Mask<'_, M> {
    /// Calls `visit(number, place)` for each element that chunk `index` keeps: its number in
    /// row-major order, and its place in the second tensor.
    fn visit(&self, index: usize, mut visit: impl FnMut(usize, usize)) {
        let from = index * CHUNK_LEN;
        let [step, other_step] = self.nest.inner_strides();
        let mut number = from;
        self.nest.rows(from, (from + CHUNK_LEN).min(self.len), |row| {
            let [start, other_start] = row.starts;
            for i in 0..row.len {
                if self.data[start + i * step] != M::default() {
                    visit(number + i, other_start + i * other_step);
                }
            }
            number += row.len;
        });
    }

    /// Number of elements that each chunk keeps.
    pub(super) fn counts(&self, cpu: &Cpu) -> Vec<usize> {
        let mut counts = vec![0; self.len.div_ceil(CHUNK_LEN)];
        for_each_chunk(cpu.pool(), &mut counts, 1, |index, count| {
            self.visit(index, |_, _| count[0] += 1);
        });
        counts
    }

    /// Calls `write(number, place, to)` for each kept element, to write `width` elements of `y`
    /// while `y` has room. Returns the number of kept elements.
    pub(super) fn compact<T: Send>(
        &self,
        cpu: &Cpu,
        width: usize,
        y: &mut [T],
        write: impl Fn(usize, usize, &mut [T]) + Sync,
    ) -> usize {
        let counts = self.counts(cpu);
        let mut rest = y;
        let mut parts: Vec<&mut [T]> = Vec::with_capacity(counts.len());
        for count in &counts {
            let (part, next) = rest.split_at_mut((count * width).min(rest.len()));
            parts.push(part);
            rest = next;
        }
        for_each_chunk(cpu.pool(), &mut parts, 1, |index, part| {
            let mut at = 0;
            self.visit(index, |number, place| {
                if let Some(to) = part[0].get_mut(at..at + width) {
                    write(number, place, to);
                    at += width;
                }
            });
        });
        counts.iter().sum()
    }
}

/// Writes consecutive elements of the source where the mask keeps, and elements of x elsewhere. x
/// is the second tensor of the mask. The source has at least one element for each that the mask
/// keeps.
pub(super) fn masked_scatter<T: Element>(
    cpu: &Cpu,
    mask: &Mask<'_, Bool>,
    [x, source]: [&[T]; 2],
    y: &mut [T],
) -> std::result::Result<(), usize> {
    let mut firsts = mask.counts(cpu);
    let mut kept = 0;
    for first in &mut firsts {
        kept += std::mem::replace(first, kept);
    }
    if kept > source.len() {
        return Err(kept);
    }
    let [step, x_step] = mask.nest.inner_strides();
    for_each_chunk(cpu.pool(), y, CHUNK_LEN, |chunk, y| {
        let mut source = source[firsts[chunk]..].iter();
        let from = chunk * CHUNK_LEN;
        let mut y = y.iter_mut();
        mask.nest.rows(from, from + y.len(), |row| {
            let [start, x_start] = row.starts;
            for (i, y) in y.by_ref().take(row.len).enumerate() {
                let keeps = bool::from(mask.data[start + i * step]);
                let next = if keeps { source.next() } else { None };
                *y = next.copied().unwrap_or(x[x_start + i * x_step]);
            }
        });
    });
    Ok(())
}
