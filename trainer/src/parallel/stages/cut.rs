//! The places where a model is cut into stages.

use lowtide_allocator::Category;
use lowtide_nn::parallel::Section;
use lowtide_ranks::Collectives;
use lowtide_tensor::{Device, Tensor};

use crate::error::{Result, TrainError};
use crate::options::Options;
use crate::step::summation::Summation;
use crate::task::contract::Task;

fn setting(problem: String) -> TrainError {
    TrainError::Setting { place: "pipeline".to_owned(), problem }
}

/// The error of a training whose model is not cut yet.
pub(crate) fn uncut() -> TrainError {
    setting("the model is not cut into stages yet: plan, or cut, first".to_owned())
}

/// # Errors
/// `Setting` for a training that cannot be a pipeline.
pub(crate) fn check(options: &Options, task: &impl Task) -> Result<()> {
    if Summation::of(options) != Summation::Sequential {
        let problem = "a pipeline adds gradients in the order of micro-batches, not of leaves";
        return Err(setting(problem.to_owned()));
    }
    if !task.turns().is_empty() {
        return Err(setting("models that are trained in turns cannot be a pipeline".to_owned()));
    }
    Ok(())
}

/// A copy of the model on a simulated device. The model may be on any device.
///
/// # Errors
/// `OutOfMemory`.
pub(crate) fn simulated<T: Task>(mut task: T, device: &Device) -> Result<T> {
    let mut outcome = Ok(());
    task.parameters().visit_tensors(&mut |_, tensor| {
        let empty = Tensor::empty_in(device, Category::Parameter, *tensor.shape(), tensor.dtype());
        match empty {
            Ok(empty) => *tensor = empty,
            Err(error) => outcome = Err(error),
        }
    });
    outcome?;
    Ok(task)
}

/// The bounds that the first rank computed. Other ranks may have assumed other speeds.
///
/// # Errors
/// `Ranks`.
pub(crate) fn bounds_of_first(ranks: &dyn Collectives, own: &[usize]) -> Result<Vec<usize>> {
    let words: Vec<u8> = own.iter().flat_map(|&at| (at as u64).to_le_bytes()).collect();
    let said = ranks.exchange(&words)?.swap_remove(0);
    let words = said.chunks_exact(8).map(|word| word.try_into().expect("eight bytes"));
    Ok(words.map(|word| u64::from_le_bytes(word) as usize).collect())
}

/// The first block of each of `count` stages, followed by the number of blocks. Among all ways to
/// cut, the longest stage is shortest.
///
/// # Errors
/// `Setting` if there are too few places to cut.
pub(crate) fn bounds_of(sections: &[Section], count: usize) -> Result<Vec<usize>> {
    let places: Vec<usize> = (1..sections.len()).filter(|&at| sections[at].can_begin).collect();
    if places.len() + 1 < count {
        let problem = match sections.len() {
            0 => "the model runs no blocks by `run_blocks`: there is nowhere to cut it".to_owned(),
            len => format!(
                "the model has {len} blocks and can be cut at {} places: {count} stages are too \
                 many",
                places.len()
            ),
        };
        return Err(setting(problem));
    }
    let mut sums = vec![0.0];
    sums.extend(sections.iter().scan(0.0, |sum, section| {
        *sum += section.seconds;
        Some(*sum)
    }));
    let ends: Vec<usize> = places.iter().copied().chain([sections.len()]).collect();
    // For each end: the best way to put the given number of stages before it, and the time of the
    // longest of these stages.
    let mut best: Vec<(f64, Vec<usize>)> = ends.iter().map(|&end| (sums[end], vec![0])).collect();
    for stages in 1..count {
        let longer = |at: usize| {
            let of_last = |&before: &usize| {
                let (longest, bounds) = &best[before];
                let longest = longest.max(sums[ends[at]] - sums[ends[before]]);
                (longest, bounds.iter().copied().chain([ends[before]]).collect::<Vec<_>>())
            };
            let ways: Vec<usize> = (stages - 1..at).collect();
            let ways = ways.iter().map(of_last);
            ways.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((f64::INFINITY, Vec::new()))
        };
        best = (0..ends.len()).map(longer).collect();
    }
    let (_, mut bounds) = best.pop().expect("the end is one");
    bounds.push(sections.len());
    Ok(bounds)
}
