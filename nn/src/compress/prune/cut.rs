//! Removes channels from a model: every tensor with a slice of a removed channel becomes smaller.

use std::collections::{BTreeMap, BTreeSet};

use lowtide_allocator::Category;
use lowtide_autograd::{BufferId, LeafId};
use lowtide_tensor::Tensor;

use crate::buffer::Buffer;
use crate::error::{PruneProblem, Result};
use crate::module::Parameters;
use crate::parameter::Parameter;

/// A model that names the channels that can be taken out. Its forward pass depends on the shapes of
/// its parameters, and on the numbers that [`Prunable::resized`] sets.
///
/// ```
/// use lowtide_nn::prune::{Group, Prunable, Slice, remove};
/// use lowtide_nn::{Linear, parameters};
/// use lowtide_tensor::{CpuOptions, Device, RandomKey};
///
/// struct Hidden {
///     up: Linear,
///     down: Linear,
/// }
///
/// parameters!(Hidden { up, down });
///
/// impl Prunable for Hidden {
///     fn groups(&self) -> Vec<Group> {
///         let len = self.up.weight().value().shape()[0];
///         let made_by = [Slice::new("up.weight", 0), Slice::new("up.bias", 0)];
///         vec![Group::new("hidden", len, made_by).with([Slice::new("down.weight", 1)])]
///     }
/// }
///
/// let (device, key) = (Device::cpu(CpuOptions::default())?, RandomKey::new(0));
/// let linear = |name, inputs, outputs| Linear::new(&device, key.op(name), inputs, outputs);
/// let mut model = Hidden { up: linear("up", 4, 16)?, down: linear("down", 16, 4)? };
/// remove(&mut model, "hidden", &[0, 3])?;
/// assert_eq!(model.down.weight().value().shape()[..], [4, 14]);
/// # Ok::<(), lowtide_nn::NnError>(())
/// ```
pub trait Prunable: Parameters {
    /// The channels that can be taken out, each kind as a group with a name of its own.
    fn groups(&self) -> Vec<Group>;

    /// Tells the model that `len` channels of the group are left. A model implements this if it has
    /// a number that no shape gives, such as the number of heads.
    fn resized(&mut self, group: &str, len: usize) {
        let _ = (group, len);
    }
}

/// A group of channels, with the slices of tensors that belong to each channel. Removing a channel
/// cuts all of its slices. A channel may also be a hidden feature or an attention head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The name of the group, such as the name of the layer that computes the channels.
    pub name: String,
    /// Number of channels in the group.
    pub len: usize,
    /// Slices of the weights that compute a channel. The norm of these slices ranks the channels.
    pub made_by: Vec<Slice>,
    /// Other parts of tensors that belong to a channel: gain, bias and running statistics of a norm
    /// that follows, and the inputs of the next layer.
    pub followed_by: Vec<Slice>,
}

/// The part of a tensor that belongs to each channel: `width` positions along dimension `axis`. The
/// positions of the first channel begin at `first`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Name of the parameter or buffer.
    pub tensor: String,
    /// The dimension of the channels.
    pub axis: usize,
    /// Number of positions before the first channel.
    pub first: usize,
    /// Number of positions of a channel.
    pub width: usize,
}

/// The channels that a group has left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Name of the group.
    pub group: String,
    /// Number of channels before the cut.
    pub len: usize,
    /// The channels that are left, by their indices before the cut.
    pub kept: Vec<usize>,
}

impl Group {
    /// A group of `len` channels, with the slices of the weights that compute each channel.
    pub fn new(
        name: impl Into<String>,
        len: usize,
        made_by: impl IntoIterator<Item = Slice>,
    ) -> Self {
        let made_by = made_by.into_iter().collect();
        Group { name: name.into(), len, made_by, followed_by: Vec::new() }
    }

    /// This group with further slices of each channel.
    #[must_use]
    pub fn with(mut self, slices: impl IntoIterator<Item = Slice>) -> Self {
        self.followed_by.extend(slices);
        self
    }

    /// The group within a module called `name`.
    #[must_use]
    pub fn within(mut self, name: &str) -> Self {
        self.name = format!("{name}.{}", self.name);
        for slice in self.made_by.iter_mut().chain(&mut self.followed_by) {
            slice.tensor = format!("{name}.{}", slice.tensor);
        }
        self
    }

    pub(crate) fn slices(&self) -> impl Iterator<Item = &Slice> {
        self.made_by.iter().chain(&self.followed_by)
    }
}

impl Slice {
    /// One position along `axis` for each channel, from position 0 on.
    pub fn new(tensor: impl Into<String>, axis: usize) -> Self {
        Slice { tensor: tensor.into(), axis, first: 0, width: 1 }
    }

    /// This slice with `width` positions for each channel, as in a layer after a flattening.
    #[must_use]
    pub fn of_width(self, width: usize) -> Self {
        Slice { width, ..self }
    }

    /// This slice with the first channel at position `first`.
    #[must_use]
    pub fn from(self, first: usize) -> Self {
        Slice { first, ..self }
    }
}

