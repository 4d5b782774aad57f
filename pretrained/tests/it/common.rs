use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use lowtide_pretrained::Config;
use lowtide_tensor::{CpuOptions, DType, Device, RandomKey, SimSpec, Tensor};
use safetensors::SafeTensors;

pub(crate) type Outcome<T = ()> = std::result::Result<T, Box<dyn Error>>;

pub(crate) const KEY: RandomKey = RandomKey::new(3);

const BUDGET_BYTES: usize = 64 << 20;

/// The folders of the fixtures with decoders, which `make.py` in that folder has made.
pub(crate) static CASES: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let entries = fs::read_dir(fixtures()).expect("the fixtures are part of the repository");
    let names = entries.map(|entry| entry.expect("a folder's entry").file_name());
    let names = names.map(|name| name.into_string().expect("names are ASCII"));
    let mut cases: Vec<&str> =
        names.filter(|name| is_decoder(name)).map(|name| &*name.leak()).collect();
    cases.sort_unstable();
    assert!(cases.len() >= 14, "decoders are missing: {cases:?}");
    cases
});

fn is_decoder(case: &str) -> bool {
    let Ok(text) = fs::read_to_string(folder(case).join("config.json")) else { return false };
    let is_causal = text.contains("ForCausalLM\"") || text.contains("LMHeadModel\"");
    is_causal && !text.contains("\"quantization_config\"")
}

pub(crate) fn cpu(threads: usize) -> Device {
    let (budget_bytes, threads) = (Some(BUDGET_BYTES), Some(threads));
    let options = CpuOptions { budget_bytes, threads, ..Default::default() };
    Device::cpu(options).expect("the address space for a small budget")
}

pub(crate) fn sim(threads: usize, budget_bytes: usize) -> Device {
    let spec = SimSpec { threads, ..SimSpec::like_this_machine(budget_bytes) };
    Device::sim(spec).expect("a simulation takes nothing")
}

pub(crate) fn small_sim(threads: usize) -> Device {
    sim(threads, BUDGET_BYTES)
}

/// The folder of a case.
pub(crate) fn folder(case: &str) -> PathBuf {
    fixtures().join(case)
}

/// The folder of all cases, also if the tests were carried to another machine.
fn fixtures() -> PathBuf {
    let package = match std::env::var_os("LOWTIDE_TEST_WORKSPACE") {
        Some(workspace) => PathBuf::from(workspace).join("pretrained"),
        None => PathBuf::from(env!("CARGO_MANIFEST_DIR")),
    };
    package.join("tests/fixtures")
}

pub(crate) fn config(case: &str) -> Outcome<Config> {
    Ok(Config::open(folder(case))?)
}

/// The results of transformers for a case.
pub(crate) struct Run(Vec<u8>);

impl Run {
    pub(crate) fn read(case: &str) -> Outcome<Self> {
        Ok(Run(std::fs::read(folder(case).join("run.safetensors"))?))
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        SafeTensors::deserialize(&self.0).is_ok_and(|file| file.tensor(name).is_ok())
    }

    /// The names with this prefix.
    pub(crate) fn names(&self, start: &str) -> Outcome<Vec<String>> {
        let file = SafeTensors::deserialize(&self.0)?;
        let mut names: Vec<String> = file.names().into_iter().map(str::to_owned).collect();
        names.retain(|name| name.starts_with(start));
        Ok(names)
    }

    pub(crate) fn tensor(&self, device: &Device, name: &str) -> Outcome<Tensor> {
        let file = SafeTensors::deserialize(&self.0)?;
        let view = file.tensor(name).map_err(|error| format!("{name}: {error}"))?;
        let dtype = match view.dtype() {
            safetensors::Dtype::F64 => DType::F64,
            safetensors::Dtype::F32 => DType::F32,
            safetensors::Dtype::I64 => DType::I64,
            other => return Err(format!("{name} is of {other:?}").into()),
        };
        Ok(Tensor::from_bytes(device, view.shape(), dtype, view.data())?)
    }

    pub(crate) fn values(&self, name: &str) -> Outcome<Vec<f64>> {
        Ok(self.tensor(&cpu(1), name)?.to_vec::<f64>()?)
    }
}

/// The largest distance of `found` to `expected`, divided by the largest expected size.
pub(crate) fn error(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let size = expected.iter().fold(0.0_f64, |max, x| max.max(x.abs())).max(1e-300);
    let distance = |(x, y): (&f64, &f64)| if x.is_finite() { (x - y).abs() } else { f64::INFINITY };
    found.iter().zip(expected).map(distance).fold(0.0, f64::max) / size
}

pub(crate) fn f64s(tensor: &Tensor) -> Outcome<Vec<f64>> {
    Ok(tensor.to_dtype(DType::F64)?.to_vec::<f64>()?)
}
