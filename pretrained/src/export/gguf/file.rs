//! The bytes of a GGUF file, version 3: entries about the model, places of tensors, and their
//! elements. <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>

use lowtide_tensor::{DType, QuantFormat, Quantized, Tensor};

use crate::error::Result;
use crate::export::pieces::for_each_piece;
use crate::files::Written;

/// The alignment of tensors in files without an entry for it.
const ALIGN_BYTES: u64 = 32;
/// Number of elements of a quantised block.
const BLOCK_LEN: usize = 32;

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GgufType {
    /// 32 bits.
    F32,
    /// 16 bits, with the fractions of f16.
    F16,
    /// 16 bits, with the range of f32.
    Bf16,
    /// Blocks of 32 elements in 8 bits with an f16: 8.5 bits for each element.
    Q8_0,
    /// Blocks of 32 elements in 4 bits with an f16: 4.5 bits for each element.
    Q4_0,
}

impl GgufType {
    /// `ggml_type`.
    fn index(self) -> u32 {
        match self {
            GgufType::F32 => 0,
            GgufType::F16 => 1,
            GgufType::Q4_0 => 2,
            GgufType::Q8_0 => 8,
            GgufType::Bf16 => 30,
        }
    }

    /// `llama_ftype`, the type of most tensors of a file.
    pub(super) fn of_file(self) -> u32 {
        match self {
            GgufType::F32 => 0,
            GgufType::F16 => 1,
            GgufType::Q4_0 => 2,
            GgufType::Q8_0 => 7,
            GgufType::Bf16 => 32,
        }
    }

    /// True if rows of `columns` elements can be stored in this type.
    pub(super) fn fits(self, columns: usize) -> bool {
        let has_blocks = matches!(self, GgufType::Q8_0 | GgufType::Q4_0);
        !has_blocks || columns.is_multiple_of(BLOCK_LEN)
    }

    fn size_bytes(self, len: u64) -> u64 {
        match self {
            GgufType::F32 => 4 * len,
            GgufType::F16 | GgufType::Bf16 => 2 * len,
            GgufType::Q8_0 => len / BLOCK_LEN as u64 * 34,
            GgufType::Q4_0 => len / BLOCK_LEN as u64 * 18,
        }
    }

    /// The bytes of `piece` in this type. `piece` has elements of f32, in rows of `columns`
    /// elements.
    fn encoded(self, piece: &Tensor, columns: usize) -> Result<Vec<u8>> {
        let dtype = match self {
            GgufType::F32 => DType::F32,
            GgufType::F16 => DType::F16,
            GgufType::Bf16 => DType::BF16,
            GgufType::Q8_0 => return blocks(piece, columns, QuantFormat::Q8_0),
            GgufType::Q4_0 => return blocks(piece, columns, QuantFormat::Q4_0),
        };
        Ok(piece.to_dtype(dtype)?.to_bytes()?)
    }
}

/// The blocks of a quantised tensor, in the order of the file: scale first, then codes.
fn blocks(piece: &Tensor, columns: usize, format: QuantFormat) -> Result<Vec<u8>> {
    let rows = piece.element_count() / columns.max(1);
    let quantized = Quantized::encode(&piece.reshape([rows, columns])?, format)?;
    Ok(quantized.parts()[0].to_bytes()?)
}

/// The value of an entry.
pub(super) enum Value {
    Count(u32),
    Number(f32),
    Flag(bool),
    Text(String),
    Texts(Vec<String>),
    Numbers(Vec<f32>),
    Kinds(Vec<i32>),
}

/// Entries with their keys.
pub(super) type Entries = Vec<(String, Value)>;

/// A tensor of the file.
pub(super) struct Stored {
    pub(super) name: String,
    /// Sizes in row-major order, the reverse of the order in the file.
    pub(super) shape: Vec<usize>,
    pub(super) kind: GgufType,
    /// Tensors with the elements, one after the other, in row-major order.
    pub(super) parts: Vec<Tensor>,
    /// A number to add to each element.
    pub(super) addend: f64,
}

impl Stored {
    fn size_bytes(&self) -> u64 {
        self.kind.size_bytes(self.shape.iter().map(|&count| count as u64).product())
    }
}

/// Writes a file. Tensors are converted in order, one piece at a time.
///
/// # Errors
/// `File`, `OutOfMemory`, `ValueUnavailable` on a simulated device.
pub(super) fn write(file: &mut Written<'_>, entries: &Entries, tensors: &[Stored]) -> Result<()> {
    file.write(&header(entries, tensors))?;
    for tensor in tensors {
        file.pad(ALIGN_BYTES)?;
        let columns = tensor.shape.last().copied().unwrap_or(1);
        for part in &tensor.parts {
            for_each_piece(part, |mut piece| {
                if tensor.addend != 0.0 {
                    piece = piece.add_scalar(tensor.addend)?;
                }
                file.write(&tensor.kind.encoded(&piece, columns)?)
            })?;
        }
    }
    file.pad(ALIGN_BYTES)
}

fn header(entries: &Entries, tensors: &[Stored]) -> Vec<u8> {
    let mut bytes = Bytes(b"GGUF".to_vec());
    bytes.u32(3);
    bytes.u64(tensors.len() as u64);
    bytes.u64(entries.len() as u64);
    for (key, value) in entries {
        bytes.text(key);
        bytes.value(value);
    }
    let mut offset_bytes = 0;
    for tensor in tensors {
        bytes.text(&tensor.name);
        bytes.u32(tensor.shape.len() as u32);
        tensor.shape.iter().rev().for_each(|&count| bytes.u64(count as u64));
        bytes.u32(tensor.kind.index());
        bytes.u64(offset_bytes);
        offset_bytes += tensor.size_bytes().next_multiple_of(ALIGN_BYTES);
    }
    bytes.0
}

/// Numbers and texts in the format of the file, all little-endian.
struct Bytes(Vec<u8>);

impl Bytes {
    fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.u64(text.len() as u64);
        self.0.extend(text.as_bytes());
    }

    /// The type of a value and the value. The types are numbers of `gguf_metadata_value_type`.
    fn value(&mut self, value: &Value) {
        const U32: u32 = 4;
        const I32: u32 = 5;
        const F32: u32 = 6;
        const BOOL: u32 = 7;
        const STRING: u32 = 8;
        match value {
            Value::Count(count) => {
                self.u32(U32);
                self.u32(*count);
            }
            Value::Number(number) => {
                self.u32(F32);
                self.0.extend(number.to_le_bytes());
            }
            Value::Flag(flag) => {
                self.u32(BOOL);
                self.0.push(u8::from(*flag));
            }
            Value::Text(text) => {
                self.u32(STRING);
                self.text(text);
            }
            Value::Texts(texts) => {
                self.array(STRING, texts.len());
                texts.iter().for_each(|text| self.text(text));
            }
            Value::Numbers(numbers) => {
                self.array(F32, numbers.len());
                numbers.iter().for_each(|number| self.0.extend(number.to_le_bytes()));
            }
            Value::Kinds(kinds) => {
                self.array(I32, kinds.len());
                kinds.iter().for_each(|kind| self.0.extend(kind.to_le_bytes()));
            }
        }
    }

    fn array(&mut self, of: u32, len: usize) {
        const ARRAY: u32 = 9;
        self.u32(ARRAY);
        self.u32(of);
        self.u64(len as u64);
    }
}
