//! The whole state of a pipeline, gathered on one rank for a checkpoint or a hash.

use std::collections::{BTreeMap, BTreeSet};

use lowtide_autograd::LeafId;
use lowtide_nn::Parameters;
use lowtide_nn::optim::Stateful;
use lowtide_ranks::{Collectives, RanksError};
use lowtide_tensor::{DType, Tensor};

use crate::error::Result;
use crate::files::trained_state::TrainedState;
use crate::parallel::division::{GatherRole, Gathered, StateDivision};
use crate::parallel::stages::pipeline::Pipeline;
use crate::parallel::whole::host;

/// Name, type and shape of a state.
type Named = (String, String, Vec<usize>);

/// The state of a training whose model is cut into stages.
pub(crate) struct StagedState<'a, T> {
    pub(crate) ranks: &'a dyn Collectives,
    pub(crate) pipeline: &'a Pipeline<T>,
}

impl<T> StateDivision for StagedState<'_, T> {
    fn has_whole_model(&self) -> bool {
        false
    }

    /// Buffers that another stage updates get the values of that stage.
    fn gather(
        &self,
        learned: &mut TrainedState<'_>,
        optimizer: &mut dyn Stateful,
        role: GatherRole,
    ) -> Result<Gathered> {
        let &StagedState { ranks, pipeline } = self;
        let (index, host) = (ranks.rank().index, host()?);
        let wants = role == GatherRole::Keeps;
        let mut gathered = Gathered::default();

        let (mut parameters, mut seen, mut buffers) = (Vec::new(), BTreeSet::new(), Vec::new());
        let mut ids = BTreeMap::new();
        learned.visit(&mut |name, parameter| {
            ids.insert(name.to_owned(), parameter.id());
            if seen.insert(parameter.id()) {
                let stage = pipeline.first_stage(parameter.id());
                parameters.push((stage, parameter.clone()));
            }
        });
        learned.visit_buffers(&mut |_, buffer| {
            if !buffer.is_constant() {
                buffers.push((pipeline.stage_of_buffer(buffer.id()), buffer.value().clone()));
            }
        });
        for (stage, parameter) in parameters {
            let own = if stage == index { parameter.value().to_bytes()? } else { Vec::new() };
            let bytes = ranks.exchange(&own)?.swap_remove(stage);
            if wants && parameter.is_elsewhere() {
                let (shape, dtype) = (*parameter.value().shape(), parameter.value().dtype());
                let whole = Tensor::from_bytes(&host, shape, dtype, &bytes)?;
                gathered.parameters.insert(parameter.id(), whole);
            }
        }
        for (stage, mut buffer) in buffers {
            let own = if stage == index { buffer.to_bytes()? } else { Vec::new() };
            let bytes = ranks.exchange(&own)?.swap_remove(stage);
            if stage != index {
                buffer.set_bytes_(&bytes)?;
            }
        }

        let own = optimizer.state(learned)?.tensors;
        let named = |(name, state): (&String, &Tensor)| -> Named {
            (name.clone(), state.dtype().to_string(), state.shape().to_vec())
        };
        let said: Vec<Named> = own.iter().map(named).collect();
        let said = ranks.exchange(&serde_json::to_vec(&said).expect("plain values"))?;
        let mut of_ranks: BTreeMap<String, (usize, Named)> = BTreeMap::new();
        for (rank, words) in said.iter().enumerate() {
            let named: Vec<Named> = serde_json::from_slice(words).map_err(|error| {
                RanksError::Aborted { rank, reason: format!("it named no states: {error}") }
            })?;
            for state in named {
                of_ranks.entry(state.0.clone()).or_insert((rank, state));
            }
        }
        for (name, (rank, (_, dtype, shape))) in of_ranks {
            let bytes = match own.get(&name).filter(|_| rank == index) {
                Some(state) => state.to_bytes()?,
                None => Vec::new(),
            };
            let bytes = ranks.exchange(&bytes)?.swap_remove(rank);
            let dtype = DType::ALL.into_iter().find(|of_all| of_all.to_string() == dtype);
            if let (true, Some(dtype)) = (wants, dtype) {
                let whole = Tensor::from_bytes(&host, &shape[..], dtype, &bytes)?;
                gathered.states.push((name, whole));
            }
        }
        sort_as_optimizer(&mut gathered, &ids, optimizer, &own);
        Ok(gathered)
    }
}

/// Sorts states into the order of an optimizer of the whole model: by the age of the parameter, and
/// for one parameter in the order of this stage's optimizer.
fn sort_as_optimizer(
    gathered: &mut Gathered,
    ids: &BTreeMap<String, LeafId>,
    optimizer: &mut dyn Stateful,
    own: &BTreeMap<String, Tensor>,
) {
    let mut kinds = Vec::new();
    optimizer.visit_state(&mut |state| {
        let name = own.iter().find(|(_, tensor)| tensor.shares_storage(state));
        let kind = name.and_then(|(name, _)| Some(name.rsplit_once('.')?.1.to_owned()));
        kinds.extend(kind.filter(|kind| !kinds.contains(kind)));
    });
    gathered.states.sort_by_key(|(name, _)| {
        let (parameter, kind) = name.rsplit_once('.').unwrap_or(("", name));
        let place = kinds.iter().position(|of_own| of_own == kind);
        (ids.get(parameter).copied(), place)
    });
}
