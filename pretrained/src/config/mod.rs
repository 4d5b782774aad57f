//! A model's `config.json`: the architecture and the shape.

mod entries;
mod gemma;
mod gpt2;
mod llama;
mod neox;
mod published;
mod quantization;
mod rotary;

use std::path::{Path, PathBuf};

use lowtide_data::{HubCache, HubRepo};
use lowtide_nn::{NnResult, Parameters};
use lowtide_tensor::{DType, Device, QuantFormat, RandomKey};
use serde_json::{Map, Value};

use crate::decoder::{Activation, Decoder, DecoderShape, Weights};
use crate::error::{EntryProblem, PretrainedError, Result};
use crate::files::{read_text, write_beside};
use crate::weights::{Stored, load, load_by_parts};
pub(crate) use entries::Entries;

/// Entries without an effect on the results of a model: initialisation and storage of weights, the
/// tokenizer, names of classes, and settings of other programs.
const IGNORED: [&str; 37] = [
    "_attn_implementation",
    "_name_or_path",
    "_num_labels",
    "architectures",
    "attn_implementation",
    "auto_map",
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "cache_implementation",
    "chunk_size_feed_forward",
    "classifier_dropout",
    "eos_token_id",
    "finetuning_task",
    "gradient_checkpointing",
    "id2label",
    "is_decoder",
    "is_encoder_decoder",
    "is_llama_config",
    "label2id",
    "model_type",
    "output_attentions",
    "output_hidden_states",
    "pad_token_id",
    "pretraining_tp",
    "return_dict",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "task_specific_params",
    "torch_dtype",
    "transformers.js_config",
    "transformers_version",
    "unsloth_version",
    "use_cache",
];

/// An architecture: its name, the `model_type` of files without a name, and the function that reads
/// the entries.
pub(crate) type Architecture<S> = (&'static str, &'static str, fn(&Entries) -> Result<S>);

/// The shape in a configuration, with the type of its model. Only this crate implements the trait.
pub trait Shape: Clone + 'static {
    /// The model of this shape.
    type Model: Stored;

    #[doc(hidden)]
    fn architectures() -> &'static [Architecture<Self>];

    #[doc(hidden)]
    fn model(&self, device: &Device, weights: Weights, dtype: DType) -> Result<Self::Model>;

    /// The model with the weights of a folder.
    #[doc(hidden)]
    fn stored(&self, device: &Device, dtype: DType, folder: &Path) -> Result<Self::Model> {
        let mut model = self.model(device, Weights::Unset, dtype)?;
        load(&mut model, folder)?;
        Ok(model)
    }

    /// Number of elements of all parameters.
    #[doc(hidden)]
    fn count(&self) -> u128;
}

impl Shape for DecoderShape {
    type Model = Decoder;

    fn architectures() -> &'static [Architecture<Self>] {
        &[
            ("LlamaForCausalLM", "llama", llama::llama),
            ("MistralForCausalLM", "mistral", llama::mistral),
            ("Qwen2ForCausalLM", "qwen2", llama::qwen2),
            ("Qwen3ForCausalLM", "qwen3", llama::qwen3),
            ("GemmaForCausalLM", "gemma", gemma::gemma),
            ("Gemma2ForCausalLM", "gemma2", gemma::gemma2),
            ("Gemma3ForCausalLM", "gemma3_text", gemma::gemma3),
            ("GPT2LMHeadModel", "gpt2", gpt2::gpt2),
            ("GPTNeoXForCausalLM", "gpt_neox", neox::neox),
        ]
    }

    fn model(&self, device: &Device, weights: Weights, dtype: DType) -> Result<Decoder> {
        Decoder::new(device, self.clone(), weights, dtype)
    }

    fn stored(&self, device: &Device, dtype: DType, folder: &Path) -> Result<Decoder> {
        load_by_parts(device, self, dtype, folder, |_| Ok(()))
    }

    fn count(&self) -> u128 {
        self.parameter_count()
    }
}

/// The configuration of a model, and the folder of its file.
#[derive(Clone, Debug)]
pub struct ModelConfig<S> {
    folder: PathBuf,
    text: String,
    architecture: &'static str,
    dtype: Option<DType>,
    quantization: Option<QuantFormat>,
    shape: S,
}

/// The configuration of a decoder.
pub type Config = ModelConfig<DecoderShape>;

