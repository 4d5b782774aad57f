//! `lowtide export`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use lowtide_nn::{Parameters, adapted, merge, save_adapters};
use lowtide_pretrained::{
    Config, GgufOptions, GgufType, OnnxOptions, OnnxType, export_piece_len, save, save_gguf,
    save_onnx,
};
use lowtide_tensor::{DType, Device, Tensor};
use lowtide_trainer::{Result, TrainError, TrainedState, partial_folder, remove_folder};

use crate::command::capacity::Capacity;
use crate::command::process::ENCODED_BYTES_PER_ELEMENT;
use crate::command::trained::Trained;
use crate::command::{DeviceArgs, say};
use crate::human::format_bytes;
use crate::recipe::FewBits;

#[derive(Args, Clone)]
pub(super) struct ExportArgs {
    /// The folder of a run of a pretrained model, or of a model, or a model's name in the hub's
    /// local cache.
    model: PathBuf,
    /// The folder to create, or the file with gguf; nothing of that name may exist.
    out: PathBuf,
    /// The format of the output.
    #[arg(long, value_enum, default_value = "safetensors")]
    format: Format,
    /// The type of the weights; the model's own if absent.
    #[arg(long = "type", value_enum, value_name = "TYPE")]
    kind: Option<Kind>,
    #[command(flatten)]
    device: DeviceArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// The whole model for transformers, with its adapters merged into the weights.
    Safetensors,
    /// The adapters alone, for PEFT.
    Peft,
    /// The whole model with its tokenizer in one file, for llama.cpp.
    Gguf,
    /// The model's operations in f32 or f16, for onnxruntime, and its tokenizer.
    Onnx,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// 32 bits.
    F32,
    /// 16 bits, with the fractions of f16.
    F16,
    /// 16 bits, with the range of f32.
    Bf16,
    /// Blocks of 32 in 8.5 bits each.
    #[value(name = "q8_0")]
    Q8_0,
    /// Blocks of 32 in 4.5 bits each.
    #[value(name = "q4_0")]
    Q4_0,
    /// Rows in 8 bits for bitsandbytes: a base model for training adapters.
    Int8,
    /// QLoRA's 4 bits for bitsandbytes: a base model for training adapters.
    Nf4,
}

/// Size above which the weights are split into several files, as hubs ask for.
const SHARD_BYTES: u64 = 5_000_000_000;

/// Bytes of the process for a byte of `tokenizer.json` while its tokens are written: 8 for a
/// compact file of 128,000 tokens (2026-11-30, x86-64), and a reserve.
const TOKENIZER_BYTES_PER_BYTE: usize = 12;

/// Files of a model besides its weights and its configuration.
const COMPANIONS: [&str; 8] = [
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
];

pub(super) fn run(arguments: &ExportArgs) -> Result<()> {
    let ExportArgs { out, format, kind, device, .. } = arguments;
    let file = |source| TrainError::File { path: out.clone(), source };
    if out.symlink_metadata().is_ok() {
        return Err(file(io::ErrorKind::AlreadyExists.into()));
    }
    match (format, kind) {
        (Format::Onnx, Some(Kind::F32 | Kind::F16)) | (_, None) => {}
        (Format::Onnx, _) => return Err(wrong("--type", "is f32 or f16 in onnx files")),
        (Format::Gguf, Some(Kind::Int8 | Kind::Nf4)) => {
            return Err(wrong("--type", "is f32, f16, bf16, q8_0 or q4_0 in gguf files"));
        }
        (Format::Safetensors, Some(Kind::Int8 | Kind::Nf4)) | (Format::Gguf, _) => {}
        (Format::Safetensors, _) => {
            let problem = "is int8 or nf4 in safetensors; other types are --format gguf's";
            return Err(wrong("--type", problem));
        }
        (Format::Peft, _) => {
            return Err(wrong("--type", "is that of the adapters in PEFT's files"));
        }
    }
    let device = device.open(device.process_budget())?;
    let capacity = Capacity::of_opened(&device, &arguments.device);
    capacity.admit(&device, None, |sim| rehearse(arguments, sim))?;
    let beside = partial_folder(out).ok_or_else(|| file(io::ErrorKind::InvalidFilename.into()))?;
    // Files that a killed process left there are useless.
    remove_folder(&beside).map_err(file)?;
    let written = write(arguments, &beside, &device).and_then(|written| {
        fs::rename(&written.path, out).map_err(file)?;
        Ok(written)
    });
    // The folder is empty after its only file was moved out. Otherwise the first error is reported.
    drop(remove_folder(&beside));
    let Written { notes, size_bytes, .. } = written?;
    notes.iter().try_for_each(|note| say(note))?;
    say(&format!("{} has the model, {}", out.display(), format_bytes(size_bytes)))
}

fn wrong(place: &str, problem: &str) -> TrainError {
    TrainError::Setting { place: place.to_owned(), problem: problem.to_owned() }
}

/// The written files, and their temporary path.
struct Written {
    path: PathBuf,
    size_bytes: u64,
    /// Notes on unexpected properties of the files.
    notes: Vec<String>,
}

