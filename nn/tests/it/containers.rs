//! Models that name their fields by hand.

use lowtide_autograd::{Attempt, Pass, SavedPolicy, Var};
use lowtide_nn::optim::{OneModel, Optimizer, Sgd, SgdOptions};
use lowtide_nn::{
    BatchNorm1d, Buffer, Linear, LoraOptions, Module, NnResult as Result, Node, Nodes, Parameter,
    Parameters, Segment, Visitor, adapt, cross_entropy, parse_safetensors, to_safetensors,
};
use lowtide_tensor::{Device, Tensor};

use crate::common::{KEY, Outcome, cpu, f32s, names};

/// A normalisation, a block and a linear layer, which own different kinds of nodes.
struct Net {
    norm: BatchNorm1d,
    block: Segment<Linear>,
    linear: Linear,
}

impl Nodes for Net {
    fn visit_nodes(&mut self, visitor: &mut Visitor<'_>) {
        visitor.field("norm", &mut self.norm);
        visitor.field("block", &mut self.block);
        visitor.field("linear", &mut self.linear);
    }
}

impl Module for Net {
    fn forward(&self, pass: &Pass, x: Var) -> Result<Var> {
        let x = self.norm.forward(pass, x)?;
        self.linear.forward(pass, self.block.forward(pass, x)?)
    }
}

impl Net {
    fn new(device: &Device) -> Result<Self> {
        Ok(Net {
            norm: BatchNorm1d::new(device, 3)?,
            block: Segment::new(Linear::new(device, KEY.op("block"), 3, 3)?),
            linear: Linear::new(device, KEY.op("linear"), 3, 2)?,
        })
    }

    /// A training pass over a batch whose columns have the means 4.75, 4 and 3.
    fn train(&self, device: &Device) -> Result<Attempt> {
        const ROWS: [f32; 12] = [1.0, 5.0, 2.0, 8.0, 1.0, 0.0, 3.0, 3.0, 9.0, 7.0, 7.0, 1.0];
        let labels = Tensor::from_slice(device, [4], &[0_i64, 1, 1, 0])?;
        let attempt = Attempt::new();
        let pass = Pass::train(KEY, &attempt);
        let y = self.forward(&pass, pass.constant(Tensor::from_slice(device, [4, 3], &ROWS)?))?;
        pass.backward(cross_entropy(y, &labels)?.mean()?)?;
        Ok(attempt)
    }
}

#[test]
fn a_container_by_hand_stores_the_running_statistics_that_a_step_has_moved() -> Outcome {
    let device = cpu();
    let mut net = Net::new(&device)?;
    let attempt = net.train(&device)?;
    Sgd::new(SgdOptions::new(0.1))?.step(&mut net, attempt)?;
    let bytes = to_safetensors(&mut net)?;
    let file = parse_safetensors(&bytes, "net".as_ref())?;
    let view = file.tensor("norm.running_mean")?;
    let means: Vec<f32> =
        view.data().chunks(4).map(|x| f32::from_le_bytes(x.try_into().unwrap())).collect();
    for (mean, expected) in means.into_iter().zip([0.475, 0.4, 0.3]) {
        assert!((mean - expected).abs() < 1e-6, "{mean}, not {expected}");
    }
    Ok(())
}

#[test]
fn linear_layers_of_a_container_by_hand_are_adapted() -> Outcome {
    let mut net = Net::new(&cpu())?;
    assert_eq!(adapt(&mut net, KEY, &LoraOptions::default())?, ["block", "linear"]);
    assert!(names(&mut net).iter().any(|name| name == "linear.lora_A.weight"));
    Ok(())
}

#[test]
fn blocks_of_a_container_by_hand_are_recomputed_to_the_same_bits() -> Outcome {
    let device = cpu();
    let mut net = Net::new(&device)?;
    let mut gradients = Vec::new();
    for policy in [SavedPolicy::Keep, SavedPolicy::Recompute] {
        let mut count = 0;
        net.visit_policies(&mut |slot| (count, *slot) = (count + 1, Some(policy.clone())));
        assert_eq!(count, 1);
        let found = net.train(&device)?.into_gradients();
        let mut bits = Vec::new();
        net.visit(&mut |_, parameter| {
            bits.push(found.get(parameter.id()).expect("it counts").to_bytes());
        });
        gradients.push(bits.into_iter().collect::<std::result::Result<Vec<_>, _>>()?);
    }
    assert_eq!(gradients[0], gradients[1]);
    Ok(())
}

