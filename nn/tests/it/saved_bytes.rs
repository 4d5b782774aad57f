//! Bytes that layers and models save for backward, compared with PyTorch; the table of the models'
//! README.

use std::collections::BTreeSet;

use lowtide_autograd::{Attempt, Pass, Var};
use lowtide_nn::models::{
    DeepCnn, DeepCnnShape, Gpt, GptShape, LstmModel, LstmModelShape, ResNet, ResNetBlock,
    ResNetShape, UNet, UNetShape, ViT, ViTShape,
};
use lowtide_nn::{
    AdaptiveAvgPool2d, AdaptiveMaxPool2d, AvgPool1d, AvgPool2d, BagOptions, BagReduction,
    BatchNorm2d, CellOptions, Conv1d, Conv2d, ConvTranspose2d, ConvTranspose3d,
    ConvTranspose3dGeometry, Dropout, ELU, Embedding, EmbeddingBag, Flatten, GELU, GLU, GroupNorm,
    Gru, GruCell, Hardshrink, Hardsigmoid, Hardswish, Hardtanh, LayerNorm, LeakyReLU, Linear,
    LogSigmoid, LogSoftmax, Lstm, LstmCell, MaxPool1d, MaxPool2d, Mish, Module, MultiHeadAttention,
    MultiHeadOptions, NnResult as Result, Nodes, PReLU, Parameter, ReLU, ReLU6, RecurrentOptions,
    RmsNorm, RnnActivation, RnnCell, SELU, SiLU, Sigmoid, Softmax, Softmin, Softplus, Softshrink,
    Softsign, Tanh, TanhGELU, Tanhshrink, Threshold, TransformerDecoderLayer,
    TransformerEncoderLayer, TransformerOptions, Upsample, Visitor, WeightNorm, cross_entropy,
    kl_divergence, mse,
};
use lowtide_tensor::{
    AvgPool, Conv1dGeometry, Conv2dGeometry, ConvTranspose2dGeometry, DType, Device,
    Pool1dGeometry, Tensor,
};

use crate::common::{KEY, Outcome, cpu};
use crate::layer_list;
use crate::zoo::uniform;

const PYTORCH: &str = include_str!("../fixtures/saved_bytes.txt");
const README: &str = include_str!("../../src/models/README.md");

/// Layers without a row in the table. The table of autograd's rules has the operations that they
/// are made of.
const WITHOUT_ROW: [&str; 19] = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool3d",
    "AvgPool3d",
    "BatchNorm1d",
    "BatchNorm3d",
    "Conv3d",
    "ConvTranspose1d",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "MaxPool3d",
    "Pad",
    "Rnn",
    "RotaryEmbedding",
    "Sequential",
    "SpectralNorm",
    "TransformerEncoder",
];

/// A layer whose input and parameters need gradients, as in PyTorch's measurement.
struct OfLayer<F>(F);

impl<F> Nodes for OfLayer<F> {
    fn visit_nodes(&mut self, _: &mut Visitor<'_>) {}
}

impl<F: Fn(&Pass, Var) -> Result<Var>> Module for OfLayer<F> {
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        (self.0)(pass, input)
    }
}

fn of(f: impl Fn(&Pass, Var) -> Result<Var> + 'static) -> Box<dyn Module> {
    Box::new(OfLayer(f))
}

