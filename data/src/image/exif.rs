//! The orientation of a photograph: tag 274 of the first IFD, in "Exif 2.32", JEITA CP-3451.

use crate::image::raster::Raster;

const ORIENTATION: u16 = 0x0112;

/// The orientation in EXIF data, from 1 (upright) to 8; 1 if the data have none.
pub(super) fn orientation(exif: &[u8]) -> u8 {
    find(exif).filter(|value| (1..=8).contains(value)).map_or(1, |value| value as u8)
}

fn find(exif: &[u8]) -> Option<u16> {
    let tiff = exif.strip_prefix(b"Exif\0\0").unwrap_or(exif);
    let little = match tiff.get(..2)? {
        b"II" => true,
        b"MM" => false,
        _ => return None,
    };
    let short = |at: usize| {
        let bytes: [u8; 2] = tiff.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(if little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) })
    };
    let pair = [short(4)?, short(6)?].map(usize::from);
    let start = if little { pair[1] << 16 | pair[0] } else { pair[0] << 16 | pair[1] };
    let count = usize::from(short(start)?);
    let entries = (0..count).map(|entry| start + 2 + 12 * entry);
    entries
        .take_while(|&at| at < tiff.len())
        .find_map(|at| (short(at) == Some(ORIENTATION)).then(|| short(at + 8)).flatten())
}

/// Rotates and mirrors an image with this orientation so that it is upright.
pub(super) fn rotate_upright(image: &mut Raster, orientation: u8) {
    if orientation <= 1 {
        return;
    }
    let ([height, width], channels) = (image.size(), image.channels());
    let from = image.bytes().to_vec();
    let is_transposed = orientation >= 5;
    let [rows, columns] = if is_transposed { [width, height] } else { [height, width] };
    let out = image.set_shape(channels, rows, columns);
    for (at, pixel) in out.chunks_exact_mut(channels).enumerate() {
        let (row, column) = (at / columns, at % columns);
        let [y, x] = match orientation {
            2 => [row, width - 1 - column],
            3 => [height - 1 - row, width - 1 - column],
            4 => [height - 1 - row, column],
            5 => [column, row],
            6 => [height - 1 - column, row],
            7 => [height - 1 - column, width - 1 - row],
            _ => [column, width - 1 - row],
        };
        pixel.copy_from_slice(&from[(y * width + x) * channels..][..channels]);
    }
}

#[cfg(test)]
mod tests {
    use super::{orientation, rotate_upright};
    use crate::image::raster::Raster;

    #[test]
    fn the_orientation_is_read_in_both_byte_orders_and_defaults_to_1() {
        let big = b"Exif\0\0MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0";
        let little = b"II\x2a\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x08\0\0\0";
        assert_eq!([orientation(big), orientation(little)], [6, 8]);
        for len in 0..little.len() {
            assert!([1, 8].contains(&orientation(&little[..len])));
        }
    }

    #[test]
    fn every_orientation_permutes_the_pixels_and_5_to_8_swap_the_sides() {
        for orientation in 1..=8 {
            let mut image = Raster::default();
            image.set_shape(1, 2, 3).copy_from_slice(&[0, 1, 2, 3, 4, 5]);
            rotate_upright(&mut image, orientation);
            let expected = if orientation >= 5 { [3, 2] } else { [2, 3] };
            assert_eq!(image.size(), expected);
            let mut sorted = image.bytes().to_vec();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2, 3, 4, 5]);
        }
        // Orientation 6: the top of the scene is on the right of the stored image.
        let mut image = Raster::default();
        image.set_shape(1, 2, 3).copy_from_slice(&[0, 1, 2, 3, 4, 5]);
        rotate_upright(&mut image, 6);
        assert_eq!(image.bytes(), [3, 0, 4, 1, 5, 2]);
    }
}
