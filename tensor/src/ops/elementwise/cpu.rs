//! One loop for every elementwise kernel: rows of strided operands, in fixed chunks.

use crate::Element;
use crate::cpu::Cpu;
use crate::cpu::chunk::for_each_chunk;
use crate::launch::{View, ViewMut};
use crate::layout::Nest;

/// Elements per chunk: large enough to hide the fork, small enough for the L2 cache.
const CHUNK_LEN: usize = 1 << 14;

/// The elements of a strided row.
pub(crate) fn strided<T: Copy>(
    data: &[T],
    start: usize,
    stride: usize,
) -> impl Iterator<Item = T> + '_ {
    (0..).map_while(move |i| data.get(start + i * stride).copied())
}

/// `out[i] = f(out[i], [inputs[0][i], ..])` for inputs of `out`'s shape.
pub(super) fn update<O: Element, I: Element, const N: usize>(
    cpu: &Cpu,
    mut out: ViewMut<'_, O>,
    inputs: [View<'_, I>; N],
    f: impl Fn(O, [I; N]) -> O + Sync,
) {
    let layout = *out.layout();
    let shape = layout.shape();
    let nest = Nest::new(shape, std::array::from_fn(|k| inputs[k].layout().strides()));
    let data = inputs.map(|input| input.data());
    if layout.is_contiguous() {
        for_each_chunk(cpu.pool(), out.slice(), CHUNK_LEN, |index, chunk| {
            let from = index * CHUNK_LEN;
            let mut done = 0;
            nest.rows(from, from + chunk.len(), |row| {
                let rows = std::array::from_fn(|k| &data[k][row.starts[k]..]);
                update_row(&mut chunk[done..done + row.len], rows, nest.inner_strides(), &f);
                done += row.len;
            });
        });
        return;
    }
    // Writing through a strided view is rare; it runs on one thread, element by element.
    let places = Nest::new(shape, [layout.strides()]);
    let step = places.inner_strides()[0];
    let mut values = (0..shape.element_count()).map(|i| {
        let mut at = [0; N];
        nest.rows(i, i + 1, |row| at = row.starts);
        std::array::from_fn(|k| data[k][at[k]])
    });
    places.rows(0, shape.element_count(), |row| {
        for i in 0..row.len {
            let place = &mut out.data()[row.starts[0] + i * step];
            *place = f(*place, values.next().expect("as many values as places"));
        }
    });
}

fn update_row<O: Element, I: Element, const N: usize>(
    out: &mut [O],
    rows: [&[I]; N],
    strides: [usize; N],
    f: impl Fn(O, [I; N]) -> O,
) {
    if strides == [1; N] {
        let rows = rows.map(|row| &row[..out.len()]);
        for (i, y) in out.iter_mut().enumerate() {
            *y = f(*y, std::array::from_fn(|k| rows[k][i]));
        }
    } else {
        for (i, y) in out.iter_mut().enumerate() {
            *y = f(*y, std::array::from_fn(|k| rows[k][i * strides[k]]));
        }
    }
}

/// A formula of one variable waiting for its operands; lets one list of formulas serve the
/// in-place form and the other.
pub(super) trait Map<T> {
    fn map(self, f: impl Fn(T) -> T + Sync);
}

/// A formula of two variables waiting for its operands.
pub(super) trait Zip<T> {
    fn zip(self, f: impl Fn(T, T) -> T + Sync);
}

/// The operands of a formula: the destination, and `N` inputs. In place the destination is the
/// first variable, so that the formula has one more of them than there are inputs.
pub(super) struct Destination<'a, T, const N: usize> {
    pub(super) cpu: &'a Cpu,
    pub(super) inputs: [View<'a, T>; N],
    pub(super) out: ViewMut<'a, T>,
}

impl<T: Element> Map<T> for Destination<'_, T, 1> {
    fn map(self, f: impl Fn(T) -> T + Sync) {
        update(self.cpu, self.out, self.inputs, |_, [x]| f(x));
    }
}

impl<T: Element> Map<T> for Destination<'_, T, 0> {
    fn map(self, f: impl Fn(T) -> T + Sync) {
        update(self.cpu, self.out, self.inputs, |x, []| f(x));
    }
}

impl<T: Element> Zip<T> for Destination<'_, T, 2> {
    fn zip(self, f: impl Fn(T, T) -> T + Sync) {
        update(self.cpu, self.out, self.inputs, |_, [a, b]| f(a, b));
    }
}

impl<T: Element> Zip<T> for Destination<'_, T, 1> {
    fn zip(self, f: impl Fn(T, T) -> T + Sync) {
        update(self.cpu, self.out, self.inputs, |a, [b]| f(a, b));
    }
}
