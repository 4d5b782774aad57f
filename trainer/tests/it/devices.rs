//! Tensors of the wrong device are reported by name.

use std::cell::RefCell;
use std::rc::Rc;

use lowtide_autograd::{Pass, Var};
use lowtide_data::BatchView;
use lowtide_nn::{BatchNorm2d, Linear, Loss, Module, Node, Nodes, Parameter, Parameters, Visitor};
use lowtide_tensor::{DType, Device, RandomKey, Tensor};
use lowtide_trainer::{Classification, Options, Result, Score, Task, Trainer, field, upload};

use crate::common::{Kind, Run, first_batch, labelled};

/// A model that does not show some of its tensors.
#[derive(Clone, Debug)]
struct Forgetful {
    norm: BatchNorm2d,
    head: Linear,
    scale: Parameter,
    /// True for each tensor that `visit_nodes` shows: the head, the norm's buffers, the scale.
    shows: [bool; 3],
}

impl Forgetful {
    fn new(device: &Device, shows: [bool; 3]) -> Self {
        Forgetful {
            norm: BatchNorm2d::new(device, 1).expect("memory"),
            head: Linear::new(device, RandomKey::new(1), 64, 10).expect("memory"),
            scale: Parameter::full(device, [1], 1.0).expect("memory"),
            shows,
        }
    }
}

impl Nodes for Forgetful {
    fn visit_nodes(&mut self, visitor: &mut Visitor<'_>) {
        let [shows_head, shows_buffers, shows_scale] = self.shows;
        self.norm.visit_nodes(&mut Visitor::new(&mut |name, node| {
            if shows_buffers || !matches!(node, Node::Buffer(_)) {
                visitor.node(&format!("norm.{name}"), node);
            }
        }));
        if shows_head {
            visitor.field("head", &mut self.head);
        }
        if shows_scale {
            visitor.field("scale", &mut self.scale);
        }
    }
}

impl Module for Forgetful {
    fn forward(&self, pass: &Pass, input: Var) -> lowtide_nn::NnResult<Var> {
        let x = pass.within("norm", || self.norm.forward(pass, input))?;
        let batch = x.value().shape()[0];
        let x = x.reshape([batch, 64])?;
        let x = pass.within("head", || self.head.forward(pass, x))?;
        Ok(x.mul(self.scale.var(pass)?)?)
    }
}

#[track_caller]
fn check(result: Result<impl std::fmt::Debug>, words: &[&str]) {
    let text = result.expect_err("it cannot run").to_string();
    assert!(!text.contains('\n'), "{text}");
    for word in words {
        assert!(text.contains(word), "no {word:?} in: {text}");
    }
}

fn train(task: impl Task + Clone, device: &Device) -> Result<()> {
    let (train, test) = Run::default().loaders();
    let mut trainer = Trainer::new(device, task, Kind::Plain.build(0.1), Options::default());
    trainer.fit(&train, &test, 1, &mut []).map(drop)
}

#[test]
fn what_a_model_forgets_to_visit_is_told_by_module_and_shape() {
    let forgetful = |shows| {
        let device = Run::default().device(None);
        train(Classification::new(Forgetful::new(&device, shows)), &device)
    };
    forgetful([true; 3]).expect("nothing is forgotten");
    check(forgetful([false, true, true]), &["parameter", "[10]", "module head", "`visit_nodes`"]);
    check(forgetful([true, false, true]), &["buffer", "[1]", "module norm", "`visit_nodes`"]);
    check(forgetful([true, true, false]), &["parameter", "[1]", "devices.rs", "`visit_nodes`"]);
}

/// Keeps the tensor of its first call for later calls.
#[derive(Clone)]
struct Caching {
    task: Classification<Linear>,
    kept: Rc<RefCell<Option<Tensor>>>,
}

impl Task for Caching {
    fn parameters(&mut self) -> &mut dyn Parameters {
        self.task.parameters()
    }

    fn count(&self, batch: &BatchView<'_>) -> Result<f64> {
        self.task.count(batch)
    }

    fn loss(&self, pass: &Pass, device: &Device, part: &BatchView<'_>) -> Result<Loss> {
        let images = upload(device, field(part, "images")?)?;
        let labels = upload(device, field(part, "labels")?)?;
        let mut kept = self.kept.borrow_mut();
        let mask = kept
            .get_or_insert_with(|| Tensor::full(device, [1, 64], DType::F32, 1.0).expect("memory"));
        let images = images.reshape([part.len(), 64])?;
        let x = pass.constant(images).mul(pass.constant(mask.clone()))?;
        let logits = self.task.model().forward(pass, x)?;
        Ok(lowtide_nn::cross_entropy(logits, &labels)?)
    }

    fn score(&self, _: &Device, _: &BatchView<'_>) -> Result<Score> {
        Ok(Score::default())
    }
}

#[test]
fn tensor_that_a_task_keeps_is_told_by_place_and_shape() {
    let device = Run::default().device(None);
    let head = || Linear::new(&device, RandomKey::new(1), 64, 10).expect("memory");
    let caching = |kept| Caching { task: Classification::new(head()), kept };
    check(train(caching(Rc::default()), &device), &["[1, 64]", "devices.rs", "rehearsal"]);
    let real = Tensor::full(&device, [1, 64], DType::F32, 1.0).expect("memory");
    let kept = Rc::new(RefCell::new(Some(real)));
    check(train(caching(kept), &device), &["[1, 64]", "devices.rs", "was not made in this call"]);
}

#[test]
fn task_on_another_device_is_told_by_parameter_and_device() {
    let [one, other] = [1 << 24, 1 << 25].map(|bytes| Run::default().device(Some(bytes)));
    let task = Classification::new(Linear::new(&one, RandomKey::new(1), 64, 10).expect("memory"));
    let words = ["weight", "16777216", "33554432", "clone of a device's handle"];
    let batch = first_batch(&labelled(&[0; 4], 2));
    let trainer = |task| Trainer::new(&other, task, Kind::Plain.build(0.1), Options::default());
    check(trainer(task.clone()).step(&batch), &words);
    check(train(task, &other), &words);
}
