//! Blocks of a model as segments: what each saves for backward is kept, recomputed or offloaded.

use lowtide_autograd::{Pass, SavedPolicy, Var};

use crate::buffer::Buffer;
use crate::error::{NnError, Result};
use crate::module::{Module, Parameters};
use crate::parameter::Parameter;

/// A model whose blocks have policies for the tensors that they save for backward. The results
/// have the same bits under every policy.
pub trait Segments {
    /// Shows the policy of every block, in the order in which they run. `None` is the policy of the
    /// segment around the block.
    fn visit_policies(&mut self, visitor: &mut dyn FnMut(&mut Option<SavedPolicy>));

    /// Gives all blocks one policy.
    fn set_policy(&mut self, policy: Option<SavedPolicy>) {
        self.visit_policies(&mut |slot| slot.clone_from(&policy));
    }
}

/// A block with its policy.
#[derive(Clone, Debug)]
pub(crate) struct ModelSegment<B> {
    block: B,
    policy: Option<SavedPolicy>,
}

impl<B: Clone + 'static> ModelSegment<B> {
    pub(crate) fn new(block: B) -> Self {
        ModelSegment { block, policy: None }
    }

    pub(crate) fn block(&self) -> &B {
        &self.block
    }

    pub(crate) fn block_mut(&mut self) -> &mut B {
        &mut self.block
    }

    pub(crate) fn policy_mut(&mut self) -> &mut Option<SavedPolicy> {
        &mut self.policy
    }

    /// `run(block, inputs)` under the policy.
    pub(crate) fn run<const N: usize>(
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

impl<B: Module + Clone + 'static> ModelSegment<B> {
    pub(crate) fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        self.run(pass, [input], |block, pass, [input]| block.forward(pass, input))
    }
}

impl<B: Parameters> Parameters for ModelSegment<B> {
    fn visit(&mut self, visitor: &mut dyn FnMut(&str, &mut Parameter)) {
        self.block.visit(visitor);
    }

    fn visit_buffers(&mut self, visitor: &mut dyn FnMut(&str, &mut Buffer)) {
        self.block.visit_buffers(visitor);
    }
}

/// Shows the policy of every block.
pub(crate) fn visit_block_policies<B>(
    blocks: &mut [ModelSegment<B>],
    visitor: &mut dyn FnMut(&mut Option<SavedPolicy>),
) {
    blocks.iter_mut().for_each(|segment| visitor(&mut segment.policy));
}

/// The blocks one after the other; the path of each is `{prefix}{index}`.
pub(crate) fn forward_blocks<B: Module + Clone + 'static>(
    prefix: &str,
    blocks: &[ModelSegment<B>],
    pass: &Pass,
    input: Var,
) -> Result<Var> {
    blocks.iter().enumerate().try_fold(input, |x, (index, segment)| {
        pass.within(&format!("{prefix}{index}"), || segment.forward(pass, x))
    })
}
