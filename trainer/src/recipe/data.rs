//! Data of a recipe.

use std::path::PathBuf;

use lowtide_data::{
    Dataset, Digits, ElementType, Field, Images, Loader, LoaderOptions, Random, Sequential, Subset,
    Text,
};
use serde::{Deserialize, Deserializer, Serialize};

use super::kind;
use super::options::options;
use crate::error::Result;

/// The text that ships: the license of this program, 11 KB of English.
const TEXT: &str = include_str!("../../LICENSE-APACHE");

/// The data; keys that its kind has no use for are an error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum DataRecipe {
    /// The handwritten digits that ship with lowtide: 1797 images of 8x8.
    Digits(DigitsRecipe),
    /// MNIST, or what else is in four IDX files of these names.
    Mnist(MnistRecipe),
    /// The characters of a text.
    Text(TextRecipe),
    /// Images of noise, to plan and to measure with.
    RandomImages(RandomImagesRecipe),
    /// Tokens at random, to plan and to measure with.
    RandomTokens(RandomTokensRecipe),
}

options! {
    /// The handwritten digits.
    DigitsRecipe {
        /// Channels, height and width that images are brought to; as they are if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        shape: Option<[usize; 3]> = None,
        /// Threads that read samples beside the one that trains.
        workers: usize = 1,
    }
    /// Images of IDX files.
    MnistRecipe {
        /// The folder with `train-images-idx3-ubyte` and the other three, with `.gz` or without.
        folder: PathBuf = PathBuf::from("mnist"),
        /// Channels, height and width that images are brought to; as they are if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        shape: Option<[usize; 3]> = None,
        /// Threads that read samples beside the one that trains.
        workers: usize = 1,
    }
    /// The characters of a text.
    TextRecipe {
        /// A file in UTF-8; the license of lowtide if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        file: Option<PathBuf> = None,
        /// Characters of a row.
        context: usize = 64,
        /// Threads that read samples beside the one that trains.
        workers: usize = 1,
    }
    /// Images of noise.
    RandomImagesRecipe {
        /// Channels, height and width.
        shape: [usize; 3] = [3, 224, 224],
        /// Number of classes.
        classes: usize = 1000,
        /// Images of an epoch; an evaluation has a tenth of them.
        samples: usize = 1280,
        /// Threads that read samples beside the one that trains.
        workers: usize = 1,
    }
    /// Tokens at random.
    RandomTokensRecipe {
        /// Tokens that there are.
        vocabulary: usize = 50_257,
        /// Tokens of a row.
        context: usize = 1024,
        /// Rows of an epoch; an evaluation has a tenth of them.
        samples: usize = 1280,
        /// Threads that read samples beside the one that trains.
        workers: usize = 1,
    }
}

impl Default for DataRecipe {
    fn default() -> Self {
        DataRecipe::Digits(DigitsRecipe::default())
    }
}

/// [`DataRecipe`] with a default kind.
pub(super) fn or_digits<'de, D: Deserializer<'de>>(
    d: D,
) -> std::result::Result<DataRecipe, D::Error> {
    kind::with_default(d, "digits")
}

/// What a model is to be trained on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Samples {
    /// Images.
    Images {
        /// Channels, height and width.
        shape: [usize; 3],
        /// Number of classes, of images or of pixels.
        classes: usize,
    },
    /// Rows of tokens.
    Tokens {
        /// Tokens that there are.
        vocabulary: usize,
        /// Tokens that are read at once.
        context: usize,
    },
}

/// In what form a model wants its samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Wants {
    /// Images of three channels, unless the recipe says otherwise.
    pub(super) colour: bool,
    /// A class for each pixel.
    pub(super) pixel_labels: bool,
    /// Rows of tokens in pairs of source and target.
    pub(super) pairs: bool,
}

/// Data, open.
pub(super) struct Opened {
    /// What its samples are.
    pub(super) samples: Samples,
    train: Box<dyn FnOnce(LoaderOptions) -> Result<Loader>>,
    test: Box<dyn FnOnce(LoaderOptions) -> Result<Loader>>,
}

impl Opened {
    fn new(
        samples: Samples,
        train: impl Dataset + 'static,
        test: impl Dataset + 'static,
    ) -> Opened {
        Opened {
            samples,
            train: Box::new(move |options| Ok(Loader::new(train, options)?)),
            test: Box::new(move |options| {
                let in_order = LoaderOptions { workers: 0, ..options };
                Ok(Loader::with_sampler(test, Sequential, in_order)?)
            }),
        }
    }

    /// Loaders of the data to train on, shuffled, and to test on, in order.
    pub(super) fn loaders(self, options: LoaderOptions) -> Result<(Loader, Loader)> {
        Ok(((self.train)(options)?, (self.test)(options)?))
    }
}

