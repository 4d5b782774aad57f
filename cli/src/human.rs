//! Byte counts and times as people write and read them: `6 MiB`, `24GiB`, `512KB`, `1.5 ms`.

use lowtide_allocator::Bytes;

/// The reason why a text is not a byte count.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ParseBytesError {
    /// There is no plain decimal number in front of the unit.
    #[error("`{input}` is not a byte count: write a number and a unit, such as 6MiB or 512KB")]
    Number {
        /// The text as given.
        input: String,
    },
    /// The unit is none of the known ones.
    #[error(
        "`{input}` has no known unit: use B, KiB, MiB, GiB or TiB, or the decimal KB, MB, GB or TB"
    )]
    Unit {
        /// The text as given.
        input: String,
    },
    /// A fraction of single bytes.
    #[error("`{input}` is not a whole number of bytes")]
    Fraction {
        /// The text as given.
        input: String,
    },
    /// The product of number and unit is above `u64::MAX`.
    #[error("`{input}` is more bytes than 64 bits can count")]
    TooLarge {
        /// The text as given.
        input: String,
    },
}

/// Writes a byte count in binary units: exact below 1 KiB and at whole units, else one decimal.
pub(crate) fn format_bytes(bytes: u64) -> String {
    Bytes(bytes).to_string()
}

/// Writes a byte count in binary units, followed by the exact number: `6.3 MiB (6605824 bytes)`.
pub(crate) fn exact_bytes(bytes: usize) -> String {
    format!("{} ({bytes} bytes)", format_bytes(bytes as u64))
}

/// A text whose control characters other than line breaks and tabs are escaped as in JSON, such as
/// `\u001b`: names in a stranger's file, or the words of a stranger's model, cannot control a
/// terminal. JSON stays JSON.
pub(crate) fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for char in text.chars() {
        if char.is_control() && !matches!(char, '\n' | '\t') {
            shown += &format!("\\u{:04x}", u32::from(char));
        } else {
            shown.push(char);
        }
    }
    shown
}

/// Writes a time in a unit in which it is at least 1, if there is one: `12.3 ms`.
pub(crate) fn format_seconds(seconds: f64) -> String {
    match seconds {
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 1e-3 => format!("{:.1} ms", s * 1e3),
        s => format!("{:.1} us", s * 1e6),
    }
}

/// Reads a byte count: `4096`, `4096B`, `6MiB`, `1.5 GiB`, `512KB` (1 KB is 1000 bytes).
///
/// Case, and spaces around the unit, do not matter. A fraction of a larger unit is rounded down to
/// whole bytes: `0.1KiB` is 102 bytes.
///
/// # Errors
/// An error for text that is not a number with a known unit, for a fraction of single bytes, and
/// for a number too large for 64 bits.
pub(crate) fn parse_bytes(input: &str) -> Result<u64, ParseBytesError> {
    let owned = || input.to_owned();
    let text = input.trim();
    let unit_start = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_start);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    // `.5GiB` and `5.GiB` are more often mistakes than intended.
    let malformed = whole.is_empty() || fraction.contains('.') || number.ends_with('.');
    if malformed {
        return Err(ParseBytesError::Number { input: owned() });
    }
    let unit_bytes =
        unit_bytes(unit.trim_start()).ok_or_else(|| ParseBytesError::Unit { input: owned() })?;

    let fraction = fraction.trim_end_matches('0');
    if !fraction.is_empty() && unit_bytes == 1 {
        return Err(ParseBytesError::Fraction { input: owned() });
    }
    let too_large = || ParseBytesError::TooLarge { input: owned() };
    let whole_bytes = parse_digits(whole).and_then(|digits| digits.checked_mul(unit_bytes));
    let whole_bytes = whole_bytes.ok_or_else(too_large)?;
    // Further digits are less than a byte of the largest unit.
    let fraction = &fraction[..fraction.len().min(19)];
    let digits = parse_digits(fraction).unwrap_or_default();
    let fraction_bytes = digits * unit_bytes / 10u128.pow(fraction.len() as u32);
    u64::try_from(whole_bytes.saturating_add(fraction_bytes)).map_err(|_| too_large())
}

fn parse_digits(digits: &str) -> Option<u128> {
    digits.parse().ok()
}

