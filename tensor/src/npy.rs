//! NumPy's `.npy` files: one array each, its type and shape in a short header.
//!
//! The format follows the documentation of `numpy.lib.format`, versions 1 to 3.

use std::io::{self, Read, Write};

use thiserror::Error;

use crate::device::Device;
use crate::dtype::DType;
use crate::error::TensorError;
use crate::layout::Shape;
use crate::tensor::Tensor;

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// Alignment of the array in a file.
const ALIGN_BYTES: usize = 64;
/// Largest length of a header. The limit keeps a damaged length from becoming an allocation.
const HEADER_BYTES_MAX: usize = 1 << 16;

/// Reasons why a file could not be read or written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NpyError {
    /// The file ended early or the system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file is not of this format.
    #[error("no npy header: the problem is at byte {at_bytes}")]
    Header {
        /// Place in the file where reading it failed.
        at_bytes: usize,
    },
    /// Elements of a type that tensors do not have, such as complex numbers or text.
    #[error("elements of type {descr:?} have no tensor type")]
    Descr {
        /// The header's name of the type.
        descr: String,
    },
    /// The format has no name for this element type; convert first.
    #[error("npy files have no name for {dtype}")]
    DType {
        /// The tensor's type.
        dtype: DType,
    },
    /// The tensor could not be made or read.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

/// Reads the one array of a file. An array in Fortran's order becomes a transposed view.
///
/// # Errors
/// Every error of [`NpyError`] except `DType`.
#[track_caller]
pub fn read(device: &Device, mut reader: impl Read) -> Result<Tensor, NpyError> {
    let mut start = [0; 8];
    reader.read_exact(&mut start)?;
    if start[..6] != MAGIC[..] || !(1..=3).contains(&start[6]) {
        return Err(NpyError::Header { at_bytes: 0 });
    }
    let len_bytes = if start[6] == 1 { 2 } else { 4 };
    let mut len = [0; 4];
    reader.read_exact(&mut len[..len_bytes])?;
    let header_bytes = u32::from_le_bytes(len) as usize;
    if header_bytes > HEADER_BYTES_MAX {
        return Err(NpyError::Header { at_bytes: start.len() });
    }
    let mut header = vec![0; header_bytes];
    reader.read_exact(&mut header)?;
    let base = start.len() + len_bytes;
    let header = Header::parse(&header).map_err(|at| NpyError::Header { at_bytes: base + at })?;
    read_array(device, header, reader)
}

