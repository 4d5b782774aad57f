//! Convolutions of any size, as implicit products of matrices over tiles of the source.
//!
//! A tile (`tiling.rs`) is filled once (`fill.rs`) and multiplied with all weights of a unit
//! (`units.rs`). So the im2col matrix never exists as a whole:
//!
//! - forward, gradient of x: `output.rs`; its inner loops are `output_tile.rs`.
//! - gradient of w: `weight.rs`. The lanes of its inner loops are output channels
//!   (`weight_by_channel.rs`) or pixels (`weight_by_pixel.rs`).

mod fill;
mod output;
mod output_tile;
mod tiling;
mod units;
mod weight;
mod weight_by_channel;
mod weight_by_pixel;

use super::Product;
use super::phases::Phases;
use super::shape::Conv2dShape;
use super::way::Slices;
use crate::cpu::math::SimdFloat;
use crate::cpu::pool::Pool;
use crate::dtype::Element;

/// A convolution by tiles.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tiles {
    shape: Conv2dShape,
}

impl Tiles {
    /// Tiles for any convolution, even without work.
    pub(super) fn of(shape: &Conv2dShape) -> Self {
        Tiles { shape: *shape }
    }
}

impl Tiles {
    /// Elements of scratch that [`run`](Self::run) needs.
    pub(super) fn workspace_len<E: Element, T: SimdFloat>(&self, product: Product) -> usize {
        match Phases::of(&self.shape, product) {
            Some(phases) => output::workspace_len::<E, T>(phases),
            None => weight::workspace_len::<E, T>(&self.shape),
        }
    }

    /// Overwrites the result of a product: see `way::run`.
    pub(super) fn run<E: Element, T: SimdFloat>(
        &self,
        product: Product,
        pool: &Pool,
        slices: Slices<'_, E, T>,
    ) {
        match Phases::of(&self.shape, product) {
            Some(phases) => output::convolve(pool, phases, slices),
            None => weight::backward_weight(pool, &self.shape, slices),
        }
    }
}
