//! The tensors of a model that a training changes. Checkpoints, files of runs and hashes hold them.

use std::collections::BTreeMap;

use lowtide_autograd::LeafId;
use lowtide_nn::{Node, Nodes, Parameters, Visitor};
use lowtide_tensor::{Shape, Tensor, TensorResult};

use crate::task::contract::Task;

/// The parameters and buffers of a task. If the frozen weights of the model [are
/// elsewhere](Task::base_is_elsewhere), frozen parameters and weights in few bits are left out.
pub struct TrainedState<'a> {
    parameters: &'a mut dyn Parameters,
    leaves_frozen_out: bool,
    /// Whole values, on the host, of parameters that ranks divide.
    wholes: BTreeMap<LeafId, Tensor>,
}

impl<'a> TrainedState<'a> {
    /// The parameters and buffers that a run of `task` changes.
    pub fn of(task: &'a mut impl Task) -> Self {
        let leaves_frozen_out = task.base_is_elsewhere();
        TrainedState { parameters: task.parameters(), leaves_frozen_out, wholes: BTreeMap::new() }
    }

    /// The state with the sizes of a file: a parameter that ranks divide has its whole shape,
    /// without values.
    pub(crate) fn in_size(task: &'a mut impl Task) -> Self {
        let learned = TrainedState::of(task);
        let mut wholes = BTreeMap::new();
        learned.parameters.visit(&mut |_, parameter| {
            if let Some(shard) = parameter.shard() {
                let whole = expanded(parameter.value(), *shard.shape());
                wholes.insert(parameter.id(), whole.expect("one element has every shape"));
            }
        });
        learned.with_wholes(wholes)
    }

    /// Adds whole values for the parameters that ranks divide.
    pub(crate) fn with_wholes(self, wholes: BTreeMap<LeafId, Tensor>) -> Self {
        TrainedState { wholes, ..self }
    }

    /// The state of the parameters that are trained, without frozen ones.
    pub fn without_frozen(parameters: &'a mut dyn Parameters) -> Self {
        TrainedState { parameters, leaves_frozen_out: true, wholes: BTreeMap::new() }
    }

    /// Bytes of the tensors, and room for their names in a file.
    pub fn bytes(&mut self) -> [usize; 2] {
        const NAME_BYTES: usize = 512;
        // A file holds the whole of each divided parameter.
        let mut sizes = Vec::new();
        self.visit(&mut |_, parameter| sizes.push(parameter.value().size_bytes()));
        self.visit_buffers(&mut |_, buffer| sizes.push(buffer.value().size_bytes()));
        [sizes.iter().sum(), sizes.len() * NAME_BYTES]
    }
}

/// A tensor of this shape, filled with the first element of the contiguous tensor `x`.
fn expanded(x: &Tensor, shape: Shape) -> TensorResult<Tensor> {
    let one = x.view([x.element_count()])?.narrow(0, 0, 1)?;
    one.expand(shape)
}

impl Nodes for TrainedState<'_> {
    fn visit_nodes(&mut self, visitor: &mut Visitor<'_>) {
        let TrainedState { parameters, leaves_frozen_out, wholes } = self;
        parameters.visit_nodes(&mut Visitor::new(&mut |name, node| match node {
            Node::Parameter(parameter) if *leaves_frozen_out && parameter.is_frozen() => {}
            Node::Buffer(buffer) if *leaves_frozen_out && buffer.is_constant() => {}
            Node::Parameter(parameter) => match wholes.get(&parameter.id()) {
                Some(whole) => {
                    visitor.node(name, Node::Parameter(&mut parameter.with_value(whole.clone())));
                }
                None => visitor.node(name, Node::Parameter(parameter)),
            },
            Node::Buffer(buffer) => visitor.node(name, Node::Buffer(buffer)),
            // A file holds values only.
            Node::Linear(_) | Node::Block(_) | Node::Shared(_) => {}
        }));
    }
}
