//! Data of a recipe.

mod arrays;
mod images;
mod open;
mod tokens;

use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serialize};

use super::kind;
use super::options::{kinds, options};

pub use open::Samples;
pub(super) use open::Wants;

kinds! {
    /// The data. A key that its kind does not use is an error.
    DataRecipe {
        /// The handwritten digits that ship with lowtide: 1797 images of 8x8.
        Digits(DigitsRecipe) = "digits",
        /// MNIST, or other data in four IDX files of the same names.
        Mnist(MnistRecipe) = "mnist",
        /// CIFAR-10 or CIFAR-100.
        Cifar(CifarRecipe) = "cifar",
        /// PNG and JPEG files, a folder for each class.
        ImageFolder(ImageFolderRecipe) = "image-folder",
        /// PNG and JPEG files, and a mask for each.
        SegmentationFolder(SegmentationFolderRecipe) = "segmentation-folder",
        /// A table of numbers.
        Csv(CsvRecipe) = "csv",
        /// A file of text, as rows of tokens.
        Text(TextRecipe) = "text",
        /// Files of tokens in the format of nanoGPT or llm.c.
        TokenFile(TokenFileRecipe) = "token-file",
        /// A file with a JSON object on each line: texts, prompts with completions, chats, or
        /// preferred answers.
        JsonLines(JsonLinesRecipe) = "json-lines",
        /// Arrays of NumPy: images or rows of numbers, and a class or a number for each.
        Npy(NpyRecipe) = "npy",
        /// Columns of numbers in a Parquet file (a feature).
        Parquet(ParquetRecipe) = "parquet",
        /// Images and classes in a Parquet file, as dataset hubs keep them (a feature).
        ParquetImages(ParquetImagesRecipe) = "parquet-images",
        /// Images and classes in tar archives, as in WebDataset.
        TarShards(TarShardsRecipe) = "tar-shards",
        /// Images of noise, for plans and measurements.
        RandomImages(RandomImagesRecipe) = "random-images",
        /// Random tokens, for plans and measurements.
        RandomTokens(RandomTokensRecipe) = "random-tokens",
    }
    /// Number of threads that read samples besides the training thread.
    each workers_mut(workers: usize)
}

