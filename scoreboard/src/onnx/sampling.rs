//! Sampling of images at places that a network computes.

use lowtide_nn::{GridMode, GridOptions, GridPadding};
use lowtide_tensor::{Corners, DType, Tensor};

use super::Family;
use super::node::NodeCall;
use crate::call::{Output, Result, one};

pub(super) const OPS: Family = &[
    ("AffineGrid", |node| {
        let theta = node.var(0)?;
        let size = super::views::sizes(&node.integers(1)?.unwrap_or_default());
        let is_aligned = node.flag("align_corners")?.unwrap_or(false);
        let dims = size.get(2..).unwrap_or_default();
        let (count, dtype) = (dims.len(), theta.value().dtype());
        // The first coordinate of a place belongs to the last dimension, and 1 is the end of a
        // dimension.
        let mut columns = Vec::new();
        for (axis, &len) in dims.iter().enumerate().rev() {
            let at = Tensor::arange(node.device(), 0.0..len as f64, 1.0, DType::F64)?;
            let at = if is_aligned {
                at.mul_scalar(2.0 / (len as f64 - 1.0))?.add_scalar(-1.0)?
            } else {
                at.add_scalar(0.5)?.mul_scalar(2.0 / len as f64)?.add_scalar(-1.0)?
            };
            let mut along = vec![1; count];
            along[axis] = len;
            columns.push(at.to_dtype(dtype)?.reshape(&along[..])?.expand(dims)?);
        }
        columns.push(Tensor::ones(node.device(), dims, dtype)?);
        let columns: Vec<&Tensor> = columns.iter().collect();
        let places: usize = dims.iter().product();
        let base = Tensor::stack(&columns, count)?.reshape([places, count + 1])?;
        let grid = node.constant(base).matmul(theta.transpose(-2, -1)?)?;
        one(grid.reshape(&[&size[..1], dims, &[count]].concat()[..])?)
    }),
    ("GridSample", grid_sample),
];

fn grid_sample(node: &NodeCall<'_>) -> Result<Vec<Output>> {
    let (x, grid) = (node.var(0)?, node.var(1)?);
    let mode = match node.text("mode")?.unwrap_or("linear") {
        "linear" | "bilinear" => GridMode::Bilinear,
        "nearest" => GridMode::Nearest,
        "cubic" | "bicubic" => GridMode::Bicubic,
        other => return Err(node.wrong(&format!("mode = {other}"))),
    };
    let padding = match node.text("padding_mode")?.unwrap_or("zeros") {
        "zeros" => GridPadding::Zeros,
        "border" => GridPadding::Border,
        "reflection" => GridPadding::Reflection,
        other => return Err(node.wrong(&format!("padding_mode = {other}"))),
    };
    let is_aligned = node.flag("align_corners")?.unwrap_or(false);
    let corners = if is_aligned { Corners::Aligned } else { Corners::Centers };
    one(lowtide_nn::grid_sample(x, grid, GridOptions { mode, padding, corners })?)
}
