use lowtide_tensor::{DType, RandomKey, Tensor};

use crate::alike::assert_close;
use crate::gpu::Gpu;
use crate::storage::cpu;

/// Tolerance of logarithms, roots and cosines of f64, rounded to f32.
const TOLERANCE: f64 = 2e-7;

#[test]
fn numbers_are_those_of_the_processor_through_every_view() {
    let Some(gpu) = Gpu::take() else { return };
    let (device, cpu) = (gpu.device(), cpu());
    let key = RandomKey::new(0x1234_5678_9abc_def0).op("weight").step(3);
    gpu.in_every_order(|| {
        for shape in [vec![], vec![0], vec![1], vec![7, 9], vec![33, 2, 5]] {
            let [found, expected] = [&device, &cpu].map(|device| {
                let filled = |fill: &dyn Fn(&mut Tensor)| {
                    let mut x = Tensor::ones(device, &shape[..], DType::F32).unwrap();
                    fill(&mut x);
                    x
                };
                let turned: Vec<usize> = (0..shape.len()).rev().collect();
                [
                    filled(&|x| x.uniform_(key, -0.25, 0.75).unwrap()),
                    filled(&|x| x.permute(&turned).unwrap().uniform_(key, 1.0, 3.0).unwrap()),
                    filled(&|x| x.bernoulli_(key, 0.3).unwrap()),
                    filled(&|x| x.normal_(key, 1.0, 2.0).unwrap()),
                ]
            });
            for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let tolerance = if index == 3 { TOLERANCE } else { 0.0 };
                assert_close("random", found, expected, tolerance);
            }
        }
    });
}