#[track_caller]
fn read_array(device: &Device, header: Header, reader: impl Read) -> Result<Tensor, NpyError> {
    let Some((dtype, is_swapped)) = dtype_of(&header.descr) else {
        return Err(NpyError::Descr { descr: header.descr });
    };
    let mut dims = header.dims;
    if header.is_fortran {
        dims.reverse();
    }
    let shape = checked_shape(&dims).ok_or(NpyError::Header { at_bytes: 0 })?;
    let size_bytes = shape.element_count().saturating_mul(dtype.size_bytes());
    // The buffer grows with the bytes that arrive, not with the size that the header promises.
    let mut bytes = Vec::new();
    reader.take(size_bytes as u64).read_to_end(&mut bytes)?;
    if bytes.len() != size_bytes {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    if is_swapped {
        bytes.chunks_exact_mut(dtype.size_bytes()).for_each(<[u8]>::reverse);
    }
    let tensor = Tensor::from_bytes(device, shape, dtype, &bytes)?;
    if !header.is_fortran {
        return Ok(tensor);
    }
    let axes: Vec<usize> = (0..dims.len()).rev().collect();
    Ok(tensor.permute(&axes)?)
}

/// Writes the elements in row-major order.
///
/// # Errors
/// `Io`, `DType` for bf16, and `Tensor` on a simulated device.
#[track_caller]
pub fn write(tensor: &Tensor, mut writer: impl Write) -> Result<(), NpyError> {
    let dtype = tensor.dtype();
    let Some(descr) = descr_of(dtype) else { return Err(NpyError::DType { dtype }) };
    let mut bytes = tensor.to_bytes()?;
    if cfg!(target_endian = "big") {
        bytes.chunks_exact_mut(dtype.size_bytes()).for_each(<[u8]>::reverse);
    }
    let dims: String = tensor.shape().iter().map(|dim| format!("{dim}, ")).collect();
    // A tuple of one element needs a comma after it; longer tuples may have one.
    let mut header = format!(
        "{{'descr': '{descr}', 'fortran_order': False, 'shape': ({}), }}",
        if tensor.shape().len() == 1 { dims.trim_end() } else { dims.trim_end_matches(", ") }
    );
    let unpadded_bytes = MAGIC.len() + 4 + header.len() + 1;
    header += &" ".repeat(unpadded_bytes.next_multiple_of(ALIGN_BYTES) - unpadded_bytes);
    header.push('\n');
    writer.write_all(MAGIC)?;
    writer.write_all(&[1, 0])?;
    // At most eight dimensions of twenty digits each.
    writer.write_all(&(header.len() as u16).to_le_bytes())?;
    writer.write_all(header.as_bytes())?;
    writer.write_all(&bytes)?;
    Ok(())
}

fn checked_shape(dims: &[usize]) -> Option<Shape> {
    dims.iter().try_fold(1usize, |len, &dim| len.checked_mul(dim))?;
    (dims.len() <= crate::layout::RANK_MAX).then(|| Shape::new(dims))
}

const DESCRS: [(&str, DType); 7] = [
    ("f8", DType::F64),
    ("f4", DType::F32),
    ("f2", DType::F16),
    ("i8", DType::I64),
    ("i4", DType::I32),
    ("u1", DType::U8),
    ("b1", DType::Bool),
];

/// The type of a descriptor, and true if its byte order is not this machine's.
fn dtype_of(descr: &str) -> Option<(DType, bool)> {
    let (order, name) = descr.split_at_checked(1)?;
    let dtype = DESCRS.iter().find(|(known, _)| *known == name)?.1;
    let is_swapped = match order {
        "<" => cfg!(target_endian = "big"),
        ">" => cfg!(target_endian = "little"),
        "|" | "=" => false,
        _ => return None,
    };
    Some((dtype, is_swapped))
}

fn descr_of(dtype: DType) -> Option<String> {
    let name = DESCRS.iter().find(|(_, known)| *known == dtype)?.0;
    let order = if dtype.size_bytes() == 1 { '|' } else { '<' };
    Some(format!("{order}{name}"))
}

/// Contents of the dictionary in the header.
#[derive(Default)]
struct Header {
    descr: String,
    is_fortran: bool,
    dims: Vec<usize>,
}

impl Header {
    /// # Errors
    /// The place of the first wrong character.
    fn parse(text: &[u8]) -> Result<Self, usize> {
        let mut header = Header::default();
        let mut seen = [false; 3];
        let mut at = Cursor { text, at: 0 };
        at.expect(b'{')?;
        while at.peek() != Some(b'}') {
            let key = at.string()?;
            at.expect(b':')?;
            let index = match key {
                b"descr" => {
                    header.descr = String::from_utf8_lossy(at.string()?).into_owned();
                    0
                }
                b"fortran_order" => {
                    header.is_fortran = at.truth()?;
                    1
                }
                b"shape" => {
                    header.dims = at.tuple()?;
                    2
                }
                _ => return Err(at.at),
            };
            seen[index] = true;
            if at.peek() == Some(b',') {
                at.expect(b',')?;
            }
        }
        if seen == [true; 3] { Ok(header) } else { Err(at.at) }
    }
}

/// Reads the few Python literals that a header has.
struct Cursor<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// The next character that is not a blank.
    fn peek(&mut self) -> Option<u8> {
        while self.text.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        self.text.get(self.at).copied()
    }

    fn expect(&mut self, character: u8) -> Result<(), usize> {
        if self.peek() != Some(character) {
            return Err(self.at);
        }
        self.at += 1;
        Ok(())
    }

    fn take_while(&mut self, is: impl Fn(&u8) -> bool) -> &'a [u8] {
        let rest = &self.text[self.at..];
        let len = rest.iter().position(|c| !is(c)).unwrap_or(rest.len());
        self.at += len;
        &rest[..len]
    }

    fn string(&mut self) -> Result<&'a [u8], usize> {
        let quote = self.peek().filter(|c| matches!(c, b'\'' | b'"')).ok_or(self.at)?;
        self.at += 1;
        let inside = self.take_while(|&c| c != quote);
        self.expect(quote)?;
        Ok(inside)
    }

    fn truth(&mut self) -> Result<bool, usize> {
        let start = (self.peek(), self.at).1;
        match self.take_while(u8::is_ascii_alphabetic) {
            b"True" => Ok(true),
            b"False" => Ok(false),
            _ => Err(start),
        }
    }

    fn tuple(&mut self) -> Result<Vec<usize>, usize> {
        let mut numbers = Vec::new();
        self.expect(b'(')?;
        while self.peek() != Some(b')') {
            let start = self.at;
            let digits = self.take_while(u8::is_ascii_digit);
            let digits = std::str::from_utf8(digits).map_err(|_| start)?;
            numbers.push(digits.parse().map_err(|_| start)?);
            // Python 2 wrote long integers as 3L.
            if self.text.get(self.at) == Some(&b'L') {
                self.at += 1;
            }
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b')') => {}
                _ => return Err(self.at),
            }
        }
        self.expect(b')')?;
        Ok(numbers)
    }
}
