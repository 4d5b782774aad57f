//! Products with a quantised matrix, which is decoded panel by panel and never as a whole.

use super::Quantized;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Result, TensorError};
use crate::layout::Shape;
use crate::spec::DeviceKind;
use crate::tensor::Tensor;

/// Largest number of elements of a panel, unless a row or column has more. A panel stays in the
/// cache of a processor; a product with a panel keeps a device busy.
fn panel_len(device: &Device) -> usize {
    match device.kind() {
        DeviceKind::Cpu => 1 << 19,
        DeviceKind::Cuda => 1 << 22,
    }
}

/// Lines of a panel of lines with `len` elements; a multiple of 16 if there are at least 16.
fn panel_lines(device: &Device, count: usize, len: usize) -> usize {
    let lines = panel_len(device) / len.max(1);
    let lines = if lines >= 16 { lines / 16 * 16 } else { lines };
    lines.clamp(1, count.max(1))
}

/// Runs `panel` for each panel of `count` lines, with the panel's first line and number of lines.
///
/// If the first panel requests no memory from the allocator, a simulated device runs only the first
/// and the last panel. The panels between are as large and do the same, so only their time is
/// added. These panels would be most of the time of simulating weights in few bits.
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
    /// Bytes of workspace of [`Tensor::linear_quantized`] and of the product of its gradient for a
    /// panel in this type: the larger of both, without rounding. A device's library may take
    /// further workspace.
    pub fn workspace_bytes(&self, dtype: DType) -> usize {
        let [rows, columns] = [self.shape[0], self.shape[1]];
        let by_rows = panel_lines(self.device(), rows, columns) * columns;
        let by_columns = panel_lines(self.device(), columns, rows) * rows;
        by_rows.max(by_columns) * dtype.size_bytes()
    }
}

impl Tensor {
    /// `x Wᵀ + b` for `self = x` and a quantised W. One panel of rows at a time is decoded, in the
    /// type of x. On the CPU, the bits are those of [`Tensor::linear`] with the decoded W.
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

    /// `dy W` for `self = dy`, the gradient of the input of [`Tensor::linear_quantized`]. One panel
    /// of columns at a time is decoded, so that no rounded products are added up.
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

    /// Merges all dimensions but the last one.
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
