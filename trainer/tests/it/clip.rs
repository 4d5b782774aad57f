//! Clipping, compared with a naive computation.

use lowtide_trainer::{Options, Trainer};

use crate::common::{Kind, Run, U, cnn, first_batch, naive_gradient, reassociation, values};

/// The naively computed gradient of the first batch.
fn twin(run: &Run) -> Vec<f64> {
    let device = run.device(None);
    naive_gradient(cnn(&device, run.channels, run.seed), &device, &first_batch(&run.loaders().0))
}

/// Parameters before and after one step of plain descent with learning rate 1.
fn step(run: &Run, budget_bytes: Option<usize>, clip_norm: Option<f64>) -> [Vec<f32>; 2] {
    let device = run.device(budget_bytes);
    let task = cnn(&device, run.channels, run.seed);
    let options = Options { clip_norm, ..Options::default() };
    let mut trainer = Trainer::new(&device, task, Kind::Plain.build(1.0), options);
    let before = values(trainer.task_mut());
    trainer.step(&first_batch(&run.loaders().0)).expect("memory");
    [before, values(trainer.task_mut())]
}

fn norm(gradient: &[f64]) -> f64 {
    gradient.iter().map(|g| g * g).sum::<f64>().sqrt()
}

#[test]
fn update_uses_the_gradient_shortened_to_the_norm() {
    let run = Run::default();
    let gradient = twin(&run);
    let length = norm(&gradient);
    assert!(length > 0.1, "{length} is no gradient");
    for part in [0.01, 0.5, 0.99] {
        let scale = part * length / (length + 1e-6);
        let [before, after] = step(&run, None, Some(part * length));
        for (index, (p, q)) in before.iter().zip(&after).enumerate() {
            let (g, expected) = (gradient[index], f64::from(*p) - scale * gradient[index]);
            // The tolerance covers one product, one difference, and the mean of the naive gradient,
            // each rounded.
            let tolerance = 4.0 * U * (g.abs() + expected.abs());
            let error = (f64::from(*q) - expected).abs();
            assert!(error <= tolerance, "{part} at {index}: {error:e} over {tolerance:e}");
        }
    }
}

#[test]
fn shorter_gradients_are_left_alone() {
    let run = Run::default();
    let length = norm(&twin(&run));
    let unclipped = step(&run, None, None);
    assert_eq!(step(&run, None, Some(length * 1.01)), unclipped);
    assert_ne!(step(&run, None, Some(length * 0.99)), unclipped);
}

#[test]
fn norm_is_that_of_the_whole_batch_whatever_the_parts() {
    // If each part were clipped, the sum would be longer, because parts point in different
    // directions.
    let run = Run { train_len: 96, kind: Kind::Plain, ..Run::default() };
    let length = norm(&twin(&run));
    let [before, whole] = step(&run, None, Some(length / 2.0));
    let [_, parts] = step(&run, Some(run.budget_for(32)), Some(length / 2.0));
    assert_ne!(whole, parts, "nothing was split");
    let tolerance = reassociation(run.batch_size * 64) * length;
    for (index, (a, b)) in whole.iter().zip(&parts).enumerate() {
        let error = f64::from((a - b).abs());
        assert!(error <= tolerance, "{index}: {error:e} over {tolerance:e}");
    }
    let moved: Vec<f64> =
        before.iter().zip(&parts).map(|(p, q)| f64::from(*p) - f64::from(*q)).collect();
    assert!((norm(&moved) - length / 2.0).abs() <= 1e-6 + tolerance * (moved.len() as f64).sqrt());
}

#[test]
fn peak_is_predicted_with_clipping_too() {
    let run = Run { train_len: 200, epochs: 2, ..Run::default() };
    for clip_norm in [1e-3, 1e3] {
        let options = Options { clip_norm: Some(clip_norm), ..Options::default() };
        let outcome = run.fit_with(None, options, |_, _| {});
        assert_eq!(outcome.measured_peak_bytes, outcome.plan.predicted_peak_bytes());
    }
}
