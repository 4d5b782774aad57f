//! A run on several ranks: threads of this process, or processes that MPI has started.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use lowtide_ranks::{Collectives, threads};
#[cfg(feature = "cuda")]
use lowtide_ranks::{RanksError, nccl};
#[cfg(feature = "cuda")]
use lowtide_tensor::Device;
use lowtide_trainer::{Result, TrainError};

#[cfg(feature = "cuda")]
use crate::command::DeviceArgs;
#[cfg(feature = "cuda")]
use crate::command::capacity::Capacity;
#[cfg(feature = "cuda")]
use crate::command::failure::complain;

/// Time that ranks wait for each other, besides the wait for memory. One rank may evaluate, or
/// write a checkpoint, while the others wait.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Runs `first` on the first of `count` ranks and `other` on each other rank, with one thread per
/// rank. Returns the result of `first`.
///
/// # Errors
/// Errors of `first`, or the error of the rank that made it fail.
pub(super) fn on_threads<R>(
    count: usize,
    wait: Option<Duration>,
    first: impl FnOnce(Arc<dyn Collectives>) -> Result<R>,
    other: impl Fn(Arc<dyn Collectives>) -> Result<()> + Sync,
) -> Result<R> {
    let (other, mut ranks) = (&other, threads(count, TIMEOUT + wait.unwrap_or_default()));
    thread::scope(|scope| {
        let others = ranks.drain(1..).map(|rank| scope.spawn(move || other(Arc::new(rank))));
        let others: Vec<_> = others.collect();
        let outcome = first(Arc::new(ranks.pop().expect("the first of several")));
        let others = others.into_iter().map(|other| other.join());
        let others: Vec<_> =
            others.map(|other| other.unwrap_or_else(|panic| resume_unwind(panic))).collect();
        match outcome {
            // The error of the rank that failed first is more useful than this rank's report of it.
            Err(TrainError::Ranks(heard)) => {
                let is_heard = |error: &TrainError| matches!(error, TrainError::Ranks(_));
                let mut errors = others.into_iter().filter_map(Result::err);
                Err(errors.find(|error| !is_heard(error)).unwrap_or(heard.into()))
            }
            outcome => outcome,
        }
    })
}

/// Ranks that send tensors from device to device by NCCL, if all are on NVIDIA devices and have
/// NCCL. Otherwise tensors go through the host, and a note on standard error gives the reason.
///
/// # Errors
/// `Ranks`.
#[cfg(feature = "cuda")]
pub(super) fn by_nccl(
    ranks: Arc<dyn Collectives>,
    device: &Device,
    arguments: &DeviceArgs,
    wait: Option<Duration>,
) -> Result<Arc<dyn Collectives>> {
    if device.as_cuda().is_none() {
        return Ok(ranks);
    }
    let is_first = ranks.rank().index == 0;
    match nccl(Arc::clone(&ranks), device, TIMEOUT + wait.unwrap_or_default()) {
        Ok(rank) => {
            // The budget was found before NCCL allocated device memory.
            Capacity::leave(device, arguments, rank.outside_bytes());
            Ok(Arc::new(rank))
        }
        Err(error @ (RanksError::Refused { .. } | RanksError::Tensor(_))) => {
            if is_first {
                complain(&format!("note: tensors go through the host: {error}"));
            }
            Ok(ranks)
        }
        Err(error) => Err(error.into()),
    }
}

/// The rank of this process, if MPI has started several.
///
/// # Errors
/// `Ranks` if the ranks cannot connect.
#[cfg(feature = "mpi")]
pub(super) fn of_process(wait: Option<Duration>) -> Result<Option<Arc<dyn Collectives>>> {
    // Variables that MPICH, Open MPI and Slurm's PMI set in a process that they start.
    let is_started = ["PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"]
        .iter()
        .any(|name| std::env::var_os(name).is_some());
    let timeout = TIMEOUT + wait.unwrap_or_default();
    let rank = if is_started { lowtide_ranks::mpi(timeout)? } else { None };
    Ok(rank.map(|rank| Arc::new(rank) as _))
}
