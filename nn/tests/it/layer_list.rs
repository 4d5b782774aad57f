//! A list of layers of every kind, for laws that hold for all layers.

use std::any::type_name;
use std::collections::BTreeSet;
use std::path::Path;

use lowtide_nn::models::{SimpleCnn, SimpleCnnShape};
use lowtide_nn::{
    AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveAvgPool3d, AdaptiveMaxPool1d, AdaptiveMaxPool2d,
    AdaptiveMaxPool3d, AvgPool1d, AvgPool2d, AvgPool3d, BatchNorm1d, BatchNorm2d, BatchNorm3d,
    CellOptions, Conv1d, Conv2d, Conv3d, Conv3dGeometry, ConvTranspose1d, ConvTranspose2d,
    ConvTranspose3d, ConvTranspose3dGeometry, Directions, Dropout, ELU, Flatten, GELU, GLU,
    GroupNorm, Gru, GruCell, Hardshrink, Hardsigmoid, Hardswish, Hardtanh, HiddenActivation,
    InstanceNorm1d, InstanceNorm2d, InstanceNorm3d, LayerNorm, LeakyReLU, Linear, LogSigmoid,
    LogSoftmax, Lstm, LstmCell, MaxPool1d, MaxPool2d, MaxPool3d, Mish, Module, MultiHeadAttention,
    MultiHeadOptions, NnResult as Result, NormPlace, PReLU, Pad, Pool3dGeometry, ReLU, ReLU6,
    RecurrentOptions, RmsNorm, Rnn, RnnActivation, RnnCell, RotaryEmbedding, RotaryPairs, SELU,
    Sequential, SiLU, Sigmoid, Softmax, Softmin, Softplus, Softshrink, Softsign, SpectralNorm,
    Tanh, TanhGELU, Tanhshrink, Threshold, TransformerEncoder, TransformerEncoderLayer,
    TransformerOptions, Upsample, WeightNorm,
};
use lowtide_tensor::{
    AvgPool, Causal, Conv1dGeometry, Conv2dGeometry, ConvTranspose1dGeometry,
    ConvTranspose2dGeometry, Corners, Device, Interpolation, PadMode, Pool1dGeometry,
    Pool2dGeometry, Resize,
};

use crate::common::{KEY, cpu};

pub(crate) const CNN: SimpleCnnShape = SimpleCnnShape { image: [2, 5, 4], channels: 3, classes: 4 };

/// A layer, with the shapes of an input and of its output.
pub(crate) struct Layer {
    /// Type of the layer.
    pub(crate) kind: &'static str,
    pub(crate) module: Box<dyn Module>,
    pub(crate) input: Vec<usize>,
    pub(crate) output: Vec<usize>,
}

fn layer<M: Module + 'static>(
    module: M,
    input: impl Into<Vec<usize>>,
    output: impl Into<Vec<usize>>,
) -> Layer {
    let name = type_name::<M>().split('<').next().expect("a name");
    let kind = name.rsplit("::").next().expect("a name");
    Layer { kind, module: Box::new(module), input: input.into(), output: output.into() }
}

/// A layer whose output has the shape of the input.
fn same<M: Module + 'static>(module: M, shape: impl Into<Vec<usize>>) -> Layer {
    let shape = shape.into();
    layer(module, shape.clone(), shape)
}

/// Layers of every kind, some with several options.
pub(crate) fn all(device: &Device) -> Result<Vec<Layer>> {
    let chain = Sequential::new()
        .then(Linear::new(device, KEY.op("0"), 6, 5)?)
        .then(ReLU)
        .then(Linear::without_bias(device, KEY.op("2"), 5, 2)?);
    let mut layers = vec![
        layer(Linear::new(device, KEY, 6, 4)?, [3, 6], [3, 4]),
        layer(Linear::new(device, KEY, 6, 4)?, [2, 2, 6], [2, 2, 4]),
        layer(Linear::without_bias(device, KEY, 6, 4)?, [3, 6], [3, 4]),
        layer(Flatten, [2, 3, 4, 5], [2, 60]),
        layer(chain, [3, 6], [3, 2]),
        same(Sequential::new(), [3, 6]),
        layer(SimpleCnn::new(device, KEY, CNN)?, [2, 2, 5, 4], [2, 4]),
        same(Dropout::new(0.3)?, [3, 4]),
    ];
    layers.extend(convolutions(device)?);
    layers.extend(pools());
    layers.extend(normalizations(device)?);
    layers.extend(of_sequences(device)?);
    layers.extend(activations(device)?);
    Ok(layers)
}

