//! Tables of comma-separated values with a header.

use crate::dataset::{Dataset, SampleSlot};
use crate::element::Field;
use crate::error::{DataError, SampleError};
use crate::source::memory::InMemory;
use lowtide_allocator::files::open_input;
use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::path::Path;
use std::sync::Arc;

/// Maximum number of bytes of one record. The limit ends a record whose quote is never closed.
const RECORD_BYTES_MAX: usize = 1 << 20;

/// Options of reading a table, with defaults in parentheses.
#[derive(Debug, Clone, PartialEq)]
pub struct CsvOptions {
    /// Names of the columns that become the elements of `inputs`, in this order. If empty, all
    /// columns but the target (empty).
    pub features: Vec<String>,
    /// The target (none).
    pub target: CsvTarget,
    /// Value of a missing feature: an empty cell, `NA`, `NaN` or `?`. `None` makes a missing
    /// feature an error (None).
    pub fill: Option<f32>,
    /// The byte between cells (a comma).
    pub separator: u8,
}

impl Default for CsvOptions {
    fn default() -> Self {
        Self { features: Vec::new(), target: CsvTarget::None, fill: None, separator: b',' }
    }
}

/// The column of a table that a model predicts, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum CsvTarget {
    /// The file has no target column. The dataset has no second field.
    None,
    /// A column with names of classes. The field `labels`, i64 `[]`, is the position of the name
    /// among all names in sorted order.
    Class(String),
    /// A column with names of known classes, such as the classes of the training table. The field
    /// `labels`, i64 `[]`, is the position of the name in this list. Another name is an error.
    KnownClass(String, Vec<String>),
    /// A column with integers from 0 on, which become the field `labels`, i64 `[]`.
    Index(String),
    /// A column with numbers, which become the field `targets`, f32 `[1]`.
    Number(String),
}

/// A table of comma-separated values (RFC 4180) with a header, read as a whole. The fields are
/// `inputs`, f32 `[n]`, and the field of the target. Clones share the values.
///
/// A cell may be in double quotes; two double quotes inside the cell then stand for one. Blanks
/// around a number are allowed. Empty lines are ignored.
///
/// # Examples
/// ```no_run
/// use lowtide_data::{Csv, CsvOptions, CsvTarget};
/// let target = CsvTarget::Class("species".to_owned());
/// let iris = Csv::open("iris.csv", &CsvOptions { target, ..Default::default() })?;
/// println!("{:?} from {:?}", iris.classes(), iris.features());
/// # Ok::<(), lowtide_data::DataError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Csv {
    samples: Arc<InMemory>,
    features: Arc<[String]>,
    classes: Arc<[String]>,
}

impl Csv {
    /// Reads a file.
    ///
    /// # Errors
    /// [`DataError::File`] with a [`CsvError`] that names the line, or an error of the system.
    pub fn open(path: impl AsRef<Path>, options: &CsvOptions) -> Result<Self, DataError> {
        let path = path.as_ref();
        let file = |source| DataError::File { path: path.to_owned(), source };
        let reader = BufReader::new(open_input(path).map_err(file)?);
        Table::read(reader, options).map_err(file)?.into_dataset()
    }

    /// Names of the columns in `inputs`, in order.
    #[must_use]
    pub fn features(&self) -> &[String] {
        &self.features
    }

    /// Names of the classes in the order of the labels. Empty if the target is not a class.
    #[must_use]
    pub fn classes(&self) -> &[String] {
        &self.classes
    }
}

impl Dataset for Csv {
    fn len(&self) -> usize {
        self.samples.len()
    }

    fn fields(&self) -> &[Field] {
        self.samples.fields()
    }

    fn write(&self, index: usize, slot: &mut SampleSlot<'_>) -> Result<(), SampleError> {
        self.samples.write(index, slot)
    }

    fn visit_memory(&self, visit: &mut dyn FnMut(*const u8, usize)) {
        self.samples.visit_memory(visit);
    }
}

/// A table that cannot be read; the cause of a [`DataError::File`]. The header is line 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CsvError {
    /// The table has no header, or no record after it.
    #[error("the table is empty")]
    Empty,
    /// A column is missing from the header, or occurs twice.
    #[error("the header does not have the column {column:?} once")]
    Column {
        /// Name of the column in the options.
        column: String,
    },
    /// A record has more or fewer cells than the header.
    #[error("line {line} has {actual} cells, the header has {expected}")]
    Ragged {
        /// Line at which the record begins.
        line: u64,
        /// Number of cells of the header.
        expected: usize,
        /// Number of cells of the record.
        actual: usize,
    },
    /// A quote is not closed, or text follows a closed quote.
    #[error("line {line} has a quote in the wrong place or that is not closed")]
    Quote {
        /// Line at which the record begins.
        line: u64,
    },
    /// A record is longer than 1 MiB.
    #[error("line {line} begins a record of more than {RECORD_BYTES_MAX} bytes")]
    Long {
        /// Line at which the record begins.
        line: u64,
    },
    /// A cell has no value, and the options have no [`fill`](CsvOptions::fill).
    #[error("line {line} has no {column:?}")]
    Missing {
        /// Line at which the record begins.
        line: u64,
        /// Name of the column in the header.
        column: String,
    },
    /// A cell has a value that its column does not allow.
    #[error("line {line} has {cell:?} as {column:?}")]
    Cell {
        /// Line at which the record begins.
        line: u64,
        /// Name of the column in the header.
        column: String,
        /// Text of the cell.
        cell: String,
    },
}

