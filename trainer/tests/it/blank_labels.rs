//! Batches in which no target counts.

use lowtide_trainer::{Options, Trainer};

use crate::common::{KINDS, Kind, Probe, Run, cnn, first_batch, hits, labelled, values};

#[test]
fn batch_without_targets_has_no_gradient_rather_than_nan() {
    for kind in KINDS {
        let run = Run::default();
        let device = run.device(None);
        let task = cnn(&device, run.channels, run.seed);
        let mut trainer = Trainer::new(&device, task, kind.build(0.01), Options::default());
        let before = values(trainer.task_mut());
        let batch = first_batch(&labelled(&[-100; 12], 12));
        let report = trainer.step(&batch).expect("memory");
        assert!(report.loss.is_nan(), "the mean of nothing, as in PyTorch");
        assert!(!report.skipped);
        assert_eq!(values(trainer.task_mut()), before, "{kind:?}");

        // Training continues as if there had been no blank batch.
        let batch = first_batch(&labelled(&[1; 12], 12));
        let report = trainer.step(&batch).expect("memory");
        assert!(report.loss.is_finite());
        let after = values(trainer.task_mut());
        assert_ne!(after, before, "{kind:?}");
        assert!(after.iter().all(|value| value.is_finite()), "{kind:?}");
    }
}

#[test]
fn targets_of_no_weight_have_no_gradient() {
    let run = Run::default();
    let device = run.device(None);
    let probe = Probe::new(cnn(&device, run.channels, run.seed), |_, _| Ok(()));
    let task = Probe { count: Some(0.0), ..probe };
    let mut trainer = Trainer::new(&device, task, Kind::Plain.build(0.1), Options::default());
    let before = values(trainer.task_mut());
    let batch = first_batch(&labelled(&[1; 12], 12));
    trainer.step(&batch).expect("memory");
    assert_eq!(values(trainer.task_mut()), before);
}

#[test]
fn evaluation_without_targets_counts_nothing() {
    let run = Run::default();
    let device = run.device(None);
    let task = cnn(&device, run.channels, run.seed);
    let score = lowtide_trainer::evaluate(&task, &device, &labelled(&[-100; 5], 2), 2);
    let score = score.expect("memory");
    assert_eq!((score.loss_sum, score.count), (0.0, 0.0));
    assert!(score.loss().is_nan() && score.accuracy().is_nan());
}

#[test]
fn score_leaves_out_what_does_not_count() {
    let run = Run::default();
    let device = run.device(None);
    let task = cnn(&device, run.channels, run.seed);
    let score = |labels: &[i64], micro_batch| {
        let loader = labelled(labels, 4);
        lowtide_trainer::evaluate(&task, &device, &loader, micro_batch).expect("memory")
    };
    let all = score(&[3; 10], 4);
    assert_eq!(all.count, 10.0);
    let some = score(&[3, -100, 3, 3, -100, -100, 3, 3, 3, 3], 4);
    assert_eq!(some.count, 7.0);
    assert!(some.loss_sum < all.loss_sum && hits(&some) <= hits(&all));
    assert_eq!(hits(&score(&[3; 10], 1)), hits(&all));
}