fn convolutions(device: &Device) -> Result<Vec<Layer>> {
    let walked1d = Conv1dGeometry { stride: 2, padding: 1, dilation: 2, groups: 2 };
    let grouped =
        Conv2dGeometry { stride: [2, 1], padding: [1, 0], groups: 2, ..Default::default() };
    let transposed = ConvTranspose2dGeometry {
        stride: [2, 1],
        padding: [1, 0],
        output_padding: [1, 0],
        groups: 2,
        ..Default::default()
    };
    let plain = Conv2dGeometry::default();
    let plain_transposed = ConvTranspose2dGeometry::default();
    let conv = |geometry| Conv2d::new(device, KEY, [2, 4], [3, 2], geometry);
    let conv1d = Conv1d::new(device, KEY, [2, 4], 3, Conv1dGeometry::default())?;
    let conv1d_walked = Conv1d::without_bias(device, KEY, [2, 4], 2, walked1d)?;
    let conv1d_reflecting = Conv1d::new(device, KEY, [2, 4], 2, walked1d)?;
    let conv1d_reflecting = conv1d_reflecting.with_padding_mode(PadMode::Reflect);
    let conv1d_same = Conv1d::new(device, KEY, [2, 4], 4, Conv1dGeometry::default())?;
    let conv1d_same = conv1d_same.with_same_padding()?.with_padding_mode(PadMode::Replicate);
    let circular = conv(grouped)?.with_padding_mode(PadMode::Circular);
    let same_size = conv(plain)?.with_same_padding()?;
    let volume = Conv3d::new(device, KEY, [2, 4], [2; 3], Conv3dGeometry::default())?;
    let walked3d =
        Conv3dGeometry { stride: [2, 1, 1], padding: [1, 1, 0], dilation: [2, 1, 1], groups: 2 };
    let volume_walked = Conv3d::without_bias(device, KEY, [2, 4], [3, 3, 1], walked3d)?;
    let transposed1d = ConvTranspose1dGeometry { stride: 2, padding: 1, ..Default::default() };
    let transposed1d = ConvTranspose1d::new(device, KEY, [2, 4], 3, transposed1d)?;
    let transposed3d =
        ConvTranspose3dGeometry { stride: [2, 1, 1], padding: [1, 0, 0], ..Default::default() };
    let transposed3d = ConvTranspose3d::new(device, KEY, [2, 4], [3, 1, 2], transposed3d)?;
    let linear = Linear::new(device, KEY, 6, 4)?;
    let without_bias = Conv2d::without_bias(device, KEY, [2, 4], [1, 2], plain)?;
    let transposed = ConvTranspose2d::new(device, KEY, [2, 4], [3, 2], transposed)?;
    let transposed_without_bias =
        ConvTranspose2d::without_bias(device, KEY, [2, 3], [1, 2], plain_transposed)?;
    Ok(vec![
        layer(conv(plain)?, [2, 2, 5, 4], [2, 4, 3, 3]),
        layer(conv(grouped)?, [2, 2, 5, 4], [2, 4, 3, 3]),
        layer(without_bias, [1, 2, 2, 3], [1, 4, 2, 2]),
        layer(conv1d, [2, 2, 7], [2, 4, 5]),
        layer(conv1d_walked, [2, 2, 7], [2, 4, 4]),
        layer(conv1d_reflecting, [2, 2, 7], [2, 4, 4]),
        layer(conv1d_same, [2, 2, 7], [2, 4, 7]),
        layer(circular, [2, 2, 5, 4], [2, 4, 3, 3]),
        layer(same_size, [2, 2, 5, 4], [2, 4, 5, 4]),
        layer(volume, [2, 2, 5, 4, 3], [2, 4, 4, 3, 2]),
        layer(volume_walked, [1, 2, 5, 4, 3], [1, 4, 2, 4, 3]),
        layer(transposed1d, [2, 2, 4], [2, 4, 7]),
        layer(transposed3d, [1, 2, 3, 2, 2], [1, 4, 5, 2, 3]),
        layer(SpectralNorm::new(conv(grouped)?, KEY.op("spectral"))?, [1, 2, 5, 4], [1, 4, 3, 3]),
        layer(WeightNorm::new(conv(grouped)?)?, [1, 2, 5, 4], [1, 4, 3, 3]),
        layer(WeightNorm::along(linear, 1)?, [3, 6], [3, 4]),
        layer(transposed, [1, 2, 3, 2], [1, 4, 6, 3]),
        layer(transposed_without_bias, [1, 2, 3, 2], [1, 3, 3, 3]),
    ])
}

