//! Folders of image files: a folder for each class, or images beside their masks.

use crate::dataset::{SampleError, visit_slice};
use crate::error::DataError;
use crate::image::{
    ImageError, ImageFormat, ImageLimits, ImageSample, ImageSource, decode, decode_mask,
};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Folders inside folders that are looked into; links may go round.
const DEPTH_MAX: usize = 16;
/// The class of pixels without one in the masks of PASCAL VOC.
const VOID: u8 = 255;

/// Images in one sub-folder for each class, as torchvision's `ImageFolder` has them. The names of
/// the sub-folders in order are the classes; the images of a class are the PNG and JPEG files (by
/// suffix) in it and in folders inside it, in order. Files are read and decoded when they are
/// needed; one that is damaged, such as a JPEG file that ends early or has stray bytes, is an error
/// of its sample. Clones share their list of names.
///
/// # Examples
/// ```no_run
/// use lowtide_data::{ImageFolder, ImageSource, Pipeline, Step};
/// let steps = [
///     Step::random_resized_crop([224, 224]),
///     Step::flip_horizontal(),
///     Step::normalise_imagenet(),
/// ];
/// let train = ImageFolder::open("train")?.through(Pipeline::new(steps)?)?;
/// # Ok::<(), lowtide_data::DataError>(())
/// ```
#[derive(Debug, Clone)]
pub struct ImageFolder {
    files: Arc<Files>,
    classes: Arc<[String]>,
    /// Index of the first file of each class.
    starts: Arc<[usize]>,
    reading: Reading,
}

impl ImageFolder {
    /// Lists the classes and files of `folder`.
    ///
    /// # Errors
    /// [`DataError::File`] for a folder that cannot be read, a name that is not UTF-8, a folder
    /// without classes, or a class without images.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self, DataError> {
        let folder = folder.as_ref();
        let (classes, _) = list(folder)?;
        if classes.is_empty() {
            return Err(DataError::damaged(folder, "no folder of a class is in it"));
        }
        let mut files = Files::new(folder);
        let mut starts = Vec::with_capacity(classes.len());
        for class in &classes {
            starts.push(files.len());
            files.add_images(class, DEPTH_MAX)?;
            if files.len() == starts[starts.len() - 1] {
                return Err(DataError::damaged(
                    &folder.join(class),
                    "no PNG or JPEG file is in it",
                ));
            }
        }
        let (classes, starts) = (classes.into(), starts.into());
        Ok(Self { files: Arc::new(files), classes, starts, reading: Reading::default() })
    }

    /// The same images with one channel.
    #[must_use]
    pub fn grey(mut self) -> Self {
        self.reading.channels = 1;
        self
    }

    /// The same images, those of a turned camera turned back, as their EXIF data say.
    #[must_use]
    pub fn upright(mut self) -> Self {
        self.reading.is_upright = true;
        self
    }

    /// The same with other limits for what is decoded.
    #[must_use]
    pub fn with_limits(mut self, limits: ImageLimits) -> Self {
        self.reading.limits = limits;
        self
    }

    /// Names of the classes, in the order of the labels.
    #[must_use]
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// The file of image `index`.
    ///
    /// # Panics
    /// If there is no such image.
    #[must_use]
    pub fn path(&self, index: usize) -> PathBuf {
        self.files.path(index)
    }

    /// The class of image `index`.
    #[must_use]
    pub fn label(&self, index: usize) -> i64 {
        self.starts.partition_point(|&start| start <= index) as i64 - 1
    }
}

impl ImageSource for ImageFolder {
    fn image_count(&self) -> usize {
        self.files.len()
    }

    fn format(&self) -> ImageFormat {
        ImageFormat { channels: self.reading.channels, size: None, ignored_class: None }
    }

    fn read(&self, index: usize, sample: &mut ImageSample) -> Result<(), SampleError> {
        sample.label = self.label(index);
        self.reading.image(&self.files.path(index), sample)
    }

    fn visit_memory(&self, visit: &mut dyn FnMut(*const u8, usize)) {
        self.files.visit_memory(visit);
    }
}

/// Images and masks in two folders, each mask a PNG file with the name of its image but for the
/// suffix. The class of a pixel is its index in the mask's palette, or its grey. Pixels of class
/// 255 do not count, nor do those that a transform brings in from outside: they are labelled -100.
#[derive(Debug, Clone)]
pub struct SegmentationFolder {
    images: Arc<Files>,
    masks: PathBuf,
    classes: u8,
    reading: Reading,
}

impl SegmentationFolder {
    /// Lists the images of a folder and looks for their masks; there are `classes` classes, 1 to
    /// 255.
    ///
    /// # Errors
    /// [`DataError::InvalidOption`] for a number of classes that bytes cannot hold;
    /// [`DataError::File`] for a folder that cannot be read or has no images, or a mask that is not
    /// there.
    pub fn open(
        images: impl AsRef<Path>,
        masks: impl AsRef<Path>,
        classes: usize,
    ) -> Result<Self, DataError> {
        let (folder, masks) = (images.as_ref(), masks.as_ref().to_owned());
        let out_of_range = DataError::InvalidOption { option: "classes", value: classes };
        let classes = u8::try_from(classes).ok().filter(|&count| count > 0).ok_or(out_of_range)?;
        let mut images = Files::new(folder);
        images.add_images("", 1)?;
        if images.len() == 0 {
            return Err(DataError::damaged(folder, "no PNG or JPEG file is in it"));
        }
        let images = Arc::new(images);
        let folder = Self { images, masks, classes, reading: Reading::default() };
        for index in 0..folder.images.len() {
            let path = folder.mask_path(index);
            fs::metadata(&path).map_err(|source| DataError::File { path, source })?;
        }
        Ok(folder)
    }