/// The nodes of a model, by name and kind.
fn nodes(model: &mut dyn Nodes) -> Vec<String> {
    let mut shown = Vec::new();
    model.visit_nodes(&mut Visitor::new(&mut |name, node| {
        let kind = match node {
            Node::Parameter(_) => "parameter",
            Node::Buffer(_) => "buffer",
            Node::Linear(_) => "linear",
            Node::Block(_) => "block",
            Node::Shared(_) => "shared",
        };
        shown.push(format!("{name}: {kind}"));
    }));
    shown
}

#[test]
fn nodes_come_in_the_order_of_fields_with_whole_names() -> Outcome {
    let expected = [
        "norm.weight: parameter",
        "norm.bias: parameter",
        "norm.running_mean: buffer",
        "norm.running_var: buffer",
        "norm.num_batches_tracked: buffer",
        "block: block",
        "block: linear",
        "block.weight: parameter",
        "block.bias: parameter",
        "linear: linear",
        "linear.weight: parameter",
        "linear.bias: parameter",
    ];
    assert_eq!(nodes(&mut Net::new(&cpu())?), expected);
    Ok(())
}

/// A parameter and layers whose names are those of models.
struct Models {
    scale: Parameter,
    inner: Linear,
    other: Linear,
}

impl Nodes for Models {
    fn visit_nodes(&mut self, visitor: &mut Visitor<'_>) {
        visitor.field("scale", &mut self.scale);
        visitor.field("scale", &mut self.inner);
        visitor.field("scaled", &mut self.other);
    }
}

#[test]
fn one_of_several_models_shows_nodes_of_its_own_name_and_below() -> Outcome {
    let device = cpu();
    let mut models = Models {
        scale: Parameter::new(f32s(&device, "scale", [1])),
        inner: Linear::without_bias(&device, KEY.op("inner"), 1, 1)?,
        other: Linear::without_bias(&device, KEY.op("other"), 1, 1)?,
    };
    let mut of_model = |model| nodes(&mut OneModel { parameters: &mut models, model });
    let own = ["scale: parameter", "scale: linear", "scale.weight: parameter"];
    assert_eq!(of_model("scale"), own);
    assert_eq!(of_model("scaled"), ["scaled: linear", "scaled.weight: parameter"]);
    assert!(of_model("sca").is_empty() && of_model("weight").is_empty());
    Ok(())
}

/// Fields of each kind, and a module that is shown by its values only.
struct Fields {
    one: Parameter,
    none: Option<Parameter>,
    buffer: Buffer,
    named: Vec<Linear>,
    numbered: Vec<Linear>,
    teacher: Segment<Linear>,
}

impl Nodes for Fields {
    fn visit_nodes(&mut self, visitor: &mut Visitor<'_>) {
        visitor.field("one", &mut self.one);
        visitor.field("none", &mut self.none);
        visitor.field("kept", &mut self.buffer);
        visitor.field(["a", "b.c"], &mut self.named);
        visitor.field("layer_", &mut self.numbered);
        visitor.values("teacher", &mut self.teacher);
    }
}

#[test]
fn each_kind_of_field_has_its_names() -> Outcome {
    let device = cpu();
    let linear = || Linear::without_bias(&device, KEY, 1, 1);
    let mut fields = Fields {
        one: Parameter::new(f32s(&device, "one", [1])),
        none: None,
        buffer: Buffer::new(f32s(&device, "buffer", [1])),
        named: vec![linear()?, linear()?],
        numbered: vec![linear()?, linear()?],
        teacher: Segment::new(linear()?),
    };
    let (mut stored, mut linears, mut blocks) = (Vec::new(), Vec::new(), 0);
    fields.visit_tensors(&mut |name, _| stored.push(name.to_owned()));
    fields.visit_linears(&mut |name, _| linears.push(name.to_owned()));
    fields.visit_policies(&mut |_| blocks += 1);
    let weights = ["one", "a.weight", "b.c.weight", "layer_0.weight", "layer_1.weight"];
    assert_eq!(stored, [&weights[..], &["teacher.weight", "kept"]].concat());
    assert_eq!(linears, ["a", "b.c", "layer_0", "layer_1"]);
    assert_eq!(blocks, 0, "nobody recomputes a module that is used as it is");
    Ok(())
}
