//! Images with a class each in tar archives, as WebDataset has them.

use crate::dataset::{SampleError, visit_slice};
use crate::error::DataError;
use crate::image::{ImageFormat, ImageLimits, ImageSample, ImageSource, decode};
use crate::source::map::Map;
use crate::source::tar::{Member, TarError, members};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const IMAGE_SUFFIXES: [&str; 3] = ["jpg", "jpeg", "png"];

/// Images and classes of tar archives in the layout of WebDataset: the members of a sample have the
/// same name up to the first dot after the last slash, and their suffixes say what they are. A
/// sample has one image, `jpg`, `jpeg` or `png`, and a class, a whole number as text in `cls`.
/// Other members are left alone.
///
/// Archives are mapped into memory and must not be made shorter while they are in use. The index is
/// made when they are opened, so that samples can be read in any order: some 30 bytes each. Clones
/// share it.
#[derive(Debug, Clone)]
pub struct TarShards {
    shards: Arc<[Shard]>,
    /// In the order of the archives, and in each of the members.
    samples: Arc<[Sample]>,
    channels: usize,
    limits: ImageLimits,
}

#[derive(Debug)]
struct Shard {
    path: PathBuf,
    map: Map,
}

#[derive(Debug)]
struct Sample {
    shard: u32,
    label: u32,
    image: Range<usize>,
}

impl TarShards {
    /// Reads the index of archives.
    ///
    /// # Errors
    /// [`DataError::File`] with a [`TarError`] for an archive that is damaged, that has a link or a
    /// name which leads outside, or a sample without an image or class.
    pub fn open<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> Result<Self, DataError> {
        let (mut shards, mut samples) = (Vec::new(), Vec::new());
        for path in paths {
            let path = path.as_ref();
            let map = Map::open(path)?;
            let shard = shards.len() as u32;
            let found = members(map.bytes()).and_then(|members| group(map.bytes(), &members));
            for (image, label) in found.map_err(|source| DataError::damaged(path, source))? {
                samples.push(Sample { shard, label, image });
            }
            shards.push(Shard { path: path.to_owned(), map });
        }
        let (shards, samples) = (shards.into(), samples.into());
        Ok(Self { shards, samples, channels: 3, limits: ImageLimits::default() })
    }

    /// The same images with one channel.
    #[must_use]
    pub fn grey(mut self) -> Self {
        self.channels = 1;
        self
    }

    /// The same with other limits for what is decoded.
    #[must_use]
    pub fn with_limits(mut self, limits: ImageLimits) -> Self {
        self.limits = limits;
        self
    }

    /// One more than the greatest class.
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
        ImageFormat { channels: self.channels, size: None, ignored_class: None }
    }

    fn read(&self, index: usize, out: &mut ImageSample) -> Result<(), SampleError> {
        let Sample { shard, label, image } = &self.samples[index];
        let Shard { path, map } = &self.shards[*shard as usize];
        out.label = i64::from(*label);
        // Decoded where it is: the mapping is read once.
        decode(&map.bytes()[image.clone()], self.channels, false, &self.limits, &mut out.image)
            .map_err(|source| DataError::damaged(path, source).into())
    }

    fn visit_memory(&self, visit: &mut dyn FnMut(*const u8, usize)) {
        visit_slice(&self.samples, visit);
    }
}

/// Image and class of each sample, in the order of their first members.
fn group(archive: &[u8], members: &[Member]) -> Result<Vec<(Range<usize>, u32)>, TarError> {
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    let mut samples: Vec<(&str, [Option<&Member>; 2])> = Vec::new();
    for member in members {
        let folder_end = member.name.rfind('/').map_or(0, |slash| slash + 1);
        let Some(dot) = member.name[folder_end..].find('.') else { continue };
        let (key, suffix) = member.name.split_at(folder_end + dot);
        let suffix = suffix[1..].to_ascii_lowercase();
        let part = match suffix.as_str() {
            "cls" => 1,
            suffix if IMAGE_SUFFIXES.contains(&suffix) => 0,
            _ => continue,
        };
        let place = *places.entry(key).or_insert_with(|| {
            samples.push((key, [None; 2]));
            samples.len() - 1
        });
        if samples[place].1[part].replace(member).is_some() {
            return Err(TarError::Part { key: key.to_owned(), suffix });
        }
    }
    let sample = |(key, [image, class]): (&str, [Option<&Member>; 2])| {
        let missing = |suffix: &str| TarError::Part { key: key.to_owned(), suffix: suffix.into() };
        let image = image.ok_or_else(|| missing("jpg, jpeg or png"))?;
        let class = class.ok_or_else(|| missing("cls"))?;
        let label = std::str::from_utf8(&archive[class.range.clone()]).ok();
        let label = label.and_then(|text| text.trim().parse().ok());
        let label = label.ok_or_else(|| TarError::Class { name: class.name.clone() })?;
        Ok((image.range.clone(), label))
    };
    samples.into_iter().map(sample).collect()
}
