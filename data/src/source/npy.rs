//! Arrays of NumPy, mapped into memory.
//!
//! A `.npy` file is `\x93NUMPY`, a version in two bytes, the little-endian length of the header
//! (two bytes in version 1, four in later versions), the header, and the elements. The header is a
//! Python dictionary of `descr`, `fortran_order` and `shape`. Source: NumPy Enhancement Proposal 1,
//! "A Simple File Format for NumPy Arrays".

use crate::dataset::{Dataset, SampleSlot};
use crate::element::{ElementType, Field};
use crate::error::{DataError, SampleError};
use crate::source::map::Map;
use crate::source::zip;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Maximum number of bytes of a header. NumPy writes headers of some hundred bytes.
const HEADER_BYTES_MAX: usize = 1 << 16;

/// Arrays of `.npy` files, one for each field. The first axis of an array counts the samples.
///
/// Files are mapped into memory. Opening a file reads only its header; the system keeps the pages
/// that fit in memory. Files must not be truncated while they are in use. Clones share the
/// mappings.
///
/// # Examples
/// ```no_run
/// use lowtide_data::Npy;
/// let train = Npy::open("x", "train_x.npy")?.with("labels", "train_y.npy")?;
/// # Ok::<(), lowtide_data::DataError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Npy {
    len: usize,
    fields: Vec<Field>,
    columns: Vec<Column>,
}

#[derive(Debug, Clone)]
struct Column {
    map: Arc<Map>,
    /// The bytes of the elements in the file.
    range: Range<usize>,
}

impl Npy {
    /// The dataset of the array in a file, as the field `name`.
    ///
    /// [`DataError::File`] for a file that cannot be read, is not a `.npy` file, is shorter than
    /// its header states, or has elements other than little-endian numbers in C order.
    pub fn open(name: impl Into<Arc<str>>, path: impl AsRef<Path>) -> Result<Self, DataError> {
        let (len, field, column) = open(name.into(), path.as_ref())?;
        Ok(Self { len, fields: vec![field], columns: vec![column] })
    }

    /// The dataset of the arrays `names` in an `.npz` archive, each as the field of its name.
    /// `numpy.savez(path, x=..., y=...)` writes such an archive. An archive of
    /// `numpy.savez_compressed` cannot be mapped.
    ///
    /// # Errors
    /// As for [`Npy::open`] and [`Npy::with`]; [`DataError::File`] for a damaged archive and for an
    /// array that is missing or compressed; [`DataError::InvalidOption`] if `names` is empty.
    pub fn archive(path: impl AsRef<Path>, names: &[&str]) -> Result<Self, DataError> {
        let path = path.as_ref();
        let map = Arc::new(Map::open(path)?);
        let mut arrays: Option<Self> = None;
        for &name in names {
            let range = zip::member(map.bytes(), &format!("{name}.npy"));
            let range = range.map_err(|source| DataError::damaged(path, source))?;
            let found = array(name.into(), path, Arc::clone(&map), range)?;
            arrays = Some(match arrays {
                Some(arrays) => arrays.and(found)?,
                None => Self { len: found.0, fields: vec![found.1], columns: vec![found.2] },
            });
        }
        arrays.ok_or(DataError::InvalidOption { option: "arrays", value: 0 })
    }

    /// Adds the array in a file as another field.
    ///
    /// # Errors
    /// As for [`Npy::open`]; [`DataError::FieldLength`] if the array has another number of samples.
    pub fn with(
        self,
        name: impl Into<Arc<str>>,
        path: impl AsRef<Path>,
    ) -> Result<Self, DataError> {
        self.and(open(name.into(), path.as_ref())?)
    }

    fn and(mut self, (actual, field, column): (usize, Field, Column)) -> Result<Self, DataError> {
        if actual != self.len {
            return Err(DataError::FieldLength { field: field.name, expected: self.len, actual });
        }
        self.fields.push(field);
        self.columns.push(column);
        Ok(self)
    }
}

