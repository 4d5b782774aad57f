//! Convolutions of slices, for the tests of this crate.

use half::{bf16, f16};

use super::Product;
use super::shape::Conv2dShape;
use super::way::{self, Slices};
use crate::cpu::Cpu;
use crate::dtype::Element;

/// The sizes of a convolution; pairs are (height, width).
#[derive(Clone, Copy, Debug)]
pub struct ConvSizes {
    /// Images.
    pub batch: usize,
    /// Channels of x, a multiple of `groups`.
    pub in_channels: usize,
    /// Rows of x.
    pub in_height: usize,
    /// Columns of x.
    pub in_width: usize,
    /// Channels of y, a multiple of `groups`.
    pub out_channels: usize,
    /// Rows and columns of the kernel.
    pub kernel: [usize; 2],
    /// Step between outputs.
    pub stride: [usize; 2],
    /// Zeros on each side of x.
    pub padding: [usize; 2],
    /// Step between the taps of the kernel.
    pub dilation: [usize; 2],
    /// Independent convolutions side by side.
    pub groups: usize,
}

impl ConvSizes {
    fn shape(&self) -> Conv2dShape {
        let &ConvSizes { batch, in_channels, in_height, in_width, out_channels, .. } = self;
        let &ConvSizes { kernel, stride, padding, dilation, groups, .. } = self;
        Conv2dShape {
            batch,
            in_channels,
            in_height,
            in_width,
            out_channels,
            kernel,
            stride,
            padding,
            dilation,
            groups,
        }
    }

    /// Rows of y; 0 where the kernel does not fit.
    pub fn out_height(&self) -> usize {
        self.shape().out_height()
    }

    /// Columns of y; 0 where the kernel does not fit.
    pub fn out_width(&self) -> usize {
        self.shape().out_width()
    }

    /// Elements of x.
    pub fn x_len(&self) -> usize {
        self.shape().x_len()
    }

    /// Elements of y.
    pub fn y_len(&self) -> usize {
        self.shape().y_len()
    }

    /// Elements of w.
    pub fn w_len(&self) -> usize {
        self.shape().w_len()
    }
}

/// The three products of a convolution.
#[derive(Clone, Copy, Debug)]
pub enum ConvProduct {
    /// y from x, w and perhaps a bias.
    Forward,
    /// dx from dy, w and perhaps a bias.
    BackwardInput,
    /// dw from dy and x.
    BackwardWeight,
}

/// Elements with the kernels that the library has for them.
pub trait Convolved: Element {
    /// Computes a product with scratch of NaN: a kernel that reads scratch before it writes it
    /// fails.
    ///
    /// # Panics
    /// If the slices are not as long as the sizes say.
    fn convolve(
        cpu: &Cpu,
        sizes: &ConvSizes,
        product: ConvProduct,
        factors: [&[Self]; 2],
        bias: Option<&[Self]>,
        to: &mut [Self],
    );
}

macro_rules! convolved {
    ($($element:ty, in $sum:ty;)*) => {$(
        impl Convolved for $element {
            fn convolve(
                cpu: &Cpu,
                sizes: &ConvSizes,
                product: ConvProduct,
                factors: [&[Self]; 2],
                bias: Option<&[Self]>,
                to: &mut [Self],
            ) {
                let shape = sizes.shape();
                let product = match product {
                    ConvProduct::Forward => Product::Forward,
                    ConvProduct::BackwardInput => Product::BackwardInput,
                    ConvProduct::BackwardWeight => Product::BackwardWeight,
                };
                let len = way::workspace_len::<$element, $sum>(&shape, product);
                let mut workspace = vec![<$sum>::NAN; len];
                let slices = Slices { factors, bias, to, workspace: &mut workspace };
                way::run(cpu.pool(), &shape, product, slices);
            }
        }
    )*};
}
convolved! {
    f64, in f64;
    f32, in f32;
    f16, in f32;
    bf16, in f32;
}
