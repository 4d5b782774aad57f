//! Images with classes in memory, from IDX files or from given pixels.

use crate::dataset::{Dataset, SampleSlot, visit_slice};
use crate::element::{ElementType, Field};
use crate::error::{DataError, SampleError};
#[cfg(feature = "images")]
use crate::image::{ImageFormat, ImageSample, ImageSource};
use flate2::read::MultiGzDecoder;
use lowtide_allocator::files::open_input;
use std::io::{self, BufReader, ErrorKind, Read};
use std::path::Path;
use std::sync::Arc;

/// Maximum number of pixels of a file, 4 GiB. A small compressed file may claim more.
const PIXELS_MAX: u64 = 1 << 32;

/// Images and their labels. The fields are `images`, f32 `[C, H, W]` from 0 to 1, and `labels`, i64
/// `[]`, or `[H, W]` after [`Images::with_pixel_labels`]. Clones share the pixels.
#[derive(Debug, Clone)]
pub struct Images {
    pixels: Arc<Vec<u8>>,
    labels: Arc<Vec<i64>>,
    /// The value of a pixel with full brightness.
    pixel_max: u8,
    /// Channels, height and width of the stored images.
    stored: [usize; 3],
    /// Channels, height and width of the images in batches.
    shape: [usize; 3],
    has_pixel_labels: bool,
    classes: usize,
    fields: Vec<Field>,
}

impl Images {
    /// The images of `pixels` with channels, height and width `shape`, concatenated in the order of
    /// `labels`. A pixel is a byte from 0 to `pixel_max`. Labels are numbers from 0 on.
    ///
    /// # Errors
    /// [`DataError::InvalidOption`] for a side of 0; [`DataError::FieldLength`] if `pixels` does
    /// not have one image for each label.
    pub fn new(
        pixels: Vec<u8>,
        shape: [usize; 3],
        pixel_max: u8,
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
        let mut images = Self {
            pixels: Arc::new(pixels),
            labels: Arc::new(labels),
            pixel_max,
            stored: shape,
            shape,
            has_pixel_labels: false,
            classes,
            fields: Vec::new(),
        };
        images.set_fields();
        Ok(images)
    }

    /// Reads the images and the labels of two files in the IDX format of MNIST (LeCun, Cortes and
    /// Burges, "The MNIST database of handwritten digits"). A file may be compressed by gzip.
    ///
    /// # Errors
    /// [`DataError::File`] for a file that cannot be read, is not an IDX file of bytes, ends early,
    /// or has images without pixels; [`DataError::FieldLength`] if the files have different numbers
    /// of samples.
    pub fn idx(images: &Path, labels: &Path) -> Result<Self, DataError> {
        let images = read_idx(images, 3)?;
        let labels = read_idx(labels, 1)?.bytes.into_iter().map(i64::from).collect();
        Images::new(images.bytes, [1, images.sizes[1], images.sizes[2]], u8::MAX, labels)
    }

