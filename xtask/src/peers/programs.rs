//! The programs of a comparison: their modes, their commands, and the order of measurements.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::program::Program;
use super::{Options, STEP, Sample};
use crate::workspace;

/// The networks of whole steps.
const NETWORKS: &[&str] = &[
    "resnet18",
    "vgg11",
    "mobilenet-v2",
    "convnext",
    "densenet",
    "unet",
    "dcgan",
    "wavenet",
    "bert",
    "gpt2",
    "llama",
    "lstm",
];

/// The networks without images, which have one memory layout.
const OF_SEQUENCES: &[&str] = &["wavenet", "bert", "gpt2", "llama", "lstm"];

/// PyTorch's modes for operations and for steps.
const OPERATION_MODES: &[&str] = &["eager", "channels-last", MKL_AVX512];
const STEP_MODES: &[&str] = &["eager", "fused", "channels-last", COMPILED, MKL_AVX512];

/// The mode with a compiler in the process, whose memory would count as memory of the steps.
const COMPILED: &str = "compiled";

/// The mode that makes MKL use AVX-512 on CPUs of other makers, where MKL uses AVX2 at most.
/// PyTorch runs "eager" for operations and "fused" for steps.
pub(super) const MKL_AVX512: &str = "mkl-avx512";

pub(super) struct Programs<'a> {
    /// lowtide's program.
    pub(super) own: PathBuf,
    /// The Python with PyTorch, and the folder of its scripts.
    pub(super) python: PathBuf,
    pub(super) scripts: PathBuf,
    /// The library that overrides MKL's check of the CPU; `None` leaves the mode out.
    pub(super) mkl_answer: Option<PathBuf>,
    pub(super) options: &'a Options,
}

/// Builds a library that is loaded before MKL and reports an Intel CPU. `None` if MKL uses all
/// instructions anyway. `None` without a C compiler, which is printed.
pub(super) fn mkl_answer(root: &Path) -> Result<Option<PathBuf>, String> {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    if cpu.contains("GenuineIntel") || !cpu.contains(" avx512f ") {
        return Ok(None);
    }
    let library = workspace::target(root).join("mkl_avx512.so");
    let source = root.join("nn/examples/peer/mkl_avx512.c");
    match Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).status() {
        Ok(status) if status.success() => Ok(Some(library)),
        Ok(status) => Err(format!("cc: {status}")),
        Err(error) => {
            println!("left out: {MKL_AVX512}, for cc does not start: {error}");
            Ok(None)
        }
    }
}

