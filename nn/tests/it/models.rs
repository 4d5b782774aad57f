//! The language model and its table of tokens.

use lowtide_autograd::{Attempt, Pass};
use lowtide_nn::models::{Gpt, GptShape};
use lowtide_nn::{Embedding, Module, Parameters, cross_entropy};
use lowtide_tensor::Tensor;

use crate::common::{KEY, Outcome, cpu, names, widen};

const SHAPE: GptShape = GptShape { vocabulary: 5, context: 4, width: 4, heads: 2, blocks: 2 };

#[test]
fn parameters_have_their_names_in_the_order_of_creation() -> Outcome {
    let names = names(&mut Gpt::new(&cpu(), KEY, SHAPE)?);
    assert_eq!(
        names[..6],
        [
            "tok.weight",
            "pos.weight",
            "blocks.0.ln1.weight",
            "blocks.0.ln1.bias",
            "blocks.0.qkv.weight",
            "blocks.0.qkv.bias",
        ]
    );
    assert_eq!(names[names.len() - 3..], ["norm.weight", "norm.bias", "head.weight"]);
    assert_eq!(names.len(), 2 + 12 * SHAPE.blocks + 3);
    Ok(())
}

#[test]
fn a_position_sees_none_that_come_later() -> Outcome {
    let device = cpu();
    let model = Gpt::new(&device, KEY, SHAPE)?;
    let run = |tokens: [i64; 4]| -> lowtide_nn::NnResult<Vec<f32>> {
        let pass = Pass::eval();
        let tokens = Tensor::from_slice(&device, [1, 4], &tokens)?;
        Ok(model.forward(&pass, pass.constant(tokens))?.value().to_vec::<f32>()?)
    };
    let (one, other) = (run([1, 2, 3, 4])?, run([1, 2, 0, 4])?);
    let cut = 2 * SHAPE.vocabulary;
    assert_eq!(one[..cut], other[..cut]);
    assert!(one[cut..].iter().zip(&other[cut..]).all(|(a, b)| a != b));
    Ok(())
}

#[test]
fn gradients_of_parameters_agree_with_differences() -> Outcome {
    const STEP: f64 = 1e-5;
    let device = cpu();
    let mut model = Gpt::new(&device, KEY, SHAPE)?;
    widen(&mut model);
    let tokens = Tensor::from_slice(&device, [2, 3], &[0_i64, 3, 1, 4, 2, 2])?;
    let labels = Tensor::from_slice(&device, [6], &[1_i64, 0, 4, 2, 2, 3])?;
    let loss = |model: &Gpt, pass: &Pass| {
        let logits = model.forward(pass, pass.constant(tokens.clone()))?;
        Ok::<_, lowtide_nn::NnError>(cross_entropy(logits.flatten(0..2)?, &labels)?.sum)
    };
    let attempt = Attempt::new();
    let pass = Pass::train(KEY, &attempt);
    pass.backward(loss(&model, &pass)?)?;
    let gradients = attempt.into_gradients();
    let mut parameters = Vec::new();
    model.visit(&mut |name, parameter| parameters.push((name.to_owned(), parameter.clone())));
    for (name, parameter) in parameters {
        let gradient = gradients.get(parameter.id()).expect("it counts").to_vec::<f64>()?;
        let values = parameter.value().reshape([gradient.len()])?;
        // Checks every seventh element, and the last.
        for at in (0..gradient.len()).filter(|at| at % 7 == 3 || at + 1 == gradient.len()) {
            let mut element = values.narrow(0, at, 1)?;
            let start = element.copied()?;
            let mut moved = |by: f64| -> Result<f64, Box<dyn std::error::Error>> {
                element.copy_(&start.add_scalar(by)?)?;
                Ok(loss(&model, &Pass::no_grad(KEY))?.value().item::<f64>()?)
            };
            let numeric = (moved(STEP)? - moved(-STEP)?) / (2.0 * STEP);
            moved(0.0)?;
            let error = (gradient[at] - numeric).abs();
            assert!(
                error <= 1e-6 + 1e-5 * numeric.abs(),
                "{name}[{at}]: {}, {numeric}",
                gradient[at]
            );
        }
    }
    Ok(())
}

#[test]
fn an_embedding_starts_from_the_standard_normal_distribution() -> Outcome {
    let device = cpu();
    let mut table = Embedding::new(&device, KEY, 100, 50)?;
    let mut values = Vec::new();
    table.visit(&mut |_, weight| values = weight.value().to_vec::<f32>().expect("f32"));
    let mean = values.iter().sum::<f32>() / 5000.0;
    let square = values.iter().map(|x| x * x).sum::<f32>() / 5000.0;
    // The bounds are five standard errors.
    assert!(mean.abs() < 0.07 && (square - 1.0).abs() < 0.1, "{mean} {square}");
    Ok(())
}
