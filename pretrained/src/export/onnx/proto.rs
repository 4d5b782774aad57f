//! The bytes of ONNX's messages, which are Protocol Buffers: numbered fields in any order. Sources:
//! <https://protobuf.dev/programming-guides/encoding>, and `onnx.proto3` for the numbers.

/// A message that is being written.
#[derive(Clone, Debug, Default)]
pub(super) struct Message(Vec<u8>);

impl Message {
    /// Kinds of fields on the wire: integers, floats of 4 bytes, and bytes with their count before
    /// them.
    const VARINT: u64 = 0;
    const FIXED_32: u64 = 5;
    const LEN: u64 = 2;

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    /// A field with an integer. A negative integer takes ten bytes.
    pub(super) fn int(mut self, field: u64, value: i64) -> Self {
        self.varint(field << 3 | Self::VARINT);
        self.varint(value.cast_unsigned());
        self
    }

    pub(super) fn float(mut self, field: u64, value: f32) -> Self {
        self.varint(field << 3 | Self::FIXED_32);
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(super) fn bytes(mut self, field: u64, bytes: &[u8]) -> Self {
        self.push(field, bytes);
        self
    }

    pub(super) fn text(self, field: u64, text: &str) -> Self {
        self.bytes(field, text.as_bytes())
    }

    pub(super) fn message(self, field: u64, message: &Message) -> Self {
        self.bytes(field, &message.0)
    }

    /// Appends an element to a repeated field.
    pub(super) fn push(&mut self, field: u64, bytes: &[u8]) {
        self.varint(field << 3 | Self::LEN);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
    }

    pub(super) fn push_message(&mut self, field: u64, message: &Message) {
        self.push(field, &message.0);
    }
}
