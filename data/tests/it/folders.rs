//! Folders of images: classes and order, decoding, and damaged files.

use crate::options;
use lowtide_data::{
    Batch, DataError, Dataset, ImageError, ImageFolder, ImageLimits, ImageSource, Loader, Pipeline,
    SegmentationFolder, Sequential, Step,
};
use png::{BitDepth, ColorType};
use std::error::Error;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

pub(crate) fn png(
    width: u32,
    height: u32,
    color: ColorType,
    depth: BitDepth,
    data: &[u8],
) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(color);
    encoder.set_depth(depth);
    if color == ColorType::Indexed {
        encoder.set_palette(vec![0; 3 << (depth as u8)]);
    }
    encoder.write_header().unwrap().write_image_data(data).unwrap();
    bytes
}

pub(crate) fn jpeg(width: u16, height: u16, rgb: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let encoder = jpeg_encoder::Encoder::new(&mut bytes, 95);
    encoder.encode(rgb, width, height, jpeg_encoder::ColorType::Rgb).unwrap();
    bytes
}

/// A coloured picture without hard edges, `[H, W, 3]`.
pub(crate) fn picture(width: usize, height: usize) -> Vec<u8> {
    let pixel = |at: usize| {
        let (y, x) = (at / width, at % width);
        [x * 255 / width, y * 255 / height, (x + y) * 255 / (width + height)].map(|n| n as u8)
    };
    (0..width * height).flat_map(pixel).collect()
}

pub(crate) fn put(folder: &Path, name: &str, bytes: &[u8]) {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

pub(crate) fn first(dataset: impl Dataset + 'static) -> Result<Batch, DataError> {
    let loader = Loader::with_sampler(dataset, Sequential, options(64, 0, 0)).unwrap();
    loader.epoch(0).next().unwrap()
}

fn as_bytes(steps: &[Step]) -> Pipeline {
    Pipeline::new(steps).unwrap().as_bytes().unwrap()
}

/// The error of the only sample, and all of its causes.
fn error_of(dataset: impl Dataset + 'static) -> String {
    let error = first(dataset).expect_err("the file is bad");
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text += &format!(": {error}");
        source = error.source();
    }
    text
}

#[test]
fn classes_are_the_sorted_folders_and_files_come_in_order() {
    let folder = TempDir::new().unwrap();
    let dot = png(1, 1, ColorType::Grayscale, BitDepth::Eight, &[7]);
    for name in ["dog/b.png", "dog/a.PNG", "cat/in/x.png", "cat/z.png", "cat/notes.txt", "top.png"]
    {
        put(folder.path(), name, &dot);
    }
    let images = ImageFolder::open(folder.path()).unwrap();
    assert_eq!(images.classes(), ["cat", "dog"]);
    let paths: Vec<_> = (0..images.image_count()).map(|index| images.path(index)).collect();
    let expected = ["cat/z.png", "cat/in/x.png", "dog/a.PNG", "dog/b.png"];
    assert_eq!(paths, expected.map(|name| folder.path().join(name)));
    let batch = first(images.through(as_bytes(&[Step::Resize([1, 1])])).unwrap()).unwrap();
    assert_eq!(batch.field("labels").unwrap().values::<i64>().unwrap(), [0, 0, 1, 1]);
    assert_eq!(batch.field("images").unwrap().shape(), [4, 3, 1, 1]);
    assert!(batch.field("images").unwrap().bytes().iter().all(|&value| value == 7));
}

