//! Masks, cross-attention, and encoder and decoder layers.

use lowtide_autograd::{Attempt, Pass, Var, check};
use lowtide_nn::{
    HiddenActivation, Module, MultiHeadAttention, MultiHeadOptions, NnError, NnResult as Result,
    NormPlace, Parameter, Parameters, Transformer, TransformerDecoderLayer,
    TransformerEncoderLayer, TransformerMasks, TransformerOptions, key_padding_mask,
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
    // Errors: another width, another batch, and a mask of another length.
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

/// `2 · (i · step mod modulus - ⌊modulus / 2⌋) / modulus`
fn counted(len: usize, [step, modulus]: [usize; 2]) -> Vec<f64> {
    let number = |i| ((i * step % modulus) as f64 - (modulus / 2) as f64) / modulus as f64 * 2.0;
    (0..len).map(number).collect()
}

#[test]
fn an_encoder_and_a_decoder_are_those_of_pytorch() -> Outcome {
    let device = cpu();
    let options = TransformerOptions {
        hidden: 3,
        dropout: 0.0,
        causal: Causal::UpperLeft,
        ..TransformerOptions::new(4, 2)
    };
    let mut model = Transformer::new(&device, KEY, [1, 2], options)?;
    widen(&mut model);
    let (mut names, mut outcome) = (Vec::new(), Ok(()));
    model.visit(&mut |name, parameter| {
        let index = names.len();
        let of = [5 + 2 * (index % 3), 11 + 2 * (index % 2)];
        let shape = *parameter.value().shape();
        match Tensor::from_slice(&device, shape, &counted(shape.element_count(), of)) {
            Ok(value) => *parameter.value_mut() = value,
            Err(error) => outcome = Err(error),
        }
        names.push(name.to_owned());
    });
    outcome?;
    assert_eq!(names.len(), 52);
    assert_eq!(names[12], "encoder.norm.weight");
    assert_eq!(names[18], "decoder.layers.0.multihead_attn.in_proj_weight");
    assert_eq!(names[51], "decoder.norm.bias");
    let source = Tensor::from_slice(&device, [1, 3, 4], &counted(12, [5, 7]))?;
    let target = Tensor::from_slice(&device, [1, 2, 4], &counted(8, [3, 5]))?;
    let seen = Tensor::from_slice(&device, [2, 3], &[true, false, true, true, true, true])?;
    let attempt = Attempt::new();
    let pass = Pass::train(KEY, &attempt);
    let [x, t] = [source, target].map(Parameter::new);
    let masks = TransformerMasks { memory: Some(&seen), ..Default::default() };
    let y = model.run(&pass, x.var(&pass)?, t.var(&pass)?, masks)?;
    let expected = [
        0.5627099310202206,
        0.1729063494744711,
        0.6632815812027171,
        -0.6153846153846154,
        0.5636410396029036,
        0.1706576809644839,
        0.665111995678075,
        -0.6153846153846154,
    ];
    assert_close(&y.value().to_vec::<f64>()?, &expected);
    let weights = Tensor::from_slice(&device, [1, 2, 4], &counted(8, [5, 9]))?;
    pass.backward(y.mul(pass.constant(weights))?.sum_all()?)?;
    let gradients = attempt.into_gradients();
    let gradient = |of: &Parameter| gradients.get(of.id()).expect("a gradient").to_vec::<f64>();
    let expected = [
        -0.01209202291910879,
        0.00212162275322358,
        -0.004059689476783914,
        0.002293036023195886,
        -0.001195058807231495,
        -0.003314119745962065,
        0.004088679690081884,
        -0.002490451926150563,
        -0.006542697376554003,
        0.005859623812910384,
        -0.001048693060295635,
        0.00145588122437562,
    ];
    assert_close(&gradient(&x)?, &expected);
    let expected = [
        0.002785271615880116,
        0.005154472535759664,
        -0.006015627419279913,
        0.0004542432023754402,
        6.09257300053998e-05,
        0.0006790888924627498,
        -4.706413170530433e-05,
        -0.0003640570004494468,
    ];
    assert_close(&gradient(&t)?, &expected);
    Ok(())
}
