//! Images with a class each, in memory: of IDX files, or of any numbers.

use crate::dataset::{Dataset, SampleError, SampleSlot, visit_slice};
use crate::element::{ElementType, Field};
use crate::error::DataError;
#[cfg(feature = "images")]
use crate::image::{ImageFormat, ImageSample, ImageSource};
use flate2::read::MultiGzDecoder;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};
use std::path::Path;
use std::sync::Arc;

/// Pixels that are read into memory at most, 4 GiB: a small packed file may say that it has more.
const PIXELS_MAX: u64 = 1 << 32;

/// Images and their labels. Fields: `images`, f32 `[C, H, W]` from 0 to 1, and `labels`, i64 `[]`,
/// or `[H, W]` after [`Images::with_pixel_labels`]. Clones share their pixels.
#[derive(Debug, Clone)]
pub struct Images {
    pixels: Arc<Vec<u8>>,
    labels: Arc<Vec<i64>>,
    /// Brightness of a pixel that is wholly bright.
    bright: u8,
    /// Channels, height and width as stored.
    stored: [usize; 3],
    /// The same as written into batches.
    shape: [usize; 3],
    labels_pixels: bool,
    classes: usize,
    fields: Vec<Field>,
}

impl Images {
    /// Images of bytes from 0 to `bright`, one after the other in the order of `labels`, from 0 on.
    ///
    /// # Errors
    /// [`DataError::InvalidOption`] for a side of 0, [`DataError::FieldLength`] unless there are as
    /// many pixels as `shape` says.
    pub fn new(
        pixels: Vec<u8>,
        shape: [usize; 3],
        bright: u8,
        labels: Vec<i64>,
    ) -> Result<Self, DataError> {
        if shape.contains(&0) {
            return Err(DataError::InvalidOption { option: "side", value: 0 });
        }
        let expected = shape.iter().try_fold(labels.len(), |count, &side| count.checked_mul(side));
        if expected != Some(pixels.len()) {
            let expected = expected.unwrap_or(usize::MAX);
            return Err(DataError::FieldLength {
                field: "images".into(),
                expected,
                actual: pixels.len(),
            });
        }
        let classes =
            labels.iter().max().map_or(0, |&label| usize::try_from(label + 1).unwrap_or(0));
        let (pixels, labels) = (Arc::new(pixels), Arc::new(labels));
        let (stored, labels_pixels) = (shape, false);
        let mut images = Self {
            pixels,
            labels,
            bright,
            stored,
            shape,
            labels_pixels,
            classes,
            fields: Vec::new(),
        };
        images.set_fields();
        Ok(images)
    }

    /// The images and labels of two files in the IDX format of MNIST (LeCun, Cortes and Burges,
    /// "The MNIST database of handwritten digits"), packed by gzip or not.
    ///
    /// # Errors
    /// [`DataError::File`] for a file that cannot be read, is no IDX file of bytes, ends early, or
    /// has images without pixels;
    /// [`DataError::FieldLength`] where one has more samples than the other.
    pub fn idx(images: &Path, labels: &Path) -> Result<Self, DataError> {
        let (dims, pixels) = read_idx(images, 3)?;
        let (_, labels) = read_idx(labels, 1)?;
        let labels = labels.into_iter().map(i64::from).collect();
        Images::new(pixels, [1, dims[1], dims[2]], u8::MAX, labels)
    }

    /// Images to train on and to test on, of a folder with MNIST's four files under their usual
    /// names, `train-images-idx3-ubyte` and so on, with `.gz` or without.
    ///
    /// # Errors
    /// Those of [`Images::idx`].
    pub fn mnist(folder: &Path) -> Result<(Self, Self), DataError> {
        let file = |name: &str| {
            let packed = folder.join(format!("{name}.gz"));
            if packed.exists() { packed } else { folder.join(name) }
        };
        let part = |name: &str| {
            let [images, labels] = ["images-idx3", "labels-idx1"];
            Images::idx(
                &file(&format!("{name}-{images}-ubyte")),
                &file(&format!("{name}-{labels}-ubyte")),
            )
        };
        let (train, mut test) = (part("train")?, part("t10k")?);
        test.classes = test.classes.max(train.classes);
        Ok((train, test))
    }

    /// The same images, each pixel repeated or left out to give this height and width, and the
    /// first channel repeated where there are to be more.
    #[must_use]
    pub fn resized(mut self, shape: [usize; 3]) -> Self {
        self.shape = shape;
        self.set_fields();
        self
    }

    /// The same with a label for each pixel: 0 where it is dark, 1 and the image's label where it
    /// is at least half bright. There is one class more then.
    #[must_use]
    pub fn with_pixel_labels(mut self) -> Self {
        if !self.labels_pixels {
            (self.labels_pixels, self.classes) = (true, self.classes + 1);
        }
        self.set_fields();
        self
    }

