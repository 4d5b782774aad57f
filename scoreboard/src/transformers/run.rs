//! Trains a model like the peer, on the real and the simulated device, and compares.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use lowtide_autograd::{Attempt, Pass};
use lowtide_nn::optim::{Adam, AdamOptions, Optimizer, WeightDecay};
use lowtide_tensor::{DType, Device, Tensor};
use serde_json::Value;

use super::batch::Batch;
use super::models::{self, KEY};
use super::{Net, Step};
use crate::call::{Result, Stop};
use crate::case::{self, Case, Values};
use crate::compare::{Tolerance, compare, compare_values, distance};
use crate::outcome::{Law, Outcome, Verdict};
use crate::report::Line;
use crate::run::{allocations, cpu, guarded, sim};

/// The subject of a case: the name of a quantity, and the step.
type Quantity = (&'static str, usize);

/// Tensors of a quantity, by name.
type Named = BTreeMap<String, Tensor>;

/// A line for each quantity of a run, whose weights are below `folder`.
pub fn lines(case: &Case, file: &[u8], folder: &Path) -> Vec<Line> {
    let run = Run { case, file, folder };
    let verdicts = run.verdicts();
    let line = |((quantity, index), verdict): (Quantity, Verdict)| Line {
        op: format!("{} {quantity}", case.op),
        name: String::new(),
        kind: case.kind,
        dtype: case.dtype.clone(),
        index,
        has_gradient: true,
        verdict,
    };
    verdicts.into_iter().map(line).collect()
}

/// A run of the peer, with its weights.
struct Run<'a> {
    case: &'a Case,
    file: &'a [u8],
    folder: &'a Path,
}