impl<S: Shape> ModelConfig<S> {
    /// The configuration of the model in the folder `path`. If there is no such folder, `path` is
    /// the name of a model, such as `org/name`, in the [local cache of the hub](HubCache). Nothing
    /// is downloaded.
    ///
    /// # Errors
    /// `NotFound` with the places that were searched, `File`, `Json`, and `Entry` for a damaged
    /// configuration or an unsupported setting.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_in(path.as_ref(), &HubCache::from_environment())
    }

    /// [`ModelConfig::open`] with another cache of the hub.
    ///
    /// # Errors
    /// The errors of [`ModelConfig::open`].
    pub fn open_in(path: &Path, cache: &HubCache) -> Result<Self> {
        if path.is_dir() {
            return Self::read(path, &path.join("config.json"));
        }
        let name = path.display().to_string();
        let found = cache.find(&HubRepo::model(&name), "config.json");
        let file = found.map_err(|source| PretrainedError::NotFound { name, source })?;
        Self::read(file.parent().unwrap_or(path), &file)
    }

    fn read(folder: &Path, file: &Path) -> Result<Self> {
        /// Maximum size of a file, far above any configuration.
        const FILE_BYTES_MAX: u64 = 4 << 20;
        Self::parse(folder, file, read_text(file, FILE_BYTES_MAX)?)
    }

    /// The configuration `text`, as if from a file in `folder`.
    ///
    /// # Errors
    /// The errors of [`ModelConfig::open`], except `NotFound` and `File`.
    pub fn from_text(folder: impl AsRef<Path>, text: impl Into<String>) -> Result<Self> {
        let folder = folder.as_ref();
        Self::parse(folder, &folder.join("config.json"), text.into())
    }

    fn parse(folder: &Path, file: &Path, text: String) -> Result<Self> {
        let entries: Map<String, Value> = serde_json::from_str(&text)
            .map_err(|source| PretrainedError::Json { path: file.to_owned(), source })?;
        let entries = Entries::new(file, &entries);
        let &(architecture, _, parse) = architecture::<S>(&entries)?;
        let (shape, dtype) = (parse(&entries)?, stored_dtype(&entries)?);
        let quantization = quantization::quantization(&entries)?;
        entries.check_all_read(&IGNORED)?;
        check(&entries, &shape)?;
        let folder = folder.to_owned();
        Ok(ModelConfig { folder, text, architecture, dtype, quantization, shape })
    }

    /// The folder of the configuration's file.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The architecture, such as `LlamaForCausalLM`.
    pub fn architecture(&self) -> &'static str {
        self.architecture
    }

    /// The type of the stored model, if the configuration states a type. Load the model in this
    /// type unless there is a reason for another.
    pub fn dtype(&self) -> Option<DType> {
        self.dtype
    }

    /// The format of the weights of linear layers, if the files store quantised weights of
    /// bitsandbytes. [`ModelConfig::load`] then reads only tensors that must be converted: on the
    /// CPU, parameters and codes are [parts of the files](lowtide_tensor::Tensor::from_mapped), and
    /// frozen.
    pub fn quantization(&self) -> Option<QuantFormat> {
        self.quantization
    }

    /// The shape of the model.
    pub fn shape(&self) -> &S {
        &self.shape
    }

    /// The entries as they were read, for entries that only other programs use.
    pub(crate) fn entries(&self) -> Map<String, Value> {
        // The text was parsed when the configuration was made.
        serde_json::from_str(&self.text).unwrap_or_default()
    }

    /// Number of elements of all parameters of the model.
    pub fn parameter_count(&self) -> u128 {
        self.shape.count()
    }

    /// The model with random weights from `key`, in `dtype`, for training from the beginning or for
    /// planning on a simulated device.
    ///
    /// # Errors
    /// `DType` unless a float type, `OutOfMemory`.
    pub fn model(&self, device: &Device, key: RandomKey, dtype: DType) -> Result<S::Model> {
        self.shape.model(device, Weights::Random(key), dtype)
    }

    /// The model with the weights of its folder, converted to `dtype`.
    ///
    /// # Errors
    /// The errors of [`ModelConfig::model`] and of [`load`].
    pub fn load(&self, device: &Device, dtype: DType) -> Result<S::Model> {
        self.shape.stored(device, dtype, &self.folder)
    }

    /// Writes the configuration into `folder` as it was read, apart from a new head or other
    /// weights. The file is written under a temporary name first, then renamed.
    ///
    /// # Errors
    /// `File`; an earlier file is untouched.
    pub fn save(&self, folder: impl AsRef<Path>) -> Result<()> {
        write_beside(&folder.as_ref().join("config.json"), self.text.as_bytes())
    }
}

impl<S: Shape> ModelConfig<S> {
    /// This configuration with a head for `count` classes, which have no names yet. `map` changes
    /// the shape.
    pub(crate) fn with_head(
        self,
        architecture: &'static str,
        count: usize,
        map: impl FnOnce(S) -> S,
    ) -> Self {
        let mut entries = self.entries();
        let name = |class: usize| format!("LABEL_{class}");
        let names = (0..count).map(|class| (class.to_string(), Value::from(name(class))));
        let classes = (0..count).map(|class| (name(class), Value::from(class)));
        entries.insert("id2label".to_owned(), Value::Object(names.collect()));
        entries.insert("label2id".to_owned(), Value::Object(classes.collect()));
        entries.insert("architectures".to_owned(), vec![architecture].into());
        for other in ["num_labels", "_num_labels", "problem_type"] {
            entries.remove(other);
        }
        let text = format!("{:#}\n", Value::Object(entries));
        ModelConfig { text, architecture, shape: map(self.shape), ..self }
    }
}