    /// The same images with one channel.
    #[must_use]
    pub fn grey(mut self) -> Self {
        self.reading.channels = 1;
        self
    }

    /// The same with other limits for what is decoded.
    #[must_use]
    pub fn with_limits(mut self, limits: ImageLimits) -> Self {
        self.reading.limits = limits;
        self
    }

    fn mask_path(&self, index: usize) -> PathBuf {
        let stem = Path::new(self.images.name(index)).with_extension("png");
        self.masks.join(stem)
    }
}

impl ImageSource for SegmentationFolder {
    fn image_count(&self) -> usize {
        self.images.len()
    }

    fn format(&self) -> ImageFormat {
        ImageFormat { channels: self.reading.channels, size: None, ignored_class: Some(VOID) }
    }

    fn read(&self, index: usize, sample: &mut ImageSample) -> Result<(), SampleError> {
        let (path, mask_path) = (self.images.path(index), self.mask_path(index));
        self.reading.image(&path, sample)?;
        read_file(&mask_path, &self.reading.limits, &mut sample.file)?;
        decode_mask(&sample.file, &self.reading.limits, &mut sample.mask)
            .map_err(|source| DataError::damaged(&mask_path, source))?;
        let [image, mask] = [sample.image.size(), sample.mask.size()];
        if image != mask {
            return Err(DataError::damaged(
                &path,
                ImageError::MaskSize { image, mask, path: mask_path },
            )
            .into());
        }
        let is_class = |&value: &u8| value < self.classes || value == VOID;
        match sample.mask.bytes().iter().find(|value| !is_class(value)) {
            Some(&class) => {
                let source =
                    ImageError::Class { class: class.into(), classes: self.classes.into() };
                Err(DataError::damaged(&mask_path, source).into())
            }
            None => Ok(()),
        }
    }

    fn visit_memory(&self, visit: &mut dyn FnMut(*const u8, usize)) {
        self.images.visit_memory(visit);
    }
}

/// How files are read.
#[derive(Debug, Clone, Copy)]
struct Reading {
    channels: usize,
    is_upright: bool,
    limits: ImageLimits,
}

impl Default for Reading {
    fn default() -> Self {
        Self { channels: 3, is_upright: false, limits: ImageLimits::default() }
    }
}

impl Reading {
    fn image(&self, path: &Path, sample: &mut ImageSample) -> Result<(), SampleError> {
        read_file(path, &self.limits, &mut sample.file)?;
        decode(&sample.file, self.channels, self.is_upright, &self.limits, &mut sample.image)
            .map_err(|source| DataError::damaged(path, source).into())
    }
}

/// Reads a whole file into `out`, up to the limit.
fn read_file(path: &Path, limits: &ImageLimits, out: &mut Vec<u8>) -> Result<(), DataError> {
    out.clear();
    let failed = |source| DataError::File { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    file.take(limits.file_bytes_max.saturating_add(1)).read_to_end(out).map_err(failed)?;
    if out.len() as u64 > limits.file_bytes_max {
        return Err(DataError::damaged(path, "the file is over the limit"));
    }
    Ok(())
}

/// Names of files in a folder, one after the other in one string.
#[derive(Debug)]
struct Files {
    folder: PathBuf,
    names: String,
    ends: Vec<usize>,
}

impl Files {
    fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), names: String::new(), ends: Vec::new() }
    }

    fn len(&self) -> usize {
        self.ends.len()
    }

    fn visit_memory(&self, visit: &mut dyn FnMut(*const u8, usize)) {
        visit_slice(self.names.as_bytes(), visit);
        visit_slice(&self.ends, visit);
    }

    fn name(&self, index: usize) -> &str {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.names[start..self.ends[index]]
    }

    fn path(&self, index: usize) -> PathBuf {
        self.folder.join(self.name(index))
    }

    /// Adds the images of a folder inside, first those in it and then those of its own folders.
    fn add_images(&mut self, inside: &str, depth: usize) -> Result<(), DataError> {
        let (folders, files) = list(&self.folder.join(inside))?;
        let join = |name: &str| match inside {
            "" => name.to_owned(),
            _ => format!("{inside}/{name}"),
        };
        for name in files.iter().filter(|name| has_suffix_of_image(name)) {
            self.names.push_str(&join(name));
            self.ends.push(self.names.len());
        }
        match depth.checked_sub(1) {
            Some(0) | None => Ok(()),
            Some(depth) => folders.iter().try_for_each(|name| self.add_images(&join(name), depth)),
        }
    }
}

fn has_suffix_of_image(name: &str) -> bool {
    let suffix = name.rsplit_once('.').map_or("", |(_, suffix)| suffix);
    ["png", "jpg", "jpeg"].iter().any(|known| suffix.eq_ignore_ascii_case(known))
}

/// The names of folders and of files in a folder, each in order.
fn list(folder: &Path) -> Result<(Vec<String>, Vec<String>), DataError> {
    let failed = |source| DataError::File { path: folder.to_owned(), source };
    let (mut folders, mut files) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
            return Err(DataError::damaged(&path, "the name is not UTF-8"));
        };
        // Links are followed; one that leads nowhere is a file, and fails when it is read.
        let is_folder = fs::metadata(&path).is_ok_and(|found| found.is_dir());
        if is_folder { &mut folders } else { &mut files }.push(name.to_owned());
    }
    folders.sort_unstable();
    files.sort_unstable();
    Ok((folders, files))
}
