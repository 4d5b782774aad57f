//! Detection of tensors that live on another device than the pass.

use std::cell::RefCell;
use std::fmt;
use std::panic::Location;
use std::rc::Rc;

use lowtide_tensor::{Device, Shape, Tensor};

/// A tensor of another device that was given to a pass: see
/// [`Pass::with_device`](crate::Pass::with_device).
#[derive(Clone, Debug)]
pub struct Foreign {
    /// The use of the tensor in the pass.
    pub role: Role,
    /// Shape of the tensor.
    pub shape: Shape,
    /// The device that holds the tensor.
    pub device: Device,
    /// The path of the module that gave the tensor to the pass; empty outside of modules.
    pub path: String,
    /// The line that gave the tensor to the pass.
    pub site: &'static Location<'static>,
}

/// The use of a tensor that is given to a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A [leaf](crate::Pass::leaf).
    Parameter,
    /// A [buffer](crate::Pass::buffer).
    Buffer,
    /// A [constant](crate::Pass::constant) or an [input](crate::Pass::input).
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

/// Finds the first tensor that lives on another device.
#[derive(Clone)]
pub(crate) struct DeviceWatch {
    device: Device,
    first: Rc<RefCell<Option<Foreign>>>,
}

impl DeviceWatch {
    pub(crate) fn new(device: &Device) -> Self {
        DeviceWatch { device: device.clone(), first: Rc::default() }
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
