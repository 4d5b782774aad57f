//! Images inside Parquet files, as dataset hubs keep them.

use crate::dataset::SampleError;
use crate::error::DataError;
use crate::image::{ImageFormat, ImageLimits, ImageSample, ImageSource, decode};
use crate::source::parquet::{Cache, ParquetError, Table};
use parquet::basic::Type as Physical;
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use std::path::Path;
use std::sync::Arc;

/// Memory for packed images of row groups.
const CACHE_BYTES: usize = 256 << 20;

/// Images of a Parquet file: a column of PNG or JPEG files as bytes, often `image.bytes`, and one
/// of classes as 64-bit integers, often `label`. Mapping and cache are as those of
/// [`Parquet`](crate::Parquet). Clones share them.
#[derive(Clone)]
pub struct ParquetImages {
    file: Arc<Table>,
    images: usize,
    labels: usize,
    cache: Arc<Cache<Group>>,
    channels: usize,
    limits: ImageLimits,
}

struct Group {
    images: Vec<ByteArray>,
    labels: Vec<i64>,
}

impl ParquetImages {
    /// Opens a file; the columns are called by their paths, with dots.
    ///
    /// # Errors
    /// [`DataError::File`] with a [`ParquetError`], or with what the system says.
    pub fn open(
        path: impl AsRef<Path>,
        image_column: &str,
        label_column: &str,
    ) -> Result<Self, DataError> {
        let file = Table::open(path.as_ref())?;
        let find = |name: &str, expected: Physical| {
            let column = file.column(name)?;
            let kind = file.physical(column);
            match kind == expected {
                true => Ok(column),
                false => Err(file.refused(column, &kind.to_string())),
            }
        };
        let wrong = |error: ParquetError| file.wrong(error);
        let images = find(image_column, Physical::BYTE_ARRAY).map_err(wrong)?;
        let labels = find(label_column, Physical::INT64).map_err(wrong)?;
        let (file, cache) = (Arc::new(file), Arc::new(Cache::new(CACHE_BYTES)));
        Ok(Self { file, images, labels, cache, channels: 3, limits: ImageLimits::default() })
    }

    /// The same images with one channel.
    #[must_use]
    pub fn grey(mut self) -> Self {
        self.channels = 1;
        self
    }

    /// The same with other limits for what is decoded.
    #[must_use]
    pub fn with_limits(mut self, limits: ImageLimits) -> Self {
        self.limits = limits;
        self
    }

    /// The same with so many bytes for row groups, of which one is kept in any case (256 MiB).
    #[must_use]
    pub fn with_cache_bytes(mut self, cache_bytes: usize) -> Self {
        self.cache = Arc::new(Cache::new(cache_bytes));
        self
    }
}

impl ImageSource for ParquetImages {
    fn image_count(&self) -> usize {
        self.file.len()
    }

    fn format(&self) -> ImageFormat {
        ImageFormat { channels: self.channels, size: None, ignored_class: None }
    }

    fn read(&self, index: usize, sample: &mut ImageSample) -> Result<(), SampleError> {
        let (number, row) = self.file.place(index);
        let size_bytes = self.file.unpacked_bytes(number, self.images);
        let read = || {
            let images = self.file.read::<ByteArrayType>(number, self.images, None)?;
            let labels = self.file.read::<Int64Type>(number, self.labels, None)?;
            Ok(Group { images, labels })
        };
        let group = self.cache.get(number, size_bytes, read);
        let group = group.map_err(|error| self.file.wrong(error))?;
        sample.label = group.labels[row];
        let file = group.images[row].data();
        decode(file, self.channels, false, &self.limits, &mut sample.image)
            .map_err(|source| DataError::damaged(&self.file.path, source).into())
    }

    fn visit_memory(&self, visit: &mut dyn FnMut(*const u8, usize)) {
        let groups = 0..self.file.row_groups();
        self.cache.visit(visit, groups.map(|group| self.file.unpacked_bytes(group, self.images)));
    }
}

impl std::fmt::Debug for ParquetImages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ParquetImages").field("path", &self.file.path).finish_non_exhaustive()
    }
}
