use lowtide_trainer::{Flow, Observer, Result, StepReport, Training};

/// Collects the losses of the steps.
#[derive(Default)]
pub(crate) struct Losses(pub(crate) Vec<f64>);

impl Observer for Losses {
    fn on_step(&mut self, report: &StepReport, _: &mut dyn Training) -> Result<Flow> {
        self.0.push(report.loss);
        Ok(Flow::Continue)
    }
}