impl Dataset for Npy {
    fn len(&self) -> usize {
        self.len
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn write(&self, index: usize, slot: &mut SampleSlot<'_>) -> Result<(), SampleError> {
        for (field_index, column) in self.columns.iter().enumerate() {
            let out = slot.bytes(field_index);
            let start = column.range.start + index * out.len();
            out.copy_from_slice(&column.map.bytes()[start..start + out.len()]);
        }
        Ok(())
    }
}

fn open(name: Arc<str>, path: &Path) -> Result<(usize, Field, Column), DataError> {
    let map = Arc::new(Map::open(path)?);
    let range = 0..map.bytes().len();
    array(name, path, map, range)
}

/// The array in a part of a file: its number of samples, its field, and its bytes.
fn array(
    name: Arc<str>,
    path: &Path,
    map: Arc<Map>,
    range: Range<usize>,
) -> Result<(usize, Field, Column), DataError> {
    let file = &map.bytes()[range.clone()];
    let Header { element, shape, start } =
        Header::parse(file).map_err(|e| DataError::damaged(path, e))?;
    let first = shape.split_first().ok_or_else(|| DataError::damaged(path, NpyError::Scalar));
    let (&len, sample_shape) = first?;
    let field = Field::new(name, element, sample_shape);
    let (actual, expected) = (file.len() - start, field.sample_bytes());
    if len > 0 && expected == Some(0) {
        return Err(DataError::damaged(path, NpyError::Empty { len }));
    }
    let expected = expected.and_then(|bytes| bytes.checked_mul(len)).unwrap_or(usize::MAX);
    if actual < expected {
        return Err(DataError::damaged(path, NpyError::Length { expected, actual }));
    }
    let start = range.start + start;
    Ok((len, field, Column { map, range: start..start + expected }))
}

/// An array that cannot be read; the cause of a [`DataError::File`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NpyError {
    /// The file does not begin like a `.npy` file of version 1 to 3.
    #[error("the file is not a .npy file of version 1 to 3")]
    Unknown,
    /// The header is not a dictionary of `descr`, `fortran_order` and `shape`.
    #[error("the header is damaged: {header:?}")]
    Header {
        /// The beginning of the header.
        header: String,
    },
    /// The elements are in Fortran order, in which samples are not contiguous.
    #[error("the array is in Fortran order: save numpy.ascontiguousarray(x)")]
    FortranOrder,
    /// The elements have a type that no field can have.
    #[error("elements of type {descr} cannot be read")]
    Element {
        /// The type in NumPy's notation, such as `|O` for Python objects.
        descr: String,
    },
    /// The array has no axis, so it has no samples.
    #[error("the array has no axis")]
    Scalar,
    /// The samples have no elements, so the file could claim any number of them.
    #[error("the array has {len} samples without elements")]
    Empty {
        /// Number of samples in the header.
        len: usize,
    },
    /// The archive is not a zip archive, or its list of members is damaged.
    #[error("the file is not a zip archive, or is damaged")]
    Archive,
    /// The archive does not have a member.
    #[error("the archive has no {member}")]
    Member {
        /// Name of the member in the archive.
        member: String,
    },
    /// A member is compressed or encrypted.
    #[error("the member {member} is compressed: save with numpy.savez")]
    Packed {
        /// Name of the member in the archive.
        member: String,
    },
    /// The file has fewer bytes than the shape of the array needs.
    #[error("the shape needs {expected} bytes, and there are {actual}")]
    Length {
        /// Number of bytes that the shape needs.
        expected: usize,
        /// Number of bytes after the header.
        actual: usize,
    },
}

#[derive(Debug)]
struct Header {
    element: ElementType,
    shape: Vec<usize>,
    /// Byte offset of the elements.
    start: usize,
}

impl Header {
    fn parse(file: &[u8]) -> Result<Self, NpyError> {
        let rest = file.strip_prefix(b"\x93NUMPY").ok_or(NpyError::Unknown)?;
        let (len, from) = match *rest {
            [1, _, a, b, ..] => (usize::from(u16::from_le_bytes([a, b])), 10),
            [2 | 3, _, a, b, c, d, ..] => (u32::from_le_bytes([a, b, c, d]) as usize, 12),
            _ => return Err(NpyError::Unknown),
        };
        let start = from + len.min(HEADER_BYTES_MAX + 1);
        let text = file.get(from..start).filter(|_| len <= HEADER_BYTES_MAX);
        let text = String::from_utf8_lossy(text.ok_or(NpyError::Unknown)?);
        let damaged = || NpyError::Header { header: text.chars().take(120).collect() };
        let [descr, order, shape] =
            ["descr", "fortran_order", "shape"].map(|key| value_of(&text, key));
        match order.and_then(|value| value.split([',', '}']).next()).map(str::trim) {
            Some("False") => {}
            Some("True") => return Err(NpyError::FortranOrder),
            _ => return Err(damaged()),
        }
        let descr = descr.ok_or_else(damaged)?;
        let quoted =
            descr.strip_prefix(['\'', '"']).and_then(|rest| rest.split(['\'', '"']).next());
        let element = quoted.and_then(element_of);
        let descr = quoted.unwrap_or("a structure").to_owned();
        let element = element.ok_or(NpyError::Element { descr })?;
        let shape = shape.and_then(|shape| shape.strip_prefix('(')?.split(')').next());
        let sides = shape.ok_or_else(damaged)?.split(',').map(str::trim);
        let sides: Result<Vec<usize>, _> =
            sides.filter(|side| !side.is_empty()).map(str::parse).collect();
        Ok(Self { element, shape: sides.map_err(|_| damaged())?, start })
    }
}

/// The text after a key of the dictionary and its colon.
fn value_of<'a>(header: &'a str, key: &str) -> Option<&'a str> {
    let rest = ['\'', '"'].iter().find_map(|quote| {
        let key = format!("{quote}{key}{quote}");
        header.find(&key).map(|at| &header[at + key.len()..])
    })?;
    Some(rest.trim_start().strip_prefix(':')?.trim_start())
}

/// The element type of a type in NumPy's notation. Types of more than one byte must be
/// little-endian, and so must this machine.
fn element_of(descr: &str) -> Option<ElementType> {
    if cfg!(target_endian = "big") {
        return None;
    }
    Some(match descr {
        "<f4" => ElementType::F32,
        "<f8" => ElementType::F64,
        "<i8" => ElementType::I64,
        "<i4" => ElementType::I32,
        "<u2" => ElementType::U16,
        "|u1" => ElementType::U8,
        "|b1" => ElementType::Bool,
        _ => return None,
    })
}
