//! Images, sequences and volumes in another size, and points of images.

use lowtide_autograd::Var;
use lowtide_tensor::{Corners, DType, Shape, Tensor, TensorError};

use crate::error::Result;
use crate::optim::check_option;

/// The constant of Keys' cubic convolution that PyTorch has ("Cubic convolution interpolation for
/// digital image processing", 1981).
const CUBIC: f64 = -0.75;

/// The size of a result, along each of the last dimensions.
#[derive(Clone, Debug, PartialEq)]
pub enum Sizes {
    /// So many places.
    To(Vec<usize>),
    /// Multiples of the input's, rounded down; places then lie at exactly these factors, as in
    /// PyTorch with `scale_factor`.
    By(Vec<f64>),
}

/// How [`resize`] makes a place of others; each dimension on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResizeMode {
    /// The place whose middle is nearest: PyTorch's `nearest-exact`.
    Nearest,
    /// Two places, by their distance: `linear`, `bilinear`, `trilinear`.
    Linear(Corners),
    /// Four places, by Keys' cubic convolution: `bicubic`.
    Cubic(Corners),
    /// The mean of all places below: `area`.
    Area,
}

/// The places that a place of the result is made of, with their weights: one list for each of them.
struct Taps(Vec<(Vec<i64>, Vec<f64>)>);

impl Taps {
    /// For `from` places and `to` of the result, which lie `scale` apart.
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
                        taps.push(Default::default());
                    }
                    taps[index].0.push(at.clamp(0, last));
                    taps[index].1.push(weight);
                }
            }
            Taps(taps)
        };
        match mode {
            ResizeMode::Area => Taps(Vec::new()),
            ResizeMode::Nearest => {
                of(&|place| vec![(((place as f64 + 0.5) * scale).floor() as i64, 1.0)])
            }
            ResizeMode::Linear(corners) => of(&|place| {
                let at = source(place, corners).max(0.0);
                let (first, share) = (at.floor().min(last as f64), at - at.floor());
                vec![(first as i64, 1.0 - share), (first as i64 + 1, share)]
            }),
            ResizeMode::Cubic(corners) => of(&|place| {
                let at = source(place, corners);
                let first = at.floor() as i64;
                let weight = |offset| (first + offset, cubic((at - (first + offset) as f64).abs()));
                (-1..=2).map(weight).collect()
            }),
        }
    }
}

/// The weight of a place at this distance, below 2.
fn cubic(distance: f64) -> f64 {
    let (a, x) = (CUBIC, distance);
    match x <= 1.0 {
        true => ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0,
        false => ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a,
    }
}

/// Another size of the last dimensions, `torch.nn.functional.interpolate`. For images,
/// [`Var::upsample2d`] does PyTorch's `nearest` and `bilinear` in one kernel.
///
/// # Shapes
/// `x: [N, C, ..]` with one to three dimensions of places, for each of which `sizes` has an entry,
/// `→ [N, C, ..]`
///
/// # Errors
/// `Shape` for another number of dimensions and for none of something, `DType`, `OutOfMemory`;
/// `Option` for a factor that is not positive.
pub fn resize(x: Var, sizes: &Sizes, mode: ResizeMode) -> Result<Var> {
    let (shape, left) = (*x.shape(), x.value().dtype());
    if mode != ResizeMode::Nearest && !left.is_float() {
        // Weights are no integers.
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
    // One rounding to a half type, at the end.
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
                // An image that keeps its width, over the means of its windows.
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
        let part = match weights.iter().all(|&weight| weight == 1.0) {
            true => part,
            false => {
                let mut shape = vec![1; x.shape().len() - axis];
                shape[0] = len;
                let weights = Tensor::from_slice(&device, &shape[..], &weights)?.to_dtype(dtype)?;
                part.mul(x.pass().constant(weights))?
            }
        };
        sum = Some(match sum {
            None => part,
            Some(sum) => sum.add(part)?,
        });
    }
    Ok(sum.unwrap_or(x))
}

/// `r²` channels become r times the height and the width, `torch.nn.PixelShuffle` (Shi and others,
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

/// Takes [`pixel_shuffle`] back, `torch.nn.PixelUnshuffle`.
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

