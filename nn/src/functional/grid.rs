//! Values of images and volumes at arbitrary points.

use lowtide_autograd::{AutogradResult, Needs, Saved, Var};
use lowtide_tensor::{Corners, DType, Tensor, TensorError, TensorResult};

use crate::error::Result;
use crate::functional::images::CUBIC;

/// Interpolations of [`grid_sample`]: the value of a point from the pixels around it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GridMode {
    /// The four nearest pixels, or eight voxels, weighted by distance.
    #[default]
    Bilinear,
    /// The nearest pixel. Of two pixels at the same distance, the pixel with the even index.
    Nearest,
    /// Sixteen pixels, or 64 voxels, by Keys' cubic convolution.
    Bicubic,
}

/// The values outside of an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GridPadding {
    /// Pixels of 0: a point far outside has the value 0.
    #[default]
    Zeros,
    /// The nearest pixel of the border.
    Border,
    /// The image, mirrored at its edges again and again.
    Reflection,
}

/// Options of [`grid_sample`], with PyTorch's defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GridOptions {
    /// The interpolation between pixels.
    pub mode: GridMode,
    /// The values outside of the image.
    pub padding: GridPadding,
    /// The positions of -1 and 1: the centers of the outermost pixels, or their outer edges.
    pub corners: Corners,
}

impl Default for GridOptions {
    fn default() -> Self {
        let (mode, padding) = (GridMode::Bilinear, GridPadding::Zeros);
        GridOptions { mode, padding, corners: Corners::Centers }
    }
}

impl GridOptions {
    /// Converts a coordinate between -1 and 1 to a position among `len` pixels.
    fn place(self, coordinate: Var, len: usize) -> Result<Var> {
        let len = len as f64;
        let place = match self.corners {
            Corners::Aligned => coordinate.add_scalar(1.0)?.mul_scalar(0.5 * (len - 1.0))?,
            Corners::Centers => {
                coordinate.add_scalar(1.0)?.mul_scalar(0.5 * len)?.sub_scalar(0.5)?
            }
        };
        // The four pixels may lie on both sides of the edge: each pixel is moved inside on its own.
        if self.mode == GridMode::Bicubic { Ok(place) } else { self.inside(place, len) }
    }

    /// Moves a position into the image, by the padding. Zeros around the image leave the position.
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

/// Mirrors a position at `low` and at `low + span` until it lies between the two.
fn reflected(place: Var, low: f64, span: f64) -> Result<Var> {
    let distance = place.sub_scalar(low)?.abs()?;
    let turns = distance.value().div_floor_scalar(span)?;
    let is_turned = turns.remainder_scalar(2.0)?.eq_scalar(1.0)?;
    let within = distance.fmod_scalar(span)?;
    let turned = within.clone().neg()?.add_scalar(span)?;
    Ok(turned.where_cond(&is_turned, within)?.add_scalar(low)?)
}

/// A pixel for each point along one dimension, with its weight. The nearest pixel has no weight.
struct Pixels {
    places: Tensor,
    weight: Option<Var>,
}

impl GridOptions {
    /// The pixels around each `place: [N, P]`, a position among `len` pixels.
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

/// [`cubic`] of a distance. The distance is below 1 for offsets 0 and 1, else between 1 and 2.
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

/// The pixels around all points: a few along each dimension. A corner is one pixel of each
/// dimension. An index list names a corner: entry k is the pixel's index among the pixels of
/// dimension k.
struct Around {
    sizes: Vec<usize>,
    padding: GridPadding,
    /// The index of each pixel along each dimension, in the image's type.
    places: Vec<Vec<Tensor>>,
    /// Weights of the pixels, in the order of `places`; empty for the nearest pixel.
    weights: Vec<Vec<Tensor>>,
}

impl Around {
    /// All corners; the pixel of the last dimension changes first.
    fn corners(&self) -> Vec<Vec<usize>> {
        let mut corners = vec![Vec::new()];
        for pixels in &self.places {
            let mut next = Vec::new();
            for corner in &corners {
                next.extend((0..pixels.len()).map(|pixel| [&corner[..], &[pixel]].concat()));
            }
            corners = next;
        }
        corners
    }

    /// The row-major index of a corner's pixel in the image, `[N, P]`.
    fn index(&self, corner: &[usize]) -> TensorResult<Tensor> {
        let along = |axis: usize| {
            let last = self.sizes[axis] as f64 - 1.0;
            let places = &self.places[axis][corner[axis]];
            places.maximum_scalar(0.0)?.minimum_scalar(last)?.to_dtype(DType::I64)
        };
        let mut index = along(0)?;
        for axis in 1..corner.len() {
            index = index.mul_scalar(self.sizes[axis] as f64)?.add(&along(axis)?)?;
        }
        Ok(index)
    }

