//! Windows over images: the inputs in a window, and the windows around an input.
//!
//! All kernels with windows gather, backward ones too. Each row of the destination belongs to one
//! task. Sums are in the type of the computation and follow the order of the outputs.

use std::ops::Range;

use crate::cpu::chunk::{Chunked, for_each_chunk, for_each_chunk2};
use crate::cpu::pool::Pool;
use crate::error::{Result, TensorError};
use crate::layout::Shape;
use crate::tensor::Tensor;

/// The rounding of the number of windows, if the last window does not fit whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SizeRounding {
    /// The last window does not count: PyTorch's default.
    #[default]
    Down,
    /// The last window counts, unless it would start in the padding on the right (`ceil_mode`).
    Up,
}

/// Smallest number of elements of the destination in a task.
const CHUNK_LEN: usize = 8 * 1024;

/// The windows along one dimension of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Axis {
    pub(crate) in_len: usize,
    pub(crate) out_len: usize,
    pub(crate) kind: Kind,
}

/// The places of the windows of an [`Axis`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Window i starts at i · stride - padding.
    Stepped { kernel: usize, stride: usize, padding: usize },
    /// Window i of n goes from ⌊i · in / n⌋ to ⌈(i + 1) · in / n⌉: `start_index` and `end_index` of
    /// PyTorch's AdaptivePooling.h.
    Adaptive,
}

impl Axis {
    pub(crate) fn adaptive(in_len: usize, out_len: usize) -> Self {
        Axis { in_len, out_len, kind: Kind::Adaptive }
    }

    /// The inputs in window `at`.
    pub(crate) fn window(&self, at: usize) -> Range<usize> {
        match self.kind {
            Kind::Stepped { kernel, stride, padding } => {
                let end = (at * stride + kernel).saturating_sub(padding).min(self.in_len);
                (at * stride).saturating_sub(padding).min(end)..end
            }
            Kind::Adaptive => {
                let (n, len) = (self.out_len, self.in_len);
                at * len / n..((at + 1) * len).div_ceil(n)
            }
        }
    }

    /// Number of places in window `at`, padding included. If the number of windows is rounded up,
    /// the last window may have places beyond the padding, which do not count.
    pub(crate) fn padded_len(&self, at: usize) -> usize {
        match self.kind {
            Kind::Stepped { kernel, stride, padding } => {
                (at * stride + kernel).min(self.in_len + 2 * padding) - at * stride
            }
            Kind::Adaptive => self.window(at).len(),
        }
    }

    /// The windows that hold input `at`.
    pub(crate) fn covering(&self, at: usize) -> Range<usize> {
        match self.kind {
            Kind::Stepped { kernel, stride, padding } => {
                let end = ((at + padding) / stride + 1).min(self.out_len);
                ((at + padding + 1).saturating_sub(kernel).div_ceil(stride)).min(end)..end
            }
            Kind::Adaptive => {
                let (n, len) = (self.out_len, self.in_len);
                at * n / len..((at + 1) * n).div_ceil(len)
            }
        }
    }
}

/// Number of windows that span `reach` places; `None` if no window fits. `pooling_output_shape` of
/// PyTorch's Pool.h.
pub(crate) fn window_count(
    in_len: usize,
    reach: usize,
    stride: usize,
    padding: usize,
    rounding: SizeRounding,
) -> Option<usize> {
    if in_len == 0 || reach == 0 || stride == 0 || padding > reach / 2 {
        return None;
    }
    let slack = if rounding == SizeRounding::Up { stride - 1 } else { 0 };
    let room = in_len.checked_add(2 * padding)?.checked_add(slack)?.checked_sub(reach)?;
    let last = room / stride;
    // The last window must start inside the input or in the padding on the left.
    let is_beyond = rounding == SizeRounding::Up && last * stride >= in_len + padding;
    Some(if is_beyond { last } else { last + 1 })
}

/// A pair of sizes for an error; a shape without dimensions if the product of the sizes overflows.
pub(crate) fn pair_shape(pair: [usize; 2]) -> Shape {
    Shape::shown(&pair)
}

/// `x: [B, C, H, W]` with another height and width; `None` if no tensor can have that many
/// elements.
pub(crate) fn with_size(x: &Shape, size: [usize; 2]) -> Option<Shape> {
    let dims = [x[0], x[1], size[0], size[1]];
    dims.iter().try_fold(1usize, |len, &dim| len.checked_mul(dim))?;
    Some(dims.into())
}

/// Batch, channels, height and width of `shape`.
pub(crate) fn check_image(op: &'static str, shape: &Shape, right: Shape) -> Result<[usize; 4]> {
    let mismatch = TensorError::Shape { op, left: *shape, right };
    <[usize; 4]>::try_from(&**shape).map_err(|_| mismatch)
}

/// `x: [B, C, L]` as an image one row high, `[B, C, 1, L]`. An error shows `right`, too.
pub(crate) fn image_of_sequence(op: &'static str, x: &Tensor, right: Shape) -> Result<Tensor> {
    image_shape_of_sequence(op, x.shape(), right)?;
    x.unsqueeze(2)
}

/// The shape of [`image_of_sequence`] for a shape.
pub(crate) fn image_shape_of_sequence(op: &'static str, x: &Shape, right: Shape) -> Result<Shape> {
    match **x {
        [batch, channels, len] => Ok([batch, channels, 1, len].into()),
        _ => Err(TensorError::Shape { op, left: *x, right }),
    }
}

/// Calls `row(plane, row, to)` for each row of planes of `height` rows of `width` elements.
pub(crate) fn for_each_row<E: Send>(
    pool: &Pool,
    to: &mut [E],
    [height, width]: [usize; 2],
    row: impl Fn(usize, usize, &mut [E]) + Sync,
) {
    let rows = rows_per_chunk(width);
    for_each_chunk(pool, to, rows * width, |chunk, to| {
        for (index, to) in to.chunks_exact_mut(width).enumerate() {
            let at = chunk * rows + index;
            row(at / height, at % height, to);
        }
    });
}

/// [`for_each_row`] over two destinations at once.
pub(crate) fn for_each_row2<E: Send, F: Send>(
    pool: &Pool,
    [height, width]: [usize; 2],
    a: &mut [E],
    b: &mut [F],
    row: impl Fn(usize, usize, &mut [E], &mut [F]) + Sync,
) {
    let rows = rows_per_chunk(width);
    let (a, b) = (Chunked::new(a, rows * width), Chunked::new(b, rows * width));
    for_each_chunk2(pool, a, b, |chunk, a, b| {
        let both = a.chunks_exact_mut(width).zip(b.chunks_exact_mut(width));
        for (index, (a, b)) in both.enumerate() {
            let at = chunk * rows + index;
            row(at / height, at % height, a, b);
        }
    });
}

fn rows_per_chunk(width: usize) -> usize {
    (CHUNK_LEN / width.max(1)).max(1)
}
