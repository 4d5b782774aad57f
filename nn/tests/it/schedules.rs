use lowtide_nn::{Better, NnError, Plateau, PlateauOptions, Schedule};

const BASE: f64 = 0.1;

/// The schedules of `make_schedules.py`.
fn schedules() -> Vec<(&'static str, Schedule)> {
    let linear = |from, to, steps| Schedule::Linear { from, to, steps };
    let sequence = Schedule::Sequence {
        parts: vec![(linear(0.25, 1.0, 5), 5), (Schedule::Step { every: 3, factor: 0.5 }, 15)],
        last: Box::new(Schedule::Exponential { factor: 0.9 }),
    };
    let cycle = |steps, rising, start_divisor, end_divisor| Schedule::OneCycle {
        steps,
        rising,
        start_divisor,
        end_divisor,
    };
    vec![
        ("linear", linear(0.25, 0.75, 10)),
        ("cosine", Schedule::Cosine { steps: 40, floor: 0.003 }),
        ("restarts", Schedule::CosineRestarts { first: 3, growth: 2, floor: 0.001 }),
        ("equal_restarts", Schedule::CosineRestarts { first: 7, growth: 1, floor: 0.0 }),
        ("step", Schedule::Step { every: 7, factor: 0.3 }),
        ("milestones", Schedule::Milestones { at: vec![3, 3, 11, 30], factor: 0.5 }),
        ("exponential", Schedule::Exponential { factor: 0.93 }),
        ("polynomial", Schedule::Polynomial { steps: 30, power: 2.0 }),
        ("one_cycle", cycle(40, 0.3, 25.0, 1e4)),
        ("one_cycle_late", cycle(31, 0.8, 4.0, 10.0)),
        ("sequence", sequence),
        ("warm_up", Schedule::Cosine { steps: 32, floor: 0.002 }.after_warm_up(0.01, 8)),
    ]
}

/// The rates under `name` in the fixture.
fn expected(name: &str) -> Vec<f64> {
    let text = include_str!("../fixtures/schedules.txt");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let rates = line.unwrap_or_else(|| panic!("{name} is not in the fixture")).split(' ');
    rates.map(|rate| rate.parse().unwrap()).collect()
}

fn assert_close(name: &str, step: usize, found: f64, expected: f64) {
    // PyTorch multiplies step by step, with up to 40 roundings.
    assert!((found - expected).abs() <= 1e-15, "{name}, step {step}: {found}, not {expected}");
}

#[test]
fn schedules_give_pytorchs_rates() {
    for (name, schedule) in schedules() {
        schedule.check().unwrap();
        for (step, rate) in expected(name).into_iter().enumerate() {
            assert_close(name, step, schedule.learning_rate(BASE, step as u64), rate);
        }
    }
    assert_eq!(Schedule::Constant.learning_rate(BASE, 1000), BASE);
}

#[test]
fn schedules_end_where_they_say_for_all_time() {
    for (name, schedule) in schedules() {
        for step in [1 << 10, 1 << 40, u64::MAX] {
            let rate = schedule.learning_rate(BASE, step);
            assert!((0.0..=BASE).contains(&rate), "{name}: {rate}");
        }
    }
    let at_end = |schedule: Schedule| schedule.learning_rate(BASE, u64::MAX);
    assert_eq!(at_end(Schedule::Cosine { steps: 9, floor: 0.01 }), 0.01);
    assert_eq!(at_end(Schedule::Linear { from: 1.0, to: 0.0, steps: 9 }), 0.0);
    assert_eq!(at_end(Schedule::Polynomial { steps: 9, power: 0.0 }), 0.0);
}

#[test]
fn plateaus_fall_when_pytorchs_do() {
    let metrics =
        [1.0, 0.9, 0.9, 0.95, 0.89995, 0.92, 0.91, f64::NAN, 0.9, 0.9, 0.5, 0.6, 0.6, 0.6, 0.6];
    let options = PlateauOptions { factor: 0.5, ..Default::default() };
    let lower = PlateauOptions { patience: 1, cooldown: 2, floor: 0.02, ..options };
    let higher = PlateauOptions { better: Better::Higher, patience: 0, threshold: 0.05, ..options };
    for (name, options, sign) in [("plateau", lower, 1.0), ("plateau_higher", higher, -1.0)] {
        let (mut plateau, mut rate) = (Plateau::new(options).unwrap(), BASE);
        for (step, (metric, expected)) in metrics.iter().zip(expected(name)).enumerate() {
            // A plateau that is resumed from its state continues without a difference.
            plateau = Plateau::resume(options, plateau.state()).unwrap();
            rate = plateau.observe(sign * metric, rate);
            assert_close(name, step, rate, expected);
        }
    }
}

#[test]
fn a_fall_of_a_plateau_by_no_more_than_pytorchs_eps_is_left_out() {
    const EPS: f64 = 1e-8;
    let options = PlateauOptions { factor: 0.5, patience: 0, ..Default::default() };
    let fallen = |rate: f64| {
        let mut plateau = Plateau::new(options).unwrap();
        assert_eq!(plateau.observe(1.0, rate), rate);
        plateau.observe(1.0, rate)
    };
    assert_eq!(fallen(2.0 * EPS), 2.0 * EPS);
    assert_eq!(fallen(2.5 * EPS), 1.25 * EPS);
}

#[test]
fn options_out_of_range_are_refused_by_name() {
    let nested = Schedule::Step { every: 0, factor: 0.5 }.after_warm_up(0.0, 3);
    let refused = [
        (Schedule::Linear { from: -1.0, to: 1.0, steps: 2 }, "from"),
        (Schedule::Cosine { steps: 2, floor: f64::NAN }, "floor"),
        (Schedule::CosineRestarts { first: 0, growth: 1, floor: 0.0 }, "first"),
        (Schedule::Milestones { at: vec![4, 3], factor: 0.5 }, "milestone"),
        (Schedule::Exponential { factor: 1.5 }, "factor"),
        (
            Schedule::OneCycle { steps: 9, rising: 0.3, start_divisor: 0.0, end_divisor: 1.0 },
            "start_divisor",
        ),
        (nested, "every"),
    ];
    for (schedule, option) in refused {
        let error = schedule.check().unwrap_err();
        assert!(matches!(error, NnError::Option { name, .. } if name == option), "{error}");
    }
    let error = Plateau::new(PlateauOptions { factor: 1.0, ..Default::default() }).unwrap_err();
    assert_eq!(error.to_string(), "factor = 1 is not in 0..1");
}
