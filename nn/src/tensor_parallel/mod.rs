//! Tensor parallelism: several ranks share the attention heads, the hidden features and the
//! vocabulary of a model (Megatron-LM, Shoeybi et al. 2019).
//!
//! What shares its work is a branch: layers whose outputs are heads or hidden features, and a
//! linear layer that ends it, whose inputs they are. A rank has some of them, all ranks have the
//! same samples. What the last layer makes of the own ones is added up over the ranks on the way
//! forwards; the gradient of what the branch was given is added up on the way backwards. Everything
//! else, such as norms and what is added to branches, each rank computes for itself, to the same
//! bits.

mod shard;
mod vocabulary;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use lowtide_allocator::Category;
use lowtide_autograd::{LeafId, Needs, Pass, Var};
use lowtide_tensor::{Device, Tensor};

use crate::error::{NnError, Result};
use crate::layers::embedding::Embedding;
use crate::layers::linear::Linear;
use crate::module::{Parameters, keep};
use crate::parameter::Parameter;
use shard::{Runs, units_of};

pub use shard::Shard;
pub use vocabulary::VocabularyShare;

/// Adds up over ranks.
pub trait Sum: Debug + Send + Sync {
    /// Puts the sum over the ranks in place of x, which is contiguous. All ranks do so in the same
    /// order, with the same shapes.
    ///
    /// # Errors
    /// What keeps the ranks from it.
    fn sum(&self, x: &mut Tensor) -> Result<()>;
}

/// What of a model several ranks can share.
pub enum Shared<'a> {
    /// Heads, or hidden features.
    Branch(Branch<'a>),
    /// The rows of a table of tokens, and of an output layer, if that is another.
    Vocabulary {
        /// The vectors of tokens, a row for each.
        table: &'a mut Embedding,
        /// The output layer, unless it is the table.
        head: Option<&'a mut Linear>,
    },
}

/// Layers that compute units, which are heads or hidden features, and the linear layer that ends
/// the branch, whose inputs the units are.
pub struct Branch<'a> {
    units: usize,
    /// Dimensions of parameters along which units lie.
    slices: BTreeMap<LeafId, Runs>,
    /// Parameters that all units use.
    common: Vec<LeafId>,
    end: &'a mut Linear,
    resize: Option<Box<dyn FnMut(usize) + 'a>>,
    /// Whether each layer has a weight of floats and no adapter.
    is_plain: bool,
}

impl<'a> Branch<'a> {
    /// A branch of `units` that ends in `end`, which has `width` inputs for each of them.
    pub fn new(units: usize, end: &'a mut Linear, width: usize) -> Self {
        let weight = (end.weight().id(), Runs { axis: 1, runs: vec![(0, width)] });
        let (slices, is_plain) = (BTreeMap::from([weight]), end.is_plain());
        Branch { units, slices, common: Vec::new(), end, resize: None, is_plain }
    }

    /// The hidden features between layers whose outputs they are and one whose inputs they are.
    pub fn hidden<'b>(layers: impl IntoIterator<Item = &'b Linear>, end: &'a mut Linear) -> Self {
        let units = end.weight().value().shape()[1];
        let branch = Branch::new(units, end, 1);
        layers.into_iter().fold(branch, |branch, layer| branch.made_by(layer, &[(0, 1)]))
    }

    /// With a layer whose outputs are of units: runs of them, each with its first output and the
    /// outputs that a unit has in it.
    #[must_use]
    pub fn made_by(mut self, layer: &Linear, runs: &[(usize, usize)]) -> Self {
        self.is_plain &= layer.is_plain();
        self.with_rows(layer.weight(), runs).with_optional_rows(layer.bias(), runs)
    }

    /// With a parameter whose rows are of units.
    #[must_use]
    pub fn with_rows(mut self, parameter: &Parameter, runs: &[(usize, usize)]) -> Self {
        self.is_plain &= parameter.quantized.is_none();
        self.slices.insert(parameter.id(), Runs { axis: 0, runs: runs.to_vec() });
        self
    }

    /// The same of one that may be absent.
    #[must_use]
    pub fn with_optional_rows(
        self,
        parameter: Option<&Parameter>,
        runs: &[(usize, usize)],
    ) -> Self {
        match parameter {
            Some(parameter) => self.with_rows(parameter, runs),
            None => self,
        }
    }

    /// With parameters that all units use, such as the gains of a norm of heads.
    #[must_use]
    pub fn with_common(mut self, parameters: &mut dyn Parameters) -> Self {
        parameters.visit(&mut |_, parameter| self.common.push(parameter.id()));
        self
    }

    /// With what is to be told the number of units that are left here.
    #[must_use]
    pub fn resizing(self, resize: impl FnMut(usize) + 'a) -> Self {
        Branch { resize: Some(Box::new(resize)), ..self }
    }

    /// Leaves the branch to every rank as a whole.
    #[must_use]
    pub fn whole(self) -> Self {
        Branch { is_plain: false, ..self }
    }
}