fn unit_bytes(unit: &str) -> Option<u128> {
    let bytes = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "tib" => 1 << 40,
        "pib" => 1 << 50,
        "eib" => 1 << 60,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return None,
    };
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_parse(input: &str, bytes: u64) {
        assert_eq!(parse_bytes(input), Ok(bytes), "{input:?}");
    }

    #[track_caller]
    fn check_refused(input: &str, variant: fn(String) -> ParseBytesError) {
        let error = parse_bytes(input).expect_err(input);
        assert_eq!(error, variant(input.to_owned()));
        assert!(error.to_string().contains(&format!("`{input}`")), "{error}");
    }

    #[test]
    fn known_units_are_read_in_any_case_and_spacing() {
        check_parse("6MiB", 6 << 20);
        check_parse("6 MiB", 6 << 20);
        check_parse("  6 mib ", 6 << 20);
        check_parse("24GiB", 24 << 30);
        check_parse("1.5GiB", 3 << 29);
        check_parse("1.50GIB", 3 << 29);
        check_parse("1000000", 1_000_000);
        check_parse("512KB", 512_000);
        check_parse("4096B", 4096);
        check_parse("0.001kb", 1);
        check_parse("2TiB", 2 << 40);
        check_parse("0", 0);
        check_parse("7.0", 7);
    }

    #[test]
    fn texts_without_a_plain_number_are_refused() {
        for input in ["", "MiB", "-1MiB", "+1MiB", ".5GiB", "5.GiB", "1.2.3GiB", "½GiB", "inf"] {
            check_refused(input, |input| ParseBytesError::Number { input });
        }
    }

    #[test]
    fn unknown_units_are_refused() {
        for input in ["6 M", "1e6", "1_000", "1,5GiB", "5 apples", "6MiB extra", "1bit"] {
            check_refused(input, |input| ParseBytesError::Unit { input });
        }
    }

    #[test]
    fn parts_of_a_byte_are_left_out_of_larger_units_and_else_refused() {
        check_parse("0.1KiB", 102);
        check_parse("1.72GiB", 1_846_835_937);
        check_parse("1.0000001MB", 1_000_000);
        check_parse(&format!("0.{}1GiB", "0".repeat(60)), 0);
        check_parse(&format!("0.{}EiB", "9".repeat(60)), (1 << 60) - 1);
        for input in ["0.5", "1.5B"] {
            check_refused(input, |input| ParseBytesError::Fraction { input });
        }
    }

    #[test]
    fn the_largest_count_is_the_largest_u64() {
        check_parse("18446744073709551615", u64::MAX);
        let long = format!("{}GiB", "9".repeat(60));
        for input in ["18446744073709551616", "16777216TiB", long.as_str()] {
            check_refused(input, |input| ParseBytesError::TooLarge { input });
        }
        check_parse("16777215TiB", 16_777_215 << 40);
    }

    #[test]
    fn control_characters_are_visible_and_json_keeps_its_value() {
        assert_eq!(
            visible("\u{1b}[31mred\r\n\ta\u{9b}0m\u{7f}"),
            "\\u001b[31mred\\u000d\n\ta\\u009b0m\\u007f"
        );
        assert_eq!(visible("größer ½ \u{200d}"), "größer ½ \u{200d}");
        let value = serde_json::json!({ "name": "\u{1b}\u{7f}\u{85}" });
        let shown = visible(&value.to_string());
        assert!(shown.chars().all(|char| !char.is_control()), "{shown:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).expect("JSON"), value);
    }

    #[test]
    fn times_are_written_in_the_unit_that_fits() {
        let cases = [(2.5, "2.50 s"), (0.0123, "12.3 ms"), (4.25e-5, "42.5 us"), (0.0, "0.0 us")];
        for (seconds, text) in cases {
            assert_eq!(format_seconds(seconds), text);
        }
    }

    #[test]
    fn counts_are_written_in_the_largest_unit_that_keeps_one_digit() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1025, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (6_186_598, "5.9 MiB"),
            (6 << 20, "6 MiB"),
            (24 << 30, "24 GiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            ((1 << 30) - 1, "1.0 GiB"),
            (u64::MAX, "16.0 EiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(format_bytes(bytes), text, "{bytes}");
        }
    }

    #[test]
    fn whole_units_come_back_and_rounded_ones_stay_within_a_twentieth() {
        for shift in [0, 10, 20, 30, 40, 50] {
            for factor in [1u64, 3, 5, 1000, 1023] {
                let text = format_bytes(factor << shift);
                assert_eq!(parse_bytes(&text), Ok(factor << shift), "{text}");
            }
        }
        for bytes in (1024..64 << 20).step_by(99_991) {
            let text = format_bytes(bytes);
            let (number, unit) = text.split_once(' ').expect("a space before the unit");
            let unit = parse_bytes(&format!("1{unit}")).expect("a unit it writes itself");
            let read = number.parse::<f64>().expect("a number") * unit as f64;
            let error = (read - bytes as f64).abs();
            assert!(error <= 0.0501 * unit as f64, "{bytes} written as {text}");
        }
    }
}
