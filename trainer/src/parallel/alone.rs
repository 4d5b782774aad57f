//! One device alone.

use lowtide_nn::Parameters;

use crate::error::Result;
use crate::parallel::division::{
    Division, EvaluationDivision, PlanDivision, StateDivision, StepDivision,
};
use crate::step::compute::{Computation, Computed};
use crate::task::contract::Task;

/// The division of one device alone, which has everything.
pub(crate) struct Alone;

impl<T: Task> Division<T> for Alone {}

impl<T: Task> StepDivision<T> for Alone {
    fn compute(&self, computation: &mut Computation<'_, T>) -> Result<Computed> {
        let computed = computation.sum()?;
        computed.average_buffers(computed.term_count)?;
        Ok(computed)
    }
}

impl<T: Task> EvaluationDivision<T> for Alone {}

impl<T: Task> PlanDivision<T> for Alone {
    fn rehearsed<'a>(&'a self, _: &mut dyn Parameters) -> Result<Box<dyn Division<T> + 'a>> {
        Ok(Box::new(Alone))
    }
}

impl StateDivision for Alone {}
