//! The observer that writes the page.

use std::cell::Cell;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use lowtide_allocator::files::is_in_place;
use lowtide_tensor::Device;
use lowtide_trainer::{
    EvaluationLine, EvaluationReport, Flow, NewFile, Observer, Result, RunStart, StepLine,
    StepReport, TrainError, Training,
};
use serde::Serialize;
use serde_json::Value;

use super::about::About;
use super::run::{Run, Status};
use crate::timeline::{RecordedStep, Timeline};

/// Least time between two writes of the page.
const PAUSE: Duration = Duration::from_secs(3);
/// The share of the run's time that writing may take is 1 / `TIME_PARTS`.
const TIME_PARTS: u32 = 50;

/// Writes the page of a run, and updates it every few seconds. Each update is written to a
/// temporary file, which is then renamed. A browser reloads the page by itself until the run ends.
/// A pipe or a device is opened when the run starts, and gets one page, when the report is dropped.
///
/// ```no_run
/// # use lowtide_trainer::prelude::*;
/// # use lowtide_cli::report::{About, Report};
/// # fn train<T: Task + Clone>(trainer: &mut Trainer<T, lowtide_nn::optim::Sgd>, train: &Loader,
/// #     test: &Loader, device: &Device) -> lowtide_trainer::Result<()> {
/// let about = About::of_this_process("Digits");
/// let mut report = Report::new("report.html", about, device);
/// trainer.fit(train, test, 10, &mut [&mut report])?;
/// # Ok(())
/// # }
/// ```
pub struct Report {
    path: PathBuf,
    device: Device,
    run: Run,
    timeline: Timeline,
    started: Instant,
    /// Seconds that earlier calls of `fit` took.
    seconds_before: f64,
    /// The time from which the page may be written again.
    due: Instant,
    is_room_told: bool,
    /// The single page of a pipe or a device; `None` for a file, which is replaced.
    single: Option<SinglePage>,
}

/// A pipe or a device, which gets one page.
#[derive(Default)]
struct SinglePage {
    file: Option<NewFile>,
    /// True once the page was to be written.
    is_due: Cell<bool>,
}

impl Report {
    /// A page at `path` for a run on `device`.
    pub fn new(path: impl AsRef<Path>, about: About, device: &Device) -> Self {
        let now = Instant::now();
        Report {
            path: path.as_ref().to_owned(),
            device: device.clone(),
            run: Run { about, ..Run::default() },
            timeline: Timeline::new(device),
            started: now,
            seconds_before: 0.0,
            due: now,
            is_room_told: false,
            single: is_in_place(path.as_ref()).then(SinglePage::default),
        }
    }

    /// The run that the page shows.
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// The run, for changes such as facts that are only known at the end. [`Report::write`] puts
    /// the changes on the page.
    pub fn run_mut(&mut self) -> &mut Run {
        &mut self.run
    }

    /// Writes the page as it is now. A pipe or a device gets its page when the report is dropped.
    ///
    /// # Errors
    /// `File`; an earlier page is untouched.
    pub fn write(&self) -> Result<()> {
        match &self.single {
            Some(single) => single.is_due.set(true),
            None => NewFile::write(&self.path, &self.run.to_html())?,
        }
        Ok(())
    }

    /// Writes the page into a pipe or a device.
    ///
    /// # Errors
    /// `File`, also if there is no reader any more.
    fn write_single(&mut self) -> Result<()> {
        let Some(single) = self.single.take().filter(|single| single.is_due.get()) else {
            return Ok(());
        };
        let mut file = single.file.map_or_else(|| NewFile::create(&self.path), Ok)?;
        let written = file.file().write_all(self.run.to_html().as_bytes());
        written.map_err(|source| TrainError::File { path: self.path.clone(), source })?;
        file.publish()
    }

    /// [`Report::write`]. On a full disk the page stays as it was, and one note says so.
    ///
    /// # Errors
    /// `File` for any other reason.
    pub(crate) fn write_if_room(&mut self) -> Result<()> {
        match self.write() {
            Err(error) if error.lacks_room() => {
                if !std::mem::replace(&mut self.is_room_told, true) {
                    let line = format!("note: the report is not up to date: {error}");
                    drop(writeln!(io::stderr(), "{line}"));
                }
                Ok(())
            }
            written => written,
        }
    }

    fn add(&mut self, line: &impl Serialize) {
        if let Ok(Value::Object(line)) = serde_json::to_value(line) {
            self.run.curves.add(&line);
        }
    }

    /// Updates all fields of the run except the metrics.
    fn update(&mut self, status: Status) {
        self.run.status = status;
        self.run.seconds = self.seconds_before + self.started.elapsed().as_secs_f64();
        let capacity_bytes = self.device.allocator().statistics().capacity_bytes;
        self.run.budget_bytes = Some(capacity_bytes as u64);
        let recorded = self.timeline.recorded();
        let key = |step: &RecordedStep| (step.step, step.retry_count);
        if recorded.map(key) != self.run.memory.as_ref().map(key) {
            self.run.memory = recorded.cloned();
        }
    }

    /// Writes the page if it is time. A failed write is only an error at the end of the run,
    /// because a temporarily full disk should not end a training.
    fn keep_up(&mut self) {
        if Instant::now() < self.due {
            return;
        }
        let begun = Instant::now();
        self.update(Status::Running { written: SystemTime::now() });
        drop(self.write());
        self.due = Instant::now() + PAUSE.max(begun.elapsed() * TIME_PARTS);
    }
}

impl Observer for Report {
    /// # Errors
    /// `File` if the page cannot be made at its path.
    fn on_start(&mut self, start: &RunStart, training: &mut dyn Training) -> Result<()> {
        // Created before the first step, so that an unusable path costs no training.
        match &mut self.single {
            Some(SinglePage { file: Some(_), .. }) => {}
            Some(single) => single.file = Some(NewFile::create(&self.path)?),
            None => drop(NewFile::create(&self.path)?),
        }
        self.seconds_before = self.run.seconds;
        self.started = Instant::now();
        self.run.steps_planned = start.steps_before + start.step_count;
        self.run.epochs_planned = start.epoch_count;
        self.timeline.on_start(start, training)?;
        self.keep_up();
        Ok(())
    }

    fn on_phase(&mut self, step: u64, phase: &'static str) {
        self.timeline.on_phase(step, phase);
    }

    fn on_step(&mut self, report: &StepReport, training: &mut dyn Training) -> Result<Flow> {
        self.timeline.on_step(report, training)?;
        self.add(&StepLine::new(report));
        self.keep_up();
        Ok(Flow::Continue)
    }

    fn on_evaluation(
        &mut self,
        report: &EvaluationReport,
        training: &mut dyn Training,
    ) -> Result<Flow> {
        self.timeline.on_evaluation(report, training)?;
        self.add(&EvaluationLine::new(report));
        self.keep_up();
        Ok(Flow::Continue)
    }

    /// # Errors
    /// `File` if the page cannot be written. A full disk only leads to a note.
    fn on_end(&mut self, _: &mut dyn Training) -> Result<()> {
        self.update(Status::Finished);
        self.write_if_room()
    }
}

/// Writes the page of a run that ended with an error, if possible, and a single page.
impl Drop for Report {
    fn drop(&mut self) {
        if matches!(self.run.status, Status::Running { .. }) {
            self.update(Status::Failed);
            // The failed step is more useful than an earlier step that went well.
            self.run.memory = self.timeline.unfinished().or(self.run.memory.take());
            drop(self.write());
        }
        if let Err(error) = self.write_single() {
            drop(writeln!(io::stderr(), "note: the report is not written: {error}"));
        }
    }
}
