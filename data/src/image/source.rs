//! Where images come from before they are transformed.

use crate::dataset::{Dataset, SampleError};
use crate::error::DataError;
use crate::image::Raster;
use crate::subset::Subset;
use crate::transform::{Pipeline, Transformed};
use std::sync::Arc;

/// Images of any size, each with a class or a mask: what a [`Pipeline`] makes a dataset of.
pub trait ImageSource: Send + Sync {
    /// Number of images; never changes.
    fn image_count(&self) -> usize;

    /// What the images have in common.
    fn format(&self) -> ImageFormat;

    /// Reads image `index`, which is below `image_count`, into `sample`, which holds another one
    /// before.
    ///
    /// # Errors
    /// Any error, which should name the file.
    fn read(&self, index: usize, sample: &mut ImageSample) -> Result<(), SampleError>;

    /// What memory images are read from, as [`Dataset::visit_memory`] tells.
    fn visit_memory(&self, _visit: &mut dyn FnMut(*const u8, usize)) {}

    /// The dataset of these images through the steps of a pipeline.
    ///
    /// # Errors
    /// Those of [`Transformed::new`].
    fn through(self, pipeline: Pipeline) -> Result<Transformed<Self>, DataError>
    where
        Self: Sized,
    {
        Transformed::new(self, pipeline)
    }
}

impl<S: ImageSource + ?Sized> ImageSource for Arc<S> {
    fn image_count(&self) -> usize {
        (**self).image_count()
    }

    fn format(&self) -> ImageFormat {
        (**self).format()
    }

    fn read(&self, index: usize, sample: &mut ImageSample) -> Result<(), SampleError> {
        (**self).read(index, sample)
    }

    fn visit_memory(&self, visit: &mut dyn FnMut(*const u8, usize)) {
        (**self).visit_memory(visit);
    }
}

/// The images of a part, such as those of [`Digits::images`](crate::Digits::images).
impl<S: Dataset + ImageSource> ImageSource for Subset<S> {
    fn image_count(&self) -> usize {
        self.indices().len()
    }

    fn format(&self) -> ImageFormat {
        self.dataset().format()
    }

    fn read(&self, index: usize, sample: &mut ImageSample) -> Result<(), SampleError> {
        self.dataset().read(self.indices()[index], sample)
    }

    fn visit_memory(&self, visit: &mut dyn FnMut(*const u8, usize)) {
        Dataset::visit_memory(self, visit);
    }
}

/// What the images of an [`ImageSource`] have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageFormat {
    /// 1 for grey, 3 for red, green and blue.
    pub channels: usize,
    /// Height and width, if all have the same.
    pub size: Option<[usize; 2]>,
    /// For images with masks: the class of pixels that do not count, also of those outside.
    pub ignored_class: Option<u8>,
}

/// One image, with a class or a mask, in memory that is used again for the next one.
#[derive(Debug, Default)]
pub struct ImageSample {
    /// The pixels, 8 bits for each channel.
    pub image: Raster,
    /// The class of each pixel, `[H, W]` of one channel, where there are masks.
    pub mask: Raster,
    /// The class, where there are none.
    pub label: i64,
    /// Room for the bytes of a file.
    pub file: Vec<u8>,
}