/// The columns that were read, before names become labels.
struct Table {
    len: usize,
    features: Vec<String>,
    values: Vec<f32>,
    target: Target,
}

enum Target {
    None,
    /// Classes in the order of the labels. Until all records are read, unknown classes are in the
    /// order of their first records.
    Names {
        labels: Vec<i64>,
        classes: Vec<String>,
        places: BTreeMap<String, i64>,
        is_known: bool,
    },
    Indexes(Vec<i64>),
    Numbers(Vec<f32>),
}

impl Table {
    fn read(input: impl BufRead, options: &CsvOptions) -> io::Result<Self> {
        let mut records = Records::new(input, options.separator);
        if !records.read()? {
            return Err(invalid(CsvError::Empty));
        }
        let header: Vec<String> = records.cells().map(str::to_owned).collect();
        // A name that occurs twice is mapped to `None`.
        let mut found: BTreeMap<&String, Option<usize>> = BTreeMap::new();
        for (at, name) in header.iter().enumerate() {
            found.entry(name).and_modify(|place| *place = None).or_insert(Some(at));
        }
        let place = |column: &String| {
            let place = found.get(column).copied().flatten();
            place.ok_or_else(|| invalid(CsvError::Column { column: column.clone() }))
        };
        let (target_name, mut target) = match &options.target {
            CsvTarget::None => (None, Target::None),
            CsvTarget::Class(name) => (Some(name), Target::names(Vec::new(), false)),
            CsvTarget::KnownClass(name, known) => (Some(name), Target::names(known.clone(), true)),
            CsvTarget::Index(name) => (Some(name), Target::Indexes(Vec::new())),
            CsvTarget::Number(name) => (Some(name), Target::Numbers(Vec::new())),
        };
        let target_place = target_name.map(&place).transpose()?;
        let features: Vec<String> = if options.features.is_empty() {
            header.iter().filter(|name| Some(*name) != target_name).cloned().collect()
        } else {
            options.features.clone()
        };
        let places = features.iter().map(place).collect::<io::Result<Vec<usize>>>()?;
        let (mut values, mut len) = (Vec::new(), 0);
        while records.read()? {
            let (line, cells) = (records.line, records.ends.len());
            if cells != header.len() {
                let expected = header.len();
                return Err(invalid(CsvError::Ragged { line, expected, actual: cells }));
            }
            for (&at, column) in places.iter().zip(&features) {
                let cell = records.cell(at);
                values.push(match (is_missing(cell), options.fill) {
                    (true, Some(fill)) => fill,
                    _ => number(line, column, cell)?,
                });
            }
            if let Some((at, column)) = target_place.zip(target_name) {
                target.push(line, column, records.cell(at))?;
            }
            len += 1;
        }
        if len == 0 {
            return Err(invalid(CsvError::Empty));
        }
        Ok(Self { len, features, values, target })
    }

    fn into_dataset(self) -> Result<Csv, DataError> {
        let Self { len, features, values, target } = self;
        let mut samples = InMemory::new(len).with("inputs", &[features.len()], values)?;
        let mut classes = Vec::new();
        samples = match target {
            Target::None => samples,
            Target::Indexes(labels) => samples.with("labels", &[], labels)?,
            Target::Numbers(targets) => samples.with("targets", &[1], targets)?,
            Target::Names { mut labels, classes: found, places, is_known } => {
                classes = found;
                if !is_known {
                    // The map iterates in the sorted order of the names.
                    let mut sorted = vec![0; classes.len()];
                    for (label, place) in (0..).zip(places.values()) {
                        sorted[*place as usize] = label;
                    }
                    labels.iter_mut().for_each(|label| *label = sorted[*label as usize]);
                    classes.sort_unstable();
                }
                samples.with("labels", &[], labels)?
            }
        };
        let (features, classes) = (features.into(), classes.into());
        Ok(Csv { samples: Arc::new(samples), features, classes })
    }
}

impl Target {
    fn names(classes: Vec<String>, is_known: bool) -> Self {
        let mut places = BTreeMap::new();
        for (class, place) in classes.iter().zip(0..) {
            places.entry(class.clone()).or_insert(place);
        }
        Self::Names { labels: Vec::new(), classes, places, is_known }
    }

