//! A small example of every reference model. `fixtures/make_models.py` makes the same numbers.

use lowtide_autograd::{Pass, Var};
use lowtide_nn::models::{
    DeepCnn, DeepCnnShape, Gpt, GptShape, LstmModel, LstmModelShape, Mlp, ResNet, ResNetBlock,
    ResNetShape, Seq2Seq, Seq2SeqShape, SimpleCnn, SimpleCnnShape, UNet, UNetShape, ViT, ViTShape,
};
use lowtide_nn::{
    Directions, Gru, HiddenActivation, Lstm, LstmState, Module, NnResult as Result, NormPlace,
    Parameters, RecurrentOptions, RotaryEmbedding, RotaryPairs, TransformerOptions, cross_entropy,
    mse,
};
use lowtide_tensor::{Device, Tensor};

use crate::common::KEY;

/// Streams of inputs, targets and states. Parameters have streams 1, 2, 3, ...
const X: u64 = 1001;
const Y: u64 = 1002;
const H: u64 = 1003;

/// Words of the splitmix64 generator (Steele, Lea and Flood 2014).
fn words(stream: u64, len: usize) -> impl Iterator<Item = u64> {
    let start = stream.wrapping_mul(0xD134_2543_DE82_EF95);
    (1..=len as u64).map(move |index| {
        let z = start.wrapping_add(index.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    })
}

/// Multiples of 2^-23 from [-1, 1).
fn units(stream: u64, len: usize) -> impl Iterator<Item = f32> {
    words(stream, len).map(|word| (word >> 40) as f32 / 8_388_608.0 - 1.0)
}

pub(crate) fn uniform(device: &Device, stream: u64, shape: &[usize]) -> Result<Tensor> {
    let values: Vec<f32> = units(stream, shape.iter().product()).collect();
    Ok(Tensor::from_slice(device, shape, &values)?)
}

fn integers(stream: u64, len: usize, modulo: u64) -> Vec<i64> {
    words(stream, len).map(|word| ((word >> 32) % modulo) as i64).collect()
}

/// Fills parameter k, in the order of the visit, from stream k.
pub(crate) fn fill(model: &mut dyn Parameters) {
    let mut stream = 0;
    model.visit(&mut |name, parameter| {
        stream += 1;
        let shape = *parameter.value().shape();
        let units = units(stream, shape.element_count());
        let values: Vec<f32> = match shape.len() {
            1 if name.ends_with("weight") => units.map(|u| u * 0.25 + 1.0).collect(),
            1 => units.map(|u| u * 0.1).collect(),
            _ => {
                let bound = 1.0 / (shape[1..].iter().product::<usize>() as f32).sqrt();
                units.map(|u| u * bound).collect()
            }
        };
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        parameter.value_mut().set_bytes_(&bytes).expect("f32 of this shape");
    });
}

/// A model together with its training data.
pub(crate) trait Trained {
    fn model(&mut self) -> &mut dyn Parameters;
    /// True if the model has blocks, and thus policies of saved tensors.
    fn has_blocks(&mut self) -> bool {
        let mut has_blocks = false;
        self.model().visit_policies(&mut |_| has_blocks = true);
        has_blocks
    }
    /// The mean loss.
    fn loss(&self, pass: &Pass) -> Result<Var>;
}

type LossOf<M> = Box<dyn Fn(&M, &Pass) -> Result<Var>>;

struct Case<M> {
    model: M,
    loss: LossOf<M>,
}

impl<M: Parameters> Trained for Case<M> {
    fn model(&mut self) -> &mut dyn Parameters {
        &mut self.model
    }

    fn loss(&self, pass: &Pass) -> Result<Var> {
        (self.loss)(&self.model, pass)
    }
}

/// `x` in the type of the model's parameters.
fn like<M: Parameters + Clone>(model: &M, x: &Tensor) -> Result<Tensor> {
    let mut dtype = x.dtype();
    model.clone().visit(&mut |_, parameter| dtype = parameter.value().dtype());
    Ok(x.to_dtype(dtype)?)
}

/// Trains `model` on the cross-entropy of its logits with `labels`. Classes are in the last or the
/// second dimension.
fn classified<M: Module + Clone + 'static>(
    model: M,
    x: Tensor,
    labels: Tensor,
) -> Box<dyn Trained> {
    let loss: LossOf<M> = Box::new(move |model, pass| {
        let logits = model.forward(pass, pass.constant(like(model, &x)?))?;
        cross_entropy(logits, &labels)?.mean()
    });
    Box::new(Case { model, loss })
}

