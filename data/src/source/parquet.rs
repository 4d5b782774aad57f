//! Numeric columns of Parquet files, a row group at a time.

use crate::dataset::{Dataset, SampleError, SampleSlot};
use crate::element::{Element, ElementType, Field};
use crate::error::DataError;
use crate::source::map::Map;
use bytes::Bytes;
use parquet::basic::Type as Physical;
use parquet::column::reader::get_typed_column_reader;
use parquet::data_type::{BoolType, DataType, DoubleType, FloatType, Int32Type, Int64Type};
use parquet::errors::ParquetError as Damage;
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::reader::{FileReader, SerializedFileReader};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Memory for decoded row groups unless a dataset is told otherwise.
const CACHE_BYTES: usize = 256 << 20;

/// Bytes of the values of a column in a row group at most: a small file may say that it repeats one
/// of them any number of times.
const COLUMN_BYTES_MAX: usize = 4 << 30;

/// Columns of a Parquet file of numbers, or of lists of numbers that have one length: a field each,
/// named as the column, of f32, f64, i64, i32 or bool. Nulls are errors.
///
/// The file is mapped into memory and must not be made shorter while it is in use. Row groups are
/// decoded as a whole and kept while they fit in the cache, the last used ones; an order that jumps
/// between more groups than fit decodes one for every sample. Clones share file and cache.
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
    /// Index of each field's column.
    columns: Arc<[usize]>,
    cache: Arc<Cache<Vec<Vec<u8>>>>,
}

/// What is wrong with a Parquet file: the cause inside [`DataError::File`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParquetError {
    /// The file is no Parquet file, is damaged, or is packed in a way that is not supported.
    #[error("the file cannot be decoded")]
    Damaged(#[source] Damage),
    /// There is no such column, or more than one.
    #[error("the file does not have the column {column:?} once")]
    Column {
        /// Its path, with dots.
        column: String,
    },
    /// A column is not of a type that a field can have.
    #[error("the column {column:?} holds {kind}, which is not read")]
    Kind {
        /// Its path, with dots.
        column: String,
        /// Type that the file has for the column.
        kind: String,
    },
    /// A value is null, or a list has another length than the first.
    #[error("the column {column:?} has a null or a list of another length in row group {group}")]
    Ragged {
        /// Its path, with dots.
        column: String,
        /// Index of the row group.
        group: usize,
    },
    /// A row group is too large to be decoded as a whole.
    #[error("the column {column:?} has more than 4 GiB in row group {group}")]
    TooLarge {
        /// Its path, with dots.
        column: String,
        /// Index of the row group.
        group: usize,
    },
}

impl Parquet {
    /// Opens a file and reads its schema; `columns` are paths, with dots between the parts of
    /// nested ones, in the order of the fields. A list may be called by the path of the list alone.
    ///
    /// # Errors
    /// [`DataError::File`] with a [`ParquetError`], or with what the system says.
    pub fn open(path: impl AsRef<Path>, columns: &[&str]) -> Result<Self, DataError> {
        let file = Table::open(path.as_ref())?;
        let wrong = |error| file.wrong(error);
        let (mut fields, mut indexes) = (Vec::new(), Vec::new());
        for &name in columns {
            let column = file.column(name).map_err(wrong)?;
            let (element, shape) = file.field_of(column).map_err(wrong)?;
            fields.push(Field::new(name, element, &shape));
            indexes.push(column);
        }
        let cache = Arc::new(Cache::new(CACHE_BYTES));
        Ok(Self { file: Arc::new(file), fields, columns: indexes.into(), cache })
    }

    /// The columns of a file that can be opened, by their paths.
    ///
    /// # Errors
    /// Those of [`Parquet::open`].
    pub fn columns(path: impl AsRef<Path>) -> Result<Vec<String>, DataError> {
        let file = Table::open(path.as_ref())?;
        let columns = file.reader.metadata().file_metadata().schema_descr().num_columns();
        let is_readable = |&column: &usize| file.field_of(column).is_ok();
        Ok((0..columns).filter(is_readable).map(|column| file.column_path(column)).collect())
    }

    /// The same with so many bytes for decoded row groups, of which one is kept in any case
    /// (256 MiB).
    #[must_use]
    pub fn with_cache_bytes(mut self, cache_bytes: usize) -> Self {
        self.cache = Arc::new(Cache::new(cache_bytes));
        self
    }

    /// Row groups of the file.
    #[must_use]
    pub fn row_groups(&self) -> usize {
        self.file.row_groups()
    }

