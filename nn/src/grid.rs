//! Points of images and volumes.

use lowtide_autograd::Var;
use lowtide_tensor::{Corners, DType, Tensor, TensorError};

use crate::error::Result;
use crate::images::CUBIC;

/// How [`grid_sample`] makes the value of a point of those around it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GridMode {
    /// Four pixels, or eight voxels, by their distance.
    #[default]
    Bilinear,
    /// The nearest pixel, of two equally near ones the one at an even place.
    Nearest,
    /// Sixteen pixels, or 64 voxels, by Keys' cubic convolution.
    Bicubic,
}

/// What lies around an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GridPadding {
    /// Pixels of 0: points far outside are 0.
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

/// The pixels of a point so far, of the dimensions from the first on.
struct Corner {
    /// The place in the image, row by row.
    index: Tensor,
    weight: Option<Var>,
    /// Whether it is there.
    is_inside: Tensor,
}

impl Corner {
    /// One of the pixels along a dimension of `len`, behind those of the dimensions before it.
    fn behind(before: Option<&Corner>, pixel: &Pixels, len: usize) -> Result<Corner> {
        let places = &pixel.places;
        let whole = places.maximum_scalar(0.0)?.minimum_scalar(len as f64 - 1.0)?;
        let whole = whole.to_dtype(DType::I64)?;
        let is_inside = places.ge_scalar(0.0)?.logical_and(&places.lt_scalar(len as f64)?)?;
        let weight = pixel.weight.clone();
        let Some(before) = before else { return Ok(Corner { index: whole, weight, is_inside }) };
        Ok(Corner {
            index: before.index.mul_scalar(len as f64)?.add(&whole)?,
            weight: match (&before.weight, weight) {
                (Some(before), Some(weight)) => Some(before.clone().mul(weight)?),
                _ => None,
            },
            is_inside: before.is_inside.logical_and(&is_inside)?,
        })
    }
}

/// The values of images or volumes at points, `torch.nn.functional.grid_sample` (Jaderberg and
/// others, "Spatial transformer networks", 2015). A point is a column, a row and, in volumes, a
/// slice: each from -1 at the left, the top or the front to 1.
///
/// # Shapes
/// `x: [N, C, H, W], grid: [N, H', W', 2] → [N, C, H', W']`;
/// `x: [N, C, D, H, W], grid: [N, D', H', W', 3] → [N, C, D', H', W']`
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
    let &[samples, channels, ref sizes @ ..] = &left[..] else { return Err(unfit().into()) };
    let (rank, pixels) = (sizes.len(), sizes.iter().product::<usize>());
    if !(2..=3).contains(&rank) || right.len() != rank + 2 || pixels == 0 {
        return Err(unfit().into());
    }
    let (of_samples, to, of_point) = (right[0], &right[1..=rank], right[rank + 1]);
    if of_samples != samples || of_point != rank {
        return Err(unfit().into());
    }
    let points = to.iter().product();
    let pass = x.pass().clone();
    let image = x.reshape([samples, channels, pixels])?;
    // Points begin with the last dimension.
    let along = |axis: usize| {
        let coordinate = grid.clone().select(rank + 1, rank - 1 - axis)?;
        let coordinate = coordinate.reshape([samples, points])?;
        options.pixels(options.place(coordinate, sizes[axis])?, sizes[axis])
    };
    let first = along(0)?;
    let first = first.iter().map(|pixel| Corner::behind(None, pixel, sizes[0]));
    let mut corners = first.collect::<Result<Vec<_>>>()?;
    for (axis, &len) in sizes.iter().enumerate().skip(1) {
        let pixels = along(axis)?;
        let pairs = corners.iter().flat_map(|corner| pixels.iter().map(move |p| (corner, p)));
        let next = pairs.map(|(corner, pixel)| Corner::behind(Some(corner), pixel, len));
        corners = next.collect::<Result<_>>()?;
    }
    let mut sum: Option<Var> = None;
    for Corner { index, weight, is_inside } in corners {
        let index = index.unsqueeze(1)?.expand([samples, channels, points])?;
        let value = image.clone().gather(2, &index)?;
        let weight = match (weight, options.padding) {
            (Some(weight), GridPadding::Zeros) => {
                Some(weight.masked_fill(&is_inside.logical_not()?, 0.0)?)
            }
            (None, GridPadding::Zeros) => {
                Some(pass.constant(is_inside.to_dtype(value.value().dtype())?))
            }
            (weight, _) => weight,
        };
        let part = match weight {
            Some(weight) => value.mul(weight.unsqueeze(1)?)?,
            None => value,
        };
        sum = Some(match sum {
            Some(sum) => sum.add(part)?,
            None => part,
        });
    }
    let sum = sum.ok_or_else(unfit)?;
    Ok(sum.reshape(&[&[samples, channels], to].concat()[..])?)
}
