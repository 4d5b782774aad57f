//! Products with a quantised matrix, a panel of which is decoded at a time: never the whole.

use super::Quantized;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Result, TensorError};
use crate::layout::Shape;
use crate::spec::DeviceKind;
use crate::tensor::Tensor;

/// Elements of a panel at most, but for matrices whose rows or columns have more: so that it stays
/// in the cache of a processor, and that a product with one keeps a device busy.
fn panel_len(device: &Device) -> usize {
    match device.kind() {
        DeviceKind::Cpu => 1 << 19,
        DeviceKind::Cuda => 1 << 22,
    }
}

/// Lines of a panel, each of `len` elements; a multiple of 16 where there are more.
fn panel_lines(device: &Device, count: usize, len: usize) -> usize {
    let lines = panel_len(device) / len.max(1);
    let lines = if lines >= 16 { lines / 16 * 16 } else { lines };
    lines.clamp(1, count.max(1))
}

/// Runs `panel` for each panel of `count` lines, with its first line and how many it has.
///
/// On a simulated device the panels between the first and the last are not run if the first takes
/// no memory of the allocator: they are as large and do the same, so that all there is of them is
/// their time. They are most of a rehearsal beside weights in few bits.
fn for_each_panel(
    device: &Device,
    count: usize,
    lines: usize,
    mut panel: impl FnMut(usize, usize) -> Result<()>,
) -> Result<()> {
    let requests = device.allocator().request_count();
    let begin = device.simulation().map(|sim| (sim, sim.time()));
    let mut first = 0;
    while first < count {
        panel(first, lines.min(count - first))?;
        if let (0, Some((sim, begin))) = (first, &begin)
            && device.allocator().request_count() == requests
        {
            let between = count.div_ceil(lines).saturating_sub(2);
            sim.repeat_since(begin, between);
            first += between * lines;
        }
        first += lines;
    }
    Ok(())
}

impl Quantized {
    /// Bytes of workspace that [`Tensor::linear_quantized`] and the product of its gradient take
    /// for a panel, in this type: the larger of both, without rounding. A device's library may take
    /// more for its own.
    pub fn workspace_bytes(&self, dtype: DType) -> usize {
        let [rows, columns] = [self.shape[0], self.shape[1]];
        let by_rows = panel_lines(self.device(), rows, columns) * columns;
        let by_columns = panel_lines(self.device(), columns, rows) * rows;
        by_rows.max(by_columns) * dtype.size_bytes()
    }
}

impl Tensor {
    /// `x Wᵀ + b` for `self = x` and a quantised W, of which a panel of rows is decoded at a time,
    /// in the type of x: the bits of [`Tensor::linear`] with the decoded W on the CPU.
    ///
    /// # Shapes
    /// `x: [.., I], w: [O, I], b: [O] → [.., O]`
    ///
    /// # Errors
    /// `Shape`, `DType` unless x and b have one float type, `OutOfMemory`.
    #[track_caller]
    pub fn linear_quantized(&self, w: &Quantized, bias: Option<&Tensor>) -> Result<Tensor> {
        let op = "linear_quantized";
        let [rows, columns] = [w.shape[0], w.shape[1]];
        let x = self.rows_of(op, w, columns)?;
        if let Some(bias) = bias {
            self.check_dtype(op, bias)?;
            bias.check_shape(op, [rows])?;
        }
        let y = Tensor::empty(self.device(), [x.shape()[0], rows], self.dtype())?;
        let lines = panel_lines(self.device(), rows, columns);
        let panel = Tensor::workspace(self.device(), lines * columns, self.dtype())?;
        let bias = bias.map(Tensor::contiguous).transpose()?;
        for_each_panel(self.device(), rows, lines, |first, count| {
            let part = panel.narrow(0, 0, count * columns)?.reshape([count, columns])?;
            w.decode_into(&part, [first, 0])?;
            let bias = bias.as_ref().map(|bias| bias.narrow(0, first, count)).transpose()?;
            let y = y.narrow(1, first, count)?;
            y.multiply_with_bias(op, &x, &part.transpose(0, 1)?, bias.as_ref())
        })?;
        y.reshape(self.with_last(rows))
    }

    /// `dy W` for `self = dy`, the gradient of the input of [`Tensor::linear_quantized`]: a panel
    /// of columns is decoded at a time, so that nothing is added up that a product had rounded.
    ///
    /// # Shapes
    /// `dy: [.., O], w: [O, I] → [.., I]`
    ///
    /// # Errors
    /// The errors of [`Tensor::linear_quantized`].
    #[track_caller]
    pub fn linear_quantized_backward(&self, w: &Quantized) -> Result<Tensor> {
        let op = "linear_quantized_backward";
        let [rows, columns] = [w.shape[0], w.shape[1]];
        let dy = self.rows_of(op, w, rows)?;
        let dx = Tensor::empty(self.device(), [dy.shape()[0], columns], self.dtype())?;
        let lines = panel_lines(self.device(), columns, rows);
        let panel = Tensor::workspace(self.device(), lines * rows, self.dtype())?;
        for_each_panel(self.device(), columns, lines, |first, count| {
            let part = panel.narrow(0, 0, rows * count)?.reshape([rows, count])?;
            w.decode_into(&part, [0, first])?;
            dx.narrow(1, first, count)?.multiply_with_bias(op, &dy, &part, None)
        })?;
        dx.reshape(self.with_last(columns))
    }

    /// All dimensions but the last as one.
    pub(super) fn rows_of(
        &self,
        op: &'static str,
        w: &Quantized,
        columns: usize,
    ) -> Result<Tensor> {
        self.check_any_float(op)?;
        let outer = match self.shape().split_last() {
            Some((&last, outer)) if last == columns => outer.iter().product(),
            _ => {
                let (left, right) = (*self.shape(), w.shape);
                return Err(TensorError::Shape { op, left, right });
            }
        };
        self.reshape([outer, columns])
    }

    /// This shape with another last dimension.
    pub(super) fn with_last(&self, last: usize) -> Shape {
        let outer = self.shape().split_last().map_or(&[][..], |(_, outer)| outer);
        Shape::new(&[outer, &[last]].concat())
    }
}