/// Pools and resizing layers.
fn pools() -> Vec<Layer> {
    let padded = Pool2dGeometry { kernel: [2, 3], stride: [1, 2], padding: [1, 1] };
    let line = Pool1dGeometry { kernel: 3, stride: 2, padding: 1 };
    let boxes = Pool3dGeometry { kernel: [2, 3, 1], stride: [1, 2, 1], padding: [1, 1, 0] };
    let mean = AvgPool2d { window: padded, options: AvgPool::default() };
    let smooth = Interpolation::Bilinear(Corners::Centers);
    let resize = Upsample { size: Resize::To([3, 7]), interpolation: smooth };
    let image = [2, 2, 5, 4];
    vec![
        layer(Pad::zeros(&[[1, 0], [0, 2]]), image, [2, 2, 6, 6]),
        layer(Pad { amounts: vec![[2, 1]], mode: PadMode::Reflect }, image, [2, 2, 5, 7]),
        layer(MaxPool3d(Pool3dGeometry::cube(2)), [1, 2, 4, 5, 4], [1, 2, 2, 2, 2]),
        layer(
            AvgPool3d { window: boxes, options: AvgPool::default() },
            [1, 2, 4, 5, 4],
            [1, 2, 5, 3, 4],
        ),
        layer(MaxPool2d::square(2), image, [2, 2, 2, 2]),
        layer(MaxPool2d(padded), image, [2, 2, 6, 2]),
        layer(AvgPool2d::square(2), image, [2, 2, 2, 2]),
        layer(mean, image, [2, 2, 6, 2]),
        layer(MaxPool1d(line), [2, 2, 7], [2, 2, 4]),
        layer(AvgPool1d { window: line, options: AvgPool::default() }, [2, 2, 7], [2, 2, 4]),
        layer(AdaptiveAvgPool1d(3), [2, 2, 7], [2, 2, 3]),
        layer(AdaptiveMaxPool1d(3), [2, 2, 7], [2, 2, 3]),
        layer(AdaptiveAvgPool3d([3, 2, 3]), [1, 2, 4, 5, 4], [1, 2, 3, 2, 3]),
        layer(AdaptiveMaxPool3d([3, 2, 3]), [1, 2, 4, 5, 4], [1, 2, 3, 2, 3]),
        layer(AdaptiveAvgPool2d([2, 3]), image, [2, 2, 2, 3]),
        layer(AdaptiveMaxPool2d([1, 3]), image, [2, 2, 1, 3]),
        layer(Upsample::by(2.0), image, [2, 2, 10, 8]),
        layer(resize, image, [2, 2, 3, 7]),
    ]
}

