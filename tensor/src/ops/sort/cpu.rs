//! Rows are sorted as words with the key in the high bits and the position in the low bits, so that
//! an unstable sort of words is a stable sort of elements. If a key needs a whole word, rows are
//! sorted as pairs of words.

use super::SortOrder;
use super::key::Sortable;
use super::ranked::Rank;
use crate::cpu::Cpu;
use crate::cpu::chunk::{Chunked, for_each_chunk, for_each_chunk3};
use crate::dtype::DType;
use crate::layout::Nest;
use crate::operand_view::View;

/// Elements of a task of several rows.
const TASK_LEN: usize = 1 << 13;
/// The largest position that fits below a short key.
const POSITION_MAX: usize = u32::MAX as usize;

/// Number of words, beside the positions, for sorting `len` elements in rows. The positions of
/// whole rows are memory for the words.
pub(super) fn word_count(dtype: DType, len: usize, row_len: usize, kept_len: usize) -> usize {
    let is_short = !matches!(dtype, DType::F64 | DType::I64) && row_len <= POSITION_MAX;
    match (is_short, kept_len == row_len) {
        (true, true) => 0,
        (true, false) => len,
        (false, _) => 2 * len,
    }
}

/// The rows of a task.
struct Rows<'a, T> {
    positions: &'a mut [i64],
    words: &'a mut [i64],
    values: Option<&'a mut [T]>,
}

pub(super) fn sort<T: Sortable>(
    cpu: &Cpu,
    (order, kept_len): (SortOrder, usize),
    x: View<'_, T>,
    positions: &mut [i64],
    words: &mut [i64],
    values: Option<&mut [T]>,
) {
    let len = x.layout().shape().element_count();
    let row_len = x.layout().shape().last().copied().unwrap_or(1);
    if len == 0 || kept_len == 0 {
        return;
    }
    let rows = (TASK_LEN / row_len).max(1);
    let words_len = word_count(T::DTYPE, rows * row_len, row_len, kept_len);
    let mut words = words.chunks_mut(words_len.max(1));
    let mut values = values.map(|values| values.chunks_mut(rows * kept_len));
    let mut tasks: Vec<Rows<'_, T>> = positions
        .chunks_mut(rows * kept_len)
        .map(|positions| Rows {
            positions,
            words: if words_len == 0 { &mut [] } else { words.next().unwrap_or_default() },
            values: values.as_mut().and_then(Iterator::next),
        })
        .collect();
    let nest = Nest::new(x.layout().shape(), [x.layout().strides()]);
    let sorter = Sorter { order, kept_len, row_len, data: x.data(), nest };
    for_each_chunk(cpu.pool(), &mut tasks, 1, |task, part| {
        let Rows { positions, words, values } = &mut part[0];
        let words_len = word_count(T::DTYPE, row_len, row_len, kept_len);
        for (index, positions) in positions.chunks_mut(kept_len).enumerate() {
            let words = &mut words[index * words_len..][..words_len];
            let row = task * rows + index;
            sorter.sort_row(row, positions, words);
            if let Some(values) = values {
                let values = &mut values[index * kept_len..][..kept_len];
                sorter.pick(row, positions, values);
            }
        }
    });
}

struct Sorter<'a, T> {
    order: SortOrder,
    kept_len: usize,
    row_len: usize,
    data: &'a [T],
    nest: Nest<1>,
}

impl<T: Sortable> Sorter<'_, T> {
    /// Calls `visit(position, element)` for the elements of a row.
    fn each(&self, row: usize, mut visit: impl FnMut(usize, T)) {
        let [step] = self.nest.inner_strides();
        let from = row * self.row_len;
        let mut at = 0;
        self.nest.rows(from, from + self.row_len, |run| {
            let data = &self.data[run.starts[0]..];
            for i in 0..run.len {
                visit(at + i, data[i * step]);
            }
            at += run.len;
        });
    }

    /// The rank of an element in the order.
    fn rank(&self, x: T) -> u64 {
        match self.order {
            SortOrder::Ascending => x.key(),
            SortOrder::Descending if T::IS_SHORT => u64::from(u32::MAX) - x.key(),
            SortOrder::Descending => !x.key(),
        }
    }

    fn sort_row(&self, row: usize, positions: &mut [i64], words: &mut [i64]) {
        if T::IS_SHORT && self.row_len <= POSITION_MAX {
            if self.kept_len == self.row_len {
                self.sort_words(row, bytemuck::cast_slice_mut(positions));
                positions.iter_mut().for_each(|word| *word &= POSITION_MAX as i64);
                return;
            }
            self.sort_words(row, bytemuck::cast_slice_mut(words));
            let kept = positions.iter_mut().zip(words);
            kept.for_each(|(position, word)| *position = *word & POSITION_MAX as i64);
            return;
        }
        let pairs: &mut [[u64; 2]] = bytemuck::cast_slice_mut(words);
        self.each(row, |at, x| pairs[at] = [self.rank(x), at as u64]);
        keep_first(pairs, self.kept_len);
        positions.iter_mut().zip(pairs).for_each(|(position, pair)| *position = pair[1] as i64);
    }

    /// Brings the first `kept_len` words of a row to the front, in order.
    fn sort_words(&self, row: usize, words: &mut [u64]) {
        self.each(row, |at, x| words[at] = self.rank(x) << 32 | at as u64);
        keep_first(words, self.kept_len);
    }

    /// Copies the elements of a row at these positions.
    fn pick(&self, row: usize, positions: &[i64], values: &mut [T]) {
        let from = row * self.row_len;
        let [step] = self.nest.inner_strides();
        let mut start = None;
        self.nest.rows(from, from + self.row_len, |run| {
            // A row along one dimension is one run: merged dimensions never split it.
            start.get_or_insert(run.starts[0]);
        });
        let data = &self.data[start.unwrap_or_default()..];
        let picked = positions.iter().zip(values);
        picked.for_each(|(&at, value)| *value = data[at as usize * step]);
    }
}

