//! Pipelines: steps that turn images into samples.
//!
//! For each image, `draw.rs` draws the random numbers of the steps; `canvas.rs` computes the
//! geometry as late as possible; `write.rs` normalises the finished pixels while it writes them to
//! the batch.

mod canvas;
mod colour;
mod draw;
#[cfg(test)]
mod reference;
mod step;
mod write;

pub use step::Step;

use crate::dataset::{Dataset, SampleSlot};
use crate::element::{Element, ElementType, Field};
use crate::error::{DataError, IndexOutOfRange, SampleError};
use crate::image::{ImageError, ImageFormat, ImageSample, ImageSource, Raster};
use canvas::{Canvas, FinishedPart, Sampling, Scratch};
use draw::{DrawnOps, ImageOp, Rect, draw};
use std::sync::{Mutex, PoisonError};
use write::{Tables, erase, write, write_mask};

/// The purpose of the random numbers of the first step. Each step adds its position.
const PURPOSE: u64 = u64::from_be_bytes(*b"images\0\0");

/// A list of steps whose order and numbers are valid.
#[derive(Debug, Clone, PartialEq)]
pub struct Pipeline {
    steps: Vec<Step>,
    element: ElementType,
}

impl Pipeline {
    /// The pipeline of `steps`, in the order in which they are applied. Images become f32, from 0
    /// to 1 unless there is a [`Step::Normalise`].
    ///
    /// # Errors
    /// [`DataError::Transform`] for a step with invalid numbers or in the wrong place.
    pub fn new(steps: impl Into<Vec<Step>>) -> Result<Self, DataError> {
        let steps = steps.into();
        let mut is_finished = false;
        for (position, step) in steps.iter().enumerate() {
            step.check()?;
            let wrong = |reason| Err(DataError::Transform { step: step.name(), reason });
            let is_erase = matches!(step, Step::Erase { .. });
            if is_erase && position + 1 < steps.len() {
                return wrong("comes last");
            }
            if is_finished && !is_erase {
                return wrong("cannot come after Normalise");
            }
            is_finished |= matches!(step, Step::Normalise { .. });
        }
        Ok(Self { steps, element: ElementType::F32 })
    }

    /// Keeps images as u8, for a conversion on the device.
    ///
    /// # Errors
    /// [`DataError::Transform`] if there is a [`Step::Normalise`].
    pub fn as_bytes(mut self) -> Result<Self, DataError> {
        if self.steps.iter().any(|step| matches!(step, Step::Normalise { .. })) {
            return Err(DataError::Transform { step: "Normalise", reason: "gives no bytes" });
        }
        self.element = ElementType::U8;
        Ok(self)
    }
}

/// The images of a source after the steps of a pipeline.
///
/// The fields are `images`, f32 or u8 `[C, H, W]`, and `labels`, i64 `[]`. For a source with masks
/// `labels` is `[H, W]`, and -100 marks ignored pixels. Masks go through the same geometry as their
/// images.
///
/// The random numbers of a step depend on the seed of the loader, the epoch, the sample and the
/// position of the step.
#[derive(Debug)]
pub struct Transformed<S> {
    source: S,
    steps: Vec<Step>,
    size: [usize; 2],
    format: ImageFormat,
    fields: [Field; 2],
    tables: Output,
    /// Workspaces that no thread uses. There are never more workspaces than threads.
    idle: Mutex<Vec<Workspace>>,
}

#[derive(Debug)]
enum Output {
    Floats(Tables<f32>),
    Bytes(Tables<u8>),
}

#[derive(Debug, Default)]
struct Workspace {
    sample: ImageSample,
    image: Scratch,
    mask: Scratch,
}

