//! ONNX graphs: order, operations and weights, read by a small reader here; logits, if Python has
//! onnxruntime.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use lowtide_nn::{LoraOptions, Parameters, adapt};
use lowtide_pretrained::{
    BertShape, DecoderShape, ExportProblem, ModelConfig, OnnxModel, OnnxOptions, OnnxType,
    PretrainedError, ResNetShape, Shape, ViTShape, save_onnx,
};
use lowtide_tensor::{DType, Tensor, f16};
use serde_json::{Value, json};

use crate::common::{CASES, KEY, Outcome, config, cpu, f64s, folder};
use crate::python::Python;

/// A field of a message: a number, or bytes.
enum Field<'a> {
    Int(u64),
    Bytes(&'a [u8]),
}

/// The fields of a message with their numbers.
struct Message<'a>(Vec<(u64, Field<'a>)>);

impl<'a> Message<'a> {
    fn read(mut bytes: &'a [u8]) -> Self {
        let mut fields = Vec::new();
        while !bytes.is_empty() {
            let key = varint(&mut bytes);
            let field = match key & 7 {
                0 => Field::Int(varint(&mut bytes)),
                2 => {
                    let len = varint(&mut bytes) as usize;
                    Field::Bytes(take(&mut bytes, len))
                }
                5 => Field::Bytes(take(&mut bytes, 4)),
                other => panic!("no field of kind {other} is written"),
            };
            fields.push((key >> 3, field));
        }
        Message(fields)
    }

    fn all(&self, number: u64) -> impl Iterator<Item = &'a [u8]> + '_ {
        self.0.iter().filter_map(move |(found, field)| match field {
            Field::Bytes(bytes) if *found == number => Some(*bytes),
            _ => None,
        })
    }

    fn messages(&self, number: u64) -> impl Iterator<Item = Message<'a>> + '_ {
        self.all(number).map(Message::read)
    }

    fn ints(&self, number: u64) -> Vec<u64> {
        let ints = self.0.iter().filter_map(|(found, field)| match field {
            Field::Int(value) if *found == number => Some(*value),
            _ => None,
        });
        ints.collect()
    }

    fn text(&self, number: u64) -> String {
        let bytes = self.all(number).next().unwrap_or_default();
        String::from_utf8(bytes.to_vec()).expect("UTF-8")
    }
}

fn take<'a>(bytes: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (taken, rest) = bytes.split_at(len);
    *bytes = rest;
    taken
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let (mut value, mut shift) = (0, 0);
    loop {
        let byte = take(bytes, 1)[0];
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return value;
        }
        shift += 7;
    }
}

/// A weight of the data file.
struct Weight {
    sizes: Vec<usize>,
    values: Vec<f64>,
}

/// Checks the order of a graph and returns its weights.
fn check_graph(place: &Path, elements: u64, case: &str) -> Outcome<BTreeMap<String, Weight>> {
    let (bytes, data) =
        (fs::read(place.join("model.onnx"))?, fs::read(place.join("model.onnx.data"))?);
    let model = Message::read(&bytes);
    assert_eq!(model.messages(8).map(|it| it.ints(2)).collect::<Vec<_>>(), [[17]]);
    let graph = model.messages(7).next().ok_or("no graph")?;
    let names = |number| graph.messages(number).map(|it| it.text(1)).collect::<Vec<_>>();
    assert_eq!((names(11), names(12)), (vec!["input_ids".to_owned()], vec!["logits".to_owned()]));
    let mut known: BTreeSet<String> = names(11).into_iter().collect();
    let mut weights = BTreeMap::new();
    let mut end = 0;
    for tensor in graph.messages(5) {
        let name = tensor.text(8);
        assert!(known.insert(name.clone()), "{case}: {name} twice");
        let entries: BTreeMap<String, String> =
            tensor.messages(13).map(|entry| (entry.text(1), entry.text(2))).collect();
        if entries.is_empty() {
            continue;
        }
        assert_eq!((tensor.ints(2), tensor.ints(14)), (vec![elements], vec![1]), "{case} {name}");
        assert_eq!(entries["location"], "model.onnx.data");
        let (start, len): (usize, usize) = (entries["offset"].parse()?, entries["length"].parse()?);
        assert!(start % 4096 == 0 && start >= end && start + len <= data.len(), "{case} {name}");
        end = start + len;
        let stored = &data[start..end];
        let values = match elements {
            1 => stored
                .chunks_exact(4)
                .map(|it| f64::from(f32::from_le_bytes([it[0], it[1], it[2], it[3]])))
                .collect(),
            _ => stored
                .chunks_exact(2)
                .map(|it| f16::from_le_bytes([it[0], it[1]]).to_f64())
                .collect(),
        };
        let sizes = tensor.ints(1).into_iter().map(|size| size as usize).collect();
        weights.insert(name, Weight { sizes, values });
    }
    assert_eq!(end, data.len(), "{case}");
    for node in graph.messages(1) {
        for input in node.all(1).map(String::from_utf8_lossy) {
            assert!(known.contains(&*input), "{case}: {input} is not there yet");
        }
        for output in node.all(2).map(String::from_utf8_lossy) {
            assert!(known.insert(output.to_string()), "{case}: {output} twice");
        }
        // The operations are in the standard domain.
        assert_eq!(node.text(7), "");
    }
    assert!(known.contains("logits"), "{case}");
    Ok(weights)
}