options! {
    /// The handwritten digits.
    DigitsRecipe {
        /// Channels, height and width after resizing; the original ones if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        shape: Option<[usize; 3]> = None,
        /// Threads that read samples besides the training thread.
        workers: usize = 1,
    }
    /// Images of IDX files.
    MnistRecipe {
        /// The folder with `train-images-idx3-ubyte` and the other three, with `.gz` or without.
        folder: PathBuf = PathBuf::from("mnist"),
        /// Channels, height and width after resizing; the original ones if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        shape: Option<[usize; 3]> = None,
        /// Threads that read samples besides the training thread.
        workers: usize = 1,
    }
    /// CIFAR's binary files.
    CifarRecipe {
        /// The folder with `data_batch_1.bin` to `test_batch.bin`, or `train.bin` and `test.bin`.
        folder: PathBuf = PathBuf::from("cifar-10-batches-bin"),
        /// 10 or 100.
        classes: usize = 10,
        /// Channels, height and width after resizing; the original ones if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        shape: Option<[usize; 3]> = None,
        /// Threads that read samples besides the training thread.
        workers: usize = 1,
    }
    /// Image files by class.
    ImageFolderRecipe {
        /// A folder with a folder for each class, or with `train` and `test` (or `val`) of such
        /// folders.
        folder: PathBuf = PathBuf::from("images"),
        /// Channels (1 or 3), height and width after resizing.
        shape: [usize; 3] = [3, 224, 224],
        /// The share of the images for testing, if there is no folder of test images.
        test_share: f64 = 0.1,
        /// Threads that read samples besides the training thread.
        workers: usize = 2,
    }
    /// Image files with masks.
    SegmentationFolderRecipe {
        /// The folder of the images.
        images: PathBuf = PathBuf::from("images"),
        /// The folder of the masks: PNG files of class numbers, named like the images.
        masks: PathBuf = PathBuf::from("masks"),
        /// Number of classes; pixels of class 255 do not count.
        classes: usize = 2,
        /// Channels (1 or 3), height and width after resizing.
        shape: [usize; 3] = [3, 224, 224],
        /// The share of the images for testing.
        test_share: f64 = 0.1,
        /// Threads that read samples besides the training thread.
        workers: usize = 2,
    }
    /// A table of comma-separated values with a header.
    CsvRecipe {
        /// The table to train on.
        file: PathBuf = PathBuf::from("data.csv"),
        /// Another table for testing; a random tenth of the first one if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        test: Option<PathBuf> = None,
        /// The column to predict from the others.
        target: String = "target".to_owned(),
        /// True if the target is a number and not the name of a class.
        number: bool = false,
        /// The number that replaces missing values; a missing value is an error if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        fill: Option<f32> = None,
        /// Threads that read samples besides the training thread.
        workers: usize = 0,
    }
    /// A text.
    TextRecipe {
        /// A file in UTF-8; the license of lowtide if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        file: Option<PathBuf> = None,
        /// "characters", "bytes", "gpt2", "cl100k", "o200k", or a `tokenizer.json` (a feature).
        tokenizer: String = "characters".to_owned(),
        /// Tokens of a row.
        context: usize = 64,
        /// Threads that read samples besides the training thread.
        workers: usize = 1,
    }
    /// Files of tokens.
    TokenFileRecipe {
        /// The files to train on, of 2-byte tokens or with llm.c's header.
        files: Vec<PathBuf> = vec![PathBuf::from("train.bin")],
        /// The files for testing; the last tenth of the others if there is none.
        test: Vec<PathBuf> = Vec::new(),
        /// Number of different tokens.
        vocabulary: usize = 50_257,
        /// Tokens of a row.
        context: usize = 1024,
        /// Threads that read samples besides the training thread.
        workers: usize = 1,
    }
    /// JSON lines.
    JsonLinesRecipe {
        /// The file to train on.
        file: PathBuf = PathBuf::from("data.jsonl"),
        /// Another file for testing; the last tenth of the first one if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        test: Option<PathBuf> = None,
        /// The kind of a line: "text", "completion" (prompt and completion), "chat" (messages),
        /// "preference" (prompt, chosen and rejected) or "chat-preference" (messages instead of
        /// texts).
        format: LineKind = LineKind::Text,
        /// "bytes", "gpt2", "cl100k", "o200k", or a file `tokenizer.json` (a feature).
        tokenizer: String = "gpt2".to_owned(),
        /// True if documents fill rows one after the other. Otherwise, and for preferences, each
        /// document has its own row.
        packed: bool = true,
        /// Tokens of a row.
        context: usize = 1024,
        /// Threads that read samples besides the training thread.
        workers: usize = 1,
    }
    /// Two arrays of NumPy.
    NpyRecipe {
        /// A `.npy` file of rows of numbers, or of images: samples, channels if any, height, width.
        inputs: PathBuf = PathBuf::from("train_x.npy"),
        /// A `.npy` file of targets: classes, of samples or pixels, or numbers.
        targets: PathBuf = PathBuf::from("train_y.npy"),
        /// Two other files of inputs and targets for testing; a share of the first ones if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        test: Option<[PathBuf; 2]> = None,
        /// The share of the samples for testing, if there are no files of test samples.
        test_share: f64 = 0.1,
        /// Number of classes; the target is a number if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        classes: Option<usize> = None,
        /// Threads that read samples besides the training thread.
        workers: usize = 1,
    }
    /// Columns of a Parquet file.
    ParquetRecipe {
        /// The file to train on.
        file: PathBuf = PathBuf::from("train.parquet"),
        /// Another file for testing; a share of the first one if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        test: Option<PathBuf> = None,
        /// The share of the rows for testing, if there is no file of test rows.
        test_share: f64 = 0.1,
        /// The input columns, of numbers or of lists of one length; all other columns if empty.
        columns: Vec<String> = Vec::new(),
        /// The column to predict.
        target: String = "target".to_owned(),
        /// Number of classes; the target is a number if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        classes: Option<usize> = None,
        /// Threads that read samples besides the training thread.
        workers: usize = 1,
    }
    /// Images in a Parquet file.
    ParquetImagesRecipe {
        /// The file to train on.
        file: PathBuf = PathBuf::from("train.parquet"),
        /// Another file for testing; a share of the first one if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        test: Option<PathBuf> = None,
        /// The share of the images for testing, if there is no file of test images.
        test_share: f64 = 0.1,
        /// The column of PNG or JPEG files.
        image_column: String = "image.bytes".to_owned(),
        /// The column of classes.
        label_column: String = "label".to_owned(),
        /// Number of classes.
        classes: usize = 10,
        /// Channels (1 or 3), height and width after resizing.
        shape: [usize; 3] = [3, 224, 224],
        /// Threads that read samples besides the training thread.
        workers: usize = 2,
    }
    /// Tar archives of images.
    TarShardsRecipe {
        /// The training archives: members of one name, `.jpg` or `.png` and `.cls`, are a sample.
        files: Vec<PathBuf> = vec![PathBuf::from("train-000000.tar")],
        /// Other archives for testing; a share of the first ones if there is none.
        test: Vec<PathBuf> = Vec::new(),
        /// The share of the images for testing, if there are no archives of test images.
        test_share: f64 = 0.1,
        /// Channels (1 or 3), height and width after resizing.
        shape: [usize; 3] = [3, 224, 224],
        /// Threads that read samples besides the training thread.
        workers: usize = 2,
    }
    /// Images of noise.
    RandomImagesRecipe {
        /// Channels, height and width.
        shape: [usize; 3] = [3, 224, 224],
        /// Number of classes.
        classes: usize = 1000,
        /// Images of an epoch; an evaluation has a tenth of this number.
        samples: usize = 1280,
        /// Threads that read samples besides the training thread.
        workers: usize = 1,
    }
    /// Random tokens.
    RandomTokensRecipe {
        /// Number of different tokens.
        vocabulary: usize = 50_257,
        /// Tokens of a row.
        context: usize = 1024,
        /// Rows of an epoch; an evaluation has a tenth of this number.
        samples: usize = 1280,
        /// True if a sample is two rows and the first is preferred to the second.
        preference: bool = false,
        /// Threads that read samples besides the training thread.
        workers: usize = 1,
    }
}