    fn push(&mut self, line: u64, column: &str, cell: &str) -> io::Result<()> {
        let trimmed = cell.trim();
        let wrong = || {
            let (column, cell) = (column.to_owned(), cell.to_owned());
            invalid(CsvError::Cell { line, column, cell })
        };
        match self {
            Self::None => {}
            _ if trimmed.is_empty() => {
                return Err(invalid(CsvError::Missing { line, column: column.to_owned() }));
            }
            Self::Names { labels, classes, places, is_known } => match places.get(trimmed) {
                Some(&place) => labels.push(place),
                None if *is_known => return Err(wrong()),
                None => {
                    let place = classes.len() as i64;
                    classes.push(trimmed.to_owned());
                    places.insert(trimmed.to_owned(), place);
                    labels.push(place);
                }
            },
            Self::Indexes(labels) => match trimmed.parse::<i64>() {
                Ok(label) if label >= 0 => labels.push(label),
                _ => return Err(wrong()),
            },
            Self::Numbers(numbers) => numbers.push(number(line, column, cell)?),
        }
        Ok(())
    }
}

fn is_missing(cell: &str) -> bool {
    ["", "NA", "NaN", "nan", "?"].contains(&cell.trim())
}

/// Parses a finite number.
fn number(line: u64, column: &str, cell: &str) -> io::Result<f32> {
    let column = || column.to_owned();
    if is_missing(cell) {
        return Err(invalid(CsvError::Missing { line, column: column() }));
    }
    let number = cell.trim().parse::<f32>().ok().filter(|number| number.is_finite());
    let wrong = || invalid(CsvError::Cell { line, column: column(), cell: cell.to_owned() });
    number.ok_or_else(wrong)
}

fn invalid(error: CsvError) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error)
}

/// Reads one record at a time into reused memory.
struct Records<R> {
    input: R,
    separator: u8,
    /// The line at which the record begins.
    line: u64,
    lines_read: u64,
    /// The bytes of the record in the file.
    raw: Vec<u8>,
    /// The cells without quotes, concatenated.
    text: String,
    /// The end of each cell in `text`.
    ends: Vec<usize>,
}

impl<R: BufRead> Records<R> {
    fn new(input: R, separator: u8) -> Self {
        let (raw, text, ends) = (Vec::new(), String::new(), Vec::new());
        Self { input, separator, line: 0, lines_read: 0, raw, text, ends }
    }

    fn cell(&self, at: usize) -> &str {
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.text[start..self.ends[at]]
    }

    fn cells(&self) -> impl Iterator<Item = &str> {
        (0..self.ends.len()).map(|at| self.cell(at))
    }

    /// Reads the next record that is not an empty line. Returns false at the end.
    fn read(&mut self) -> io::Result<bool> {
        loop {
            self.raw.clear();
            self.line = self.lines_read + 1;
            if !self.read_line()? {
                return Ok(false);
            }
            // With an odd number of quotes the record continues on the next line.
            while self.raw.iter().filter(|&&byte| byte == b'"').count() % 2 == 1 {
                if !self.read_line()? {
                    return Err(invalid(CsvError::Quote { line: self.line }));
                }
            }
            while matches!(self.raw.last(), Some(b'\n' | b'\r')) {
                self.raw.pop();
            }
            if self.line == 1 && self.raw.starts_with(b"\xef\xbb\xbf") {
                self.raw.drain(..3);
            }
            if !self.raw.is_empty() {
                break;
            }
        }
        self.split().map(|()| true)
    }

    fn read_line(&mut self) -> io::Result<bool> {
        let room = (RECORD_BYTES_MAX + 1).saturating_sub(self.raw.len()) as u64;
        let read = self.input.by_ref().take(room).read_until(b'\n', &mut self.raw)?;
        if self.raw.len() > RECORD_BYTES_MAX {
            return Err(invalid(CsvError::Long { line: self.line }));
        }
        self.lines_read += 1;
        Ok(read > 0)
    }

    /// Splits the record into cells.
    fn split(&mut self) -> io::Result<()> {
        self.text.clear();
        self.ends.clear();
        let wrong = || invalid(CsvError::Quote { line: self.line });
        let raw = std::str::from_utf8(&self.raw)
            .map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
        let separator = char::from(self.separator);
        let mut rest = raw;
        loop {
            if let Some(quoted) = rest.strip_prefix('"') {
                rest = quoted;
                loop {
                    let end = rest.find('"').ok_or_else(wrong)?;
                    self.text.push_str(&rest[..end]);
                    rest = &rest[end + 1..];
                    match rest.strip_prefix('"') {
                        Some(more) => {
                            self.text.push('"');
                            rest = more;
                        }
                        None => break,
                    }
                }
            } else {
                let end = rest.find(separator).unwrap_or(rest.len());
                self.text.push_str(&rest[..end]);
                rest = &rest[end..];
            }
            self.ends.push(self.text.len());
            if rest.is_empty() {
                return Ok(());
            }
            rest = rest.strip_prefix(separator).ok_or_else(wrong)?;
        }
    }
}
