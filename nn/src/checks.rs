//! Checks of options.

use crate::error::{NnError, Result};

/// `Ok` if `value` satisfies `valid`.
pub(crate) fn check_option(
    name: &'static str,
    value: f64,
    range: &'static str,
    valid: impl Fn(f64) -> bool,
) -> Result<()> {
    if valid(value) { Ok(()) } else { Err(NnError::Option { name, value, range }) }
}

/// `Ok` if none of the options is below 0.
pub(crate) fn check_not_negative(options: &[(&'static str, f64)]) -> Result<()> {
    options.iter().try_for_each(|&(name, value)| check_option(name, value, "0..", |x| x >= 0.0))
}

/// `Ok` if both decay rates are from 0 to below 1.
pub(crate) fn check_betas(betas: [f64; 2]) -> Result<()> {
    let check = |beta| check_option("beta", beta, "0..1", |x| (0.0..1.0).contains(&x));
    betas.into_iter().try_for_each(check)
}
