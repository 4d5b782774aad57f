//! Optimizers of several models.

use lowtide_autograd::Gradients;
use lowtide_nn::optim::{
    Adam, AdamOptions, Averaged, ByModel, Optimizer, Scheduled, Sgd, SgdOptions, Stateful,
    load_state, save_state,
};
use lowtide_nn::{NnError, Parameter, WeightsProblem};
use lowtide_tensor::Device;

use crate::common::{Named, Outcome, all_bits, cpu, f64s, state_bits};

const NAMES: [&str; 3] = ["a.weight", "ab.weight", "b.weight"];

/// A parameter of each of two models, and one of a third model whose name starts like the others.
fn models(device: &Device) -> Named {
    let parameter = |name: &str| Parameter::new(f64s(device, name, [2, 3]));
    Named(NAMES.iter().map(|name| ((*name).to_owned(), parameter(name))).collect())
}

fn adam(learning_rate: f64) -> Adam {
    Adam::new(AdamOptions { learning_rate, ..Default::default() }).expect("in range")
}

fn by_model() -> ByModel {
    let sgd = SgdOptions { momentum: 0.9, ..SgdOptions::new(0.2) };
    let average = Averaged::new(adam(0.1), 0.5).expect("in range");
    ByModel::new().with("a", average).with("b", Sgd::new(sgd).expect("in range"))
}

fn gradients(models: &Named, of: &[usize], nth: &str) -> Gradients {
    let mut gradients = Gradients::default();
    for &index in of {
        let (name, parameter) = &models.0[index];
        let device = parameter.value().device();
        gradients.insert(parameter.id(), f64s(device, &format!("{name}{nth}"), [2, 3]));
    }
    gradients
}

#[test]
fn each_model_is_updated_as_by_its_own_optimizer_alone() -> Outcome {
    let device = cpu();
    let (mut all, mut alone) = (models(&device), models(&device));
    let mut optimizer = by_model();
    let (mut a, mut b) = (
        Averaged::new(adam(0.1), 0.5)?,
        Sgd::new(SgdOptions { momentum: 0.9, ..SgdOptions::new(0.2) })?,
    );
    for (nth, of) in [("1", &[0, 1, 2][..]), ("2", &[2]), ("3", &[0])] {
        let own = gradients(&all, of, nth);
        optimizer.prepare(&mut all, own)?.commit()?;
        let only = |name: &str| {
            let index = NAMES.iter().position(|&known| known == name)?;
            of.contains(&index).then(|| gradients(&alone, &[index], nth))
        };
        let (of_a, of_b) = (only("a.weight"), only("b.weight"));
        let [mut model_a, mut model_b] =
            [0, 2].map(|index: usize| Named(vec![alone.0[index].clone()]));
        of_a.map(|own| a.prepare(&mut model_a, own)?.commit()).transpose()?;
        of_b.map(|own| b.prepare(&mut model_b, own)?.commit()).transpose()?;
        assert_eq!(all_bits(&mut all), all_bits(&mut alone), "update {nth}");
    }
    let states: Vec<_> = state_bits(&mut a).into_iter().chain(state_bits(&mut b)).collect();
    assert_eq!(state_bits(&mut optimizer), states);
    let paces = optimizer.state(&mut all)?.models;
    assert_eq!((paces["a"].steps, paces["b"].steps), (2, 2));
    assert_eq!((optimizer.steps(), optimizer.learning_rate()), (2, 0.1));
    Ok(())
}

#[test]
fn a_file_has_the_pace_of_each_model_and_another_set_of_models_is_refused() -> Outcome {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("optimizer.safetensors");
    let device = cpu();
    let mut all = models(&device);
    let mut optimizer = by_model();
    for (nth, of) in [("1", &[0, 2][..]), ("2", &[2])] {
        let own = gradients(&all, of, nth);
        optimizer.prepare(&mut all, own)?.commit()?;
    }
    // The learning rates of the other models keep their ratio to the first.
    optimizer.set_learning_rate(0.3);
    save_state(&optimizer, &mut all, &path)?;
    let mut other = by_model();
    load_state(&mut other, &mut all, &path)?;
    assert_eq!(state_bits(&mut other), state_bits(&mut optimizer));
    let state = other.state(&mut all)?;
    assert_eq!(state.models, optimizer.state(&mut all)?.models);
    assert_eq!((state.models["a"].steps, state.models["b"].steps), (1, 2));
    assert_eq!(state.models["a"].learning_rate, 0.3);
    assert!((state.models["b"].learning_rate - 0.6).abs() < 1e-15);

    let mut three = by_model().with("ab", adam(0.1));
    let missing = load_state(&mut three, &mut all, &path).expect_err("no such model");
    let NnError::Weights { name, problem, .. } = missing else { panic!("{missing}") };
    assert_eq!((name.as_str(), problem), ("state.ab", WeightsProblem::Missing));
    let mut one = ByModel::new().with("b", Sgd::new(SgdOptions::new(0.2))?);
    load_state(&mut one, &mut all, &path).expect_err("it has no place for the other's state");
    assert_eq!(one.steps(), 0);
    Ok(())
}

#[test]
fn averages_of_one_model_are_swapped_and_back() -> Outcome {
    let device = cpu();
    let mut all = models(&device);
    let mut optimizer = by_model();
    assert!(matches!(optimizer.of_model("a"), Some(own) if own.steps() == 0));
    assert!(optimizer.of_model("c").is_none());
    for nth in ["1", "2"] {
        let own = gradients(&all, &[0, 1, 2], nth);
        optimizer.prepare(&mut all, own)?.commit()?;
    }
    let before = all_bits(&mut all);
    assert!(optimizer.swap_averages(&mut all)?);
    let swapped = all_bits(&mut all);
    assert_ne!(swapped[0], before[0], "the first model has an average");
    assert_eq!(swapped[1..], before[1..], "the others have none");
    optimizer.swap_averages(&mut all)?;
    assert_eq!(all_bits(&mut all), before);
    Ok(())
}
