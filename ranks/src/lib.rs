#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod buckets;
mod collectives;
mod error;
mod meeting;
mod mirror;
#[cfg(feature = "mpi")]
mod mpi;
#[cfg(feature = "cuda")]
mod nccl;
mod threads;
mod together;
mod wire;

pub use buckets::all_reduce_each;
pub use collectives::{Collectives, Rank, vote};
pub use error::{Call, Elements, RanksError, Result};
pub use mirror::Mirror;
#[cfg(feature = "mpi")]
pub use mpi::{MpiRank, mpi};
#[cfg(feature = "cuda")]
pub use nccl::{NcclRank, nccl};
pub use threads::{ThreadRank, threads};
pub use wire::{Wire, Wired};