    /// The same with this number of classes, for a data set of which not every class need occur.
    #[must_use]
    pub(crate) fn with_classes(mut self, classes: usize) -> Self {
        self.classes = classes;
        self
    }

    /// Channels, height and width.
    #[must_use]
    pub fn shape(&self) -> [usize; 3] {
        self.shape
    }

    /// How many classes there are.
    #[must_use]
    pub fn classes(&self) -> usize {
        self.classes
    }

    fn set_fields(&mut self) {
        let label_shape: &[usize] = if self.labels_pixels { &self.shape[1..] } else { &[] };
        self.fields = vec![
            Field::new("images", ElementType::F32, &self.shape),
            Field::new("labels", ElementType::I64, label_shape),
        ];
    }
}

/// The images in their stored size, with the channels that [`Images::resized`] says.
#[cfg(feature = "images")]
impl ImageSource for Images {
    fn image_count(&self) -> usize {
        self.labels.len()
    }

    fn format(&self) -> ImageFormat {
        let [_, height, width] = self.stored;
        ImageFormat { channels: self.shape[0], size: Some([height, width]), ignored_class: None }
    }

    fn read(&self, index: usize, sample: &mut ImageSample) -> Result<(), SampleError> {
        let [stored, height, width] = self.stored;
        let len = stored * height * width;
        let planes = &self.pixels[index * len..][..len];
        let channels = self.shape[0];
        let bytes = sample.image.set_shape(channels, height, width);
        for (at, pixel) in bytes.chunks_exact_mut(channels.max(1)).enumerate() {
            for (channel, value) in pixel.iter_mut().enumerate() {
                let plane = if channel < stored { channel } else { 0 };
                let stored = u32::from(planes[plane * height * width + at]);
                // From 0 to `bright` as stored, to 255 here.
                *value = (stored * 255 / u32::from(self.bright.max(1))).min(255) as u8;
            }
        }
        sample.label = self.labels[index];
        Ok(())
    }

    fn visit_memory(&self, visit: &mut dyn FnMut(*const u8, usize)) {
        Dataset::visit_memory(self, visit);
    }
}

