//! Max pooling that also returns the position of each maximum, and the inverse.

use lowtide_autograd::{Needs, Var};
use lowtide_tensor::{DType, MaxPool, Pool2dGeometry, Shape, Tensor, TensorError, TensorResult};

use crate::error::Result;
use crate::functional::volumes::{MaxPool3dOptions, Pool3dGeometry};

/// The largest value of each window of images, and its place in its image, `row · W + column` as
/// i64: `torch.nn.functional.max_pool2d` with `return_indices`. A sequence is an image of one row.
/// Backward keeps a byte for each result, as without places.
///
/// # Shapes
/// `x: [B, C, H, W] → [B, C, H', W']` twice
///
/// # Errors
/// The errors of [`Var::max_pool2d_with`].
pub fn max_pool2d_with_places(
    x: Var,
    window: Pool2dGeometry,
    options: MaxPool,
) -> Result<(Var, Tensor)> {
    let mut places = None;
    let y = Var::apply("max_pool2d_with_places", [x], |[x], save| {
        let x_shape = *x.shape();
        let (y, winners) = x.max_pool2d_with(window, options)?;
        places = Some(places_of(&winners, x_shape, window, options)?);
        let saved = save.keep(&winners);
        // dx[q] = Σ dy[p] over the windows p whose largest value stood at q
        let rule = move |dy: Tensor, _: Needs| {
            let winners = saved.unpack()?;
            Ok(vec![Some(dy.max_pool2d_with_backward(&winners, x_shape, window, options)?)])
        };
        Ok((y, rule))
    })?;
    Ok((y, places.expect("the operation ran")))
}

/// Converts places within windows, which count along the kernel, to places in the image.
fn places_of(
    winners: &Tensor,
    x: Shape,
    window: Pool2dGeometry,
    options: MaxPool,
) -> TensorResult<Tensor> {
    let (device, out) = (winners.device(), *winners.shape());
    let winners = winners.to_dtype(DType::I64)?;
    let columns = window.kernel[1] as f64;
    // The first place of each window. It lies before the image if there is padding.
    let start = |axis: usize| {
        let (step, before) = (window.stride[axis] as f64, window.padding[axis] as f64);
        let starts = Tensor::arange(device, 0.0..out[2 + axis] as f64, 1.0, DType::I64)?;
        starts.mul_scalar(step)?.sub_scalar(before)
    };
    let [down, across] = options.dilation.map(|step| step as f64);
    let row = winners.div_floor_scalar(columns)?.mul_scalar(down)?;
    let row = row.add(&start(0)?.unsqueeze(1)?)?;
    let column = winners.remainder_scalar(columns)?.mul_scalar(across)?.add(&start(1)?)?;
    row.mul_scalar(x[3] as f64)?.add(&column)
}

/// [`max_pool2d_with_places`] of adaptive windows, `torch.nn.functional.adaptive_max_pool2d` with
/// `return_indices`.
///
/// # Shapes
/// `x: [B, C, H, W] → [B, C, size[0], size[1]]` twice
///
/// # Errors
/// The errors of [`Var::adaptive_max_pool2d`].
pub fn adaptive_max_pool2d_with_places(x: Var, size: [usize; 2]) -> Result<(Var, Tensor)> {
    let mut places = None;
    let y = Var::apply("adaptive_max_pool2d_with_places", [x], |[x], save| {
        let (x_shape, (y, winners)) = (*x.shape(), x.adaptive_max_pool2d(size)?);
        places = Some(winners.to_dtype(DType::I64)?);
        let saved = save.keep(&winners);
        // dx[q] = Σ dy[p] over the windows p whose largest value stood at q
        let rule = move |dy: Tensor, _: Needs| {
            Ok(vec![Some(dy.adaptive_max_pool2d_backward(&saved.unpack()?, x_shape)?)])
        };
        Ok((y, rule))
    })?;
    Ok((y, places.expect("the operation ran")))
}