/// Writes all files of the model into `folder`.
fn write(arguments: &ExportArgs, folder: &Path, device: &Device) -> Result<Written> {
    let &ExportArgs { format, kind, .. } = arguments;
    let file = |source| TrainError::File { path: folder.to_owned(), source };
    fs::create_dir_all(folder).map_err(file)?;
    let (mut path, mut notes) = (folder.to_owned(), Vec::new());
    let Trained { config, mut model, lora, base } = made(arguments, device)?;
    match format {
        Format::Peft => {
            let place = arguments.model.display().to_string();
            let lora = lora.ok_or_else(|| wrong(&place, "has no adapters"))?;
            save_adapters(&mut model, &lora, Some(&base), folder)?;
        }
        Format::Safetensors => {
            save(&mut model, folder, SHARD_BYTES)?;
            config.save(folder)?;
            companions(config.folder(), folder)?;
        }
        Format::Gguf => {
            let name = Path::new(&base).file_name().map(|name| name.to_string_lossy().into_owned());
            let options = GgufOptions { tensor_type: kind.and_then(Kind::of_gguf), name };
            path = folder.join("model.gguf");
            let told = save_gguf(&mut model, &config, &path, &options)?;
            notes.extend(told.iter().map(|note| format!("note: {note}")));
        }
        Format::Onnx => {
            let tensor_type = match kind {
                Some(Kind::F16) => Some(OnnxType::F16),
                Some(_) => Some(OnnxType::F32),
                None => None,
            };
            save_onnx(&mut model, &config, folder, &OnnxOptions { tensor_type })?;
            config.save(folder)?;
            companions(config.folder(), folder)?;
        }
    }
    let entries = fs::read_dir(folder).map_err(file)?;
    let sizes = entries.map(|entry| Ok(entry?.metadata()?.len()));
    let size_bytes = sizes.sum::<io::Result<u64>>().map_err(file)?;
    Ok(Written { path, size_bytes, notes })
}

/// The model as it is written.
fn made(arguments: &ExportArgs, device: &Device) -> Result<Trained> {
    let &ExportArgs { ref model, format, kind, .. } = arguments;
    match (format, kind.and_then(Kind::few_bits)) {
        (Format::Peft, _) => Trained::open(model, device),
        (Format::Safetensors, Some(bits)) => in_few_bits(model, bits, device),
        (Format::Safetensors | Format::Gguf | Format::Onnx, _) => merged(model, device),
    }
}

/// Makes the model on a simulated device, and takes the memory of the device that writing takes.
/// Returns the bytes of the process that are taken beside the device.
fn rehearse(arguments: &ExportArgs, sim: &Device) -> Result<usize> {
    let mut made = made(arguments, sim)?;
    let encoding_bytes = made.encoding_bytes();
    let trained_bytes: usize = TrainedState::without_frozen(&mut made.model).bytes().iter().sum();
    let (mut largest_bytes, piece_len) = (0, export_piece_len(&mut made.model));
    made.model.visit_tensors(&mut |_, tensor| {
        largest_bytes = largest_bytes.max(tensor.size_bytes());
    });
    let [device_bytes, process_bytes] = match arguments.format {
        // The file is made in memory, and each tensor is copied twice on its way there.
        Format::Peft => [0, 3 * trained_bytes],
        // A tensor is transposed on the device, and copied twice.
        Format::Safetensors => [largest_bytes, 2 * largest_bytes],
        Format::Gguf => {
            let tokenizer = made.config.folder().join("tokenizer.json");
            let tokenizer_bytes = fs::metadata(tokenizer).map_or(0, |file| file.len() as usize);
            let process_bytes = piece_len * ENCODED_BYTES_PER_ELEMENT;
            [16 * piece_len, process_bytes + TOKENIZER_BYTES_PER_BYTE * tokenizer_bytes]
        }
        Format::Onnx => [16 * piece_len, piece_len * ENCODED_BYTES_PER_ELEMENT],
    };
    drop(Tensor::empty(sim, [device_bytes], DType::U8)?);
    Ok(encoding_bytes + process_bytes)
}

/// The model in floats, with its adapters merged into the weights. Weights in few bits are read
/// from the floats in the files of the base.
fn merged(model: &Path, device: &Device) -> Result<Trained> {
    let mut trained = Trained::open_in_floats(model, device)?;
    if !adapted(&mut trained.model).is_empty() {
        trained.model.visit(&mut |_, parameter| parameter.unfreeze());
        merge(&mut trained.model)?;
    }
    Ok(trained)
}

/// The [`merged`] model with quantised linear layers. If there is nothing to merge, it is read and
/// quantised part by part.
fn in_few_bits(model: &Path, bits: FewBits, device: &Device) -> Result<Trained> {
    let is_run = Trained::is_run(model);
    let mut trained = if is_run || Config::open(model)?.quantization().is_some() {
        merged(model, device)?
    } else {
        Trained::of_model(model, device, |part| bits.quantize(part))?
    };
    bits.quantize(&mut trained.model)?;
    let config = trained.config.with_quantization(Some(bits.format()));
    trained.config = config.expect("int8 and nf4 have an entry");
    Ok(trained)
}

/// Copies the files of a model besides its weights and its configuration.
fn companions(from: &Path, to: &Path) -> Result<()> {
    for name in COMPANIONS {
        let path = from.join(name);
        if path.is_file() {
            let copied = fs::copy(&path, to.join(name));
            copied.map_err(|source| TrainError::File { path, source })?;
        }
    }
    Ok(())
}

impl Kind {
    fn few_bits(self) -> Option<FewBits> {
        match self {
            Kind::Int8 => Some(FewBits::Int8),
            Kind::Nf4 => Some(FewBits::Nf4),
            _ => None,
        }
    }

    fn of_gguf(self) -> Option<GgufType> {
        match self {
            Kind::F32 => Some(GgufType::F32),
            Kind::F16 => Some(GgufType::F16),
            Kind::Bf16 => Some(GgufType::Bf16),
            Kind::Q8_0 => Some(GgufType::Q8_0),
            Kind::Q4_0 => Some(GgufType::Q4_0),
            Kind::Int8 | Kind::Nf4 => None,
        }
    }
}
