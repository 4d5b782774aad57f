//! Models cut between blocks: the places of cuts, and equal results of the stages and the whole.

use std::collections::{BTreeMap, BTreeSet};

use lowtide_autograd::{Attempt, LeafId, Pass, Var};
use lowtide_nn::parallel::{StageEnd, Survey, keep_own, run_stage, survey};
use lowtide_nn::{Linear, Module, NnError, NnResult, Parameters, Segment, parameters, run_blocks};
use lowtide_tensor::{CpuOptions, DType, Device, RandomKey, SimSpec, Tensor};

/// A model of four blocks: a run of two, then two single blocks. The input of the run is also added
/// to its output. With `passes_by`, the input of the third block is also added to its output. The
/// first layer is used again at the end.
#[derive(Clone)]
struct Net {
    first: Linear,
    run: Vec<Segment<Linear>>,
    third: Segment<Linear>,
    last: Segment<Linear>,
    passes_by: bool,
}

parameters!(Net { first as "first.", run as "run.", third as "third.", last as "last." });

impl Module for Net {
    fn forward(&self, pass: &Pass, input: Var) -> NnResult<Var> {
        let x = self.first.forward(pass, input)?.relu()?;
        let run = |block: &Linear, pass: &Pass, x: Var| block.forward(pass, x);
        let of_run = run_blocks("run.", &self.run, pass, x.clone(), run)?.relu()?.add(x)?;
        let mut y = self.third.forward(pass, of_run.clone())?.relu()?;
        if self.passes_by {
            y = y.add(of_run)?;
        }
        let y = self.last.forward(pass, y)?;
        self.first.forward(pass, y)
    }
}

fn net(device: &Device, passes_by: bool) -> Net {
    let key = RandomKey::new(3);
    let linear = |name: &str| Linear::new(device, key.op(name), 5, 5).expect("memory");
    Net {
        first: linear("first"),
        run: ["a", "b"].map(|name| Segment::new(linear(name))).into(),
        third: Segment::new(linear("c")),
        last: Segment::new(linear("d")),
        passes_by,
    }
}

fn input(device: &Device) -> Tensor {
    let mut x = Tensor::empty(device, [3, 5], DType::F32).expect("memory");
    x.uniform_(RandomKey::new(9), -1.0, 1.0).expect("floats");
    x
}

fn surveyed(net: &Net) -> Survey {
    let device = Device::sim(SimSpec::like_this_machine(1 << 30)).expect("a device");
    let mut net = net.clone();
    net.visit_tensors(&mut |_, tensor| {
        *tensor = Tensor::empty(&device, *tensor.shape(), tensor.dtype()).expect("memory");
    });
    let (attempt, x) = (Attempt::new(), Tensor::empty(&device, [3, 5], DType::F32));
    let pass = Pass::train(RandomKey::new(0), &attempt);
    survey(&device, || -> NnResult<_> {
        let y = net.forward(&pass, pass.constant(x.expect("memory")))?;
        let loss = y.sum_all()?;
        Ok((pass, loss))
    })
    .expect("it has blocks")
}

fn ids(net: &mut Net, prefix: &str) -> BTreeSet<LeafId> {
    let mut ids = BTreeSet::new();
    net.visit(&mut |name, parameter| {
        if name.starts_with(prefix) {
            ids.insert(parameter.id());
        }
    });
    ids
}

#[test]
fn a_survey_tells_what_each_block_uses_and_where_a_stage_can_begin() {
    let device = Device::cpu(CpuOptions::default()).expect("a device");
    for passes_by in [false, true] {
        let mut net = net(&device, passes_by);
        let found = surveyed(&net);
        assert_eq!(found.cuts.block_count(), 4);
        assert_eq!(found.cuts.input(2).map(|meta| meta.shape.to_vec()), Some(vec![3, 5]));
        let begin: Vec<bool> = found.sections.iter().map(|section| section.can_begin).collect();
        // Code before the first block can be computed again in a later stage, the output of a block
        // cannot.
        assert_eq!(begin, [true, true, !passes_by, true]);
        let used = |section: usize, prefixes: &[&str], net: &mut Net| {
            let ids = prefixes.iter().flat_map(|prefix| ids(net, prefix)).collect();
            assert_eq!(found.sections[section].leaves, ids, "{section} {passes_by}");
        };
        used(0, &["first.", "run.0."], &mut net);
        used(1, &["run.1.", "first."], &mut net);
        if !passes_by {
            used(2, &["third."], &mut net);
        }
        used(3, &["last.", "first."], &mut net);
    }
}

