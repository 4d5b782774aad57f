//! Blocks of a model as segments: the saved tensors of each block are kept, recomputed or
//! offloaded.

use std::ops::Range;

use lowtide_autograd::{Pass, SavedPolicy, Var};

use crate::error::{NnError, Result};
use crate::module::Module;
use crate::node::{Node, Nodes, Visitor};
use crate::parallel::stages::run::run_own;

/// A block of a model with the policy of its saved tensors; see
/// [`Parameters::visit_policies`](crate::Parameters::visit_policies). A trainer's plan may
/// recompute the first blocks of a model; the results keep the same bits. A pipeline
/// [cuts](crate::parallel::run_stage) a model between blocks.
///
/// ```
/// use lowtide_autograd::{Pass, Var};
/// use lowtide_nn::{
///     Linear, Module, NnResult, Parameters, ReLU, Segment, Sequential, parameters, run_blocks,
/// };
/// use lowtide_tensor::{CpuOptions, Device, RandomKey};
///
/// #[derive(Clone)]
/// struct Deep {
///     blocks: Vec<Segment<Sequential>>,
/// }
///
/// parameters!(Deep { blocks as "blocks." });
///
/// impl Module for Deep {
///     fn forward(&self, pass: &Pass, input: Var) -> NnResult<Var> {
///         let run = |block: &Sequential, pass: &Pass, x| block.forward(pass, x);
///         run_blocks("blocks.", &self.blocks, pass, input, run)
///     }
/// }
///
/// let (device, key) = (Device::cpu(CpuOptions::default())?, RandomKey::new(0));
/// let block = |index: usize| {
///     let linear = Linear::new(&device, key.op(&index.to_string()), 8, 8)?;
///     NnResult::Ok(Segment::new(Sequential::new().then(linear).then(ReLU)))
/// };
/// let mut model = Deep { blocks: (0..4).map(block).collect::<NnResult<_>>()? };
/// let mut count = 0;
/// model.visit_policies(&mut |policy| count += usize::from(policy.is_none()));
/// assert_eq!(count, 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Segment<B> {
    block: B,
    policy: Option<SavedPolicy>,
}

impl<B: Clone + 'static> Segment<B> {
    /// A block that follows the policy of the enclosing segment.
    pub fn new(block: B) -> Self {
        Segment { block, policy: None }
    }

    /// The block that the segment runs.
    pub fn block(&self) -> &B {
        &self.block
    }

    /// The block, for changes.
    pub fn block_mut(&mut self) -> &mut B {
        &mut self.block
    }

    /// Runs `run(block, pass, inputs)` under the policy. Backward may call `run` again, so `run`
    /// must not depend on anything else that changes.
    ///
    /// # Errors
    /// The errors of `run`.
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
        run_own(1, pass, input, |_, x| {
            self.run(pass, [x], |block, pass, [x]| block.forward(pass, x))
        })
    }
}

impl<B: Nodes> Nodes for Segment<B> {
    /// The policy of the block comes before the policies of the blocks inside.
    fn visit_nodes(&mut self, visitor: &mut Visitor<'_>) {
        visitor.node("", Node::Block(&mut self.policy));
        visitor.field("", &mut self.block);
    }
}

/// Runs blocks in sequence, each under the path `{prefix}{index}`. A block that is recomputed [with
/// the previous one](SavedPolicy::RecomputeWithPrevious) is in the segment of the previous block. A
/// model can be cut between two blocks: see [`run_stage`](crate::parallel::run_stage).
///
/// # Errors
/// The errors of `run`; `EndOfStage` at the end of a stage.
pub fn run_blocks<B: Clone + 'static>(
    prefix: &str,
    blocks: &[Segment<B>],
    pass: &Pass,
    input: Var,
    run: impl Fn(&B, &Pass, Var) -> Result<Var> + Clone + 'static,
) -> Result<Var> {
    run_own(blocks.len(), pass, input, |own, x| run_some(prefix, blocks, own, pass, x, run.clone()))
}

/// [`run_blocks`] for a range of the blocks.
fn run_some<B: Clone + 'static>(
    prefix: &str,
    blocks: &[Segment<B>],
    range: Range<usize>,
    pass: &Pass,
    input: Var,
    run: impl Fn(&B, &Pass, Var) -> Result<Var> + Clone + 'static,
) -> Result<Var> {
    let is_joined =
        |segment: &&Segment<B>| matches!(segment.policy, Some(SavedPolicy::RecomputeWithPrevious));
    let (mut x, mut index) = (input, range.start);
    while let Some(first) = blocks[..range.end].get(index) {
        let len = match &first.policy {
            None | Some(SavedPolicy::Keep | SavedPolicy::Offload(_)) => 1,
            Some(_) => 1 + blocks[index + 1..range.end].iter().take_while(is_joined).count(),
        };
        let own = run.clone();
        x = match &first.policy {
            Some(policy) if len > 1 => {
                let of_run = blocks[index..][..len].iter().zip(index..);
                let blocks: Vec<(String, B)> = of_run
                    .map(|(segment, at)| (format!("{prefix}{at}"), segment.block.clone()))
                    .collect();
                pass.segment(policy, x, move |pass, x| {
                    blocks.iter().try_fold(x, |x, (name, block)| {
                        let y = pass.within(name, || own(block, pass, x));
                        y.map_err(NnError::into_autograd)
                    })
                })?
            }
            _ => pass.within(&format!("{prefix}{index}"), || {
                first.run(pass, [x], move |block, pass, [x]| own(block, pass, x))
            })?,
        };
        index += len;
    }
    Ok(x)
}

/// [`run_blocks`] for blocks that are modules.
pub(crate) fn forward_blocks<B: Module + Clone + 'static>(
    prefix: &str,
    blocks: &[Segment<B>],
    pass: &Pass,
    input: Var,
) -> Result<Var> {
    run_blocks(prefix, blocks, pass, input, |block, pass, x| block.forward(pass, x))
}
