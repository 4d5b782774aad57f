//! Resizes images, sequences and volumes, and shuffles their channels.

use lowtide_autograd::Var;
use lowtide_tensor::{Corners, DType, Shape, Tensor, TensorError};

use crate::checks::check_option;
use crate::error::Result;

/// The constant of Keys' cubic convolution in PyTorch ("Cubic convolution interpolation for digital
/// image processing", 1981).
pub(crate) const CUBIC: f64 = -0.75;

/// Keys' own constant. PyTorch uses it with `antialias=True`.
const CUBIC_ANTIALIAS: f64 = -0.5;

/// The size of the result along each resized dimension.
#[derive(Clone, Debug, PartialEq)]
pub enum Sizes {
    /// The number of places.
    To(Vec<usize>),
    /// Factors of the input's sizes; the products are rounded down. The positions of the places use
    /// exactly these factors, as in PyTorch with `scale_factor`.
    By(Vec<f64>),
}

/// Modes of [`resize`]: the formula of a new place. Each dimension is resized on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResizeMode {
    /// The input place with the nearest center: PyTorch's `nearest-exact`.
    Nearest,
    /// The last input place that begins at or before the new place: PyTorch's `nearest`, computed
    /// in f32 as in PyTorch.
    Before,
    /// Two places, weighted by distance: `linear`, `bilinear`, `trilinear`.
    Linear(Corners),
    /// Four places, by Keys' cubic convolution: `bicubic`.
    Cubic(Corners),
    /// `Linear` without aliasing, PyTorch's `antialias=True`: each place of a smaller result
    /// averages all input places below it. With aligned corners the places are half a place
    /// further, as in PyTorch.
    LinearAntialias(Corners),
    /// `Cubic` without aliasing, like `LinearAntialias`, with Keys' own constant of -0.5, as in
    /// PyTorch and Pillow.
    CubicAntialias(Corners),
    /// The mean of all input places below the new place: `area`.
    Area,
}

/// The input places of each place of the result, along one dimension. Entry k has the index and the
/// weight of the k-th input place, for every place of the result.
struct Taps(Vec<(Vec<i64>, Vec<f64>)>);

impl Taps {
    /// The taps for `from` input places and `to` places of the result; `scale` input places per
    /// place.
    fn new(mode: ResizeMode, [from, to]: [usize; 2], scale: f64) -> Self {
        let last = from as i64 - 1;
        let source = |place: usize, corners: Corners| match corners {
            Corners::Aligned if to > 1 => place as f64 * last as f64 / (to - 1) as f64,
            Corners::Aligned => 0.0,
            Corners::Centers => (place as f64 + 0.5) * scale - 0.5,
        };
        let of = |weights: &dyn Fn(usize) -> Vec<(i64, f64)>| {
            let mut taps: Vec<(Vec<i64>, Vec<f64>)> = Vec::new();
            for place in 0..to {
                for (index, (at, weight)) in weights(place).into_iter().enumerate() {
                    if taps.len() <= index {
                        // Earlier places have fewer taps: their weight here is 0.
                        taps.push((vec![0; place], vec![0.0; place]));
                    }
                    taps[index].0.push(at.clamp(0, last));
                    taps[index].1.push(weight);
                }
                for (places, weights) in &mut taps {
                    places.resize(place + 1, 0);
                    weights.resize(place + 1, 0.0);
                }
            }
            Taps(taps)
        };
        let blend = |place: usize, corners: Corners, reach: f64, weight: &dyn Fn(f64) -> f64| {
            let step = match corners {
                Corners::Aligned if to > 1 => last as f64 / (to - 1) as f64,
                Corners::Aligned => 0.0,
                Corners::Centers => scale,
            };
            // The weights are stretched over the input below a place, never shrunk.
            let (middle, stretch) = ((place as f64 + 0.5) * step, step.max(1.0));
            let ends = [-reach, reach].map(|reach| (middle + reach * stretch + 0.5) as i64);
            let range = ends[0].max(0)..ends[1].min(from as i64);
            let weight = |at: i64| weight(((at as f64 + 0.5 - middle) / stretch).abs());
            let total: f64 = range.clone().map(weight).sum();
            range.map(|at| (at, weight(at) / total)).collect::<Vec<_>>()
        };
        match mode {
            ResizeMode::Area => Taps(Vec::new()),
            ResizeMode::Nearest => {
                of(&|place| vec![(((place as f64 + 0.5) * scale).floor() as i64, 1.0)])
            }
            ResizeMode::Before => {
                of(&|place| vec![((place as f32 * scale as f32).floor() as i64, 1.0)])
            }
            ResizeMode::Linear(corners) => of(&|place| {
                let at = source(place, corners).max(0.0);
                let (first, share) = (at.floor().min(last as f64), at - at.floor());
                vec![(first as i64, 1.0 - share), (first as i64 + 1, share)]
            }),
            ResizeMode::Cubic(corners) => of(&|place| {
                let at = source(place, corners);
                let first = at.floor() as i64;
                let weight =
                    |offset| (first + offset, cubic((at - (first + offset) as f64).abs(), CUBIC));
                (-1..=2).map(weight).collect()
            }),
            ResizeMode::LinearAntialias(corners) => {
                of(&|place| blend(place, corners, 1.0, &|distance| (1.0 - distance).max(0.0)))
            }
            ResizeMode::CubicAntialias(corners) => {
                of(&|place| blend(place, corners, 2.0, &|x| cubic(x, CUBIC_ANTIALIAS)))
            }
        }
    }
}

