//! What all stages of a pipeline have, on one rank: for a checkpoint or a hash.

use std::collections::{BTreeMap, BTreeSet};

use lowtide_nn::Parameters;
use lowtide_nn::optim::Stateful;
use lowtide_ranks::{Collectives, RanksError};
use lowtide_tensor::{CpuOptions, DType, Device, Tensor};

use crate::error::Result;
use crate::learned::Learned;
use crate::task::Task;
use crate::trainer::Trainer;
use crate::zero::Gathered;

/// Name, type and shape of a state.
type Named = (String, String, Vec<usize>);

impl<T: Task + Clone, O: Stateful + Clone> Trainer<T, O> {
    /// Gives what this stage has first, and takes what it does not have, if this rank `wants` it.
    /// Buffers that another stage updates are as there afterwards.
    ///
    /// # Errors
    /// `Ranks`; what a device says of a copy.
    pub(crate) fn gather_stages(&mut self, wants: bool) -> Result<Gathered> {
        let ranks = self.options.ranks.clone().expect("there are several");
        let ranks: &dyn Collectives = &*ranks;
        let pipeline = self.pipeline.as_ref().expect("it is cut");
        let index = ranks.rank().index;
        let host = Device::cpu(CpuOptions { threads: Some(1), ..CpuOptions::default() })?;
        let mut gathered = Gathered::default();

        let (mut parameters, mut seen, mut buffers) = (Vec::new(), BTreeSet::new(), Vec::new());
        let mut ids = BTreeMap::new();
        let mut learned = Learned::of(&mut self.task);
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

        let own = self.optimizer.state(&mut Learned::of(&mut self.task))?.tensors;
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
        self.in_order_of_optimizer(&mut gathered, &ids, &own);
        Ok(gathered)
    }

    /// Puts states in the order in which an optimizer of the whole model shows them: by parameter,
    /// as these were made, and of each as this stage's own.
    fn in_order_of_optimizer(
        &mut self,
        gathered: &mut Gathered,
        ids: &BTreeMap<String, lowtide_autograd::LeafId>,
        own: &BTreeMap<String, Tensor>,
    ) {
        let mut kinds = Vec::new();
        self.optimizer.visit_state(&mut |state| {
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
}
