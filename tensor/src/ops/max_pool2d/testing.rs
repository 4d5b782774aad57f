//! Poolings of slices, for the tests of this crate.

use super::cpu::{self, MaxPool2dShape};
use super::{MaxPool, Pool2dGeometry};
use crate::cpu::Cpu;
use crate::dtype::Float;

/// The sizes of a pooling of planes.
#[derive(Clone, Copy, Debug)]
pub struct PoolSizes(MaxPool2dShape);

impl PoolSizes {
    /// The sizes, if there are windows and each of them meets x.
    pub fn new(
        planes: usize,
        in_size: [usize; 2],
        window: Pool2dGeometry,
        options: MaxPool,
    ) -> Option<PoolSizes> {
        MaxPool2dShape::new(planes, in_size, window, options).map(PoolSizes)
    }

    /// Rows and columns of x.
    pub fn in_size(&self) -> [usize; 2] {
        self.0.in_size
    }

    /// Rows and columns of y.
    pub fn out_size(&self) -> [usize; 2] {
        self.0.out_size()
    }

    /// Elements of x.
    pub fn x_len(&self) -> usize {
        self.0.x_len()
    }

    /// Elements of y.
    pub fn y_len(&self) -> usize {
        self.0.y_len()
    }

    /// Kernel, stride and padding of the windows.
    pub fn window(&self) -> Pool2dGeometry {
        let MaxPool2dShape { kernel, stride, padding, .. } = self.0;
        Pool2dGeometry { kernel, stride, padding }
    }

    /// Places from one position of a window to the next.
    pub fn dilation(&self) -> [usize; 2] {
        self.0.dilation
    }
}

/// Elements with the kernels that the library has for them.
pub trait Pooled: Float {
    /// Overwrites y and the position of each maximum in its window.
    fn pool(cpu: &Cpu, sizes: &PoolSizes, x: &[Self], y: &mut [Self], positions: &mut [u8]);

    /// Overwrites dx.
    fn pool_backward(cpu: &Cpu, sizes: &PoolSizes, dy: &[Self], positions: &[u8], dx: &mut [Self]);
}

macro_rules! pooled {
    ($($float:ty),*) => {$(
        impl Pooled for $float {
            fn pool(
                cpu: &Cpu,
                sizes: &PoolSizes,
                x: &[Self],
                y: &mut [Self],
                positions: &mut [u8],
            ) {
                cpu::forward(cpu.pool(), &sizes.0, x, y, positions);
            }

            fn pool_backward(
                cpu: &Cpu,
                sizes: &PoolSizes,
                dy: &[Self],
                positions: &[u8],
                dx: &mut [Self],
            ) {
                cpu::backward::<$float, $float>(cpu.pool(), &sizes.0, dy, positions, dx);
            }
        }
    )*};
}
pooled!(f32, f64);