/// Pools volumes in two steps: all slices as images, then along the depth, with each slice
/// flattened to one row of an image. The places are combined from both steps.
fn in_turns(
    op: &'static str,
    x: Var,
    of_images: impl Fn(Var) -> Result<(Var, Tensor)>,
    along_depth: impl Fn(Var) -> Result<(Var, Tensor)>,
) -> Result<(Var, Tensor)> {
    let (left, dtype) = (*x.shape(), x.value().dtype());
    let &[batch, channels, depth, height, width] = &left[..] else {
        return Err(TensorError::Shape { op, left, right: Shape::new(&[1; 5]) }.into());
    };
    let x = if dtype.is_float() { x.to_dtype(dtype.computed())? } else { x };
    let (y, in_slice) = of_images(x.reshape([batch, channels * depth, height, width])?)?;
    let (rows, columns) = (y.shape()[2], y.shape()[3]);
    let pixels = rows * columns;
    let (y, in_stack) = along_depth(y.reshape([batch, channels, depth, pixels])?)?;
    let out_depth = y.shape()[2];
    let y = y.reshape([batch, channels, out_depth, rows, columns])?;
    let y = if dtype.is_float() { y.to_dtype(dtype)? } else { y };
    let in_stack = in_stack.reshape([batch, channels, out_depth * pixels])?;
    let in_slice = in_slice.reshape([batch, channels, depth * pixels])?.gather(2, &in_stack)?;
    let slice = in_stack.div_floor_scalar(pixels as f64)?;
    let places = slice.mul_scalar((height * width) as f64)?.add(&in_slice)?;
    Ok((y, places.reshape([batch, channels, out_depth, rows, columns])?))
}

/// The largest value of each window of volumes and its place in its volume,
/// `(slice · H + row) · W + column` as i64: `torch.nn.functional.max_pool3d` with `return_indices`.
///
/// # Shapes
/// `x: [B, C, D, H, W] → [B, C, D', H', W']` twice
///
/// # Errors
/// The errors of [`crate::max_pool3d`].
pub fn max_pool3d_with_places(
    x: Var,
    window: Pool3dGeometry,
    options: MaxPool3dOptions,
) -> Result<(Var, Tensor)> {
    let MaxPool3dOptions { dilation: [deep, rows, columns], rounding } = options;
    let options = |dilation| MaxPool { dilation, rounding };
    let of_images = |x| max_pool2d_with_places(x, window.flat(), options([rows, columns]));
    let along = |x| max_pool2d_with_places(x, window.deep(), options([deep, 1]));
    in_turns("max_pool3d_with_places", x, of_images, along)
}

/// [`max_pool3d_with_places`] of adaptive windows, `torch.nn.functional.adaptive_max_pool3d` with
/// `return_indices`.
///
/// # Shapes
/// `x: [B, C, D, H, W] → [B, C, size[0], size[1], size[2]]` twice
///
/// # Errors
/// The errors of [`crate::adaptive_max_pool3d`].
pub fn adaptive_max_pool3d_with_places(x: Var, size: [usize; 3]) -> Result<(Var, Tensor)> {
    let of_images = |x| adaptive_max_pool2d_with_places(x, [size[1], size[2]]);
    let along = |x: Var| {
        let pixels = x.shape().last().copied().unwrap_or(0);
        adaptive_max_pool2d_with_places(x, [size[0], pixels])
    };
    in_turns("adaptive_max_pool3d_with_places", x, of_images, along)
}

/// Writes values to their places, and 0 to all other places: `torch.nn.functional.max_unpool1d`,
/// `max_unpool2d` and `max_unpool3d`. If several values have one place, only one value is written,
/// but all get the gradient of the place.
///
/// # Shapes
/// `x: [B, C, ..]`, `places: [B, C, ..]` of i64, `→ [B, C, size[0], ..]`
///
/// # Errors
/// `Shape`, `Index` for a place outside, `DType`, `OutOfMemory`.
pub fn max_unpool(x: Var, places: &Tensor, size: &[usize]) -> Result<Var> {
    let (op, left, right) = ("max_unpool", *x.shape(), *places.shape());
    let unfit = || TensorError::Shape { op, left, right };
    let &[batch, channels, ref from @ ..] = &left[..] else { return Err(unfit().into()) };
    let len = size.iter().try_fold(1_usize, |len, &dim| len.checked_mul(dim));
    let len = len.filter(|len| len.checked_mul(batch * channels).is_some()).ok_or_else(unfit)?;
    if left != right || from.len() != size.len() {
        return Err(unfit().into());
    }
    let count = from.iter().product();
    let places = places.reshape([batch, channels, count])?;
    let x = x.reshape([batch, channels, count])?;
    let y = Var::apply("max_unpool", [x], |[x], save| {
        let zeros = Tensor::zeros(x.device(), [batch, channels, len], x.dtype())?;
        let (y, saved) = (zeros.scatter(2, &places, &x)?, save.keep(&places));
        // dx[p] = dy at the place of p
        let rule = move |dy: Tensor, _: Needs| Ok(vec![Some(dy.gather(2, &saved.unpack()?)?)]);
        Ok((y, rule))
    })?;
    Ok(y.reshape(&[&[batch, channels], size].concat()[..])?)
}
