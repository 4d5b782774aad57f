//! The raster that an image file is decoded into.

/// An image of bytes `[H, W, C]`: rows from the top, with the channels of a pixel next to each
/// other. The next image reuses the memory.
#[derive(Debug, Clone, Default)]
pub struct Raster {
    bytes: Vec<u8>,
    channels: usize,
    height: usize,
    width: usize,
}

impl Raster {
    /// Changes the shape and returns the bytes for the caller to write. The values of the returned
    /// bytes are unspecified.
    pub fn set_shape(&mut self, channels: usize, height: usize, width: usize) -> &mut [u8] {
        (self.channels, self.height, self.width) = (channels, height, width);
        self.bytes.resize(channels * height * width, 0);
        &mut self.bytes
    }

    /// Number of channels of a pixel.
    #[must_use]
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Height and width.
    #[must_use]
    pub fn size(&self) -> [usize; 2] {
        [self.height, self.width]
    }

    /// The `H * W * C` bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}