/// What a linear layer has to do with the other ranks.
#[derive(Clone, Debug)]
pub(crate) enum LayerShare {
    /// It ends a branch of which this rank has some units.
    End(BranchShare),
    /// It is an output layer, of which this rank has some rows.
    Rows(VocabularyShare),
}

#[derive(Clone, Debug)]
pub(crate) struct BranchShare {
    sum: Arc<dyn Sum>,
    units: Range<usize>,
    /// Where random numbers come from that are for the own units.
    path: String,
}

impl BranchShare {
    /// What the last layer of the branch makes of all units, in place of what it makes of the own
    /// ones: a tensor that nothing else has seen.
    pub(crate) fn end(&self, y: Var, bias: Option<Var>) -> Result<Var> {
        sum_in_place(&*self.sum, &y)?;
        let Some(bias) = bias else { return Ok(y) };
        let dtype = y.value().dtype();
        Ok(y.add(if bias.value().dtype() == dtype { bias } else { bias.to_dtype(dtype)? })?)
    }

    /// What all units are given: its gradient is a sum over the ranks.
    pub(crate) fn input(&self, x: Var) -> Result<Var> {
        with_summed_gradient(&self.sum, x)
    }

    /// What the own units have of x.
    pub(crate) fn own_units(&self, x: Var, axis: usize) -> Result<Var> {
        Ok(x.narrow(axis as isize, self.units.start, self.units.len())?)
    }

    /// Runs what draws random numbers for the own units: other ones than those of other ranks.
    pub(crate) fn within<T>(&self, pass: &Pass, run: impl FnOnce() -> T) -> T {
        if self.units.start == 0 { run() } else { pass.within(&self.path, run) }
    }
}

/// The sum over the ranks in place of a value that nothing else has seen.
fn sum_in_place(sum: &dyn Sum, y: &Var) -> Result<()> {
    sum.sum(&mut y.value().clone())
}

/// x, of which each rank computes a part of the gradient.
pub(crate) fn with_summed_gradient(sum: &Arc<dyn Sum>, x: Var) -> Result<Var> {
    let sum = Arc::clone(sum);
    let rule = move |dy: Tensor, _: Needs| {
        let mut dy = if dy.is_reusable() { dy.contiguous()? } else { dy.copied()? };
        sum.sum(&mut dy).map_err(NnError::into_autograd)?;
        Ok(vec![Some(dy)])
    };
    Ok(Var::apply("summed_gradient", [x], |[x], _| Ok((x, rule)))?)
}

