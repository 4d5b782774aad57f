//! Comparison of the steps with torchvision 0.29 and Pillow 13 on the same pixels.

use crate::image::Raster;
use crate::transform::canvas::{Canvas, Sampling, Scratch};
use crate::transform::colour;
use crate::transform::draw::{ColourOp, ImageOp};

/// `[4, 5, 3]`, random.
const IMAGE: [u8; 60] = [
    37, 254, 141, 235, 101, 233, 140, 146, 137, 72, 212, 7, 255, 139, 63, 137, 252, 61, 203, 234,
    22, 133, 156, 57, 79, 157, 1, 192, 142, 128, 144, 50, 60, 129, 68, 209, 204, 215, 8, 71, 215,
    216, 237, 233, 141, 252, 241, 115, 134, 247, 175, 25, 222, 234, 178, 96, 121, 20, 86, 200,
];
/// `[7, 8, 1]`, random.
const BIG: [u8; 56] = [
    30, 71, 131, 198, 149, 49, 57, 3, 196, 24, 241, 43, 76, 26, 52, 80, 109, 115, 41, 210, 15, 64,
    196, 25, 111, 226, 215, 135, 26, 153, 104, 22, 9, 195, 231, 126, 23, 125, 100, 155, 165, 57,
    83, 166, 136, 32, 162, 10, 23, 143, 239, 87, 25, 199, 243, 92,
];
const BRIGHTER: [u8; 60] = [
    51, 255, 197, 255, 141, 255, 196, 204, 191, 100, 255, 9, 255, 194, 88, 191, 255, 85, 255, 255,
    30, 186, 218, 79, 110, 219, 1, 255, 198, 179, 201, 70, 84, 180, 95, 255, 255, 255, 11, 99, 255,
    255, 255, 255, 197, 255, 255, 161, 187, 255, 245, 35, 255, 255, 249, 134, 169, 28, 120, 255,
];
const LESS_CONTRAST: [u8; 60] = [
    85, 215, 147, 204, 123, 202, 147, 150, 145, 106, 190, 67, 216, 146, 100, 145, 214, 99, 184,
    203, 76, 142, 156, 97, 110, 157, 63, 178, 148, 139, 149, 93, 99, 140, 103, 188, 185, 192, 67,
    105, 192, 192, 205, 202, 147, 214, 207, 132, 143, 211, 168, 78, 196, 203, 169, 120, 135, 75,
    114, 183,
];
const SATURATED: [u8; 60] = [
    0, 255, 123, 255, 73, 255, 138, 147, 134, 35, 245, 0, 255, 126, 12, 108, 255, 0, 204, 251, 0,
    131, 165, 17, 61, 178, 0, 210, 135, 114, 176, 35, 50, 142, 51, 255, 212, 228, 0, 20, 236, 238,
    244, 238, 100, 255, 247, 58, 99, 255, 160, 0, 251, 255, 205, 82, 120, 0, 89, 255,
];
const SHIFTED: [u8; 60] = [
    63, 254, 37, 157, 101, 235, 145, 146, 137, 195, 212, 7, 255, 63, 102, 252, 252, 61, 234, 138,
    22, 156, 120, 57, 157, 141, 1, 192, 128, 152, 144, 50, 116, 68, 91, 209, 215, 102, 8, 71, 216,
    130, 237, 176, 141, 252, 159, 115, 161, 247, 134, 25, 234, 121, 178, 96, 170, 20, 194, 200,
];
const SMALLER: [u8; 18] =
    [143, 193, 114, 144, 165, 85, 161, 168, 73, 169, 164, 120, 123, 189, 132, 129, 156, 156];
