//! The kernels of this crate by name, loaded on a device when they are first launched.
//!
//! Their sources are in `kernels/`, and what NVRTC made of them in `kernels/ptx/`; both are kept
//! equal by `cargo xtask kernels`.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use lowtide_allocator::cuda::{CudaDevice, Function, Grid, Kernel, KernelError, Module, Parameter};

use crate::layout::{Layout, Nest, RANK_MAX, Shape};

/// A file of kernels: its name, and its code for every device since compute capability 8.0.
#[derive(Clone, Copy)]
pub(crate) struct Image {
    name: &'static str,
    ptx: &'static str,
}

macro_rules! images {
    ($($image:ident = $name:literal;)*) => {$(
        pub(crate) const $image: Image =
            Image { name: $name, ptx: include_str!(concat!("kernels/ptx/", $name, ".ptx")) };
    )*};
}

images! {
    CAST = "cast";
    CONV2D = "conv2d";
    CROSS_ENTROPY = "cross_entropy";
    ELEMENTWISE = "elementwise";
    FILL = "fill";
    FINITE = "finite";
    MATMUL = "matmul";
    MAX_POOL2D = "max_pool2d";
    RANDOM = "random";
    REDUCE = "reduce";
    UPDATE = "update";
}

/// What has been loaded on a device.
pub(crate) struct Loaded {
    device: CudaDevice,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    modules: BTreeMap<&'static str, Module>,
    functions: BTreeMap<&'static str, Function>,
}

impl Loaded {
    pub(super) fn new(device: &CudaDevice) -> Self {
        Loaded { device: device.clone(), state: Mutex::default() }
    }

    /// A kernel of an image.
    pub(super) fn function(&self, image: Image, kernel: &Kernel) -> Result<Function, KernelError> {
        // Both maps are consistent at every unlock, so a poisoned lock is taken over.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = state.functions.get(kernel.name) {
            return Ok(function.clone());
        }
        let module = match state.modules.get(image.name) {
            Some(module) => module.clone(),
            None => {
                let module = Module::load(&self.device, image.name, image.ptx.as_bytes())?;
                state.modules.insert(image.name, module.clone());
                module
            }
        };
        let function = module.function(kernel)?;
        state.functions.insert(kernel.name, function.clone());
        Ok(function)
    }
}

/// Threads of a block of kernels that take every n-th element.
const THREADS: u32 = 256;

/// Blocks that keep the largest devices busy; threads then take more elements each.
const BLOCKS_MAX: usize = 4096;

/// The grid for `len` elements.
pub(crate) fn grid(len: usize) -> Grid {
    Grid::row(len.div_ceil(THREADS as usize).min(BLOCKS_MAX) as u32, THREADS)
}

/// `struct Walk<1>` of `common.cu`, over one tensor, and those over more.
pub(crate) const WALK_OF_1: Parameter = walk_parameter(1);
pub(crate) const WALK_OF_2: Parameter = walk_parameter(2);
pub(crate) const WALK_OF_3: Parameter = walk_parameter(3);

const fn walk_parameter(tensors: usize) -> Parameter {
    Parameter::Words(2 + RANK_MAX + tensors * RANK_MAX)
}

/// `struct Walk<N>` over `shape`: strides are those of layouts of that shape.
pub(crate) fn walk<const N: usize>(shape: &Shape, layouts: [&Layout; N]) -> Vec<u64> {
    walk_of(&Nest::new(shape, layouts.map(Layout::strides)), shape.element_count())
}

/// `struct Walk<N>` over the `len` elements of a nest.
pub(crate) fn walk_of<const N: usize>(nest: &Nest<N>, len: usize) -> Vec<u64> {
    let mut words = vec![len as u64, nest.rank() as u64];
    words.extend(nest.dims().map(|size| size as u64));
    words.extend(nest.strides().into_iter().flatten().map(|stride| stride as u64));
    words
}