fn of_images<M: Module + Clone + 'static>(
    model: M,
    device: &Device,
    [batch, side]: [usize; 2],
) -> Result<Box<dyn Trained>> {
    let x = uniform(device, X, &[batch, 3, side, side])?;
    let labels = Tensor::from_slice(device, [batch], &integers(Y, batch, 5))?;
    Ok(classified(model, x, labels))
}

fn text<M: Module + 'static>(
    model: M,
    device: &Device,
    [batch, len]: [usize; 2],
) -> Result<Box<dyn Trained>> {
    const VOCABULARY: u64 = 11;
    let tokens = integers(X, batch * len, VOCABULARY);
    let next: Vec<i64> = tokens.iter().map(|x| (5 * x + 3) % VOCABULARY as i64).collect();
    let x = Tensor::from_slice(device, [batch, len], &tokens)?;
    let labels = Tensor::from_slice(device, [batch * len], &next)?;
    let loss: LossOf<M> = Box::new(move |model, pass| {
        let logits = model.forward(pass, pass.constant(x.clone()))?;
        cross_entropy(logits.flatten(0..2)?, &labels)?.mean()
    });
    Ok(Box::new(Case { model, loss }))
}

fn translation(
    device: &Device,
    dropout: f64,
    (norm, activation): (NormPlace, HiddenActivation),
) -> Result<Box<dyn Trained>> {
    let options = TransformerOptions {
        hidden: 16,
        dropout,
        norm,
        activation,
        ..TransformerOptions::new(8, 2)
    };
    let shape = Seq2SeqShape {
        source_vocabulary: 11,
        target_vocabulary: 9,
        context: 16,
        layers: [2, 2],
        options,
    };
    let source = Tensor::from_slice(device, [3, 6], &integers(X, 18, 11))?;
    let whole = integers(Y, 18, 9);
    let target: Vec<i64> = whole.chunks(6).flat_map(|row| &row[..5]).copied().collect();
    let is_padding = |row: usize, at: usize| row == 1 && at >= 3;
    let goal = |(index, &token): (usize, &i64)| {
        if is_padding(index / 5, index % 5 + 1) { -100 } else { (2 * token + 1) % 9 }
    };
    let goal: Vec<i64> = target.iter().enumerate().map(goal).collect();
    let source_padding: Vec<bool> = (0..18).map(|i| [4, 6, 5][i / 6] <= i % 6).collect();
    let target_padding: Vec<bool> = (0..15).map(|i| is_padding(i / 5, i % 5)).collect();
    let source_padding = Tensor::from_slice(device, [3, 6], &source_padding)?;
    let target_padding = Tensor::from_slice(device, [3, 5], &target_padding)?;
    let target = Tensor::from_slice(device, [3, 5], &target)?;
    let goal = Tensor::from_slice(device, [15], &goal)?;
    let model = Seq2Seq::new(device, KEY, shape)?;
    let loss: LossOf<Seq2Seq> = Box::new(move |model, pass| {
        let padding = [Some(&source_padding), Some(&target_padding)];
        let logits = model.logits(pass, [&source, &target], padding)?;
        cross_entropy(logits.flatten(0..2)?, &goal)?.mean()
    });
    Ok(Box::new(Case { model, loss }))
}

const RECURRENT: RecurrentOptions = RecurrentOptions {
    bias: true,
    inputs: 5,
    hidden: 4,
    layers: 2,
    dropout: 0.0,
    directions: Directions::Both,
};

/// Runs a recurrent layer on an input and start states. Returns outputs and one of the last states.
type RunOf<M> = fn(&M, &Pass, Var, [Var; 2]) -> Result<(Var, Var)>;

/// The loss is the mean square distance to a target plus the mean square of the last states.
fn recurrent<M: Parameters + Clone + 'static>(
    device: &Device,
    model: M,
    run: RunOf<M>,
) -> Result<Box<dyn Trained>> {
    let (x, y) = (uniform(device, X, &[3, 6, 5])?, uniform(device, Y, &[3, 6, 8])?);
    let start = uniform(device, H, &[2, 4, 3, 4])?;
    let loss: LossOf<M> = Box::new(move |model, pass| {
        let [x, y, start] = [like(model, &x)?, like(model, &y)?, like(model, &start)?];
        let start = [start.select(0, 0)?, start.select(0, 1)?].map(|start| pass.constant(start));
        let (out, ends) = run(model, pass, pass.constant(x), start)?;
        // For half types, the loss is f32.
        let loss = mse(out, &y)?.mean()?;
        let of_ends = ends.clone().mul(ends)?.mean_all()?.to_dtype(loss.value().dtype())?;
        Ok(loss.add(of_ends)?)
    });
    Ok(Box::new(Case { model, loss }))
}