impl DataRecipe {
    /// The kind's name.
    pub fn name(&self) -> &'static str {
        match self {
            DataRecipe::Digits(_) => "digits",
            DataRecipe::Mnist(_) => "mnist",
            DataRecipe::Text(_) => "text",
            DataRecipe::RandomImages(_) => "random-images",
            DataRecipe::RandomTokens(_) => "random-tokens",
        }
    }

    /// Threads that read samples beside the one that trains.
    pub fn workers(&self) -> usize {
        match self {
            DataRecipe::Digits(data) => data.workers,
            DataRecipe::Mnist(data) => data.workers,
            DataRecipe::Text(data) => data.workers,
            DataRecipe::RandomImages(data) => data.workers,
            DataRecipe::RandomTokens(data) => data.workers,
        }
    }

    /// The same for [`DataRecipe::workers`].
    pub fn workers_mut(&mut self) -> &mut usize {
        match self {
            DataRecipe::Digits(data) => &mut data.workers,
            DataRecipe::Mnist(data) => &mut data.workers,
            DataRecipe::Text(data) => &mut data.workers,
            DataRecipe::RandomImages(data) => &mut data.workers,
            DataRecipe::RandomTokens(data) => &mut data.workers,
        }
    }

    /// Its whole numbers by name, with the least and the most that each may be.
    pub(super) fn counts(&self) -> Vec<(&'static str, usize, [usize; 2])> {
        const SIDE_MAX: usize = 1 << 16;
        const MANY: usize = 1 << 32;
        let sides =
            |shape: &[usize; 3]| shape.map(|side| ("data.shape", side, [1, SIDE_MAX])).to_vec();
        let mut counts = match self {
            DataRecipe::Digits(data) => data.shape.iter().flat_map(sides).collect(),
            DataRecipe::Mnist(data) => data.shape.iter().flat_map(sides).collect(),
            DataRecipe::Text(data) => vec![("data.context", data.context, [1, SIDE_MAX])],
            DataRecipe::RandomImages(data) => [
                sides(&data.shape),
                vec![
                    ("data.classes", data.classes, [1, SIDE_MAX]),
                    ("data.samples", data.samples, [1, MANY]),
                ],
            ]
            .concat(),
            DataRecipe::RandomTokens(data) => vec![
                ("data.vocabulary", data.vocabulary, [1, MANY]),
                ("data.context", data.context, [1, SIDE_MAX]),
                ("data.samples", data.samples, [1, MANY]),
            ],
        };
        counts.push(("data.workers", self.workers(), [0, super::WORKERS_MAX]));
        counts
    }

    /// Opens the data in the form that a model wants.
    ///
    /// # Errors
    /// Those of the data set.
    pub(super) fn open(&self, wants: Wants) -> Result<Opened> {
        Ok(match self {
            DataRecipe::Digits(data) => {
                let adapt = |images: &Images| adapted(images, data.shape, wants);
                let (train, test) = Digits::images()?;
                let images = adapt(train.dataset());
                let part = |part: &Subset<Images>| {
                    Subset::new(images.clone(), part.indices()).expect("as many images as before")
                };
                Opened::new(samples_of(&images), part(&train), part(&test))
            }
            DataRecipe::Mnist(data) => {
                let (train, test) = Images::mnist(&data.folder)?;
                let [train, test] = [train, test].map(|images| adapted(&images, data.shape, wants));
                Opened::new(samples_of(&train), train, test)
            }
            DataRecipe::Text(data) => {
                let text = match &data.file {
                    Some(file) => Text::read(file, data.context)?,
                    None => Text::new(TEXT, data.context)?,
                };
                let text = if wants.pairs { text.in_pairs() } else { text };
                let (vocabulary, context) = (text.vocabulary().len(), data.context);
                let (train, test) = text.split()?;
                Opened::new(Samples::Tokens { vocabulary, context }, train, test)
            }
            &DataRecipe::RandomImages(RandomImagesRecipe { shape, classes, samples, .. }) => {
                let labels: &[usize] = if wants.pixel_labels { &shape[1..] } else { &[] };
                let fields = vec![
                    Field::new("images", ElementType::F32, &shape),
                    Field::new("labels", ElementType::I64, labels),
                ];
                random(Samples::Images { shape, classes }, samples, fields, classes)
            }
            &DataRecipe::RandomTokens(RandomTokensRecipe {
                vocabulary, context, samples, ..
            }) => {
                let field = |name, len| Field::new(name, ElementType::I64, &[len]);
                let fields = match wants.pairs {
                    true => vec![field("source", context), field("target", context + 1)],
                    false => vec![field("tokens", context + 1)],
                };
                random(Samples::Tokens { vocabulary, context }, samples, fields, vocabulary)
            }
        })
    }
}

fn random(samples: Samples, len: usize, fields: Vec<Field>, bound: usize) -> Opened {
    let part = |len| Random::new(len, fields.clone(), bound as u64);
    Opened::new(samples, part(len), part(len.div_ceil(10)))
}

/// Images as a recipe and a model want them.
fn adapted(images: &Images, shape: Option<[usize; 3]>, wants: Wants) -> Images {
    let [channels, height, width] = images.shape();
    let channels = if wants.colour { channels.max(3) } else { channels };
    let images = images.clone().resized(shape.unwrap_or([channels, height, width]));
    if wants.pixel_labels { images.with_pixel_labels() } else { images }
}

fn samples_of(images: &Images) -> Samples {
    Samples::Images { shape: images.shape(), classes: images.classes() }
}
