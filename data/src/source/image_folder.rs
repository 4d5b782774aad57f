//! Folders of image files: one folder per class, or one folder of images and one of masks.

use crate::dataset::visit_slice;
use crate::error::{DataError, SampleError};
use crate::image::{
    DecodeOptions, ImageError, ImageFormat, ImageLimits, ImageSample, ImageSource, decode,
    decode_mask,
};
use lowtide_allocator::files::open_input;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Maximum depth of nested folders. The limit ends a cycle of links.
const DEPTH_MAX: usize = 16;
/// The class of unlabelled pixels in the masks of PASCAL VOC.
const VOID: u8 = 255;

/// Images in one folder per class, in the layout of torchvision's `ImageFolder`.
///
/// The classes are the names of the folders, in sorted order. The images of a class are the files
/// with a suffix of PNG or JPEG in the folder of the class and in nested folders, in sorted order.
/// A file is read and decoded when its sample is read. A damaged file, such as a JPEG file that
/// ends early or has stray bytes, is an error of its sample. Clones share the list of names.
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
    options: DecodeOptions,
}

impl ImageFolder {
    /// Lists the classes and files of `folder`.
    ///
    /// # Errors
    /// [`DataError::File`] for a folder that cannot be read, a name that is not UTF-8, a folder
    /// without classes, or a class without images.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self, DataError> {
        let folder = folder.as_ref();
        let classes = Listing::read(folder)?.folders;
        if classes.is_empty() {
            return Err(DataError::damaged(folder, "the folder contains no folder of a class"));
        }
        let mut files = Files::new(folder);
        let mut starts = Vec::with_capacity(classes.len());
        for class in &classes {
            starts.push(files.len());
            files.add_images(class, DEPTH_MAX)?;
            if files.len() == starts[starts.len() - 1] {
                return Err(DataError::damaged(
                    &folder.join(class),
                    "the folder contains no PNG or JPEG file",
                ));
            }
        }
        let (classes, starts) = (classes.into(), starts.into());
        let options = DecodeOptions::default();
        Ok(Self { files: Arc::new(files), classes, starts, options })
    }

    /// Decodes images to one channel.
    #[must_use]
    pub fn grey(mut self) -> Self {
        self.options.channels = 1;
        self
    }

    /// Rotates images upright if their EXIF data say that the camera was rotated.
    #[must_use]
    pub fn upright(mut self) -> Self {
        self.options.is_upright = true;
        self
    }

    /// Changes the limits of decoding.
    #[must_use]
    pub fn with_limits(mut self, limits: ImageLimits) -> Self {
        self.options.limits = limits;
        self
    }

    /// Names of the classes, in the order of the labels.
    #[must_use]
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// The path of image `index`.
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
        ImageFormat { channels: self.options.channels, size: None, ignored_class: None }
    }

    fn read(&self, index: usize, sample: &mut ImageSample) -> Result<(), SampleError> {
        sample.label = self.label(index);
        read_image(&self.files.path(index), &self.options, sample)
    }

    fn visit_memory(&self, visit: &mut dyn FnMut(*const u8, usize)) {
        self.files.visit_memory(visit);
    }
}

/// Images and masks for segmentation, in two folders.
///
/// A mask is a PNG file with the name of its image and the suffix `png`. The class of a pixel is
/// its index in the mask's palette, or its grey value. Two kinds of pixels are ignored and get the
/// label -100: pixels of class 255, and pixels that a transform brings in from outside the image.
#[derive(Debug, Clone)]
pub struct SegmentationFolder {
    images: Arc<Files>,
    masks: PathBuf,
    classes: u8,
    options: DecodeOptions,
}

impl SegmentationFolder {
    /// Lists the images of a folder and checks that each has a mask. `classes` is the number of
    /// classes, from 1 to 255.
    ///
    /// # Errors
    /// [`DataError::InvalidOption`] if `classes` is out of range; [`DataError::File`] for a folder
    /// that cannot be read or has no images, or for a missing mask.
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
            return Err(DataError::damaged(folder, "the folder contains no PNG or JPEG file"));
        }
        let images = Arc::new(images);
        let folder = Self { images, masks, classes, options: DecodeOptions::default() };
        for index in 0..folder.images.len() {
            let path = folder.mask_path(index);
            fs::metadata(&path).map_err(|source| DataError::File { path, source })?;
        }
        Ok(folder)
    }

    /// Decodes images to one channel.
    #[must_use]
    pub fn grey(mut self) -> Self {
        self.options.channels = 1;
        self
    }

    /// Changes the limits of decoding.
    #[must_use]
    pub fn with_limits(mut self, limits: ImageLimits) -> Self {
        self.options.limits = limits;
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
        ImageFormat { channels: self.options.channels, size: None, ignored_class: Some(VOID) }
    }

    fn read(&self, index: usize, sample: &mut ImageSample) -> Result<(), SampleError> {
        let (path, mask_path) = (self.images.path(index), self.mask_path(index));
        read_image(&path, &self.options, sample)?;
        read_file(&mask_path, &self.options.limits, &mut sample.file)?;
        decode_mask(&sample.file, &self.options.limits, &mut sample.mask)
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

fn read_image(
    path: &Path,
    options: &DecodeOptions,
    sample: &mut ImageSample,
) -> Result<(), SampleError> {
    read_file(path, &options.limits, &mut sample.file)?;
    decode(&sample.file, options, &mut sample.image)
        .map_err(|source| DataError::damaged(path, source).into())
}

/// Reads a whole file into `out`, up to the limit.
fn read_file(path: &Path, limits: &ImageLimits, out: &mut Vec<u8>) -> Result<(), DataError> {
    out.clear();
    let failed = |source| DataError::File { path: path.to_owned(), source };
    let file = open_input(path).map_err(failed)?;
    file.take(limits.file_bytes_max.saturating_add(1)).read_to_end(out).map_err(failed)?;
    if out.len() as u64 > limits.file_bytes_max {
        return Err(DataError::damaged(path, "the file is over the limit"));
    }
    Ok(())
}

/// The names of files in a folder, concatenated in one string.
#[derive(Debug)]
struct Files {
    folder: PathBuf,
    names: String,
    /// The end of each name in `names`.
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

    /// Adds the images of `folder`, a path below the root folder, and then the images of its
    /// subfolders.
    fn add_images(&mut self, folder: &str, depth: usize) -> Result<(), DataError> {
        let Listing { folders, files } = Listing::read(&self.folder.join(folder))?;
        let join = |name: &str| {
            if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") }
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

/// The names in a folder, sorted.
struct Listing {
    folders: Vec<String>,
    files: Vec<String>,
}

impl Listing {
    fn read(folder: &Path) -> Result<Self, DataError> {
        let failed = |source| DataError::File { path: folder.to_owned(), source };
        let (mut folders, mut files) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
                return Err(DataError::damaged(&path, "the name is not UTF-8"));
            };
            // Links are followed. A link without a target counts as a file, and fails when it is
            // read.
            let is_folder = fs::metadata(&path).is_ok_and(|found| found.is_dir());
            if is_folder { &mut folders } else { &mut files }.push(name.to_owned());
        }
        folders.sort_unstable();
        files.sort_unstable();
        Ok(Self { folders, files })
    }
}