/// Brings the `count` smallest words to the front, in order.
fn keep_first<W: Ord>(words: &mut [W], count: usize) {
    if count < words.len() {
        words.select_nth_unstable(count);
    }
    words[..count].sort_unstable();
}

/// A sorted element: its key, then its position.
trait Word: Ord + Copy {
    fn of(key: u64, position: usize) -> Self;
    fn key(self) -> u64;
    fn position(self) -> usize;
}

impl Word for u64 {
    fn of(key: u64, position: usize) -> Self {
        key << 32 | position as u64
    }

    fn key(self) -> u64 {
        self >> 32
    }

    fn position(self) -> usize {
        (self & POSITION_MAX as u64) as usize
    }
}

impl Word for [u64; 2] {
    fn of(key: u64, position: usize) -> Self {
        [key, position as u64]
    }

    fn key(self) -> u64 {
        self[0]
    }

    fn position(self) -> usize {
        self[1] as usize
    }
}

/// The element of each row at this rank, and its position.
pub(super) fn pick<T: Sortable>(
    cpu: &Cpu,
    rank: Rank,
    x: View<'_, T>,
    (values, positions): (&mut [T], &mut [i64]),
    words: &mut [i64],
) {
    let row_len = x.layout().shape().last().copied().unwrap_or(1);
    let rows = (TASK_LEN / row_len.max(1)).max(1);
    let words_len = word_count(T::DTYPE, row_len, row_len, usize::MAX);
    let nest = Nest::new(x.layout().shape(), [x.layout().strides()]);
    let order = SortOrder::Ascending;
    let sorter = Sorter { order, kept_len: row_len, row_len, data: x.data(), nest };
    let (values, positions) = (Chunked::new(values, rows), Chunked::new(positions, rows));
    let words = Chunked::new(words, rows * words_len);
    for_each_chunk3(cpu.pool(), values, positions, words, |task, values, positions, words| {
        let picked = values.iter_mut().zip(positions);
        for (index, (value, position)) in picked.enumerate() {
            let (row, words) = (task * rows + index, &mut words[index * words_len..][..words_len]);
            let at = match words_len == row_len {
                true => sorter.pick_from::<u64>(row, rank, bytemuck::cast_slice_mut(words)),
                false => sorter.pick_from::<[u64; 2]>(row, rank, bytemuck::cast_slice_mut(words)),
            };
            *position = at as i64;
            sorter.pick(row, &[at as i64], std::slice::from_mut(value));
        }
    });
}

impl<T: Sortable> Sorter<'_, T> {
    /// The position of a row's element at this rank.
    fn pick_from<W: Word>(&self, row: usize, rank: Rank, words: &mut [W]) -> usize {
        let mut nan_count = 0;
        self.each(row, |at, x| {
            nan_count += usize::from(x.partial_cmp(&x).is_none());
            words[at] = W::of(self.rank(x), at);
        });
        let numbers = words.len() - nan_count;
        let before = match rank {
            Rank::Number(before) => before,
            // The first NaN follows all numbers.
            Rank::Median if nan_count > 0 => numbers,
            Rank::Median => (words.len() - 1) / 2,
            Rank::MedianOfNumbers => numbers.saturating_sub(1) / 2,
            Rank::Mode => {
                words.sort_unstable();
                return mode(words);
            }
        };
        words.select_nth_unstable(before).1.position()
    }
}

/// The last position of the most frequent key; of equally frequent keys, the first.
fn mode<W: Word>(words: &[W]) -> usize {
    let (mut longest, mut position) = (0, 0);
    for run in words.chunk_by(|a, b| a.key() == b.key()) {
        if run.len() > longest {
            (longest, position) = (run.len(), run[run.len() - 1].position());
        }
    }
    position
}
