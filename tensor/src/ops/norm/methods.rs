//! The methods of layer, root mean square and group normalisation.

use super::backward::Cut;
use super::operands::{check_parameters, check_statistics, contiguous};
use super::{Backward, Center, Forward, Norm};
use crate::error::{Result, TensorError};
use crate::layout::Shape;
use crate::ops::workspace::Workspace;
use crate::tensor::Tensor;

/// The results of a normalisation.
#[derive(Clone, Debug)]
pub struct Normalized {
    /// The result, of the input's shape and type.
    pub y: Tensor,
    /// The mean of each row, in f32 or f64; `None` for [`Tensor::rms_norm`].
    pub mean: Option<Tensor>,
    /// `1 / √(variance + eps)` of each row, in f32 or f64.
    pub rstd: Tensor,
}

/// The gradients through a normalisation.
#[derive(Clone, Debug)]
pub struct NormalizedBackward {
    /// The gradient of the input.
    pub dx: Tensor,
    /// The gradients of the weight and of the bias, if there is a weight.
    pub parameters: Option<[Tensor; 2]>,
}

impl Tensor {
    #[track_caller]
    fn normalize(
        &self,
        norm: Norm,
        statistics_shape: Shape,
        parameter_shape: Shape,
        [weight, bias]: [Option<&Tensor>; 2],
    ) -> Result<Normalized> {
        let op = norm.name;
        check_parameters(op, self, [weight, bias], parameter_shape)?;
        let (x, weight, bias) = (self.contiguous()?, contiguous(weight)?, contiguous(bias)?);
        let y = Tensor::empty(self.device(), *self.shape(), self.dtype())?;
        let statistics = || Tensor::empty(self.device(), statistics_shape, self.dtype().computed());
        let rstd = statistics()?;
        let mean = (norm.center == Center::Mean).then(statistics).transpose()?;
        let has = [weight.is_some(), bias.is_some()];
        let reads: Vec<&Tensor> =
            [Some(&x), weight.as_ref(), bias.as_ref()].into_iter().flatten().collect();
        let writes: Vec<&Tensor> =
            [Some(&y), Some(&rstd), mean.as_ref()].into_iter().flatten().collect();
        self.device().launch(Forward { norm, has }, &reads, &writes)?;
        Ok(Normalized { y, mean, rstd })
    }

    /// The gradients through a normalisation, for `self = dy`.
    #[track_caller]
    fn normalize_backward(
        &self,
        norm: Norm,
        parameter_shape: Shape,
        x: &Tensor,
        [mean, rstd]: [Option<&Tensor>; 2],
        weight: Option<&Tensor>,
    ) -> Result<NormalizedBackward> {
        let (op, device, dtype) = (norm.name, self.device(), self.dtype());
        x.check_dtype(op, self)?;
        self.check_shape(op, *x.shape())?;
        check_parameters(op, self, [weight], parameter_shape)?;
        let (dy, x) = (self.contiguous()?, x.contiguous()?);
        let (mean, rstd, weight) = (contiguous(mean)?, contiguous(rstd)?, contiguous(weight)?);
        let dx = Tensor::empty(device, *x.shape(), dtype)?;
        let reads: Vec<&Tensor> =
            [Some(&dy), Some(&x), rstd.as_ref(), mean.as_ref(), weight.as_ref()]
                .into_iter()
                .flatten()
                .collect();
        let has_weight = weight.is_some();
        let kernel = Backward { norm, has_weight };
        if !has_weight {
            device.launch(kernel, &reads, &[&dx])?;
            return Ok(NormalizedBackward { dx, parameters: None });
        }
        let dweight = Tensor::empty(device, parameter_shape, dtype)?;
        let dbias = Tensor::empty(device, parameter_shape, dtype)?;
        let workspace = Workspace::new(dtype.computed(), [Cut::of(&norm).workspace_len(&norm)]);
        device.launch_with(&workspace, kernel, &reads, &[&dx, &dweight, &dbias])?;
        Ok(NormalizedBackward { dx, parameters: Some([dweight, dbias]) })
    }

