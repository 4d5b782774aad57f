//! Runs a case on the real and the simulated device, and compares the results.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use lowtide_autograd::{Attempt, LeafId, Pass};
use lowtide_tensor::{CpuOptions, DType, Device, Layout, RandomKey, SimSpec, Tensor, TensorResult};
use serde_json::Value;

use crate::call::{Call, Output, Reads, Result, Stop};
use crate::case::{Case, Kind, Truth, Values};
use crate::compare::{Tolerance, compare, compare_values, distance, is_zero};
use crate::onnx;
use crate::ops::{self, Adapter};
use crate::outcome::{Law, Outcome, Reason, Verdict};
use crate::ties;

/// A budget that suffices for every case.
const BUDGET_BYTES: usize = 256 << 20;

/// A case, and the bytes of its tensors.
#[derive(Clone, Copy)]
struct Inputs<'a> {
    case: &'a Case,
    file: &'a [u8],
}

/// The results of a run and the gradients of its leaves.
struct Found {
    outputs: Vec<Tensor>,
    gradients: Vec<Option<Tensor>>,
    /// Operands that have no gradient in lowtide.
    constants: Vec<usize>,
}

impl Found {
    fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.outputs.iter().chain(self.gradients.iter().flatten())
    }

    fn bytes(&self) -> TensorResult<Vec<Vec<u8>>> {
        self.tensors().map(Tensor::to_bytes).collect()
    }
}

pub(crate) fn cpu(threads: usize) -> Device {
    let options = CpuOptions {
        budget_bytes: Some(BUDGET_BYTES),
        threads: Some(threads),
        ..Default::default()
    };
    Device::cpu(options).expect("the address space for a small budget")
}

pub(crate) fn sim(threads: usize) -> Device {
    let spec = SimSpec { threads, ..SimSpec::like_this_machine(BUDGET_BYTES) };
    Device::sim(spec).expect("a simulation takes nothing")
}

/// The verdict on a case of `file`, on the CPU.
pub fn run(case: &Case, file: &[u8]) -> Verdict {
    let inputs = Inputs { case, file };
    look(inputs, &cpu(2), |adapter, found, reads| {
        let allocations = guarded(|| allocation_law(adapter, inputs, reads));
        let bits = guarded(|| bits_law(adapter, inputs, found));
        [allocations, bits].map(|law| law.unwrap_or_else(Law::Broken))
    })
}

/// The verdict on a case of `file` on another device. A simulation of the device must make the same
/// allocations, and a second run must give the same bits.
pub fn run_on(case: &Case, file: &[u8], device: &Device) -> Verdict {
    let inputs = Inputs { case, file };
    look(inputs, device, |adapter, found, reads| {
        let laws = guarded(|| laws_of_device(adapter, inputs, device, found, reads));
        laws.unwrap_or_else(|panic| [Law::Broken(panic), Law::Unknown])
    })
}

/// The verdict on a case on a device. `laws` are checked if the case has results.
fn look(
    inputs: Inputs<'_>,
    device: &Device,
    laws: impl FnOnce(Adapter, &Found, &Reads) -> [Law; 2],
) -> Verdict {
    let Inputs { case, file } = inputs;
    let unlooked = |outcome| Verdict { outcome, allocations: Law::Unknown, bits: Law::Unknown };
    if let Some(why) = &case.unusable {
        return unlooked(Outcome::NotApplicable(Reason::PeerCannot, why.clone()));
    }
    // For a graph, each node is checked on its own.
    let adapter = case.graph.as_ref().map_or_else(|| ops::find(&case.op), |_| Some(onnx::run));
    let Some(adapter) = adapter else {
        let why = "no such operation in lowtide".to_owned();
        return unlooked(Outcome::NotApplicable(Reason::Form, why));
    };
    let reads = Reads::default();
    let found = guarded(|| execute(adapter, inputs, device, &reads));
    match case.kind {
        Kind::Error => unlooked(judge_error(case, found.map(|found| found.map(drop)))),
        Kind::Sample | Kind::Strided | Kind::Function => {
            let found = match found {
                Ok(Ok(found)) => found,
                Ok(Err(stop)) => return unlooked(judge_stop(case, stop)),
                Err(panic) => return unlooked(Outcome::Failed(panic)),
            };
            let [allocations, bits] = laws(adapter, &found, &reads);
            Verdict { outcome: judge(case, file, &found), allocations, bits }
        }
    }
}