/// The names of the selected operations.
pub(super) fn operations(own: &Path, options: &Options) -> Result<Vec<String>, String> {
    let mut list = Command::new(own);
    list.args(["sweep", &options.threads.to_string(), "--only", &options.only, "--list"]);
    let output = list.output().map_err(|error| format!("lowtide does not start: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

/// The networks whose steps are selected.
pub(super) fn networks(options: &Options) -> impl Iterator<Item = &'static str> {
    NETWORKS.iter().copied().filter(|network| format!("{STEP}{network}").contains(&options.only))
}

impl Programs<'_> {
    fn lowtide(&self, what: &str) -> Command {
        let Options { threads, dtype, .. } = self.options;
        let mut command = Command::new(&self.own);
        command.args([what, &threads.to_string(), "--dtype", dtype]);
        command
    }

    /// True if a mode of PyTorch makes a difference for an operation or a network.
    fn is_other(&self, mode: &str, name: &str) -> bool {
        let is_of_sequences = OF_SEQUENCES.contains(&name);
        match mode {
            "channels-last" => !is_of_sequences,
            // PyTorch does not use MKL for convolutions, formulas and half types.
            MKL_AVX512 if self.mkl_answer.is_some() && self.options.dtype == "f32" => {
                is_of_sequences || name.contains(" linear ") || name.contains(" attention ")
            }
            MKL_AVX512 => false,
            _ => true,
        }
    }

    /// The command of PyTorch's `script` in a mode, for the operation or network `what`.
    fn pytorch(&self, script: &str, what: Option<&str>, mode: &str) -> Command {
        let Options { threads, dtype, .. } = self.options;
        let mut command = Command::new(&self.python);
        let mode = match (mode, &self.mkl_answer) {
            (MKL_AVX512, Some(library)) => {
                command.env("LD_PRELOAD", library);
                if what.is_some() { "fused" } else { "eager" }
            }
            _ => mode,
        };
        command.arg(self.scripts.join(script)).args(what).arg(threads.to_string());
        command.args(["--mode", mode, "--dtype", dtype]);
        command
    }

    /// Measures operations: each operation in all programs before the next operation.
    pub(super) fn operations(&self, names: &[String]) -> Result<Vec<Sample>, String> {
        let mut samples = Vec::new();
        if names.is_empty() {
            return Ok(samples);
        }
        let start = |mut command: Command| {
            command.arg("--turns");
            Program::start(command, true)
        };
        let torch = |mode| start(self.pytorch("sweep/torch_sweep.py", None, mode));
        let mut programs = vec![(None, start(self.lowtide("sweep"))?)];
        for &mode in OPERATION_MODES {
            if names.iter().any(|name| self.is_other(mode, name)) {
                programs.push((Some(mode), torch(mode)?));
            }
        }
        // The first operation is asked twice. After the first answer a program has started, and its
        // start takes no CPU time from the others.
        for (_, program) in &mut programs {
            program.ask(&names[0])?;
        }
        for (index, name) in names.iter().enumerate() {
            println!("{} of {}: {name}", index + 1, names.len());
            for (mode, program) in &mut programs {
                if mode.is_some_and(|mode| !self.is_other(mode, name)) {
                    continue;
                }
                let answer = program.ask(name)?;
                // A mode that makes no difference for the operation answers with an empty object.
                if answer.as_object().is_none_or(|fields| !fields.is_empty()) {
                    let sample = Sample::of(&answer);
                    let sample = sample.ok_or_else(|| format!("{name}: not a sample: {answer}"))?;
                    samples.push(Sample { peer: peer(*mode), ..sample });
                }
            }
        }
        Ok(samples)
    }

    /// Measures the selected steps: each network in all programs before the next network. With
    /// `is_watched`, the memory is measured too.
    pub(super) fn steps(&self, is_watched: bool) -> Result<Vec<Sample>, String> {
        let mut samples = Vec::new();
        for network in networks(self.options) {
            println!("{STEP}{network}");
            samples.push(self.step(network, None, is_watched)?);
            for &mode in STEP_MODES {
                if self.is_other(mode, network) {
                    samples.push(self.step(network, Some(mode), is_watched)?);
                }
            }
        }
        Ok(samples)
    }

    /// Measures the steps of a network in a mode of PyTorch, or in lowtide.
    fn step(&self, network: &str, mode: Option<&str>, is_watched: bool) -> Result<Sample, String> {
        let command = || match mode {
            None => self.lowtide(&format!("step-{network}")),
            Some(mode) => self.pytorch("steps/torch_steps.py", Some(network), mode),
        };
        let mut peak_mb = None;
        if is_watched && mode != Some(COMPILED) {
            let mut program = Program::start(command(), false)?;
            program.answer()?;
            peak_mb = program.ask_for_memory("")?.1;
        }
        let mut program = Program::start(command(), true)?;
        program.answer()?;
        let (first, timed) = (program.ask("")?, program.ask("")?);
        let losses = first["losses"].as_array().ok_or("no losses")?;
        Ok(Sample {
            peer: peer(mode),
            operation: format!("{STEP}{network}"),
            min_ms: timed["min_ms"].as_f64().ok_or("no time")?,
            // Only the losses before and after the first update: later losses differ between
            // PyTorch's own modes.
            magnitude: losses.iter().take(2).filter_map(Value::as_f64).sum(),
            peak_mb,
        })
    }
}

/// The name of PyTorch in a mode, or `lowtide`.
fn peer(mode: Option<&str>) -> String {
    mode.map_or_else(|| "lowtide".to_owned(), |mode| format!("torch-{mode}"))
}