/// Weight of an input place at this distance, by the constant `a`; 0 from a distance of 2 on.
fn cubic(x: f64, a: f64) -> f64 {
    match x {
        x if x <= 1.0 => ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0,
        x if x < 2.0 => ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a,
        _ => 0.0,
    }
}

/// Resizes the last dimensions, `torch.nn.functional.interpolate`. For images, [`Var::upsample2d`]
/// does PyTorch's `nearest` and `bilinear` in one kernel.
///
/// # Shapes
/// `x: [N, C, ..] → [N, C, ..]`, with one to three dimensions to resize; `sizes` has an entry for
/// each.
///
/// # Errors
/// `Shape` for a wrong number of dimensions or sizes and for a size of 0; `DType`; `OutOfMemory`;
/// `Option` for a factor that is not positive.
pub fn resize(x: Var, sizes: &Sizes, mode: ResizeMode) -> Result<Var> {
    let (shape, left) = (*x.shape(), x.value().dtype());
    if ![ResizeMode::Nearest, ResizeMode::Before].contains(&mode) && !left.is_float() {
        // Weights are not integers.
        return Err(TensorError::DType { op: "resize", left, right: DType::F32 }.into());
    }
    let count = match sizes {
        Sizes::To(sizes) => sizes.len(),
        Sizes::By(factors) => factors.len(),
    };
    if shape.len() != count + 2 || !(1..=3).contains(&count) {
        let right = Shape::new(&vec![1; count.min(3) + 2]);
        return Err(TensorError::Shape { op: "resize", left: shape, right }.into());
    }
    // A half type is rounded once, at the end.
    let mut y = if left.is_float() { x.to_dtype(left.computed())? } else { x };
    for place in 0..count {
        let (axis, from) = (place + 2, shape[place + 2]);
        let (to, scale) = match sizes {
            Sizes::To(sizes) => (sizes[place], from as f64 / sizes[place].max(1) as f64),
            Sizes::By(factors) => {
                check_option("factor", factors[place], "(0, ∞)", |factor| factor > 0.0)?;
                ((from as f64 * factors[place]).floor() as usize, 1.0 / factors[place])
            }
        };
        if from == 0 || to == 0 {
            let (left, right) = (Shape::new(&[from]), Shape::new(&[to]));
            return Err(TensorError::Shape { op: "resize", left, right }.into());
        }
        if from == to && scale == 1.0 {
            continue;
        }
        y = match mode {
            ResizeMode::Area => {
                // The dimensions before and after `axis` become batch and width, and the height is
                // pooled.
                let shape = *y.shape();
                let [before, after] =
                    [&shape[..axis], &shape[axis + 1..]].map(|part| part.iter().product());
                let mut result = shape.to_vec();
                result[axis] = to;
                let image = y.reshape([before, 1, from, after])?;
                image.adaptive_avg_pool2d([to, after])?.reshape(&result[..])?
            }
            _ => weighted(y, axis, Taps::new(mode, [from, to], scale))?,
        };
    }
    if left.is_float() { Ok(y.to_dtype(left)?) } else { Ok(y) }
}