/// Leaves of a model on `device` what rank `index` of `count` has of branches and of its
/// vocabulary, and moves all else there. The model may be on another device before, such as the
/// host, where it has room. Of a branch with fewer units than ranks, or with adapters or weights in
/// few bits, each rank has all. Returns how many branches are shared.
///
/// # Errors
/// `OutOfMemory` of `device`; nothing has changed then.
pub fn share_layers(
    model: &mut dyn Parameters,
    device: &Device,
    rank: (usize, usize),
    sum: &Arc<dyn Sum>,
) -> Result<usize> {
    let _scope = device.category(Category::Parameter);
    let (mut slices, mut common, mut branches) = (BTreeMap::new(), Vec::new(), 0);
    model.visit_shared(&mut |shared| {
        if !shared.can_be_shared(rank.1) {
            return;
        }
        match shared {
            Shared::Branch(branch) => {
                branches += 1;
                common.extend(branch.common);
                let of_branch = branch.slices.into_iter();
                slices.extend(of_branch.map(|(leaf, runs)| (leaf, (branch.units, runs))));
            }
            Shared::Vocabulary { table, head } => {
                let weights = [Some(table.weight()), head.as_deref().map(Linear::weight)];
                for weight in weights.into_iter().flatten() {
                    let runs = Runs { axis: 0, runs: vec![(0, 1)] };
                    slices.insert(weight.id(), (table.rows(), runs));
                }
            }
        }
    });
    let (mut values, mut shards, mut buffers) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    let mut outcome = Ok(());
    model.visit(&mut |_, parameter| {
        let (id, value) = (parameter.id(), parameter.value());
        let shard = slices
            .remove(&id)
            .map(|(units, runs)| Arc::new(Shard { shape: *value.shape(), units, runs, rank }));
        keep(&mut values, id, &mut outcome, || {
            let own = shard.as_ref().map(|shard| shard.own_of(value)).transpose()?;
            Ok(own.as_ref().unwrap_or(value).to_device(device, Category::Parameter)?)
        });
        shards.extend(shard.map(|shard| (id, shard)));
    });
    model.visit_buffers(&mut |_, buffer| {
        keep(&mut buffers, buffer.id(), &mut outcome, || {
            Ok(buffer.value().to_device(device, Category::Parameter)?)
        })
    });
    outcome?;
    model.visit_shared(&mut |shared| {
        if !shared.can_be_shared(rank.1) {
            return;
        }
        match shared {
            Shared::Branch(branch) => {
                let units = units_of(rank, branch.units);
                if let Some(mut resize) = branch.resize {
                    resize(units.len());
                }
                let (sum, path) = (Arc::clone(sum), format!("units{}", units.start));
                branch.end.share = Some(LayerShare::End(BranchShare { sum, units, path }));
            }
            Shared::Vocabulary { table, head } => {
                let share = VocabularyShare { sum: Arc::clone(sum), rank, len: table.rows() };
                if let Some(head) = head {
                    head.share = Some(LayerShare::Rows(share.clone()));
                }
                table.share = Some(share);
            }
        }
    });
    model.visit(&mut |_, parameter| {
        let id = parameter.id();
        *parameter.value_mut() = values[&id].clone();
        parameter.shard = shards.get(&id).cloned();
        if common.contains(&id) {
            parameter.gradient_sum = Some(Arc::clone(sum));
        }
    });
    model.visit_buffers(&mut |_, buffer| *buffer.value_mut() = buffers[&buffer.id()].clone());
    Ok(branches)
}

impl Shared<'_> {
    /// Whether there is something for each of so many ranks.
    fn can_be_shared(&self, count: usize) -> bool {
        match self {
            Shared::Branch(branch) => branch.is_plain && branch.units >= count,
            Shared::Vocabulary { table, head } => {
                let is_plain = |head: &Linear| head.is_plain() && head.bias().is_none();
                let is_plain = head.as_deref().is_none_or(is_plain);
                is_plain && table.rows() >= count && table.weight().quantized.is_none()
            }
        }
    }
}

/// Lets what is [shared](share_layers) of `model` be added up by another `sum`.
pub fn set_sum(model: &mut dyn Parameters, sum: &Arc<dyn Sum>) {
    let set = |share: &mut Option<LayerShare>| match share {
        Some(LayerShare::End(share)) => share.sum = Arc::clone(sum),
        Some(LayerShare::Rows(share)) => share.sum = Arc::clone(sum),
        None => {}
    };
    model.visit_shared(&mut |shared| match shared {
        Shared::Branch(branch) => set(&mut branch.end.share),
        Shared::Vocabulary { table, head } => {
            if let Some(share) = &mut table.share {
                share.sum = Arc::clone(sum);
            }
            if let Some(head) = head {
                set(&mut head.share);
            }
        }
    });
    model.visit(&mut |_, parameter| {
        if let Some(of_parameter) = &mut parameter.gradient_sum {
            *of_parameter = Arc::clone(sum);
        }
    });
}
