//! Runs the blocks of a stage in a forward pass, or surveys all blocks.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use lowtide_autograd::{BufferId, LeafId, Pass, TensorMeta, Var};
use lowtide_tensor::{Device, Tensor};

use crate::error::{NnError, Result};

/// Shapes and types of the values between blocks, for a batch of one shape.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cuts {
    /// The input of each block.
    inputs: Vec<TensorMeta>,
    /// The output of each run of blocks. The key is the number of blocks up to the end of the run.
    results: BTreeMap<usize, TensorMeta>,
}

impl Cuts {
    /// Shape and type of the input of block `index`; `None` if the model has fewer blocks.
    pub fn input(&self, index: usize) -> Option<TensorMeta> {
        self.inputs.get(index).copied()
    }

    /// Number of blocks.
    pub fn block_count(&self) -> usize {
        self.inputs.len()
    }
}

/// A block of a model, with the code between this block and the next. The first section also has
/// the code before the first block.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Section {
    /// The parameters that the section reads.
    pub leaves: BTreeSet<LeafId>,
    /// The parameters that the section's output depends on, and that therefore get a gradient.
    pub trained: BTreeSet<LeafId>,
    /// The buffers that the section reads or writes.
    pub buffers: BTreeSet<BufferId>,
    /// Simulated time of the section's forward pass, in seconds.
    pub seconds: f64,
    /// True if a stage can begin here: the rest of the model depends on earlier results only
    /// through the input of this block.
    pub can_begin: bool,
}

/// The blocks of a model, as found in a forward pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Survey {
    /// The values between blocks.
    pub cuts: Cuts,
    /// The sections of the model, one for each block.
    pub sections: Vec<Section>,
}

/// Results of a stage: its output, and the gradient of its input.
pub struct StageEnd {
    /// The input of the next stage; `None` for the last stage.
    pub output: Option<Var>,
    /// The gradient of the stage's input; `None` until backward has computed it.
    pub input_gradient: Rc<RefCell<Option<Tensor>>>,
}

thread_local! {
    static COURSE: RefCell<Option<Rc<Course>>> = const { RefCell::new(None) };
}

/// The mode in which this thread runs blocks.
enum Course {
    Survey(Surveying),
    Stage(Box<Staging>),
}

struct Surveying {
    device: Device,
    /// Simulated time at the end of the previous section, in seconds.
    seconds: Cell<f64>,
    found: RefCell<Survey>,
    /// The input of each block, as a new input of the record. `outputs` has the values before.
    inputs: RefCell<Vec<Var>>,
    outputs: RefCell<Vec<Var>>,
    is_in_block: Cell<bool>,
}

struct Staging {
    blocks: Range<usize>,
    cuts: Cuts,
    /// Number of blocks of the model that the code has passed.
    passed: Cell<usize>,
    input: RefCell<Option<Tensor>>,
    input_gradient: Rc<RefCell<Option<Tensor>>>,
    output: RefCell<Option<Var>>,
    is_in_block: Cell<bool>,
}

/// Sets the mode of this thread until it is dropped.
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

/// Runs `forward`, a whole model on tensors of the simulated `device` in a pass that records.
/// Returns the sections of the model. The gradients of the pass are not valid. Frozen parameters
/// are treated like all others.
///
/// # Errors
/// The errors of `forward`; `Autograd`.
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

/// The shapes and types of the values between blocks in `forward`, a whole model on tensors of the
/// simulated `device`, in any pass.
///
/// # Errors
/// The errors of `forward`.
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

/// Runs `work`, the forward pass of a whole model, as the stage with these `blocks`. The first of
/// these blocks gets `input`, unless it is the first block of the model. After the last of these
/// blocks the code ends with `EndOfStage`, unless it is the last block of the model. `cuts` come
/// from a [survey] of a batch of the same shape.
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

/// Runs the blocks of this stage among the next `count` blocks of a model. Outside of a stage, runs
/// all `count` blocks.
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

/// Notes that the current section uses a parameter.
pub(crate) fn note_leaf(leaf: LeafId) {
    noting(|section| _ = section.leaves.insert(leaf));
}

/// Notes that the current section uses a buffer.
pub(crate) fn note_buffer(buffer: BufferId) {
    noting(|section| _ = section.buffers.insert(buffer));
}

fn noting(note: impl FnOnce(&mut Section)) {
    COURSE.with_borrow(|course| {
        if let Some(Course::Survey(surveying)) = course.as_deref() {
            let mut found = surveying.found.borrow_mut();
            if found.sections.is_empty() {
                // The code before the first block belongs to the first section.
                found.sections.push(Section { can_begin: true, ..Section::default() });
            }
            note(found.sections.last_mut().expect("there is one"));
        }
    });
}

/// True if this thread is in a [`survey`].
pub(crate) fn is_surveying() -> bool {
    COURSE.with_borrow(|course| matches!(course.as_deref(), Some(Course::Survey(_))))
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
        found.cuts.results.insert(passed, TensorMeta::of(x.value()));
        Ok(x)
    }

    /// The input of the next block, cut off from the record before.
    fn begin_block(&self, pass: &Pass, x: Var) -> Result<Var> {
        let is_first = self.inputs.borrow().is_empty();
        let mut found = self.found.borrow_mut();
        found.cuts.inputs.push(TensorMeta::of(x.value()));
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
        // The code before the first block belongs to the first section.
        let before = outputs.remove(0);
        found.sections[0].trained.extend(pass.dependencies(&before, &[])?.leaves);
        // The output of a section is the input of the next section. The output of the last section
        // is the loss.
        outputs.push(loss);
        for (index, output) in outputs.iter().enumerate() {
            let found_in = pass.dependencies(output, &inputs)?;
            found.sections[index].trained.extend(found_in.leaves);
            // An output depends on an earlier section directly. A stage that began in between would
            // have to forward that value, so no stage can begin there.
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
            let TensorMeta { shape, dtype } = self.cuts.results[&passed];
            let one = Tensor::zeros(input.value().device(), [1], dtype)?;
            return Ok(pass.constant(one.expand(shape)?));
        }
        let mut x = if start > 0 && start >= first { self.begin(pass)? } else { input };
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

    /// The input from the previous stage.
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
