//! Images for a recipe, with or without augmentation.

#[cfg(feature = "parquet")]
use lowtide_data::ParquetImages;
use lowtide_data::{
    Cifar, Dataset, Digits, ImageFolder, ImageSource, Images, Mixed, Mixing, Pipeline,
    SegmentationFolder, Step, Subset, TarShards,
};
use lowtide_trainer::{Result, TrainError};

#[cfg(feature = "parquet")]
use super::ParquetImagesRecipe;
use super::open::{Opened, Samples, Wants, parts, share};
use super::{
    CifarRecipe, DigitsRecipe, ImageFolderRecipe, MnistRecipe, SegmentationFolderRecipe,
    TarShardsRecipe,
};
use crate::recipe::{AugmentRecipe, setting};

pub(super) fn digits(data: &DigitsRecipe, wants: Wants, augment: &AugmentRecipe) -> Result<Opened> {
    let (train, test) = Digits::images()?;
    let images = adapted(train.dataset(), data.shape, wants);
    let part = |part: &Subset<Images>| {
        Subset::new(images.clone(), part.indices()).expect("as many images as before")
    };
    if augment.is_none() {
        return Ok(Opened::new(samples_of(&images), part(&train), part(&test)));
    }
    varied(&images, images.clone(), wants, augment, Some([train.indices(), test.indices()]))
}

pub(super) fn mnist(data: &MnistRecipe, wants: Wants, augment: &AugmentRecipe) -> Result<Opened> {
    in_memory(Images::mnist(&data.folder)?, data.shape, wants, augment)
}

pub(super) fn cifar(data: &CifarRecipe, wants: Wants, augment: &AugmentRecipe) -> Result<Opened> {
    let images = match data.classes {
        10 => Cifar::ten(&data.folder)?,
        100 => Cifar::hundred(&data.folder)?,
        _ => return Err(setting("data.classes", "must be 10 or 100")),
    };
    in_memory(images, data.shape, wants, augment)
}

fn in_memory(
    (train, test): (Images, Images),
    shape: Option<[usize; 3]>,
    wants: Wants,
    augment: &AugmentRecipe,
) -> Result<Opened> {
    let [train, test] = [train, test].map(|images| adapted(&images, shape, wants));
    if augment.is_none() {
        Ok(Opened::new(samples_of(&train), train, test))
    } else {
        varied(&train, test, wants, augment, None)
    }
}

/// Images in the shape that a recipe and a model ask for.
fn adapted(images: &Images, shape: Option<[usize; 3]>, wants: Wants) -> Images {
    let [channels, height, width] = images.shape();
    let channels = if wants.colour { channels.max(3) } else { channels };
    let images = images.clone().resized(shape.unwrap_or([channels, height, width]));
    if wants.pixel_labels { images.with_pixel_labels() } else { images }
}

fn samples_of(images: &Images) -> Samples {
    Samples::Images { shape: images.shape(), classes: images.classes() }
}

/// Images in memory, with augmented training images. `parts` holds the training and the test
/// indices, unless `train` and `test` are used whole.
fn varied(
    train: &Images,
    test: Images,
    wants: Wants,
    augment: &AugmentRecipe,
    parts: Option<[&[usize]; 2]>,
) -> Result<Opened> {
    if wants.pixel_labels {
        return Err(setting("augment", "is for classes of images here, not of pixels"));
    }
    let (samples, shape) = (samples_of(train), train.shape());
    let train = train.clone().through(pipeline(shape, augment)?)?;
    let test = test.through(pipeline(shape, &augment.still())?)?;
    let Some([train_indices, test_indices]) = parts else {
        return mixed(samples, train, test, augment);
    };
    let known = "the indexes are those of the images";
    let train = Subset::new(train, train_indices).expect(known);
    mixed(samples, train, Subset::new(test, test_indices).expect(known), augment)
}

pub(super) fn folder(
    data: &ImageFolderRecipe,
    wants: Wants,
    augment: &AugmentRecipe,
) -> Result<Opened> {
    no_pixel_labels("image-folder", wants)?;
    check_channels(data.shape)?;
    let open = |folder: &std::path::Path| {
        let images = ImageFolder::open(folder)?.upright();
        Ok::<_, TrainError>(if data.shape[0] == 1 { images.grey() } else { images })
    };
    let train_folder = data.folder.join("train");
    let test_folder = ["test", "val"].map(|name| data.folder.join(name));
    let test_folder = test_folder.into_iter().find(|folder| folder.is_dir());
    let test_folder = test_folder.filter(|_| train_folder.is_dir());
    let images = open(if test_folder.is_some() { &train_folder } else { &data.folder })?;
    let test = test_folder.as_deref().map(open).transpose()?;
    if let Some(test) = test.as_ref().filter(|test| test.classes() != images.classes()) {
        let (here, there) = (images.classes(), test.classes());
        let problem =
            format!("those to train and to test on have different classes: {here:?}, {there:?}");
        return Err(setting("data.folder", &problem));
    }
    let samples = Samples::Images { shape: data.shape, classes: images.classes().len() };
    decoded(samples, images, test, data.test_share, data.shape, augment)
}

