//! Optimizer states are written to files and read back.

use std::path::{Path, PathBuf};

use lowtide_allocator::{Fault, Repeat};
use lowtide_nn::optim::{
    Adam, AdamOptions, Lamb, LambOptions, Optimizer, Scheduled, Sgd, SgdOptions, load_state,
    save_state,
};
use lowtide_nn::{NnError, NnResult as Result, Parameter, Parameters, WeightsProblem};
use lowtide_tensor::{DType, Device, Tensor};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};

use crate::common::{
    Named, Outcome, Pair, all_bits, cpu, f64s, gradients_are, optimizers, state_bits,
};

fn step(optimizer: &mut dyn Optimizer, model: &mut Pair, name: &str) -> Result<()> {
    let device = model.0[0].value().device().clone();
    let (a, b) = (f64s(&device, name, [2, 3]), f64s(&device, name, [5]));
    let gradients = gradients_are(&[(&model.0[0], a), (&model.0[1], b)])?;
    optimizer.prepare(model, gradients)?.commit()
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("optimizer.safetensors");
    (folder, path)
}

#[test]
fn an_optimizer_goes_on_from_its_file_with_the_same_bits() -> Outcome {
    let (_folder, path) = folder();
    for ((name, mut whole), (_, mut resumed)) in optimizers().into_iter().zip(optimizers()) {
        let (device, other) = (cpu(), cpu());
        let (mut one, mut two) = (Pair::new(&device), Pair::new(&other));
        whole.set_learning_rate(0.1 + 0.2);
        step(&mut *whole, &mut one, "g1")?;
        step(&mut *whole, &mut one, "g2")?;
        save_state(&*whole, &mut one, &path)?;
        for (from, to) in one.0.iter().zip(&mut two.0) {
            to.value_mut().set_bytes_(&from.value().to_bytes()?)?;
        }
        load_state(&mut *resumed, &mut two, &path)?;
        assert_eq!(resumed.steps(), 2, "{name}");
        assert_eq!(resumed.learning_rate(), 0.1 + 0.2, "{name}");
        assert_eq!(state_bits(&mut *resumed), state_bits(&mut *whole), "{name}");
        step(&mut *whole, &mut one, "g3")?;
        step(&mut *resumed, &mut two, "g3")?;
        assert_eq!(all_bits(&mut two), all_bits(&mut one), "{name}");
        assert_eq!(state_bits(&mut *resumed), state_bits(&mut *whole), "{name}");
    }
    Ok(())
}

#[test]
fn same_state_has_the_same_bytes_each_time_it_is_written() -> Outcome {
    let mut adam = Adam::new(AdamOptions::default())?;
    let mut model = Pair::new(&cpu());
    step(&mut adam, &mut model, "g1")?;
    let (_folder, path) = folder();
    let mut write = || -> std::result::Result<Vec<u8>, Box<dyn std::error::Error>> {
        save_state(&adam, &mut model, &path)?;
        Ok(std::fs::read(&path)?)
    };
    let first = write()?;
    for _ in 0..20 {
        assert_eq!(write()?, first);
    }
    Ok(())
}

#[test]
fn states_of_8_bits_and_half_types_survive_a_file() -> Outcome {
    let (_folder, path) = folder();
    let device = cpu();
    let new = |dtype| -> Result<Named> {
        let value = Tensor::full(&device, [5000], DType::F32, 0.5)?.to_dtype(dtype)?;
        Ok(Named(vec![("w".to_owned(), Parameter::new(value))]))
    };
    for dtype in [DType::F32, DType::BF16] {
        let mut model = new(dtype)?;
        let make = || Ok::<_, NnError>(Lamb::new(LambOptions::default())?.with_8bit_states());
        let mut optimizer = make()?;
        let mut gradients = lowtide_autograd::Gradients::default();
        gradients.insert(model.0[0].1.id(), Tensor::full(&device, [5000], dtype, 0.25)?);
        optimizer.prepare(&mut model, gradients)?.commit()?;
        save_state(&optimizer, &mut model, &path)?;
        let mut other = make()?;
        load_state(&mut other, &mut model, &path)?;
        let bytes = |optimizer: &mut Lamb| {
            let mut all = Vec::new();
            optimizer.visit_state(&mut |state| all.push(state.to_bytes().unwrap()));
            all
        };
        assert_eq!(bytes(&mut other), bytes(&mut optimizer));
        assert_eq!(bytes(&mut other)[0].len(), 20 * 260);
        // An optimizer with states in f32 refuses states in 8 bits.
        let mut wide = Lamb::new(LambOptions::default())?;
        let error = load_state(&mut wide, &mut model, &path).unwrap_err();
        assert!(error.to_string().contains("state.w.exp_avg: shape [20, 260]"), "{error}");
    }
    Ok(())
}

