//! The files and folders that a recipe reads.

use std::path::{Path, PathBuf};

use lowtide_pretrained::{Config, weight_files};

use super::{
    CifarRecipe, CsvRecipe, DataRecipe, ImageFolderRecipe, JsonLinesRecipe, MnistRecipe,
    ModelRecipe, NpyRecipe, ParquetImagesRecipe, ParquetRecipe, Recipe, SegmentationFolderRecipe,
    TarShardsRecipe, TextRecipe, TokenFileRecipe,
};
use crate::run_dir::RunDir;

impl Recipe {
    /// The files and folders that a training of this recipe reads: its data with its tokenizer, the
    /// weights of its pretrained model, and the models of other runs. Some may be missing.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        let mut paths = self.data.paths();
        if let ModelRecipe::Pretrained(model) = &self.model {
            paths.extend(files_of_model(&model.folder));
        }
        let runs = [
            self.distill.as_ref().map(|distill| &distill.teacher),
            self.prune.as_ref().and_then(|prune| prune.run.as_ref()),
        ];
        paths.extend(runs.into_iter().flatten().map(|run| RunDir::at(run).model()));
        paths
    }
}

impl DataRecipe {
    fn paths(&self) -> Vec<PathBuf> {
        let of_one = |file: &Path, test: &Option<PathBuf>| {
            [file].into_iter().chain(test.as_deref()).map(Path::to_owned).collect()
        };
        match self {
            DataRecipe::Digits(_) | DataRecipe::RandomImages(_) | DataRecipe::RandomTokens(_) => {
                Vec::new()
            }
            DataRecipe::Mnist(MnistRecipe { folder, .. })
            | DataRecipe::Cifar(CifarRecipe { folder, .. })
            | DataRecipe::ImageFolder(ImageFolderRecipe { folder, .. }) => vec![folder.clone()],
            DataRecipe::SegmentationFolder(SegmentationFolderRecipe { images, masks, .. }) => {
                vec![images.clone(), masks.clone()]
            }
            DataRecipe::Csv(CsvRecipe { file, test, .. })
            | DataRecipe::Parquet(ParquetRecipe { file, test, .. })
            | DataRecipe::ParquetImages(ParquetImagesRecipe { file, test, .. }) => {
                of_one(file, test)
            }
            DataRecipe::Text(TextRecipe { file, tokenizer, .. }) => {
                file.clone().into_iter().chain(tokenizer_file(tokenizer)).collect()
            }
            DataRecipe::JsonLines(JsonLinesRecipe { file, test, tokenizer, .. }) => {
                let mut paths: Vec<PathBuf> = of_one(file, test);
                paths.extend(tokenizer_file(tokenizer));
                paths
            }
            DataRecipe::TokenFile(TokenFileRecipe { files, test, .. })
            | DataRecipe::TarShards(TarShardsRecipe { files, test, .. }) => {
                [&files[..], test].concat()
            }
            DataRecipe::Npy(NpyRecipe { inputs, targets, test, .. }) => {
                let train = [inputs, targets].into_iter();
                train.chain(test.iter().flatten()).cloned().collect()
            }
        }
    }
}

/// The files that are read of a pretrained model; none if it cannot be opened. The folder may have
/// others, such as those of runs.
fn files_of_model(folder: &Path) -> Vec<PathBuf> {
    // A name of the hub stands for a folder of its cache.
    let Ok(config) = Config::open(folder) else { return Vec::new() };
    let folder = config.folder();
    let beside = ["config.json", "tokenizer.json"].map(|name| folder.join(name));
    // An index that is damaged is an error where the weights are loaded.
    let weights = weight_files(folder).unwrap_or_default();
    beside.into_iter().filter(|path| path.is_file()).chain(weights).collect()
}

/// The file of a tokenizer, unless the tokenizer is one that the program has.
fn tokenizer_file(tokenizer: &str) -> Option<PathBuf> {
    Some(PathBuf::from(tokenizer)).filter(|path| path.is_file())
}
