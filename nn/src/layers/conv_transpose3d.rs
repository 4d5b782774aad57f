//! Three-dimensional transposed convolution, made of transposed convolutions of images; x: [B, I,
//! D, H, W], W: [I, O / groups, KD, KH, KW], y: [B, O, D', H', W'].

use std::ops::Range;

use lowtide_autograd::{Needs, Pass, Var};
use lowtide_tensor::{ConvTranspose2dGeometry, Device, RandomKey, Tensor, TensorError};

use crate::error::Result;
use crate::layers::kernel;
use crate::layers::weight_norm::{Weighted, weighted};
use crate::module::Module;
use crate::node::parameters;
use crate::parameter::Parameter;

/// Options of a transposed convolution of volumes, in the order depth, height, width, with
/// PyTorch's defaults. The options are those of the convolution whose gradient this operation
/// computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvTranspose3dGeometry {
    /// Distance in the result between the windows of two inputs, at least 1.
    pub stride: [usize; 3],
    /// Number of positions cut from each side of the result.
    pub padding: [usize; 3],
    /// Number of positions added at the end of the result, less than the stride.
    pub output_padding: [usize; 3],
    /// Distance between the elements of the kernel, at least 1.
    pub dilation: [usize; 3],
    /// Number of independent convolutions; divides the numbers of input and output channels.
    pub groups: usize,
}

impl Default for ConvTranspose3dGeometry {
    fn default() -> Self {
        ConvTranspose3dGeometry {
            stride: [1; 3],
            padding: [0; 3],
            output_padding: [0; 3],
            dilation: [1; 3],
            groups: 1,
        }
    }
}

impl ConvTranspose3dGeometry {
    /// The options for the slices, as images.
    fn flat(self) -> ConvTranspose2dGeometry {
        let flat = |[_, rows, columns]: [usize; 3]| [rows, columns];
        ConvTranspose2dGeometry {
            stride: flat(self.stride),
            padding: flat(self.padding),
            output_padding: flat(self.output_padding),
            dilation: flat(self.dilation),
            groups: self.groups,
        }
    }

    /// `D' = (D - 1) stride - 2 padding + dilation (KD - 1) + output_padding + 1`; `None` if that
    /// is not valid.
    fn depth(&self, depth: usize, kernel: usize) -> Option<usize> {
        if self.output_padding[0] >= self.stride[0] || self.dilation[0] == 0 {
            return None;
        }
        let span = depth.checked_sub(1)?.checked_mul(self.stride[0])?;
        let reach = kernel.checked_sub(1)?.checked_mul(self.dilation[0])?;
        let whole = span.checked_add(reach)?.checked_add(self.output_padding[0] + 1)?;
        whole.checked_sub(self.padding[0].checked_mul(2)?).filter(|&len| len > 0)
    }
}

