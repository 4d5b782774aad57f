//! A decoder as an ONNX graph: `cargo run --example 03_onnx -- org/name OUT [f16]`.

use std::error::Error;

use lowtide_pretrained::{Config, OnnxOptions, OnnxType, save_onnx};
use lowtide_tensor::{CpuOptions, DType, Device};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (Some(from), Some(to)) = (arguments.first(), arguments.get(1)) else {
        return Err("give a folder or a model of the hub's cache, and a folder to write to".into());
    };
    let tensor_type = match arguments.get(2).map(String::as_str) {
        None => None,
        Some("f32") => Some(OnnxType::F32),
        Some("f16") => Some(OnnxType::F16),
        Some(other) => return Err(format!("{other} is none of f32 and f16").into()),
    };
    let config = Config::open(from)?;
    let device = Device::cpu(CpuOptions::default())?;
    let mut model = config.load(&device, config.dtype().unwrap_or(DType::F32))?;
    Ok(save_onnx(&mut model, &config, to, &OnnxOptions { tensor_type })?)
}