fn simple_layer(device: &Device, name: &str) -> Result<(Box<dyn Module>, Vec<usize>)> {
    let image = || vec![8, 16, 12, 12];
    let sequence = || vec![8, 32, 64];
    let padded = Conv2dGeometry { padding: [1, 1], ..Default::default() };
    let padded1d = Conv1dGeometry { padding: 1, ..Default::default() };
    let doubled = ConvTranspose2dGeometry { stride: [2, 2], ..Default::default() };
    Ok(match name {
        "Linear" => (Box::new(Linear::new(device, KEY, 100, 50)?), vec![64, 100]),
        "Conv1d" => (Box::new(Conv1d::new(device, KEY, [16, 16], 3, padded1d)?), vec![8, 16, 100]),
        "Conv2d" => (Box::new(Conv2d::new(device, KEY, [16, 32], [3, 3], padded)?), image()),
        "ConvTranspose2d" => {
            (Box::new(ConvTranspose2d::new(device, KEY, [16, 8], [2, 2], doubled)?), image())
        }
        "ConvTranspose3d" => {
            let doubled = ConvTranspose3dGeometry { stride: [2; 3], ..Default::default() };
            let layer = ConvTranspose3d::new(device, KEY, [16, 8], [2; 3], doubled)?;
            (Box::new(layer), vec![2, 16, 6, 8, 8])
        }
        "WeightNorm" => {
            (Box::new(WeightNorm::new(Linear::new(device, KEY, 100, 50)?)?), vec![64, 100])
        }
        "Embedding" => (Box::new(Embedding::new(device, KEY, 100, 32)?), vec![8, 64]),
        "EmbeddingBag, mean" | "EmbeddingBag, max" => {
            let mean = name.ends_with("mean");
            let reduction = if mean { BagReduction::Mean } else { BagReduction::Max };
            let options = BagOptions { reduction, padding: None };
            (Box::new(EmbeddingBag::new(device, KEY, [100, 32], options)?), vec![8, 64])
        }
        "BatchNorm2d" => (Box::new(BatchNorm2d::new(device, 16)?), image()),
        "LayerNorm" => (Box::new(LayerNorm::new(device, &[64])?), sequence()),
        "RmsNorm" => (Box::new(RmsNorm::new(device, &[64])?), sequence()),
        "GroupNorm" => (Box::new(GroupNorm::new(device, 4, 16)?), image()),
        "Softmax" => (Box::new(Softmax(2)), sequence()),
        "Softmin" => (Box::new(Softmin(2)), sequence()),
        "LogSoftmax" => (Box::new(LogSoftmax(2)), sequence()),
        "Dropout" => (Box::new(Dropout::new(0.5)?), sequence()),
        "MaxPool1d" => (Box::new(MaxPool1d(Pool1dGeometry::side_by_side(2))), sequence()),
        "AvgPool1d" => {
            let window = Pool1dGeometry::side_by_side(2);
            (Box::new(AvgPool1d { window, options: AvgPool::default() }), sequence())
        }
        "MaxPool2d" => (Box::new(MaxPool2d::square(2)), image()),
        "AvgPool2d" => (Box::new(AvgPool2d::square(2)), image()),
        "AdaptiveAvgPool2d" => (Box::new(AdaptiveAvgPool2d([3, 3])), image()),
        "AdaptiveMaxPool2d" => (Box::new(AdaptiveMaxPool2d([3, 3])), image()),
        "Upsample" => (Box::new(Upsample::by(2.0)), image()),
        "Flatten" => (Box::new(Flatten), image()),
        _ => return activation(device, name),
    })
}

fn activation(device: &Device, name: &str) -> Result<(Box<dyn Module>, Vec<usize>)> {
    let layer: Box<dyn Module> = match name {
        "ReLU" => Box::new(ReLU),
        "LeakyReLU" => Box::new(LeakyReLU::default()),
        "GELU" => Box::new(GELU),
        "SiLU" => Box::new(SiLU),
        "Tanh" => Box::new(Tanh),
        "Sigmoid" => Box::new(Sigmoid),
        "Softplus" => Box::new(Softplus),
        "ELU" => Box::new(ELU),
        "TanhGELU" => Box::new(TanhGELU),
        "Mish" => Box::new(Mish),
        "Hardswish" => Box::new(Hardswish),
        "Hardsigmoid" => Box::new(Hardsigmoid),
        "Hardtanh" => Box::new(Hardtanh::default()),
        "ReLU6" => Box::new(ReLU6),
        "SELU" => Box::new(SELU),
        "Softsign" => Box::new(Softsign),
        "LogSigmoid" => Box::new(LogSigmoid),
        "Tanhshrink" => Box::new(Tanhshrink),
        "Hardshrink" => Box::new(Hardshrink::default()),
        "Softshrink" => Box::new(Softshrink::default()),
        "Threshold" => Box::new(Threshold(0.1, 0.0)),
        "PReLU" => Box::new(PReLU::new(device, 16)?),
        "GLU" => Box::new(GLU(1)),
        _ => return compound_layer(device, name),
    };
    Ok((layer, vec![8, 16, 12, 12]))
}