    /// The mask of points whose corner lies outside of the image, `[N, P]`; `None` unless the
    /// padding is zeros.
    fn is_outside(&self, corner: &[usize]) -> TensorResult<Option<Tensor>> {
        if self.padding != GridPadding::Zeros {
            return Ok(None);
        }
        let mut is_outside: Option<Tensor> = None;
        for (axis, &pixel) in corner.iter().enumerate() {
            let places = &self.places[axis][pixel];
            let inside = places.lt_scalar(self.sizes[axis] as f64)?;
            let outside = places.ge_scalar(0.0)?.logical_and(&inside)?.logical_not()?;
            is_outside = Some(match is_outside {
                Some(before) => before.logical_or(&outside)?,
                None => outside,
            });
        }
        Ok(is_outside)
    }

    /// The product of a corner's weights, `[N, P]`, except for dimension `without`. `None` if no
    /// factor is left.
    fn weight(&self, corner: &[usize], without: Option<usize>) -> TensorResult<Option<Tensor>> {
        let mut product: Option<Tensor> = None;
        for (axis, weights) in self.weights.iter().enumerate() {
            if Some(axis) == without {
                continue;
            }
            let weight = &weights[corner[axis]];
            product = Some(match product {
                Some(before) => before.mul(weight)?,
                None => weight.clone(),
            });
        }
        Ok(product)
    }

    /// `x: [N, C, P]` times the corner's weight of each point; 0 if the corner lies outside.
    fn weighted(&self, corner: &[usize], x: &Tensor) -> TensorResult<Tensor> {
        let is_outside =
            self.is_outside(corner)?.map(|outside| outside.unsqueeze(1)).transpose()?;
        match (self.weight(corner, None)?, is_outside) {
            (Some(weight), is_outside) => {
                let mut product = x.mul(&weight.unsqueeze(1)?)?;
                if let Some(is_outside) = is_outside {
                    product.masked_fill_(&is_outside, 0.0)?;
                }
                Ok(product)
            }
            (None, Some(is_outside)) => x.masked_fill(&is_outside, 0.0),
            (None, None) => Ok(x.clone()),
        }
    }

    /// The values of a corner's pixels, `x: [N, C, pixels] → [N, C, P]`.
    fn values(&self, corner: &[usize], x: &Tensor) -> TensorResult<Tensor> {
        x.gather(2, &self.places_in(corner, x)?)
    }

    fn places_in(&self, corner: &[usize], x: &Tensor) -> TensorResult<Tensor> {
        let index = self.index(corner)?;
        let shape = [x.shape()[0], x.shape()[1], index.shape()[1]];
        index.unsqueeze(1)?.expand(shape)
    }

    /// `y[n, c, p] = Σ w · x[n, c, index]` over the corners of each point.
    fn sum(&self, x: &Tensor) -> TensorResult<Tensor> {
        let mut sum: Option<Tensor> = None;
        for corner in self.corners() {
            let part = self.weighted(&corner, &self.values(&corner, x)?)?;
            sum = Some(match sum {
                Some(mut sum) => {
                    sum.add_(&part)?;
                    sum
                }
                None => part,
            });
        }
        Ok(sum.expect("a point has a corner"))
    }

    /// `dx[n, c, index] += w · dy[n, c, p]` over all corners.
    fn image_gradient(&self, dy: &Tensor, x: &Tensor) -> TensorResult<Tensor> {
        let mut dx = Tensor::zeros(dy.device(), *x.shape(), dy.dtype())?;
        for corner in self.corners() {
            let index = self.places_in(&corner, x)?;
            dx.scatter_add_(2, &index, &self.weighted(&corner, dy)?)?;
        }
        Ok(dx)
    }