/// Removes the channels with these indices from a group. Every tensor with a slice of a removed
/// channel is replaced by a smaller tensor with the remaining values. A parameter that is cut gets
/// a new identity, so that an optimizer starts without state for it. Handles and clones of the
/// model that were made before keep the old tensors, and share the parameters that are not cut. The
/// old tensors are freed only after the new ones are allocated.
///
/// # Errors
/// `Prune` for an unknown group, an unknown index, a group that would be empty, a layer that has an
/// adapter or is quantised, and a group that does not fit the model; `OutOfMemory`. The model is
/// then as before.
pub fn remove(model: &mut (impl Prunable + ?Sized), group: &str, channels: &[usize]) -> Result<()> {
    let mut groups = model.groups();
    let Some(index) = groups.iter().position(|known| known.name == group) else {
        let names = groups.into_iter().map(|group| group.name).collect();
        return Err(PruneProblem::NoMatch { target: group.to_owned(), names }.into());
    };
    let group = groups.swap_remove(index);
    let removed: BTreeSet<usize> = channels.iter().copied().collect();
    if let Some(&channel) = removed.last().filter(|&&channel| channel >= group.len) {
        return Err(PruneProblem::Channel { group: group.name, channel, len: group.len }.into());
    }
    if removed.len() == group.len {
        return Err(PruneProblem::Emptied { group: group.name, len: group.len }.into());
    }
    remove_all(model, &[(group, removed)])
}

/// [`remove`] for several groups at once: cuts all groups, or none after an error.
pub(super) fn remove_all(
    model: &mut (impl Prunable + ?Sized),
    cuts: &[(Group, BTreeSet<usize>)],
) -> Result<()> {
    check_layers(model, cuts)?;
    let tensors = Smaller::new(model, cuts)?;
    tensors.put(model);
    for (group, removed) in cuts {
        model.resized(&group.name, group.len - removed.len());
    }
    Ok(())
}

/// `Ok` if no linear layer that is cut has more than a weight and a bias.
fn check_layers(
    model: &mut (impl Prunable + ?Sized),
    cuts: &[(Group, BTreeSet<usize>)],
) -> Result<()> {
    let cut: BTreeSet<&str> =
        cuts.iter().flat_map(|(group, _)| group.slices()).map(|slice| &*slice.tensor).collect();
    let mut outcome = Ok(());
    model.visit_linears(&mut |name, layer| {
        let has_more = layer.adapter().is_some() || layer.quantized().is_some();
        let weight = if name.is_empty() { "weight".to_owned() } else { format!("{name}.weight") };
        if has_more && outcome.is_ok() && cut.contains(&*weight) {
            outcome = Err(PruneProblem::Layer { name: name.to_owned() }.into());
        }
    });
    outcome
}

/// The smaller tensors that replace the tensors that are cut. A parameter in several places of the
/// model is cut once, under its first name in a group.
struct Smaller {
    parameters: BTreeMap<LeafId, Parameter>,
    buffers: BTreeMap<BufferId, Buffer>,
}

impl Smaller {
    fn new(
        model: &mut (impl Prunable + ?Sized),
        cuts: &[(Group, BTreeSet<usize>)],
    ) -> Result<Self> {
        let mut all = BTreeMap::new();
        model.visit_tensors(&mut |name, value| _ = all.insert(name.to_owned(), value.clone()));
        let gone = positions(&all, cuts)?;
        let mut smaller = BTreeMap::new();
        for (tensor, axes) in &gone {
            smaller.insert(*tensor, without(&all[*tensor], axes)?);
        }
        let (mut parameters, mut buffers) = (BTreeMap::new(), BTreeMap::new());
        model.visit(&mut |name, parameter| {
            if let Some(value) = smaller.get(name) {
                let cut = Parameter::new(value.clone());
                if parameter.is_frozen() {
                    cut.freeze();
                }
                parameters.entry(parameter.id()).or_insert(cut);
            }
        });
        model.visit_buffers(&mut |name, buffer| {
            if let Some(value) = smaller.get(name) {
                let cut = if buffer.is_constant() { Buffer::constant } else { Buffer::new };
                buffers.entry(buffer.id()).or_insert_with(|| cut(value.clone()));
            }
        });
        Ok(Smaller { parameters, buffers })
    }

    fn put(self, model: &mut (impl Prunable + ?Sized)) {
        model.visit(&mut |_, parameter| {
            if let Some(cut) = self.parameters.get(&parameter.id()) {
                parameter.clone_from(cut);
            }
        });
        model.visit_buffers(&mut |_, buffer| {
            if let Some(cut) = self.buffers.get(&buffer.id()) {
                buffer.clone_from(cut);
            }
        });
    }
}

/// The positions that are cut from each dimension of each tensor.
type Gone<'a> = BTreeMap<&'a str, BTreeMap<usize, BTreeSet<usize>>>;

fn positions<'a>(
    all: &BTreeMap<String, Tensor>,
    cuts: &'a [(Group, BTreeSet<usize>)],
) -> Result<Gone<'a>> {
    let mut gone = Gone::new();
    for (group, removed) in cuts {
        for slice in group.slices() {
            let Slice { tensor, axis, first, width } = slice;
            let dim = all.get(tensor).and_then(|value| value.shape().get(*axis));
            if dim.is_none_or(|&dim| first + group.len * width > dim) {
                let (len, axis, name) = (group.len, *axis, tensor.clone());
                let group = group.name.clone();
                return Err(PruneProblem::Group { group, name, axis, len }.into());
            }
            let of_axis = gone.entry(tensor).or_default().entry(*axis).or_default();
            for channel in removed {
                let begin = first + channel * width;
                of_axis.extend(begin..begin + width);
            }
        }
    }
    Ok(gone)
}

/// `value` without some positions of some dimensions.
fn without(value: &Tensor, axes: &BTreeMap<usize, BTreeSet<usize>>) -> Result<Tensor> {
    let device = value.device();
    let mut smaller = value.clone();
    for (&axis, gone) in axes {
        let dim = value.shape()[axis];
        let kept: Vec<i64> = (0..dim).filter(|at| !gone.contains(at)).map(|at| at as i64).collect();
        let kept = Tensor::from_slice(device, [kept.len()], &kept)?;
        let _scope = device.category(Category::Parameter);
        smaller = smaller.index_select(axis, &kept)?;
    }
    Ok(smaller)
}
