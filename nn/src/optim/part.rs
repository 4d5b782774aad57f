//! A part of every parameter, as one of several ranks updates it.

use std::ops::Range;

use lowtide_autograd::Gradients;
use lowtide_tensor::{Tensor, TensorError};

use crate::error::Result;
use crate::module::Parameters;
use crate::node::{Node, Nodes, Visitor};
use crate::optim::visit_once;

/// Whole blocks of the allocator, and addresses that vectors of any device can be read from.
const ALIGN_LEN: usize = 256;

/// One of several equal parts of every parameter: the elements, in row-major order, that one of
/// several ranks updates, and keeps the optimizer's states of (ZeRO, Rajbhandari et al. 2020). The
/// last parts of a parameter may be shorter, those of a small one empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// From 0 on.
    pub index: usize,
    /// How many there are.
    pub count: usize,
}

impl Part {
    /// Elements that each part of a parameter of `len` elements has, but for the last ones.
    pub fn len_of(self, len: usize) -> usize {
        len.div_ceil(self.count).next_multiple_of(ALIGN_LEN)
    }

    /// Its elements of a parameter of `len` elements.
    pub fn range(self, len: usize) -> Range<usize> {
        let part_len = self.len_of(len);
        let end_of = |parts: usize| len.min(parts * part_len);
        end_of(self.index)..end_of(self.index + 1)
    }

    /// Its elements of x, as a view.
    ///
    /// # Shapes
    /// `x: [..] -> [n]`
    ///
    /// # Errors
    /// `Strided` unless x is contiguous.
    #[track_caller]
    pub fn of(self, x: &Tensor) -> Result<Tensor> {
        if !x.layout().is_contiguous() {
            return Err(TensorError::Strided { op: "part" }.into());
        }
        let range = self.range(x.element_count());
        Ok(x.view([x.element_count()])?.narrow(0, range.start, range.len())?)
    }

    /// Leaves of each gradient its part, as a view.
    ///
    /// # Errors
    /// `Strided`.
    pub fn keep(self, gradients: &mut Gradients) -> Result<()> {
        gradients.iter_mut().try_for_each(|gradient| {
            *gradient = self.of(gradient)?;
            Ok(())
        })
    }
}

/// A part of every parameter that is trained, in its place: what an optimizer that
/// [can update parts](super::Optimizer::can_update_parts) is given. Buffers are left out.
pub struct Parts<'a> {
    parameters: &'a mut dyn Parameters,
    part: Part,
}

impl<'a> Parts<'a> {
    /// That part of the parameters, or what they have of it if they are
    /// [divided](crate::divide).
    ///
    /// # Errors
    /// `Strided` if one of those that are trained is not contiguous.
    pub fn new(parameters: &'a mut dyn Parameters, part: Part) -> Result<Self> {
        let mut result = Ok(());
        visit_once(parameters, &mut |_, parameter| {
            if result.is_ok() && !parameter.is_frozen() && parameter.part().is_none() {
                result = part.of(parameter.value()).map(drop);
            }
        });
        result.map(|()| Parts { parameters, part })
    }
}

impl Nodes for Parts<'_> {
    fn visit_nodes(&mut self, visitor: &mut Visitor<'_>) {
        let part = self.part;
        self.parameters.visit(&mut |name, parameter| {
            if !parameter.is_frozen() {
                let value = match parameter.part() {
                    Some(own) => own.clone(),
                    None => part.of(parameter.value()).expect("contiguous, which was checked"),
                };
                visitor.node(name, Node::Parameter(&mut parameter.with_value(value)));
            }
        });
    }
}
