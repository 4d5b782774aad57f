//! The architecture and the format of an export, as errors name them.

use crate::error::{ExportProblem, PretrainedError};

/// The architecture and the format of an export.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub(super) architecture: &'static str,
    pub(super) format: &'static str,
}

impl Target {
    pub(super) fn error(self, problem: ExportProblem) -> PretrainedError {
        let Target { architecture, format } = self;
        PretrainedError::Export { architecture, format, problem }
    }

    /// The error for a model with a part `what` that no program for the format computes.
    pub(super) fn no_form(self, what: &'static str) -> PretrainedError {
        self.error(ExportProblem::NoForm { what })
    }

    /// The error for the parameter `name`, which either the model or the format does not have.
    pub(super) fn no_place(self, name: &str) -> PretrainedError {
        self.error(ExportProblem::NoPlace { name: name.to_owned() })
    }
}
