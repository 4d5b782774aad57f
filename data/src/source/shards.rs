//! Images with classes in tar archives, in the layout of WebDataset.

use crate::dataset::visit_slice;
use crate::error::{DataError, SampleError};
use crate::image::{DecodeOptions, ImageFormat, ImageLimits, ImageSample, ImageSource, decode};
use crate::source::map::Map;
use crate::source::tar::{Member, TarError, members};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const IMAGE_SUFFIXES: &[&str] = &["jpg", "jpeg", "png"];

/// Images and classes of tar archives in the layout of WebDataset.
///
/// The members of a sample have the same name up to the first dot after the last slash, and the
/// suffix after this dot states their kind. A sample has one image, `jpg`, `jpeg` or `png`, and one
/// class, an integer as text in `cls`. Other members are ignored.
///
/// Archives are mapped into memory and must not be truncated while they are in use. Opening
/// archives makes an index of about 30 bytes per sample, so that samples can be read in any order.
/// Clones share the index.
#[derive(Debug, Clone)]
pub struct TarShards {
    archives: Arc<[Archive]>,
    /// The samples, in the order of the archives and of the members in each archive.
    samples: Arc<[Sample]>,
    options: DecodeOptions,
}

#[derive(Debug)]
struct Archive {
    path: PathBuf,
    map: Map,
}

#[derive(Debug)]
struct Sample {
    /// Index of the archive.
    archive: u32,
    label: u32,
    /// The bytes of the image in the archive.
    image: Range<usize>,
}

impl TarShards {
    /// Reads the index of archives.
    ///
    /// # Errors
    /// [`DataError::File`] with a [`TarError`] for an archive that is damaged or has a link, a name
    /// that leads outside, or a sample without an image or a class.
    pub fn open<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> Result<Self, DataError> {
        let (mut archives, mut samples) = (Vec::new(), Vec::new());
        for path in paths {
            let path = path.as_ref();
            let map = Map::open(path)?;
            let archive = archives.len() as u32;
            let found = members(map.bytes())
                .and_then(|members| samples_of(archive, map.bytes(), &members))
                .map_err(|source| DataError::damaged(path, source))?;
            samples.extend(found);
            archives.push(Archive { path: path.to_owned(), map });
        }
        let (archives, samples) = (archives.into(), samples.into());
        Ok(Self { archives, samples, options: DecodeOptions::default() })
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

    /// Number of classes: one more than the largest class.
    #[must_use]
    pub fn classes(&self) -> usize {
        self.samples.iter().map(|sample| sample.label as usize + 1).max().unwrap_or(0)
    }
}

impl ImageSource for TarShards {
    fn image_count(&self) -> usize {
        self.samples.len()
    }

    fn format(&self) -> ImageFormat {
        ImageFormat { channels: self.options.channels, size: None, ignored_class: None }
    }

    fn read(&self, index: usize, out: &mut ImageSample) -> Result<(), SampleError> {
        let Sample { archive, label, image } = &self.samples[index];
        let Archive { path, map } = &self.archives[*archive as usize];
        out.label = i64::from(*label);
        // Decoding reads the mapping directly, without a copy of the file.
        decode(&map.bytes()[image.clone()], &self.options, &mut out.image)
            .map_err(|source| DataError::damaged(path, source).into())
    }

    fn visit_memory(&self, visit: &mut dyn FnMut(*const u8, usize)) {
        visit_slice(&self.samples, visit);
    }
}

/// The members of one sample.
#[derive(Default)]
struct Parts<'a> {
    /// The common name of the members.
    key: &'a str,
    image: Option<&'a Member>,
    class: Option<&'a Member>,
}

/// The samples of an archive, in the order of their first members.
fn samples_of(archive: u32, bytes: &[u8], members: &[Member]) -> Result<Vec<Sample>, TarError> {
    let mut positions: BTreeMap<&str, usize> = BTreeMap::new();
    let mut samples: Vec<Parts<'_>> = Vec::new();
    for member in members {
        let folder_end = member.name.rfind('/').map_or(0, |slash| slash + 1);
        let Some(dot) = member.name[folder_end..].find('.') else { continue };
        let (key, suffix) = member.name.split_at(folder_end + dot);
        let suffix = suffix[1..].to_ascii_lowercase();
        let is_image = IMAGE_SUFFIXES.contains(&suffix.as_str());
        if !is_image && suffix != "cls" {
            continue;
        }
        let position = *positions.entry(key).or_insert_with(|| {
            samples.push(Parts { key, ..Parts::default() });
            samples.len() - 1
        });
        let Parts { image, class, .. } = &mut samples[position];
        let part = if is_image { image } else { class };
        if part.replace(member).is_some() {
            return Err(TarError::Part { key: key.to_owned(), suffix });
        }
    }
    let sample = |Parts { key, image, class }: Parts<'_>| {
        let missing = |suffix: &str| TarError::Part { key: key.to_owned(), suffix: suffix.into() };
        let image = image.ok_or_else(|| missing("jpg, jpeg or png"))?;
        let class = class.ok_or_else(|| missing("cls"))?;
        let label = std::str::from_utf8(&bytes[class.range.clone()]).ok();
        let label = label.and_then(|text| text.trim().parse().ok());
        let label = label.ok_or_else(|| TarError::Class { name: class.name.clone() })?;
        Ok(Sample { archive, label, image: image.range.clone() })
    };
    samples.into_iter().map(sample).collect()
}