/// The result, or the message of a panic.
pub(crate) fn guarded<T>(inside: impl FnOnce() -> T) -> std::result::Result<T, String> {
    thread_local! {
        static MESSAGE: RefCell<Option<String>> = const { RefCell::new(None) };
    }
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let is_ours = MESSAGE.with_borrow_mut(|message| {
                let is_ours = message.is_some();
                if is_ours {
                    *message = Some(info.to_string());
                }
                is_ours
            });
            if !is_ours {
                before(info);
            }
        }));
    });
    MESSAGE.set(Some(String::new()));
    let outcome = catch_unwind(AssertUnwindSafe(inside));
    let message = MESSAGE.take().unwrap_or_default();
    outcome.map_err(|_| format!("panic: {}", message.replace('\n', " ")))
}

/// Calls the operation and runs the backward pass from its results.
fn execute(adapter: Adapter, inputs: Inputs<'_>, device: &Device, reads: &Reads) -> Result<Found> {
    let Inputs { case, file } = inputs;
    let attempt = Attempt::new();
    let wants_gradient = !case.wants_gradient.is_empty();
    let pass = if wants_gradient || case.training {
        Pass::train(RandomKey::new(0), &attempt)
    } else if case.is_module() {
        Pass::eval()
    } else {
        Pass::no_grad(RandomKey::new(0))
    };
    let mut leaves: Vec<LeafId> = case.wants_gradient.iter().map(|_| LeafId::new()).collect();
    let call = Call::new(case, file, device, pass.clone(), reads, &leaves)?;
    let outputs = adapter(&call)?;
    call.check_all_read()?;
    let constants = call.without_gradient();
    for (index, leaf) in call.parameters() {
        let place = case.wants_gradient.iter().position(|&wants| wants == index);
        place.into_iter().for_each(|place| leaves[place] = leaf);
    }
    drop(call);
    let tensors: Vec<Tensor> = outputs.iter().map(|output| output.tensor().clone()).collect();
    let mut seeded = Vec::new();
    for (output, cotangent) in outputs.into_iter().zip(&case.cotangents) {
        let (Output::Var(var), Some(stored)) = (output, case.tensor(cotangent)) else { continue };
        if var.needs_gradient() && **var.shape() == *stored.shape {
            seeded.push((var, stored.upload(device, file)?));
        }
    }
    if !seeded.is_empty() {
        pass.backward_from(seeded)?;
    }
    drop(pass);
    let mut gradients = attempt.into_gradients();
    let gradients = leaves.iter().map(|&leaf| gradients.remove(leaf)).collect();
    Ok(Found { outputs: tensors, gradients, constants })
}

/// The verdict on a case that is an error in the peer: lowtide must return an error too, and never
/// panic.
fn judge_error(case: &Case, found: std::result::Result<Result<()>, String>) -> Outcome {
    match found {
        Ok(Err(Stop::Error { .. })) => Outcome::Passed,
        Ok(Err(Stop::NotApplicable(reason, why))) => Outcome::NotApplicable(reason, why),
        Err(panic) => Outcome::Failed(panic),
        Ok(Ok(())) => match ops::meaning_of_error(case) {
            Some(meaning) => Outcome::NotApplicable(Reason::MoreGeneral, meaning.to_owned()),
            None => {
                let (kind, message) = case.raises.clone().unwrap_or_default();
                Outcome::Failed(format!("no error; PyTorch's is {kind}: {message}"))
            }
        },
    }
}