#[test]
fn png_of_every_kind_becomes_grey_or_rgb_bytes() {
    use BitDepth::{Eight, Four, Sixteen};
    use ColorType::{Grayscale, GrayscaleAlpha, Rgb, Rgba};
    let cases: [(&[u8], ColorType, BitDepth, [u8; 6]); 6] = [
        (&[10, 200], Grayscale, Eight, [10, 200, 10, 200, 10, 200]),
        (&[0x1f], Grayscale, Four, [17, 255, 17, 255, 17, 255]),
        (&[10, 9, 200, 9], GrayscaleAlpha, Eight, [10, 200, 10, 200, 10, 200]),
        (&[1, 2, 3, 4, 5, 6], Rgb, Eight, [1, 4, 2, 5, 3, 6]),
        (&[1, 2, 3, 99, 4, 5, 6, 99], Rgba, Eight, [1, 4, 2, 5, 3, 6]),
        (&[1, 9, 2, 9, 3, 9, 4, 9, 5, 9, 6, 9], Rgb, Sixteen, [1, 4, 2, 5, 3, 6]),
    ];
    for (data, color, depth, planes) in cases {
        let folder = TempDir::new().unwrap();
        put(folder.path(), "c/x.png", &png(2, 1, color, depth, data));
        let images = || ImageFolder::open(folder.path()).unwrap();
        let keep = [Step::CentreCrop([1, 2])];
        let batch = first(images().through(as_bytes(&keep)).unwrap()).unwrap();
        assert_eq!(batch.field("images").unwrap().bytes(), planes, "{color:?} {depth:?}");
        let batch = first(images().grey().through(as_bytes(&keep)).unwrap()).unwrap();
        let grey = |at: usize| {
            let [r, g, b] = [0, 2, 4].map(|plane| f64::from(planes[plane + at]));
            (0.299 * r + 0.587 * g + 0.114 * b).round() as u8
        };
        assert_eq!(batch.field("images").unwrap().bytes(), [grey(0), grey(1)], "{color:?}");
    }
}

#[test]
fn jpeg_is_decoded_to_nearly_what_was_encoded() {
    let folder = TempDir::new().unwrap();
    let rgb = picture(48, 32);
    put(folder.path(), "c/x.jpg", &jpeg(48, 32, &rgb));
    let images = ImageFolder::open(folder.path()).unwrap();
    let keep = [Step::CentreCrop([32, 48])];
    let batch = first(images.clone().through(as_bytes(&keep)).unwrap()).unwrap();
    let planes = batch.field("images").unwrap().bytes().to_vec();
    for (at, pixel) in rgb.chunks(3).enumerate() {
        for (channel, &value) in pixel.iter().enumerate() {
            let decoded = planes[channel * 48 * 32 + at];
            assert!(decoded.abs_diff(value) < 12, "{at}/{channel}: {decoded} for {value}");
        }
    }
    let batch = first(images.grey().through(as_bytes(&keep)).unwrap()).unwrap();
    assert_eq!(batch.field("images").unwrap().shape(), [1, 1, 32, 48]);
}

#[test]
fn turned_photographs_stand_upright_if_asked_to() {
    let mut bytes = Vec::new();
    let mut encoder = jpeg_encoder::Encoder::new(&mut bytes, 95);
    // Orientation 6 in an IFD of one entry.
    let exif = b"MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0";
    encoder.add_exif_metadata(exif).unwrap();
    encoder.encode(&picture(32, 16), 32, 16, jpeg_encoder::ColorType::Rgb).unwrap();
    let folder = TempDir::new().unwrap();
    put(folder.path(), "c/x.jpeg", &bytes);
    let red_of = |images: ImageFolder| {
        let pipeline = as_bytes(&[Step::CentreCrop([16, 16])]);
        let batch = first(images.through(pipeline).unwrap()).unwrap();
        let red = batch.field("images").unwrap().bytes()[..256].to_vec();
        [red[8 * 16], red[8 * 16 + 15], red[8], red[15 * 16 + 8]]
    };
    let images = ImageFolder::open(folder.path()).unwrap();
    // Red increases to the right, and in the upright image downwards.
    let [left, right, ..] = red_of(images.clone());
    assert!(right > left + 50);
    let [left, right, top, bottom] = red_of(images.upright());
    assert!(right.abs_diff(left) < 20 && bottom > top + 50);
}