/// `Σ weight[i] · x[.., index[i], ..]` along `axis`, over the taps.
fn weighted(x: Var, axis: usize, Taps(taps): Taps) -> Result<Var> {
    let (device, dtype) = (x.value().device().clone(), x.value().dtype());
    let mut sum: Option<Var> = None;
    for (places, weights) in taps {
        let len = places.len();
        let part = x.clone().index_select(axis, &Tensor::from_slice(&device, [len], &places)?)?;
        let part = if weights.iter().all(|&weight| weight == 1.0) {
            part
        } else {
            let mut shape = vec![1; x.shape().len() - axis];
            shape[0] = len;
            let weights = Tensor::from_slice(&device, &shape[..], &weights)?.to_dtype(dtype)?;
            part.mul(x.pass().constant(weights))?
        };
        sum = Some(match sum {
            None => part,
            Some(sum) => sum.add(part)?,
        });
    }
    Ok(sum.unwrap_or(x))
}

/// Turns `r²` channels into r times the height and the width, `torch.nn.PixelShuffle` (Shi et al.,
/// "Real-time single image super-resolution", 2016).
///
/// # Shapes
/// `x: [.., C·r², H, W] → [.., C, H·r, W·r]`
///
/// # Errors
/// `Shape` unless r² divides the channels, `OutOfMemory`.
pub fn pixel_shuffle(x: Var, factor: usize) -> Result<Var> {
    let (op, left) = ("pixel_shuffle", *x.shape());
    let unfit = || TensorError::Shape { op, left, right: Shape::new(&[factor * factor, 1, 1]) };
    let [before @ .., channels, height, width] = &left[..] else { return Err(unfit().into()) };
    let channels = channels.checked_div(factor * factor).ok_or_else(unfit)?;
    if channels * factor * factor != left[before.len()] {
        return Err(unfit().into());
    }
    let rank = before.len();
    let split = [before, &[channels, factor, factor, *height, *width]].concat();
    let places = [0, 3, 1, 4, 2].map(|place| rank + place);
    let order: Vec<usize> = (0..rank).chain(places).collect();
    let shape = [before, &[channels, height * factor, width * factor]].concat();
    Ok(x.reshape(&split[..])?.permute(&order)?.reshape(&shape[..])?)
}

/// The inverse of [`pixel_shuffle`], `torch.nn.PixelUnshuffle`.
///
/// # Shapes
/// `x: [.., C, H·r, W·r] → [.., C·r², H, W]`
///
/// # Errors
/// `Shape` unless r divides height and width, `OutOfMemory`.
pub fn pixel_unshuffle(x: Var, factor: usize) -> Result<Var> {
    let (op, left) = ("pixel_unshuffle", *x.shape());
    let unfit = || TensorError::Shape { op, left, right: Shape::new(&[1, factor, factor]) };
    let [before @ .., channels, height, width] = &left[..] else { return Err(unfit().into()) };
    let part = |len: usize| len.checked_div(factor).filter(|part| part * factor == len);
    let (rows, columns) = (part(*height).ok_or_else(unfit)?, part(*width).ok_or_else(unfit)?);
    let rank = before.len();
    let split = [before, &[*channels, rows, factor, columns, factor]].concat();
    let places = [0, 2, 4, 1, 3].map(|place| rank + place);
    let order: Vec<usize> = (0..rank).chain(places).collect();
    let shape = [before, &[channels * factor * factor, rows, columns]].concat();
    Ok(x.reshape(&split[..])?.permute(&order)?.reshape(&shape[..])?)
}

/// Interleaves the channels of the groups, `torch.nn.ChannelShuffle` (Zhang et al., "ShuffleNet",
/// 2018).
///
/// # Shapes
/// `x: [N, C, ..] → [N, C, ..]`
///
/// # Errors
/// `Shape` unless the groups divide the channels, `OutOfMemory`.
pub fn channel_shuffle(x: Var, groups: usize) -> Result<Var> {
    let (op, left) = ("channel_shuffle", *x.shape());
    let unfit = || TensorError::Shape { op, left, right: Shape::new(&[1, groups]) };
    let &[batch, channels, ref places @ ..] = &left[..] else { return Err(unfit().into()) };
    let each = channels.checked_div(groups).filter(|each| each * groups == channels);
    let each = each.ok_or_else(unfit)?;
    let split = [&[batch, groups, each], places].concat();
    Ok(x.reshape(&split[..])?.transpose(1, 2)?.reshape(left)?)
}
