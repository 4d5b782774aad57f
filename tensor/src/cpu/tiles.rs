//! Elementwise evaluation in tiles. Every operand, of any type and strides, is copied tile by tile
//! into a contiguous slice of the computing type. A formula is therefore one loop over plain
//! slices, compiled once per computing type, not once per combination of element types and layouts.
//! Operands that already are such slices are used in place, a chunk at a time.
//!
//! Dimensions are walked in the order of the destination's memory, so that a permuted view is
//! written like a contiguous tensor.

use super::Cpu;
use super::chunk::for_each_chunk;
use super::uncached;
use crate::dtype::{Element, same_type, same_type_mut};
use crate::layout::{Layout, Nest, RANK_MAX};
use crate::operand_view::{View, ViewMut};

/// Elements per tile: the tiles of all operands stay in the L1 cache.
pub(crate) const TILE_LEN: usize = 512;
/// Elements per chunk: large enough to hide the fork, small enough for the L2 cache.
const CHUNK_LEN: usize = 1 << 14;
/// Size of the smallest result that is written past the caches: most caches hold less.
const UNCACHED_BYTES_MIN: usize = 32 << 20;
/// Largest number of sources of a formula.
pub(crate) const SOURCE_COUNT_MAX: usize = 3;

/// A formula over slices of one length, a tile or any other: `formula(sources, destination)`.
pub(crate) type Formula<'a, T> = &'a (dyn Fn(&[&[T]], &mut [T]) + Sync);

/// The use of the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The destination is only written.
    Overwrite,
    /// The old values are the formula's first source, in a copy.
    Update,
    /// The old values are the formula's first source and stay in place: the formula gets one source
    /// fewer.
    UpdateInPlace,
}

/// The elements of a tile, in the destination's order.
pub(crate) trait Source<T>: Sync {
    /// The elements `from..from + to.len()`.
    fn write(&self, from: usize, to: &mut [T]);

    /// The elements without a copy, if they already lie in that order.
    fn borrow(&self, _from: usize, _len: usize) -> Option<&[T]> {
        None
    }
}

/// A source of one number: a tile of it, filled once.
pub(crate) struct Constant<T>([T; TILE_LEN]);

impl<T: Element> Constant<T> {
    pub(crate) fn new(value: T) -> Self {
        Constant([value; TILE_LEN])
    }
}

impl<T: Element> Source<T> for Constant<T> {
    fn write(&self, _: usize, to: &mut [T]) {
        to.copy_from_slice(&self.0[..to.len()]);
    }

    fn borrow(&self, _: usize, len: usize) -> Option<&[T]> {
        self.0.get(..len)
    }
}

/// A source whose element `index` is a function of `index` alone.
pub(crate) struct Generated<F>(pub(crate) F);

impl<T, F: Fn(usize) -> T + Sync> Source<T> for Generated<F> {
    fn write(&self, from: usize, to: &mut [T]) {
        (from..).zip(to).for_each(|(index, to)| *to = self.0(index));
    }
}

/// The order in which the elements of a destination are walked.
pub(crate) struct Order([usize; RANK_MAX]);

impl Order {
    /// The order of the elements of `destination` in memory.
    pub(crate) fn of(destination: &Layout) -> Self {
        // A contiguous layout is in row-major order, even if dimensions of length 1 have other
        // strides.
        match destination.is_contiguous() {
            true => Order(std::array::from_fn(|axis| axis)),
            false => Order(destination.axes_by_stride()),
        }
    }

    /// Row-major order, for sources that find their elements by index.
    pub(crate) fn row_major() -> Self {
        Order(std::array::from_fn(|axis| axis))
    }

    fn nest(&self, layout: &Layout) -> Nest<1> {
        let layout = layout.permute(&self.0[..layout.shape().len()]);
        Nest::new(layout.shape(), [layout.strides()])
    }
}

/// A tensor as a source, of the destination's shape.
pub(crate) struct Strided<'a, E> {
    data: &'a [E],
    nest: Nest<1>,
}

impl<'a, E: Element> Strided<'a, E> {
    pub(crate) fn new(view: View<'a, E>, order: &Order) -> Self {
        Strided { data: view.data(), nest: order.nest(view.layout()) }
    }
}

