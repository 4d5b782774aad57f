//! Opens the data of a recipe in the form that a model needs.

use std::sync::Arc;

use lowtide_data::{
    Csv, CsvOptions, CsvTarget, Dataset, ElementType, Field, Loader, LoaderOptions, OnBadSample,
    Random, Remainder, Sequential, Sharded, Shuffled, split_at_random,
};
use lowtide_ranks::Rank;
use lowtide_trainer::Result;

use super::{
    CsvRecipe, DataRecipe, RandomImagesRecipe, RandomTokensRecipe, arrays, images, tokens,
};
use crate::recipe::{AugmentRecipe, setting};

/// The seed of random splits. Another seed than the user's gives every run the same test data.
pub(super) const SPLIT_SEED: u64 = 0;

/// The shape of a training's samples.
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
        /// Number of different tokens.
        vocabulary: usize,
        /// Number of tokens that are read at once.
        context: usize,
    },
    /// Pairs of rows of tokens; the first row is preferred to the second.
    Preferences {
        /// Number of different tokens.
        vocabulary: usize,
        /// Number of tokens that are read of a row.
        context: usize,
    },
    /// Rows of numbers.
    Features {
        /// Number of values in a row.
        count: usize,
        /// Number of classes; `None` if the target is a number.
        classes: Option<usize>,
    },
}

/// The form of samples that a model needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wants {
    /// Images of three channels, unless the recipe says otherwise.
    pub(crate) colour: bool,
    /// A class for each pixel.
    pub(crate) pixel_labels: bool,
    /// Rows of tokens in pairs of source and target.
    pub(crate) pairs: bool,
}

type OpenLoader = Box<dyn FnOnce(LoaderOptions, Rank) -> Result<Loader>>;

/// Opened data.
pub(crate) struct Opened {
    /// The kind of the samples.
    pub(crate) samples: Samples,
    train: OpenLoader,
    test: OpenLoader,
}

impl Opened {
    pub(super) fn new(
        samples: Samples,
        train: impl Dataset + 'static,
        test: impl Dataset + 'static,
    ) -> Opened {
        Opened {
            samples,
            train: Box::new(move |options, rank| {
                let Rank { index, count } = rank;
                if count == 1 {
                    return Ok(Loader::new(train, options)?);
                }
                let shard = Sharded::new(Shuffled, index, count, Remainder::Drop)?.in_blocks();
                Ok(Loader::with_sampler(train, shard, options)?)
            }),
            test: Box::new(move |options, _| {
                // A score over fewer samples would not be comparable.
                let on_bad_sample = OnBadSample::Fail;
                let in_order =
                    LoaderOptions { workers: 0, on_bad_sample, drop_last: false, ..options };
                Ok(Loader::with_sampler(test, Sequential, in_order)?)
            }),
        }
    }

    /// The loaders of this rank: its share of the training data, shuffled, and all test data in
    /// order.
    pub(crate) fn loaders(self, options: LoaderOptions, rank: Rank) -> Result<(Loader, Loader)> {
        Ok(((self.train)(options, rank)?, (self.test)(options, rank)?))
    }
}

