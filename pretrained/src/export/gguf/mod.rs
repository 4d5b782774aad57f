//! GGUF files for llama.cpp and the programs around it: weights, shape and tokenizer of a model in
//! one file.

mod architecture;
mod file;
mod note;
mod tensors;
mod vocabulary;

use std::path::Path;

use lowtide_tensor::DType;

use crate::config::Config;
use crate::decoder::Decoder;
use crate::error::Result;
use crate::export::pieces::sources;
use crate::export::target::Target;
use crate::files::write_new_file;
use architecture::Architecture;
use file::Value;
use tensors::Kinds;

pub use file::GgufType;
pub use note::GgufNote;

/// Options of a GGUF file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GgufOptions {
    /// The type of matrices; if absent, the type of the model's parameters, or the nearest type.
    /// Biases, norms and positions are f32. Rows that are not whole blocks are f16.
    pub tensor_type: Option<GgufType>,
    /// The name of the model in the file; if absent, its folder's name.
    pub name: Option<String>,
}

/// Writes `model` to the file `path`, with the tokenizer and the chat template in the folder of
/// `config`. The file is written under a temporary name first, then renamed. Weights are converted
/// in pieces of a few megabytes.
///
/// Returns notes for the user of the file.
///
/// # Errors
/// `Export` for a model that llama.cpp would compute differently, and for a model with adapters or
/// quantised weights; `File`, `Json`, and `Entry` for a tokenizer that GGUF cannot express;
/// `OutOfMemory`. An earlier file is then untouched.
pub fn save_gguf(
    model: &mut Decoder,
    config: &Config,
    path: impl AsRef<Path>,
    options: &GgufOptions,
) -> Result<Vec<GgufNote>> {
    let shape = model.shape().clone();
    let target = Target { architecture: config.architecture(), format: "GGUF" };
    let architecture = Architecture::of(&shape, target)?;
    let sources = sources(model, shape.parameter_count(), target)?;
    let of_model = sources.first().map_or(DType::F32, |(_, value)| value.dtype());
    let wanted = options.tensor_type.unwrap_or(match of_model {
        DType::F16 => GgufType::F16,
        DType::BF16 => GgufType::Bf16,
        _ => GgufType::F32,
    });
    let (of_shape, mut notes) = architecture.entries(&shape);
    let kinds = Kinds { architecture, matrices: wanted, target };
    let (tensors, of_tensors) = tensors::stored(kinds, &shape, sources)?;
    let (of_tokens, of_vocabulary) = vocabulary::entries(config, shape.vocabulary)?;
    notes.extend(of_tensors);
    notes.extend(of_vocabulary);
    let folder = config.folder().file_name().map(|name| name.to_string_lossy().into_owned());
    let name = options.name.clone().or(folder).unwrap_or_default();
    let mut entries = vec![
        ("general.architecture".to_owned(), Value::Text(architecture.name().to_owned())),
        ("general.type".to_owned(), Value::Text("model".to_owned())),
        ("general.name".to_owned(), Value::Text(name)),
        ("general.file_type".to_owned(), Value::Count(wanted.of_file())),
        // The version of the format of quantised blocks.
        ("general.quantization_version".to_owned(), Value::Count(2)),
    ];
    entries.extend(of_shape);
    entries.extend(of_tokens);
    write_new_file(path.as_ref(), |file| file::write(file, &entries, &tensors))?;
    Ok(notes)
}