#[test]
fn names_are_pytorchs_and_the_exact_numbers_are_in_the_header() -> Outcome {
    let (_folder, path) = folder();
    let device = cpu();
    let mut model = Pair::new(&device);
    let mut optimizer = Adam::new(AdamOptions::default())?;
    let gradients = gradients_are(&[(&model.0[1], f64s(&device, "g", [5]))])?;
    optimizer.prepare(&mut model, gradients)?.commit()?;
    save_state(&optimizer, &mut model, &path)?;
    let bytes = std::fs::read(&path)?;
    let mut names: Vec<String> =
        SafeTensors::deserialize(&bytes)?.names().into_iter().map(str::to_owned).collect();
    names.sort();
    // `a` was never updated.
    assert_eq!(names, ["state.b.exp_avg", "state.b.exp_avg_sq", "state.b.step"]);
    let (_, header) = SafeTensors::read_metadata(&bytes)?;
    let metadata = header.metadata().clone().expect("numbers");
    assert_eq!((&*metadata["steps"], &*metadata["learning_rate"]), ("1", "0.001"));
    Ok(())
}

/// Writes a file of f64 tensors and of PyTorch's f32 counts.
fn write(path: &Path, tensors: &[(&str, &[usize], &[f64])]) -> Outcome {
    let entry = |(name, dims, values): &(&str, &[usize], &[f64])| {
        let is_step = name.ends_with("step");
        let bytes: Vec<u8> = if is_step {
            values.iter().flat_map(|&x| (x as f32).to_le_bytes()).collect()
        } else {
            values.iter().flat_map(|x| x.to_le_bytes()).collect()
        };
        let dtype = if is_step { Dtype::F32 } else { Dtype::F64 };
        ((*name).to_owned(), dtype, dims.to_vec(), bytes)
    };
    let entries: Vec<_> = tensors.iter().map(entry).collect();
    let views = entries.iter().map(|(name, dtype, dims, bytes)| {
        (name.as_str(), TensorView::new(*dtype, dims.clone(), bytes).expect("bytes that fit"))
    });
    Ok(std::fs::write(path, safetensors::serialize(views, None)?)?)
}

#[test]
fn a_file_without_our_header_is_read_by_its_counts() -> Outcome {
    let (_folder, path) = folder();
    let device = cpu();
    let mut model = Pair::new(&device);
    let mut optimizer = Adam::new(AdamOptions::default())?;
    let half = [0.5; 6];
    let a = [("state.a.exp_avg", &[2, 3][..], &half[..]), ("state.a.exp_avg_sq", &[2, 3], &half)];
    write(&path, &[a[0], a[1], ("state.a.step", &[], &[7.0])])?;
    load_state(&mut optimizer, &mut model, &path)?;
    assert_eq!((optimizer.steps(), optimizer.learning_rate()), (7, 1e-3));
    assert_eq!(state_bits(&mut optimizer), vec![vec![0.5f64.to_bits(); 6]; 2]);
    Ok(())
}