impl Run<'_> {
    fn verdicts(&self) -> Vec<(Quantity, Verdict)> {
        let expected = self.quantities(&self.case.outputs, &self.case.gradients);
        let all = |outcome: Outcome| {
            let verdict = Verdict { outcome, allocations: Law::Unknown, bits: Law::Unknown };
            expected.keys().map(|&quantity| (quantity, verdict.clone())).collect()
        };
        let found = match guarded(|| self.train(&cpu(2))) {
            Ok(Ok(found)) => found,
            Ok(Err(Stop::NotApplicable(reason, why))) => {
                return all(Outcome::NotApplicable(reason, why));
            }
            Ok(Err(Stop::Error { message, .. })) | Err(message) => {
                return all(Outcome::Failed(message));
            }
        };
        let truth = self.case.truth.as_ref();
        let truth = truth.map(|truth| self.quantities(&truth.outputs, &truth.gradients));
        let allocations = guarded(|| self.allocation_law()).unwrap_or_else(Law::Broken);
        let others = [1, 3].map(|threads| guarded(|| self.train(&cpu(threads))));
        let verdict = |(&quantity, expected): (&Quantity, &Expected)| {
            let truth = truth.as_ref().and_then(|truth| truth.get(&quantity));
            let outcome = match found.get(&quantity) {
                Some(found) => self.judge(found, expected, truth),
                None => Outcome::Failed("nothing of this kind".to_owned()),
            };
            let bits = found.get(&quantity).map_or(Law::Unknown, |found| {
                let other = |run: &std::result::Result<Result<Found>, String>| match run {
                    Ok(Ok(run)) => run.get(&quantity).and_then(bytes),
                    _ => None,
                };
                bits_law(bytes(found), [other(&others[0]), other(&others[1])])
            });
            (quantity, Verdict { outcome, allocations: allocations.clone(), bits })
        };
        expected.iter().map(verdict).collect()
    }

    /// The peer's tensors of each quantity.
    fn quantities(&self, outputs: &[Value], gradients: &[Value]) -> BTreeMap<Quantity, Expected> {
        let mut all = BTreeMap::new();
        let mut insert = |quantity: Quantity, values: Expected| {
            if !values.is_empty() {
                all.insert(quantity, values);
            }
        };
        let one = |value: &Value| -> Expected {
            let values = self.case.tensor(value).map(|stored| stored.values(self.file));
            values.into_iter().map(|values| (String::new(), values)).collect()
        };
        let named = |value: &Value| -> Expected {
            let entries = value.as_object().into_iter().flatten();
            let values = entries.filter_map(|(name, value)| {
                Some((name.clone(), self.case.tensor(value)?.values(self.file)))
            });
            values.collect()
        };
        for (step, output) in outputs.iter().enumerate() {
            insert(("logits", step), one(&output["logits"]));
            insert(("loss", step), one(&output["loss"]));
            insert(("buffers", step), named(&output["buffers"]));
        }
        for (step, gradients) in gradients.iter().enumerate() {
            insert(("gradients", step), named(gradients));
        }
        all
    }

    /// Runs the steps and returns the quantities.
    fn train(&self, device: &Device) -> Result<Found> {
        let weights = self.case.options.get("folder").and_then(Value::as_str).unwrap_or_default();
        let folder = self.folder.join(weights);
        let mut net = self.net(device, &folder)?;
        net.load(&folder)?;
        let mut optimizer = Adam::new(self.optimizer()?)?;
        let (mut found, steps) = (Found::new(), self.case.arguments.len());
        for (step, arguments) in self.case.arguments.iter().enumerate() {
            let batch = self.batch(device, arguments)?;
            let attempt = Attempt::new();
            let pass = Pass::train(KEY.step(step as u64), &attempt);
            let Step { logits, loss } = net.forward(&pass, &batch)?;
            batch.check_all_read()?;
            found.insert(("logits", step), one(logits.value()));
            found.insert(("loss", step), one(loss.value()));
            drop(logits);
            pass.backward(loss)?;
            if step == 0 || step + 1 == steps {
                found.insert(("gradients", step), gradients(&mut *net, &attempt)?);
            }
            optimizer.step(&mut *net, attempt)?;
        }
        let mut buffers = Named::new();
        net.visit_buffers(&mut |name, buffer| {
            buffers.insert(name.to_owned(), buffer.value().clone());
        });
        if !buffers.is_empty() {
            found.insert(("buffers", steps), buffers);
        }
        Ok(found)
    }

    /// The model of a folder, with weights of the run's type.
    fn net(&self, device: &Device, folder: &Path) -> Result<Box<dyn Net>> {
        let path = folder.join("config.json");
        let problem = |error| Stop::failure(format!("{}: {error}", path.display()));
        let text = fs::read_to_string(&path).map_err(problem)?;
        let dtype = case::dtype(&self.case.dtype).unwrap_or(DType::F32);
        models::net(device, folder, &text, dtype)
    }

    fn optimizer(&self) -> Result<AdamOptions> {
        let given = &self.case.options["optimizer"];
        let number = |value: &Value| {
            let unknown = || Stop::failure(format!("{value} is no number of the optimizer"));
            value.as_f64().ok_or_else(unknown)
        };
        Ok(AdamOptions {
            learning_rate: number(&given["lr"])?,
            betas: [number(&given["betas"][0])?, number(&given["betas"][1])?],
            eps: number(&given["eps"])?,
            weight_decay: WeightDecay::Decoupled(number(&given["weight_decay"])?),
        })
    }

    fn batch(&self, device: &Device, arguments: &Value) -> Result<Batch> {
        let mut tensors = BTreeMap::new();
        for (name, value) in arguments.as_object().into_iter().flatten() {
            let stored = self.case.tensor(value);
            let stored = stored.ok_or_else(|| Stop::failure(format!("{name} is no tensor")))?;
            tensors.insert(name.clone(), stored.upload(device, self.file)?);
        }
        Ok(Batch::new(tensors))
    }

    /// Compares all tensors of a quantity with the peer's tensors, or with the tensors in f64.
    fn judge(&self, found: &Named, expected: &Expected, truth: Option<&Expected>) -> Outcome {
        if let Some(name) = found.keys().find(|name| !expected.contains_key(*name)) {
            return Outcome::Failed(format!("{name} is not among those of the peer"));
        }
        let mut outcome = Outcome::Passed;
        for (name, expected) in expected {
            let Some(found) = found.get(name) else {
                return Outcome::Failed(format!("{name} is missing"));
            };
            let truth = truth.and_then(|truth| truth.get(name));
            match self.judge_one(found, expected, truth) {
                Outcome::Passed => {}
                Outcome::Failed(why) => return Outcome::Failed(format!("{name}: {why}")),
                other => outcome = other,
            }
        }
        outcome
    }

    fn judge_one(&self, found: &Tensor, expected: &Values, truth: Option<&Values>) -> Outcome {
        let found = match Values::of(found) {
            Ok(found) => found,
            Err(error) => return Outcome::Failed(error.to_string()),
        };
        let tolerance = Tolerance { relative: self.case.rtol, absolute: self.case.atol };
        let Err(why) = compare(&found, expected, tolerance) else { return Outcome::Passed };
        let Some(truth) = truth else { return Outcome::Failed(why) };
        // lowtide may be as far from the exact result as the peer's worst element.
        let absolute = tolerance.absolute.max(distance(expected, truth));
        match compare_values(&found, truth, Tolerance { absolute, ..tolerance }) {
            Ok(()) => Outcome::PassedByTruth,
            Err(also) => Outcome::Failed(format!("{why}; in f64: {also}")),
        }
    }

    fn allocation_law(&self) -> Law {
        let trace = |device: &Device| -> Result<_> {
            let found = self.train(device)?;
            let layouts: Vec<_> = found
                .values()
                .flat_map(BTreeMap::values)
                .map(|tensor| (*tensor.layout(), tensor.dtype()))
                .collect();
            drop(found);
            Ok((layouts, allocations(device)))
        };
        match (trace(&cpu(2)), trace(&sim(2))) {
            (Ok(real), Ok(simulated)) if real == simulated => Law::Kept,
            (Ok(_), Ok(_)) => Law::Broken("the allocations differ".to_owned()),
            (_, Err(Stop::Error { message, .. })) => Law::Broken(format!("simulated: {message}")),
            _ => Law::Unknown,
        }
    }
}