#[test]
fn damaged_files_are_errors_that_name_them() {
    let rgb = picture(64, 48);
    let good_png = png(64, 48, ColorType::Rgb, BitDepth::Eight, &rgb);
    let good_jpeg = jpeg(64, 48, &rgb);
    let mut flipped = good_png.clone();
    flipped[good_png.len() / 2] ^= 0x55;
    let cases: [(&str, &[u8], &str); 6] = [
        ("half.png", &good_png[..good_png.len() / 2], "damaged"),
        ("flipped.png", &flipped, "damaged"),
        ("half.jpg", &good_jpeg[..good_jpeg.len() / 2], "damaged"),
        ("head.jpg", &good_jpeg[..20], "damaged"),
        ("empty.png", b"", "neither PNG nor JPEG"),
        ("text.jpg", b"this is no image", "neither PNG nor JPEG"),
    ];
    for (name, bytes, word) in cases {
        let folder = TempDir::new().unwrap();
        put(folder.path(), &format!("c/{name}"), bytes);
        let images = ImageFolder::open(folder.path()).unwrap();
        let text = error_of(images.through(as_bytes(&[Step::Resize([8, 8])])).unwrap());
        assert!(text.contains(name) && text.contains(word), "{text}");
    }
}

#[test]
fn enormous_images_are_refused_by_their_header() {
    // The header of a PNG of 60000x60000 with a valid checksum, and no pixels.
    let mut head = png(1, 1, ColorType::Rgb, BitDepth::Eight, &[0; 3])[..33].to_vec();
    head[16..24].copy_from_slice(&[0, 0, 0xea, 0x60, 0, 0, 0xea, 0x60]);
    let mut crc = flate2::Crc::new();
    crc.update(&head[12..29]);
    head[29..33].copy_from_slice(&crc.sum().to_be_bytes());
    let mut jpeg = jpeg(16, 16, &picture(16, 16));
    let frame = jpeg.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
    jpeg[frame + 5..frame + 9].copy_from_slice(&[0xea, 0x60, 0xea, 0x60]);
    for (name, bytes) in [("bomb.png", head), ("bomb.jpg", jpeg)] {
        let folder = TempDir::new().unwrap();
        put(folder.path(), &format!("c/{name}"), &bytes);
        let images = ImageFolder::open(folder.path()).unwrap();
        let text = error_of(images.through(as_bytes(&[Step::Resize([8, 8])])).unwrap());
        assert!(text.contains(name), "{text}");
        assert!(text.contains("60000") || text.contains("Large"), "{text}");
    }
    let folder = TempDir::new().unwrap();
    let small = png(9, 9, ColorType::Grayscale, BitDepth::Eight, &[0; 81]);
    put(folder.path(), "c/x.png", &small);
    for limits in [
        ImageLimits { side_max: 8, ..Default::default() },
        ImageLimits { pixels_max: 80, ..Default::default() },
        ImageLimits { file_bytes_max: 20, ..Default::default() },
    ] {
        let images = ImageFolder::open(folder.path()).unwrap().with_limits(limits);
        let text = error_of(images.through(as_bytes(&[Step::Resize([8, 8])])).unwrap());
        assert!(text.contains("x.png") && text.contains("over the limit"), "{text}");
    }
}

#[test]
fn folders_without_classes_or_images_are_refused_by_name() {
    let folder = TempDir::new().unwrap();
    let refused = |folder: &Path| {
        let error = ImageFolder::open(folder).expect_err("nothing there");
        error.to_string()
    };
    assert!(refused(folder.path()).contains("no folder of a class"));
    fs::create_dir(folder.path().join("empty")).unwrap();
    assert!(refused(folder.path()).contains("empty: the folder contains no PNG or JPEG"));
    assert!(refused(&folder.path().join("missing")).contains("missing"));
}

