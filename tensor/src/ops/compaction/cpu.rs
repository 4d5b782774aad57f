//! Elements that a mask keeps, packed together in row-major order.

use crate::cpu::Cpu;
use crate::cpu::chunk::for_each_chunk;
use crate::dtype::{Bool, Element};
use crate::layout::Nest;

/// Elements of the mask per chunk.
const CHUNK_LEN: usize = 1 << 14;

/// A mask of any type, kept where it is not 0, and a tensor of its shape; `nest` is over both.
pub(super) struct Mask<'a, M> {
    pub(super) data: &'a [M],
    pub(super) nest: Nest<2>,
    pub(super) len: usize,
}

impl<M: Element> Mask<'_, M> {
    /// Calls `visit(number, place)` for what chunk `index` keeps: the number of the element in
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

    /// The number of elements that each chunk keeps.
    pub(super) fn counts(&self, cpu: &Cpu) -> Vec<usize> {
        let mut counts = vec![0; self.len.div_ceil(CHUNK_LEN)];
        for_each_chunk(cpu.pool(), &mut counts, 1, |index, count| {
            self.visit(index, |_, _| count[0] += 1);
        });
        counts
    }

    /// Writes `width` elements for each element that is kept, as long as there is room in `y`:
    /// `write(number, place, to)`. Returns how many are kept.
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

/// y from the elements of a source, one after the other, where the mask keeps, and from x, which is
/// the second tensor of the mask, elsewhere. The source has as many as the mask keeps, or more.
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
