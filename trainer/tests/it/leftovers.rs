//! Tests of the checks: tasks that break the rules are named, and the hash covers every bit.

use std::cell::RefCell;
use std::panic::Location;
use std::rc::Rc;

use lowtide_allocator::{Category, Fault, Repeat};
use lowtide_autograd::AutogradError;
use lowtide_nn::NnError;
use lowtide_nn::optim::{Optimizer, Stateful};
use lowtide_tensor::{DType, Device, Tensor, TensorError};
use lowtide_trainer::{Options, Task, TrainError, Trainer};

use crate::common::{Cnn, Kind, Probe, Run, cnn, first_batch};

const WHERE: &str = file!();

/// Plans, then takes a step with a fault at its 9th allocation. Returns the trainer and the step's
/// error.
fn step_with_fault(
    run: &Run,
    device: &Device,
    task: Probe,
) -> (Trainer<Probe, Box<dyn Stateful>>, TrainError) {
    let mut trainer = Trainer::new(device, task, Kind::Adam.build(0.01), Options::default());
    let (train, test) = run.loaders();
    trainer.plan(&train, &test, 1).expect("fits");
    device.allocator().inject_fault(Fault { nth: 9, repeat: Repeat::Once });
    let batch = first_batch(&train);
    let error = trainer.step(&batch).expect_err("the task breaks the rules");
    (trainer, error)
}

#[test]
fn tensor_kept_beyond_a_rolled_back_attempt_is_named_by_its_site() {
    for category in [Category::Activation, Category::Parameter] {
        let run = Run::default();
        let device = run.device(None);
        let kept = Rc::new(RefCell::new(Vec::new()));
        let keep = Rc::clone(&kept);
        let line = line!() + 2;
        let leaky = Probe::new(cnn(&device, 16, 0), move |_, device| {
            let tensor = Tensor::empty_in(device, category, [5], DType::F32)?;
            if !device.is_simulated() {
                keep.borrow_mut().push(tensor);
            }
            Ok(())
        });
        // Blocks from before the step are not reported, at addresses above or below the leak.
        let before = Tensor::zeros(&device, [1000], DType::F32).expect("memory");
        let (_, error) = step_with_fault(&run, &device, leaky);
        assert_eq!(kept.borrow().len(), 1);
        let TrainError::LeftOver { step, count, site, .. } = error else { panic!("{error}") };
        assert_eq!((step, count), (1, 1), "{category}");
        assert_eq!((site.file(), site.line()), (WHERE, line), "{category}");
        drop(before);
    }
}

#[test]
fn attempt_that_fails_for_another_reason_is_not_blamed_for_leftovers() {
    let run = Run::default();
    let device = run.device(None);
    let failing = Probe::new(cnn(&device, 16, 0), |_, device| {
        let problem = "no".to_owned();
        let setting = TrainError::Setting { place: "the task".to_owned(), problem };
        if device.is_simulated() { Ok(()) } else { Err(setting) }
    });
    let mut trainer = Trainer::new(&device, failing, Kind::Adam.build(0.01), Options::default());
    let (train, _) = run.loaders();
    let batch = first_batch(&train);
    let (hash, layout) = (trainer.state_hash().expect("cpu"), device.allocator().layout_hash());
    let error = trainer.step(&batch).expect_err("the task says so");
    assert_eq!(error.to_string(), "the task: no");
    assert_eq!(trainer.state_hash().expect("cpu"), hash);
    assert_eq!(device.allocator().layout_hash(), layout);
}

/// Doubles the first parameter in place.
#[track_caller]
fn meddle(model: &mut Cnn) -> Result<(), TrainError> {
    let mut result = Ok(());
    model.parameters().visit(&mut |name, parameter| {
        if name == "conv.weight" {
            result = parameter.value_mut().mul_scalar_(2.0);
        }
    });
    Ok(result?)
}

fn frozen(error: &TrainError) -> (&'static str, &'static Location<'static>) {
    match error {
        TrainError::Nn(NnError::Autograd(AutogradError::Tensor(TensorError::Frozen {
            op,
            site,
        }))) => (op, site),
        other => panic!("{other} instead of an error about a frozen tensor"),
    }
}

#[test]
fn parameter_written_in_a_step_is_an_error_that_names_operation_and_site() {
    let run = Run::default();
    for spared_rehearsal in [false, true] {
        let device = run.device(None);
        let meddling = Probe::new(cnn(&device, 16, 0), move |model, device| {
            if spared_rehearsal && device.is_simulated() { Ok(()) } else { meddle(model) }
        });
        let mut trainer =
            Trainer::new(&device, meddling, Kind::Adam.build(0.01), Options::default());
        let hash = trainer.state_hash().expect("cpu");
        let (train, test) = run.loaders();
        let planned = trainer.plan(&train, &test, 1);
        let error = match planned {
            Err(error) => error,
            Ok(_) => trainer.fit(&train, &test, 1, &mut []).expect_err("the task writes"),
        };
        let (op, site) = frozen(&error);
        assert_eq!(site.file(), WHERE);
        assert!(error.to_string().contains(op), "{error}");
        assert!(error.to_string().contains(&site.to_string()), "{error}");
        assert_eq!(trainer.steps(), 0);
        assert_eq!(trainer.state_hash().expect("cpu"), hash);
        // Between steps the user may change parameters.
        meddle(&mut trainer.task_mut().inner).expect("not frozen any more");
        assert_ne!(trainer.state_hash().expect("cpu"), hash);
    }
}

