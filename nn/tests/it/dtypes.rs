//! Layers and models in float types other than f32.

use lowtide_autograd::{Attempt, Pass, Var};
use lowtide_nn::models::{Gpt, GptShape, SimpleCnn};
use lowtide_nn::{
    BatchNorm2d, Embedding, Linear, Module, NnError, NnResult as Result, Nodes, Parameter,
    Parameters, Visitor, load, save,
};
use lowtide_tensor::{DType, Device, Tensor};

use crate::common::{KEY, Outcome, cpu, f64s};
use crate::layer_list::{CNN, Layer, all};

const TYPES: [DType; 3] = [DType::F64, DType::BF16, DType::F16];

fn bytes(model: &mut dyn Parameters) -> Vec<(String, DType, Vec<u8>)> {
    let mut found = Vec::new();
    model.visit_tensors(&mut |name, value| {
        found.push((name.to_owned(), value.dtype(), value.to_bytes().expect("values")));
    });
    found
}

/// Runs forward and backward, and loads a file of `module` into `fresh`, a module of the same kind.
fn check(kind: &str, module: &mut dyn Module, fresh: &mut dyn Module, x: Tensor) -> Outcome {
    for dtype in TYPES {
        module.set_dtype(dtype)?;
        let input = if x.dtype().is_float() { x.to_dtype(dtype)? } else { x.clone() };
        let attempt = Attempt::new();
        let pass = Pass::train(KEY, &attempt);
        let y = module.forward(&pass, pass.constant(input))?;
        assert_eq!(y.value().dtype(), dtype, "{kind}");
        if y.needs_gradient() {
            pass.backward(y.sum_all()?)?;
        }
        let gradients = attempt.into_gradients();
        module.visit(&mut |name, parameter| {
            assert_eq!(parameter.value().dtype(), dtype, "{name} of {kind}");
            let gradient = gradients.get(parameter.id()).expect("it has influence");
            assert_eq!(gradient.dtype(), dtype, "{name} of {kind}");
        });

        let folder = tempfile::tempdir()?;
        let path = folder.path().join("weights.safetensors");
        save(module, &path)?;
        fresh.set_dtype(dtype)?;
        fresh.visit(&mut |_, parameter| parameter.value_mut().fill_(0.0).expect("floats"));
        load(fresh, &path)?;
        assert_eq!(bytes(fresh), bytes(module), "{kind} in {dtype}");
    }
    Ok(())
}

#[test]
fn every_layer_runs_and_is_stored_in_every_float_type() -> Outcome {
    let device = cpu();
    for (layer, mut fresh) in all(&device)?.into_iter().zip(all(&device)?) {
        let Layer { kind, mut module, input, .. } = layer;
        let flat = f64s(&device, "input", [input.iter().product()]);
        check(kind, &mut *module, &mut *fresh.module, flat.reshape(&input[..])?)?;
    }
    let index = Tensor::from_slice(&device, [2, 3], &[0_i64, 4, 1, 1, 2, 3])?;
    let table = || Embedding::new(&device, KEY, 5, 4);
    check("Embedding", &mut table()?, &mut table()?, index)
}

#[test]
fn a_language_model_with_a_shared_table_runs_in_every_float_type() -> Outcome {
    let device = cpu();
    let shape = GptShape { vocabulary: 11, context: 6, width: 8, heads: 2, blocks: 2 };
    let tokens = Tensor::from_slice(&device, [1, 4], &[0_i64, 10, 3, 3])?;
    let model = || Gpt::gpt2(&device, KEY, shape);
    check("Gpt", &mut model()?, &mut model()?, tokens)
}

#[test]
fn statistics_of_half_types_stay_f32_and_integers_what_they_are() -> Outcome {
    let mut layer = BatchNorm2d::new(&cpu(), 3)?;
    let types = |layer: &mut BatchNorm2d| {
        let mut found = Vec::new();
        layer.visit_buffers(&mut |_, buffer| found.push(buffer.value().dtype()));
        found
    };
    layer.set_dtype(DType::BF16)?;
    assert_eq!(types(&mut layer), [DType::F32, DType::F32, DType::I64]);
    layer.set_dtype(DType::F64)?;
    assert_eq!(types(&mut layer), [DType::F64, DType::F64, DType::I64]);
    Ok(())
}

/// Two parameters, which may be the same, under two names.
struct Tied([Parameter; 2]);

impl Nodes for Tied {
    fn visit_nodes(&mut self, visitor: &mut Visitor<'_>) {
        let [a, b] = &mut self.0;
        visitor.field("a", a);
        visitor.field("b", b);
    }
}

impl Module for Tied {
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        Ok(input.mul(self.0[0].var(pass)?)?.add(self.0[1].var(pass)?)?)
    }
}

#[test]
fn a_parameter_in_two_places_stays_one() -> Outcome {
    let device = cpu();
    let one = Parameter::full(&device, [3], 2.0)?;
    let mut model = Tied([one.clone(), one]);
    model.set_dtype(DType::F64)?;
    let [a, b] = &model.0;
    assert!(a.value().shares_storage(b.value()) && a.id() == b.id());
    let (attempt, x) = (Attempt::new(), f64s(&device, "x", [3]));
    let pass = Pass::train(KEY, &attempt);
    pass.backward(model.forward(&pass, pass.constant(x))?.sum_all()?)?;
    assert_eq!(attempt.len(), 1);
    Ok(())
}

#[test]
fn integers_are_refused_and_change_nothing() -> Outcome {
    let mut model = SimpleCnn::new(&cpu(), KEY, CNN)?;
    let before = bytes(&mut model);
    let error = model.set_dtype(DType::I64).unwrap_err();
    assert!(matches!(error, NnError::Autograd(_)), "{error}");
    assert_eq!(bytes(&mut model), before);
    Ok(())
}

#[test]
fn memory_that_is_not_there_changes_nothing() -> Outcome {
    let device = Device::cpu(lowtide_tensor::CpuOptions {
        budget_bytes: Some(1 << 20),
        threads: Some(1),
        ..Default::default()
    })?;
    let mut model = Linear::new(&device, KEY, 256, 512)?;
    let before = bytes(&mut model);
    let error = model.set_dtype(DType::F64).unwrap_err();
    assert!(error.out_of_memory().is_some(), "{error}");
    assert_eq!(bytes(&mut model), before);
    Ok(())
}