/// A failure, unless its difference from the peer is documented.
fn failed(case: &Case, why: String) -> Outcome {
    match ops::documented_difference(case, &why) {
        Some(text) => Outcome::NotApplicable(Reason::Choice, text.to_owned()),
        None => Outcome::Failed(why),
    }
}

/// The verdict on an error of lowtide in a case where the peer has results.
fn judge_stop(case: &Case, stop: Stop) -> Outcome {
    let Stop::Error { message, is_dtype, .. } = stop else {
        let Stop::NotApplicable(reason, why) = stop else { unreachable!("the other variant") };
        return Outcome::NotApplicable(reason, why);
    };
    if case.graph.is_some() {
        return failed(case, format!("error: {message}"));
    }
    let operands = &case.tensors[..case.operand_count()];
    let is_float = |name: &str| crate::case::dtype(name).is_some_and(DType::is_float);
    if is_dtype && operands.iter().any(|tensor| tensor.dtype != operands[0].dtype) {
        return Outcome::NotApplicable(Reason::MixedTypes, message);
    }
    let expected = case.outputs.first().and_then(|output| case.tensor(output));
    let gives_float = expected.is_some_and(|tensor| is_float(&tensor.dtype));
    if is_dtype && !operands.is_empty() && !is_float(&operands[0].dtype) {
        let reason = if gives_float { Reason::NotOfIntegers } else { Reason::OfIntegers };
        return Outcome::NotApplicable(reason, message);
    }
    failed(case, format!("error: {message}"))
}

/// Compares the results with the peer's results, or with the results in f64.
fn judge(case: &Case, file: &[u8], found: &Found) -> Outcome {
    let judge = Judge { case, file, found };
    let verdict = match judge.check(Against::Peer) {
        Ok(()) => Outcome::Passed,
        Err(why) => {
            let far = case.truth.as_ref().filter(|truth| !truth.is_close);
            let measured = case.truth.as_ref().filter(|truth| !truth.nearby.is_empty());
            let nearby = measured.map(|truth| judge.check(Against::Nearby(truth)));
            match far.map(|truth| judge.check(Against::Truth(truth))) {
                Some(Ok(())) => Outcome::PassedByTruth,
                _ if ties::agree(case, file, &found.outputs) => {
                    Outcome::NotApplicable(Reason::Ties, why)
                }
                _ if nearby == Some(Ok(())) => Outcome::NotApplicable(Reason::Roundings, why),
                Some(Err(also)) => failed(case, format!("{why}; in f64: {also}")),
                None => failed(case, why),
            }
        }
    };
    let lost = case.wants_gradient.iter().find(|index| found.constants.contains(index));
    match (verdict, lost) {
        (Outcome::Passed | Outcome::PassedByTruth, Some(operand)) => {
            Outcome::NotApplicable(Reason::NoGradient, format!("operand {operand}"))
        }
        (verdict, _) => verdict,
    }
}

/// Compares the results of a run with the expectations of a case.
struct Judge<'a> {
    case: &'a Case,
    file: &'a [u8],
    found: &'a Found,
}

/// The expected results.
#[derive(Clone, Copy)]
enum Against<'a> {
    /// The peer's results.
    Peer,
    /// The results in f64, with the peer's own distance from f64 as an additional tolerance.
    Truth(&'a Truth),
    /// The results in f64, with the peer's distance in this sample and in nearby samples.
    Nearby(&'a Truth),
}

/// The peer's own result for an expected result, and the least allowed distance from f64.
#[derive(Clone, Copy)]
struct Own<'a> {
    value: &'a Value,
    distance: f64,
}