/// The channels of all groups in turn, `torch.nn.ChannelShuffle` (Zhang and others, "ShuffleNet",
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

/// How [`grid_sample`] makes the value of a point of those around it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GridMode {
    /// Four pixels, by their distance.
    #[default]
    Bilinear,
    /// The nearest pixel, of two equally near ones the one at an even place.
    Nearest,
    /// Sixteen pixels, by Keys' cubic convolution.
    Bicubic,
}

/// What lies around an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GridPadding {
    /// Zeros.
    #[default]
    Zeros,
    /// The outermost pixels.
    Border,
    /// The image, mirrored again and again.
    Reflection,
}

/// How [`grid_sample`] reads an image; PyTorch's defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GridOptions {
    /// What the value of a point is.
    pub mode: GridMode,
    /// What lies around the image.
    pub padding: GridPadding,
    /// What -1 and 1 are: the middles of the outermost pixels, or their outer edges.
    pub corners: Corners,
}

impl Default for GridOptions {
    fn default() -> Self {
        let (mode, padding) = (GridMode::Bilinear, GridPadding::Zeros);
        GridOptions { mode, padding, corners: Corners::Centers }
    }
}

impl GridOptions {
    /// The place among `len` pixels of a coordinate between -1 and 1.
    fn place(self, coordinate: Var, len: usize) -> Result<Var> {
        let len = len as f64;
        let place = match self.corners {
            Corners::Aligned => coordinate.add_scalar(1.0)?.mul_scalar(0.5 * (len - 1.0))?,
            Corners::Centers => {
                coordinate.add_scalar(1.0)?.mul_scalar(0.5 * len)?.sub_scalar(0.5)?
            }
        };
        // Four pixels may lie on both sides of the edge: their own places are moved.
        if self.mode == GridMode::Bicubic { Ok(place) } else { self.inside(place, len) }
    }

    /// A place that lies in the image, if there is something else than zeros around it.
    fn inside(self, place: Var, len: f64) -> Result<Var> {
        let place = match self.padding {
            GridPadding::Zeros => return Ok(place),
            GridPadding::Border => place,
            GridPadding::Reflection => {
                let (low, span) = match self.corners {
                    Corners::Aligned => (0.0, len - 1.0),
                    Corners::Centers => (-0.5, len),
                };
                if span == 0.0 { place.mul_scalar(0.0)? } else { reflected(place, low, span)? }
            }
        };
        Ok(place.clamp(0.0, len - 1.0)?)
    }
}

/// A place mirrored at `low` and at `low + span` until it lies between.
fn reflected(place: Var, low: f64, span: f64) -> Result<Var> {
    let distance = place.sub_scalar(low)?.abs()?;
    let turns = distance.value().div_floor_scalar(span)?;
    let is_turned = turns.remainder_scalar(2.0)?.eq_scalar(1.0)?;
    let within = distance.fmod_scalar(span)?;
    let turned = within.clone().neg()?.add_scalar(span)?;
    Ok(turned.where_cond(&is_turned, within)?.add_scalar(low)?)
}

/// Pixels along one dimension, with their weights, if they have any.
struct Pixels {
    places: Tensor,
    weight: Option<Var>,
}

impl GridOptions {
    /// The pixels around each `place: [N, P]` among `len`.
    fn pixels(self, place: Var, len: usize) -> Result<Vec<Pixels>> {
        if self.mode == GridMode::Nearest {
            return Ok(vec![Pixels { places: place.value().round()?, weight: None }]);
        }
        let first = place.value().floor()?;
        let pass = place.pass().clone();
        let share = place.sub(pass.constant(first.clone()))?;
        if self.mode == GridMode::Bilinear {
            let weight = Some(share.clone().neg()?.add_scalar(1.0)?);
            let next = Pixels { places: first.add_scalar(1.0)?, weight: Some(share) };
            return Ok(vec![Pixels { places: first, weight }, next]);
        }
        let pixel = |offset: i32| {
            let distance = match offset {
                -1 | 0 => share.clone().add_scalar(f64::from(-offset))?,
                _ => share.clone().neg()?.add_scalar(f64::from(offset))?,
            };
            let places = pass.constant(first.add_scalar(f64::from(offset))?);
            let places = self.inside(places, len as f64)?.into_value();
            Ok(Pixels { places, weight: Some(cubic_of(distance, offset)?) })
        };
        [-1, 0, 1, 2].into_iter().map(pixel).collect()
    }
}