    /// Reads the training and test images of MNIST from its four files in `folder`. The files have
    /// their usual names, such as `train-images-idx3-ubyte`, with or without `.gz`.
    ///
    /// # Errors
    /// As for [`Images::idx`].
    pub fn mnist(folder: &Path) -> Result<(Self, Self), DataError> {
        let file = |name: &str| {
            let compressed = folder.join(format!("{name}.gz"));
            if compressed.exists() { compressed } else { folder.join(name) }
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

    /// Resizes images to channels, height and width `shape`. Pixels are repeated or left out, and
    /// additional channels repeat the first channel.
    #[must_use]
    pub fn resized(mut self, shape: [usize; 3]) -> Self {
        self.shape = shape;
        self.set_fields();
        self
    }

    /// Labels each pixel and adds a class: a pixel of at least half brightness gets the label of
    /// the image plus 1, and other pixels get 0.
    #[must_use]
    pub fn with_pixel_labels(mut self) -> Self {
        if !self.has_pixel_labels {
            (self.has_pixel_labels, self.classes) = (true, self.classes + 1);
        }
        self.set_fields();
        self
    }

    /// Sets the number of classes, for a data set in which a class may have no sample.
    #[must_use]
    pub(crate) fn with_classes(mut self, classes: usize) -> Self {
        self.classes = classes;
        self
    }

    /// Channels, height and width of the images in batches.
    #[must_use]
    pub fn shape(&self) -> [usize; 3] {
        self.shape
    }

    /// Number of classes.
    #[must_use]
    pub fn classes(&self) -> usize {
        self.classes
    }

    fn set_fields(&mut self) {
        let label_shape: &[usize] = if self.has_pixel_labels { &self.shape[1..] } else { &[] };
        self.fields = vec![
            Field::new("images", ElementType::F32, &self.shape),
            Field::new("labels", ElementType::I64, label_shape),
        ];
    }
}

/// The images in their stored size, with the channels of [`Images::resized`].
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
                // Scales the stored range, 0 to `pixel_max`, to 0 to 255.
                *value = (stored * 255 / u32::from(self.pixel_max.max(1))).min(255) as u8;
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
                *value = f32::from(pixel) / f32::from(self.pixel_max);
            }
        }
        let label = self.labels[index];
        if self.has_pixel_labels {
            for (at, class) in slot.values::<i64>(1).iter_mut().enumerate() {
                let (row, column) = (at / columns, at % columns);
                let pixel = image[of_row(row) + column * width / columns];
                *class = if pixel >= self.pixel_max.div_ceil(2) { 1 + label } else { 0 };
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

/// The contents of an IDX file.
struct Idx {
    /// The size of each dimension.
    sizes: Vec<usize>,
    bytes: Vec<u8>,
}

/// Reads an IDX file of bytes with `rank` dimensions: two zeros, the type (8 for bytes), the number
/// of dimensions, each size in four big-endian bytes, and the elements.
fn read_idx(path: &Path, rank: usize) -> Result<Idx, DataError> {
    let wrong = |text: String| io::Error::new(ErrorKind::InvalidData, text);
    let read = || {
        let mut file = BufReader::new(open_input(path)?);
        let is_compressed = io::BufRead::fill_buf(&mut file)?.starts_with(&[0x1f, 0x8b]);
        let mut input: Box<dyn Read> =
            if is_compressed { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) };
        let mut head = [0; 4];
        input.read_exact(&mut head)?;
        if head[..3] != [0, 0, 8] || usize::from(head[3]) != rank {
            let text = format!("the file is not an IDX file of bytes with {rank} dimensions");
            return Err(wrong(text));
        }
        let mut words = vec![0; 4 * rank];
        input.read_exact(&mut words)?;
        let size = |word: &[u8]| u32::from_be_bytes([word[0], word[1], word[2], word[3]]);
        let sizes: Vec<usize> = words.chunks(4).map(|word| size(word) as usize).collect();
        if sizes[1..].contains(&0) {
            return Err(wrong("the images have no pixels".to_owned()));
        }
        let count = sizes.iter().try_fold(1_u64, |count, &side| count.checked_mul(side as u64));
        let count = count.filter(|&count| count <= PIXELS_MAX);
        let count =
            count.ok_or_else(|| wrong("the file has more than 4 GiB of pixels".to_owned()))?;
        let mut bytes = Vec::new();
        // The vector grows with the bytes that are read, so a damaged size allocates nothing.
        input.take(count).read_to_end(&mut bytes)?;
        if bytes.len() as u64 != count {
            return Err(wrong("the file ends before its last sample".to_owned()));
        }
        Ok(Idx { sizes, bytes })
    };
    read().map_err(|source| DataError::File { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Batch;
    use crate::loader::Loader;
    use crate::options::LoaderOptions;
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
    fn idx_files_are_read_compressed_or_not_and_damaged_ones_refused() {
        let folder = tempfile();
        let write = |name: &str, bytes: &[u8]| fs::write(folder.join(name), bytes).expect("room");
        let sizes = |sizes: &[u32]| sizes.iter().flat_map(|size| size.to_be_bytes()).collect();
        let images: Vec<u8> =
            [&[0, 0, 8, 3][..], &sizes(&[2, 1, 2]) as &Vec<u8>, &[0, 255, 51, 0]].concat();
        let labels: Vec<u8> = [&[0, 0, 8, 1][..], &sizes(&[2]) as &Vec<u8>, &[1, 0]].concat();
        for part in ["train", "t10k"] {
            write(&format!("{part}-images-idx3-ubyte"), &images);
            let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            io::Write::write_all(&mut gzip, &labels).expect("memory");
            write(&format!("{part}-labels-idx1-ubyte.gz"), &gzip.finish().expect("memory"));
        }
        let (train, test) = Images::mnist(&folder).expect("whole");
        assert_eq!((train.len(), test.classes(), train.shape()), (2, 2, [1, 1, 2]));
        let batch = first(train);
        let values = batch.field("images").expect("there").values::<f32>().expect("f32").to_vec();
        assert_eq!(values, [0.0, 1.0, 0.2, 0.0]);
        for (bytes, word) in [
            (&images[..images.len() - 1], "ends before"),
            (&labels[..], "not an IDX"),
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
        // Resizing would read pixels that do not exist.
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