impl Judge<'_> {
    /// `Ok` if all results and gradients are as expected.
    fn check(&self, against: Against<'_>) -> std::result::Result<(), String> {
        let Judge { case, found, .. } = self;
        let (outputs, gradients) = match against {
            Against::Peer => (&case.outputs, &case.gradients),
            Against::Truth(truth) | Against::Nearby(truth) => (&truth.outputs, &truth.gradients),
        };
        if found.outputs.len() != outputs.len() {
            let (found, expected) = (found.outputs.len(), outputs.len());
            return Err(format!("{found} results, not {expected}"));
        }
        let peer = |value, place: usize| match against {
            Against::Peer => None,
            Against::Truth(_) => Some(Own { value, distance: 0.0 }),
            Against::Nearby(truth) => {
                Some(Own { value, distance: truth.nearby.get(place).copied().unwrap_or(0.0) })
            }
        };
        for (index, (output, expected)) in found.outputs.iter().zip(outputs).enumerate() {
            let same = self.same(output, expected, peer(&case.outputs[index], index));
            same.map_err(|why| format!("result {index}: {why}"))?;
        }
        for (index, operand) in case.wants_gradient.iter().enumerate() {
            if found.constants.contains(operand) {
                continue;
            }
            let (gradient, expected) = (found.gradients[index].as_ref(), gradients.get(index));
            let same = match (gradient, expected.and_then(|value| self.case.tensor(value))) {
                (Some(gradient), Some(_)) => {
                    let peer = peer(&case.gradients[index], outputs.len() + index);
                    self.same(gradient, &gradients[index], peer)
                }
                // For an operand without influence, the peer has no gradient or a gradient of
                // zeros.
                (None, Some(stored)) if is_zero(&stored.values(self.file)) => Ok(()),
                (None, Some(_)) => Err("missing".to_owned()),
                (Some(gradient), None) => match Values::of(gradient) {
                    Ok(values) if is_zero(&values) => Ok(()),
                    _ => Err("there is none in PyTorch".to_owned()),
                },
                (None, None) => Ok(()),
            };
            same.map_err(|why| format!("gradient of operand {operand}: {why}"))?;
        }
        Ok(())
    }

    /// `Ok` if a result is as expected.
    fn same(
        &self,
        found: &Tensor,
        expected: &Value,
        own: Option<Own<'_>>,
    ) -> std::result::Result<(), String> {
        let values = |value: &Value| {
            let stored = self.case.tensor(value);
            stored.map(|stored| stored.values(self.file))
        };
        let Some(expected) = values(expected) else {
            return Err(format!("a tensor, not {expected}"));
        };
        let found = Values::of(found).map_err(|error| error.to_string())?;
        let peer = own.and_then(|own| values(own.value));
        let dtype = peer.as_ref().unwrap_or(&expected).dtype;
        // The tolerance of a graph applies to all its float results.
        let is_own = match self.case.graph {
            Some(_) => dtype.is_float(),
            None => dtype.name() == self.case.dtype,
        };
        let tolerance = if is_own {
            Tolerance { relative: self.case.rtol, absolute: self.case.atol }
        } else {
            Tolerance::of(dtype)
        };
        let Some(peer) = peer else { return compare(&found, &expected, tolerance) };
        // The error of several roundings to a half type is chance: of two results with equal
        // numbers of roundings, one is often twice as far from the exact result as the other.
        let expected = expected.rounded(peer.dtype);
        let is_half = matches!(peer.dtype, DType::F16 | DType::BF16);
        let far = own.map_or(0.0, |own| own.distance).max(distance(&peer, &expected));
        let allowed = far * if is_half { 2.0 } else { 1.0 };
        let absolute = tolerance.absolute.max(allowed);
        compare_values(&found, &expected, Tolerance { absolute, ..tolerance })
    }
}

/// The layouts of a run's results, and the requests to the allocator.
fn trace(
    adapter: Adapter,
    inputs: Inputs<'_>,
    device: &Device,
    reads: &Reads,
) -> Result<impl PartialEq + std::fmt::Debug + use<>> {
    let found = execute(adapter, inputs, device, reads)?;
    let layouts: Vec<(Layout, DType)> =
        found.tensors().map(|tensor| (*tensor.layout(), tensor.dtype())).collect();
    drop(found);
    Ok((layouts, allocations(device)))
}