    /// Normalises over the last `axis_count` dimensions to mean 0 and variance 1 (biased, plus
    /// `eps`), then scales by `weight` and adds `bias`. Both have the shape of those dimensions and
    /// the input's type. `self` is x, of any float type; the half types are computed in f32.
    ///
    /// Mean and variance take two passes over the row, which stays in the cache. Sums are in f64.
    ///
    /// # Shapes
    /// `x: [N.., D..], weight, bias: [D..] → y: [N.., D..], mean, rstd: [N..]`
    ///
    /// # Errors
    /// `Index` if there are fewer dimensions, `Shape`, `DType`, `OutOfMemory`.
    #[track_caller]
    pub fn layer_norm(
        &self,
        axis_count: usize,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Result<Normalized> {
        let (norm, kept) = Norm::trailing("layer_norm", self, axis_count, Center::Mean, eps)?;
        let parameter_shape = Shape::new(&self.shape()[kept.len()..]);
        self.normalize(norm, kept, parameter_shape, [weight, bias])
    }

    /// The gradients through [`Tensor::layer_norm`], for `self = dy` and the mean and rstd of its
    /// results. The gradients of weight and bias are summed in an order that depends on the shape
    /// alone, with scratch for at most 64 rows.
    ///
    /// # Errors
    /// The errors of [`Tensor::layer_norm`].
    #[track_caller]
    pub fn layer_norm_backward(
        &self,
        x: &Tensor,
        mean: &Tensor,
        rstd: &Tensor,
        weight: Option<&Tensor>,
    ) -> Result<NormalizedBackward> {
        let op = "layer_norm_backward";
        let (norm, shape) = trailing_backward(op, x, rstd, Center::Mean)?;
        check_statistics(op, x.dtype(), mean, *rstd.shape())?;
        self.normalize_backward(norm, shape, x, [Some(mean), Some(rstd)], weight)
    }

    /// `x / √(mean(x²) + eps) · weight` over the last `axis_count` dimensions; see
    /// [`Tensor::layer_norm`]. PyTorch's default for eps is the machine epsilon of the type.
    ///
    /// # Errors
    /// The errors of [`Tensor::layer_norm`].
    #[track_caller]
    pub fn rms_norm(
        &self,
        axis_count: usize,
        weight: Option<&Tensor>,
        eps: f64,
    ) -> Result<Normalized> {
        let (norm, kept) = Norm::trailing("rms_norm", self, axis_count, Center::Zero, eps)?;
        let parameter_shape = Shape::new(&self.shape()[kept.len()..]);
        self.normalize(norm, kept, parameter_shape, [weight, None])
    }

    /// The gradients through [`Tensor::rms_norm`] for `self = dy`. The second gradient of the
    /// parameters is Σ dy, the gradient of a bias that is added afterwards.
    ///
    /// # Errors
    /// The errors of [`Tensor::layer_norm`].
    #[track_caller]
    pub fn rms_norm_backward(
        &self,
        x: &Tensor,
        rstd: &Tensor,
        weight: Option<&Tensor>,
    ) -> Result<NormalizedBackward> {
        let (norm, shape) = trailing_backward("rms_norm_backward", x, rstd, Center::Zero)?;
        self.normalize_backward(norm, shape, x, [None, Some(rstd)], weight)
    }

    /// Normalises each of `groups` groups of neighbouring channels of each sample. With a group for
    /// each channel this is instance normalisation. With one group it is layer normalisation with a
    /// weight for each channel. See [`Tensor::layer_norm`].
    ///
    /// # Shapes
    /// `x: [N, C, ..], weight, bias: [C] → y: [N, C, ..], mean, rstd: [N, groups]`
    ///
    /// # Errors
    /// `Shape` unless `groups` divides the channels, `DType`, `OutOfMemory`.
    #[track_caller]
    pub fn group_norm(
        &self,
        groups: usize,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Result<Normalized> {
        let (norm, kept) = Norm::grouped("group_norm", self, groups, eps)?;
        self.normalize(norm, kept, Shape::new(&[norm.channels]), [weight, bias])
    }

    /// The gradients through [`Tensor::group_norm`], for `self = dy` and the mean and rstd of its
    /// results.
    ///
    /// # Errors
    /// The errors of [`Tensor::group_norm`].
    #[track_caller]
    pub fn group_norm_backward(
        &self,
        x: &Tensor,
        mean: &Tensor,
        rstd: &Tensor,
        weight: Option<&Tensor>,
    ) -> Result<NormalizedBackward> {
        let op = "group_norm_backward";
        let groups = rstd.shape().get(1).copied().unwrap_or_default();
        let (norm, kept) = Norm::grouped(op, x, groups, 0.0)?;
        check_statistics(op, x.dtype(), mean, kept)?;
        check_statistics(op, x.dtype(), rstd, kept)?;
        let shape = Shape::new(&[norm.channels]);
        self.normalize_backward(norm, shape, x, [Some(mean), Some(rstd)], weight)
    }
}

/// The normalisation of x whose statistics have the shape of `rstd`, and the shape of its
/// parameters.
fn trailing_backward(
    op: &'static str,
    x: &Tensor,
    rstd: &Tensor,
    center: Center,
) -> Result<(Norm, Shape)> {
    let (left, right) = (*x.shape(), *rstd.shape());
    let axis_count =
        left.len().checked_sub(right.len()).ok_or(TensorError::Shape { op, left, right })?;
    let (norm, kept) = Norm::trailing(op, x, axis_count, center, 0.0)?;
    check_statistics(op, x.dtype(), rstd, kept)?;
    Ok((norm, Shape::new(&left[kept.len()..])))
}