#[test]
fn masks_of_every_depth_are_labels_and_void_does_not_count() {
    use BitDepth::{Eight, Four, One, Two};
    use ColorType::{Grayscale, Indexed};
    let cases: [(&[u8], ColorType, BitDepth, [i64; 3]); 5] = [
        (&[0, 2, 255], Grayscale, Eight, [0, 2, -100]),
        (&[3, 2, 1], Indexed, Eight, [3, 2, 1]),
        (&[0x31, 0x20], Indexed, Four, [3, 1, 2]),
        (&[0b11_10_01_00], Grayscale, Two, [3, 2, 1]),
        (&[0b1010_0000], Indexed, One, [1, 0, 1]),
    ];
    for (data, color, depth, labels) in cases {
        let folder = TempDir::new().unwrap();
        let (images, masks) = (folder.path().join("images"), folder.path().join("masks"));
        put(&images, "x.png", &png(3, 1, ColorType::Rgb, Eight, &[0; 9]));
        put(&masks, "x.png", &png(3, 1, color, depth, data));
        let pairs = SegmentationFolder::open(&images, &masks, 4).unwrap();
        let batch = first(pairs.through(as_bytes(&[Step::CentreCrop([1, 3])])).unwrap()).unwrap();
        let field = batch.field("labels").unwrap();
        assert_eq!(field.shape(), [1, 1, 3]);
        assert_eq!(field.values::<i64>().unwrap(), labels, "{color:?} {depth:?}");
    }
}

#[test]
fn masks_that_do_not_fit_their_images_are_errors_that_name_both() {
    let folder = TempDir::new().unwrap();
    let (images, masks) = (folder.path().join("images"), folder.path().join("masks"));
    let grey = |width, height, value: u8| {
        let data = vec![value; (width * height) as usize];
        png(width, height, ColorType::Grayscale, BitDepth::Eight, &data)
    };
    put(&images, "x.jpg", &jpeg(4, 2, &picture(4, 2)));
    let open = || SegmentationFolder::open(&images, &masks, 3);
    let error = open().expect_err("there is no mask");
    assert!(error.to_string().contains("x.png"), "{error}");
    let text_with = |mask: &[u8]| {
        put(&masks, "x.png", mask);
        error_of(open().unwrap().through(as_bytes(&[Step::Resize([2, 2])])).unwrap())
    };
    let text = text_with(&grey(2, 4, 0));
    assert!(text.contains("x.jpg") && text.contains("x.png") && text.contains("[2, 4]"), "{text}");
    let text = text_with(&grey(4, 2, 3));
    assert!(text.contains("x.png") && text.contains("class 3"), "{text}");
    let text = text_with(&png(4, 2, ColorType::Rgb, BitDepth::Eight, &[0; 24]));
    assert!(text.contains("not a mask"), "{text}");
    assert!(SegmentationFolder::open(&images, &masks, 256).is_err());
}

#[test]
fn causes_can_be_told_apart_by_type() {
    let folder = TempDir::new().unwrap();
    put(folder.path(), "c/x.png", b"text");
    let images = ImageFolder::open(folder.path()).unwrap();
    let error = first(images.through(as_bytes(&[Step::Resize([8, 8])])).unwrap()).unwrap_err();
    let DataError::Sample { index: 0, source } = error else { panic!("{error}") };
    let Some(DataError::File { source, .. }) = source.downcast_ref() else { panic!("{source}") };
    let cause = source.get_ref().and_then(|cause| cause.downcast_ref::<ImageError>());
    assert!(matches!(cause, Some(ImageError::Unknown)));
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(200))]
    #[test]
    fn mutated_images_decode_or_fail_and_never_panic(
        is_png in proptest::bool::ANY,
        changes in proptest::collection::vec((0..4096_usize, proptest::num::u8::ANY), 1..8),
        keep in 0..4096_usize,
    ) {
        let rgb = picture(24, 20);
        let mut bytes = if is_png {
            png(24, 20, ColorType::Rgb, BitDepth::Eight, &rgb)
        } else {
            jpeg(24, 20, &rgb)
        };
        for (at, value) in changes {
            let len = bytes.len();
            bytes[at % len] = value;
        }
        bytes.truncate(keep.max(bytes.len() / 2));
        let folder = TempDir::new().unwrap();
        put(folder.path(), "c/x.png", &bytes);
        let limits = ImageLimits { pixels_max: 1 << 20, ..Default::default() };
        let images = ImageFolder::open(folder.path()).unwrap().with_limits(limits);
        let dataset = images.through(as_bytes(&[Step::Resize([8, 8])])).unwrap();
        let outcome = first(dataset);
        proptest::prop_assert!(!matches!(outcome, Err(DataError::Panicked { .. })), "{outcome:?}");
    }
}
