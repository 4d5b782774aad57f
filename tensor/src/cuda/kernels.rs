//! The kernels of this crate by name, loaded on a device when they are first launched.
//!
//! Each file is beside its operation; `common.cu` stands before it. What NVRTC made of all of them
//! is in `kernels.ptx.xz`, which `cargo xtask kernels` keeps equal to the sources. Where the NVRTC
//! of this machine serves the device, it compiles the source for just its architecture; else the
//! driver makes its code of the PTX.

use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex, OnceLock, PoisonError};

use lowtide_allocator::cuda::{
    CudaDevice, Function, Grid, Kernel, KernelError, Module, Parameter, PtxArchive,
};

use crate::cuda::gate::{CompileError, KernelCache, KernelCompiler, KernelSource};
use crate::dtype::{DType, Element, for_each_dtype};
use crate::layout::{Layout, Nest, RANK_MAX, Shape};

/// A file of kernels.
#[derive(Clone, Copy)]
pub(crate) struct Image {
    name: &'static str,
    source: &'static str,
}

/// As `cargo xtask kernels` compiles.
const OPTIONS: [&str; 1] = ["--std=c++17"];

macro_rules! images {
    ($($image:ident = $operation:literal / $name:literal;)*) => {
        /// All of them.
        const IMAGES: &[Image] = &[$($image),*];
        $(
        pub(crate) const $image: Image = Image {
            name: $name,
            source: concat!(
                include_str!("common.cu"),
                include_str!(concat!("../ops/", $operation, "/", $name, ".cu"))
            ),
        };
        )*
    };
}

/// A file with kernels for every type: an image for each of f32, f64, f16 and bf16, with `STORED`
/// defined as that.
pub(crate) struct TypedImage([Image; 4]);

impl TypedImage {
    /// The image for elements of a float type.
    pub(crate) fn of(&self, dtype: DType) -> Image {
        let [of_f32, of_f64, of_f16, of_bf16] = self.0;
        match dtype {
            DType::F32 => of_f32,
            DType::F64 => of_f64,
            DType::F16 => of_f16,
            DType::BF16 => of_bf16,
            _ => unreachable!("the operation checked that its operands are of floats"),
        }
    }
}

macro_rules! typed_images {
    ($($image:ident = $operation:literal / $name:literal;)*) => {
        /// All of them.
        const TYPED_IMAGES: &[&TypedImage] = &[$(&$image),*];
        $(
        pub(crate) const $image: TypedImage = TypedImage([
            typed_images!(@ $operation / $name of "f32"),
            typed_images!(@ $operation / $name of "f64"),
            typed_images!(@ $operation / $name of "f16"),
            typed_images!(@ $operation / $name of "bf16"),
        ]);
        )*
    };
    (@ $operation:literal / $name:literal of $dtype:literal) => {
        Image {
            name: concat!($name, "_", $dtype),
            source: concat!(
                "#define STORED ", $dtype, "\n",
                include_str!("common.cu"),
                include_str!(concat!("../ops/", $operation, "/", $name, ".cu"))
            ),
        }
    };
}

/// The name of a kernel of a [`TypedImage`], for elements of a float type.
macro_rules! typed_name {
    ($name:literal, $dtype:expr) => {
        match $dtype {
            crate::dtype::DType::F64 => concat!($name, "_f64"),
            crate::dtype::DType::F16 => concat!($name, "_f16"),
            crate::dtype::DType::BF16 => concat!($name, "_bf16"),
            _ => concat!($name, "_f32"),
        }
    };
}
pub(crate) use typed_name;

typed_images! {
    ATTENTION = "attention" / "attention";
    AVG_POOL2D = "avg_pool2d" / "avg_pool2d";
    BATCH_NORM = "batch_norm" / "batch_norm";
    DROPOUT = "dropout" / "dropout";
    ELEMENTWISE = "elementwise" / "elementwise";
    LINEAR_CROSS_ENTROPY = "linear_cross_entropy" / "linear_cross_entropy";
    NORM = "norm" / "norm";
    ROTARY = "rotary" / "rotary";
    SCATTER = "indexing" / "scatter";
    SEQUENCE = "sequence" / "sequence";
    SOFTMAX = "softmax" / "softmax";
    UPSAMPLE2D = "upsample2d" / "upsample2d";
}