impl<T: Element, E: Element> Source<T> for Strided<'_, E> {
    fn write(&self, from: usize, to: &mut [T]) {
        gather(self.data, &self.nest, from, 0, to);
    }

    fn borrow(&self, from: usize, len: usize) -> Option<&[T]> {
        if !self.nest.is_contiguous() {
            return None;
        }
        Some(&same_type::<E, T>(self.data)?[from..from + len])
    }
}

/// Copies elements `from..` of `nest` from `data`, which starts at place `base` of the operand.
fn gather<E: Element, T: Element>(
    data: &[E],
    nest: &Nest<1>,
    from: usize,
    base: usize,
    to: &mut [T],
) {
    if let Some(data) = same_type::<E, T>(data) {
        gather_rows(data, nest, from, base, to, |to, row| to.copy_from_slice(row), |x| x);
    } else {
        gather_rows(data, nest, from, base, to, |to, row| E::cast_slice(row, to), E::cast);
    }
}

fn gather_rows<E: Copy, T: Copy>(
    data: &[E],
    nest: &Nest<1>,
    from: usize,
    base: usize,
    to: &mut [T],
    convert_row: impl Fn(&mut [T], &[E]),
    convert: impl Fn(E) -> T,
) {
    let [step] = nest.inner_strides();
    let mut done = 0;
    nest.rows(from, from + to.len(), |row| {
        let (to, data) = (&mut to[done..done + row.len], &data[row.starts[0] - base..]);
        done += row.len;
        match step {
            0 => to.fill(convert(data[0])),
            1 => convert_row(to, &data[..to.len()]),
            _ => to.iter_mut().zip(data.iter().step_by(step)).for_each(|(to, x)| *to = convert(*x)),
        }
    });
}

/// The inverse of [`gather`].
fn scatter<T: Element, O: Element>(
    from_tile: &[T],
    nest: &Nest<1>,
    from: usize,
    base: usize,
    data: &mut [O],
) {
    let [step] = nest.inner_strides();
    let mut done = 0;
    nest.rows(from, from + from_tile.len(), |row| {
        let (tile, data) = (&from_tile[done..done + row.len], &mut data[row.starts[0] - base..]);
        done += row.len;
        data.iter_mut().step_by(step.max(1)).zip(tile).for_each(|(to, x)| *to = x.cast());
    });
}

/// `out[i] = formula(sources[..][i])`, converted to and from `T`; without a formula, the first
/// source is only converted. Sources have the shape of `out`, and sources and `out` are in `order`;
/// the modes that update have one source fewer.
pub(crate) fn evaluate<T: Element, O: Element>(
    cpu: &Cpu,
    mut out: ViewMut<'_, O>,
    order: &Order,
    mode: Mode,
    sources: &[&dyn Source<T>],
    formula: Option<Formula<'_, T>>,
) {
    let nest = order.nest(out.layout());
    let len = out.layout().shape().element_count();
    if len == 0 {
        return;
    }
    let is_uncached = mode == Mode::Overwrite && size_of::<O>() * len >= UNCACHED_BYTES_MIN;
    let evaluation = Evaluation { nest: &nest, mode, sources, formula, is_uncached };
    if nest.is_contiguous() {
        for_each_chunk(cpu.pool(), out.data(), CHUNK_LEN, |index, chunk| {
            evaluation.contiguous(index * CHUNK_LEN, chunk);
        });
        return;
    }
    let (outer_len, [stride]) = nest.outermost();
    let inner_len = len / outer_len;
    // The span is `(outer_len - 1) * stride` plus the span of the inner dimensions.
    let rest_span = out.data().len() - (outer_len - 1) * stride;
    if stride < rest_span {
        // In an order other than the memory's, parts of the destination interleave.
        evaluation.strided(0, len, 0, out.data());
        return;
    }
    // A chunk is a range of the outermost indices. Chunks do not reach into each other's memory.
    let rows = (CHUNK_LEN / inner_len).max(1);
    for_each_chunk(cpu.pool(), out.data(), rows * stride, |index, chunk| {
        let from = index * rows * inner_len;
        let count = (rows * inner_len).min(len - from);
        evaluation.strided(from, count, index * rows * stride, chunk);
    });
}

