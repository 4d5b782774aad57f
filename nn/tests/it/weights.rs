//! Weights files: a loaded file equals the saved model, and an error changes neither model nor
//! file.

use std::fs;
use std::path::Path;

use lowtide_nn::models::{SimpleCnn, SimpleCnnShape};
use lowtide_nn::{
    Buffer, Linear, NnError, Nodes, Parameter, Parameters, Visitor, WeightsProblem, load,
    parameters, save,
};
use lowtide_tensor::{DType, Device, RandomKey, Tensor};
use safetensors::SafeTensors;

use crate::common::{KEY, Outcome, Pair, all_bits, cpu, f32s};

const SHAPE: SimpleCnnShape = SimpleCnnShape { image: [1, 6, 6], channels: 3, classes: 4 };

fn cnn(device: &Device, seed: u64) -> SimpleCnn {
    SimpleCnn::new(device, RandomKey::new(seed), SHAPE).expect("memory")
}

/// The file names in a folder, sorted.
fn entries(folder: &Path) -> std::io::Result<Vec<String>> {
    let names = fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name().display().to_string()));
    let mut names = names.collect::<std::io::Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

#[test]
fn what_is_saved_is_loaded_bit_for_bit() -> Outcome {
    let device = cpu();
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("model.safetensors");
    let (mut one, mut other) = (cnn(&device, 1), cnn(&device, 2));
    let expected = all_bits(&mut one);
    assert_ne!(all_bits(&mut other), expected);
    save(&mut one, &path)?;
    load(&mut other, &path)?;
    assert_eq!(all_bits(&mut other), expected);
    assert_eq!(all_bits(&mut one), expected);
    assert_eq!(entries(folder.path())?, ["model.safetensors"]);
    Ok(())
}

#[test]
fn tensors_of_every_type_are_loaded_bit_for_bit() -> Outcome {
    /// A model of one buffer, which may have any type.
    struct Holder(Buffer);
    parameters!(Holder { 0 as "held" });
    let device = cpu();
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("model.safetensors");
    let values = Tensor::from_slice(&device, [2, 3], &[0.0_f32, 1.0, 0.1, 7.5, 3.0, 2.0])?;
    let types = [DType::F64, DType::F32, DType::F16, DType::BF16, DType::I64, DType::I32];
    for dtype in types.into_iter().chain([DType::U8, DType::Bool]) {
        let held = values.to_dtype(dtype)?;
        save(&mut Holder(Buffer::new(held.copied()?)), &path)?;
        let mut loaded = Holder(Buffer::new(Tensor::zeros(&device, [2, 3], dtype)?));
        load(&mut loaded, &path)?;
        assert_eq!(loaded.0.value().to_bytes()?, held.to_bytes()?, "{dtype}");
        for other in types.into_iter().filter(|other| *other != dtype) {
            let mut of_another = Holder(Buffer::new(Tensor::zeros(&device, [2, 3], other)?));
            let error = load(&mut of_another, &path).expect_err("another type");
            assert!(matches!(error, NnError::Weights { .. }), "{dtype} as {other}: {error}");
        }
    }
    Ok(())
}

#[test]
fn a_file_is_overwritten_whole() -> Outcome {
    let device = cpu();
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("model");
    fs::write(&path, vec![7; 100_000])?;
    let (mut one, mut other) = (cnn(&device, 1), cnn(&device, 2));
    save(&mut one, &path)?;
    load(&mut other, &path)?;
    assert_eq!(all_bits(&mut other), all_bits(&mut one));
    assert_eq!(entries(folder.path())?, ["model"]);
    Ok(())
}

