//! Numeric columns of Parquet files, decoded one row group at a time.

use crate::dataset::{Dataset, SampleSlot};
use crate::element::{Element, ElementType, Field};
use crate::error::{DataError, SampleError};
use crate::source::group_cache::GroupCache;
use crate::source::map::Map;
use bytes::Bytes;
use parquet::basic::Type as Physical;
use parquet::column::reader::get_typed_column_reader;
use parquet::data_type::{BoolType, DataType, DoubleType, FloatType, Int32Type, Int64Type};
use parquet::errors::ParquetError as Damage;
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::reader::{FileReader, SerializedFileReader};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Default memory for decoded row groups.
const CACHE_BYTES: usize = 256 << 20;

/// Maximum number of bytes of a column in a row group. A small file may claim to repeat a value any
/// number of times.
const COLUMN_BYTES_MAX: usize = 4 << 30;

/// Columns of a Parquet file, each as a field with the name of the column. A column has numbers, or
/// lists of numbers of equal length, of f32, f64, i64, i32 or bool. A null is an error.
///
/// The file is mapped into memory and must not be truncated while it is in use. Row groups are
/// decoded as a whole, and the most recently used groups stay in a cache. If the order of the
/// samples jumps between more groups than the cache holds, every sample decodes a group. Clones
/// share the file and the cache.
///
/// # Examples
/// ```no_run
/// use lowtide_data::Parquet;
/// let table = Parquet::open("train.parquet", &["inputs", "targets"])?;
/// # Ok::<(), lowtide_data::DataError>(())
/// ```
#[derive(Clone)]
pub struct Parquet {
    file: Arc<Table>,
    fields: Vec<Field>,
    /// Index of the column of each field.
    columns: Arc<[usize]>,
    cache: Arc<GroupCache<Vec<Vec<u8>>>>,
}

/// A Parquet file that cannot be read; the cause of a [`DataError::File`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParquetError {
    /// The file is not a Parquet file, is damaged, or has an encoding that is not supported.
    #[error("the file cannot be decoded")]
    Damaged(#[source] Damage),
    /// A column is missing, or the file has two columns of this name.
    #[error("the file does not have the column {column:?} once")]
    Column {
        /// Path of the column, with dots.
        column: String,
    },
    /// A column has a type that no field can have.
    #[error("the column {column:?} holds {kind}, which is not supported")]
    Kind {
        /// Path of the column, with dots.
        column: String,
        /// Type of the column in the file.
        kind: String,
    },
    /// A value is null, or a list has another length than the first list.
    #[error("the column {column:?} has a null or a list of another length in row group {group}")]
    Ragged {
        /// Path of the column, with dots.
        column: String,
        /// Index of the row group.
        group: usize,
    },
    /// A row group is too large to be decoded as a whole.
    #[error("the column {column:?} has more than 4 GiB in row group {group}")]
    TooLarge {
        /// Path of the column, with dots.
        column: String,
        /// Index of the row group.
        group: usize,
    },
}

impl Parquet {
    /// Opens a file and reads its schema. `columns` are the paths of the columns, with dots between
    /// the parts of a nested column, in the order of the fields. The path of a list also names the
    /// column inside the list.
    ///
    /// # Errors
    /// [`DataError::File`] with a [`ParquetError`] or an error of the system.
    pub fn open(path: impl AsRef<Path>, columns: &[&str]) -> Result<Self, DataError> {
        let file = Table::open(path.as_ref())?;
        let wrong = |error| file.wrong(error);
        let (mut fields, mut indices) = (Vec::new(), Vec::new());
        for &name in columns {
            let column = file.column(name).map_err(wrong)?;
            let (element, shape) = file.field_of(column).map_err(wrong)?;
            fields.push(Field::new(name, element, &shape));
            indices.push(column);
        }
        let cache = Arc::new(GroupCache::new(CACHE_BYTES));
        Ok(Self { file: Arc::new(file), fields, columns: indices.into(), cache })
    }

