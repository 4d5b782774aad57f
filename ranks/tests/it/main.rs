//! Laws of what ranks do together.

mod common;
mod faults;
mod memory;
mod sums;