#[test]
fn graphs_are_in_order_and_have_every_parameter_in_a_file_beside() -> Outcome {
    let place = tempfile::tempdir()?;
    for &case in CASES.iter() {
        for (dtype, tensor_type, elements) in [
            (DType::F32, None, 1),
            (DType::BF16, None, 1),
            (DType::F16, None, 10),
            (DType::F64, Some(OnnxType::F16), 10),
        ] {
            let config = config(case)?;
            let mut model = config.load(&cpu(1), dtype)?;
            save_onnx(&mut model, &config, place.path(), &OnnxOptions { tensor_type })?;
            let weights = check_graph(place.path(), elements, case)?;
            let mut parameters: Vec<(String, Tensor)> = Vec::new();
            model.visit(&mut |name, it| parameters.push((name.to_owned(), it.value().clone())));
            assert_eq!(weights.len(), parameters.len(), "{case}");
            for (name, value) in parameters {
                let found = &weights[&name];
                let is_table =
                    ["embed", "wte", "wpe", "lm_head"].iter().any(|it| name.contains(it));
                let is_turned = value.shape().len() == 2 && !is_table;
                let value = if is_turned { value.t()?.contiguous()? } else { value };
                assert_eq!(found.sizes, value.shape().to_vec(), "{case} {name}");
                let addend =
                    if case.starts_with("gemma") && name.contains("norm") { 1.0 } else { 0.0 };
                let rounded = |x: f64| match elements {
                    1 => f64::from(x as f32 + addend as f32),
                    _ => f16::from_f32(x as f32 + addend as f32).to_f64(),
                };
                let expected: Vec<f64> = f64s(&value)?.into_iter().map(rounded).collect();
                assert_eq!(found.values, expected, "{case} {name}");
            }
        }
        assert_eq!(fs::read_dir(place.path())?.count(), 2, "{case}");
    }
    Ok(())
}

#[test]
fn models_with_adapters_have_no_graph() -> Outcome {
    let (place, config) = (tempfile::tempdir()?, config("llama")?);
    let mut model = config.load(&cpu(1), DType::F32)?;
    adapt(&mut model, KEY, &LoraOptions::default())?;
    match save_onnx(&mut model, &config, place.path(), &OnnxOptions::default()) {
        Err(PretrainedError::Export { problem, .. }) => {
            assert_eq!(problem, ExportProblem::Parameters);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(fs::read_dir(place.path())?.count(), 0);
    Ok(())
}

/// The graphs of a case in both types, as jobs of a comparison.
fn saved<S: Shape<Model: OnnxModel>>(case: &str, place: &Path) -> Outcome<Vec<Value>> {
    let config = ModelConfig::<S>::open(folder(case))?;
    let mut jobs = Vec::new();
    for (kind, name, tolerance) in [(OnnxType::F32, "f32", 1e-4), (OnnxType::F16, "f16", 3e-2)] {
        let to = place.join(format!("{case}-{name}"));
        let mut model = config.load(&cpu(1), DType::F32)?;
        save_onnx(&mut model, &config, &to, &OnnxOptions { tensor_type: Some(kind) })?;
        let (folder, file) = (folder(case), to.join("model.onnx"));
        jobs.push(json!({ "folder": folder, "file": file, "tolerance": tolerance }));
    }
    Ok(jobs)
}

#[test]
fn onnxruntime_computes_the_logits_of_transformers() -> Outcome {
    const NAME: &str = "onnxruntime_computes_the_logits_of_transformers";
    let packages = ["onnx", "onnxruntime", "torch", "transformers"];
    let Some(python) = Python::with(NAME, &packages) else { return Ok(()) };
    let place = tempfile::tempdir()?;
    let mut jobs = Vec::new();
    for &case in CASES.iter() {
        jobs.extend(saved::<DecoderShape>(case, place.path())?);
    }
    for case in ["bert", "bert-classes"] {
        jobs.extend(saved::<BertShape>(case, place.path())?);
    }
    for case in ["vit", "vit-larger-images"] {
        jobs.extend(saved::<ViTShape>(case, place.path())?);
    }
    for case in ["resnet-basic", "resnet-bottleneck"] {
        jobs.extend(saved::<ResNetShape>(case, place.path())?);
    }
    let list = place.path().join("jobs.json");
    fs::write(&list, serde_json::to_vec(&jobs)?)?;
    python.run("tests/it/check_onnx.py", &[&list]);
    Ok(())
}