    /// The paths of the columns of a file that [`Parquet::open`] supports.
    ///
    /// # Errors
    /// As for [`Parquet::open`].
    pub fn columns(path: impl AsRef<Path>) -> Result<Vec<String>, DataError> {
        let file = Table::open(path.as_ref())?;
        let columns = file.reader.metadata().file_metadata().schema_descr().num_columns();
        let is_readable = |&column: &usize| file.field_of(column).is_ok();
        Ok((0..columns).filter(is_readable).map(|column| file.column_path(column)).collect())
    }

    /// Changes the memory for decoded row groups (256 MiB). The row group that is read always stays
    /// in memory.
    #[must_use]
    pub fn with_cache_bytes(mut self, cache_bytes: usize) -> Self {
        self.cache = Arc::new(GroupCache::new(cache_bytes));
        self
    }

    /// Number of row groups of the file.
    #[must_use]
    pub fn row_groups(&self) -> usize {
        self.file.row_groups()
    }

    /// Number of bytes of a decoded row group.
    fn group_bytes(&self, group: usize) -> usize {
        let row_bytes: usize = self.fields.iter().filter_map(Field::sample_bytes).sum();
        row_bytes.saturating_mul(self.file.rows(group))
    }

    fn decode(&self, group: usize) -> Result<Vec<Vec<u8>>, ParquetError> {
        let columns = self.columns.iter().zip(&self.fields);
        let decode = |(&column, field): (&usize, &Field)| {
            let list_len = field.shape.first().copied();
            match field.element {
                ElementType::Bool => self.file.values::<BoolType>(group, column, list_len),
                ElementType::I32 => self.file.values::<Int32Type>(group, column, list_len),
                ElementType::I64 => self.file.values::<Int64Type>(group, column, list_len),
                ElementType::F32 => self.file.values::<FloatType>(group, column, list_len),
                _ => self.file.values::<DoubleType>(group, column, list_len),
            }
        };
        columns.map(decode).collect()
    }
}

impl Dataset for Parquet {
    fn len(&self) -> usize {
        self.file.len()
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn write(&self, index: usize, slot: &mut SampleSlot<'_>) -> Result<(), SampleError> {
        let RowPlace { group, row } = self.file.place(index);
        let size_bytes = self.group_bytes(group);
        let columns = self.cache.get(group, size_bytes, || self.decode(group));
        let columns = columns.map_err(|error| self.file.wrong(error))?;
        for (field_index, column) in columns.iter().enumerate() {
            let out = slot.bytes(field_index);
            out.copy_from_slice(&column[row * out.len()..][..out.len()]);
        }
        Ok(())
    }

    fn visit_memory(&self, visit: &mut dyn FnMut(*const u8, usize)) {
        self.cache.visit(visit, (0..self.row_groups()).map(|group| self.group_bytes(group)));
    }
}

impl std::fmt::Debug for Parquet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parquet").field("path", &self.file.path).finish_non_exhaustive()
    }
}

/// An open file and the first rows of its row groups.
pub(super) struct Table {
    pub(super) path: PathBuf,
    reader: SerializedFileReader<Bytes>,
    /// The first row of each row group, and the number of all rows.
    starts: Vec<usize>,
}

/// The place of a row: its row group, and its number in the group.
pub(super) struct RowPlace {
    pub(super) group: usize,
    pub(super) row: usize,
}

impl Table {
    pub(super) fn open(path: &Path) -> Result<Self, DataError> {
        let map = Map::open(path)?;
        let (path, file_bytes) = (path.to_owned(), map.bytes().len());
        // Readers of a `File` would share its position, so the reader gets the mapped bytes.
        let reader = catch_panic(|| SerializedFileReader::new(Bytes::from_owner(map)));
        let reader = reader.map_err(|error| DataError::damaged(&path, error))?;
        let mut starts = vec![0_usize];
        for group in reader.metadata().row_groups() {
            let rows =
                usize::try_from(group.num_rows()).ok().filter(|_| lies_in(group, file_bytes));
            let end = rows.and_then(|rows| starts[starts.len() - 1].checked_add(rows));
            let damaged = || Damage::General("a row group lies outside the file".to_owned());
            let end =
                end.ok_or_else(|| DataError::damaged(&path, ParquetError::Damaged(damaged())))?;
            starts.push(end);
        }
        Ok(Self { path, reader, starts })
    }

