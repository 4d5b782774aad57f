//! Removes the channels with the smallest norms.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use lowtide_tensor::{DType, Tensor};
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use crate::checks::check_option;
use crate::compress::prune::cut::{Cut, Group, Prunable, Slice, remove_all};
use crate::error::{PruneProblem, Result};
use crate::pattern::is_like;
use crate::safetensors::{from_safetensors, mapped, parse_safetensors};

/// Options of [`channels`]: the choice of the channels that are removed.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(deny_unknown_fields, default))]
pub struct ChannelOptions {
    /// Fraction of each group's channels that is removed, rounded down. At least one channel stays.
    pub fraction: f64,
    /// The norm by which channels are compared.
    pub norm: Norm,
    /// Patterns of groups' names, in which `*` matches anything.
    pub groups: Vec<String>,
}

/// Norms of the weights that compute a channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(rename_all = "lowercase"))]
pub enum Norm {
    /// The sum of the magnitudes.
    #[default]
    L1,
    /// The root of the sum of the squares.
    L2,
}

impl Default for ChannelOptions {
    fn default() -> Self {
        ChannelOptions { fraction: 0.5, norm: Norm::L1, groups: vec!["*".to_owned()] }
    }
}

/// Removes the channels with the smallest norms from each group; of equal norms, the first channel.
/// The model and its files get smaller; see [`remove`](crate::prune::remove). A model of the
/// original shape reads such a file with [`load`](crate::prune::load). A simulated device has no
/// values: there all norms are equal.
///
/// ```
/// use lowtide_nn::models::{SimpleCnn, SimpleCnnShape};
/// use lowtide_nn::{Parameters, prune};
/// use lowtide_tensor::{CpuOptions, Device, RandomKey};
///
/// let device = Device::cpu(CpuOptions::default())?;
/// let shape = SimpleCnnShape { image: [1, 8, 8], channels: 64, classes: 10 };
/// let mut model = SimpleCnn::new(&device, RandomKey::new(0), shape)?;
/// let cuts = prune::channels(&mut model, &prune::ChannelOptions::default())?;
/// assert_eq!((cuts[0].group.as_str(), cuts[0].kept.len()), ("conv", 32));
/// model.visit(&mut |name, parameter| println!("{name} {}", parameter.value().shape()));
/// # Ok::<(), lowtide_nn::NnError>(())
/// ```
///
/// # Errors
/// `Option` for a fraction outside `[0, 1]`; `Prune` for a pattern that matches no group; the
/// errors of [`remove`](crate::prune::remove). The model is then as before.
pub fn channels(
    model: &mut (impl Prunable + ?Sized),
    options: &ChannelOptions,
) -> Result<Vec<Cut>> {
    let kept = left(model, options)?;
    keep(model, options.norm, &kept)
}

/// The number of channels that [`channels`] would keep in each group.
///
/// # Errors
/// `Option` for a fraction outside `[0, 1]`; `Prune` for a pattern that matches no group.
pub fn left(
    model: &(impl Prunable + ?Sized),
    options: &ChannelOptions,
) -> Result<BTreeMap<String, usize>> {
    let ChannelOptions { fraction, groups: patterns, .. } = options;
    check_option("fraction", *fraction, "[0, 1]", |share| (0.0..=1.0).contains(&share))?;
    let groups = model.groups();
    let is_lost = |pattern: &&String| !groups.iter().any(|group| is_like(&group.name, pattern));
    if let Some(target) = patterns.iter().find(is_lost) {
        let names = groups.into_iter().map(|group| group.name).collect();
        return Err(PruneProblem::NoMatch { target: target.clone(), names }.into());
    }
    let mut left = BTreeMap::new();
    for group in groups {
        if patterns.iter().any(|pattern| is_like(&group.name, pattern)) {
            let count = (fraction * group.len as f64).floor() as usize;
            left.insert(group.name, group.len - count.min(group.len.saturating_sub(1)));
        }
    }
    Ok(left)
}

