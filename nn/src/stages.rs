//! Models of which a rank runs only some blocks: the stages of a pipeline (Huang et al. 2019).
//!
//! Models run their blocks by [`run_blocks`](crate::run_blocks), or have each of them in a
//! [`Segment`](crate::Segment): that is where they are cut. A
//! stage goes through the whole code of a model, whatever that is. What comes before its first
//! block is computed with [stand-ins](keep_own) of parameters, for its shapes alone; then the block
//! gets the value that the stage before has sent. Where its last block has run, the code is left by
//! an error.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use lowtide_allocator::Category;
use lowtide_autograd::{BufferId, LeafId, Pass, Var};
use lowtide_tensor::{DType, Device, Shape, Tensor};

use crate::error::{NnError, Result};
use crate::module::{Parameters, keep};
use crate::quantized::stand_in_on;

/// Shape and type of a value.
type Like = (Shape, DType);

/// What goes from block to block, for a batch of one shape.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cuts {
    /// What goes into each block.
    inputs: Vec<Like>,
    /// What comes out of the last block of each run of them, by the number of blocks up to there.
    results: BTreeMap<usize, Like>,
}

impl Cuts {
    /// Shape and type of what goes into block `index` of the model, if there is one.
    pub fn input(&self, index: usize) -> Option<(Shape, DType)> {
        self.inputs.get(index).copied()
    }

    /// The number of blocks.
    pub fn block_count(&self) -> usize {
        self.inputs.len()
    }
}

/// A block of a model, with the code from there to the next one; the first has the code before it,
/// too.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Section {
    /// What it reads.
    pub leaves: BTreeSet<LeafId>,
    /// What of that its result depends on: what has a gradient in it.
    pub trained: BTreeSet<LeafId>,
    /// What it reads or writes of buffers.
    pub buffers: BTreeSet<BufferId>,
    /// Simulated time of its forward pass.
    pub seconds: f64,
    /// Whether a stage can begin here: everything from here on depends on what was computed before
    /// by the input of this block alone.
    pub can_begin: bool,
}

/// What a forward pass over a whole model shows of its blocks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Survey {
    /// What goes from block to block.
    pub cuts: Cuts,
    /// The model, block by block.
    pub sections: Vec<Section>,
}

/// What a stage leaves behind where it ends.
pub struct StageEnd {
    /// What goes into the next stage; absent where the code has come to its own end.
    pub output: Option<Var>,
    /// The gradient of what came in, once backward has been there.
    pub input_gradient: Rc<RefCell<Option<Tensor>>>,
}

thread_local! {
    static COURSE: RefCell<Option<Rc<Course>>> = const { RefCell::new(None) };
}

/// What this thread does with blocks at the moment.
enum Course {
    Survey(Surveying),
    Stage(Box<Staging>),
}

struct Surveying {
    device: Device,
    /// Of the sections before this one.
    seconds: Cell<f64>,
    found: RefCell<Survey>,
    /// What each block is given, and what that was: the record begins anew there.
    inputs: RefCell<Vec<Var>>,
    outputs: RefCell<Vec<Var>>,
    is_in_block: Cell<bool>,
}

struct Staging {
    blocks: Range<usize>,
    cuts: Cuts,
    /// Blocks of the model that the code has come past.
    passed: Cell<usize>,
    input: RefCell<Option<Tensor>>,
    input_gradient: Rc<RefCell<Option<Tensor>>>,
    output: RefCell<Option<Var>>,
    is_in_block: Cell<bool>,
}

/// Sets what this thread does with blocks for as long as it lives.
struct Entered(Option<Rc<Course>>);

impl Entered {
    fn new(course: &Rc<Course>) -> Self {
        Entered(COURSE.replace(Some(Rc::clone(course))))
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        COURSE.set(self.0.take());
    }
}

/// Runs `forward`, a whole model on tensors of the simulated `device` in a pass that records, and
/// tells what its blocks need. The gradients of the pass are worth nothing then. Frozen parameters
/// count as others do.
///
/// # Errors
/// Those of `forward`; `Autograd`.
pub fn survey<E: From<NnError>>(
    device: &Device,
    forward: impl FnOnce() -> Result<(Pass, Var), E>,
) -> Result<Survey, E> {
    let course = surveying(device);
    let (pass, loss) = {
        let _entered = Entered::new(&course);
        forward()?
    };
    let Course::Survey(surveying) = &*course else { unreachable!("it is one") };
    Ok(surveying.finish(&pass, loss)?)
}