    pub(super) fn wrong(&self, error: ParquetError) -> DataError {
        DataError::damaged(&self.path, error)
    }

    pub(super) fn len(&self) -> usize {
        self.starts[self.starts.len() - 1]
    }

    pub(super) fn row_groups(&self) -> usize {
        self.starts.len() - 1
    }

    pub(super) fn rows(&self, group: usize) -> usize {
        self.starts[group + 1] - self.starts[group]
    }

    pub(super) fn place(&self, index: usize) -> RowPlace {
        let group = self.starts.partition_point(|&start| start <= index) - 1;
        RowPlace { group, row: index - self.starts[group] }
    }

    /// The index of the column with this path, or of the only column below this path.
    pub(super) fn column(&self, name: &str) -> Result<usize, ParquetError> {
        let schema = self.reader.metadata().file_metadata().schema_descr();
        let is_named = |&at: &usize| {
            let path = schema.column(at).path().string();
            path == name || path.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'))
        };
        let mut found = (0..schema.num_columns()).filter(is_named);
        match (found.next(), found.next()) {
            (Some(column), None) => Ok(column),
            _ => Err(ParquetError::Column { column: name.to_owned() }),
        }
    }

    pub(super) fn physical(&self, column: usize) -> Physical {
        let schema = self.reader.metadata().file_metadata().schema_descr();
        schema.column(column).physical_type()
    }

    pub(super) fn column_path(&self, column: usize) -> String {
        let schema = self.reader.metadata().file_metadata().schema_descr();
        schema.column(column).path().string()
    }

    /// Number of uncompressed bytes of a column in a row group, as the file states it.
    #[cfg(feature = "images")]
    pub(super) fn uncompressed_bytes(&self, group: usize, column: usize) -> usize {
        let group = self.reader.metadata().row_group(group);
        usize::try_from(group.column(column).uncompressed_size()).unwrap_or(usize::MAX)
    }

    /// The element type and the shape of one row of a column. The first list determines the length
    /// of all lists.
    fn field_of(&self, column: usize) -> Result<(ElementType, Vec<usize>), ParquetError> {
        let schema = self.reader.metadata().file_metadata().schema_descr();
        let element = match self.physical(column) {
            Physical::BOOLEAN => ElementType::Bool,
            Physical::INT32 => ElementType::I32,
            Physical::INT64 => ElementType::I64,
            Physical::FLOAT => ElementType::F32,
            Physical::DOUBLE => ElementType::F64,
            kind => return Err(self.refused(column, &kind.to_string())),
        };
        match schema.column(column).max_rep_level() {
            0 => return Ok((element, Vec::new())),
            1 => {}
            _ => return Err(self.refused(column, "lists of lists")),
        }
        let Some(group) = (0..self.row_groups()).find(|&group| self.rows(group) > 0) else {
            return Ok((element, vec![0]));
        };
        let len = match element {
            ElementType::Bool => self.first_len::<BoolType>(group, column),
            ElementType::I32 => self.first_len::<Int32Type>(group, column),
            ElementType::I64 => self.first_len::<Int64Type>(group, column),
            ElementType::F32 => self.first_len::<FloatType>(group, column),
            _ => self.first_len::<DoubleType>(group, column),
        };
        Ok((element, vec![len?]))
    }

    pub(super) fn refused(&self, column: usize, kind: &str) -> ParquetError {
        ParquetError::Kind { column: self.column_path(column), kind: kind.to_owned() }
    }

