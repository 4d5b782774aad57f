//! A model in another float type: `cargo run --example 01_convert -- org/name OUT [bf16]`.

use std::error::Error;

use lowtide_pretrained::{Config, save};
use lowtide_tensor::{CpuOptions, DType, Device};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (Some(from), Some(to)) = (arguments.first(), arguments.get(1)) else {
        return Err("give a folder or a model of the hub's cache, and a folder to write to".into());
    };
    let dtype = match arguments.get(2).map_or("bf16", String::as_str) {
        "bf16" => DType::BF16,
        "f16" => DType::F16,
        "f32" => DType::F32,
        other => return Err(format!("{other} is none of bf16, f16 and f32").into()),
    };
    let config = Config::open(from)?;
    let device = Device::cpu(CpuOptions::default())?;
    let mut model = config.load(&device, dtype)?;
    save(&mut model, to, 5 << 30)?;
    config.save(to)?;
    println!("{} parameters of {}", config.shape().parameter_count(), config.architecture());
    Ok(())
}
