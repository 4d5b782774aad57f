//! Saving a training, restoring a saved training, and comparing two trainings by their hashes.

use std::collections::BTreeMap;
use std::path::Path;

use lowtide_amp::LossScaler;
use lowtide_autograd::LeafId;
use lowtide_nn::optim::{OptimizerState, Stateful};
use lowtide_nn::{Parameters, from_safetensors, to_safetensors};
use lowtide_tensor::Tensor;

use crate::error::{Result, TrainError};
use crate::files::snapshot::{Content, MODEL, OPTIMIZER, Saved, Snapshot};
use crate::files::state_hash::StateHasher;
use crate::files::trained_state::TrainedState;
use crate::parallel::division::{GatherRole, Gathered};
use crate::parallel::meeting::{Word, say};
use crate::parallel::vote::is_of_another;
use crate::parallel::whole::empty_wholes;
use crate::run::trainer::Trainer;
use crate::run::waiting::Patience;
use crate::task::contract::Task;

impl<T: Task + Clone, O: Stateful + Clone> Trainer<T, O> {
    /// Writes a checkpoint: [`Trainer::snapshot`], then [`Snapshot::write`].
    ///
    /// # Errors
    /// Errors of these two methods.
    pub fn save(&mut self, path: &Path) -> Result<()> {
        self.snapshot()?.write(path)
    }

    /// The training as it is now, copied into memory of the process.
    ///
    /// # Errors
    /// `Torn` after a step that was cut off; errors of the device.
    pub fn snapshot(&mut self) -> Result<Snapshot> {
        self.check_whole()?;
        let (state, wholes) = self.whole_state()?;
        let mut learned = TrainedState::of(&mut self.task).with_wholes(wholes);
        let model = to_safetensors(&mut learned)?;
        let optimizer = state.to_safetensors(&mut learned)?;
        let content = Content {
            step: self.step,
            epoch: self.epoch,
            in_epoch: self.in_epoch,
            scaler: self.scaler.state(),
            skipped_in_a_row: self.skipped_in_a_row,
            retried_steps: self.retried_steps,
            ..Content::new(self.options.seed)
        };
        Ok(Snapshot::new(content, model, optimizer))
    }

    /// Bytes that a snapshot takes once the optimizer has its state: the tensors, and room for
    /// their names.
    pub(crate) fn snapshot_bytes(&mut self) -> usize {
        let mut learned = TrainedState::in_size(&mut self.task);
        let [tensor_bytes, name_bytes] = learned.bytes();
        tensor_bytes + name_bytes + self.optimizer.memory(&mut learned).state_bytes
    }

    /// Bytes of process memory that saving or loading a training takes: a snapshot, and two copies
    /// of the largest tensor.
    pub fn copied_bytes(&mut self) -> usize {
        let mut largest_bytes = 0;
        TrainedState::in_size(&mut self.task).visit_tensors(&mut |_, tensor| {
            largest_bytes = largest_bytes.max(tensor.size_bytes());
        });
        self.snapshot_bytes() + 2 * largest_bytes
    }

    /// Restores a snapshot: model, optimizer, loss scaler, counters and position in the data. The
    /// next step is the step that followed the snapshot. A [torn](Trainer::is_torn) trainer is
    /// whole again. The trainer must have been made with the same model and options; micro-batches,
    /// budget and threads may differ.
    ///
    /// # Errors
    /// `Checkpoint` for a snapshot of another training; errors of the model and the optimizer if a
    /// state does not fit; `OutOfMemory`. On an error the trainer is unchanged.
    pub fn restore(&mut self, snapshot: &Snapshot) -> Result<()> {
        self.go_to(&Saved::in_memory(snapshot))
    }

    /// [`Trainer::restore`] from a checkpoint.
    ///
    /// # Errors
    /// Errors of [`Trainer::restore`]; `Checkpoint` with the file if anything is damaged; `File`.
    pub fn load(&mut self, path: &Path) -> Result<()> {
        self.go_to(&Saved::on_disk(path)?)
    }

    fn go_to(&mut self, saved: &Saved<'_>) -> Result<()> {
        let scaler = self.scaler_of(saved)?;
        // Both files are read before anything changes: if one is damaged, nothing has to be undone.
        let (state, model) = (saved.file(OPTIMIZER)?, saved.file(MODEL)?);
        self.divide()?;
        if self.is_to_be_cut() {
            let problem = "the model is cut into stages only after this: plan, or cut, first";
            return Err(saved.of_another(problem));
        }
        let division = self.division.get().state();
        let optimizer = &mut self.optimizer;
        let wholes = empty_wholes(&mut TrainedState::of(&mut self.task))?;
        let learned = &mut TrainedState::of(&mut self.task);
        let before = division.state(optimizer, learned)?;
        division.load_state(optimizer, learned, &state, &saved.path(OPTIMIZER))?;
        let learned = &mut TrainedState::of(&mut self.task).with_wholes(wholes.clone());
        let loaded = from_safetensors(learned, &model, &saved.path(MODEL));
        let learned = &mut TrainedState::of(&mut self.task);
        if let Err(error) = loaded {
            division.set_state(optimizer, learned, before)?;
            return Err(error.into());
        }
        division.take(learned, &wholes)?;
        drop(division);
        self.scaler = scaler;
        let content = &saved.content;
        self.step = content.step;
        (self.epoch, self.in_epoch) = content.place();
        (self.skipped_in_a_row, self.retried_steps) =
            (content.skipped_in_a_row, content.retried_steps);
        self.torn = None;
        // The restored optimizer may have state; the old plan may have begun without it.
        self.plan = None;
        Ok(())
    }