#[test]
fn a_frozen_parameter_is_an_error_and_nothing_is_loaded() -> Outcome {
    let device = cpu();
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("model.safetensors");
    let (mut one, mut other) = (cnn(&device, 1), cnn(&device, 2));
    save(&mut one, &path)?;
    let before = all_bits(&mut other);
    // Freezes the parameter that is visited last.
    other.visit(&mut |name, parameter| {
        if name == "linear.bias" {
            parameter.value().freeze();
        }
    });
    assert!(load(&mut other, &path).unwrap_err().to_string().contains("frozen"));
    assert_eq!(all_bits(&mut other), before);
    Ok(())
}

#[test]
fn loading_keeps_storage_and_identity() -> Outcome {
    let device = cpu();
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("model");
    save(&mut cnn(&device, 1), &path)?;
    let mut model = cnn(&device, 2);
    let mut clone = model.clone();
    let memory = (device.allocator().layout_hash(), device.allocator().request_count());
    load(&mut model, &path)?;
    let after = (device.allocator().layout_hash(), device.allocator().request_count());
    assert_eq!(after, memory);
    assert_eq!(all_bits(&mut clone), all_bits(&mut model));
    Ok(())
}

#[test]
fn special_values_and_other_types_survive() -> Outcome {
    let device = cpu();
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("model");
    let odd = [f64::NAN, -0.0, f64::INFINITY, f64::MIN_POSITIVE / 2.0, f64::MAX];
    let new = |values: &[f64]| -> lowtide_tensor::TensorResult<Pair> {
        let empty = Tensor::from_slice::<f32>(&device, [0, 3], &[])?;
        Ok(Pair([Tensor::from_slice(&device, [5], values)?, empty].map(Parameter::new)))
    };
    let (mut one, mut other) = (new(&odd)?, new(&[0.0; 5])?);
    save(&mut one, &path)?;
    load(&mut other, &path)?;
    assert_eq!(all_bits(&mut other), all_bits(&mut one));
    Ok(())
}

/// A model of tensors of several widths.
struct Mixed(Buffer, Buffer, Buffer, Buffer);

parameters!(Mixed { 0 as "a", 1 as "b", 2 as "c", 3 as "d" });

#[test]
fn file_has_the_bytes_that_the_library_of_the_format_writes() -> Outcome {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("model.safetensors");
    let types = [DType::U8, DType::F64, DType::F16, DType::F32];
    let made = types.map(|dtype| Tensor::ones(&cpu(), [3], dtype).map(Buffer::new));
    let [Ok(a), Ok(b), Ok(c), Ok(d)] = made else { panic!("memory") };
    save(&mut Mixed(a, b, c, d), &path)?;
    let bytes = fs::read(&path)?;
    let file = SafeTensors::deserialize(&bytes)?;
    assert_eq!(file.len(), 4);
    assert_eq!(safetensors::serialize(file.tensors(), None)?, bytes);
    Ok(())
}

#[test]
fn the_file_is_an_ordinary_safetensors_file_with_pytorchs_names() -> Outcome {
    let device = cpu();
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("model");
    let mut linear = Linear::new(&device, KEY, 3, 2)?;
    save(&mut linear, &path)?;
    let bytes = fs::read(&path)?;
    let file = SafeTensors::deserialize(&bytes)?;
    let mut names = file.names();
    names.sort();
    assert_eq!(names, ["bias", "weight"]);
    let weight = file.tensor("weight")?;
    assert_eq!((weight.shape(), weight.dtype()), (&[2, 3][..], safetensors::Dtype::F32));
    let words = weight.data().as_chunks().0.iter();
    let found: Vec<f32> = words.map(|&word| f32::from_le_bytes(word)).collect();
    let mut expected = Vec::new();
    linear.visit(&mut |name, parameter| {
        if name == "weight" {
            expected = parameter.value().to_vec::<f32>().expect("f32 on the CPU");
        }
    });
    assert_eq!(found, expected);
    Ok(())
}

