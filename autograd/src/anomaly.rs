//! Anomaly detection: finds the operation that made the first infinity or NaN.

use std::cell::RefCell;
use std::fmt::{self, Display};
use std::panic::Location;

use lowtide_allocator::{ModulePath, Origin};
use lowtide_tensor::{DType, Tensor};

use crate::error::{AutogradError, Result, Site};

/// The direction of the pass in which a value became infinite or NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The forward pass: an output of the operation.
    Forward,
    /// The backward pass: a gradient that the operation's rule gave.
    Backward,
}

/// An operation that made a value that is not finite from values that are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anomaly {
    /// Name of the operation, such as `add`.
    pub op: &'static str,
    /// The line that called the operation.
    pub site: &'static Location<'static>,
    /// The module that called the operation.
    pub module: Option<ModulePath>,
    /// Forward for the result of the operation, backward for its gradient.
    pub phase: Phase,
    /// True if the values contain a NaN; false if they contain only infinities.
    pub has_nan: bool,
}

impl Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.phase {
            Phase::Forward => "the result",
            Phase::Backward => "the gradient",
        };
        let kind = if self.has_nan { "NaN" } else { "infinite" };
        let module = self.module.filter(|module| !module.path().is_empty());
        let module = module.map_or_else(String::new, |module| format!(" in {module}"));
        write!(f, "{} at {}{module}: {what} is {kind}", self.op, self.site)
    }
}

/// The first anomalies of a pass. Infinities are often intended, as in a mask, so the first NaN is
/// kept apart from the first infinity.
#[derive(Default)]
pub(crate) struct Anomalies {
    first_infinite: RefCell<Option<Anomaly>>,
    first_nan: RefCell<Option<Anomaly>>,
}

impl Anomalies {
    /// Checks `y`, and keeps the first anomaly of each kind.
    pub(crate) fn note(&self, op: &'static str, site: Site, y: &Tensor) -> Result<()> {
        if let Some(anomaly) = find(op, site, Phase::Forward, y)? {
            let first = if anomaly.has_nan { &self.first_nan } else { &self.first_infinite };
            first.borrow_mut().get_or_insert(anomaly);
        }
        Ok(())
    }

    /// The first operation that made a NaN, or else the first that made an infinity.
    pub(crate) fn first(&self) -> Option<Anomaly> {
        self.first_nan.borrow().or(*self.first_infinite.borrow())
    }

    /// An error that names the operation that made `loss` infinite or NaN; `Ok` for a finite loss.
    pub(crate) fn check_loss(&self, site: Site, loss: &Tensor) -> Result<()> {
        let Some(found) = find("backward", site, Phase::Forward, loss)? else { return Ok(()) };
        let first = if found.has_nan { self.first() } else { *self.first_infinite.borrow() };
        Err(AutogradError::NonFinite(first.unwrap_or(found)))
    }
}

/// An error if `tensor` is not finite.
pub(crate) fn check(op: &'static str, site: Site, phase: Phase, tensor: &Tensor) -> Result<()> {
    find(op, site, phase, tensor)?.map_or(Ok(()), |anomaly| Err(AutogradError::NonFinite(anomaly)))
}

fn find(op: &'static str, site: Site, phase: Phase, tensor: &Tensor) -> Result<Option<Anomaly>> {
    if !tensor.dtype().is_float() || true_count(&tensor.is_finite()?.logical_not()?)? == 0.0 {
        return Ok(None);
    }
    let has_nan = true_count(&tensor.is_nan()?)? > 0.0;
    Ok(Some(Anomaly { op, site, module: Origin::current().module, phase, has_nan }))
}

/// The number of true elements; 0 on a simulated device.
fn true_count(mask: &Tensor) -> Result<f64> {
    let count = mask.to_dtype(DType::F32)?.sum_all()?.to_dtype(DType::F64)?;
    Ok(count.item_assuming(0.0f64)?)
}
