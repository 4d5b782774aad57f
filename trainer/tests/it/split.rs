//! A batch in micro-batches: fewer samples at once, the same training.

use lowtide_trainer::{Options, Trainer};

use crate::common::{
    KINDS, Kind, Run, cnn, first_batch, hits, labelled, naive_gradient, reassociation, values,
};

/// Number of addends of the longest sum in a step: the gradient of a convolution's weight sums over
/// all pixels of all samples.
fn sum_len(run: &Run) -> usize {
    run.batch_size * 64
}

#[test]
fn half_the_memory_gives_the_same_losses_up_to_reassociation() {
    for kind in KINDS {
        // 20 steps; with this small learning rate errors do not grow by themselves.
        let run = Run { kind, train_len: 960, epochs: 2, ..Run::default() };
        let whole = run.fit(None);
        let half = run.fit(Some(whole.measured_peak_bytes / 2));
        assert!(half.plan.knobs.micro_batch < whole.plan.knobs.micro_batch, "{kind:?}");
        assert!(half.measured_peak_bytes <= whole.measured_peak_bytes / 2, "{kind:?}");
        assert_eq!(half.reports.len(), 20, "{kind:?}");
        assert_eq!(whole.reports.len(), 20, "{kind:?}");
        assert_ne!(half.losses(), whole.losses(), "nothing was split");
        for (step, (a, b)) in (1..).zip(half.losses().into_iter().zip(whole.losses())) {
            // Every step adds its own error to the errors of earlier steps.
            let tolerance = f64::from(step) * reassociation(sum_len(&run)) * b.max(1.0);
            assert!((a - b).abs() <= tolerance, "{kind:?} step {step}: {a} {b} {tolerance:e}");
        }
        // A sample between two classes may fall to either side.
        let difference = (hits(&half.score) - hits(&whole.score)).abs();
        assert!(difference <= 0.02 * whole.score.count, "{kind:?}: {difference} samples");
        assert!(whole.score.accuracy() > 0.5, "{kind:?} has learnt nothing");
    }
}

#[test]
fn reports_name_the_samples_of_the_batch_and_of_its_parts() {
    let run = Run { train_len: 200, ..Run::default() };
    let micro_batch = 32;
    let outcome = run.fit(Some(run.budget_for(micro_batch)));
    let seen: Vec<_> = outcome.reports.iter().map(|r| (r.step, r.batch, r.micro_batch)).collect();
    assert_eq!(seen, [(1, 96, 32), (2, 96, 32), (3, 8, 8)]);
}

/// The negated gradient, plus the initial values: the parameters after one step of plain descent
/// with learning rate 1.
fn gradient(labels: &[i64], micro_batch: usize) -> Vec<f64> {
    let run = Run { kind: Kind::Plain, ..Run::default() };
    let loader = labelled(labels, labels.len());
    let step = |budget_bytes: Option<usize>| {
        let device = run.device(budget_bytes);
        let task = cnn(&device, run.channels, run.seed);
        let mut trainer = Trainer::new(&device, task, Kind::Plain.build(1.0), Options::default());
        let before = values(trainer.task_mut());
        let batch = first_batch(&loader);
        let report = trainer.step(&batch).expect("memory");
        assert!(report.loss.is_finite());
        let after = values(trainer.task_mut());
        let difference = |(a, b): (&f32, &f32)| f64::from(*a) - f64::from(*b);
        (report, before.iter().zip(&after).map(difference).collect())
    };
    let mut budget_bytes = None;
    loop {
        let (report, gradient) = step(budget_bytes);
        if report.micro_batch == micro_batch {
            return gradient;
        }
        assert!(report.micro_batch > micro_batch, "no budget leads to {micro_batch}");
        budget_bytes = Some(report.reserved_peak_bytes - 1);
    }
}

#[test]
fn ragged_parts_with_ignored_labels_have_the_gradient_of_the_mean_of_the_whole() {
    // The parts have 34, 34 and 32 samples; in the middle one only two samples count.
    let counts = |index: usize| !(36..68).contains(&index) && !index.is_multiple_of(3);
    let label = |index: usize| if counts(index) { index as i64 % 10 } else { -100 };
    let labels: Vec<i64> = (0..100).map(label).collect();
    let whole = gradient(&labels, 100);
    let parts = gradient(&labels, 34);
    assert_ne!(parts, whole, "nothing was split");
    let run = Run::default();
    let device = run.device(None);
    let batch = first_batch(&labelled(&labels, labels.len()));
    let mean = naive_gradient(cnn(&device, run.channels, run.seed), &device, &batch);
    let norm = mean.iter().map(|g| g * g).sum::<f64>().sqrt();
    assert!(norm > 0.1, "{norm} is no gradient");
    for (index, expected) in mean.into_iter().enumerate() {
        // Reading the gradient from a parameter adds a rounding error of the parameter's u, which
        // is smaller.
        let tolerance = reassociation(labels.len() * 64) * norm;
        for found in [whole[index], parts[index]] {
            assert!((found - expected).abs() <= tolerance, "{index}: {found} {expected}");
        }
    }
}
