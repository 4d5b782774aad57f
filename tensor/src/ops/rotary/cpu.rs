//! Rotates pairs in place, row by row.

use super::RotaryPairs;
use crate::cpu::Cpu;
use crate::dtype::Element;
use crate::layout::{Nest, Shape};
use crate::operand_view::ViewMut;

/// Elements of a task.
const CHUNK_LEN: usize = 1 << 14;

/// Rotates the rows of x by `sign` times the angles.
pub(super) fn rotate<T: Element>(
    cpu: &Cpu,
    mut x: ViewMut<'_, T>,
    cos: &[T],
    sin: &[T],
    pairs: RotaryPairs,
    sign: f64,
) {
    let layout = *x.layout();
    let [outer @ .., len, dim] = &**layout.shape() else { unreachable!("two dimensions") };
    let (len, dim, half) = (*len, *dim, cos.len() / (*len).max(1));
    if layout.shape().element_count() == 0 || half == 0 {
        return;
    }
    let step = layout.strides()[outer.len() + 1];
    let turn_row = |data: &mut [T], position: usize| {
        let [cos, sin] = [cos, sin].map(|table| &table[position * half..][..half]);
        turn(data, [half, step], cos, sin, pairs, sign);
    };
    if layout.is_contiguous() {
        let rows = (CHUNK_LEN / dim).max(1);
        return cpu.for_each_chunk(x.data(), rows * dim, |index, chunk| {
            for (row, data) in chunk.chunks_exact_mut(dim).enumerate() {
                turn_row(data, (index * rows + row) % len);
            }
        });
    }
    // Rows may interleave in memory, so one thread computes them all.
    let shape = Shape::new(&[outer, &[len]].concat());
    let nest = Nest::new(&shape, [&layout.strides()[..outer.len() + 1]]);
    let (mut at, [stride]) = (0, nest.inner_strides());
    nest.rows(0, shape.element_count(), |rows| {
        for row in 0..rows.len {
            turn_row(&mut x.data()[rows.starts[0] + row * stride..], at % len);
            at += 1;
        }
    });
}

/// Rotates one row, whose elements are `step` apart. Half types are computed in f64, too, and round
/// once.
fn turn<T: Element>(
    row: &mut [T],
    [half, step]: [usize; 2],
    cos: &[T],
    sin: &[T],
    pairs: RotaryPairs,
    sign: f64,
) {
    for i in 0..half {
        let [a, b] = match pairs {
            RotaryPairs::Interleaved => [2 * i * step, (2 * i + 1) * step],
            RotaryPairs::HalfSplit => [i * step, (i + half) * step],
        };
        let (cos, sin) = (cos[i].to_f64(), sign * sin[i].to_f64());
        let [x, y] = [row[a].to_f64(), row[b].to_f64()];
        row[a] = T::from_f64(x * cos - y * sin);
        row[b] = T::from_f64(x * sin + y * cos);
    }
}