/// The kind of a line in a file of JSON lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LineKind {
    /// `{"text": ..}`: the whole text is learned.
    Text,
    /// `{"prompt": .., "completion": ..}`: the completion is learned.
    Completion,
    /// `{"messages": [{"role": .., "content": ..}]}`: the assistant's messages are learned.
    Chat,
    /// `{"prompt": .., "chosen": .., "rejected": ..}`: one answer is preferred to the other.
    Preference,
    /// A preference between messages. The common beginning of both answers may be in `chosen` and
    /// `rejected` instead of `prompt`.
    ChatPreference,
}

impl LineKind {
    /// True if a line has two answers and one is preferred.
    pub fn is_preference(self) -> bool {
        matches!(self, LineKind::Preference | LineKind::ChatPreference)
    }
}

impl Default for DataRecipe {
    fn default() -> Self {
        DataRecipe::Digits(DigitsRecipe::default())
    }
}

/// Reads a [`DataRecipe`] with a default kind.
pub(super) fn or_digits<'de, D: Deserializer<'de>>(
    d: D,
) -> std::result::Result<DataRecipe, D::Error> {
    kind::with_default(d, "digits")
}

/// Largest side of an image, and largest number of tokens in a row of text.
const SIDE_MAX: usize = 1 << 16;

/// Largest number of random tokens in a row, for plans. Rows of text have at most [`SIDE_MAX`].
pub(super) const CONTEXT_MAX: usize = 1 << 20;

impl DataRecipe {
    /// Number of threads that read samples besides the training thread.
    pub fn workers(&self) -> usize {
        *self.clone().workers_mut()
    }

    /// True if the samples are pairs of answers and one is preferred.
    pub(super) fn is_preferences(&self) -> bool {
        match self {
            DataRecipe::JsonLines(data) => data.format.is_preference(),
            DataRecipe::RandomTokens(data) => data.preference,
            _ => false,
        }
    }

    /// The integers among the data's options, each with its name and its smallest and largest
    /// value.
    pub(super) fn counts(&self) -> Vec<(&'static str, usize, [usize; 2])> {
        const MANY: usize = 1 << 32;
        let context = |context: usize| ("data.context", context, [1, SIDE_MAX]);
        let classes = |classes: usize, max| ("data.classes", classes, [1, max]);
        let sides =
            |shape: &[usize; 3]| shape.map(|side| ("data.shape", side, [1, SIDE_MAX])).to_vec();
        let mut counts = match self {
            DataRecipe::Digits(DigitsRecipe { shape, .. })
            | DataRecipe::Mnist(MnistRecipe { shape, .. })
            | DataRecipe::Cifar(CifarRecipe { shape, .. }) => {
                shape.iter().flat_map(sides).collect()
            }
            DataRecipe::ImageFolder(data) => sides(&data.shape),
            DataRecipe::SegmentationFolder(data) => {
                [sides(&data.shape), vec![classes(data.classes, 255)]].concat()
            }
            DataRecipe::Csv(_) => Vec::new(),
            DataRecipe::Npy(NpyRecipe { classes: count, .. })
            | DataRecipe::Parquet(ParquetRecipe { classes: count, .. }) => {
                count.iter().map(|&count| classes(count, SIDE_MAX)).collect()
            }
            DataRecipe::ParquetImages(data) => {
                [sides(&data.shape), vec![classes(data.classes, SIDE_MAX)]].concat()
            }
            DataRecipe::TarShards(data) => sides(&data.shape),
            DataRecipe::Text(data) => vec![context(data.context)],
            DataRecipe::JsonLines(data) => vec![context(data.context)],
            DataRecipe::TokenFile(data) => {
                vec![("data.vocabulary", data.vocabulary, [1, MANY]), context(data.context)]
            }
            DataRecipe::RandomImages(data) => [
                sides(&data.shape),
                vec![classes(data.classes, SIDE_MAX), ("data.samples", data.samples, [1, MANY])],
            ]
            .concat(),
            DataRecipe::RandomTokens(data) => vec![
                ("data.vocabulary", data.vocabulary, [1, MANY]),
                ("data.context", data.context, [1, CONTEXT_MAX]),
                ("data.samples", data.samples, [1, MANY]),
            ],
        };
        counts.push(("data.workers", self.workers(), [0, super::WORKERS_MAX]));
        counts
    }
}