#[test]
fn optimizer_state_is_frozen_while_a_step_is_computed() {
    let run = Run::default();
    let device = run.device(None);
    let state: Rc<RefCell<Option<Tensor>>> = Rc::default();
    let seen = Rc::clone(&state);
    let meddling =
        Probe::new(cnn(&device, 16, 0), move |_, device| match &mut *seen.borrow_mut() {
            Some(tensor) if !device.is_simulated() => Ok(tensor.mul_scalar_(2.0)?),
            _ => Ok(()),
        });
    // An optimizer that has state already, and a handle to the last state tensor.
    let mut optimizer = Kind::Momentum.build(0.01);
    let mut warm_up = cnn(&device, 16, 0);
    let attempt = lowtide_autograd::Attempt::new();
    let pass = lowtide_autograd::Pass::train(lowtide_tensor::RandomKey::new(0), &attempt);
    let (train, _) = run.loaders();
    let batch = first_batch(&train);
    let task = Probe { inner: warm_up.clone(), ..meddling };
    let loss = task.inner.loss(&pass, &device, &batch.view()).expect("memory");
    pass.backward(loss.sum).expect("memory");
    optimizer.step(warm_up.parameters(), attempt).expect("memory");
    optimizer.visit_state(&mut |tensor| *state.borrow_mut() = Some(tensor.clone()));
    let mut trainer = Trainer::new(&device, task, optimizer, Options::default());
    let error = trainer.step(&batch).expect_err("the task writes");
    assert_eq!(frozen(&error).1.file(), WHERE);
}

/// Flips the lowest bit of the last element.
fn flip_bit(tensor: &mut Tensor) {
    let mut bytes: Vec<u8> =
        tensor.to_vec::<f32>().expect("f32").iter().flat_map(|x| x.to_ne_bytes()).collect();
    let last = bytes.len() - 4;
    let bits = u32::from_ne_bytes(bytes[last..].try_into().expect("four bytes")) ^ 1;
    bytes[last..].copy_from_slice(&bits.to_ne_bytes());
    tensor.set_bytes_(&bytes).expect("not frozen");
}

#[test]
fn state_hash_sees_every_parameter_to_the_bit() {
    let run = Run::default();
    let device = run.device(None);
    let mut trainer = run.trainer(&device);
    let hash = trainer.state_hash().expect("cpu");
    let mut names = Vec::new();
    trainer.task_mut().parameters().visit(&mut |name, _| names.push(name.to_owned()));
    assert_eq!(names.len(), 4);
    let mut seen = vec![hash];
    for name in &names {
        let flip = |trainer: &mut Trainer<Cnn, Box<dyn Stateful>>| {
            trainer.task_mut().parameters().visit(&mut |here, parameter| {
                if here == name {
                    flip_bit(parameter.value_mut());
                }
            });
            trainer.state_hash().expect("cpu")
        };
        seen.push(flip(&mut trainer));
        assert_eq!(flip(&mut trainer), hash, "flipped back");
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 5, "every bit counts");
}

#[test]
fn state_hash_sees_optimizer_state_and_step_counts() {
    let run = Run::default();
    let (train, _) = run.loaders();
    let batch = first_batch(&train);
    // Hashes the state after one step, with a bit of the state tensor at index `flipped` flipped.
    let hash_after = |flipped: Option<usize>| {
        let device = run.device(None);
        let mut optimizer = Kind::Adam.build(0.01);
        let task = cnn(&device, run.channels, run.seed);
        let mut twin = task.clone();
        let attempt = lowtide_autograd::Attempt::new();
        let pass = lowtide_autograd::Pass::train(lowtide_tensor::RandomKey::new(0), &attempt);
        let loss = task.loss(&pass, &device, &batch.view()).expect("memory");
        pass.backward(loss.sum).expect("memory");
        optimizer.step(twin.parameters(), attempt).expect("memory");
        let mut index = 0;
        optimizer.visit_state(&mut |tensor| {
            if flipped == Some(index) {
                flip_bit(tensor);
            }
            index += 1;
        });
        assert_eq!(index, 8, "two moments for each of four parameters");
        Trainer::new(&device, task, optimizer, Options::default()).state_hash().expect("cpu")
    };
    let mut seen: Vec<u64> = (0..8).map(|index| hash_after(Some(index))).collect();
    seen.push(hash_after(None));
    assert_eq!(hash_after(None), seen[8], "nothing else varies");
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 9, "every bit counts");
}

#[test]
fn state_hash_sees_steps_that_change_nothing_else() {
    // With a learning rate of 0 and no state, only the counters change.
    let run = Run::default();
    let device = run.device(None);
    let task = cnn(&device, run.channels, run.seed);
    let mut trainer = Trainer::new(&device, task, Kind::Plain.build(0.0), Options::default());
    let (train, _) = run.loaders();
    let mut hashes = vec![trainer.state_hash().expect("cpu")];
    for batch in train.epoch(0) {
        trainer.step(&batch.expect("readable")).expect("memory");
        hashes.push(trainer.state_hash().expect("cpu"));
    }
    assert_eq!(hashes.len(), 3);
    assert!(hashes[0] != hashes[1] && hashes[1] != hashes[2] && hashes[0] != hashes[2]);
}
