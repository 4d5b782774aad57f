//! Splits the branches and the vocabulary of a model among ranks.

use std::collections::BTreeMap;
use std::sync::Arc;

use lowtide_allocator::Category;
use lowtide_tensor::Device;

use crate::error::Result;
use crate::layers::linear::Linear;
use crate::module::{Parameters, keep};
use crate::parallel::features::branch::Shared;
use crate::parallel::features::layer_share::{BranchShare, LayerShare};
use crate::parallel::features::shard::{Runs, Shard, units_of};
use crate::parallel::features::sum::Sum;
use crate::parallel::features::vocabulary::VocabularyShare;

/// Splits the branches and the vocabulary of a model among `count` ranks. Keeps the part of rank
/// `index` on `device`, and moves everything else to `device` as a whole. Before the call the model
/// may be on another device that has room for it, such as the host. A branch stays whole on each
/// rank if it has fewer units than ranks, adapters or quantised weights. Returns the number of
/// shared branches.
///
/// # Errors
/// `OutOfMemory` of `device`; the model is then as before.
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

/// Replaces the [`Sum`] of the [shared](share_layers) layers of `model`.
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