/// What goes from block to block in `forward`, a whole model on tensors of the simulated `device`,
/// of whatever pass.
///
/// # Errors
/// Those of `forward`.
pub fn survey_cuts<E>(device: &Device, forward: impl FnOnce() -> Result<(), E>) -> Result<Cuts, E> {
    let course = surveying(device);
    {
        let _entered = Entered::new(&course);
        forward()?;
    }
    let Course::Survey(surveying) = &*course else { unreachable!("it is one") };
    Ok(surveying.found.take().cuts)
}

fn surveying(device: &Device) -> Rc<Course> {
    Rc::new(Course::Survey(Surveying {
        device: device.clone(),
        seconds: Cell::new(device.simulated_seconds()),
        found: RefCell::default(),
        inputs: RefCell::default(),
        outputs: RefCell::default(),
        is_in_block: Cell::new(false),
    }))
}

/// Runs `work`, the forward pass of a whole model, as the stage of these `blocks`: the first of
/// them gets `input`, if that is not the first block of the model, and the code ends with
/// `EndOfStage` after the last, if that is not the last one. `cuts` are those of a
/// [survey] of a batch of the same shape.
pub fn run_stage<R>(
    blocks: Range<usize>,
    cuts: &Cuts,
    input: Option<Tensor>,
    work: impl FnOnce() -> R,
) -> (R, StageEnd) {
    let course = Rc::new(Course::Stage(Box::new(Staging {
        blocks,
        cuts: cuts.clone(),
        passed: Cell::new(0),
        input: RefCell::new(input),
        input_gradient: Rc::default(),
        output: RefCell::default(),
        is_in_block: Cell::new(false),
    })));
    let done = {
        let _entered = Entered::new(&course);
        work()
    };
    let Course::Stage(staging) = &*course else { unreachable!("it is one") };
    let output = staging.output.take();
    (done, StageEnd { output, input_gradient: Rc::clone(&staging.input_gradient) })
}

/// Runs those of the next `count` blocks of a model that are to be run: all, outside of a stage.
pub(crate) fn run_own(
    count: usize,
    pass: &Pass,
    input: Var,
    run: impl Fn(Range<usize>, Var) -> Result<Var>,
) -> Result<Var> {
    let course = COURSE.with_borrow(Clone::clone);
    match course.as_deref() {
        Some(Course::Survey(surveying)) if !surveying.is_in_block.get() => {
            surveying.run_own(count, pass, input, run)
        }
        Some(Course::Stage(staging)) if !staging.is_in_block.get() => {
            staging.run_own(count, pass, input, run)
        }
        _ => run(0..count, input),
    }
}

/// Says that what runs uses a parameter.
pub(crate) fn note_leaf(leaf: LeafId) {
    noting(|section| _ = section.leaves.insert(leaf));
}

/// Says that what runs uses a buffer.
pub(crate) fn note_buffer(buffer: BufferId) {
    noting(|section| _ = section.buffers.insert(buffer));
}

fn noting(note: impl FnOnce(&mut Section)) {
    COURSE.with_borrow(|course| {
        if let Some(Course::Survey(surveying)) = course.as_deref() {
            let mut found = surveying.found.borrow_mut();
            if found.sections.is_empty() {
                // Before the first block.
                found.sections.push(Section { can_begin: true, ..Section::default() });
            }
            note(found.sections.last_mut().expect("there is one"));
        }
    });
}

/// Whether this thread is in a [`survey`].
pub(crate) fn is_surveying() -> bool {
    COURSE.with_borrow(|course| matches!(course.as_deref(), Some(Course::Survey(_))))
}

fn like(x: &Var) -> Like {
    (*x.shape(), x.value().dtype())
}

impl Surveying {
    fn run_own(
        &self,
        count: usize,
        pass: &Pass,
        input: Var,
        run: impl Fn(Range<usize>, Var) -> Result<Var>,
    ) -> Result<Var> {
        let mut x = input;
        for index in 0..count {
            x = self.begin_block(pass, x)?;
            self.is_in_block.set(true);
            let y = run(index..index + 1, x);
            self.is_in_block.set(false);
            x = y?;
        }
        let mut found = self.found.borrow_mut();
        let passed = found.cuts.inputs.len();
        found.cuts.results.insert(passed, like(&x));
        Ok(x)
    }

    /// The input of the next block, without what it depends on.
    fn begin_block(&self, pass: &Pass, x: Var) -> Result<Var> {
        let is_first = self.inputs.borrow().is_empty();
        let mut found = self.found.borrow_mut();
        found.cuts.inputs.push(like(&x));
        if !is_first || found.sections.is_empty() {
            if !is_first {
                self.end_section(&mut found);
            }
            found.sections.push(Section { can_begin: true, ..Section::default() });
        }
        drop(found);
        let begun = pass.input(x.value().clone())?;
        self.inputs.borrow_mut().push(begun.clone());
        self.outputs.borrow_mut().push(x);
        Ok(begun)
    }

