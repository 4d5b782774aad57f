//! Sources of images, before they are transformed.

use crate::dataset::Dataset;
use crate::error::{DataError, SampleError};
use crate::image::raster::Raster;
use crate::subset::Subset;
use crate::transform::{Pipeline, Transformed};
use std::sync::Arc;

/// Images of any size, each with a class or a mask. A [`Pipeline`] turns the images into a dataset.
pub trait ImageSource: Send + Sync {
    /// Number of images; never changes.
    fn image_count(&self) -> usize;

    /// The properties that all images have in common.
    fn format(&self) -> ImageFormat;

    /// Reads image `index`, which is below `image_count`, into `sample`, which still holds an
    /// earlier image.
    ///
    /// # Errors
    /// Any error, which should name the file.
    fn read(&self, index: usize, sample: &mut ImageSample) -> Result<(), SampleError>;

    /// Visits the memory that images are read from; see [`Dataset::visit_memory`].
    fn visit_memory(&self, _visit: &mut dyn FnMut(*const u8, usize)) {}

    /// The dataset of these images after the steps of a pipeline.
    ///
    /// # Errors
    /// As for [`Transformed::new`].
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

/// The images of a part of a source, such as [`Digits::images`](crate::Digits::images).
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

/// The properties that all images of an [`ImageSource`] have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageFormat {
    /// Number of channels: 1 for grey, 3 for RGB.
    pub channels: usize,
    /// Height and width, if all images have one size.
    pub size: Option<[usize; 2]>,
    /// The class of ignored pixels and of pixels outside the image, if the images have masks.
    pub ignored_class: Option<u8>,
}

/// One image with a class or a mask. The next image reuses the memory.
#[derive(Debug, Default)]
pub struct ImageSample {
    /// The pixels, with 8 bits per channel.
    pub image: Raster,
    /// The class of each pixel, `[H, W]`, for a source with masks.
    pub mask: Raster,
    /// The class of the image, for a source without masks.
    pub label: i64,
    /// Scratch memory for the bytes of a file.
    pub file: Vec<u8>,
}
