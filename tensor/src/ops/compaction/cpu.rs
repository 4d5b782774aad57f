//! What a mask keeps, packed together in row-major order.

use crate::cpu::Cpu;
use crate::cpu::chunk::for_each_chunk;
use crate::dtype::Element;
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

    /// Writes `width` elements for each element that is kept: `write(number, place, to)`. Returns
    /// how many there are.
    pub(super) fn compact<T: Send>(
        &self,
        cpu: &Cpu,
        width: usize,
        y: &mut [T],
        write: impl Fn(usize, usize, &mut [T]) + Sync,
    ) -> usize {
        let mut counts = vec![0; self.len.div_ceil(CHUNK_LEN)];
        for_each_chunk(cpu.pool(), &mut counts, 1, |index, count| {
            self.visit(index, |_, _| count[0] += 1);
        });
        let mut rest = y;
        let mut parts: Vec<&mut [T]> = Vec::with_capacity(counts.len());
        for count in &counts {
            let (part, next) = rest.split_at_mut(count * width);
            parts.push(part);
            rest = next;
        }
        for_each_chunk(cpu.pool(), &mut parts, 1, |index, part| {
            let mut at = 0;
            self.visit(index, |number, place| {
                write(number, place, &mut part[0][at..at + width]);
                at += width;
            });
        });
        counts.iter().sum()
    }
}
