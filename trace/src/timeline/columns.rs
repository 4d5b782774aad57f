//! Numbers as text: columns of variable-length integers in base64.
//!
//! Each byte has seven bits, low ones first, and the high bit if more bytes follow (LEB128, as in
//! DWARF). Signed numbers alternate (0, -1, 1, -2, …). Base64 is RFC 4648's, padded.

/// A column of numbers.
#[derive(Debug, Default)]
pub(super) struct Column {
    bytes: Vec<u8>,
}

impl Column {
    pub(super) fn push(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    /// Appends the difference of `value` and `before`, modulo 2^64.
    pub(super) fn push_step(&mut self, before: u64, value: u64) {
        let step = value.wrapping_sub(before).cast_signed();
        self.push((step << 1 ^ step >> 63).cast_unsigned());
    }

    pub(super) fn base64(&self) -> String {
        const DIGITS: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut text = String::with_capacity(self.bytes.len().div_ceil(3) * 4);
        for three in self.bytes.chunks(3) {
            let mut word = [0; 4];
            word[1..=three.len()].copy_from_slice(three);
            let word = u32::from_be_bytes(word);
            for place in 0..4 {
                let digit = DIGITS[(word >> (18 - 6 * place)) as usize & 63];
                text.push(if place <= three.len() { char::from(digit) } else { '=' });
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::Column;

    #[test]
    fn base64_is_as_in_the_rfc() {
        let pairs = ["", "f:Zg==", "fo:Zm8=", "foo:Zm9v", "foob:Zm9vYg==", "foobar:Zm9vYmFy"];
        for pair in pairs {
            let (plain, coded) = pair.split_once(':').unwrap_or(("", ""));
            assert_eq!(Column { bytes: plain.into() }.base64(), coded);
        }
    }

    #[test]
    fn integers_are_short_when_they_are_small() {
        let mut column = Column::default();
        column.push(0);
        column.push(127);
        column.push(128);
        column.push(u64::MAX);
        column.push_step(5, 4);
        column.push_step(0, 1 << 63);
        column.push_step(u64::MAX, 1);
        let max = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
        assert_eq!(column.bytes, [&[0, 127, 0x80, 1], &max[..], &[1], &max[..], &[4]].concat());
    }
}
