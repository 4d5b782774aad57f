//! Folders with quantised weights in the format of bitsandbytes.

use std::fs;
use std::path::Path;

use lowtide_autograd::Pass;
use lowtide_nn::{LoraOptions, Parameters, WeightsProblem, adapt, is_output_layer};
use lowtide_pretrained::{Config, Decoder, PretrainedError, load, save};
use lowtide_tensor::{DType, Device, QuantFormat};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};

use crate::common::{KEY, Outcome, Run, config, cpu, error, f64s, folder, small_sim};
use crate::files::stored;

const CASES: [(&str, QuantFormat); 2] = [
    ("quantized-nf4", QuantFormat::Nf4 { double: true }),
    ("quantized-int8", QuantFormat::Int8Rows),
];

fn logits(model: &Decoder, device: &Device, run: &Run) -> Outcome<Vec<f64>> {
    let pass = Pass::eval();
    let ids = pass.constant(run.tensor(device, "ids")?);
    f64s(model.logits(&pass, ids, None)?.value())
}

#[test]
fn a_model_that_bitsandbytes_wrote_says_what_its_decoded_weights_do() -> Outcome {
    for (case, format) in CASES {
        let (run, device) = (Run::read(case)?, cpu(2));
        let config = config(case)?;
        assert_eq!(config.quantization(), Some(format), "{case}");
        let mut model = config.load(&device, DType::F32)?;
        let expected = f64s(&run.tensor(&device, "logits")?)?;
        let distance = error(&logits(&model, &device, &run)?, &expected);
        assert!(distance < 3e-5, "{case}: {distance}");
        let mut count = 0;
        model.visit_linears(&mut |name, layer| {
            let weight = layer.quantized().map(|weight| weight.expect("f32 scales").format());
            assert_eq!(weight, (!is_output_layer(name)).then_some(format), "{case}: {name}");
            count += 1;
        });
        assert_eq!(count, 7 + 1, "{case}");
    }
    Ok(())
}

#[test]
fn what_is_quantized_here_has_the_tensors_that_bitsandbytes_writes() -> Outcome {
    for (case, format) in CASES {
        let (to, again, device) = (tempfile::tempdir()?, tempfile::tempdir()?, cpu(2));
        let mut read = config(case)?.load(&device, DType::F32)?;
        save(&mut read, to.path(), 1 << 30)?;
        // The description of a weight is JSON, and other programs may order the keys in another
        // way.
        let [ours, theirs] = [to.path(), &folder(case)].map(described);
        assert_eq!(ours?, theirs?, "{case}");
        // Quantising the decoded floats gives the same codes.
        let decode = |part: &mut dyn Parameters| {
            let mut outcome = Ok(());
            part.visit_linears(&mut |_, layer| {
                outcome = std::mem::replace(&mut outcome, Ok(())).and(layer.dequantize(DType::F32));
            });
            outcome
        };
        let mut floats = config(case)?.load_with(&device, DType::F32, decode)?;
        floats.visit_linears(&mut |name, layer| {
            assert!(layer.quantized().is_none());
            if !is_output_layer(name) {
                layer.quantize(format).expect("room");
            }
        });
        save(&mut floats, again.path(), 0)?;
        let codes = |folder: &Path| -> Outcome<Vec<_>> {
            let mut tensors = stored(folder)?;
            tensors.retain(|(name, ..)| name.ends_with("proj.weight"));
            Ok(tensors)
        };
        assert!(codes(again.path())? == codes(to.path())?, "{case}");
        config(case)?.save(again.path())?;
        let model = Config::open(again.path())?.load(&device, DType::F32)?;
        let run = Run::read(case)?;
        let [x, y] = [logits(&model, &device, &run)?, logits(&read, &device, &run)?];
        // Scales in 8 bits were rounded twice.
        assert!(error(&x, &y) < 0.05, "{case}");
    }
    Ok(())
}

/// A name, a shape, and the JSON or the bytes of a tensor.
type Described = (String, Vec<usize>, Result<Value, Vec<u8>>);

fn described(folder: &Path) -> Outcome<Vec<Described>> {
    let tensors = stored(folder)?.into_iter().map(|(name, shape, _, bytes)| {
        let json = name.contains("quant_state").then(|| serde_json::from_slice(&bytes));
        match json.transpose()? {
            Some(json) => Ok((name, Vec::new(), Ok(json))),
            None => Ok((name, shape, Err(bytes))),
        }
    });
    tensors.collect()
}

#[test]
fn a_quantized_folder_costs_nothing_of_the_budget_but_blocks_for_its_tensors() -> Outcome {
    for (case, _) in CASES {
        let in_use = |device: &Device| device.allocator().statistics().allocated.current_bytes;
        let (device, sim) = (cpu(1), small_sim(1));
        let mut model = config(case)?.load(&device, DType::F32)?;
        let planned = config(case)?.load(&sim, DType::F32)?;
        assert_eq!(in_use(&device), in_use(&sim), "{case}");
        let mut tensors = 0;
        model.visit_tensors(&mut |_, _| tensors += 1);
        let stand_ins = 7;
        assert!(in_use(&device) <= 512 * (tensors + stand_ins), "{case}: {}", in_use(&device));
        let weights = fs::metadata(folder(case).join("model.safetensors"))?.len() as usize;
        assert!(device.mapped_bytes() > weights / 2, "{case}");
        let mut is_frozen = true;
        model.visit(&mut |_, parameter| is_frozen &= parameter.is_frozen());
        assert!(is_frozen, "{case}");
        // Adapters are trained in addition to the model.
        adapt(&mut model, KEY, &LoraOptions { rank: 2, ..LoraOptions::default() })?;
        drop(planned);
    }
    Ok(())
}