fn compound_layer(device: &Device, name: &str) -> Result<(Box<dyn Module>, Vec<usize>)> {
    let sequence = vec![8, 32, 64];
    let options = TransformerOptions { hidden: 256, ..TransformerOptions::new(64, 4) };
    let recurrent = RecurrentOptions { layers: 2, ..RecurrentOptions::new(64, 32) };
    let cell = CellOptions::new(64, 32);
    let scores = vec![64, 100];
    let labels = Tensor::zeros(device, [64], DType::I64)?;
    let target = Tensor::zeros(device, [64, 100], DType::F32)?;
    let sum = |loss: Result<lowtide_nn::Loss>| Ok(loss?.sum);
    Ok(match name {
        "MultiHeadAttention" => {
            let options = MultiHeadOptions::new(64, 4);
            (Box::new(MultiHeadAttention::new(device, KEY, options)?), sequence)
        }
        "MultiHeadAttention, keys added" => {
            let options = MultiHeadOptions::new(64, 4);
            let options = MultiHeadOptions { learned_key: true, zero_key: true, ..options };
            (Box::new(MultiHeadAttention::new(device, KEY, options)?), sequence)
        }
        "TransformerEncoderLayer" => {
            (Box::new(TransformerEncoderLayer::new(device, KEY, options)?), sequence)
        }
        "TransformerDecoderLayer" => {
            let layer = TransformerDecoderLayer::new(device, KEY, options)?;
            (of(move |pass, x| layer.decode(pass, x.clone(), x, [None, None])), sequence)
        }
        "Lstm" => (Box::new(Lstm::new(device, KEY, recurrent)?), sequence),
        "Lstm, projected" => {
            (Box::new(Lstm::with_projection(device, KEY, recurrent, 8)?), sequence)
        }
        "LstmCell" => (Box::new(LstmCell::new(device, KEY, cell)?), vec![256, 64]),
        "GruCell" => (Box::new(GruCell::new(device, KEY, cell)?), vec![256, 64]),
        "RnnCell" => {
            (Box::new(RnnCell::new(device, KEY, cell, RnnActivation::Tanh)?), vec![256, 64])
        }
        "Gru" => (Box::new(Gru::new(device, KEY, recurrent)?), sequence),
        "cross_entropy" => (of(move |_, x| sum(cross_entropy(x, &labels))), scores),
        "mse" => (of(move |_, x| sum(mse(x, &target))), scores),
        "kl_divergence" => (of(move |_, x| sum(kl_divergence(x, &target))), scores),
        _ => return model(device, name),
    })
}

fn model(device: &Device, name: &str) -> Result<(Box<dyn Module>, Vec<usize>)> {
    let resnet = |block, blocks| {
        let shape = ResNetShape { block, blocks, width: 8, classes: 10 };
        ResNet::new(device, KEY, shape)
    };
    let cnn = DeepCnnShape { image: [3, 32, 32], channels: [8, 16, 32], classes: 10 };
    let gpt = GptShape { vocabulary: 100, context: 64, width: 64, heads: 4, blocks: 2 };
    let vit = ViTShape {
        image: 32,
        patch: 8,
        width: 64,
        heads: 4,
        hidden: 128,
        blocks: 2,
        classes: 10,
        dropout: 0.0,
    };
    let lstm = LstmModelShape { vocabulary: 100, width: 32, hidden: 32, layers: 2, dropout: 0.0 };
    Ok(match name {
        "DeepCnn" => (Box::new(DeepCnn::new(device, KEY, cnn)?), vec![8, 3, 32, 32]),
        "ResNet, basic" => (Box::new(resnet(ResNetBlock::Basic, [2; 4])?), vec![8, 3, 64, 64]),
        "ResNet, bottleneck" => {
            (Box::new(resnet(ResNetBlock::Bottleneck, [1; 4])?), vec![8, 3, 64, 64])
        }
        "UNet" => {
            let shape = UNetShape { channels: 3, width: 8, classes: 2 };
            (Box::new(UNet::new(device, KEY, shape)?), vec![4, 3, 32, 32])
        }
        "Gpt" => (Box::new(Gpt::new(device, KEY, gpt)?), vec![8, 64]),
        "ViT" => (Box::new(ViT::new(device, KEY, vit)?), vec![8, 3, 32, 32]),
        "LstmModel" => (Box::new(LstmModel::new(device, KEY, lstm)?), vec![8, 64]),
        _ => panic!("no layer {name}"),
    })
}

