//! Tensors of another device than the one that a pass computes on.

use std::cell::RefCell;
use std::fmt;
use std::panic::Location;
use std::rc::Rc;

use lowtide_tensor::{Device, Shape, Tensor};

/// What a pass got from another device: see [`Pass::with_device`](crate::Pass::with_device).
#[derive(Clone, Debug)]
pub struct Foreign {
    /// How the pass got it.
    pub role: Role,
    /// Shape of the tensor.
    pub shape: Shape,
    /// The device that it lives on.
    pub device: Device,
    /// The names of the modules around the call; empty outside of all.
    pub path: String,
    /// Where the pass got it.
    pub site: &'static Location<'static>,
}

/// How a pass gets a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// As a [leaf](crate::Pass::leaf).
    Parameter,
    /// As a [buffer](crate::Pass::buffer).
    Buffer,
    /// As a [constant](crate::Pass::constant) or an [input](crate::Pass::input).
    Value,
}

impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let role = match self.role {
            Role::Parameter => "parameter",
            Role::Buffer => "buffer",
            Role::Value => "tensor",
        };
        write!(f, "the {role} of shape {} at {}", self.shape, self.site)?;
        if self.path.is_empty() { Ok(()) } else { write!(f, " in module {}", self.path) }
    }
}

/// Watches for the first tensor of another device.
#[derive(Clone)]
pub(crate) struct Border {
    device: Device,
    first: Rc<RefCell<Option<Foreign>>>,
}

impl Border {
    pub(crate) fn new(device: &Device) -> Self {
        Border { device: device.clone(), first: Rc::default() }
    }

    pub(crate) fn first(&self) -> Option<Foreign> {
        self.first.borrow().clone()
    }

    pub(crate) fn check(
        &self,
        role: Role,
        value: &Tensor,
        path: impl FnOnce() -> String,
        site: &'static Location<'static>,
    ) {
        if *value.device() == self.device {
            return;
        }
        let (shape, device) = (*value.shape(), value.device().clone());
        let foreign = || Foreign { role, shape, device, path: path(), site };
        self.first.borrow_mut().get_or_insert_with(foreign);
    }
}