    /// The gradient of each weight, in the order of the weights: `Σ dy · x[index] · (the corner's
    /// weights along the other dimensions)`. The sum runs over the channels and over the corners
    /// with that weight.
    fn weight_gradients(&self, dy: &Tensor, x: &Tensor) -> TensorResult<Vec<Tensor>> {
        let zeros = |weight: &Tensor| Tensor::zeros(dy.device(), *weight.shape(), dy.dtype());
        let along = |weights: &Vec<Tensor>| -> TensorResult<Vec<Tensor>> {
            weights.iter().map(zeros).collect()
        };
        let mut gradients = self.weights.iter().map(along).collect::<TensorResult<Vec<_>>>()?;
        for corner in self.corners() {
            let mut share = dy.mul(&self.values(&corner, x)?)?.sum(&[1])?;
            if let Some(is_outside) = self.is_outside(&corner)? {
                share.masked_fill_(&is_outside, 0.0)?;
            }
            for (axis, gradients) in gradients.iter_mut().enumerate() {
                let part = match self.weight(&corner, Some(axis))? {
                    Some(others) => share.mul(&others)?,
                    None => share.clone(),
                };
                gradients[corner[axis]].add_(&part)?;
            }
        }
        Ok(gradients.into_iter().flatten().collect())
    }
}

/// The weighted sums of the pixels around points, `image: [N, C, pixels] → [N, C, P]`. `around` has
/// a list of pixels for each dimension of `sizes`. Backward gathers the corners again, one at a
/// time. Saved tensors are the image, and the pixels and weights along each dimension, which have
/// no channels.
fn sum_of_corners(
    image: Var,
    around: Vec<Vec<Pixels>>,
    sizes: &[usize],
    padding: GridPadding,
) -> Result<Var> {
    let counts: Vec<usize> = around.iter().map(Vec::len).collect();
    let (mut inputs, mut places) = (vec![image], Vec::new());
    for pixel in around.into_iter().flatten() {
        places.push(pixel.places);
        inputs.extend(pixel.weight);
    }
    let sizes = sizes.to_vec();
    let assembled = move |places: Vec<Tensor>, weights: Vec<Tensor>| {
        let by_axis = |all: Vec<Tensor>| -> Vec<Vec<Tensor>> {
            let mut all = all.into_iter();
            let all_of = |&count: &usize| all.by_ref().take(count).collect();
            counts.iter().map(all_of).collect()
        };
        let weights = if weights.is_empty() { Vec::new() } else { by_axis(weights) };
        Around { sizes: sizes.clone(), padding, places: by_axis(places), weights }
    };
    Ok(Var::apply_to("grid_sample", inputs, |mut values, save| {
        let saved_places: Vec<Saved> = places.iter().map(|places| save.keep(places)).collect();
        let saved: Vec<Saved> = values.iter().map(|value| save.keep(value)).collect();
        let image = values.remove(0);
        let y = assembled(places, values).sum(&image)?;
        let rule = move |dy: Tensor, needs: Needs| {
            let unpack = |all: Vec<Saved>| -> AutogradResult<Vec<Tensor>> {
                all.into_iter().map(Saved::unpack).collect()
            };
            let (places, mut values) = (unpack(saved_places)?, unpack(saved)?);
            let (image, input_count) = (values.remove(0), values.len() + 1);
            let around = assembled(places, values);
            let mut gradients = vec![None; input_count];
            if needs.input(0) {
                gradients[0] = Some(around.image_gradient(&dy, &image)?);
            }
            if (1..input_count).any(|input| needs.input(input)) {
                let of_weights = around.weight_gradients(&dy, &image)?;
                for (input, dw) in (1..).zip(of_weights) {
                    gradients[input] = needs.input(input).then_some(dw);
                }
            }
            Ok(gradients)
        };
        Ok((y, rule))
    })?)
}

/// The values of images or volumes at points, `torch.nn.functional.grid_sample` (Jaderberg et al.,
/// "Spatial transformer networks", 2015). A point has coordinates for its column, its row and, in
/// volumes, its slice. A coordinate is -1 at the left, top or front edge and 1 at the opposite
/// edge.
///
/// # Shapes
/// `x: [N, C, H, W], grid: [N, H', W', 2] → [N, C, H', W']`;
/// `x: [N, C, D, H, W], grid: [N, D', H', W', 3] → [N, C, D', H', W']`
///
/// # Errors
/// `Shape`, also for images without pixels; `DType`; `OutOfMemory`.
pub fn grid_sample(x: Var, grid: Var, options: GridOptions) -> Result<Var> {
    let dtype = x.value().dtype();
    if dtype != dtype.computed() {
        // The result is rounded once, at the end.
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
    let image = x.reshape([samples, channels, pixels])?;
    // The first coordinate of a point belongs to the last dimension.
    let along = |axis: usize| {
        let coordinate = grid.clone().select(rank + 1, rank - 1 - axis)?;
        let coordinate = coordinate.reshape([samples, points])?;
        options.pixels(options.place(coordinate, sizes[axis])?, sizes[axis])
    };
    let around = (0..rank).map(along).collect::<Result<Vec<_>>>()?;
    let sum = sum_of_corners(image, around, sizes, options.padding)?;
    Ok(sum.reshape(&[&[samples, channels], to].concat()[..])?)
}
