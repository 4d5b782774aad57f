//! `lowtide eval`.

use std::path::PathBuf;

use clap::Args;
use lowtide_data::Loader;
use lowtide_nn::{Activations, quantize_all, set_activations};
use lowtide_tensor::{Device, DeviceKind};
use lowtide_trainer::{
    Fit, Result, Score, Task, TrainError, TrainedState, evaluate, lock_pages, metric_values,
    rehearse_evaluation,
};

use crate::command::capacity::Capacity;
use crate::command::process::ENCODED_BYTES_PER_ELEMENT;
use crate::command::{DeviceArgs, say};
use crate::recipe::{FewBits, Recipe, RecipeData, Samples};
use crate::run_dir::RunDir;

#[derive(Args)]
pub(super) struct EvalArgs {
    /// The folder of a run.
    run_dir: PathBuf,
    #[command(flatten)]
    device: DeviceArgs,
    /// Quantises the weights of all layers first.
    #[arg(long, value_enum)]
    bits: Option<FewBits>,
    #[command(flatten)]
    activations: ActivationArgs,
    /// Prints one JSON object instead of text.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Args, Clone, Copy)]
pub(super) struct ActivationArgs {
    /// Also quantises the inputs of linear layers to 8 bits, each sample's row by its largest
    /// magnitude, and multiplies integers; for --bits int8 on a CPU.
    #[arg(long)]
    pub(super) int8_activations: bool,
}

impl ActivationArgs {
    /// The name of the flag in errors.
    const PLACE: &str = "--int8-activations";

    /// The number type of the factors in layers whose weights have these bits.
    ///
    /// # Errors
    /// `Setting` if these bits do not allow products of integers.
    pub(super) fn beside(self, bits: Option<FewBits>) -> Result<Activations> {
        match (self.int8_activations, bits) {
            (false, _) => Ok(Activations::Float),
            (true, Some(FewBits::Int8)) => Ok(Activations::Int8),
            (true, _) => Err(wrong_activations("are for weights with --bits int8")),
        }
    }
}

fn wrong_activations(problem: &str) -> TrainError {
    TrainError::Setting { place: ActivationArgs::PLACE.to_owned(), problem: problem.to_owned() }
}

/// The model of a run, and the data to evaluate it on.
pub(super) struct Evaluated {
    device: Device,
    pub(super) task: Box<dyn Task>,
    pub(super) test: Loader,
    batch_size: usize,
    /// Bytes of parameters and buffers in the files of the run, before weights are quantised.
    stored_bytes: usize,
}

impl Evaluated {
    /// Reads the model, and quantises its weights to `bits`, if given.
    ///
    /// # Errors
    /// `Setting` for integer products of a model without such layers, or on a device without such
    /// products; errors of the run's files and of the data; `OutOfMemory`.
    pub(super) fn open(
        run_dir: &RunDir,
        device_arguments: &DeviceArgs,
        bits: Option<FewBits>,
        activations: Activations,
    ) -> Result<Self> {
        let recipe = Recipe::of_run(run_dir)?;
        let device = device_arguments.open(device_arguments.process_budget())?;
        if activations == Activations::Int8 && device.kind() != DeviceKind::Cpu {
            let problem = "are for a CPU; elsewhere --bits int8 alone decodes the weights";
            return Err(wrong_activations(problem));
        }
        let RecipeData { samples, mut test, .. } = recipe.open()?;
        lock_pages(&mut test, &device)?;
        let batch_size = recipe.train.batch_size;
        let model = RunModel { recipe, run_dir, samples, bits, activations };
        let capacity = Capacity::of_opened(&device, device_arguments);
        capacity.admit(&device, Some(&Fit::new(&test)), |sim| model.rehearse(sim, &test))?;
        let (task, stored_bytes) = model.task(&device)?;
        Ok(Evaluated { device, task, test, batch_size, stored_bytes })
    }

    /// Bytes of the parameters and buffers in the evaluated model.
    pub(super) fn model_bytes(&mut self) -> usize {
        model_bytes(&mut *self.task)
    }

    /// # Errors
    /// Errors of the data; `OutOfMemory` if not even one sample fits.
    pub(super) fn score(&self) -> Result<Score> {
        evaluate(&self.task, &self.device, &self.test, self.batch_size)
    }
}

/// The model of a run, and the types in which it is evaluated.
struct RunModel<'a> {
    recipe: Recipe,
    run_dir: &'a RunDir,
    samples: Samples,
    bits: Option<FewBits>,
    activations: Activations,
}

impl RunModel<'_> {
    /// The task with the trained model, and the bytes of the model before it was quantised. On a
    /// simulated device the run's model is not read.
    fn task(&self, device: &Device) -> Result<(Box<dyn Task>, usize)> {
        let &RunModel { ref recipe, run_dir, samples, bits, activations } = self;
        let mut task = recipe.task(device, samples)?;
        if !device.is_simulated() {
            recipe.read_model(run_dir, &mut TrainedState::of(&mut task))?;
        }
        let stored_bytes = model_bytes(&mut *task);
        if let Some(bits) = bits {
            quantize_all(task.parameters(), bits.format())?;
        }
        if activations == Activations::Int8
            && set_activations(task.parameters(), activations).is_empty()
        {
            return Err(wrong_activations("the model has no linear layer in int8"));
        }
        Ok((task, stored_bytes))
    }

    /// Evaluates on a simulated device, and returns the bytes that are copied: the trained state,
    /// and a weight that is quantised.
    fn rehearse(&self, sim: &Device, test: &Loader) -> Result<usize> {
        let (mut task, _) = self.task(sim)?;
        rehearse_evaluation(&task, sim, test)?;
        let state_bytes: usize = TrainedState::of(&mut task).bytes().iter().sum();
        let mut largest_len = 0;
        task.parameters().visit(&mut |_, parameter| {
            largest_len = largest_len.max(parameter.value().element_count());
        });
        let encoded_bytes = self.bits.map_or(0, |_| largest_len * ENCODED_BYTES_PER_ELEMENT);
        Ok(state_bytes + encoded_bytes)
    }
}

fn model_bytes(task: &mut dyn Task) -> usize {
    let mut bytes = 0;
    task.parameters().visit_tensors(&mut |_, tensor| bytes += tensor.size_bytes());
    bytes
}

pub(super) fn run(arguments: &EvalArgs) -> Result<()> {
    let EvalArgs { device, bits, .. } = arguments;
    let activations = arguments.activations.beside(*bits)?;
    let run_dir = RunDir::open(&arguments.run_dir)?;
    let mut evaluated = Evaluated::open(&run_dir, device, *bits, activations)?;
    let (model_bytes, stored_bytes) = (evaluated.model_bytes(), evaluated.stored_bytes);
    let score = evaluated.score()?;
    let (count, scores) = (score.count, [("test".to_owned(), score)]);
    if arguments.json {
        let mut numbers = serde_json::json!(metric_values(&scores));
        numbers["samples"] = (count as u64).into();
        numbers["model_bytes"] = (model_bytes as u64).into();
        numbers["stored_bytes"] = (stored_bytes as u64).into();
        return say(&numbers.to_string());
    }
    for (name, value) in metric_values(&scores) {
        say(&format!("{:<16} {value:.4}", name.replace('_', " ")))?;
    }
    say(&format!("{:<16} {count}", "samples"))?;
    let before = if bits.is_some() { format!(", of {stored_bytes}") } else { String::new() };
    say(&format!("{:<16} {model_bytes}{before}", "model bytes"))
}