images! {
    CAST = "elementwise" / "cast";
    CONV2D = "conv2d" / "conv2d";
    CROSS_ENTROPY = "cross_entropy" / "cross_entropy";
    FILL = "elementwise" / "fill";
    FINITE = "finite" / "finite";
    GATHER = "indexing" / "gather";
    INTEGERS = "elementwise" / "integers";
    MATMUL = "matmul" / "matmul";
    MAX_POOL2D = "max_pool2d" / "max_pool2d";
    RANDOM = "random" / "random";
    REARRANGE = "rearrange" / "rearrange";
    REDUCE = "reduce" / "reduce";
    UPDATE = "update" / "update";
}

/// Code of a file of kernels for every device since compute capability 8.0.
fn ptx(image: Image) -> &'static str {
    static ARCHIVE: LazyLock<PtxArchive> = LazyLock::new(|| {
        PtxArchive::read(include_bytes!("kernels.ptx.xz")).expect("a part of the program")
    });
    ARCHIVE.get(image.name).expect("it has every file")
}

/// What has been loaded on a device.
pub(crate) struct Loaded {
    device: CudaDevice,
    compiler: OnceLock<Result<KernelCompiler, CompileError>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    modules: BTreeMap<&'static str, Module>,
    functions: BTreeMap<&'static str, Function>,
}

impl Loaded {
    pub(super) fn new(device: &CudaDevice) -> Self {
        Loaded { device: device.clone(), compiler: OnceLock::new(), state: Mutex::default() }
    }

    /// What compiles for the device, looked for when it is first asked for; or why nothing does.
    pub(super) fn compiler(&self) -> Result<&KernelCompiler, &CompileError> {
        let open = || KernelCompiler::of(&self.device, KernelCache::from_environment());
        self.compiler.get_or_init(open).as_ref()
    }

    /// A kernel of an image.
    pub(super) fn function(&self, image: Image, kernel: &Kernel) -> Result<Function, KernelError> {
        // Both maps are consistent at every unlock, so a poisoned lock is taken over.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = state.functions.get(kernel.name) {
            return Ok(function.clone());
        }
        let function = self.module(&mut state, image)?.function(kernel)?;
        state.functions.insert(kernel.name, function.clone());
        Ok(function)
    }

    /// Loads the images that programs in f32 use, so that what they take of the device is known
    /// before the rest is given away. An image that fails is loaded when a kernel of it is first
    /// launched, as are those of other types: the reserve has room for them.
    pub(super) fn load_all(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let typed = TYPED_IMAGES.iter().map(|image| image.of(DType::F32));
        IMAGES.iter().copied().chain(typed).for_each(|image| drop(self.module(&mut state, image)));
    }

    fn module(&self, state: &mut State, image: Image) -> Result<Module, KernelError> {
        if let Some(module) = state.modules.get(image.name) {
            return Ok(module.clone());
        }
        let module = self.load(image)?;
        state.modules.insert(image.name, module.clone());
        Ok(module)
    }

    /// Code of an image that was compiled for the device. What stands in its way (a compiler that
    /// does not take the source, a driver that does not take its code) does not stand in the way of
    /// the PTX, which does the same.
    fn load(&self, image: Image) -> Result<Module, KernelError> {
        let Image { name, source } = image;
        let program = KernelSource { name, source, options: &OPTIONS };
        if let Some(code) = self.compiler().ok().and_then(|compiler| compiler.cubin(&program).ok())
        {
            match Module::load(&self.device, name, &code) {
                Err(error) if !error.is_fault() && !error.is_out_of_memory() => {}
                loaded => return loaded,
            }
        }
        Module::load(&self.device, name, ptx(image).as_bytes())
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

/// A number converted to an element type, as bits.
pub(crate) fn bits_of(dtype: DType, value: f64) -> u64 {
    let mut bits = [0; 8];
    for_each_dtype!(dtype, T => {
        let value = [T::from_f64(value)];
        let bytes: &[u8] = bytemuck::cast_slice(&value);
        bits[..bytes.len()].copy_from_slice(bytes);
    });
    u64::from_le_bytes(bits)
}

/// `struct Walk<1>` of `common.cu`, over one tensor, and those over more.
pub(crate) const WALK_OF_1: Parameter = walk_parameter(1);
pub(crate) const WALK_OF_2: Parameter = walk_parameter(2);
pub(crate) const WALK_OF_5: Parameter = walk_parameter(5);

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