impl Dataset for Images {
    fn len(&self) -> usize {
        self.labels.len()
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn write(&self, index: usize, slot: &mut SampleSlot<'_>) -> Result<(), SampleError> {
        let ([channels, height, width], [_, rows, columns]) = (self.stored, self.shape);
        let image = &self.pixels[index * channels * height * width..][..channels * height * width];
        let of_row = |row: usize| row * height / rows * width;
        let plane = rows * columns;
        let images = slot.values::<f32>(0);
        for (channel, out) in images.chunks_mut(plane.max(1)).enumerate() {
            let from = &image[if channel < channels { channel * height * width } else { 0 }..];
            for (at, value) in out.iter_mut().enumerate() {
                let (row, column) = (at / columns, at % columns);
                let pixel = from[of_row(row) + column * width / columns];
                *value = f32::from(pixel) / f32::from(self.bright);
            }
        }
        let label = self.labels[index];
        if self.labels_pixels {
            for (at, class) in slot.values::<i64>(1).iter_mut().enumerate() {
                let (row, column) = (at / columns, at % columns);
                let pixel = image[of_row(row) + column * width / columns];
                *class = if pixel >= self.bright.div_ceil(2) { 1 + label } else { 0 };
            }
        } else {
            slot.values::<i64>(1)[0] = label;
        }
        Ok(())
    }

    fn visit_memory(&self, visit: &mut dyn FnMut(*const u8, usize)) {
        visit_slice(&self.pixels, visit);
        visit_slice(&self.labels, visit);
    }
}

/// Sizes and bytes of an IDX file of so many dimensions: two zeros, the type (8 for bytes), the
/// number of dimensions, each size in four bytes, the most significant one first, and the elements.
fn read_idx(path: &Path, rank: usize) -> Result<(Vec<usize>, Vec<u8>), DataError> {
    let wrong = |text: &str| io::Error::new(ErrorKind::InvalidData, text.to_owned());
    let read = || {
        let mut file = BufReader::new(File::open(path)?);
        let is_packed = io::BufRead::fill_buf(&mut file)?.starts_with(&[0x1f, 0x8b]);
        let mut input: Box<dyn Read> =
            if is_packed { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) };
        let mut head = [0; 4];
        input.read_exact(&mut head)?;
        if head[..3] != [0, 0, 8] || usize::from(head[3]) != rank {
            return Err(wrong("it is no IDX file of bytes with as many dimensions"));
        }
        let mut words = vec![0; 4 * rank];
        input.read_exact(&mut words)?;
        let size = |word: &[u8]| u32::from_be_bytes([word[0], word[1], word[2], word[3]]);
        let sizes: Vec<usize> = words.chunks(4).map(|word| size(word) as usize).collect();
        if sizes[1..].contains(&0) {
            return Err(wrong("its images have no pixels"));
        }
        let count = sizes.iter().try_fold(1_u64, |count, &side| count.checked_mul(side as u64));
        let count = count.filter(|&count| count <= PIXELS_MAX);
        let count = count.ok_or_else(|| wrong("it has more than 4 GiB of pixels"))?;
        let mut bytes = Vec::new();
        // Grows with what is there: a damaged size takes no memory.
        input.take(count).read_to_end(&mut bytes)?;
        if bytes.len() as u64 != count {
            return Err(wrong("it ends before its last sample"));
        }
        Ok((sizes, bytes))
    };
    read().map_err(|source| DataError::File { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Batch;
    use crate::loader::{Loader, LoaderOptions};
    use crate::sampler::Sequential;
    use std::fs;

    fn first<D: Dataset + 'static>(dataset: D) -> Batch {
        let options = LoaderOptions { batch_size: 2, ..Default::default() };
        let loader = Loader::with_sampler(dataset, Sequential, options).expect("options");
        loader.epoch(0).next().expect("a batch").expect("readable")
    }

    #[test]
    fn images_are_enlarged_and_their_pixels_labelled() {
        let images = Images::new(vec![0, 4, 2, 1], [1, 2, 2], 4, vec![3]).expect("four pixels");
        assert_eq!((images.classes(), images.shape()), (4, [1, 2, 2]));
        let batch = first(images.resized([3, 4, 4]).with_pixel_labels());
        let field = batch.field("images").expect("there");
        assert_eq!(field.shape(), [1, 3, 4, 4]);
        let values = field.values::<f32>().expect("f32").to_vec();
        assert_eq!(values[..8], [0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0]);
        assert_eq!((values[8], values[10], &values[..16]), (0.5, 0.25, &values[16..32]));
        let labels = batch.field("labels").expect("there");
        assert_eq!(labels.shape(), [1, 4, 4]);
        let labels = labels.values::<i64>().expect("i64").to_vec();
        assert_eq!((labels[0], labels[2], labels[8], labels[10]), (0, 4, 4, 0));
    }

    #[test]
    fn idx_files_are_read_packed_or_not_and_damaged_ones_refused() {
        let folder = tempfile();
        let write = |name: &str, bytes: &[u8]| fs::write(folder.join(name), bytes).expect("room");
        let sizes = |sizes: &[u32]| sizes.iter().flat_map(|size| size.to_be_bytes()).collect();
        let images: Vec<u8> =
            [&[0, 0, 8, 3][..], &sizes(&[2, 1, 2]) as &Vec<u8>, &[0, 255, 51, 0]].concat();
        let labels: Vec<u8> = [&[0, 0, 8, 1][..], &sizes(&[2]) as &Vec<u8>, &[1, 0]].concat();
        for part in ["train", "t10k"] {
            write(&format!("{part}-images-idx3-ubyte"), &images);
            let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            io::Write::write_all(&mut packed, &labels).expect("memory");
            write(&format!("{part}-labels-idx1-ubyte.gz"), &packed.finish().expect("memory"));
        }
        let (train, test) = Images::mnist(&folder).expect("whole");
        assert_eq!((train.len(), test.classes(), train.shape()), (2, 2, [1, 1, 2]));
        let batch = first(train);
        let values = batch.field("images").expect("there").values::<f32>().expect("f32").to_vec();
        assert_eq!(values, [0.0, 1.0, 0.2, 0.0]);
        for (bytes, word) in [
            (&images[..images.len() - 1], "ends before"),
            (&labels[..], "no IDX"),
            (&[0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 2], "no pixels"),
            (&[0, 0, 8, 3, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255], "4 GiB"),
        ] {
            write("damaged", bytes);
            let path = folder.join("damaged");
            let error = Images::idx(&path, &path).expect_err("damaged");
            let text = format!("{error}: {}", std::error::Error::source(&error).expect("a cause"));
            assert!(text.contains("damaged") && text.contains(word), "{text}");
        }
        fs::remove_dir_all(folder).expect("it is there");
    }

    #[test]
    fn images_without_pixels_are_refused() {
        // Resized, they would have pixels that are nowhere.
        for shape in [[0, 1, 1], [1, 0, 1], [1, 1, 0]] {
            let error = Images::new(Vec::new(), shape, 255, vec![0]).expect_err("no pixels");
            assert!(matches!(error, DataError::InvalidOption { option: "side", value: 0 }));
        }
    }

    fn tempfile() -> std::path::PathBuf {
        let folder = std::env::temp_dir().join(format!("lowtide-idx-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        folder
    }
}
