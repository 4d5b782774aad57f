//! Random samples, for planning and measurements.

use crate::dataset::{Dataset, SampleSlot};
use crate::element::{ElementType, Field};
use crate::error::SampleError;
use half::bf16;
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

/// Maximum of a type, to which larger integers are clamped.
const I32_MAX: i64 = i32::MAX as i64;
const U16_MAX: i64 = u16::MAX as i64;

/// Random samples. A sample depends only on its index.
///
/// Floats are from 0 to 1. Integers of u16, i32 and i64 are below a bound. A u8 is any byte, and a
/// bool is true or false with equal probability.
#[derive(Debug, Clone)]
pub struct Random {
    len: usize,
    fields: Vec<Field>,
    /// The bound of integers.
    bound: u64,
}

impl Random {
    /// A dataset of `len` samples with these fields. Integers are below `bound`; a `bound` of 0
    /// counts as 1.
    #[must_use]
    pub fn new(len: usize, fields: Vec<Field>, bound: u64) -> Self {
        Self { len, fields, bound: bound.max(1) }
    }
}

impl Dataset for Random {
    fn len(&self) -> usize {
        self.len
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn write(&self, index: usize, slot: &mut SampleSlot<'_>) -> Result<(), SampleError> {
        let mut generator = ChaCha8Rng::seed_from_u64(index as u64);
        // f32 represents the upper 24 bits exactly.
        let mut unit = || (generator.next_u32() >> 8) as f32 / (1 << 24) as f32;
        let below = |unit: f32| (f64::from(unit) * self.bound as f64) as i64;
        for (place, field) in self.fields.iter().enumerate() {
            match field.element {
                ElementType::F32 => slot.values::<f32>(place).fill_with(&mut unit),
                ElementType::F64 => slot.values::<f64>(place).fill_with(|| f64::from(unit())),
                ElementType::I64 => slot.values::<i64>(place).fill_with(|| below(unit())),
                ElementType::Bf16 => {
                    slot.values::<bf16>(place).fill_with(|| bf16::from_f32(unit()));
                }
                ElementType::I32 => {
                    slot.values::<i32>(place).fill_with(|| below(unit()).min(I32_MAX) as i32);
                }
                ElementType::U16 => {
                    slot.values::<u16>(place).fill_with(|| below(unit()).min(U16_MAX) as u16);
                }
                ElementType::U8 => slot.values::<u8>(place).fill_with(|| (unit() * 256.0) as u8),
                ElementType::Bool => slot.values::<bool>(place).fill_with(|| unit() < 0.5),
            }
        }
        Ok(())
    }
}