#[test]
fn a_file_that_does_not_fit_is_refused_by_name_and_nothing_changes() -> Outcome {
    let (_folder, path) = folder();
    let device = cpu();
    let mut model = Pair::new(&device);
    let mut optimizer = Adam::new(AdamOptions::default())?;
    step(&mut optimizer, &mut model, "g1")?;
    let six = &[0.5; 6][..];
    let average = ("state.a.exp_avg", &[2usize, 3][..], six);
    let square = ("state.a.exp_avg_sq", &[2usize, 3][..], six);
    let count = |name, count: &'static [f64]| (name, &[][..], count);
    type File<'a> = Vec<(&'a str, &'a [usize], &'a [f64])>;
    let cases: [(File<'_>, &str); 7] = [
        (vec![average], "state.a.exp_avg_sq: missing"),
        (vec![average, ("state.a.exp_avg_sq", &[3, 2], six)], "state.a.exp_avg_sq: shape [3, 2]"),
        (vec![average, square, ("state.c.exp_avg", &[6], six)], "state.c.exp_avg: not known"),
        (vec![average, square, ("state.a.sum", &[6], six)], "state.a.sum: not known"),
        (vec![("a.exp_avg", &[2, 3], six)], "a.exp_avg: not known"),
        (vec![count("state.a.step", &[1.0]), count("state.b.step", &[2.0])], "state.b.step: not"),
        (vec![count("state.a.step", &[1.5])], "state.a.step: not the count"),
    ];
    let memory = device.allocator();
    let before = (state_bits(&mut optimizer), optimizer.steps(), memory.layout_hash());
    for (file, expected) in cases {
        write(&path, &file)?;
        let error = load_state(&mut optimizer, &mut model, &path).unwrap_err();
        assert!(matches!(error, NnError::Weights { .. }), "{error:?}");
        assert!(error.to_string().contains(expected), "{error}, not {expected}");
        let after = (state_bits(&mut optimizer), optimizer.steps(), memory.layout_hash());
        assert_eq!(after, before, "{expected}");
    }
    std::fs::write(&path, b"not a safetensors file")?;
    let error = load_state(&mut optimizer, &mut model, &path).unwrap_err();
    assert!(matches!(error, NnError::Format { .. }), "{error}");
    let error = load_state(&mut optimizer, &mut model, &path.with_extension("none")).unwrap_err();
    assert!(matches!(error, NnError::File { .. }), "{error}");
    assert_eq!(state_bits(&mut optimizer), before.0);
    Ok(())
}

#[test]
fn a_state_of_another_type_is_refused() -> Outcome {
    let (_folder, path) = folder();
    let device = cpu();
    let (mut wide, mut narrow) = (Pair::new(&device), Pair::f32(&device));
    let momentum = SgdOptions { momentum: 0.9, ..SgdOptions::new(0.1) };
    let mut optimizer = Sgd::new(momentum)?;
    step(&mut optimizer, &mut wide, "g")?;
    save_state(&optimizer, &mut wide, &path)?;
    let error = load_state(&mut Sgd::new(momentum)?, &mut narrow, &path).unwrap_err();
    let NnError::Weights { name, problem, .. } = &error else { panic!("{error}") };
    assert_eq!(name, "state.a.momentum_buffer");
    assert!(matches!(problem, WeightsProblem::Type { .. }), "{error}");
    Ok(())
}

#[test]
fn a_fault_while_loading_leaves_the_optimizer_as_it_was() -> Outcome {
    let (_folder, path) = folder();
    for (name, mut optimizer) in optimizers() {
        let device: Device = cpu();
        let memory = device.allocator();
        let mut model = Pair::new(&device);
        step(&mut *optimizer, &mut model, "g1")?;
        save_state(&*optimizer, &mut model, &path)?;
        step(&mut *optimizer, &mut model, "g2")?;
        let before = (state_bits(&mut *optimizer), optimizer.steps(), memory.layout_hash());
        let mut failures = 0;
        for nth in 1.. {
            memory.inject_fault(Fault { nth, repeat: Repeat::Once });
            let outcome = load_state(&mut *optimizer, &mut model, &path);
            memory.clear_fault();
            if outcome.is_ok() {
                break;
            }
            failures += 1;
            let after = (state_bits(&mut *optimizer), optimizer.steps(), memory.layout_hash());
            assert_eq!(after, before, "{name}, request {nth}");
        }
        assert_eq!(failures, before.0.len(), "{name}: a request for each state");
        assert_eq!(optimizer.steps(), 1, "{name}");
        let mut values = 0;
        model.visit(&mut |_, parameter| values += parameter.value().element_count());
        assert_eq!(values, 11);
    }
    Ok(())
}