/// The requests to a device's allocator so far, and its statistics.
pub(crate) fn allocations(device: &Device) -> impl PartialEq + std::fmt::Debug + use<> {
    let history = device.allocator().history();
    // Everything except the source location.
    let records = history.records().iter();
    let moves: Vec<_> = records.map(|r| (r.action, r.category, r.offset, r.size_bytes)).collect();
    (moves, device.allocator().statistics())
}

fn allocation_law(adapter: Adapter, inputs: Inputs<'_>, reads: &Reads) -> Law {
    let real = trace(adapter, inputs, &cpu(2), &reads.again());
    let simulated = trace(adapter, inputs, &sim(2), &reads.again());
    match (real, simulated) {
        (Ok(real), Ok(simulated)) if real == simulated => Law::Kept,
        (Ok(_), Ok(_)) => Law::Broken("the allocations differ".to_owned()),
        // The result is a value of the program, such as true for two equal tensors.
        (Ok(_), Err(Stop::Error { is_unavailable: true, .. })) => Law::Unknown,
        (_, Err(Stop::Error { message, .. })) => Law::Broken(format!("simulated: {message}")),
        _ => Law::Unknown,
    }
}

/// The requests to a device's allocator after the record number `last`, without source locations.
fn moves_since(device: &Device, last: Option<u64>) -> impl PartialEq + use<> {
    let history = device.allocator().history();
    let since = history.records().iter().filter(|record| Some(record.sequence) > last);
    since.map(|r| (r.action, r.category, r.offset, r.size_bytes)).collect::<Vec<_>>()
}

fn laws_of_device(
    adapter: Adapter,
    inputs: Inputs<'_>,
    device: &Device,
    found: &Found,
    reads: &Reads,
) -> [Law; 2] {
    let simulation = device.simulate();
    let run = |device: &Device| {
        let last = device.allocator().history().records().last().map(|record| record.sequence);
        let found = execute(adapter, inputs, device, &reads.again());
        // The history is read before the results, because reading results waits for the device, and
        // a simulation never waits.
        let moves = moves_since(device, last);
        (found.map(|found| found.bytes()), moves)
    };
    let ((again, real), (simulated, planned)) = (run(device), run(&simulation));
    let allocations = match simulated {
        Ok(_) if planned == real => Law::Kept,
        Ok(_) => Law::Broken("the allocations differ".to_owned()),
        // The result is a value of the program, such as true for two equal tensors.
        Err(Stop::Error { is_unavailable: true, .. }) => Law::Unknown,
        Err(Stop::Error { message, .. }) => Law::Broken(format!("simulated: {message}")),
        Err(Stop::NotApplicable(..)) => Law::Unknown,
    };
    let bits = match (again, found.bytes()) {
        (Ok(Ok(again)), Ok(found)) if again == found => Law::Kept,
        (Ok(Ok(_)), Ok(_)) => Law::Broken("two runs differ".to_owned()),
        _ => Law::Broken("an error in a second run".to_owned()),
    };
    [allocations, bits]
}

fn bits_law(adapter: Adapter, inputs: Inputs<'_>, found: &Found) -> Law {
    let of = |threads| {
        let found = execute(adapter, inputs, &cpu(threads), &Reads::default());
        found.map(|found| found.bytes())
    };
    let (Ok(Ok(one)), Ok(Ok(three)), Ok(two)) = (of(1), of(3), found.bytes()) else {
        return Law::Broken("an error with another number of threads".to_owned());
    };
    if one != two {
        return Law::Broken("1 and 2 threads differ".to_owned());
    }
    if two != three {
        return Law::Broken("2 and 3 threads differ".to_owned());
    }
    Law::Kept
}