fn normalizations(device: &Device) -> Result<Vec<Layer>> {
    Ok(vec![
        same(LayerNorm::new(device, &[3])?, [2, 4, 3]),
        same(LayerNorm::without_bias(device, &[4, 3])?.with_eps(0.1), [2, 4, 3]),
        same(RmsNorm::new(device, &[3])?, [4, 3]),
        same(GroupNorm::new(device, 2, 4)?, [2, 4, 3]),
        same(InstanceNorm1d::new(3), [2, 3, 4]),
        same(InstanceNorm1d::affine(device, 3)?.with_eps(0.1), [2, 3, 4]),
        same(InstanceNorm2d::affine(device, 2)?, [2, 2, 3, 2]),
        same(GroupNorm::without_bias(device, 2, 4)?, [2, 4, 3]),
        same(GroupNorm::without_parameters(2), [2, 4, 3]),
        same(LayerNorm::without_parameters(2), [2, 4, 3]),
        same(RmsNorm::without_parameters(1), [4, 3]),
        same(BatchNorm1d::without_bias(device, 3)?, [4, 3]),
        same(BatchNorm2d::without_parameters(device, 2)?, [2, 2, 3, 2]),
        same(BatchNorm3d::new(device, 2)?, [2, 2, 2, 3, 2]),
        same(InstanceNorm2d::without_bias(device, 2)?, [2, 2, 3, 2]),
        same(InstanceNorm3d::new(2), [2, 2, 2, 3, 2]),
        same(InstanceNorm2d::affine(device, 2)?.with_running_statistics(device)?, [2, 2, 3, 2]),
        same(BatchNorm2d::new(device, 2)?.without_running_statistics(), [2, 2, 3, 2]),
        same(BatchNorm1d::new(device, 3)?.with_equal_batches(), [4, 3]),
        same(BatchNorm1d::new(device, 3)?, [4, 3]),
        same(BatchNorm1d::new(device, 3)?.with_eps(0.1), [2, 3, 4]),
        same(BatchNorm2d::new(device, 2)?, [2, 2, 3, 2]),
    ])
}

/// Attention and recurrent layers.
fn of_sequences(device: &Device) -> Result<Vec<Layer>> {
    let plain = MultiHeadOptions::new(4, 2);
    let grouped = MultiHeadOptions { groups: 1, causal: Causal::UpperLeft, ..plain };
    let half = RotaryEmbedding::new(RotaryPairs::HalfSplit);
    let partial = RotaryEmbedding {
        turned: Some(2),
        base: 10.0,
        ..RotaryEmbedding::new(RotaryPairs::Interleaved)
    };
    let turned = MultiHeadOptions { rotary: Some(half), ..grouped };
    let turned_in_part = MultiHeadOptions { rotary: Some(partial), ..MultiHeadOptions::new(8, 2) };
    let attention = |options| MultiHeadAttention::new(device, KEY, options);
    let options = TransformerOptions { hidden: 6, dropout: 0.0, ..TransformerOptions::new(4, 2) };
    let encoder = |norm, activation, rotary| {
        let options = TransformerOptions { norm, activation, rotary, ..options };
        TransformerEncoderLayer::new(device, KEY, options)
    };
    let after = encoder(NormPlace::After, HiddenActivation::Gelu, None)?;
    let before = encoder(NormPlace::Before, HiddenActivation::Relu, Some(half))?;
    let unbiased_encoder = TransformerOptions { bias: false, ..options };
    let unbiased_encoder = TransformerEncoderLayer::new(device, KEY, unbiased_encoder)?;
    let lstm = RecurrentOptions { layers: 2, ..RecurrentOptions::new(3, 3) };
    let unbiased = RecurrentOptions { bias: false, ..lstm };
    let rnn = |options, activation| Rnn::new(device, KEY, options, activation);
    let cell = CellOptions::new(4, 2);
    let added = MultiHeadOptions { learned_key: true, zero_key: true, ..grouped };
    let both = RecurrentOptions { directions: Directions::Both, ..RecurrentOptions::new(4, 2) };
    Ok(vec![
        same(attention(plain)?, [2, 3, 4]),
        same(attention(grouped)?, [1, 3, 4]),
        same(attention(turned)?, [2, 3, 4]),
        same(attention(turned_in_part)?, [1, 3, 8]),
        same(half, [2, 3, 4]),
        same(partial, [2, 2, 3, 5]),
        same(after, [2, 3, 4]),
        same(before, [1, 3, 4]),
        same(TransformerEncoder::new(device, KEY, 2, options)?, [1, 2, 4]),
        same(attention(MultiHeadOptions { bias: false, ..plain })?, [2, 3, 4]),
        same(unbiased_encoder, [2, 3, 4]),
        same(attention(added)?, [2, 3, 4]),
        layer(LstmCell::new(device, KEY, cell)?, [3, 4], [3, 2]),
        layer(GruCell::new(device, KEY, cell)?, [3, 4], [3, 2]),
        layer(RnnCell::new(device, KEY, cell, RnnActivation::Tanh)?, [3, 4], [3, 2]),
        same(Lstm::new(device, KEY, unbiased)?, [2, 4, 3]),
        same(Gru::new(device, KEY, unbiased)?, [2, 4, 3]),
        same(rnn(lstm, RnnActivation::Tanh)?, [2, 4, 3]),
        same(rnn(unbiased, RnnActivation::Tanh)?, [2, 4, 3]),
        same(rnn(both, RnnActivation::Relu)?, [1, 3, 4]),
        layer(Lstm::with_projection(device, KEY, lstm, 2)?, [2, 4, 3], [2, 4, 2]),
        same(Lstm::new(device, KEY, lstm)?, [2, 4, 3]),
        same(Lstm::new(device, KEY, both)?, [1, 3, 4]),
        same(Gru::new(device, KEY, lstm)?, [2, 4, 3]),
        same(Gru::new(device, KEY, both)?, [1, 3, 4]),
    ])
}