    /// Bytes of a row group when it is decoded.
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
        let (group, row) = self.file.place(index);
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

/// A file whose rows are counted.
pub(crate) struct Table {
    pub(crate) path: PathBuf,
    reader: SerializedFileReader<Bytes>,
    /// The first row of each row group, and the number of all.
    starts: Vec<usize>,
}

impl Table {
    pub(crate) fn open(path: &Path) -> Result<Self, DataError> {
        let map = Map::open(path)?;
        let (path, file_bytes) = (path.to_owned(), map.bytes().len());
        // Bytes and not the file: readers of a file share the place where they read.
        let reader = guarded(|| SerializedFileReader::new(Bytes::from_owner(map)));
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

    pub(crate) fn wrong(&self, error: ParquetError) -> DataError {
        DataError::damaged(&self.path, error)
    }

    pub(crate) fn len(&self) -> usize {
        self.starts[self.starts.len() - 1]
    }

    pub(crate) fn row_groups(&self) -> usize {
        self.starts.len() - 1
    }

    pub(crate) fn rows(&self, group: usize) -> usize {
        self.starts[group + 1] - self.starts[group]
    }

    /// Row group of a row, and its place in it.
    pub(crate) fn place(&self, index: usize) -> (usize, usize) {
        let group = self.starts.partition_point(|&start| start <= index) - 1;
        (group, index - self.starts[group])
    }

    /// The index of the column of this path, or of the only one below it.
    pub(crate) fn column(&self, name: &str) -> Result<usize, ParquetError> {
        let schema = self.reader.metadata().file_metadata().schema_descr();
        let is_it = |&at: &usize| {
            let path = schema.column(at).path().string();
            path == name || path.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'))
        };
        let mut found = (0..schema.num_columns()).filter(is_it);
        match (found.next(), found.next()) {
            (Some(column), None) => Ok(column),
            _ => Err(ParquetError::Column { column: name.to_owned() }),
        }
    }

    pub(crate) fn physical(&self, column: usize) -> Physical {
        let schema = self.reader.metadata().file_metadata().schema_descr();
        schema.column(column).physical_type()
    }

    pub(crate) fn column_path(&self, column: usize) -> String {
        let schema = self.reader.metadata().file_metadata().schema_descr();
        schema.column(column).path().string()
    }

    /// Bytes of a column of a row group before they are packed, as the file says.
    #[cfg(feature = "images")]
    pub(crate) fn unpacked_bytes(&self, group: usize, column: usize) -> usize {
        let group = self.reader.metadata().row_group(group);
        usize::try_from(group.column(column).uncompressed_size()).unwrap_or(usize::MAX)
    }

    /// Element and shape of a row of a column; the length of lists is that of the first.
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

    pub(crate) fn refused(&self, column: usize, kind: &str) -> ParquetError {
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
        guarded(read)
    }

    /// All values of a column of a row group, as bytes.
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

    /// All values of a column of a row group: as many as rows, or with lists so many times that.
    pub(crate) fn read<T: DataType>(
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
        let done = guarded(&mut read)?;
        let schema = self.reader.metadata().file_metadata().schema_descr();
        let defined_max = schema.column(column).max_def_level();
        // A list begins where the repetition level is 0.
        let len = list_len.unwrap_or(1);
        let begins = |(at, &level): (usize, &i16)| (level == 0) == (at % len.max(1) == 0);
        let is_whole = done == rows
            && rows.checked_mul(len) == Some(values.len())
            && defined.iter().all(|&level| level == defined_max)
            && repeated.iter().enumerate().all(begins);
        match is_whole {
            true => Ok(values),
            false => Err(ParquetError::Ragged { column: self.column_path(column), group }),
        }
    }
}

/// The decoder panics at some damaged files, such as a page that names a dictionary which is not
/// there. That is an error of the file as any other.
fn guarded<R>(decode: impl FnOnce() -> Result<R, Damage>) -> Result<R, ParquetError> {
    // Unwind safety: what was decoded is thrown away, and the reader of the file is never written.
    let decoded = catch_unwind(AssertUnwindSafe(decode));
    let panicked = |_| Err(Damage::General("the decoder gave up".to_owned()));
    decoded.unwrap_or_else(panicked).map_err(ParquetError::Damaged)
}

/// Whether the columns of a row group are in the file: the decoder takes that for granted.
fn lies_in(group: &RowGroupMetaData, file_bytes: usize) -> bool {
    group.columns().iter().all(|column| {
        let start = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
        let parts = [start, column.data_page_offset(), column.compressed_size()];
        let [start, data, len] = parts.map(|part| usize::try_from(part).unwrap_or(usize::MAX));
        data <= file_bytes && start.checked_add(len).is_some_and(|end| end <= file_bytes)
    })
}

/// A row group that is decoded or being decoded.
type Entry<G> = Arc<Mutex<Option<Arc<G>>>>;

/// Decoded row groups, the last used ones first.
pub(crate) struct Cache<G> {
    size_bytes_max: usize,
    /// Number, bytes and content of each.
    groups: Mutex<VecDeque<(usize, usize, Entry<G>)>>,
}

impl<G> Cache<G> {
    pub(crate) fn new(size_bytes_max: usize) -> Self {
        Self { size_bytes_max, groups: Mutex::default() }
    }

    /// Tells how much it holds when it is full, of groups of these sizes.
    pub(crate) fn visit(
        &self,
        visit: &mut dyn FnMut(*const u8, usize),
        groups_bytes: impl Iterator<Item = usize>,
    ) {
        let fold = |(sum, largest): (usize, usize), bytes: usize| {
            (sum.saturating_add(bytes), largest.max(bytes))
        };
        let (sum, largest) = groups_bytes.fold((0, 0), fold);
        visit(std::ptr::from_ref(self).cast(), sum.min(self.size_bytes_max.max(largest)));
    }

    /// Row group `group`, which takes `size_bytes` when it is decoded. Threads that ask for the
    /// same one wait for the first of them; other groups are decoded meanwhile.
    pub(crate) fn get(
        &self,
        group: usize,
        size_bytes: usize,
        decode: impl FnOnce() -> Result<G, ParquetError>,
    ) -> Result<Arc<G>, ParquetError> {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let found = groups.iter().position(|(number, ..)| *number == group);
        let entry =
            found.and_then(|at| groups.remove(at)).unwrap_or((group, size_bytes, Entry::default()));
        let content = Arc::clone(&entry.2);
        groups.push_front(entry);
        let total = |groups: &VecDeque<(usize, usize, Entry<G>)>| {
            groups.iter().fold(0_usize, |sum, (_, bytes, _)| sum.saturating_add(*bytes))
        };
        while groups.len() > 1 && total(&groups) > self.size_bytes_max {
            groups.pop_back();
        }
        drop(groups);
        let mut content = content.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(decoded) = &*content {
            return Ok(Arc::clone(decoded));
        }
        let decoded = Arc::new(decode()?);
        *content = Some(Arc::clone(&decoded));
        Ok(decoded)
    }
}
