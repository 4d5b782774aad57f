//! The cost of an optimizer's step over a model of many tensors: all at once, one by one, and in
//! the loop that anyone would write first.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use lowtide_tensor::{
    CpuOptions, DType, Device, Float, Rounding, Tensor, TensorUpdate, UpdateFormula, update_all_,
};

/// AdamW in its first step, with PyTorch's defaults.
#[derive(Clone, Copy)]
struct AdamW;

const RATE: f64 = 1e-3;
const KEEP: f64 = 1.0 - RATE * 0.01;
const BETAS: [f64; 2] = [0.9, 0.999];
const EPS: f64 = 1e-8;

impl UpdateFormula<2, 0> for AdamW {
    const NAME: &'static str = "adamw";
    const FLOPS: f64 = 15.0;

    #[inline(always)]
    fn element<T: Float>(&self, _: [T; 0], p: T, g: T, [m, v]: [T; 2]) -> (T, [T; 2]) {
        let [beta1, beta2] = BETAS.map(T::from_f64);
        let [take1, take2] = BETAS.map(|beta| T::from_f64(1.0 - beta));
        let [rate, keep, eps] = [RATE / (1.0 - BETAS[0]), KEEP, EPS].map(T::from_f64);
        let root_scale = T::from_f64(1.0 / (1.0 - BETAS[1]).sqrt());
        let m = beta1 * m + take1 * g;
        let v = beta2 * v + take2 * g * g;
        (keep * p - rate * m / (v.sqrt() * root_scale + eps), [m, v])
    }
}

/// The parameters of a GPT of 12 layers with rows of `width`: 148 tensors.
fn gpt(width: usize) -> Vec<Vec<usize>> {
    let layer = [
        vec![width],
        vec![width],
        vec![3 * width, width],
        vec![3 * width],
        vec![width, width],
        vec![width],
        vec![width],
        vec![width],
        vec![4 * width, width],
        vec![4 * width],
        vec![width, 4 * width],
        vec![width],
    ];
    let ends = [vec![4096, width], vec![128, width], vec![width], vec![width]];
    (0..12).flat_map(|_| layer.clone()).chain(ends).collect()
}

/// A tensor's parameter, gradient and states.
struct Job {
    parameter: Tensor,
    gradient: Tensor,
    states: [Tensor; 2],
}

impl Job {
    fn new(device: &Device, dims: &[usize]) -> Self {
        let len: usize = dims.iter().product();
        let value =
            |i: usize, seed: usize| ((i * 29 + seed * 7 + i / 11) % 31) as f32 / 8.0 - 1.875;
        let values = |seed| (0..len).map(|i| value(i, seed)).collect::<Vec<f32>>();
        let upload = |seed| Tensor::from_slice(device, dims, &values(seed)).expect("memory");
        let zeros = |_| Tensor::zeros(device, dims, DType::F32).expect("memory");
        Job { parameter: upload(1), gradient: upload(2), states: [0, 1].map(zeros) }
    }

    fn update(&mut self) -> TensorUpdate<'_, AdamW> {
        TensorUpdate {
            parameter: &mut self.parameter,
            gradient: &self.gradient,
            states: &mut self.states,
            scalars: &[],
            formula: AdamW,
            rounding: Rounding::Nearest,
        }
    }
}

fn all_at_once(device: &Device, jobs: &mut [Job]) {
    let mut updates: Vec<_> = jobs.iter_mut().map(Job::update).collect();
    update_all_(device, &mut updates).expect("operands that fit");
}

fn one_by_one(device: &Device, jobs: &mut [Job]) {
    for job in jobs {
        update_all_(device, &mut [job.update()]).expect("operands that fit");
    }
}

/// Updates parameter, gradient and both moments of each tensor by plain loops.
fn naive(jobs: &mut [[Vec<f32>; 4]]) {
    let [beta1, beta2, rate, eps] = [BETAS[0], BETAS[1], RATE, EPS].map(|x| x as f32);
    for [p, g, m, v] in jobs {
        for i in 0..p.len() {
            p[i] *= KEEP as f32;
            m[i] = beta1 * m[i] + (1.0 - beta1) * g[i];
            v[i] = beta2 * v[i] + (1.0 - beta2) * g[i] * g[i];
            let (m_hat, v_hat) = (m[i] / (1.0 - beta1), v[i] / (1.0 - beta2));
            p[i] -= rate * m_hat / (v_hat.sqrt() + eps);
        }
    }
}

fn adamw(criterion: &mut Criterion) {
    for width in [32, 64, 256] {
        let device = Device::cpu(CpuOptions::default()).expect("address space");
        let new = || gpt(width).iter().map(|dims| Job::new(&device, dims)).collect::<Vec<_>>();
        let (mut all, mut each) = (new(), new());
        let values = |tensor: &Tensor| tensor.to_vec::<f32>().expect("values");
        let mut plain: Vec<[Vec<f32>; 4]> = all
            .iter()
            .map(|Job { parameter, gradient, states: [m, v] }| {
                [parameter, gradient, m, v].map(values)
            })
            .collect();
        all_at_once(&device, &mut all);
        one_by_one(&device, &mut each);
        naive(&mut plain);
        for ((all, each), plain) in all.iter().zip(&each).zip(&plain) {
            let found = values(&all.parameter);
            assert_eq!(found, values(&each.parameter));
            for (found, expected) in found.iter().zip(&plain[0]) {
                assert!((found - expected).abs() <= 1e-4, "{found}, not {expected}");
            }
        }
        let len: usize = all.iter().map(|job| job.parameter.element_count()).sum();
        let mut group = criterion.benchmark_group(format!("tensor/adamw_gpt_{width}"));
        group.throughput(Throughput::Elements(len as u64));
        group.bench_function("lowtide", |bencher| {
            bencher.iter(|| all_at_once(&device, black_box(&mut all)));
        });
        group.bench_function("one_by_one", |bencher| {
            bencher.iter(|| one_by_one(&device, black_box(&mut each)));
        });
        group.bench_function("baseline_naive", |bencher| {
            bencher.iter(|| naive(black_box(&mut plain)));
        });
        group.finish();
    }
}

criterion_group!(updates, adamw);
criterion_main!(updates);