const LARGER: [u8; 189] = [
    37, 254, 141, 103, 203, 172, 213, 118, 223, 193, 121, 190, 140, 146, 137, 102, 183, 65, 92,
    204, 13, 194, 163, 44, 255, 139, 63, 73, 253, 112, 123, 218, 128, 207, 160, 153, 185, 149, 136,
    137, 150, 108, 102, 174, 51, 92, 186, 14, 180, 157, 59, 232, 140, 86, 130, 252, 67, 155, 243,
    57, 197, 228, 40, 173, 193, 49, 133, 155, 63, 103, 159, 29, 92, 158, 15, 157, 148, 83, 196,
    142, 123, 141, 151, 61, 149, 151, 79, 164, 151, 109, 167, 166, 79, 169, 186, 33, 117, 186, 75,
    91, 186, 112, 168, 187, 126, 215, 188, 135, 152, 64, 64, 144, 69, 112, 132, 79, 190, 157, 140,
    126, 191, 215, 24, 129, 211, 127, 94, 208, 202, 174, 217, 167, 222, 223, 145, 213, 173, 95,
    187, 176, 126, 141, 182, 177, 113, 199, 172, 89, 219, 153, 117, 175, 154, 135, 139, 158, 112,
    138, 171, 98, 139, 179, 252, 241, 115, 213, 243, 135, 147, 246, 168, 86, 236, 201, 25, 222,
    234, 110, 152, 171, 160, 95, 130, 73, 89, 174, 20, 86, 200,
];
const CROPPED: [u8; 12] = [154, 176, 68, 145, 177, 97, 116, 191, 167, 115, 152, 165];
const ROTATED: [u8; 56] = [
    0, 28, 107, 86, 43, 73, 37, 0, 51, 154, 116, 72, 46, 168, 65, 11, 54, 195, 124, 95, 53, 134,
    98, 135, 114, 92, 106, 145, 32, 110, 111, 93, 106, 171, 219, 171, 90, 85, 71, 207, 52, 112,
    203, 159, 160, 92, 139, 115, 0, 53, 97, 115, 165, 45, 8, 0,
];
const ROTATED_NEAREST: [u8; 56] = [
    0, 0, 149, 49, 26, 52, 25, 0, 71, 131, 43, 76, 64, 196, 22, 0, 71, 241, 43, 15, 15, 153, 104,
    155, 196, 115, 41, 135, 26, 125, 100, 10, 109, 226, 215, 126, 126, 136, 32, 243, 0, 111, 195,
    231, 166, 136, 199, 243, 0, 9, 57, 83, 239, 87, 0, 0,
];

#[test]
fn colour_operations_agree_with_torchvision_on_byte_tensors() {
    for (op, expected) in [
        (ColourOp::Brightness(1.4), BRIGHTER),
        (ColourOp::Contrast(0.6), LESS_CONTRAST),
        (ColourOp::Saturation(1.5), SATURATED),
        (ColourOp::Hue(-0.1), SHIFTED),
    ] {
        let mut image = Raster::default();
        image.set_shape(3, 4, 5).copy_from_slice(&IMAGE);
        colour::apply(&mut image, op);
        // Rounding may differ by one.
        assert!(max_difference(image.bytes(), &expected) <= 1, "{op:?}: {:?}", image.bytes());
    }
}

/// The pixels of an image after some operations, row by row.
fn after(pixels: &[u8], shape: [usize; 3], sampling: Sampling, ops: &[ImageOp]) -> Vec<u8> {
    let mut scratch = Scratch::default();
    let [height, width, channels] = shape;
    scratch.front.set_shape(channels, height, width).copy_from_slice(pixels);
    let mut canvas = Canvas::new(&mut scratch, sampling);
    ops.iter().for_each(|&op| canvas.apply(op));
    canvas.pixels_mut().bytes().to_vec()
}

fn max_difference(a: &[u8], b: &[u8]) -> u8 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| a.abs_diff(*b)).max().unwrap_or(0)
}

#[test]
fn resizing_agrees_with_pillow() {
    let image = |ops: &[ImageOp]| after(&IMAGE, [4, 5, 3], Sampling::Bilinear, ops);
    assert!(max_difference(&image(&[ImageOp::Resize([2, 3])]), &SMALLER) <= 1);
    assert!(max_difference(&image(&[ImageOp::Resize([7, 9])]), &LARGER) <= 1);
    let crop = ImageOp::Crop { top: 1, left: 1, size: [3, 4] };
    assert!(max_difference(&image(&[crop, ImageOp::Resize([2, 2])]), &CROPPED) <= 1);
}

#[test]
fn rotating_agrees_with_torchvision() {
    let rotation = ImageOp::Rotate { radians: 30.0_f64.to_radians() };
    let rotated = after(&BIG, [7, 8, 1], Sampling::Bilinear, &[rotation]);
    assert!(max_difference(&rotated, &ROTATED) <= 1, "{rotated:?}");
    assert_eq!(after(&BIG, [7, 8, 1], Sampling::Nearest(0), &[rotation]), ROTATED_NEAREST);
}
