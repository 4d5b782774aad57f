//! Resizing of images and of tensors of any rank. lowtide's interpolation is called if ONNX
//! computes the same. Otherwise each dimension is a weighted sum of gathered neighbours.

use lowtide_autograd::Var;
use lowtide_tensor::{Corners, DType, Interpolation, Resize, Tensor};

use super::Family;
use super::node::NodeCall;
use crate::call::{Output, Result, one};

pub(super) const OPS: Family = &[
    ("Resize", |node| {
        let x = node.var(0)?;
        let roi = node.floats(1)?.unwrap_or_default();
        let (scales, wanted) = (node.floats(2)?.unwrap_or_default(), node.integers(3)?);
        let axes = node.attribute_integers("axes")?;
        let rank = x.shape().len();
        let axes: Vec<usize> = match axes {
            Some(axes) => axes.iter().map(|&axis| node.axis(axis, rank)).collect::<Result<_>>()?,
            None => (0..rank).collect(),
        };
        let policy = node.text("keep_aspect_ratio_policy")?.unwrap_or("stretch");
        let sides = sides(
            node,
            &x,
            Wishes { axes: &axes, roi: &roi, scales: &scales, sizes: wanted.as_deref(), policy },
        )?;
        if node.flag("antialias")?.unwrap_or(false) {
            return node.no_form("antialias");
        }
        resized(node, x, &sides)
    }),
    ("Upsample", |node| {
        let x = node.var(0)?;
        let scales = match node.floats(1)? {
            Some(scales) => scales,
            None => return node.no_form("scales as an attribute"),
        };
        let axes: Vec<usize> = (0..x.shape().len()).collect();
        let mut sides = sides(
            node,
            &x,
            Wishes { axes: &axes, roi: &[], scales: &scales, sizes: None, policy: "stretch" },
        )?;
        sides.retain(|side| side.scale != 1.0);
        if node.text("mode")?.unwrap_or("nearest") != "nearest" {
            return node.no_form("an upsampling that is not by the nearest");
        }
        let (size, factors) = (x.shape().len(), sides.iter().map(|side| (side.axis, side.scale)));
        let factors: Vec<(usize, f64)> = factors.collect();
        match factors[..] {
            [(2, rows), (3, columns)] if size == 4 => {
                one(x.upsample2d(Resize::By([rows, columns]), Interpolation::Nearest)?)
            }
            _ => node.no_form("other dimensions than those of images"),
        }
    }),
];

/// A dimension that changes its size.
struct Side {
    axis: usize,
    len: usize,
    new_len: usize,
    scale: f64,
    /// The part of the dimension that is resized, from 0 to 1.
    part: [f64; 2],
}

/// The sizes that a node requests.
struct Wishes<'a> {
    axes: &'a [usize],
    /// The parts of the dimensions that are resized: first the starts, then the ends.
    roi: &'a [f64],
    scales: &'a [f64],
    /// The new sizes, unless `scales` determines them.
    sizes: Option<&'a [isize]>,
    policy: &'a str,
}

fn sides(node: &NodeCall<'_>, x: &Var, wishes: Wishes<'_>) -> Result<Vec<Side>> {
    let Wishes { axes, roi, scales, sizes: wanted, policy } = wishes;
    let lens: Vec<usize> = axes.iter().map(|&axis| x.shape()[axis]).collect();
    let mut sides = Vec::new();
    let ratio = |index: usize, wanted: &[isize]| wanted[index] as f64 / lens[index].max(1) as f64;
    let common = match (policy, wanted) {
        ("not_larger", Some(wanted)) => {
            Some((0..axes.len()).map(|i| ratio(i, wanted)).fold(f64::INFINITY, f64::min))
        }
        ("not_smaller", Some(wanted)) => {
            Some((0..axes.len()).map(|i| ratio(i, wanted)).fold(0.0, f64::max))
        }
        _ => None,
    };
    for (index, &axis) in axes.iter().enumerate() {
        let len = lens[index];
        let (scale, new_len) = match (wanted, common) {
            (Some(_), Some(scale)) => (scale, (scale * len as f64 + 0.5) as usize),
            (Some(wanted), None) if wanted.len() == axes.len() => {
                (ratio(index, wanted), wanted[index].max(0) as usize)
            }
            (None, _) if scales.len() == axes.len() => {
                (scales[index], (scales[index] * len as f64) as usize)
            }
            _ => return Err(node.wrong("there are not as many sizes as dimensions")),
        };
        let part = if roi.len() == 2 * axes.len() {
            [roi[index], roi[index + axes.len()]]
        } else {
            [0.0, 1.0]
        };
        sides.push(Side { axis, len, new_len, scale, part });
    }
    Ok(sides)
}

