//! Memory by module is the same in a rehearsal and in the run, and is never attributed to this
//! library's rules.

use lowtide_allocator::{Action, Category, ModulePath, ModuleShare};

use crate::common::{KINDS, Run};

fn names(shares: &[ModuleShare]) -> Vec<String> {
    shares.iter().map(ModuleShare::name).collect()
}

#[test]
fn run_has_by_module_what_its_rehearsal_had_to_the_byte() {
    for kind in KINDS {
        for divisor in [1, 2] {
            let run = Run { kind, ..Run::default() };
            let whole_bytes = run.plan(None).expect("fits").predicted_peak_bytes();
            let device = run.device(Some(whole_bytes / divisor));
            let (train, test) = run.loaders();
            let mut trainer = run.trainer(&device);
            let plan = trainer.plan(&train, &test, run.epochs).expect("fits");
            let first_event = device.allocator().event_count();
            trainer.fit(&train, &test, run.epochs, &mut []).expect("fits");
            let shares = device.allocator().capture().modules_at_peak(first_event);
            assert_eq!(shares, plan.forecast.modules_at_peak, "{kind:?}, a {divisor}th of it");
            for name in ["conv", "linear", "(root)"] {
                assert!(names(&shares).iter().any(|found| found == name), "{shares:?}");
            }
        }
    }
}

#[test]
fn blocks_of_a_step_name_the_module_and_no_line_of_autograd() {
    let run = Run::default();
    let device = run.device(None);
    let (train, test) = run.loaders();
    let mut trainer = run.trainer(&device);
    trainer.plan(&train, &test, run.epochs).expect("fits");
    let first_event = device.allocator().event_count();
    trainer.fit(&train, &test, run.epochs, &mut []).expect("fits");
    let history = device.allocator().history();
    let made = history
        .records()
        .iter()
        .filter(|record| record.sequence >= first_event && record.action == Action::Allocate);
    let mut seen = Vec::new();
    for record in made {
        assert!(!record.site.file().contains("autograd"), "{record:?}");
        if matches!(record.category, Category::Activation | Category::OptimizerState) {
            assert!(record.module.is_some(), "{record:?}");
        }
        seen.extend(record.module.map(|module| (record.category, module.to_string())));
    }
    for module in ["conv", "linear"] {
        for category in [Category::Activation, Category::Gradient, Category::OptimizerState] {
            assert!(seen.contains(&(category, module.to_owned())), "{category} of {module}");
        }
    }
    let live = device.allocator().live_blocks();
    let parameters = live.iter().filter(|block| block.category == Category::Parameter);
    let mut names: Vec<_> =
        parameters.map(|block| block.module.map_or("", ModulePath::path)).collect();
    names.sort_unstable();
    assert_eq!(names, ["conv", "conv", "linear", "linear"]);
}
