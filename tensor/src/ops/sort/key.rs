//! Integers in the same order as elements, so that one sort serves all types.

use half::{bf16, f16};

use crate::dtype::{Bool, Element};

/// An element with a key: `a` comes before `b` exactly if `a.key() < b.key()`.
pub(super) trait Sortable: Element {
    /// True if the key and a position fit into one word.
    const IS_SHORT: bool;
    /// The key of the value; below 2^32 if the key is short.
    fn key(self) -> u64;
}

macro_rules! float_keys {
    ($($type:ty, $bits:ty, $is_short:literal;)*) => {$(
        impl Sortable for $type {
            const IS_SHORT: bool = $is_short;
            #[inline(always)]
            fn key(self) -> u64 {
                const SIGN: $bits = 1 << (<$bits>::BITS - 1);
                let bits = self.to_bits();
                // The bits of positive floats sort like the numbers, the bits of negative floats in
                // reverse. -0 becomes 0, and all NaN become one.
                let key = if bits & SIGN != 0 { (!bits).wrapping_add(1) } else { bits | SIGN };
                (if self.is_nan() { <$bits>::MAX } else { key }).into()
            }
        }
    )*};
}
float_keys! {
    f64, u64, false;
    f32, u32, true;
    f16, u16, true;
    bf16, u16, true;
}

impl Sortable for i64 {
    const IS_SHORT: bool = false;
    #[inline(always)]
    fn key(self) -> u64 {
        self as u64 ^ 1 << 63
    }
}

impl Sortable for i32 {
    const IS_SHORT: bool = true;
    #[inline(always)]
    fn key(self) -> u64 {
        (self as u32 ^ 1 << 31).into()
    }
}

impl Sortable for u8 {
    const IS_SHORT: bool = true;
    #[inline(always)]
    fn key(self) -> u64 {
        self.into()
    }
}

impl Sortable for Bool {
    const IS_SHORT: bool = true;
    #[inline(always)]
    fn key(self) -> u64 {
        bool::from(self).into()
    }
}
