//! Transforms: the effect of each step, and random steps that depend only on their key.

use crate::folders::{jpeg, picture, png, put};
use crate::{WORKERS, drain, options};
use lowtide_data::{
    DataError, Dataset, ImageError, ImageFolder, ImageFormat, ImageSample, ImageSource, Images,
    Loader, Pipeline, SampleError, SegmentationFolder, Sequential, Step,
};
use png::{BitDepth, ColorType};
use tempfile::TempDir;

/// One image `[C, H, W]` after the steps, as bytes. Seed and epoch determine the random numbers.
fn through(planes: &[u8], shape: [usize; 3], steps: &[Step], epoch: u64) -> Vec<u8> {
    let images = Images::new(planes.to_vec(), shape, 255, vec![0]).unwrap();
    let pipeline = Pipeline::new(steps).unwrap().as_bytes().unwrap();
    let dataset = images.through(pipeline).unwrap();
    let loader = Loader::with_sampler(dataset, Sequential, options(1, 0, 3)).unwrap();
    let batch = loader.epoch(epoch).next().unwrap().unwrap();
    batch.field("images").unwrap().bytes().to_vec()
}

fn ramp(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n % 251) as u8).collect()
}

#[test]
fn normalising_is_bit_for_bit_the_formula() {
    let images = Images::new(ramp(3 * 6), [3, 2, 3], 255, vec![4]).unwrap();
    let pipeline = Pipeline::new([Step::normalise_imagenet()]).unwrap();
    let dataset = images.through(pipeline).unwrap();
    let loader = Loader::with_sampler(dataset, Sequential, options(1, 0, 0)).unwrap();
    let batch = loader.epoch(0).next().unwrap().unwrap();
    let (mean, std) = ([0.485_f32, 0.456, 0.406], [0.229_f32, 0.224, 0.225]);
    let expected: Vec<f32> = ramp(18)
        .into_iter()
        .enumerate()
        .map(|(at, value)| (f32::from(value) / 255.0 - mean[at / 6]) / std[at / 6])
        .collect();
    assert_eq!(batch.field("images").unwrap().values::<f32>().unwrap(), expected);
    assert_eq!(batch.field("labels").unwrap().values::<i64>().unwrap(), [4]);
}

#[test]
fn crops_keep_the_middle_or_a_part_of_the_padded_image() {
    let image = ramp(30);
    let centre = through(&image, [1, 5, 6], &[Step::CentreCrop([3, 2])], 0);
    assert_eq!(centre, [8, 9, 14, 15, 20, 21]);
    let larger = through(&image, [1, 5, 6], &[Step::CentreCrop([7, 8])], 0);
    assert_eq!(larger[..9], [0; 9]);
    assert_eq!(larger[9..15], image[..6]);
    let mut seen = std::collections::BTreeSet::new();
    for epoch in 0..200 {
        let steps = [Step::RandomCrop { size: [5, 6], padding: 1 }];
        let part = through(&image, [1, 5, 6], &steps, epoch);
        // Every part is the image shifted by up to one pixel in each direction.
        let found = (-1..=1_isize).flat_map(|dy| (-1..=1_isize).map(move |dx| (dy, dx)));
        let found = found.filter(|&(dy, dx)| {
            (0..30).all(|at| {
                let (y, x) = ((at / 6) as isize + dy, (at % 6) as isize + dx);
                let inside = (0..5).contains(&y) && (0..6).contains(&x);
                part[at] == if inside { image[(y * 6 + x) as usize] } else { 0 }
            })
        });
        seen.extend(found);
    }
    assert_eq!(seen.len(), 9, "all places come");
}

#[test]
fn flip_mirrors_and_commutes_with_what_comes_after() {
    let image = ramp(3 * 4 * 5);
    let always = Step::FlipHorizontal { probability: 1.0 };
    let mirrored = through(&image, [3, 4, 5], std::slice::from_ref(&always), 0);
    for (line, original) in mirrored.chunks(5).zip(image.chunks(5)) {
        assert!(line.iter().eq(original.iter().rev()));
    }
    let twice = through(&image, [3, 4, 5], &[always.clone(), always.clone()], 0);
    assert_eq!(twice, image);
    // The crop of the mirrored image is not centred.
    let crop = Step::CentreCrop([4, 2]);
    let after = through(&image, [3, 4, 5], &[always, crop.clone()], 0);
    assert_eq!(after, through(&mirrored, [3, 4, 5], &[crop], 0));
}

