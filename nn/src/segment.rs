//! Blocks of a model as segments: what each saves for backward is kept, recomputed or offloaded.

use lowtide_autograd::{Pass, SavedPolicy, Var};

use crate::buffer::Buffer;
use crate::error::{NnError, Result};
use crate::module::{Module, Parameters};
use crate::parameter::Parameter;

/// A block of a model, with what becomes of the tensors that it saves for backward: see
/// [`Parameters::visit_policies`].
#[derive(Clone, Debug)]
pub struct Segment<B> {
    block: B,
    policy: Option<SavedPolicy>,
}

impl<B: Clone + 'static> Segment<B> {
    /// The block with the policy of the segment around it.
    pub fn new(block: B) -> Self {
        Segment { block, policy: None }
    }

    /// What runs under the policy.
    pub fn block(&self) -> &B {
        &self.block
    }

    /// The block, to be changed.
    pub fn block_mut(&mut self) -> &mut B {
        &mut self.block
    }

    /// `run(block, pass, inputs)` under the policy; a second time in backward, perhaps. So it
    /// depends on nothing else that changes.
    ///
    /// # Errors
    /// Those of `run`.
    pub fn run<const N: usize>(
        &self,
        pass: &Pass,
        inputs: [Var; N],
        run: impl Fn(&B, &Pass, [Var; N]) -> Result<Var> + 'static,
    ) -> Result<Var> {
        let Some(policy) = &self.policy else { return run(&self.block, pass, inputs) };
        let block = self.block.clone();
        let outputs = pass.segment_many(policy, inputs.into(), move |pass, inputs| {
            let inputs =
                inputs.try_into().unwrap_or_else(|_| unreachable!("as many as there were"));
            Ok(vec![run(&block, pass, inputs).map_err(NnError::into_autograd)?])
        })?;
        Ok(outputs.into_iter().next().expect("one output"))
    }
}

impl<B: Module + Clone + 'static> Module for Segment<B> {
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        self.run(pass, [input], |block, pass, [input]| block.forward(pass, input))
    }
}

impl<B: Parameters> Parameters for Segment<B> {
    fn visit(&mut self, visitor: &mut dyn FnMut(&str, &mut Parameter)) {
        self.block.visit(visitor);
    }

    fn visit_buffers(&mut self, visitor: &mut dyn FnMut(&str, &mut Buffer)) {
        self.block.visit_buffers(visitor);
    }

    /// Its own, then those of the blocks inside.
    fn visit_policies(&mut self, visitor: &mut dyn FnMut(&mut Option<SavedPolicy>)) {
        visitor(&mut self.policy);
        self.block.visit_policies(visitor);
    }
}

/// The blocks one after the other; the path of each is `{prefix}{index}`.
pub(crate) fn forward_blocks<B: Module + Clone + 'static>(
    prefix: &str,
    blocks: &[Segment<B>],
    pass: &Pass,
    input: Var,
) -> Result<Var> {
    blocks.iter().enumerate().try_fold(input, |x, (index, segment)| {
        pass.within(&format!("{prefix}{index}"), || segment.forward(pass, x))
    })
}