    fn first_len<T: DataType>(&self, group: usize, column: usize) -> Result<usize, ParquetError> {
        let read = || {
            let reader = self.reader.get_row_group(group)?.get_column_reader(column)?;
            let mut values = Vec::new();
            get_typed_column_reader::<T>(reader).read_records(
                1,
                Some(&mut Vec::new()),
                Some(&mut Vec::new()),
                &mut values,
            )?;
            Ok(values.len())
        };
        catch_panic(read)
    }

    /// The bytes of all values of a column in a row group.
    fn values<T: DataType>(
        &self,
        group: usize,
        column: usize,
        list_len: Option<usize>,
    ) -> Result<Vec<u8>, ParquetError>
    where
        T::T: Element,
    {
        let values = self.read::<T>(group, column, list_len)?;
        Ok(bytemuck::cast_slice(&values).to_vec())
    }

    /// All values of a column in a row group: one per row, or `list_len` per row.
    pub(super) fn read<T: DataType>(
        &self,
        group: usize,
        column: usize,
        list_len: Option<usize>,
    ) -> Result<Vec<T::T>, ParquetError> {
        let (mut defined, mut repeated, mut values) = (Vec::new(), Vec::new(), Vec::new());
        let rows = self.rows(group);
        let size_bytes = [list_len.unwrap_or(1), size_of::<T::T>()]
            .into_iter()
            .try_fold(rows, |bytes, factor| bytes.checked_mul(factor));
        if size_bytes.is_none_or(|bytes| bytes > COLUMN_BYTES_MAX) {
            return Err(ParquetError::TooLarge { column: self.column_path(column), group });
        }
        let mut read = || -> Result<usize, Damage> {
            let row_group = self.reader.get_row_group(group)?;
            let mut reader = get_typed_column_reader::<T>(row_group.get_column_reader(column)?);
            let mut done = 0;
            while done < rows {
                let (defined, repeated) = (Some(&mut defined), Some(&mut repeated));
                match reader.read_records(rows - done, defined, repeated, &mut values)? {
                    (0, ..) => break,
                    (count, ..) => done += count,
                }
            }
            Ok(done)
        };
        let done = catch_panic(&mut read)?;
        let schema = self.reader.metadata().file_metadata().schema_descr();
        let defined_max = schema.column(column).max_def_level();
        // The repetition level is 0 at the beginning of a list.
        let len = list_len.unwrap_or(1);
        let begins = |(at, &level): (usize, &i16)| (level == 0) == (at % len.max(1) == 0);
        let is_whole = done == rows
            && rows.checked_mul(len) == Some(values.len())
            && defined.iter().all(|&level| level == defined_max)
            && repeated.iter().enumerate().all(begins);
        if is_whole {
            Ok(values)
        } else {
            Err(ParquetError::Ragged { column: self.column_path(column), group })
        }
    }
}

/// Calls the decoder and turns its panic into an error. The decoder panics at some damaged files,
/// such as a page that refers to a missing dictionary.
fn catch_panic<R>(decode: impl FnOnce() -> Result<R, Damage>) -> Result<R, ParquetError> {
    // Unwind safety: decoded values are dropped, and the reader of the file is not changed.
    let decoded = catch_unwind(AssertUnwindSafe(decode));
    let panicked = |_| Err(Damage::General("the decoder panicked".to_owned()));
    decoded.unwrap_or_else(panicked).map_err(ParquetError::Damaged)
}

/// True if the columns of a row group lie in the file. The decoder does not check this.
fn lies_in(group: &RowGroupMetaData, file_bytes: usize) -> bool {
    group.columns().iter().all(|column| {
        let start = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
        let parts = [start, column.data_page_offset(), column.compressed_size()];
        let [start, data, len] = parts.map(|part| usize::try_from(part).unwrap_or(usize::MAX));
        data <= file_bytes && start.checked_add(len).is_some_and(|end| end <= file_bytes)
    })
}