    /// The loss scaler of a saved training.
    ///
    /// # Errors
    /// `Checkpoint` if the saved training is another one.
    fn scaler_of(&self, saved: &Saved<'_>) -> Result<LossScaler> {
        let content = &saved.content;
        if content.seed != self.options.seed {
            let (was, is) = (content.seed, self.options.seed);
            return Err(saved.of_another(&format!("its seed is {was}, that of the options {is}")));
        }
        if content.scaler.is_some() != self.scaler.is_enabled() {
            return Err(saved.of_another("one of it and the options scales losses"));
        }
        match content.scaler.map(LossScaler::from_state) {
            Some(scaler) => scaler.map_err(|error| saved.of_another(&error.to_string())),
            None => Ok(LossScaler::disabled()),
        }
    }

    /// # Errors
    /// `Torn` after a step that was cut off, unless another state has been restored.
    pub(crate) fn check_whole(&self) -> Result<()> {
        let torn = |(step, source)| Err(TrainError::Torn { step, source });
        self.torn.clone().map_or(Ok(()), torn)
    }

    /// A hash of everything that a step changes: parameters, buffers, optimizer state, step counts,
    /// loss scale. Two trainings with equal hashes are equal bit for bit.
    ///
    /// # Errors
    /// `ValueUnavailable` on a simulated device; `Ranks` if the state is divided among ranks,
    /// because all ranks have to take part then.
    pub fn state_hash(&mut self) -> Result<u64> {
        let mut hasher = StateHasher::default();
        let mut result = Ok(());
        let mut add = |name: &str, tensor: &Tensor| {
            if result.is_ok() {
                result = hasher.add(name, tensor);
            }
        };
        let gathered = self.gathered_if_divided()?;
        let (states, wholes) = gathered.map_or((None, BTreeMap::new()), |gathered| {
            (Some(gathered.states), gathered.parameters)
        });
        let mut learned = TrainedState::of(&mut self.task).with_wholes(wholes);
        learned.visit_tensors(&mut |name, tensor| add(name, tensor));
        match states {
            None => self.optimizer.visit_state(&mut |tensor| add("state", tensor)),
            Some(states) => states.iter().for_each(|(_, tensor)| add("state", tensor)),
        }
        result?;
        let scale = u64::from(self.scaler.scale().to_bits());
        let tracker = u64::from(self.scaler.growth_tracker());
        Ok(hasher.finish(&[self.step, self.optimizer.steps(), scale, tracker]))
    }

    /// Writes the model as a safetensors file, with the parts of all ranks.
    ///
    /// # Errors
    /// `File`; `Ranks`; errors of the device.
    pub fn save_model(&mut self, path: &Path) -> Result<()> {
        let has_whole_model = self.division().state().has_whole_model();
        let wholes = if has_whole_model { BTreeMap::new() } else { self.gathered()?.parameters };
        Ok(lowtide_nn::save(&mut TrainedState::of(&mut self.task).with_wholes(wholes), path)?)
    }

    /// The optimizer's state of all ranks, and the whole parameters if ranks divide them.
    fn whole_state(&mut self) -> Result<(OptimizerState, BTreeMap<LeafId, Tensor>)> {
        let gathered = self.gathered_if_divided()?;
        let state = self.division.get().state();
        let own = state.state(&self.optimizer, &mut TrainedState::of(&mut self.task))?;
        let Some(Gathered { states, parameters }) = gathered else {
            return Ok((own, BTreeMap::new()));
        };
        let tensors = states.into_iter().collect();
        Ok((OptimizerState { tensors, ..own }, parameters))
    }

    /// Whole tensors of all divided state; `None` if this rank has the whole state.
    fn gathered_if_divided(&mut self) -> Result<Option<Gathered>> {
        if self.division().state().has_whole_state() {
            return Ok(None);
        }
        self.gathered().map(Some)
    }

    /// Whole tensors of the state that ranks divide.
    fn gathered(&mut self) -> Result<Gathered> {
        say(self.division().ranks(), Word::Gather)?;
        self.gather(GatherRole::Keeps)
    }

    /// Gathers with all ranks, until every rank has succeeded or one gives up, which lacks memory.
    ///
    /// # Errors
    /// The rank's own error; `Ranks` for an error of another rank.
    fn gather(&mut self, role: GatherRole) -> Result<Gathered> {
        let division = self.division.get();
        let (state, mut patience) = (division.state(), Patience::new(self.options.wait));
        loop {
            let learned = &mut TrainedState::of(&mut self.task);
            let own = state.gather(learned, &mut self.optimizer, role);
            let error = match division.agree_in_calls(own) {
                Err(error) => error,
                gathered => return gathered,
            };
            self.device.allocator().trim();
            let failure = error.out_of_memory();
            let tries_again = is_of_another(&error)
                || failure.is_some_and(|failure| patience.tries_again(failure));
            let wants = if tries_again { Word::Gather } else { Word::Continue };
            if say(division.ranks(), wants)?.contains(&Word::Continue) {
                return Err(error);
            }
        }
    }

    /// Says `own` to all ranks and returns the words of all. As long as a rank asks for the whole
    /// state, this rank first gives its parts and says `own` again.
    ///
    /// # Errors
    /// `Ranks`; errors of the device.
    pub(crate) fn meet(&mut self, own: Word) -> Result<Vec<Word>> {
        loop {
            let words = say(self.division().ranks(), own)?;
            if !words.contains(&Word::Gather) {
                return Ok(words);
            }
            match self.gather(GatherRole::Gives) {
                // The rank that asked goes on without the state.
                Err(error) if is_of_another(&error) || error.out_of_memory().is_some() => {}
                gathered => drop(gathered?),
            }
        }
    }
}
