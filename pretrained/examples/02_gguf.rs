//! A model folder in the format of transformers as a GGUF file: `02_gguf FOLDER FILE [q8_0]`.

use lowtide_pretrained::{Config, GgufOptions, GgufType, save_gguf};
use lowtide_tensor::{CpuOptions, DType, Device};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [from, to, kind @ ..] = &arguments[..] else {
        return Err("usage: 02_gguf FOLDER FILE [f16 | bf16 | q8_0 | q4_0]".into());
    };
    let tensor_type = match kind.first().map(String::as_str) {
        None => None,
        Some("f16") => Some(GgufType::F16),
        Some("bf16") => Some(GgufType::Bf16),
        Some("q8_0") => Some(GgufType::Q8_0),
        Some("q4_0") => Some(GgufType::Q4_0),
        Some(other) => return Err(format!("there is no type {other}").into()),
    };
    let config = Config::open(from)?;
    let device = Device::cpu(CpuOptions::default())?;
    let mut model = config.load(&device, config.dtype().unwrap_or(DType::F32))?;
    let options = GgufOptions { tensor_type, ..Default::default() };
    for note in save_gguf(&mut model, &config, to, &options)? {
        println!("{note}");
    }
    Ok(())
}
