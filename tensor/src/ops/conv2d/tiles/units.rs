//! The cut of a convolution into units and tasks. The cut depends on the shape alone, so that
//! neither the results nor the workspace depend on the number of threads.

use std::ops::Range;

use super::tiling::{Layout, PIXELS_ENOUGH, Tiling};
use super::weight_by_channel::padded_channels;
use super::weight_by_pixel::RUN_LEN;
use crate::ops::conv2d::geometry::Geometry;
use crate::ops::conv2d::way::{PARTIALS_LEN_MAX, TASK_COUNT_MAX};

/// Smallest number of output channels for a further task, if there are few images. Each part of the
/// channels fills the tiles of all its pixels again.
const PART_CHANNELS: usize = 64;

/// Smallest number of output channels for a further task, while there are fewer than
/// [`TASK_COUNT_MIN`] tasks: some cores would have none.
const PART_CHANNELS_MIN: usize = 16;
const TASK_COUNT_MIN: usize = 8;

/// Pixels that a block of dw sums before its sums go back to memory, if channels are the lanes. A
/// block takes several small images together.
const BLOCK_PIXELS: usize = 64;

/// The cut of a convolution into equal units, and of the units into tasks. Each unit owns a
/// contiguous run of results; each task has its own tile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Units {
    pub(super) groups: usize,
    /// Cuts of a group's output channels.
    pub(super) parts: usize,
    /// Output channels of a unit.
    pub(super) channels: usize,
    /// Images.
    batch: usize,
    /// Cuts of the images.
    pub(super) batch_parts: usize,
    pub(super) count: usize,
    pub(super) per_task: usize,
    pub(super) tiling: Tiling,
    pub(super) images_per_tile: usize,
    /// Elements of scratch of one task.
    pub(super) scratch_len: usize,
}

/// The product that the units compute, and the memory of its sums.
#[derive(Clone, Copy)]
pub(super) enum Role {
    /// The result, y or dx.
    Output,
    /// The result, of a half type or of a phase. Sums need memory of their own.
    PlacedOutput,
    /// The gradient of weights with channels in the lanes. dy is transposed first.
    WeightByChannel,
    /// The gradient of weights with pixels in the lanes. dy is read in place.
    WeightByPixel,
    /// The gradient of weights of a half type with pixels in the lanes. dy is converted first.
    HalfWeightByPixel,
}

/// A unit of [`Units`].
#[derive(Clone, Debug)]
pub(super) struct Unit {
    pub(super) group: usize,
    /// The first output channel, counted over all groups.
    pub(super) first_channel: usize,
    pub(super) images: Range<usize>,
}

impl Units {
    /// Units of one image. The results of a unit are contiguous in y.
    pub(super) fn of_output(geometry: &Geometry, role: Role) -> Self {
        Self::new(geometry, geometry.batch, role)
    }

    /// Units of several images. The sums of the units are added up afterwards.
    pub(super) fn of_weight(geometry: &Geometry, role: Role) -> Self {
        let dw_len =
            geometry.groups * geometry.out_channels * geometry.in_channels * geometry.tap_count();
        let copies_max = (PARTIALS_LEN_MAX / dw_len.max(1)).clamp(1, TASK_COUNT_MAX);
        let batch_parts = geometry.batch.clamp(1, copies_max);
        Self::new(geometry, batch_parts, role)
    }

    fn new(geometry: &Geometry, batch_parts: usize, role: Role) -> Self {
        let groups = geometry.groups;
        let parts_for = |tasks: usize, channels_min: usize| {
            let wanted = tasks.div_ceil((batch_parts * groups).max(1));
            let most = (geometry.out_channels / channels_min).clamp(1, wanted);
            (1..=most).rev().find(|&n| geometry.out_channels.is_multiple_of(n)).unwrap_or(1)
        };
        let parts = parts_for(TASK_COUNT_MAX, PART_CHANNELS)
            .max(parts_for(TASK_COUNT_MIN, PART_CHANNELS_MIN));
        let count = batch_parts * groups * parts;
        let per_task = count.div_ceil(TASK_COUNT_MAX).max(1);
        let channels = geometry.out_channels / parts;
        // Elements of scratch for each pixel, beside the tile.
        let pixel_len = match role {
            Role::Output | Role::WeightByPixel => 0,
            Role::PlacedOutput | Role::HalfWeightByPixel => channels,
            Role::WeightByChannel => padded_channels(channels),
        };
        let images_for = |pixels: usize| {
            let images_max = geometry.batch.div_ceil(batch_parts.max(1));
            pixels.div_ceil(geometry.out_plane_len().max(1)).min(images_max).max(1)
        };
        let (tiling, images_per_tile) = match role {
            Role::Output | Role::PlacedOutput | Role::WeightByChannel => {
                let layout = Layout::of(geometry);
                let tiling = Tiling::new(geometry, layout, pixel_len, PIXELS_ENOUGH);
                let is_output = !matches!(role, Role::WeightByChannel);
                (tiling, if is_output { 1 } else { images_for(BLOCK_PIXELS) })
            }
            Role::WeightByPixel | Role::HalfWeightByPixel => {
                let tiling = Tiling::new(geometry, Layout::Copies, pixel_len, RUN_LEN);
                (tiling, images_for(RUN_LEN).min(tiling.images_that_fit()))
            }
        };
        let pixel_count = images_per_tile * tiling.row_count * geometry.out_size[1];
        let joined_len = geometry.joined_len(tiling.row_count);
        let scratch_len = tiling.len(images_per_tile) + joined_len + pixel_count * pixel_len;
        Self {
            groups,
            parts,
            channels,
            batch: geometry.batch,
            batch_parts,
            count,
            per_task,
            tiling,
            images_per_tile,
            scratch_len,
        }
    }

    pub(super) fn workspace_len(&self) -> usize {
        self.count.div_ceil(self.per_task) * self.scratch_len
    }

    pub(super) fn at(&self, index: usize) -> Unit {
        let (batch_part, block) =
            (index / (self.groups * self.parts), index % (self.groups * self.parts));
        // Parts are nearly equal, so that all threads end at the same time.
        let image = |part: usize| part * self.batch / self.batch_parts;
        Unit {
            group: block / self.parts,
            first_channel: block * self.channels,
            images: image(batch_part)..image(batch_part + 1),
        }
    }
}