/// Reduces each named group to the given number of channels, as [`channels`] does. A group with no
/// more channels than the given number stays as it is.
///
/// # Errors
/// `Prune` for an unknown group and for 0 channels; the errors of [`remove`](crate::prune::remove).
/// The model is then as before.
pub fn keep(
    model: &mut (impl Prunable + ?Sized),
    norm: Norm,
    kept: &BTreeMap<String, usize>,
) -> Result<Vec<Cut>> {
    let groups = model.groups();
    let is_known = |name: &&String| groups.iter().any(|group| group.name == **name);
    if let Some(target) = kept.keys().find(|name| !is_known(name)) {
        let names = groups.into_iter().map(|group| group.name).collect();
        return Err(PruneProblem::NoMatch { target: target.clone(), names }.into());
    }
    let (mut plans, mut cuts) = (Vec::new(), Vec::new());
    for group in groups {
        let Some(&kept) = kept.get(&group.name) else { continue };
        if kept == 0 {
            return Err(PruneProblem::Emptied { group: group.name, len: group.len }.into());
        }
        let norms = norms(model, &group, norm)?;
        let mut order: Vec<usize> = (0..group.len).collect();
        // The sort is stable: of equal norms, the first channel comes first. NaN is the largest
        // norm.
        order.sort_by(|&a, &b| norms[a].total_cmp(&norms[b]));
        let removed: BTreeSet<usize> = order.drain(..group.len.saturating_sub(kept)).collect();
        order.sort_unstable();
        cuts.push(Cut { group: group.name.clone(), len: group.len, kept: order });
        plans.push((group, removed));
    }
    remove_all(model, &plans)?;
    Ok(cuts)
}

/// The norm of each channel, or the square of the norm: only the order counts.
fn norms(model: &mut (impl Prunable + ?Sized), group: &Group, norm: Norm) -> Result<Vec<f64>> {
    let mut norms = vec![0.0; group.len];
    let mut outcome = Ok(());
    model.visit_tensors(&mut |name, value| {
        for slice in group.made_by.iter().filter(|slice| slice.tensor == name) {
            if outcome.is_ok() && !value.device().is_simulated() {
                outcome = add_norms(&mut norms, value, slice, norm);
            }
        }
    });
    outcome.map(|()| norms)
}

fn add_norms(norms: &mut [f64], value: &Tensor, slice: &Slice, norm: Norm) -> Result<()> {
    let Slice { axis, first, width, .. } = *slice;
    let shape = value.shape();
    // A group that does not fit the tensor is an error in the cut that follows.
    if axis >= shape.len() {
        return Ok(());
    }
    let (dim, inner) = (shape[axis], shape[axis + 1..].iter().product::<usize>().max(1));
    let values = match value.dtype() {
        DType::F64 => value.to_vec::<f64>()?,
        dtype => {
            let wide =
                if dtype == DType::F32 { value.clone() } else { value.to_dtype(DType::F32)? };
            wide.to_vec::<f32>()?.into_iter().map(f64::from).collect()
        }
    };
    for (index, value) in values.into_iter().enumerate() {
        let Some(at) = (index / inner % dim).checked_sub(first) else { continue };
        if let Some(sum) = norms.get_mut(at / width.max(1)) {
            *sum += match norm {
                Norm::L1 => value.abs(),
                Norm::L2 => value * value,
            };
        }
    }
    Ok(())
}

/// Reads a file of a pruned model into a model of the original shape. First cuts the groups to the
/// lengths in the file.
///
/// # Errors
/// The errors of [`load`](crate::load) and [`remove`](crate::prune::remove). The model is then as
/// before, or it is cut and has its old values.
pub fn load(model: &mut impl Prunable, path: &Path) -> Result<()> {
    let mapped = mapped(path)?;
    let file = parse_safetensors(mapped.bytes(), path)?;
    let mut plans = Vec::new();
    for group in model.groups() {
        let Some(slice) = group.made_by.first() else { continue };
        let alike = group.slices().filter(|s| (&s.tensor, s.axis) == (&slice.tensor, slice.axis));
        let step = alike.map(|slice| slice.width).sum::<usize>().max(1);
        let mut dim = None;
        model.visit_tensors(&mut |name, value| {
            if name == slice.tensor {
                dim = value.shape().get(slice.axis).copied();
            }
        });
        let found = file.tensor(&slice.tensor).ok();
        let found = found.and_then(|view| view.shape().get(slice.axis).copied());
        // A tensor that is missing or larger in the file is an error of the load.
        let cut = dim.zip(found).and_then(|(dim, found)| dim.checked_sub(found)).unwrap_or(0);
        let removed: BTreeSet<usize> = (group.len.saturating_sub(cut / step)..group.len).collect();
        if !removed.is_empty() && removed.len() < group.len {
            plans.push((group, removed));
        }
    }
    remove_all(model, &plans)?;
    from_safetensors(model, mapped.bytes(), path)
}