fn activations(device: &Device) -> Result<Vec<Layer>> {
    let shape = [2, 3];
    Ok(vec![
        same(ReLU, shape),
        same(ReLU6, shape),
        same(GELU, shape),
        same(TanhGELU, shape),
        same(SiLU, shape),
        same(Mish, shape),
        same(Tanh, shape),
        same(Tanhshrink, shape),
        same(Sigmoid, shape),
        same(LogSigmoid, shape),
        same(Hardsigmoid, shape),
        same(Hardswish, shape),
        same(Hardtanh([-0.4, 0.3]), shape),
        same(Hardshrink(0.3), shape),
        same(Softshrink(0.3), shape),
        same(Threshold(0.1, 7.0), shape),
        same(Softplus, shape),
        same(Softsign, shape),
        same(ELU, shape),
        same(SELU, shape),
        same(LeakyReLU::default(), shape),
        same(PReLU::new(device, 3)?, [2, 3, 4]),
        same(PReLU::new(device, 1)?, shape),
        layer(GLU(1), [2, 6, 2], [2, 3, 2]),
        same(Softmax(1), shape),
        same(Softmin(0), shape),
        same(LogSoftmax(1), shape),
    ])
}

#[test]
fn the_list_names_every_layer() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut written = BTreeSet::new();
    let layers = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/layers");
    for folder in [layers.clone(), layers.join("recurrent")] {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.extension().is_none_or(|extension| extension != "rs") {
                continue;
            }
            let text = std::fs::read_to_string(path)?;
            let name = |line: &str| {
                let (_, kind) = line.strip_prefix("impl")?.split_once(" Module for ")?;
                Some(kind.split([' ', '<']).next()?.to_owned())
            };
            written.extend(text.lines().filter_map(name));
            // Layers in a macro call, as `NAME(x) formula;` or `NAME, "op", ..;`.
            let stamped = |line: &str| {
                let line = line.strip_prefix("    ")?.strip_suffix(';')?;
                let (name, _) = line.split_once("(x) ").or_else(|| line.split_once(", \""))?;
                name.chars().all(char::is_alphanumeric).then(|| name.to_owned())
            };
            written.extend(text.lines().filter_map(stamped));
        }
    }
    // The input of these two is an index. The language models check the gradient of their table.
    assert!(written.remove("Embedding") && written.remove("EmbeddingBag"));
    let device = cpu();
    let mut listed: BTreeSet<String> =
        all(&device)?.iter().map(|layer| layer.kind.to_owned()).collect();
    assert!(listed.remove("SimpleCnn"), "a model");
    let missing: Vec<_> = written.difference(&listed).collect();
    let gone: Vec<_> = listed.difference(&written).collect();
    assert!(missing.is_empty() && gone.is_empty(), "not listed: {missing:?}, gone: {gone:?}");
    Ok(())
}
