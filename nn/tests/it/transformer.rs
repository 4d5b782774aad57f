//! Masks, attention to another sequence, and layers of encoders and decoders.

use lowtide_autograd::{Attempt, Pass, Var, check};
use lowtide_nn::{
    HiddenActivation, Module, MultiHeadAttention, MultiHeadOptions, NnError, NnResult as Result,
    NormPlace, Parameters, TransformerDecoderLayer, TransformerEncoderLayer, TransformerOptions,
    key_padding_mask,
};
use lowtide_tensor::{Causal, Device, Tensor, TensorError};

use crate::common::{KEY, Outcome, cpu, f64s, widen};
use crate::zoo::fill;

const PLAIN: TransformerOptions = TransformerOptions {
    width: 4,
    heads: 2,
    hidden: 6,
    dropout: 0.0,
    activation: HiddenActivation::Gelu,
    norm: NormPlace::After,
    eps: 1e-5,
    causal: Causal::No,
    rotary: None,
    bias: true,
};

fn values(result: Result<Var>) -> Result<Vec<f64>> {
    Ok(result?.value().to_vec::<f64>()?)
}

fn assert_close(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() <= 1e-12, "{found} {expected}");
    }
}

fn attention(device: &Device, options: MultiHeadOptions) -> Result<MultiHeadAttention> {
    let mut attention = MultiHeadAttention::new(device, KEY, options)?;
    fill(&mut attention);
    widen(&mut attention);
    Ok(attention)
}

#[test]
fn attention_to_itself_is_attention_to_a_sequence_that_is_the_same() -> Outcome {
    let device = cpu();
    for groups in [2, 1] {
        let options = MultiHeadOptions { groups, ..MultiHeadOptions::new(4, 2) };
        let attention = attention(&device, options)?;
        let pass = Pass::eval();
        let x = || pass.constant(f64s(&device, "x", [2, 3, 4]));
        let own = values(attention.forward(&pass, x()))?;
        assert_close(&values(attention.attend(&pass, x(), x(), None))?, &own);
    }
    Ok(())
}

#[test]
fn padding_is_as_if_it_were_not_there() -> Outcome {
    let device = cpu();
    let mut layer = TransformerEncoderLayer::new(&device, KEY, PLAIN)?;
    let mut decoder = TransformerDecoderLayer::new(&device, KEY, PLAIN)?;
    widen(&mut layer);
    widen(&mut decoder);
    let pass = Pass::eval();
    let whole = f64s(&device, "x", [1, 5, 4]);
    let part = whole.narrow(1, 0, 3)?;
    let y = f64s(&device, "y", [1, 2, 4]);
    let padding = Tensor::from_slice(&device, [1, 5], &[false, false, false, true, true])?;
    let mask = key_padding_mask(&padding)?;

    let masked = values(layer.forward_masked(&pass, pass.constant(whole.clone()), Some(&mask)))?;
    let short = values(layer.forward(&pass, pass.constant(part.clone())))?;
    assert_close(&masked[..12], &short);
    let unmasked = values(layer.forward(&pass, pass.constant(whole.clone())))?;
    assert!(masked.iter().zip(&unmasked).all(|(a, b)| a != b), "the mask counts");

    let decode = |memory: &Tensor, mask| {
        let (y, memory) = (pass.constant(y.clone()), pass.constant(memory.clone()));
        values(decoder.decode(&pass, y, memory, [None, mask]))
    };
    assert_close(&decode(&whole, Some(&mask))?, &decode(&part, None)?);
    Ok(())
}

#[test]
fn gradients_of_a_decoder_agree_with_differences() -> Outcome {
    let device = cpu();
    let padding = Tensor::from_slice(
        &device,
        [2, 4],
        &[false, false, true, true, false, false, false, true],
    )?;
    let mask = key_padding_mask(&padding)?;
    for norm in [NormPlace::After, NormPlace::Before] {
        let options = TransformerOptions { norm, causal: Causal::UpperLeft, ..PLAIN };
        let mut decoder = TransformerDecoderLayer::new(&device, KEY, options)?;
        fill(&mut decoder);
        widen(&mut decoder);
        let forward = |pass: &Pass, inputs: Vec<Var>| {
            let [x, memory] = <[Var; 2]>::try_from(inputs).unwrap_or_else(|_| panic!("two"));
            let y = decoder.decode(pass, x, memory, [None, Some(&mask)]);
            y.map_err(NnError::into_autograd)
        };
        let inputs = [f64s(&device, "x", [2, 3, 4]), f64s(&device, "memory", [2, 4, 4])];
        check::gradients(forward, &inputs)?;
    }
    Ok(())
}

#[test]
fn every_parameter_of_a_decoder_has_a_gradient() -> Outcome {
    let device = cpu();
    let mut decoder = TransformerDecoderLayer::new(&device, KEY, PLAIN)?;
    fill(&mut decoder);
    let attempt = Attempt::new();
    let pass = Pass::train(KEY, &attempt);
    let x = |name, len| {
        let x = f64s(&device, name, [1, len, 4]).to_dtype(lowtide_tensor::DType::F32);
        x.map(|x| pass.constant(x))
    };
    let y = decoder.decode(&pass, x("x", 2)?, x("memory", 3)?, [None, None])?;
    let weights =
        pass.constant(f64s(&device, "w", [1, 2, 4]).to_dtype(lowtide_tensor::DType::F32)?);
    pass.backward(y.mul(weights)?.sum_all()?)?;
    let gradients = attempt.into_gradients();
    decoder.visit(&mut |name, parameter| {
        let gradient = gradients.get(parameter.id()).unwrap_or_else(|| panic!("{name}"));
        let values = gradient.to_vec::<f32>().expect("f32");
        assert!(values.iter().any(|&x| x != 0.0), "{name}");
    });
    Ok(())
}

#[test]
fn shapes_that_do_not_fit_are_errors() -> Outcome {
    let device = cpu();
    let attention = attention(&device, MultiHeadOptions::new(4, 2))?;
    let pass = Pass::eval();
    let x = |shape: [usize; 3]| pass.constant(f64s(&device, "x", shape));
    let is_shape = |error: Option<NnError>| match error {
        Some(NnError::Autograd(lowtide_autograd::AutogradError::Tensor(error))) => {
            matches!(error, TensorError::Shape { .. })
        }
        _ => false,
    };
    // Another width, another batch, and a mask of another length.
    assert!(is_shape(attention.attend(&pass, x([1, 2, 4]), x([1, 3, 5]), None).err()));
    assert!(is_shape(attention.attend(&pass, x([1, 2, 4]), x([2, 3, 4]), None).err()));
    let padding = Tensor::from_slice(&device, [1, 2], &[false, true])?;
    let mask = key_padding_mask(&padding)?;
    assert!(is_shape(attention.attend(&pass, x([1, 2, 4]), x([1, 3, 4]), Some(&mask)).err()));
    assert!(is_shape(key_padding_mask(&padding.reshape([2])?).err()));
    for wrong in
        [TransformerOptions { heads: 3, ..PLAIN }, TransformerOptions { dropout: 1.0, ..PLAIN }]
    {
        let error = TransformerEncoderLayer::new(&device, KEY, wrong).err();
        assert!(matches!(error, Some(NnError::Option { .. })), "{error:?}");
    }
    Ok(())
}