/// The files of a case with one tensor changed.
fn changed(
    case: &str,
    name: &str,
    change: impl Fn(&mut Vec<u8>, &mut Vec<usize>),
) -> Outcome<tempfile::TempDir> {
    let to = tempfile::tempdir()?;
    config(case)?.save(to.path())?;
    let bytes = fs::read(folder(case).join("model.safetensors"))?;
    let file = SafeTensors::deserialize(&bytes)?;
    let mut owned = Vec::new();
    for (own, view) in file.iter() {
        let (mut bytes, mut shape) = (view.data().to_vec(), view.shape().to_vec());
        if own == name {
            change(&mut bytes, &mut shape);
        }
        if !shape.contains(&usize::MAX) {
            owned.push((own.to_owned(), view.dtype(), shape, bytes));
        }
    }
    let views = owned.iter().map(|(name, dtype, shape, bytes)| {
        Ok((name, TensorView::new(*dtype, shape.clone(), bytes)?))
    });
    let views: Outcome<Vec<_>> = views.collect();
    safetensors::serialize_to_file(views?, None, &to.path().join("model.safetensors"))?;
    Ok(to)
}

#[test]
fn codes_that_mean_something_else_are_refused_by_name() -> Outcome {
    const LAYER: &str = "model.layers.0.mlp.up_proj";
    let refused = |case: &str, name: &str, change: &dyn Fn(&mut Vec<u8>, &mut Vec<usize>)| {
        let folder = changed(case, &format!("{LAYER}.{name}"), change)?;
        let device = cpu(1);
        let found = Config::open(folder.path())?.load(&device, DType::F32);
        assert_eq!(device.allocator().statistics().allocated.current_bytes, 0, "{name}");
        let Err(PretrainedError::Weights { problems, .. }) = found else {
            return Err(format!("{name} was taken").into());
        };
        assert!(problems[0].name.starts_with(LAYER), "{problems:?}");
        Outcome::Ok(problems[0].problem.clone())
    };
    let state = "weight.quant_state.bitsandbytes__nf4";
    let with = |key: &'static str, value: Value| {
        move |bytes: &mut Vec<u8>, shape: &mut Vec<usize>| {
            let mut json: Value = serde_json::from_slice(bytes).expect("JSON");
            json[key] = value.clone();
            *bytes = json.to_string().into_bytes();
            *shape = vec![bytes.len()];
        }
    };
    let nf4 = "quantized-nf4";
    refused(nf4, state, &with("blocksize", json!(128)))?;
    refused(nf4, state, &with("nested_blocksize", json!(64)))?;
    refused(nf4, state, &with("nested_offset", json!(null)))?;
    refused(nf4, state, &with("shape", json!([32, 48])))?;
    refused(nf4, state, &with("shape", json!("many")))?;
    refused(nf4, state, &|bytes, _| bytes.fill(b'['))?;
    refused(nf4, "weight.quant_map", &|bytes, _| bytes[4] ^= 1)?;
    let shorter = |bytes: &mut Vec<u8>, shape: &mut Vec<usize>| {
        bytes.truncate(bytes.len() - bytes.len() / shape[0]);
        shape[0] -= 1;
    };
    refused(nf4, "weight", &shorter)?;
    refused(nf4, "weight.absmax", &shorter)?;
    refused(nf4, "weight.nested_quant_map", &shorter)?;
    let gone = |_: &mut Vec<u8>, shape: &mut Vec<usize>| *shape = vec![usize::MAX];
    let missing = refused(nf4, "weight.nested_absmax", &gone)?;
    assert_eq!(missing, WeightsProblem::Missing);
    refused("quantized-int8", "SCB", &shorter)?;
    refused("quantized-int8", "SCB", &gone)?;
    Ok(())
}

#[test]
fn a_model_in_memory_does_not_take_codes_for_floats() -> Outcome {
    let mut model = config("quantized-nf4")?.decoder(&cpu(1), KEY, DType::F32)?;
    match load(&mut model, folder("quantized-nf4")) {
        Err(PretrainedError::Weights { problems, .. }) => assert_eq!(problems.len(), 7),
        other => panic!("{other:?}"),
    }
    Ok(())
}

#[test]
fn formats_that_files_do_not_have_are_refused() -> Outcome {
    let to = tempfile::tempdir()?;
    let config = config("quantized-nf4")?;
    let mut model = config.decoder(&cpu(1), KEY, DType::F32)?;
    model.visit_linears(&mut |name, layer| {
        if name.ends_with("q_proj") {
            layer.quantize(QuantFormat::Q8_0).expect("rows of whole blocks");
        }
    });
    match save(&mut model, to.path(), 1 << 30) {
        Err(PretrainedError::Weights { problems, .. }) => {
            assert_eq!(problems[0].name, "model.layers.0.self_attn.q_proj.weight");
            assert_eq!(problems.len(), 1);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(fs::read_dir(to.path())?.count(), 0);
    assert!(config.clone().with_quantization(Some(QuantFormat::Q4_0)).is_none());
    config.with_quantization(None).expect("floats").save(to.path())?;
    assert_eq!(Config::open(to.path())?.quantization(), None);
    Ok(())
}