fn resized(node: &NodeCall<'_>, x: Var, sides: &[Side]) -> Result<Vec<Output>> {
    let mode = node.text("mode")?.unwrap_or("nearest");
    let places = node.text("coordinate_transformation_mode")?.unwrap_or("half_pixel");
    let rounding = node.text("nearest_mode")?.unwrap_or("round_prefer_floor");
    let steepness = node.attribute_number("cubic_coeff_a")?.unwrap_or(-0.75);
    let is_inside_only = node.flag("exclude_outside")?.unwrap_or(false);
    let outside = node.attribute_number("extrapolation_value")?.unwrap_or(0.0);
    let is_cropped = places == "tf_crop_and_resize";
    let is_same = |side: &&Side| side.scale == 1.0 && side.new_len == side.len && !is_cropped;
    let changed: Vec<&Side> = sides.iter().filter(|side| !is_same(side)).collect();
    if let Some(y) = own_bilinear(&x, &changed, mode, places)? {
        return one(y);
    }
    let mut x = x;
    for side in changed {
        let at = coordinates(node, side, places)?;
        let taps = match mode {
            "nearest" => nearest(node, &at, rounding)?,
            "linear" => linear(&at)?,
            "cubic" => cubic(&at, steepness)?,
            other => return Err(node.wrong(&format!("mode = {other}"))),
        };
        let y = gathered(&x, side, &taps, is_inside_only, node)?;
        x = if is_cropped {
            let last = side.len as f64 - 1.0;
            let is_out = at.lt_scalar(0.0)?.logical_or(&at.gt_scalar(last)?)?;
            let mut along = vec![1; y.shape().len()];
            along[side.axis] = side.new_len;
            y.masked_fill(&is_out.reshape(&along[..])?, outside)?
        } else {
            y
        };
    }
    one(x)
}

/// lowtide's own interpolation, for images whose pixels have the coordinates of ONNX.
fn own_bilinear(x: &Var, changed: &[&Side], mode: &str, places: &str) -> Result<Option<Var>> {
    let corners = match (mode, places) {
        ("linear", "half_pixel") => Corners::Centers,
        ("linear", "align_corners") => Corners::Aligned,
        _ => return Ok(None),
    };
    // With other scales, the corners of ONNX lie between pixels.
    let is_whole = |side: &&Side| side.scale * side.len as f64 == side.new_len as f64;
    match changed {
        [rows, columns]
            if x.shape().len() == 4
                && [rows.axis, columns.axis] == [2, 3]
                && changed.iter().all(is_whole) =>
        {
            let size = Resize::To([rows.new_len, columns.new_len]);
            Ok(Some(x.clone().upsample2d(size, Interpolation::Bilinear(corners))?))
        }
        _ => Ok(None),
    }
}

/// The coordinates of the new positions in the old dimension, in f64.
fn coordinates(node: &NodeCall<'_>, side: &Side, mode: &str) -> Result<Tensor> {
    let Side { len, new_len, scale, part: [start, end], .. } = *side;
    let at = Tensor::arange(node.device(), 0.0..new_len as f64, 1.0, DType::F64)?;
    let (last, width) = (len as f64 - 1.0, scale * len as f64);
    Ok(match mode {
        "half_pixel" => at.add_scalar(0.5)?.div_scalar(scale)?.add_scalar(-0.5)?,
        "half_pixel_symmetric" => {
            let offset = len as f64 / 2.0 * (1.0 - new_len as f64 / width);
            at.add_scalar(0.5)?.div_scalar(scale)?.add_scalar(offset - 0.5)?
        }
        "pytorch_half_pixel" if new_len == 1 => at.add_scalar(-0.5)?,
        "pytorch_half_pixel" => at.add_scalar(0.5)?.div_scalar(scale)?.add_scalar(-0.5)?,
        "asymmetric" => at.div_scalar(scale)?,
        "align_corners" if width == 1.0 => at.mul_scalar(0.0)?,
        "align_corners" => at.mul_scalar(last)?.div_scalar(width - 1.0)?,
        "tf_crop_and_resize" if width == 1.0 => {
            at.mul_scalar(0.0)?.add_scalar((end - start) * last / 2.0 + start * last)?
        }
        "tf_crop_and_resize" => {
            at.mul_scalar((end - start) * last / (width - 1.0))?.add_scalar(start * last)?
        }
        other => return node.no_form(&format!("coordinates of {other}")),
    })
}