/// [`cubic`] of a distance that is below 1 for the two pixels in the middle.
fn cubic_of(x: Var, offset: i32) -> Result<Var> {
    let a = CUBIC;
    Ok(match offset {
        0 | 1 => {
            let slope = x.clone().mul_scalar(a + 2.0)?.sub_scalar(a + 3.0)?;
            slope.mul(x.clone())?.mul(x)?.add_scalar(1.0)?
        }
        _ => {
            let inner = x.clone().mul_scalar(a)?.sub_scalar(5.0 * a)?.mul(x.clone())?;
            inner.add_scalar(8.0 * a)?.mul(x)?.sub_scalar(4.0 * a)?
        }
    })
}

/// The values of images at points, `torch.nn.functional.grid_sample` in two dimensions (Jaderberg
/// and others, "Spatial transformer networks", 2015). Each point is a column and a row, from -1 at
/// the left or the top to 1.
///
/// # Shapes
/// `x: [N, C, H, W], grid: [N, H', W', 2] → [N, C, H', W']`
///
/// # Errors
/// `Shape`, also for images without pixels; `DType`, `OutOfMemory`.
pub fn grid_sample(x: Var, grid: Var, options: GridOptions) -> Result<Var> {
    let dtype = x.value().dtype();
    if dtype != dtype.computed() {
        // One rounding, at the end.
        let [x, grid] = [x, grid].map(|x| x.to_dtype(dtype.computed()));
        return Ok(grid_sample(x?, grid?, options)?.to_dtype(dtype)?);
    }
    let (op, left, right) = ("grid_sample", *x.shape(), *grid.shape());
    let unfit = || TensorError::Shape { op, left, right };
    let &[samples, channels, height, width] = &left[..] else { return Err(unfit().into()) };
    let &[rows_of, rows, columns, 2] = &right[..] else { return Err(unfit().into()) };
    if rows_of != samples || height * width == 0 {
        return Err(unfit().into());
    }
    let points = rows * columns;
    let pass = x.pass().clone();
    let image = x.reshape([samples, channels, height * width])?;
    let place = |index: usize, len: usize| {
        let coordinate = grid.clone().select(3, index)?.reshape([samples, points])?;
        options.pixels(options.place(coordinate, len)?, len)
    };
    let (across, down) = (place(0, width)?, place(1, height)?);
    let is_inside = |places: &Tensor, len: usize| {
        places.ge_scalar(0.0)?.logical_and(&places.lt_scalar(len as f64)?)
    };
    let whole = |places: &Tensor, len: usize| {
        places.maximum_scalar(0.0)?.minimum_scalar(len as f64 - 1.0)?.to_dtype(DType::I64)
    };
    let mut sum: Option<Var> = None;
    for row in &down {
        let first = whole(&row.places, height)?.mul_scalar(width as f64)?;
        for column in &across {
            let index = first.add(&whole(&column.places, width)?)?.unsqueeze(1)?;
            let value = image.clone().gather(2, &index.expand([samples, channels, points])?)?;
            let mut weight = match (&row.weight, &column.weight) {
                (Some(row), Some(column)) => Some(row.clone().mul(column.clone())?),
                _ => None,
            };
            if options.padding == GridPadding::Zeros {
                let inside = is_inside(&row.places, height)?
                    .logical_and(&is_inside(&column.places, width)?)?;
                weight = Some(match weight {
                    Some(weight) => weight.masked_fill(&inside.logical_not()?, 0.0)?,
                    None => pass.constant(inside.to_dtype(value.value().dtype())?),
                });
            }
            let part = match weight {
                Some(weight) => value.mul(weight.unsqueeze(1)?)?,
                None => value,
            };
            sum = Some(match sum {
                Some(sum) => sum.add(part)?,
                None => part,
            });
        }
    }
    let sum = sum.ok_or_else(unfit)?;
    Ok(sum.reshape([samples, channels, rows, columns])?)
}
