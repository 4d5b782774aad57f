//! A classifier of digits that is made smaller. Half of its channels are removed, and the rest is
//! trained with the whole model as its teacher. Then its linear layer, and the inputs of this
//! layer, are quantised to 8 bits, for integer products. For comparison, nine tenths of another
//! model's weights are set to zero: it takes as many bytes, but few of them carry information.

use std::time::Instant;

use lowtide_data::{Digits, Sequential};
use lowtide_nn::models::{SimpleCnn, SimpleCnnShape};
use lowtide_nn::optim::{Adam, AdamOptions, Masked, Stateful};
use lowtide_nn::prune::{self, ChannelOptions, MagnitudeOptions, Masks};
use lowtide_nn::{
    Activations, Targets, from_safetensors, quantize, set_activations, to_safetensors,
};
use lowtide_tensor::QuantFormat;
use lowtide_trainer::prelude::*;
use lowtide_trainer::{Distillation, DistillationOptions, Result, evaluate};

type Cnn = Classification<SimpleCnn>;

struct Bench {
    device: Device,
    train: Loader,
    test: Loader,
}

impl Bench {
    fn fit<T: Task + Clone>(&self, task: T, masks: Masks, epochs: u64) -> Result<T> {
        let adam = Adam::new(AdamOptions { learning_rate: 3e-3, ..AdamOptions::adamw() })?;
        let optimizer: Box<dyn Stateful> = Box::new(Masked::new(adam, masks));
        let mut trainer = Trainer::new(&self.device, task, optimizer, Options::default());
        trainer.fit(&self.train, &self.test, epochs, &mut [])?;
        Ok(trainer.task().clone())
    }

    /// A copy with parameters of its own. A clone would share parameters.
    fn copy(&self, task: &mut Cnn, shape: SimpleCnnShape) -> Result<SimpleCnn> {
        let mut copy = SimpleCnn::new(&self.device, RandomKey::new(0), shape)?;
        from_safetensors(&mut copy, &to_safetensors(task.parameters())?, "memory".as_ref())?;
        Ok(copy)
    }

    /// Prints a line of the table: accuracy in percent, and bytes.
    fn row(&self, name: &str, task: &mut Cnn) -> Result<(f64, usize)> {
        let (mut bytes, mut zeros, mut all) = (0, 0, 0);
        task.parameters().visit_tensors(&mut |_, tensor| {
            bytes += tensor.size_bytes();
            let values = tensor.to_vec::<f32>().unwrap_or_default();
            zeros += values.iter().filter(|&&value| value == 0.0).count();
            all += values.len();
        });
        let (mut accuracy, mut best_ms) = (0.0, f64::INFINITY);
        for _ in 0..10 {
            let begin = Instant::now();
            accuracy = 100.0 * evaluate(task, &self.device, &self.test, 256)?.accuracy();
            let batches = self.test.batches_per_epoch() as f64;
            best_ms = best_ms.min(begin.elapsed().as_secs_f64() * 1e3 / batches);
        }
        let zeros = 100 * zeros / all.max(1);
        println!("{name:<28}{accuracy:>9.2} %{bytes:>10}{zeros:>9} %{best_ms:>9.2} ms");
        Ok((accuracy, bytes))
    }
}

fn main() -> Result<()> {
    let (train, test) = Digits::load()?.split();
    let options = LoaderOptions { batch_size: 128, ..Default::default() };
    let train = Loader::new(train, options)?;
    let test = Loader::with_sampler(test, Sequential, options)?;
    let device = Device::cpu(CpuOptions::default())?;
    let shape = SimpleCnnShape { image: [1, 8, 8], channels: 64, classes: 10 };
    let model = SimpleCnn::new(&device, RandomKey::new(0), shape)?;
    let bench = Bench { device, train, test };
    println!("{:<28}{:>11}{:>10}{:>11}{:>12}", "", "accuracy", "bytes", "zeros", "a batch");
    let mut whole = bench.fit(Classification::new(model), Masks::default(), 30)?;
    let (before, whole_bytes) = bench.row("64 channels, f32", &mut whole)?;

    let mut model = bench.copy(&mut whole, shape)?;
    prune::channels(&mut model, &ChannelOptions::default())?;
    let mut half = Classification::new(model);
    bench.row("32 channels", &mut half)?;
    let taught = DistillationOptions { temperature: 2.0, weight: 0.5 };
    let half = Distillation::new(half, whole.clone(), taught)?;
    let mut half = bench.fit(half, Masks::default(), 20)?.student().clone();
    let (after, half_bytes) = bench.row("  trained on with a teacher", &mut half)?;
    let mut model = half.model().clone();
    quantize(&mut model, &Targets::AllLinear, QuantFormat::Int8Rows)?;
    let mut model = Classification::new(model);
    let (in_8_bits, least_bytes) = bench.row("  and in 8 bits", &mut model)?;
    set_activations(model.parameters(), Activations::Int8);
    let (integers, _) = bench.row("  and int8 products", &mut model)?;

    let mut sparse = bench.copy(&mut whole, shape)?;
    let most = MagnitudeOptions { fraction: 0.9, ..Default::default() };
    let masks = prune::magnitude(&mut sparse, &most)?;
    bench.row("nine weights in ten zero", &mut Classification::new(sparse.clone()))?;
    let mut sparse = bench.fit(Classification::new(sparse), masks, 20)?;
    let (with_zeros, _) = bench.row("  trained on", &mut sparse)?;

    assert!(half_bytes * 100 < whole_bytes * 51 && least_bytes * 3 < half_bytes);
    for accuracy in [after, in_8_bits, integers, with_zeros] {
        assert!(accuracy > before - 0.5, "{accuracy} is more than half a point under {before}");
    }
    Ok(())
}