#[test]
fn cropping_a_resized_image_is_resizing_it_all_and_cropping_then() {
    let image: Vec<u8> = (0..3)
        .flat_map(|c| picture(40, 30).into_iter().skip(c).step_by(3).collect::<Vec<_>>())
        .collect();
    let whole = through(&image, [3, 30, 40], &[Step::ResizeShorter(20)], 0);
    let width = 20 * 40 / 30;
    assert_eq!(whole.len(), 3 * 20 * width);
    let part =
        through(&image, [3, 30, 40], &[Step::ResizeShorter(20), Step::CentreCrop([16, 16])], 0);
    let (top, left) = (2, (width - 16) / 2);
    for channel in 0..3 {
        for row in 0..16 {
            let expected = &whole[(channel * 20 + top + row) * width + left..][..16];
            let actual = &part[(channel * 16 + row) * 16..][..16];
            let differ = expected.iter().zip(actual).map(|(a, b)| a.abs_diff(*b)).max();
            assert!(differ <= Some(1), "{expected:?} {actual:?}");
        }
    }
}

#[test]
fn rotation_by_a_fixed_law_keeps_the_middle_and_brings_in_zeros() {
    let white = vec![255; 9 * 9];
    let mut corners = 0;
    for epoch in 0..20 {
        let turned = through(&white, [1, 9, 9], &[Step::Rotate { degrees: 45.0 }], epoch);
        assert_eq!(turned[4 * 9 + 4], 255);
        corners += usize::from(turned[0] < 255);
    }
    assert!(corners > 10);
    let still = through(&ramp(81), [1, 9, 9], &[Step::Rotate { degrees: 0.0 }], 0);
    assert_eq!(still, ramp(81));
}

#[test]
fn colour_jitter_of_nothing_is_nothing_and_grey_keeps_its_hue() {
    let image = ramp(3 * 16);
    let jitter =
        |x: f64, hue: f64| Step::ColourJitter { brightness: x, contrast: x, saturation: x, hue };
    assert_eq!(through(&image, [3, 4, 4], &[jitter(0.0, 0.0)], 0), image);
    assert_ne!(through(&image, [3, 4, 4], &[jitter(0.4, 0.1)], 0), image);
    let grey: Vec<u8> = [ramp(16), ramp(16), ramp(16)].concat();
    let shifted = through(&grey, [3, 4, 4], &[jitter(0.0, 0.5)], 1);
    for (a, b) in grey.iter().zip(&shifted) {
        assert!(a.abs_diff(*b) <= 1);
    }
    assert_eq!(through(&ramp(16), [1, 4, 4], &[jitter(0.0, 0.5)], 0), ramp(16));
}

#[test]
fn erasing_clears_one_rectangle_of_every_channel() {
    let white = vec![255; 3 * 16 * 16];
    let mut seen = 0;
    for epoch in 0..40 {
        let image = through(&white, [3, 16, 16], &[Step::erase(0.5)], epoch);
        let zeros: Vec<usize> = (0..256).filter(|&at| image[at] == 0).collect();
        assert_eq!(image[..256], image[256..512]);
        let (Some(first), Some(last)) = (zeros.first(), zeros.last()) else { continue };
        let (rows, columns) = (last / 16 - first / 16 + 1, last % 16 - first % 16 + 1);
        assert_eq!(rows * columns, zeros.len());
        seen += 1;
    }
    assert!((8..32).contains(&seen), "{seen} of 40");
}

fn augmented() -> Vec<Step> {
    vec![
        Step::random_resized_crop([12, 10]),
        Step::flip_horizontal(),
        Step::Rotate { degrees: 10.0 },
        Step::ColourJitter { brightness: 0.4, contrast: 0.4, saturation: 0.4, hue: 0.1 },
        Step::normalise_imagenet(),
        Step::erase(0.5),
    ]
}

