//! Names, shapes and counts of the reference models at their usual sizes, against PyTorch.

use lowtide_nn::models::{
    DeepCnn, DeepCnnShape, Gpt, GptShape, LstmModel, LstmModelShape, Mlp, ResNet, ResNetShape,
    Seq2Seq, Seq2SeqShape, SimpleCnn, SimpleCnnShape, UNet, UNetShape, ViT, ViTShape,
};
use lowtide_nn::{NnResult as Result, Parameters, TransformerOptions};
use lowtide_tensor::{Device, Shape, SimSpec};

use crate::common::{KEY, Outcome};

const PARAMETERS: &str = include_str!("../fixtures/parameters.txt");

fn build(device: &Device, name: &str) -> Result<Box<dyn Parameters>> {
    let simple = SimpleCnnShape { image: [3, 32, 32], channels: 16, classes: 10 };
    let options = TransformerOptions { hidden: 512, ..TransformerOptions::new(512, 8) };
    let seq2seq = Seq2SeqShape {
        source_vocabulary: 19_214,
        target_vocabulary: 10_837,
        context: 5000,
        layers: [3, 3],
        options,
    };
    Ok(match name {
        "mlp" => Box::new(Mlp::new(device, KEY, &[784, 512, 512, 10])?),
        "simple_cnn" => Box::new(SimpleCnn::new(device, KEY, simple)?),
        "deep_cnn" => Box::new(DeepCnn::new(device, KEY, DeepCnnShape::USUAL)?),
        "resnet18" => Box::new(ResNet::new(device, KEY, ResNetShape::RESNET18)?),
        "resnet34" => Box::new(ResNet::new(device, KEY, ResNetShape::RESNET34)?),
        "resnet50" => Box::new(ResNet::new(device, KEY, ResNetShape::RESNET50)?),
        "unet" => Box::new(UNet::new(device, KEY, UNetShape::USUAL)?),
        "gpt2" => Box::new(Gpt::gpt2(device, KEY, GptShape::GPT2)?),
        "vit_b_16" => Box::new(ViT::new(device, KEY, ViTShape::B16)?),
        "seq2seq" => Box::new(Seq2Seq::new(device, KEY, seq2seq)?),
        "lstm" => Box::new(LstmModel::new(device, KEY, LstmModelShape::USUAL)?),
        _ => panic!("no model {name}"),
    })
}

/// `name 2x3` for a parameter, `buffer name 2x3` for a buffer.
fn line(prefix: &str, name: &str, shape: &Shape) -> String {
    let dims: Vec<String> = shape.iter().map(usize::to_string).collect();
    format!("{prefix}{name} {}", dims.join("x"))
}

#[test]
fn names_and_shapes_are_those_of_pytorch() -> Outcome {
    let mut models = PARAMETERS.lines().peekable();
    let mut checked = 0;
    while let Some(head) = models.next() {
        let mut words = head.strip_prefix("model ").expect("a model starts").split(' ');
        let name = words.next().expect("a name");
        let count: usize = words.next().expect("a count").parse()?;
        let mut expected = Vec::new();
        while let Some(line) = models.next_if(|line| !line.starts_with("model ")) {
            expected.push(line);
        }
        let device = Device::sim(SimSpec::like_this_machine(2 << 30))?;
        let mut model = build(&device, name)?;
        let (mut found, mut elements) = (Vec::new(), 0);
        model.visit(&mut |name, parameter| {
            found.push(line("", name, parameter.value().shape()));
            elements += parameter.value().element_count();
        });
        model.visit_buffers(&mut |name, buffer| {
            found.push(line("buffer ", name, buffer.value().shape()));
        });
        assert_eq!(found, expected, "{name}");
        assert_eq!(elements, count, "{name}");
        checked += 1;
    }
    assert_eq!(checked, 11);
    Ok(())
}

#[test]
fn larger_ones_of_gpt_2_have_as_many_parameters_as_their_documentation_says() -> Outcome {
    let counts = [
        (GptShape::GPT2_MEDIUM, 354_823_168),
        (GptShape::GPT2_LARGE, 774_030_080),
        (GptShape::GPT2_XL, 1_557_611_200),
    ];
    for (shape, expected) in counts {
        let device = Device::sim(SimSpec::like_this_machine(8 << 30))?;
        let mut elements = 0;
        Gpt::gpt2(&device, KEY, shape)?
            .visit(&mut |_, parameter| elements += parameter.value().element_count());
        assert_eq!(elements, expected, "{shape:?}");
    }
    Ok(())
}
