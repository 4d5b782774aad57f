//! Images in Parquet files, the usual layout of dataset hubs.

use crate::error::{DataError, SampleError};
use crate::image::{DecodeOptions, ImageFormat, ImageLimits, ImageSample, ImageSource, decode};
use crate::source::group_cache::GroupCache;
use crate::source::parquet::{ParquetError, RowPlace, Table};
use parquet::basic::Type as Physical;
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use std::path::Path;
use std::sync::Arc;

/// Default memory for the encoded images of row groups.
const CACHE_BYTES: usize = 256 << 20;

/// Images of a Parquet file: a column with the bytes of PNG or JPEG files, often `image.bytes`, and
/// a column with classes as 64-bit integers, often `label`. The file is mapped and cached as by
/// [`Parquet`](crate::Parquet). Clones share the mapping and the cache.
#[derive(Clone)]
pub struct ParquetImages {
    file: Arc<Table>,
    images: usize,
    labels: usize,
    cache: Arc<GroupCache<Group>>,
    options: DecodeOptions,
}

struct Group {
    images: Vec<ByteArray>,
    labels: Vec<i64>,
}

impl ParquetImages {
    /// Opens a file. Columns are named by their paths, with dots.
    ///
    /// # Errors
    /// [`DataError::File`] with a [`ParquetError`] or an error of the system.
    pub fn open(
        path: impl AsRef<Path>,
        image_column: &str,
        label_column: &str,
    ) -> Result<Self, DataError> {
        let file = Table::open(path.as_ref())?;
        let find = |name: &str, expected: Physical| {
            let column = file.column(name)?;
            let kind = file.physical(column);
            if kind != expected {
                return Err(file.refused(column, &kind.to_string()));
            }
            Ok(column)
        };
        let wrong = |error: ParquetError| file.wrong(error);
        let images = find(image_column, Physical::BYTE_ARRAY).map_err(wrong)?;
        let labels = find(label_column, Physical::INT64).map_err(wrong)?;
        let (file, cache) = (Arc::new(file), Arc::new(GroupCache::new(CACHE_BYTES)));
        Ok(Self { file, images, labels, cache, options: DecodeOptions::default() })
    }

    /// Decodes images to one channel.
    #[must_use]
    pub fn grey(mut self) -> Self {
        self.options.channels = 1;
        self
    }

    /// Changes the limits of decoding.
    #[must_use]
    pub fn with_limits(mut self, limits: ImageLimits) -> Self {
        self.options.limits = limits;
        self
    }

    /// Changes the memory for row groups (256 MiB). The row group that is read always stays in
    /// memory.
    #[must_use]
    pub fn with_cache_bytes(mut self, cache_bytes: usize) -> Self {
        self.cache = Arc::new(GroupCache::new(cache_bytes));
        self
    }
}

impl ImageSource for ParquetImages {
    fn image_count(&self) -> usize {
        self.file.len()
    }

    fn format(&self) -> ImageFormat {
        ImageFormat { channels: self.options.channels, size: None, ignored_class: None }
    }

    fn read(&self, index: usize, sample: &mut ImageSample) -> Result<(), SampleError> {
        let RowPlace { group, row } = self.file.place(index);
        let size_bytes = self.file.uncompressed_bytes(group, self.images);
        let read = || {
            let images = self.file.read::<ByteArrayType>(group, self.images, None)?;
            let labels = self.file.read::<Int64Type>(group, self.labels, None)?;
            Ok(Group { images, labels })
        };
        let content = self.cache.get(group, size_bytes, read);
        let Group { images, labels } = &*content.map_err(|error| self.file.wrong(error))?;
        sample.label = labels[row];
        let file = images[row].data();
        decode(file, &self.options, &mut sample.image)
            .map_err(|source| DataError::damaged(&self.file.path, source).into())
    }

    fn visit_memory(&self, visit: &mut dyn FnMut(*const u8, usize)) {
        let groups = 0..self.file.row_groups();
        let sizes = groups.map(|group| self.file.uncompressed_bytes(group, self.images));
        self.cache.visit(visit, sizes);
    }
}

impl std::fmt::Debug for ParquetImages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ParquetImages").field("path", &self.file.path).finish_non_exhaustive()
    }
}
