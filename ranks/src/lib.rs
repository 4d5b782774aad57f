#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod collectives;
mod error;
mod meeting;
mod mirror;
mod threads;
mod together;

pub use collectives::{Collectives, Rank, vote};
pub use error::{Call, RanksError, Result};
pub use mirror::Mirror;
pub use threads::{ThreadRank, threads};