/// Bytes that only the record of the layer `name` keeps alive.
fn saved_bytes(name: &str) -> Result<usize> {
    let device = cpu();
    let (layer, shape) = simple_layer(&device, name)?;
    let live = || device.allocator().statistics().requested.current_bytes;
    let before = live();
    let attempt = Attempt::new();
    let pass = Pass::train(KEY, &attempt);
    let takes_tokens = ["Embedding", "EmbeddingBag, mean", "EmbeddingBag, max", "Gpt", "LstmModel"];
    let takes_tokens = takes_tokens.contains(&name);
    let x = if takes_tokens {
        pass.constant(Tensor::zeros(&device, &shape[..], DType::I64)?)
    } else {
        pass.input(uniform(&device, 1, &shape)?)?
    };
    drop(layer.forward(&pass, x)?);
    // New running statistics are not part of the record.
    drop(attempt.take_buffer_updates());
    Ok(live() - before)
}

fn table() -> Result<Vec<(&'static str, usize, usize)>> {
    let row = |line: &'static str| {
        let (bytes, name) = line.split_once(' ').expect("bytes and a name");
        Ok((name, saved_bytes(name)?, bytes.parse().expect("a number")))
    };
    PYTORCH.lines().map(row).collect()
}

#[test]
fn every_layer_has_a_row_or_is_known_to_have_none() -> Outcome {
    let name = |line: &'static str| line.split_once(' ')?.1.split(',').next();
    let rows: BTreeSet<&str> = PYTORCH.lines().filter_map(name).collect();
    let kinds: BTreeSet<&str> = layer_list::all(&cpu())?.iter().map(|layer| layer.kind).collect();
    let has_row = |kind: &&&str| rows.contains(**kind);
    let missing: Vec<_> =
        kinds.iter().filter(|kind| !has_row(kind) && !WITHOUT_ROW.contains(kind)).collect();
    // A model, which the list has as a layer of layers.
    assert_eq!(missing, [&"SimpleCnn"], "no row and no reason");
    let gone: Vec<_> =
        WITHOUT_ROW.iter().filter(|kind| has_row(kind) || !kinds.contains(**kind)).collect();
    assert!(gone.is_empty(), "a row, or no such layer: {gone:?}");
    Ok(())
}

#[test]
fn no_layer_keeps_more_than_pytorch() -> Outcome {
    let mut worse = Vec::new();
    for (name, ours, theirs) in table()? {
        println!("{name}: {ours}, PyTorch {theirs}");
        if ours > theirs {
            worse.push((name, ours, theirs));
        }
    }
    assert!(worse.is_empty(), "{worse:?}");
    Ok(())
}

/// Bytes with separators, such as 73,728.
fn grouped(bytes: usize) -> String {
    let digits = bytes.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[test]
fn the_table_in_the_readme_is_what_is_measured() -> Outcome {
    for (name, ours, theirs) in table()? {
        let row = format!("| {name} | {} | {} |", grouped(ours), grouped(theirs));
        assert!(README.contains(&row), "missing from the README: {row}");
    }
    Ok(())
}

/// Parameters do not count as saved bytes, even if the record keeps them.
#[test]
fn what_is_measured_leaves_parameters_out() -> Outcome {
    let device = cpu();
    let live = || device.allocator().statistics().requested.current_bytes;
    let weight = Parameter::full(&device, [4, 4], 1.0)?;
    let before = live();
    let pass = Pass::train(KEY, &Attempt::new());
    let x = pass.input(uniform(&device, 1, &[2, 4])?)?;
    let y = x.linear(weight.var(&pass)?, None)?;
    drop(y);
    assert_eq!(live() - before, 2 * 4 * 4);
    Ok(())
}
