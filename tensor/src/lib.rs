#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod accelerator;
mod axis;
mod copy_ahead;
mod copy_stream;
mod cost;
mod cpu;
mod create;
#[cfg(feature = "cuda")]
pub mod cuda;
mod device;
mod dtype;
mod error;
mod launch;
mod layout;
mod mapped;
pub mod npy;
mod operand_view;
mod ops;
mod print;
mod random;
mod rates;
mod read;
mod sim;
mod spec;
mod storage;
mod tensor;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;
mod transfer;
mod views;
mod watch;
mod write_mode;

pub use axis::Axis;
pub use copy_ahead::CopyAhead;
pub use cost::{Cost, OpClass};
pub use cpu::Cpu;
pub use device::{CpuOptions, Device};
pub use dtype::{Bool, DType, Element, Float, Value};
pub use error::{DeviceLabel, TensorError, TensorResult};
pub use half::{bf16, f16};
pub use launch::{Kernel, Operands};
pub use layout::{IntoShape, Layout, RANK_MAX, Shape};
pub use mapped::MappedFile;
pub use operand_view::{View, ViewMut};
pub use ops::attention::{
    Attention, AttentionDropout, AttentionOptions, AttentionWorkspace, Causal,
};
pub use ops::avg_pool2d::{AvgPool, Divisor};
pub use ops::batch_norm::{BatchNorm, BatchNormBackward, Statistics};
pub use ops::conv2d::{
    Conv1dGeometry, Conv2dGeometry, Conv2dWorkspace, ConvTranspose1dGeometry,
    ConvTranspose2dGeometry,
};
pub use ops::cross_entropy::{CrossEntropy, Labelling};
pub use ops::dropout::Dropout;
pub use ops::elementwise::closeness::{Closeness, Replacements};
pub use ops::finite::{RunningCheck, scale_and_check_finite, squared_norm};
pub use ops::indexing::{Arrival, Existing, ScatterReduction};
pub use ops::linear_cross_entropy::{
    LinearCrossEntropy, LinearCrossEntropyOptions, linear_cross_entropy_workspace_bytes,
};
pub use ops::matmul::addend::Scales;
pub use ops::max_pool2d::{MaxPool, Pool1dGeometry, Pool2dGeometry};
pub use ops::norm::{Normalized, NormalizedBackward};
pub use ops::pair_loss::PairLoss;
pub use ops::quantize::{NF4_VALUES, QuantFormat, QuantPart, Quantized};
pub use ops::random::Draw;
pub use ops::rearrange::PadMode;
pub use ops::rotary::RotaryPairs;
pub use ops::search::Side;
pub use ops::sort::SortOrder;
pub use ops::sort::quantile::{NanRule, QuantilePlaces, QuantileRule};
pub use ops::statistics::Covariance;
pub use ops::statistics::combined::MatrixNorm;
pub use ops::unique::{Unique, UniqueOptions};
pub use ops::update::{
    AdamUpdate, KnownFormula, KnownNorms, NormFormula, Rounding, SgdUpdate, StateRange,
    TensorUpdate, UpdateFormula, reserve_updates, update_all_, update_norms_workspace_len,
};
pub use ops::upsample2d::{Corners, Interpolation, Resize};
pub use ops::windows::SizeRounding;
pub use random::RandomKey;
pub use rates::{Rate, Rates, SimulatedWork};
pub use sim::Assumption;
pub use spec::{DeviceKind, SimSpec};
pub use tensor::Tensor;
pub use watch::StorageWatch;