impl Config {
    /// This configuration with linear layers in `format`, or in floats. `None` for GGUF's formats,
    /// which files of transformers do not have.
    pub fn with_quantization(self, format: Option<QuantFormat>) -> Option<Self> {
        // The text was parsed when the configuration was made.
        let mut entries: Map<String, Value> = serde_json::from_str(&self.text).unwrap_or_default();
        entries.remove(quantization::ENTRY);
        if let Some(format) = format {
            entries.insert(quantization::ENTRY.to_owned(), quantization::entry(format)?);
        }
        let text = format!("{:#}\n", Value::Object(entries));
        Some(ModelConfig { text, quantization: format, ..self })
    }

    /// [`ModelConfig::model`] of a decoder.
    ///
    /// # Errors
    /// The errors of [`Decoder::new`].
    pub fn decoder(&self, device: &Device, key: RandomKey, dtype: DType) -> Result<Decoder> {
        self.model(device, key, dtype)
    }

    /// [`Config::decoder`] that calls `change` with each part, a table or a layer, right after the
    /// part is made. Parameters have the names of the whole model. If `change` makes parts smaller,
    /// the model never exists in full size.
    ///
    /// # Errors
    /// The errors of [`Decoder::new`] and of `change`.
    pub fn decoder_with(
        &self,
        device: &Device,
        key: RandomKey,
        dtype: DType,
        mut change: impl FnMut(&mut dyn Parameters) -> NnResult<()>,
    ) -> Result<Decoder> {
        let weights = Weights::Random(key);
        Decoder::by_parts(device, self.shape.clone(), weights, dtype, &mut |part| Ok(change(part)?))
    }

    /// [`ModelConfig::load`] that calls `change` with each part right after its weights are read;
    /// see [`Config::decoder_with`]. Files and model are compared before the first part is read.
    ///
    /// # Errors
    /// The errors of [`Decoder::new`], of [`load`] and of `change`.
    pub fn load_with(
        &self,
        device: &Device,
        dtype: DType,
        change: impl FnMut(&mut dyn Parameters) -> NnResult<()>,
    ) -> Result<Decoder> {
        load_by_parts(device, &self.shape, dtype, &self.folder, change)
    }
}

/// The architecture of a configuration, by `architectures` or, if absent, by `model_type`.
fn architecture<S: Shape>(entries: &Entries) -> Result<&'static Architecture<S>> {
    let (value, name) = match entries.value("architectures") {
        Some(names) => (names, "architectures"),
        None => match entries.value("model_type") {
            Some(kind) => (kind, "model_type"),
            None => return Err(entries.error("architectures", EntryProblem::Missing)),
        },
    };
    let given = value.get(0).unwrap_or(value).as_str();
    let known = S::architectures()
        .iter()
        .find(|(class, kind, _)| given == Some(if name == "model_type" { kind } else { class }));
    known.ok_or_else(|| entries.unsupported(name, value))
}

/// The type in `dtype`, or in `torch_dtype` of older files.
fn stored_dtype(entries: &Entries) -> Result<Option<DType>> {
    let name = if entries.value("dtype").is_some() { "dtype" } else { "torch_dtype" };
    Ok(match entries.optional_text(name)? {
        None | Some("auto") => None,
        Some("bfloat16") => Some(DType::BF16),
        Some("float16") => Some(DType::F16),
        Some("float32") => Some(DType::F32),
        Some("float64") => Some(DType::F64),
        Some(other) => return Err(entries.unsupported(name, &Value::from(other))),
    })
}

/// The activation of an entry.
pub(crate) fn activation(entries: &Entries, name: &'static str) -> Result<Activation> {
    Ok(match entries.text(name)? {
        "gelu" => Activation::Gelu,
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Activation::GeluTanh,
        "relu" => Activation::Relu,
        "silu" | "swish" => Activation::Silu,
        other => return Err(entries.unsupported(name, &Value::from(other))),
    })
}

/// Checks the shape as a whole, across entries.
fn check<S: Shape>(entries: &Entries, shape: &S) -> Result<()> {
    /// Many times the parameters of the largest model. A larger number is a mistake or an attack.
    const PARAMETERS_MAX: u128 = 1 << 46;
    let count = shape.count();
    if count <= PARAMETERS_MAX {
        Ok(())
    } else {
        let (expected, found) = ("a number of parameters that a model has", count.to_string());
        Err(entries.error("(all)", EntryProblem::Wrong { expected, found }))
    }
}

/// The number of layers. The limit exists because each layer costs memory even on a simulated
/// device.
pub(crate) fn layer_count(entries: &Entries, name: &'static str) -> Result<usize> {
    const LAYERS_MAX: usize = 4096;
    let count = entries.count(name)?;
    if count <= LAYERS_MAX {
        Ok(count)
    } else {
        let (expected, found) = ("at most 4096 layers", count.to_string());
        Err(entries.error(name, EntryProblem::Wrong { expected, found }))
    }
}

/// The width of a head for configurations without an entry for it.
pub(crate) fn head_width(
    entries: &Entries,
    name: &str,
    width: usize,
    heads: usize,
) -> Result<usize> {
    if width.is_multiple_of(heads) {
        Ok(width / heads)
    } else {
        let (expected, found) = ("a divisor of the width", heads.to_string());
        Err(entries.error(name, EntryProblem::Wrong { expected, found }))
    }
}