/// The transposed convolution of volumes with `w`, plus `b` for each output channel,
/// `torch.nn.functional.conv_transpose3d`. Each slice of the kernel is a transposed convolution of
/// images; its result is added at its positions along the depth. Takes the memory of one more
/// result.
///
/// # Shapes
/// `x: [B, I, D, H, W]`, `w: [I, O / groups, KD, KH, KW]`, `b: [O]`, `→ [B, O, D', H', W']` with
/// `D' = (D - 1) stride - 2 padding + dilation (KD - 1) + output_padding + 1`; the formulas of `H'`
/// and `W'` are alike.
///
/// # Errors
/// `Shape`, also for an empty result; `DType`, `OutOfMemory`.
pub fn conv_transpose3d(
    x: Var,
    w: Var,
    b: Option<Var>,
    geometry: ConvTranspose3dGeometry,
) -> Result<Var> {
    let dtype = x.value().dtype();
    if dtype.is_float() && dtype != dtype.computed() && w.value().dtype() == dtype {
        // The sum over the slices is rounded once.
        let wide = |x: Var| x.to_dtype(dtype.computed());
        let (x, w, b) = (wide(x)?, wide(w)?, b.map(wide).transpose()?);
        return Ok(conv_transpose3d(x, w, b, geometry)?.to_dtype(dtype)?);
    }
    let (left, right) = (*x.shape(), *w.shape());
    let unfit = || TensorError::Shape { op: "conv_transpose3d", left, right };
    let &[batch, inputs, depth, height, width] = &left[..] else { return Err(unfit().into()) };
    let &[.., kernel, _, _] = &right[..] else { return Err(unfit().into()) };
    let out_depth = geometry.depth(depth, kernel).filter(|_| right.len() == 5);
    let out_depth = out_depth.ok_or_else(unfit)?;
    let images = x.transpose(1, 2)?.reshape([batch * depth, inputs, height, width])?;
    let (device, pass) = (images.value().device().clone(), images.pass().clone());
    let mut sum: Option<Var> = None;
    for slice in 0..kernel {
        let part =
            images.clone().conv_transpose2d(w.clone().select(2, slice)?, None, geometry.flat())?;
        let &[_, outputs, rows, columns] = &part.shape()[..] else { return Err(unfit().into()) };
        let place = |at: usize| {
            let place = at * geometry.stride[0] + slice * geometry.dilation[0];
            place.checked_sub(geometry.padding[0]).filter(|&place| place < out_depth)
        };
        let before = match sum {
            Some(sum) => sum,
            None => {
                let shape = [batch, out_depth, outputs, rows, columns];
                pass.constant(Tensor::zeros(&device, shape, dtype)?)
            }
        };
        // Padding removes slices at both ends.
        let kept: Vec<usize> = (0..depth).filter(|&at| place(at).is_some()).collect();
        let (Some(&first), Some(&last)) = (kept.first(), kept.last()) else {
            sum = Some(before);
            continue;
        };
        let part = part.reshape([batch, depth, outputs, rows, columns])?;
        let part = part.narrow(1, first, kept.len())?;
        let (start, end) = (place(first).unwrap_or(0), place(last).unwrap_or(0) + 1);
        sum = Some(added(before, part, start..end, geometry.stride[0])?);
    }
    let y = sum.ok_or_else(unfit)?.transpose(1, 2)?;
    let Some(b) = b else { return Ok(y.contiguous()?) };
    if b.shape()[..] != [y.shape()[1]] {
        return Err(unfit().into());
    }
    let outputs = y.shape()[1];
    Ok(y.add(b.reshape([outputs, 1, 1, 1])?)?)
}

/// `sum` with `part` added at every `step`-th of `positions` along axis 1. Saves nothing.
fn added(sum: Var, part: Var, positions: Range<usize>, step: usize) -> Result<Var> {
    Ok(Var::apply("conv_transpose3d", [sum, part], |[sum, part], _| {
        let y = if sum.is_reusable() { sum } else { sum.copied()? };
        y.slice(1, positions.clone(), step)?.add_(&part)?;
        // dsum = dy, dpart = dy at these positions
        let rule = move |dy: Tensor, needs: Needs| {
            let dpart = needs.input(1).then(|| dy.slice(1, positions, step)).transpose()?;
            Ok(vec![needs.input(0).then_some(dy), dpart])
        };
        Ok((y, rule))
    })?)
}

/// A transposed convolution layer of volumes, `torch.nn.ConvTranspose3d`.
#[derive(Clone, Debug)]
pub struct ConvTranspose3d {
    weight: Parameter,
    bias: Option<Parameter>,
    geometry: ConvTranspose3dGeometry,
}

impl ConvTranspose3d {
    /// A layer from `inputs` to `outputs` channels with a kernel of (depth, height, width) and a
    /// bias per output channel. As in PyTorch, the bound of the initial values counts the second
    /// dimension of the weight as inputs.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn new(
        device: &Device,
        key: RandomKey,
        channels: [usize; 2],
        kernel: [usize; 3],
        geometry: ConvTranspose3dGeometry,
    ) -> Result<Self> {
        let layer = Self::without_bias(device, key, channels, kernel, geometry)?;
        let bias = kernel::bias(device, key, channels[1], &layer.weight)?;
        Ok(ConvTranspose3d { bias: Some(bias), ..layer })
    }

    /// [`ConvTranspose3d::new`] without a bias.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn without_bias(
        device: &Device,
        key: RandomKey,
        [inputs, outputs]: [usize; 2],
        [depth, height, width]: [usize; 3],
        geometry: ConvTranspose3dGeometry,
    ) -> Result<Self> {
        let shape = [inputs, outputs / geometry.groups.max(1), depth, height, width];
        let weight = kernel::weight(device, key, shape)?;
        Ok(ConvTranspose3d { weight, bias: None, geometry })
    }
}

parameters!(ConvTranspose3d { weight, bias });

impl Module for ConvTranspose3d {
    /// # Shapes
    /// `input: [B, I, D, H, W] → [B, O, D', H', W']`
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        self.forward_with(pass, self.weight.var(pass)?, input)
    }
}

weighted!(ConvTranspose3d, |self, input, weight, bias| conv_transpose3d(
    input,
    weight,
    bias,
    self.geometry
));
