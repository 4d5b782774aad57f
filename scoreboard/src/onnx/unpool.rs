//! Unpooling: maxima put back to their places, and columns summed to an image.

use lowtide_tensor::{ConvTranspose2dGeometry, DType, PadMode, Tensor};

use super::Family;
use super::views::{padded, sizes};
use crate::call::one;

pub(super) const OPS: Family = &[
    ("Col2Im", |node| {
        let x = node.var(0)?;
        let (image, block) = (node.integers(1)?, node.integers(2)?);
        let (image, block) = (image.unwrap_or_default(), block.unwrap_or_default());
        let pair = |name, default: usize| {
            let values = node.attribute_counts(name)?.unwrap_or_else(|| vec![default; 2]);
            <[usize; 2]>::try_from(values).or_else(|_| node.no_form("volumes"))
        };
        let ([height, width], [rows, columns]) = (&sizes(&image)[..], &sizes(&block)[..]) else {
            return node.no_form("volumes");
        };
        let (image, kernel) = ([*height, *width], [*rows, *columns]);
        let (stride, dilation) = (pair("strides", 1)?, pair("dilations", 1)?);
        let pads = node.attribute_counts("pads")?.unwrap_or_else(|| vec![0; 4]);
        let pads: [usize; 4] =
            pads.try_into().map_err(|_| node.wrong("pads are not two for each dimension"))?;
        // Each place of a block is a channel. A transposed convolution with a 1 in that place puts
        // the channel there.
        let count = kernel[0] * kernel[1];
        let &[samples, depth, _] = &x.shape()[..] else {
            return Err(node.wrong("not columns of a batch"));
        };
        let channels = depth / count.max(1);
        let out = [0, 1].map(|axis| {
            let whole = image[axis] + pads[axis] + pads[axis + 2];
            (whole - ((kernel[axis] - 1) * dilation[axis] + 1)) / stride[axis] + 1
        });
        let places = Tensor::eye(node.device(), count, count, x.value().dtype())?;
        let w = node.constant(places.reshape([count, 1, kernel[0], kernel[1]])?);
        let x = x.reshape([samples * channels, count, out[0], out[1]])?;
        let (padding, output_padding, groups) = ([0; 2], [0; 2], 1);
        let geometry =
            ConvTranspose2dGeometry { stride, padding, output_padding, dilation, groups };
        let y = x.conv_transpose2d(w, None, geometry)?;
        // Removes the padding, and adds the places that no block reaches.
        let mut more = vec![[0_isize; 2]; 4];
        for axis in 0..2 {
            let found = y.shape()[axis + 2] as isize;
            let before = -(pads[axis] as isize);
            more[axis + 2] = [before, image[axis] as isize - found - before];
        }
        let y = padded(y, &more, PadMode::Constant(0.0))?;
        one(y.reshape([samples, channels, image[0], image[1]])?)
    }),
    ("MaxUnpool", |node| {
        let (x, places) = (node.var(0)?, node.tensor(1)?);
        let rank = x.shape().len();
        let dims = rank.saturating_sub(2);
        let kernel = node.attribute_counts("kernel_shape")?.unwrap_or_else(|| vec![1; dims]);
        let stride = node.attribute_counts("strides")?.unwrap_or_else(|| vec![1; dims]);
        let pads = node.attribute_counts("pads")?.unwrap_or_else(|| vec![0; 2 * dims]);
        let mut inferred = x.shape()[..2].to_vec();
        for axis in 0..dims {
            let steps = (x.shape()[axis + 2] - 1) * stride[axis] + kernel[axis];
            inferred.push(steps - pads[axis] - pads[axis + dims]);
        }
        let (len, count) = (inferred.iter().product::<usize>(), x.shape().element_count());
        let zeros = node.constant(Tensor::zeros(node.device(), [len], x.value().dtype())?);
        let places = places.to_dtype(DType::I64)?.reshape([count])?;
        let y = zeros.scatter(0, &places, x.reshape([count])?)?.reshape(&inferred[..])?;
        let Some(wanted) = node.integers(2)? else { return one(y) };
        // The rest of a larger result is zero.
        let more: Vec<[isize; 2]> =
            wanted.iter().zip(&inferred).map(|(all, &own)| [0, all - own as isize]).collect();
        one(padded(y, &more, PadMode::Constant(0.0))?)
    }),
];