fn bilstm(device: &Device) -> Result<Box<dyn Trained>> {
    recurrent(device, Lstm::new(device, KEY, RECURRENT)?, |model, pass, x, [h, c]| {
        let (y, LstmState { h, c }) = model.run(pass, x, Some(LstmState { h, c }))?;
        Ok((y, h.add(c)?))
    })
}

fn bigru(device: &Device) -> Result<Box<dyn Trained>> {
    recurrent(device, Gru::new(device, KEY, RECURRENT)?, |model, pass, x, [h, _]| {
        model.run(pass, x, Some(h))
    })
}

pub(crate) const GPT: GptShape =
    GptShape { vocabulary: 11, context: 8, width: 8, heads: 2, blocks: 2 };

fn resnet(device: &Device, block: ResNetBlock, blocks: [usize; 4]) -> Result<ResNet> {
    ResNet::new(device, KEY, ResNetShape { block, blocks, width: 4, classes: 5 })
}

fn vit(device: &Device, dropout: f64) -> Result<Box<dyn Trained>> {
    let shape = ViTShape {
        image: 8,
        patch: 4,
        width: 8,
        heads: 2,
        hidden: 16,
        blocks: 2,
        classes: 5,
        dropout,
    };
    of_images(ViT::new(device, KEY, shape)?, device, [4, 8])
}

fn unet(device: &Device) -> Result<Box<dyn Trained>> {
    let model = UNet::new(device, KEY, UNetShape { channels: 3, width: 2, classes: 3 })?;
    let x = uniform(device, X, &[4, 3, 36, 36])?;
    let labels = Tensor::from_slice(device, [4, 36, 36], &integers(Y, 4 * 36 * 36, 3))?;
    Ok(classified(model, x, labels))
}

type Build = fn(&Device, f64) -> Result<Box<dyn Trained>>;

/// All models by the name of their run. The argument is a dropout probability, which models without
/// dropout ignore.
pub(crate) const ZOO: [(&str, Build); 16] = [
    ("mlp", |device, _| {
        let x = uniform(device, X, &[8, 12])?;
        let labels = Tensor::from_slice(device, [8], &integers(Y, 8, 5))?;
        Ok(classified(Mlp::new(device, KEY, &[12, 16, 16, 5])?, x, labels))
    }),
    ("simple_cnn", |device, _| {
        let shape = SimpleCnnShape { image: [3, 8, 8], channels: 4, classes: 5 };
        of_images(SimpleCnn::new(device, KEY, shape)?, device, [4, 8])
    }),
    ("deep_cnn", |device, _| {
        let shape = DeepCnnShape { image: [3, 16, 16], channels: [4, 6, 8], classes: 5 };
        of_images(DeepCnn::new(device, KEY, shape)?, device, [4, 16])
    }),
    ("resnet18", |device, _| {
        of_images(resnet(device, ResNetBlock::Basic, [2; 4])?, device, [4, 64])
    }),
    ("resnet50", |device, _| {
        let model = resnet(device, ResNetBlock::Bottleneck, [1, 2, 1, 1])?;
        of_images(model, device, [4, 64])
    }),
    ("unet", |device, _| unet(device)),
    ("gpt", |device, dropout| {
        text(Gpt::new(device, KEY, GPT)?.with_dropout(dropout)?, device, [3, 8])
    }),
    ("gpt2", |device, dropout| {
        text(Gpt::gpt2(device, KEY, GPT)?.with_dropout(dropout)?, device, [3, 7])
    }),
    ("vit_b_16", vit),
    ("seq2seq", |device, dropout| {
        translation(device, dropout, (NormPlace::After, HiddenActivation::Relu))
    }),
    ("seq2seq_before", |device, dropout| {
        translation(device, dropout, (NormPlace::Before, HiddenActivation::Gelu))
    }),
    ("lstm", |device, dropout| {
        let shape = LstmModelShape { vocabulary: 11, width: 6, hidden: 8, layers: 2, dropout };
        text(LstmModel::new(device, KEY, shape)?, device, [3, 7])
    }),
    ("bilstm", |device, _| bilstm(device)),
    ("bigru", |device, _| bigru(device)),
    ("gpt_rotary", |device, dropout| {
        let rotary = RotaryEmbedding::new(RotaryPairs::HalfSplit);
        let model = Gpt::new(device, KEY, GPT)?.with_rotary(rotary)?;
        text(model.with_dropout(dropout)?, device, [3, 8])
    }),
    ("gpt2_rotary", |device, dropout| {
        let rotary = RotaryEmbedding::new(RotaryPairs::Interleaved);
        let model = Gpt::gpt2(device, KEY, GPT)?.with_rotary(rotary)?;
        text(model.with_dropout(dropout)?, device, [3, 7])
    }),
];