pub(super) fn shards(
    data: &TarShardsRecipe,
    wants: Wants,
    augment: &AugmentRecipe,
) -> Result<Opened> {
    no_pixel_labels("tar-shards", wants)?;
    check_channels(data.shape)?;
    let open = |files: &[std::path::PathBuf]| {
        let images = TarShards::open(files)?;
        Ok::<_, TrainError>(if data.shape[0] == 1 { images.grey() } else { images })
    };
    let images = open(&data.files)?;
    let test = (!data.test.is_empty()).then(|| open(&data.test)).transpose()?;
    let classes = test.as_ref().map_or(0, TarShards::classes).max(images.classes());
    let samples = Samples::Images { shape: data.shape, classes };
    decoded(samples, images, test, data.test_share, data.shape, augment)
}

#[cfg(feature = "parquet")]
pub(super) fn parquet(
    data: &ParquetImagesRecipe,
    wants: Wants,
    augment: &AugmentRecipe,
) -> Result<Opened> {
    no_pixel_labels("parquet-images", wants)?;
    check_channels(data.shape)?;
    let open = |file: &std::path::PathBuf| {
        let images = ParquetImages::open(file, &data.image_column, &data.label_column)?;
        Ok::<_, TrainError>(if data.shape[0] == 1 { images.grey() } else { images })
    };
    let (images, test) = (open(&data.file)?, data.test.as_ref().map(open).transpose()?);
    let samples = Samples::Images { shape: data.shape, classes: data.classes };
    decoded(samples, images, test, data.test_share, data.shape, augment)
}

pub(super) fn masks(
    data: &SegmentationFolderRecipe,
    wants: Wants,
    augment: &AugmentRecipe,
) -> Result<Opened> {
    if !wants.pixel_labels {
        return Err(setting("data.kind", "segmentation-folder is for models of pixels' classes"));
    }
    check_channels(data.shape)?;
    if augment.mixup > 0.0 || augment.cutmix > 0.0 {
        return Err(setting("augment.mixup", "mixes labels of images, not of pixels"));
    }
    let images = SegmentationFolder::open(&data.images, &data.masks, data.classes)?;
    let images = if data.shape[0] == 1 { images.grey() } else { images };
    let samples = Samples::Images { shape: data.shape, classes: data.classes };
    decoded(samples, images, None, data.test_share, data.shape, augment)
}

/// Images that are decoded when they are read, with augmented training images. Without a test set,
/// a share of the images is the test set.
fn decoded<S: ImageSource + Clone + 'static>(
    samples: Samples,
    images: S,
    test: Option<S>,
    test_share: f64,
    shape: [usize; 3],
    augment: &AugmentRecipe,
) -> Result<Opened> {
    let varied = pipeline(shape, augment)?;
    let still = pipeline(shape, &augment.still())?;
    if let Some(test) = test {
        return mixed(samples, images.through(varied)?, test.through(still)?, augment);
    }
    let share = share(test_share)?;
    let [train, _] = parts(images.clone().through(varied)?, share)?;
    let [_, test] = parts(images.through(still)?, share)?;
    mixed(samples, train, test, augment)
}

fn no_pixel_labels(kind: &str, wants: Wants) -> Result<()> {
    if wants.pixel_labels {
        Err(setting("data.kind", &format!("{kind} has no class for each pixel")))
    } else {
        Ok(())
    }
}

fn check_channels(shape: [usize; 3]) -> Result<()> {
    match shape[0] {
        1 | 3 => Ok(()),
        other => Err(setting("data.shape", &format!("files have 1 or 3 channels, not {other}"))),
    }
}

/// The steps to images of this shape. Without augmentation, the middle of the image is cut out.
fn pipeline([channels, height, width]: [usize; 3], augment: &AugmentRecipe) -> Result<Pipeline> {
    let size = [height, width];
    let mut steps = if augment.random_resized_crop {
        vec![Step::random_resized_crop(size)]
    } else if height == width {
        vec![Step::ResizeShorter(height), Step::CentreCrop(size)]
    } else {
        vec![Step::Resize(size)]
    };
    if augment.crop_padding > 0 {
        steps.push(Step::RandomCrop { size, padding: augment.crop_padding });
    }
    if augment.flip {
        steps.push(Step::flip_horizontal());
    }
    if augment.rotate > 0.0 {
        steps.push(Step::Rotate { degrees: augment.rotate });
    }
    if augment.jitter > 0.0 || augment.hue > 0.0 {
        let [brightness, contrast, saturation] = [augment.jitter; 3];
        let hue = augment.hue;
        steps.push(Step::ColourJitter { brightness, contrast, saturation, hue });
    }
    if augment.normalise {
        steps.push(match channels {
            3 => Step::normalise_imagenet(),
            _ => Step::Normalise { mean: vec![0.449], std: vec![0.226] },
        });
    }
    if augment.erase > 0.0 {
        steps.push(Step::erase(augment.erase));
    }
    Ok(Pipeline::new(steps)?)
}

fn mixed(
    samples: Samples,
    train: impl Dataset + 'static,
    test: impl Dataset + 'static,
    augment: &AugmentRecipe,
) -> Result<Opened> {
    let mixing = match (augment.mixup, augment.cutmix) {
        (alpha, _) if alpha > 0.0 => Mixing::Mixup { alpha },
        (_, alpha) if alpha > 0.0 => Mixing::Cutmix { alpha },
        _ => return Ok(Opened::new(samples, train, test)),
    };
    Ok(Opened::new(samples, Mixed::new(train, mixing)?, test))
}