#[test]
fn augmented_batches_are_the_same_with_any_number_of_workers_and_after_a_resume() {
    let folder = TempDir::new().unwrap();
    for at in 0..11_u16 {
        let (width, height) = (20 + at, 30 - at);
        let rgb = picture(width.into(), height.into());
        put(folder.path(), &format!("c{}/{at:02}.jpg", at % 2), &jpeg(width, height, &rgb));
    }
    let dataset = || {
        let images = ImageFolder::open(folder.path()).unwrap();
        images.through(Pipeline::new(augmented()).unwrap()).unwrap()
    };
    let whole = drain(Loader::new(dataset(), options(3, 0, 7)).unwrap().epoch(1));
    for workers in WORKERS {
        let loader = Loader::new(dataset(), options(3, workers, 7)).unwrap();
        assert_eq!(drain(loader.epoch(1)), whole);
        let mut epoch = loader.epoch(1);
        drop(epoch.by_ref().take(2).last());
        assert_eq!(drain(loader.resume(epoch.state()).unwrap()), whole[2..]);
        assert_ne!(drain(loader.epoch(2)), whole);
    }
}

#[test]
fn masks_take_the_same_geometry_as_their_images() {
    let folder = TempDir::new().unwrap();
    let (images, masks) = (folder.path().join("images"), folder.path().join("masks"));
    // The left half is dark with class 0, the right half bright with class 1.
    let bright = |at: usize| at % 20 >= 10;
    let grey = |value: &dyn Fn(usize) -> u8| {
        let data: Vec<u8> = (0..20 * 14).map(value).collect();
        png(20, 14, ColorType::Grayscale, BitDepth::Eight, &data)
    };
    put(&images, "x.png", &grey(&|at| if bright(at) { 255 } else { 100 }));
    put(&masks, "x.png", &grey(&|at| u8::from(bright(at))));
    let steps = [
        Step::RandomCrop { size: [14, 20], padding: 3 },
        Step::Rotate { degrees: 20.0 },
        Step::random_resized_crop([16, 16]),
        Step::flip_horizontal(),
    ];
    let pairs = SegmentationFolder::open(&images, &masks, 2).unwrap().grey();
    let pipeline = Pipeline::new(steps).unwrap().as_bytes().unwrap();
    let loader = Loader::new(pairs.through(pipeline).unwrap(), options(1, 0, 0)).unwrap();
    for epoch in 0..30 {
        let batch = loader.epoch(epoch).next().unwrap().unwrap();
        let image = batch.field("images").unwrap().bytes();
        let labels = batch.field("labels").unwrap().values::<i64>().unwrap();
        let agrees = image.iter().zip(labels).filter(|&(&value, &label)| match label {
            0 => (60..180).contains(&value),
            1 => value > 175,
            _ => value < 190,
        });
        // The borders, which are blurred in the image, are left out.
        assert!(agrees.count() > 200, "epoch {epoch}");
    }
}

#[test]
fn steps_that_make_no_sense_are_refused_by_name() {
    let refused = |steps: Vec<Step>| match Pipeline::new(steps) {
        Err(DataError::Transform { step, .. }) => step,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(vec![Step::Resize([0, 3])]), "Resize");
    assert_eq!(refused(vec![Step::FlipHorizontal { probability: 1.5 }]), "FlipHorizontal");
    assert_eq!(refused(vec![Step::Rotate { degrees: f64::NAN }]), "Rotate");
    assert_eq!(refused(vec![Step::erase(0.5), Step::flip_horizontal()]), "Erase");
    assert_eq!(refused(vec![Step::normalise_imagenet(), Step::Resize([2, 2])]), "Resize");
    let jitter = Step::ColourJitter { brightness: 0.0, contrast: 0.0, saturation: 0.0, hue: 0.6 };
    assert_eq!(refused(vec![jitter]), "ColourJitter");
    let wrong = Step::RandomResizedCrop { size: [2, 2], area: [0.5, 0.1], ratio: [1.0, 1.0] };
    assert_eq!(refused(vec![wrong]), "RandomResizedCrop");
    let grey = Images::new(ramp(4), [1, 2, 2], 255, vec![0]).unwrap();
    let error = grey.through(Pipeline::new([Step::normalise_imagenet()]).unwrap()).unwrap_err();
    assert!(error.to_string().contains("one mean"), "{error}");
    let folder = TempDir::new().unwrap();
    put(folder.path(), "c/x.jpg", &jpeg(8, 8, &picture(8, 8)));
    let images = ImageFolder::open(folder.path()).unwrap();
    let error = images.through(Pipeline::new([Step::ResizeShorter(8)]).unwrap()).unwrap_err();
    assert!(error.to_string().contains("different sizes"), "{error}");
    assert!(Pipeline::new([Step::normalise_imagenet()]).unwrap().as_bytes().is_err());
}

/// A source whose images do not have its stated format.
struct Liar(ImageFormat, [usize; 3]);