impl<S: ImageSource> Transformed<S> {
    /// The dataset of the images of `source` after the steps of `pipeline`.
    ///
    /// # Errors
    /// [`DataError::Transform`] if the images can have different sizes after the steps, or if
    /// `Normalise` has another number of channels.
    pub fn new(source: S, pipeline: Pipeline) -> Result<Self, DataError> {
        let Pipeline { steps, element } = pipeline;
        let format = source.format();
        let channels = format.channels;
        if ![1, 3].contains(&channels) {
            return Err(DataError::InvalidOption { option: "channels", value: channels });
        }
        let size = steps.iter().fold(format.size, |size, step| step.size_after(size));
        let size = size.ok_or(DataError::Transform {
            step: steps.last().map_or("none", Step::name),
            reason: "leaves images of different sizes: crop or resize them to one",
        })?;
        let tables = match (element, steps.iter().find_map(normalisation)) {
            (ElementType::U8, _) => Output::Bytes(Tables::identity(channels)),
            (_, None) => Output::Floats(Tables::normalise(&[0.0; 3][..channels], &[1.0; 3])),
            (_, Some((mean, std))) if mean.len() == channels && std.len() == channels => {
                Output::Floats(Tables::normalise(mean, std))
            }
            (_, Some(_)) => {
                let reason = "needs one mean and one deviation for each channel";
                return Err(DataError::Transform { step: "Normalise", reason });
            }
        };
        let label_shape: &[usize] = if format.ignored_class.is_some() { &size } else { &[] };
        let fields = [
            Field::new("images", element, &[channels, size[0], size[1]]),
            Field::new("labels", ElementType::I64, label_shape),
        ];
        Ok(Self { source, steps, size, format, fields, tables, idle: Mutex::default() })
    }

    /// The source of the images.
    #[must_use]
    pub fn source(&self) -> &S {
        &self.source
    }

    fn write_with(
        &self,
        workspace: &mut Workspace,
        index: usize,
        slot: &mut SampleSlot<'_>,
    ) -> Result<(), SampleError> {
        let Workspace { sample, image, mask } = workspace;
        self.source.read(index, sample)?;
        check_shape(&sample.image, self.format.channels)?;
        let DrawnOps { ops, erased } = draw(&self.steps, sample.image.size(), |position| {
            slot.draws(PURPOSE.wrapping_add(position))
        });
        std::mem::swap(&mut image.front, &mut sample.image);
        let mut canvas = Canvas::new(image, Sampling::Bilinear);
        for &op in &ops {
            match op {
                ImageOp::Colour(colour_op) => colour::apply(canvas.pixels_mut(), colour_op),
                geometry => canvas.apply(geometry),
            }
        }
        canvas.check_size(self.size)?;
        let finished = canvas.finish();
        match &self.tables {
            Output::Floats(tables) => self.finish(finished, tables, erased, slot.values(0)),
            Output::Bytes(tables) => self.finish(finished, tables, erased, slot.values(0)),
        }
        let Some(ignored) = self.format.ignored_class else {
            slot.values::<i64>(1)[0] = sample.label;
            return Ok(());
        };
        check_shape(&sample.mask, 1)?;
        std::mem::swap(&mut mask.front, &mut sample.mask);
        let mut canvas = Canvas::new(mask, Sampling::Nearest(ignored));
        ops.into_iter().for_each(|op| canvas.apply(op));
        canvas.check_size(self.size)?;
        write_mask(&canvas.finish(), self.size, ignored, slot.values(1));
        Ok(())
    }

    fn finish<T: Element + bytemuck::Zeroable>(
        &self,
        image: FinishedPart<'_>,
        tables: &Tables<T>,
        erased: Option<Rect>,
        out: &mut [T],
    ) {
        write(&image, self.size, tables, out);
        if let Some(hole) = erased {
            erase(hole, self.size, out);
        }
    }
}

/// Checks that an image or mask of the source has pixels and the stated channels.
fn check_shape(image: &Raster, channels: usize) -> Result<(), ImageError> {
    let [height, width] = image.size();
    let shape = [image.channels(), height, width];
    let is_fine = shape[0] == channels && height > 0 && width > 0;
    let expected = [channels, 0, 0];
    is_fine.then_some(()).ok_or(ImageError::Shape { shape, expected })
}

fn normalisation(step: &Step) -> Option<(&[f32], &[f32])> {
    match step {
        Step::Normalise { mean, std } => Some((mean, std)),
        _ => None,
    }
}

impl<S: ImageSource> Dataset for Transformed<S> {
    fn len(&self) -> usize {
        self.source.image_count()
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn write(&self, index: usize, slot: &mut SampleSlot<'_>) -> Result<(), SampleError> {
        if index >= self.len() {
            return Err(IndexOutOfRange { index, len: self.len() }.into());
        }
        let lock = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let mut workspace = lock().pop().unwrap_or_default();
        let written = self.write_with(&mut workspace, index, slot);
        lock().push(workspace);
        written
    }

    fn visit_memory(&self, visit: &mut dyn FnMut(*const u8, usize)) {
        self.source.visit_memory(visit);
    }
}