/// Runs all stages. Returns the output of the last stage, and the sum of the stages' gradients for
/// each parameter.
fn by_stages(whole: &Net, bounds: &[usize], x: &Tensor) -> (Vec<f32>, Vec<Vec<f32>>) {
    let device = x.device();
    let found = surveyed(whole);
    let mut stages = Vec::new();
    let (mut value, mut result) = (None, Vec::new());
    for blocks in bounds.windows(2) {
        let own: BTreeSet<LeafId> =
            found.sections[blocks[0]..blocks[1]].iter().flat_map(|of| of.leaves.clone()).collect();
        let mut net = whole.clone();
        keep_own(&mut net, device, &|leaf| own.contains(&leaf), &|_| true).expect("memory");
        let attempt = Attempt::new();
        let pass = Pass::train(RandomKey::new(0), &attempt);
        let (ran, end) = run_stage(blocks[0]..blocks[1], &found.cuts, value.take(), || {
            net.forward(&pass, pass.constant(x.clone()))
        });
        let output = match (ran, &end.output) {
            (Err(NnError::EndOfStage), Some(output)) => output.clone(),
            (Ok(y), None) => {
                result = y.value().to_vec::<f32>().expect("f32");
                y
            }
            _ => panic!("a stage ends where it does, or with the model"),
        };
        value = Some(output.value().clone());
        stages.push((attempt, pass, output, end));
    }
    let mut dy = Tensor::full(device, [3, 5], DType::F32, 1.0).expect("memory");
    let mut sums: BTreeMap<LeafId, Vec<f32>> = BTreeMap::new();
    for (attempt, pass, output, StageEnd { output: sent, input_gradient }) in
        stages.into_iter().rev()
    {
        drop(sent);
        pass.backward_from(vec![(output, dy.clone())]).expect("a graph");
        if let Some(dx) = input_gradient.take() {
            dy = dx;
        }
        for leaf in attempt.leaves() {
            let Some(own) = attempt.gradient(leaf) else { continue };
            let own = own.to_vec::<f32>().expect("f32");
            let sum = sums.entry(leaf).or_insert_with(|| vec![0.0; own.len()]);
            sum.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
        }
    }
    (result, sums.into_values().collect())
}

#[test]
fn stages_one_after_the_other_are_the_model() {
    let device = Device::cpu(CpuOptions::default()).expect("a device");
    let x = input(&device);
    for (passes_by, bounds) in [
        (false, &[0, 1, 2, 3, 4][..]),
        (false, &[0, 2, 4]),
        (false, &[0, 3, 4]),
        (true, &[0, 1, 3, 4]),
        (true, &[0, 3, 4]),
    ] {
        let net = net(&device, passes_by);
        let (whole, whole_gradients) = by_stages(&net, &[0, 4], &x);
        let (result, gradients) = by_stages(&net, bounds, &x);
        assert_eq!(result, whole, "{bounds:?}");
        assert_eq!(gradients.len(), whole_gradients.len());
        for (own, whole) in gradients.iter().zip(&whole_gradients) {
            let is_near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-5 * (1.0 + b.abs());
            assert!(own.iter().zip(whole).all(is_near), "{bounds:?}: {own:?} {whole:?}");
        }
    }
}

/// A parameter of another stage takes no memory here and has no gradient, and its values are not
/// read.
#[test]
fn what_is_elsewhere_takes_no_memory() {
    let device = Device::cpu(CpuOptions::default()).expect("a device");
    let key = RandomKey::new(1);
    let mut large = Linear::new(&device, key, 1000, 1000).expect("memory");
    let bytes = || device.allocator().statistics().allocated.current_bytes;
    let before_bytes = bytes();
    keep_own(&mut large, &device, &|_| false, &|_| true).expect("memory");
    assert!(bytes() < before_bytes / 100, "{} of {before_bytes}", bytes());
    let attempt = Attempt::new();
    let pass = Pass::train(key, &attempt);
    large.visit(&mut |_, parameter| {
        assert!(parameter.is_elsewhere());
        assert!(!parameter.var(&pass).expect("it stands in").needs_gradient());
    });
}