impl ImageSource for Liar {
    fn image_count(&self) -> usize {
        1
    }

    fn format(&self) -> ImageFormat {
        self.0
    }

    fn read(&self, _index: usize, sample: &mut ImageSample) -> Result<(), SampleError> {
        let [channels, height, width] = self.1;
        sample.image.set_shape(channels, height, width);
        sample.mask.set_shape(1, 2, 2);
        Ok(())
    }
}

#[test]
fn sources_that_give_other_images_than_they_say_are_errors_and_no_panics() {
    let format = |ignored_class| ImageFormat { channels: 3, size: Some([4, 5]), ignored_class };
    let crop = || vec![Step::random_resized_crop([2, 2])];
    for (format, shape, steps) in [
        (format(None), [3, 5, 4], vec![]),
        (format(None), [3, 3, 5], vec![Step::flip_horizontal()]),
        (format(None), [1, 4, 5], vec![]),
        (format(None), [3, 0, 5], crop()),
        (format(None), [3, 4, 0], crop()),
        (format(Some(255)), [3, 4, 5], vec![]),
    ] {
        let dataset = Liar(format, shape).through(Pipeline::new(steps).unwrap()).unwrap();
        let loader = Loader::new(dataset, options(1, 0, 0)).unwrap();
        let error = loader.epoch(0).next().unwrap().unwrap_err();
        let DataError::Sample { source, .. } = error else { panic!("{error}") };
        let cause = source.downcast_ref::<ImageError>();
        assert!(matches!(cause, Some(ImageError::Shape { .. })), "{source}");
    }
}

#[test]
fn images_in_memory_go_through_a_pipeline_too() {
    let images = Images::new(ramp(2 * 3 * 8 * 8), [3, 8, 8], 255, vec![5, 6]).unwrap();
    let steps = [Step::RandomCrop { size: [8, 8], padding: 2 }, Step::flip_horizontal()];
    let dataset = images.through(Pipeline::new(steps).unwrap()).unwrap();
    assert_eq!((dataset.len(), &dataset.fields()[0].shape[..]), (2, &[3, 8, 8][..]));
    assert_eq!(drain(Loader::new(dataset, options(2, 2, 0)).unwrap().epoch(0)).len(), 1);
}

#[test]
fn parts_of_images_and_shared_sources_go_through_a_pipeline_too() {
    let (train, test) = lowtide_data::Digits::images().unwrap();
    let steps = [Step::RandomCrop { size: [8, 8], padding: 1 }];
    let train = train.through(Pipeline::new(steps).unwrap()).unwrap();
    assert_eq!((train.len(), &train.fields()[0].shape[..]), (1437, &[1, 8, 8][..]));
    let plain =
        drain(Loader::with_sampler(test.clone(), Sequential, options(360, 0, 0)).unwrap().epoch(0));
    let shared = std::sync::Arc::new(test).through(Pipeline::new([]).unwrap()).unwrap();
    let through =
        drain(Loader::with_sampler(shared, Sequential, options(360, 0, 0)).unwrap().epoch(0));
    assert_eq!(through[0].fields[1], plain[0].fields[1]);
}

/// The digits as in a batch without a pipeline: grey of 17 levels, here in three channels.
#[test]
fn images_in_memory_are_as_bright_and_coloured_as_without_a_pipeline() {
    let levels: Vec<u8> = (0..17).chain((0..17).rev()).collect();
    let images = Images::new(levels, [1, 2, 17], 16, vec![3]).unwrap().resized([3, 2, 17]);
    let first = |dataset: Box<dyn Dataset>| {
        let dataset: std::sync::Arc<dyn Dataset> = dataset.into();
        let loader = Loader::with_sampler(dataset, Sequential, options(1, 0, 0)).unwrap();
        let batch = loader.epoch(0).next().unwrap().unwrap();
        let field = batch.field("images").unwrap();
        (field.shape(), field.values::<f32>().unwrap().to_vec())
    };
    let (shape, plain) = first(Box::new(images.clone()));
    let pipeline = Pipeline::new([Step::Resize([2, 17])]).unwrap();
    let (shape_through, through) = first(Box::new(images.through(pipeline).unwrap()));
    assert_eq!((shape, plain.len()), (shape_through, 102));
    for (a, b) in plain.iter().zip(&through) {
        assert!((a - b).abs() <= 1.0 / 255.0, "{a} {b}");
    }
}