/// The state that every chunk of an evaluation shares.
struct Evaluation<'a, T> {
    nest: &'a Nest<1>,
    mode: Mode,
    sources: &'a [&'a dyn Source<T>],
    formula: Option<Formula<'a, T>>,
    is_uncached: bool,
}

impl<T: Element> Evaluation<'_, T> {
    /// Evaluates elements `from..` of a contiguous destination.
    fn contiguous<O: Element>(&self, from: usize, chunk: &mut [O]) {
        if self.without_copies(from, chunk).is_some() {
            return;
        }
        let mut scratch = [[T::default(); TILE_LEN]; SOURCE_COUNT_MAX + 1];
        let [result, slots @ ..] = &mut scratch;
        for (index, place) in chunk.chunks_mut(TILE_LEN).enumerate() {
            let (from, len) = (from + index * TILE_LEN, place.len());
            if self.mode == Mode::Update {
                match same_type::<O, T>(place) {
                    Some(place) => slots[0][..len].copy_from_slice(place),
                    None => O::cast_slice(place, &mut slots[0][..len]),
                }
            }
            match same_type_mut::<O, T>(place) {
                Some(place) if self.is_uncached => {
                    self.tile(from, slots, &mut result[..len]);
                    uncached::copy(&result[..len], place);
                }
                Some(place) => self.tile(from, slots, place),
                None => {
                    if self.mode == Mode::UpdateInPlace {
                        O::cast_slice(place, &mut result[..len]);
                    }
                    self.tile(from, slots, &mut result[..len]);
                    T::cast_slice(&result[..len], place);
                }
            }
        }
        if self.is_uncached {
            uncached::fence();
        }
    }

    /// Evaluates a whole chunk of a contiguous destination in place; `None` if the chunk or a
    /// source needs a copy. This saves the calls for each tile, which would delay accesses to
    /// memory.
    fn without_copies<O: Element>(&self, from: usize, chunk: &mut [O]) -> Option<()> {
        if self.is_uncached || self.mode == Mode::Update {
            return None;
        }
        let (formula, to) = (self.formula?, same_type_mut::<O, T>(chunk)?);
        let mut sources: [&[T]; SOURCE_COUNT_MAX] = [&[]; SOURCE_COUNT_MAX];
        for (slot, source) in sources.iter_mut().zip(self.sources) {
            *slot = source.borrow(from, to.len())?;
        }
        formula(&sources[..self.sources.len()], to);
        Some(())
    }

    /// Evaluates `count` elements from element `from` on; `data` starts at place `base` of the
    /// memory.
    fn strided<O: Element>(&self, from: usize, count: usize, base: usize, data: &mut [O]) {
        let mut scratch = [[T::default(); TILE_LEN]; SOURCE_COUNT_MAX + 1];
        let [result, slots @ ..] = &mut scratch;
        for at in (from..from + count).step_by(TILE_LEN) {
            let len = TILE_LEN.min(from + count - at);
            match self.mode {
                Mode::Overwrite => {}
                Mode::Update => gather(data, self.nest, at, base, &mut slots[0][..len]),
                Mode::UpdateInPlace => gather(data, self.nest, at, base, &mut result[..len]),
            }
            self.tile(at, slots, &mut result[..len]);
            scatter(&result[..len], self.nest, at, base, data);
        }
    }

    /// Evaluates one tile. In [`Mode::Update`] the first slot holds the old values of the
    /// destination.
    fn tile(&self, from: usize, slots: &mut [[T; TILE_LEN]; SOURCE_COUNT_MAX], to: &mut [T]) {
        let Some(formula) = self.formula else { return self.sources[0].write(from, to) };
        let len = to.len();
        let mut tiles: [&[T]; SOURCE_COUNT_MAX] = [&[]; SOURCE_COUNT_MAX];
        let held = usize::from(self.mode == Mode::Update);
        for (k, (tile, slot)) in tiles.iter_mut().zip(slots).enumerate() {
            let slot = &mut slot[..len];
            *tile = match k.checked_sub(held).and_then(|k| self.sources.get(k)) {
                None => slot,
                Some(source) => source.borrow(from, len).unwrap_or_else(|| {
                    source.write(from, slot);
                    slot
                }),
            };
        }
        formula(&tiles[..held + self.sources.len()], to);
    }
}
