//! The page of a run during the run.

use std::cell::RefCell;
use std::fs;
use std::path::Path;
use std::rc::Rc;

use lowtide_allocator::{Fault, Repeat};
use lowtide_cli::RunDir;
use lowtide_cli::report::{About, Curves, Report, Status};
use lowtide_tensor::Device;
use lowtide_trainer::{Flow, Metrics, Observer, Result, StepReport, TrainError, Training};

use crate::common::Run;

fn about() -> About {
    About { title: "Digits <1>".to_owned(), ..About::default() }
}

/// Two epochs of two steps.
fn run() -> Run {
    Run { epochs: 2, ..Run::default() }
}

/// Checks that the curves have the same steps and values, up to the last digit of a number that was
/// written to a file.
fn check_same(read: &Curves, seen: &Curves) {
    assert_eq!(read.series().len(), seen.series().len());
    for (read, seen) in read.series().iter().zip(seen.series()) {
        assert_eq!((&read.name, read.points.len()), (&seen.name, seen.points.len()));
        for (read, seen) in read.points.iter().zip(&seen.points) {
            assert_eq!(read.0, seen.0);
            assert!((read.1 - seen.1).abs() <= 1e-15 * seen.1.abs(), "{read:?} {seen:?}");
        }
    }
    assert_eq!((read.retries(), read.skipped()), (seen.retries(), seen.skipped()));
    assert_eq!(read.last_step(), seen.last_step());
}

#[test]
fn page_has_what_the_metrics_have() {
    let folder = tempfile::tempdir().expect("a folder");
    let files = RunDir::create(folder.path()).expect("a folder");
    let run = run();
    let device = run.device(None);
    let (train, test) = run.loaders();
    let mut trainer = run.trainer(&device);
    trainer.plan(&train, &test, run.epochs).expect("fits");
    device.allocator().inject_fault(Fault { nth: 120, repeat: Repeat::Once });
    let mut metrics = Metrics::create(&files.metrics()).expect("a file");
    let mut report = Report::new(files.report(), about(), &device);
    trainer.fit(&train, &test, run.epochs, &mut [&mut metrics, &mut report]).expect("memory");

    let read = lowtide_cli::report::Run::read(folder.path()).expect("a run");
    check_same(&read.curves, &report.run().curves);
    assert_eq!(read.curves.last_step(), 4);
    assert_eq!((read.curves.epoch(), read.curves.retries().len()), (2, 1));
    assert_eq!(report.run().status, Status::Finished);
    let memory = report.run().memory.as_ref().expect("a step");
    assert_eq!(memory.retry_count, 1);
    let html = fs::read_to_string(files.report()).expect("the page");
    assert_eq!(html, report.run().to_html());
    assert!(html.contains(&memory.recording.timeline_element(&memory.notes)));
    assert!(html.contains("Digits &lt;1&gt;") && html.contains("finished: step 4 of 4"));
}

/// Reads the page after each step, and fails at one step.
struct Reader<'a> {
    path: &'a Path,
    seen: Rc<RefCell<Vec<String>>>,
    fail_at: u64,
}

impl Observer for Reader<'_> {
    fn on_step(&mut self, report: &StepReport, _: &mut dyn Training) -> Result<Flow> {
        self.seen.borrow_mut().push(fs::read_to_string(self.path).expect("a page from the start"));
        if report.step == self.fail_at {
            return Err(TrainError::Setting { place: "reader".into(), problem: "torn".into() });
        }
        Ok(Flow::Continue)
    }
}

#[test]
fn page_is_there_while_the_run_goes_on_and_says_when_it_failed() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("page.html");
    let run = run();
    let device = run.device(None);
    let (train, test) = run.loaders();
    let mut trainer = run.trainer(&device);
    let seen = Rc::default();
    let mut reader = Reader { path: &path, seen: Rc::clone(&seen), fail_at: 3 };
    let mut report = Report::new(&path, about(), &device);
    let fitted = trainer.fit(&train, &test, run.epochs, &mut [&mut report, &mut reader]);
    assert!(fitted.is_err());
    for page in seen.borrow().iter() {
        assert!(page.contains("location.reload()") && page.contains("running: step "));
    }
    assert_eq!(seen.borrow().len(), 3);
    drop(report);
    let page = fs::read_to_string(&path).expect("a page");
    assert!(!page.contains("location.reload()"));
    assert!(page.contains("ended by an error after step 3 of 4"));
    let names = fs::read_dir(folder.path()).expect("a folder").count();
    assert_eq!(names, 1, "nothing is left beside it");
}

#[test]
fn page_of_a_run_that_ran_out_of_memory_shows_the_step_in_which_it_did() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("page.html");
    let run = run();
    let device = run.device(None);
    let (train, test) = run.loaders();
    let mut trainer = run.trainer(&device);
    /// Takes nearly all memory after the second step.
    struct Thief(Device);
    impl Observer for Thief {
        fn on_step(&mut self, report: &StepReport, _: &mut dyn Training) -> Result<Flow> {
            if report.step == 2 {
                self.0.allocator().set_capacity(1);
            }
            Ok(Flow::Continue)
        }
    }
    let mut report = Report::new(&path, about(), &device);
    let observers: &mut [&mut dyn Observer] = &mut [&mut report, &mut Thief(device.clone())];
    trainer.fit(&train, &test, run.epochs, observers).expect_err("no memory");
    drop(report);
    let page = fs::read_to_string(&path).expect("a page");
    assert!(page.contains("ended by an error after step 2 of 4"), "status");
    assert!(page.contains("Memory inside step 3") && page.contains("in which the run ended"));
}

#[test]
fn page_that_cannot_be_written_is_an_error_before_the_first_step() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("missing").join("page.html");
    let run = run();
    let device = run.device(None);
    let (train, test) = run.loaders();
    let mut trainer = run.trainer(&device);
    let mut report = Report::new(&path, about(), &device);
    let error = trainer.fit(&train, &test, run.epochs, &mut [&mut report]).expect_err("no folder");
    assert!(matches!(&error, TrainError::File { path: named, .. } if *named == path), "{error}");
    assert_eq!(trainer.steps(), 0);
}

#[test]
fn page_that_cannot_be_written_any_more_is_an_error_at_the_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("pages").join("page.html");
    fs::create_dir(path.parent().expect("a folder")).expect("a folder");
    let run = run();
    let device = run.device(None);
    let (train, test) = run.loaders();
    let mut trainer = run.trainer(&device);
    /// Removes the folder.
    struct Remover<'a>(&'a Path);
    impl Observer for Remover<'_> {
        fn on_step(&mut self, _: &StepReport, _: &mut dyn Training) -> Result<Flow> {
            drop(fs::remove_dir_all(self.0));
            Ok(Flow::Continue)
        }
    }
    let mut remover = Remover(path.parent().expect("a folder"));
    let mut report = Report::new(&path, about(), &device);
    let observers: &mut [&mut dyn Observer] = &mut [&mut report, &mut remover];
    let error = trainer.fit(&train, &test, run.epochs, observers).expect_err("no folder");
    assert!(matches!(&error, TrainError::File { path: named, .. } if *named == path), "{error}");
    assert_eq!(trainer.steps(), 4, "the training went on");
}