/// The quantities of a run of lowtide.
type Found = BTreeMap<Quantity, Named>;

/// The peer's tensors of a quantity.
type Expected = BTreeMap<String, Values>;

fn one(tensor: &Tensor) -> Named {
    Named::from([(String::new(), tensor.clone())])
}

/// Copies the gradients, because the optimizer may reuse their memory.
fn gradients(net: &mut dyn Net, attempt: &Attempt) -> Result<Named> {
    let mut all = Vec::new();
    net.visit(&mut |name, parameter| {
        all.extend(attempt.gradient(parameter.id()).map(|gradient| (name.to_owned(), gradient)));
    });
    let copied = |(name, gradient): (String, Tensor)| {
        let gradient = net.in_file(&name, gradient.copied()?)?;
        Ok((name, gradient))
    };
    all.into_iter().map(copied).collect()
}

fn bytes(tensors: &Named) -> Option<Vec<Vec<u8>>> {
    tensors.values().map(|tensor| tensor.to_bytes().ok()).collect()
}

/// The law that 1, 2 and 3 threads give the same bytes.
fn bits_law(two: Option<Vec<Vec<u8>>>, [one, three]: [Option<Vec<Vec<u8>>>; 2]) -> Law {
    if one.is_none() || three.is_none() {
        return Law::Broken("an error with another number of threads".to_owned());
    }
    if one != two {
        return Law::Broken("1 and 2 threads differ".to_owned());
    }
    if two != three {
        return Law::Broken("2 and 3 threads differ".to_owned());
    }
    Law::Kept
}