#[test]
fn a_file_of_pytorch_is_loaded() -> Outcome {
    // Keeps only the tensors under `initial.` of the fixture, without this prefix.
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let bytes = fs::read(fixture.join("simple_cnn.safetensors"))?;
    let file = SafeTensors::deserialize(&bytes)?;
    let initial =
        file.iter().filter_map(|(name, view)| Some((name.strip_prefix("initial.")?, view)));
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("initial.safetensors");
    fs::write(&path, safetensors::serialize(initial, None)?)?;

    let shape = SimpleCnnShape { image: [1, 8, 8], channels: 4, classes: 10 };
    let mut model = SimpleCnn::new(&cpu(), KEY, shape)?;
    load(&mut model, &path)?;
    model.visit(&mut |name, parameter| {
        let of_file = file.tensor(&format!("initial.{name}")).expect("in the fixture");
        let words = of_file.data().as_chunks().0.iter();
        let expected: Vec<f32> = words.map(|&word| f32::from_le_bytes(word)).collect();
        assert_eq!(parameter.value().to_vec::<f32>().expect("f32"), expected, "{name}");
    });
    Ok(())
}

/// Named parameters.
struct Named(Vec<(&'static str, Parameter)>);

impl Named {
    fn new(tensors: Vec<(&'static str, Tensor)>) -> Self {
        Named(tensors.into_iter().map(|(name, value)| (name, Parameter::new(value))).collect())
    }
}

impl Nodes for Named {
    fn visit_nodes(&mut self, visitor: &mut Visitor<'_>) {
        self.0.iter_mut().for_each(|(name, parameter)| visitor.field(*name, parameter));
    }
}

/// Loads a file of `saved` into a model with parameters `a` and `b`. Returns the name of a
/// parameter and its problem.
fn problem_with(device: &Device, saved: Vec<(&'static str, Tensor)>) -> (String, WeightsProblem) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("model.safetensors");
    save(&mut Named::new(saved), &file).expect("saved");
    let mut model = Pair::f32(device);
    let before = all_bits(&mut model);
    let versions = model.0.each_ref().map(|parameter| parameter.value().version());
    let error = load(&mut model, &file).expect_err("the file does not fit");
    let NnError::Weights { path, name, problem } = &error else { panic!("{error}") };
    assert_eq!(*path, file);
    let text = error.to_string();
    assert!(text.contains("model.safetensors") && text.contains(name.as_str()), "{text}");
    assert_eq!(all_bits(&mut model), before, "{error}");
    let after = model.0.each_ref().map(|parameter| parameter.value().version());
    assert_eq!(after, versions, "{error}");
    (name.clone(), problem.clone())
}

#[test]
fn a_file_that_does_not_fit_names_the_parameter_and_changes_nothing() -> Outcome {
    let device = cpu();
    let a = || ("a", f32s(&device, "other a", [2, 3]));
    let b = || ("b", f32s(&device, "other b", [5]));
    let (name, problem) = problem_with(&device, vec![a()]);
    assert_eq!((name.as_str(), problem), ("b", WeightsProblem::Missing));

    let c = ("c", f32s(&device, "c", [1]));
    let (name, problem) = problem_with(&device, vec![a(), b(), c]);
    assert_eq!((name.as_str(), problem), ("c", WeightsProblem::Unknown));

    let turned = ("a", f32s(&device, "turned", [3, 2]));
    let (name, problem) = problem_with(&device, vec![turned, b()]);
    let expected = WeightsProblem::Shape { found: vec![3, 2], expected: [2, 3].into() };
    assert_eq!((name.as_str(), problem), ("a", expected));

    let wide = ("b", b().1.to_dtype(lowtide_tensor::DType::F64)?);
    let (name, problem) = problem_with(&device, vec![a(), wide]);
    let expected = WeightsProblem::Type { found: "F64".into(), expected: "F32".into() };
    assert_eq!((name.as_str(), problem), ("b", expected));
    Ok(())
}

#[test]
fn what_is_not_a_safetensors_file_is_an_error_naming_it() -> Outcome {
    let device = cpu();
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("model");
    let mut model = cnn(&device, 1);
    save(&mut model, &path)?;
    let whole = fs::read(&path)?;
    let before = all_bits(&mut model);
    let broken = [&[][..], b"not at all", &[255; 64], &whole[..whole.len() - 1], &whole[..100]];
    for bytes in broken {
        fs::write(&path, bytes)?;
        let error = load(&mut model, &path).unwrap_err();
        let NnError::Format { path: named, .. } = &error else { panic!("{error}") };
        assert_eq!(*named, path);
        assert_eq!(all_bits(&mut model), before, "{} bytes", bytes.len());
    }
    Ok(())
}

#[test]
fn a_missing_file_is_an_error_naming_it() -> Outcome {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("nothing here");
    let error = load(&mut cnn(&cpu(), 1), &path).unwrap_err();
    let NnError::File { path: named, source } = &error else { panic!("{error}") };
    assert_eq!((named, source.kind()), (&path, std::io::ErrorKind::NotFound));
    assert!(error.to_string().contains("nothing here"), "{error}");
    Ok(())
}

fn check_save_fails(path: &Path) {
    let error = save(&mut cnn(&cpu(), 1), path).unwrap_err();
    let NnError::File { path: named, .. } = &error else { panic!("{error}") };
    assert_eq!(named, path);
}

#[test]
fn saving_into_a_missing_folder_is_an_error_and_makes_nothing() -> Outcome {
    let folder = tempfile::tempdir()?;
    check_save_fails(&folder.path().join("missing").join("model"));
    assert!(entries(folder.path())?.is_empty());
    Ok(())
}

#[test]
fn saving_onto_a_folder_is_an_error_and_leaves_it() -> Outcome {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("model");
    fs::create_dir(&path)?;
    fs::write(path.join("inside"), "kept")?;
    check_save_fails(&path);
    assert_eq!(entries(folder.path())?, ["model"]);
    assert_eq!(fs::read_to_string(path.join("inside"))?, "kept");
    Ok(())
}

#[test]
fn a_file_survives_a_save_that_fails() -> Outcome {
    let device = cpu();
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("model");
    save(&mut cnn(&device, 1), &path)?;
    let before = fs::read(&path)?;
    let mut simulated = cnn(&device, 2);
    let sim = device.simulate();
    simulated.visit_tensors(&mut |_, tensor| {
        *tensor = tensor.simulated_copy(&sim).expect("a simulated copy")
    });
    save(&mut simulated, &path).unwrap_err();
    assert_eq!(fs::read(&path)?, before);
    assert_eq!(entries(folder.path())?, ["model"]);
    Ok(())
}

#[cfg(unix)]
#[test]
fn a_link_to_a_model_stays_and_the_model_is_replaced() -> Outcome {
    let folder = tempfile::tempdir()?;
    let [path, link] = ["model", "link"].map(|name| folder.path().join(name));
    save(&mut cnn(&cpu(), 1), &path)?;
    let before = fs::read(&path)?;
    std::os::unix::fs::symlink("model", &link)?;
    save(&mut cnn(&cpu(), 2), &link)?;
    assert!(link.is_symlink() && fs::read(&path)? != before);
    assert_eq!(entries(folder.path())?, ["link", "model"]);
    Ok(())
}

#[test]
fn a_model_on_a_simulated_device_cannot_be_saved() -> Outcome {
    let device = cpu();
    let mut model = cnn(&device, 1);
    let sim = device.simulate();
    model.visit_tensors(&mut |_, tensor| {
        *tensor = tensor.simulated_copy(&sim).expect("a simulated copy")
    });
    let folder = tempfile::tempdir()?;
    let error = save(&mut model, &folder.path().join("model")).unwrap_err();
    assert!(error.to_string().contains("simulated"), "{error}");
    assert!(entries(folder.path())?.is_empty());
    Ok(())
}
