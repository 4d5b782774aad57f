//! Divided parameters: their results equal the results of whole parameters, and wholes are freed.

use std::sync::Arc;

use lowtide_allocator::Category;
use lowtide_autograd::{Attempt, Pass, SavedPolicy};
use lowtide_nn::optim::{Part, Parts};
use lowtide_nn::parallel::{Gather, divide};
use lowtide_nn::{
    Linear, Module, NnError, NnResult as Result, Parameters, ReLU, Segment, Sequential,
    to_safetensors,
};
use lowtide_tensor::{Device, Tensor};

use crate::common::{KEY, cpu};

/// A gather that completes a part from known whole tensors, in place of other ranks.
#[derive(Debug)]
struct Others {
    wholes: Vec<Tensor>,
    part: Part,
}

impl Gather for Others {
    fn gather(&self, whole: &mut Tensor, part_len: usize) -> Result<()> {
        assert_eq!(part_len, self.part.len_of(whole.element_count()));
        let own = self.part.of(whole)?.to_bytes()?;
        let is_this = |known: &&Tensor| {
            let of_known = self.part.of(known).unwrap().to_bytes().unwrap();
            known.shape() == whole.shape() && of_known == own
        };
        let known = self.wholes.iter().find(is_this).expect("one of them").clone();
        Ok(whole.copy_across_(&known)?)
    }
}

/// Three layers with a block in the middle. All tensors have different shapes.
fn model(device: &Device) -> Result<Sequential> {
    let block = Sequential::new().then(ReLU).then(Linear::new(device, KEY.op("1"), 64, 48)?);
    Ok(Sequential::new()
        .then(Linear::new(device, KEY.op("0"), 32, 64)?)
        .then(Segment::new(block))
        .then(ReLU)
        .then(Linear::new(device, KEY.op("2"), 48, 9)?))
}

fn values(model: &mut Sequential) -> Vec<Tensor> {
    let mut values = Vec::new();
    model.visit(&mut |_, parameter| values.push(parameter.value().clone()));
    values
}

/// The loss and the gradients of a step, as bytes.
fn step(device: &Device, model: &Sequential) -> Result<Vec<Vec<u8>>> {
    let x = (0..160).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect::<Vec<_>>();
    let attempt = Attempt::new();
    let pass = Pass::train(KEY, &attempt);
    let x = pass.constant(Tensor::from_slice(device, [5, 32], &x)?);
    let loss = model.forward(&pass, x)?.sum(&[0, 1])?;
    let mut found = vec![loss.value().to_bytes()?];
    pass.backward(loss)?;
    let gradients = attempt.into_gradients();
    for gradient in gradients.iter() {
        found.push(gradient.to_bytes()?);
    }
    Ok(found)
}

#[test]
fn a_step_by_parts_of_parameters_has_the_bits_of_one_by_wholes() -> Result<()> {
    for policy in [SavedPolicy::Keep, SavedPolicy::Recompute] {
        for index in 0..3 {
            let (host, device, part) = (cpu(), cpu(), Part { index, count: 3 });
            let mut whole = model(&host)?;
            whole.set_policy(Some(policy.clone()));
            let expected = step(&host, &whole)?;
            let wholes = values(&mut whole);
            let lens: Vec<usize> =
                wholes.iter().map(|value| part.range(value.element_count()).len()).collect();
            let gather: Arc<dyn Gather> = Arc::new(Others { wholes, part });
            divide(&mut whole, &device, part, &gather)?;
            let allocated = || device.allocator().statistics().allocated.current_bytes;
            let before = allocated();
            assert!(step(&device, &whole)? == expected, "{policy:?}, {part:?}");
            assert_eq!(allocated(), before);
            let mut found = Vec::new();
            Parts::new(&mut whole, part)?
                .visit(&mut |_, parameter| found.push(parameter.value().element_count()));
            assert_eq!(found, lens);
        }
    }
    Ok(())
}

/// A block that is recomputed has whole parameters only while it runs.
#[test]
fn wholes_are_freed_where_blocks_are_recomputed() -> Result<()> {
    let peak = |policy: SavedPolicy| -> Result<usize> {
        let (host, device, part) = (cpu(), cpu(), Part { index: 0, count: 2 });
        let mut net = Sequential::new();
        for _ in 0..6 {
            let layer = Linear::without_bias(&host, KEY, 128, 128)?;
            net = net.then(Segment::new(Sequential::new().then(layer)));
        }
        net.set_policy(Some(policy));
        let wholes = values(&mut net);
        let gather: Arc<dyn Gather> = Arc::new(Others { wholes, part });
        divide(&mut net, &device, part, &gather)?;
        let attempt = Attempt::new();
        let pass = Pass::train(KEY, &attempt);
        let x = pass.constant(Tensor::ones(&device, [2, 128], lowtide_tensor::DType::F32)?);
        pass.backward(net.forward(&pass, x)?.sum(&[0, 1])?)?;
        Ok(device.allocator().statistics().by_category[Category::Parameter].peak_bytes)
    };
    let layer_bytes = 4 * 128 * 128;
    let own_bytes = 6 * (layer_bytes / 2 + 512);
    // The first weight is not kept: the input of the first layer has no gradient.
    assert_eq!(peak(SavedPolicy::Keep)?, own_bytes + 5 * layer_bytes);
    assert_eq!(peak(SavedPolicy::Recompute)?, own_bytes + layer_bytes);
    Ok(())
}

#[test]
fn files_are_of_whole_parameters_alone() -> Result<()> {
    let (device, part) = (cpu(), Part { index: 1, count: 2 });
    let mut net = model(&device)?;
    let gather: Arc<dyn Gather> = Arc::new(Others { wholes: values(&mut net), part });
    divide(&mut net, &device, part, &gather)?;
    let error = to_safetensors(&mut net).expect_err("a part is no parameter");
    assert!(matches!(&error, NnError::Divided { name } if name == "0.weight"), "{error}");
    let mut names = Vec::new();
    net.visit_tensors(&mut |name, _| names.push(name.to_owned()));
    assert_eq!(names[..3], ["0.weight", "0.weight.part", "0.bias"]);
    Ok(())
}
