//! The triangles of matrices: `triu` and `tril`.

#[cfg(feature = "cuda")]
mod cuda;

use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::cpu::tiles::{Formula, Mode, Order, Source, Strided, evaluate};
use crate::dtype::{DType, Element, for_each_dtype};
use crate::error::{Result, TensorError};
use crate::launch::{FullKernel, Operands};
use crate::layout::Shape;
use crate::tensor::Tensor;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Side {
    Upper,
    Lower,
}

/// The elements of matrices that are kept; the others become 0.
#[derive(Clone, Copy, Debug)]
struct Triangle {
    side: Side,
    diagonal: isize,
    row_count: usize,
    column_count: usize,
}

impl Triangle {
    /// The first column of `row` on the kept triangle's boundary. For the upper triangle, columns
    /// from it on are kept; for the lower triangle, columns before it.
    fn boundary(&self, row: usize) -> usize {
        let shift = self.diagonal + isize::from(self.side == Side::Lower);
        row.saturating_add_signed(shift).min(self.column_count)
    }
}

/// A mask: 1 for kept elements, 0 for the others.
impl<T: Element> Source<T> for Triangle {
    fn write(&self, from: usize, to: &mut [T]) {
        let (mut row, mut column) = (from / self.column_count, from % self.column_count);
        row %= self.row_count;
        let (above, below) = match self.side {
            Side::Upper => (T::from_f32(1.0), T::default()),
            Side::Lower => (T::default(), T::from_f32(1.0)),
        };
        let mut to = to;
        while !to.is_empty() {
            let (part, next) = to.split_at_mut((self.column_count - column).min(to.len()));
            let cut = self.boundary(row).saturating_sub(column).min(part.len());
            part[..cut].fill(below);
            part[cut..].fill(above);
            (to, column, row) = (next, 0, (row + 1) % self.row_count);
        }
    }
}

struct Keep {
    name: &'static str,
    triangle: Triangle,
    dtype: DType,
    len: usize,
}

impl FullKernel for Keep {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cost(&self) -> Cost {
        Cost {
            class: OpClass::Elementwise,
            flops: 0.0,
            bytes: 2.0 * (self.len * self.dtype.size_bytes()) as f64,
        }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        let order = Order::row_major();
        for_each_dtype!(self.dtype, T => {
            let zero = T::default();
            let out = operands.write::<T>(0);
            if operands.read_count() == 0 {
                let formula: Formula<'_, T> = &|sources, to| {
                    to.iter_mut().zip(sources[0]).for_each(|(y, keep)| {
                        *y = if *keep != zero { *y } else { zero };
                    });
                };
                let mode = Mode::UpdateInPlace;
                evaluate::<T, T>(cpu, out, &order, mode, &[&self.triangle], Some(formula));
            } else {
                let x = Strided::new(operands.read::<T>(0), &order);
                let formula: Formula<'_, T> = &|sources, to| {
                    let sources = sources[0].iter().zip(sources[1]);
                    to.iter_mut().zip(sources).for_each(|(y, (x, keep))| {
                        *y = if *keep != zero { *x } else { zero };
                    });
                };
                let mode = Mode::Overwrite;
                evaluate::<T, T>(cpu, out, &order, mode, &[&x, &self.triangle], Some(formula));
            }
        });
        Ok(())
    }
}

impl Tensor {
    fn triangle(&self, name: &'static str, side: Side, diagonal: isize) -> Result<Keep> {
        let &[.., row_count, column_count] = &**self.shape() else {
            let right = Shape::from([1, 1]);
            return Err(TensorError::Shape { op: name, left: *self.shape(), right });
        };
        // Beyond the matrix, all diagonals have the same effect.
        let reach = |len: usize| isize::try_from(len).unwrap_or(isize::MAX).saturating_add(1);
        let diagonal = diagonal.clamp(-reach(row_count), reach(column_count).min(isize::MAX - 1));
        let triangle = Triangle { side, diagonal, row_count, column_count };
        Ok(Keep { name, triangle, dtype: self.dtype(), len: self.element_count() })
    }

    #[track_caller]
    fn kept(&self, name: &'static str, side: Side, diagonal: isize) -> Result<Tensor> {
        let kernel = self.triangle(name, side, diagonal)?;
        let y = Tensor::empty(self.device(), *self.shape(), self.dtype())?;
        self.device().launch(kernel, &[self], &[&y])?;
        Ok(y)
    }

    /// The matrices of the last two dimensions with zeros below the `diagonal`. Diagonal 0 is the
    /// main one; positive diagonals are above it.
    ///
    /// # Errors
    /// `Shape` for fewer than two dimensions, `OutOfMemory`.
    #[track_caller]
    pub fn triu(&self, diagonal: isize) -> Result<Tensor> {
        self.kept("triu", Side::Upper, diagonal)
    }

    /// The matrices of the last two dimensions with zeros above the `diagonal`; see
    /// [`Tensor::triu`].
    ///
    /// # Errors
    /// As [`Tensor::triu`].
    #[track_caller]
    pub fn tril(&self, diagonal: isize) -> Result<Tensor> {
        self.kept("tril", Side::Lower, diagonal)
    }

    /// [`Tensor::triu`] in place.
    ///
    /// # Errors
    /// `Shape` for fewer than two dimensions, `Frozen`, `Overlap` (on an expanded view).
    #[track_caller]
    pub fn triu_(&mut self, diagonal: isize) -> Result<()> {
        let kernel = self.triangle("triu", Side::Upper, diagonal)?;
        self.device().launch(kernel, &[], &[self])
    }

    /// [`Tensor::tril`] in place; errors as [`Tensor::triu_`].
    #[track_caller]
    pub fn tril_(&mut self, diagonal: isize) -> Result<()> {
        let kernel = self.triangle("tril", Side::Lower, diagonal)?;
        self.device().launch(kernel, &[], &[self])
    }
}