/// Indices of neighbours, each with its weight; all in f64.
pub(super) type Taps = Vec<(Tensor, Tensor)>;

fn nearest(node: &NodeCall<'_>, at: &Tensor, rounding: &str) -> Result<Taps> {
    let place = match rounding {
        "round_prefer_floor" => at.add_scalar(-0.5)?.ceil()?,
        "round_prefer_ceil" => at.add_scalar(0.5)?.floor()?,
        "floor" => at.floor()?,
        "ceil" => at.ceil()?,
        other => return Err(node.wrong(&format!("nearest_mode = {other}"))),
    };
    let whole = Tensor::ones(node.device(), *at.shape(), DType::F64)?;
    Ok(vec![(place, whole)])
}

pub(super) fn linear(at: &Tensor) -> Result<Taps> {
    let before = at.floor()?;
    let share = at.sub(&before)?;
    let rest = share.mul_scalar(-1.0)?.add_scalar(1.0)?;
    Ok(vec![(before.clone(), rest), (before.add_scalar(1.0)?, share)])
}

/// The cubic kernel of R. Keys with the slope `a`: for a distance d up to 1, `((a + 2) d - (a + 3))
/// d² + 1`, and up to 2, `((a d - 5 a) d + 8 a) d - 4 a`.
pub(super) fn cubic(at: &Tensor, a: f64) -> Result<Taps> {
    let first = at.floor()?;
    let share = at.sub(&first)?;
    let mut taps = Vec::new();
    for offset in [-1.0, 0.0, 1.0, 2.0] {
        let d = share.add_scalar(-offset)?.abs()?;
        let weight = match offset {
            0.0 | 1.0 => {
                let line = d.mul_scalar(a + 2.0)?.add_scalar(-(a + 3.0))?;
                line.mul(&d)?.mul(&d)?.add_scalar(1.0)?
            }
            _ => {
                let line = d.mul_scalar(a)?.add_scalar(-5.0 * a)?;
                line.mul(&d)?.add_scalar(8.0 * a)?.mul(&d)?.add_scalar(-4.0 * a)?
            }
        };
        taps.push((first.add_scalar(offset)?, weight));
    }
    Ok(taps)
}

/// The weighted sum of the neighbours along one dimension. Neighbours outside the dimension are the
/// first or last element, or with `is_inside_only` have no weight.
fn gathered(
    x: &Var,
    side: &Side,
    taps: &[(Tensor, Tensor)],
    is_inside_only: bool,
    node: &NodeCall<'_>,
) -> Result<Var> {
    let (dtype, last) = (x.value().dtype(), side.len as f64 - 1.0);
    let mut along = vec![1; x.shape().len()];
    along[side.axis] = side.new_len;
    let mut weights: Vec<Tensor> = taps.iter().map(|(_, weight)| weight.clone()).collect();
    if is_inside_only {
        let mut sum: Option<Tensor> = None;
        for ((place, _), weight) in taps.iter().zip(&mut weights) {
            let is_out = place.lt_scalar(0.0)?.logical_or(&place.gt_scalar(last)?)?;
            *weight = weight.masked_fill(&is_out, 0.0)?;
            sum = Some(match sum {
                Some(sum) => sum.add(weight)?,
                None => weight.clone(),
            });
        }
        for weight in &mut weights {
            *weight = sum.as_ref().map_or(Ok(weight.clone()), |sum| weight.div(sum))?;
        }
    }
    let mut y: Option<Var> = None;
    for ((place, _), weight) in taps.iter().zip(weights) {
        let index = place.clamp(0.0, last.max(0.0))?.to_dtype(DType::I64)?;
        let part = x.clone().index_select(side.axis, &index)?;
        if taps.len() == 1 {
            return Ok(part);
        }
        let weight = node.constant(weight.to_dtype(dtype)?.reshape(&along[..])?);
        let part = part.mul(weight)?;
        y = Some(match y {
            Some(y) => y.add(part)?,
            None => part,
        });
    }
    y.ok_or_else(|| node.wrong("no neighbours"))
}