    fn end_section(&self, found: &mut Survey) {
        let now = self.device.simulated_seconds();
        if let Some(section) = found.sections.last_mut() {
            section.seconds = now - self.seconds.replace(now);
        }
    }

    fn finish(&self, pass: &Pass, loss: Var) -> Result<Survey> {
        let mut found = self.found.take();
        self.end_section(&mut found);
        let (inputs, mut outputs) = (self.inputs.take(), self.outputs.take());
        if inputs.is_empty() {
            return Ok(Survey::default());
        }
        // What is before the first block is with it.
        let before = outputs.remove(0);
        found.sections[0].trained.extend(pass.dependencies(&before, &[])?.leaves);
        // What a section gives is the input of the next one; of the last it is the loss.
        outputs.push(loss);
        for (index, output) in outputs.iter().enumerate() {
            let found_in = pass.dependencies(output, &inputs)?;
            found.sections[index].trained.extend(found_in.leaves);
            // The blocks in between would have to send on what goes past them.
            let first = found_in.inputs.first().copied().unwrap_or(index);
            found.sections[first + 1..=index].iter_mut().for_each(|of| of.can_begin = false);
        }
        for Section { leaves, trained, .. } in &mut found.sections {
            leaves.extend(&*trained);
        }
        Ok(found)
    }
}

impl Staging {
    fn run_own(
        &self,
        count: usize,
        pass: &Pass,
        input: Var,
        run: impl Fn(Range<usize>, Var) -> Result<Var>,
    ) -> Result<Var> {
        let first = self.passed.replace(self.passed.get() + count);
        let Range { start, end } = self.blocks;
        let passed = first + count;
        if passed <= start {
            let (shape, dtype) = self.cuts.results[&passed];
            let one = Tensor::zeros(input.value().device(), [1], dtype)?;
            return Ok(pass.constant(one.expand(shape)?));
        }
        let mut x = match start > 0 && start >= first {
            true => self.begin(pass)?,
            false => input,
        };
        let own = start.max(first)..end.min(passed);
        if !own.is_empty() {
            self.is_in_block.set(true);
            let y = run(own.start - first..own.end - first, x);
            self.is_in_block.set(false);
            x = y?;
        }
        if end < passed {
            self.output.replace(Some(x));
            return Err(NnError::EndOfStage);
        }
        Ok(x)
    }

    /// What the stage before has sent.
    fn begin(&self, pass: &Pass) -> Result<Var> {
        let input = self.input.take().expect("a stage after the first has an input");
        if !pass.is_recording() {
            return Ok(pass.constant(input));
        }
        let x = pass.input(input)?;
        let place = Rc::clone(&self.input_gradient);
        x.on_gradient(move |dy| {
            place.replace(Some(dy.clone()));
            Ok(dy)
        })?;
        Ok(x)
    }
}

/// Leaves of the parameters of `model` those that are `own`, on `device`, and of the others what
/// stands in for them: their shapes and types, without values, gradients and states. Buffers and
/// weights in few bits are moved there whole; of buffers, too, only those that are `own` are
/// updated. The model may be on another device before, such as the host, where it has room.
///
/// # Errors
/// `OutOfMemory` of `device`; nothing has changed then.
pub fn keep_own(
    model: &mut dyn Parameters,
    device: &Device,
    is_own: &dyn Fn(LeafId) -> bool,
    is_own_buffer: &dyn Fn(BufferId) -> bool,
) -> Result<()> {
    let _scope = device.category(Category::Parameter);
    let (mut parameters, mut buffers) = (BTreeMap::new(), BTreeMap::new());
    let mut outcome = Ok(());
    model.visit(&mut |_, parameter| {
        let is_kept = is_own(parameter.id()) || parameter.quantized.is_some();
        keep(&mut parameters, parameter.id(), &mut outcome, || match is_kept {
            true => Ok(parameter.value().to_device(device, Category::Parameter)?),
            false => stand_in_on(device, parameter.value()),
        });
    });
    model.visit_buffers(&mut |_, buffer| {
        keep(&mut buffers, buffer.id(), &mut outcome, || {
            Ok(buffer.value().to_device(device, Category::Parameter)?)
        })
    });
    outcome?;
    model.visit(&mut |_, parameter| {
        *parameter.value_mut() = parameters[&parameter.id()].clone();
        parameter.is_elsewhere = !is_own(parameter.id()) && parameter.quantized.is_none();
    });
    model.visit_buffers(&mut |_, buffer| {
        *buffer.value_mut() = buffers[&buffer.id()].clone();
        buffer.is_elsewhere = !is_own_buffer(buffer.id());
    });
    Ok(())
}
