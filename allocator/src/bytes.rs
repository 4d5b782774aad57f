//! Byte counts for people.

use std::fmt;

/// A capacity from here on is no limit: no machine has as much memory. Simulations have such
/// capacities.
pub const UNLIMITED_BYTES: u64 = 1 << 60;

/// A byte count for people: exact if it is whole in its unit, `6 MiB`, else to a tenth, `6.3 MiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes<T>(pub T);

impl<T: Copy + TryInto<u64>> fmt::Display for Bytes<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        let bytes = self.0.try_into().unwrap_or(u64::MAX);
        if bytes < 1024 {
            return f.pad(&format!("{bytes} B"));
        }
        let mut unit_index = bytes.ilog2() as usize / 10;
        if bytes.is_multiple_of(1 << (10 * unit_index)) {
            return f.pad(&format!("{} {}", bytes >> (10 * unit_index), UNITS[unit_index - 1]));
        }
        let tenths = |unit_index: usize| {
            let unit = 1u128 << (10 * unit_index);
            (u128::from(bytes) * 10 + unit / 2) / unit
        };
        // 1023.96 MiB rounds to 1024.0 MiB, which reads better as 1.0 GiB.
        if tenths(unit_index) >= 10240 && unit_index < UNITS.len() {
            unit_index += 1;
        }
        let tenths = tenths(unit_index);
        f.pad(&format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[unit_index - 1]))
    }
}