impl DataRecipe {
    /// Opens the data in the form that a model needs.
    ///
    /// # Errors
    /// Errors of the data set; `Setting` for augmentation of data without images.
    pub(crate) fn open(&self, wants: Wants, augment: &AugmentRecipe) -> Result<Opened> {
        let is_images = matches!(
            self,
            DataRecipe::Digits(_)
                | DataRecipe::Mnist(_)
                | DataRecipe::Cifar(_)
                | DataRecipe::ImageFolder(_)
                | DataRecipe::SegmentationFolder(_)
                | DataRecipe::ParquetImages(_)
                | DataRecipe::TarShards(_)
        );
        if !augment.is_none() && !is_images {
            let problem = format!("is for images, and the data is {}", self.name());
            return Err(setting("augment", &problem));
        }
        match self {
            DataRecipe::Digits(data) => images::digits(data, wants, augment),
            DataRecipe::Mnist(data) => images::mnist(data, wants, augment),
            DataRecipe::Cifar(data) => images::cifar(data, wants, augment),
            DataRecipe::ImageFolder(data) => images::folder(data, wants, augment),
            DataRecipe::SegmentationFolder(data) => images::masks(data, wants, augment),
            DataRecipe::TarShards(data) => images::shards(data, wants, augment),
            #[cfg(feature = "parquet")]
            DataRecipe::ParquetImages(data) => images::parquet(data, wants, augment),
            #[cfg(feature = "parquet")]
            DataRecipe::Parquet(data) => arrays::parquet(data),
            #[cfg(not(feature = "parquet"))]
            DataRecipe::Parquet(_) | DataRecipe::ParquetImages(_) => {
                let problem = "needs a lowtide that is built with `--features parquet`";
                Err(setting("data.kind", problem))
            }
            DataRecipe::Npy(data) => arrays::npy(data, wants),
            DataRecipe::Csv(data) => csv(data),
            DataRecipe::Text(data) => tokens::text(data, wants),
            DataRecipe::TokenFile(data) => tokens::files(data, wants),
            DataRecipe::JsonLines(data) => tokens::json_lines(data, wants),
            &DataRecipe::RandomImages(RandomImagesRecipe { shape, classes, samples, .. }) => {
                let labels: &[usize] = if wants.pixel_labels { &shape[1..] } else { &[] };
                let fields = vec![
                    Field::new("images", ElementType::F32, &shape),
                    Field::new("labels", ElementType::I64, labels),
                ];
                Ok(random(Samples::Images { shape, classes }, samples, fields, classes))
            }
            &DataRecipe::RandomTokens(RandomTokensRecipe {
                vocabulary,
                context,
                samples,
                preference,
                ..
            }) => {
                let field = |name, len| Field::new(name, ElementType::I64, &[len]);
                if preference {
                    tokens::no_pairs(wants)?;
                    let row = |name, labels| [field(name, context + 1), field(labels, context)];
                    let [chosen, rejected] =
                        [row("chosen", "chosen.labels"), row("rejected", "rejected.labels")];
                    let kind = Samples::Preferences { vocabulary, context };
                    return Ok(random(kind, samples, [chosen, rejected].concat(), vocabulary));
                }
                let fields = if wants.pairs {
                    vec![field("source", context), field("target", context + 1)]
                } else {
                    vec![field("tokens", context + 1)]
                };
                Ok(random(Samples::Tokens { vocabulary, context }, samples, fields, vocabulary))
            }
        }
    }
}

fn random(samples: Samples, len: usize, fields: Vec<Field>, bound: usize) -> Opened {
    let part = |len| Random::new(len, fields.clone(), bound as u64);
    Opened::new(samples, part(len), part(len.div_ceil(10)))
}

fn csv(data: &CsvRecipe) -> Result<Opened> {
    let target = if data.number {
        CsvTarget::Number(data.target.clone())
    } else {
        CsvTarget::Class(data.target.clone())
    };
    let options = CsvOptions { target, fill: data.fill, ..Default::default() };
    let table = Csv::open(&data.file, &options)?;
    let classes = (!data.number).then(|| table.classes().len());
    let samples = Samples::Features { count: table.features().len(), classes };
    let Some(test) = &data.test else {
        let [train, test] = parts(table, 0.1)?;
        return Ok(Opened::new(samples, train, test));
    };
    let target = if data.number {
        options.target
    } else {
        CsvTarget::KnownClass(data.target.clone(), table.classes().to_vec())
    };
    let features = table.features().to_vec();
    let test = Csv::open(test, &CsvOptions { target, features, ..options })?;
    Ok(Opened::new(samples, table, test))
}

/// The training part and the test part of a random split, the same in every run.
pub(super) fn parts<D: Dataset + 'static>(
    dataset: D,
    test_share: f64,
) -> Result<[impl Dataset + use<D>; 2]> {
    let fractions = [1.0 - test_share, test_share];
    let parts = split_at_random(&Arc::new(dataset), &fractions, SPLIT_SEED);
    let mut parts = parts.expect("fractions of a whole").into_iter();
    let mut next = || parts.next().expect("a part for each fraction");
    Ok([next(), next()])
}

/// Returns the share of a data set for testing, if the share is in its range.
pub(super) fn share(share: f64) -> Result<f64> {
    if share > 0.0 && share < 1.0 {
        Ok(share)
    } else {
        Err(setting("data.test_share", &format!("{share} is not between 0 and 1")))
    }
}
