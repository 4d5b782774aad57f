//! The kernels of this crate by name, loaded on a device when they are first launched.
//!
//! Each file is beside its operation; `common.cu` stands before it. The NVRTC of the machine
//! compiles the source for just the device's architecture. For machines without NVRTC, the feature
//! `ptx` puts `kernels.ptx.xz` into the program, and the driver compiles its PTX. `cargo xtask
//! kernels --write` makes this file.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;

use lowtide_allocator::cuda::CudaDevice;

use crate::cpu::lines::Blocks;
use crate::cuda::gate::{
    CompileError, Function, Grid, KernelCache, KernelCompiler, KernelError, KernelSource, Module,
    Parameter, Signature,
};
use crate::dtype::{DType, Element, for_each_dtype};
use crate::layout::{Layout, Nest, RANK_MAX, Shape};

/// A file of kernels. If the file is for several types, an image is for one of them.
#[derive(Clone, Copy)]
pub(crate) struct Image {
    name: &'static str,
    /// Name of the type in the source.
    stored: Option<&'static str>,
    text: &'static str,
}

impl Image {
    /// The source text, put together as `cargo xtask kernels` does.
    fn source(self) -> String {
        let stored = self.stored.map(|stored| format!("#define STORED {stored}\n"));
        [&stored.unwrap_or_default(), include_str!("common.cu"), self.text].concat()
    }

    fn cubin(self, compiler: &KernelCompiler) -> Result<Vec<u8>, CompileError> {
        let source = self.source();
        compiler.cubin(&KernelSource { name: self.name, source: &source, options: &OPTIONS })
    }
}

/// Options of the compiler, as in `cargo xtask kernels`. Products and sums are not fused, so that
/// formulas have the bits of the CPU.
const OPTIONS: [&str; 2] = ["--std=c++17", "--fmad=false"];

macro_rules! images {
    ($($image:ident = $operation:literal / $name:literal;)*) => {
        /// Every image of the list.
        const IMAGES: &[Image] = &[$($image),*];
        $(
        pub(crate) const $image: Image = Image {
            name: $name,
            stored: None,
            text: include_str!(concat!("../ops/", $operation, "/", $name, ".cu")),
        };
        )*
    };
}

/// A file with kernels for several types, one image for each: f32, f64, f16 and bf16; also i64,
/// i32, u8 and bool if the file is for integers, too; or only the types of tensor cores.
#[derive(Clone, Copy)]
pub(crate) struct TypedImage(&'static [Image]);

impl TypedImage {
    /// The image for elements of a type.
    pub(crate) fn of(self, dtype: DType) -> Image {
        self.get(dtype).expect("the operation checked that there are kernels for its type")
    }

    fn get(self, dtype: DType) -> Option<Image> {
        self.0.iter().copied().find(|image| image.stored == Some(dtype.name()))
    }
}

macro_rules! typed_images {
    ($($image:ident = $operation:literal / $name:literal of $types:ident;)*) => {
        /// Every image of the list.
        const TYPED_IMAGES: &[TypedImage] = &[$($image),*];
        $(
        pub(crate) const $image: TypedImage =
            TypedImage(&typed_images!(@ $types $operation / $name));
        )*
    };
    (@ floats $operation:literal / $name:literal) => {
        typed_images!(@ each $operation / $name: "f32", "f64", "f16", "bf16")
    };
    (@ factors $operation:literal / $name:literal) => {
        typed_images!(@ each $operation / $name: "f32", "f16", "bf16")
    };
    (@ numbers $operation:literal / $name:literal) => {
        typed_images!(
            @ each $operation / $name: "f32", "f64", "f16", "bf16", "i64", "i32", "u8", "bool"
        )
    };
    (@ each $operation:literal / $name:literal: $($stored:literal),*) => {
        [$(Image {
            name: concat!($name, "_", $stored),
            stored: Some($stored),
            text: include_str!(concat!("../ops/", $operation, "/", $name, ".cu")),
        }),*]
    };
}

/// The name of a kernel of a [`TypedImage`], for elements of a type.
macro_rules! typed_name {
    ($name:literal, $dtype:expr) => {
        match $dtype {
            crate::dtype::DType::F32 => concat!($name, "_f32"),
            crate::dtype::DType::F64 => concat!($name, "_f64"),
            crate::dtype::DType::F16 => concat!($name, "_f16"),
            crate::dtype::DType::BF16 => concat!($name, "_bf16"),
            crate::dtype::DType::I64 => concat!($name, "_i64"),
            crate::dtype::DType::I32 => concat!($name, "_i32"),
            crate::dtype::DType::U8 => concat!($name, "_u8"),
            crate::dtype::DType::Bool => concat!($name, "_bool"),
        }
    };
}
pub(crate) use typed_name;

typed_images! {
    ADAPTIVE_MAX_POOL2D = "adaptive_max_pool2d" / "adaptive_max_pool2d" of floats;
    ATTENTION = "attention" / "attention" of floats;
    AVG_POOL2D = "avg_pool2d" / "avg_pool2d" of floats;
    BATCH_NORM = "batch_norm" / "batch_norm" of floats;
    CDIST = "cdist" / "cdist" of floats;
    CHANNELS_LAST = "conv2d/tensor_cores" / "channels_last" of factors;
    CONV2D = "conv2d" / "conv2d" of floats;
    COUNT = "count" / "count" of floats;
    CROSS_ENTROPY = "cross_entropy" / "cross_entropy" of floats;
    CTC = "ctc" / "ctc" of floats;
    DROPOUT = "dropout" / "dropout" of floats;
    ELEMENTWISE = "elementwise" / "elementwise" of floats;
    FINITE = "finite" / "finite" of floats;
    LINEAR_CROSS_ENTROPY = "linear_cross_entropy" / "linear_cross_entropy" of floats;
    MATMUL = "matmul" / "matmul" of floats;
    MAX_POOL2D = "max_pool2d" / "max_pool2d" of floats;
    NLL = "cross_entropy" / "nll" of floats;
    NORM = "norm" / "norm" of floats;
    PAIR_LOSS = "pair_loss" / "pair_loss" of floats;
    QUANTIZE = "quantize" / "quantize" of floats;
    RANDOM = "random" / "random" of floats;
    REDUCE = "reduce" / "reduce" of numbers;
    ROTARY = "rotary" / "rotary" of floats;
    SCATTER = "indexing" / "scatter" of floats;
    SEQUENCE = "sequence" / "sequence" of numbers;
    SOFT = "cross_entropy" / "soft" of floats;
    SOFTMAX = "softmax" / "softmax" of floats;
    SPECIAL = "elementwise" / "special" of floats;
    UPDATE = "update" / "update" of floats;
    UPSAMPLE2D = "upsample2d" / "upsample2d" of floats;
}

images! {
    ARRIVALS = "indexing" / "arrivals";
    CAST = "elementwise" / "cast";
    COMPACTION = "compaction" / "compaction";
    FILL = "elementwise" / "fill";
    GATHER = "indexing" / "gather";
    INTEGERS = "elementwise" / "integers";
    ONE_HOT = "indexing" / "one_hot";
    RANDOM_INTEGERS = "random" / "random_integers";
    REARRANGE = "rearrange" / "rearrange";
    SCAN = "scan" / "scan";
    SEARCH = "search" / "search";
    SORT = "sort" / "sort";
    TRIANGLE = "triangle" / "triangle";
    UNIQUE = "unique" / "unique";
}

/// Code of a file of kernels for every device since compute capability 8.0, if this program has it.
#[cfg(feature = "ptx")]
fn ptx(image: Image) -> Option<String> {
    use std::sync::LazyLock;

    use crate::cuda::gate::PtxArchive;

    static ARCHIVE: LazyLock<PtxArchive> = LazyLock::new(|| {
        PtxArchive::read(include_bytes!("kernels.ptx.xz")).expect("a part of the program")
    });
    ARCHIVE.get(image.name).map(str::to_owned)
}

/// Stand-in for the code, on the pretend driver of tests.
#[cfg(all(feature = "pretend", not(feature = "ptx")))]
fn ptx(image: Image) -> Option<String> {
    Some(lowtide_allocator::cuda::pretend::stand_in(image.name, &image.source()))
}

#[cfg(not(any(feature = "pretend", feature = "ptx")))]
fn ptx(_image: Image) -> Option<String> {
    None
}

/// Compiles every kernel of this crate for every type, on all cores, so that no first launch has to
/// compile: for use after an installation, for example. The compiler's
/// [cache](KernelCompiler::cache) keeps the code. Returns the number of compiled images.
///
/// # Errors
/// The error of the first kernel that does not compile; all others are compiled.
pub fn compile_kernels(compiler: &KernelCompiler) -> Result<usize, CompileError> {
    let cubins = cubins(compiler, &all_images());
    let kept: Vec<Vec<u8>> = cubins.into_iter().collect::<Result<_, _>>()?;
    Ok(kept.len())
}

/// Every kernel of this crate, in every type.
fn all_images() -> Vec<Image> {
    let typed = TYPED_IMAGES.iter().flat_map(|image| image.0);
    IMAGES.iter().chain(typed).copied().collect()
}

/// Code of each image, from the cache or compiled now, on all cores.
fn cubins(compiler: &KernelCompiler, images: &[Image]) -> Vec<Result<Vec<u8>, CompileError>> {
    let next = AtomicUsize::new(0);
    let cubins: Vec<_> = images.iter().map(|_| OnceLock::new()).collect();
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some((image, cubin)) = images.get(at).zip(cubins.get(at)) else { return };
            cubin.get_or_init(|| image.cubin(compiler));
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from).min(images.len());
    thread::scope(|scope| {
        // If the system refuses a thread, this thread does its work.
        for _ in 1..threads {
            let _ = thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    let of = |cubin: OnceLock<_>| cubin.into_inner().expect("every image was somebody's turn");
    cubins.into_iter().map(of).collect()
}

/// The code that has been loaded on a device.
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

    /// The compiler for the device, opened by the first call; or the reason why there is none.
    pub(super) fn compiler(&self) -> Result<&KernelCompiler, &CompileError> {
        let open = || KernelCompiler::of(&self.device, KernelCache::from_environment());
        self.compiler.get_or_init(open).as_ref()
    }

    /// A kernel of an image.
    pub(super) fn function(
        &self,
        image: Image,
        signature: &Signature,
    ) -> Result<Function, KernelError> {
        // Both maps are consistent at every unlock, so a poisoned lock is taken over.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = state.functions.get(signature.name) {
            return Ok(function.clone());
        }
        let function = self.module(&mut state, image)?.function(signature)?;
        state.functions.insert(signature.name, function.clone());
        Ok(function)
    }

    /// Loads the images that programs in f32 use, so that they take their memory before the
    /// allocator gets the rest. An image that fails is loaded again with the first launch of its
    /// kernels. Images of other types are loaded then, too: the reserve has room for them.
    pub(super) fn load_all(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let typed = TYPED_IMAGES.iter().filter_map(|image| image.get(DType::F32));
        let images: Vec<Image> = IMAGES.iter().copied().chain(typed).collect();
        let cubins = match self.compiler() {
            Ok(compiler) => cubins(compiler, &images),
            Err(error) => images.iter().map(|_| Err(error.clone())).collect(),
        };
        for (image, cubin) in images.into_iter().zip(cubins) {
            if let Ok(module) = self.load(image, cubin) {
                state.modules.insert(image.name, module);
            }
        }
    }

    fn module(&self, state: &mut State, image: Image) -> Result<Module, KernelError> {
        if let Some(module) = state.modules.get(image.name) {
            return Ok(module.clone());
        }
        let cubin = self.compiler().map_err(CompileError::clone);
        let module = self.load(image, cubin.and_then(|compiler| image.cubin(compiler)))?;
        state.modules.insert(image.name, module.clone());
        Ok(module)
    }

    /// Loads an image from code that was compiled for the device. If the compiler refuses the
    /// source, or the driver refuses the code, the PTX is loaded instead, which does the same.
    fn load(
        &self,
        image: Image,
        cubin: Result<Vec<u8>, CompileError>,
    ) -> Result<Module, KernelError> {
        let name = image.name;
        let reason = match cubin.map(|code| Module::load(&self.device, name, &code)) {
            Ok(Err(error)) if !error.is_fault() && !error.is_out_of_memory() => error.to_string(),
            Ok(loaded) => return loaded,
            Err(error) => error.to_string(),
        };
        let ptx = ptx(image).ok_or(KernelError::NoCode { module: name, reason })?;
        Module::load(&self.device, name, ptx.as_bytes())
    }
}

/// Threads of a block, for kernels whose threads take every n-th element.
const THREADS: u32 = 256;

/// Largest number of blocks, which keeps the largest devices busy. With more elements, threads take
/// several.
const BLOCKS_MAX: usize = 4096;

/// The grid for `len` elements.
pub(crate) fn grid(len: usize) -> Grid {
    Grid::row(len.div_ceil(THREADS as usize).min(BLOCKS_MAX) as u32, THREADS)
}

/// The division of lines of elements among groups of threads, see `struct LineGroup` and `struct
/// HeldLines`.
#[derive(Clone, Copy)]
pub(crate) struct LineGroups {
    pub(crate) lanes: u32,
    pub(crate) blocks: u32,
    threads: u32,
}

impl LineGroups {
    /// Divides the lines of [`Blocks`]. A thread gets two packs of a short line, so that several
    /// lines share a warp. A line that a warp cannot hold gets a block.
    pub(crate) fn of(blocks: Blocks, dtype: DType, blocks_max: u32) -> Self {
        /// Threads of a block of several groups.
        const SHARED_THREADS: usize = 128;
        const WARP_THREADS: usize = 32;
        let Blocks { outer, len, inner } = blocks;
        let pack_len = 16 / dtype.size_bytes();
        let held_packs = if dtype.size_bytes() == 2 { 4 } else { 8 };
        let packs = len.div_ceil(pack_len);
        let (lanes, threads) = if inner > 1 {
            (1, SHARED_THREADS)
        } else if packs <= WARP_THREADS * held_packs {
            ((packs / 2).next_power_of_two().min(WARP_THREADS), SHARED_THREADS)
        } else {
            let threads = packs.div_ceil(held_packs / 2).next_multiple_of(WARP_THREADS);
            let threads = threads.min(THREADS as usize);
            (threads, threads)
        };
        let needed = (outer * inner).div_ceil(threads / lanes);
        let blocks = needed.min(blocks_max as usize) as u32;
        LineGroups { lanes: lanes as u32, blocks, threads: threads as u32 }
    }

    pub(crate) fn grid(&self) -> Grid {
        Grid::row(self.blocks, self.threads)
    }
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

/// The parameters `struct Walk<N>` of `common.cu`, over one tensor and over more.
pub(crate) const WALK_OF_1: Parameter = walk_parameter(1);
pub(crate) const WALK_OF_2: Parameter = walk_parameter(2);
pub(crate) const WALK_OF_3: Parameter = walk_parameter(3);
pub(crate) const WALK_OF_4: Parameter = walk_parameter(4);
pub(crate) const WALK_OF_5: Parameter = walk_parameter(5);
pub(crate) const WALK_OF_6: Parameter = walk_parameter(6);

const fn walk_parameter(tensors: usize) -> Parameter {
    Parameter::Words(2 + 2 * RANK_MAX + tensors * RANK_MAX)
}

/// The words of `struct Walk<N>` over `shape`, with the strides of layouts of this shape.
pub(crate) fn walk<const N: usize>(shape: &Shape, layouts: [&Layout; N]) -> Vec<u64> {
    walk_of(&Nest::new(shape, layouts.map(Layout::strides)), shape.element_count())
}

/// The words of `struct Walk<N>` over the `len` elements of a nest.
pub(crate) fn walk_of<const N: usize>(nest: &Nest<N>, len: usize) -> Vec<u64> {
    let mut words = vec![len as u64, nest.rank() as u64];
    words.extend(nest.dims().map(|size| size as u64));
    words.extend(nest.dims().map(|size| {
        let [size_and_magic, shift] = divisor(size);
        size_and_magic >> 32 | shift << 32
    }));
    words.extend(nest.strides().into_iter().flatten().map(|stride| stride as u64));
    words
}

/// The words of `struct Divisor` of `common.cu`: a size to divide by. Sizes from 2³¹ on are not
/// supported, because kernels divide by such sizes in another way.
pub(crate) fn divisor(size: usize) -> [u64; 2] {
    let size = size.clamp(1, (1 << 31) - 1) as u64;
    let shift = u64::from(size.next_power_of_two().trailing_zeros());
    let magic = ((1 << 32) * ((1 << shift) - size)) / size + 1;
    [size | magic << 32, shift]
}

/// The index of a name in the first enum of a file of kernels. The function is for constants, so
/// that the compiler reports a missing name as an error.
pub(crate) const fn kernel_number(file: &str, name: &str) -> u32 {
    let (text, name) = (file.as_bytes(), name.as_bytes());
    let (mut at, mut number, mut is_in_enum) = (0, 0, false);
    while at < text.len() {
        match text[at] {
            b'{' if !is_in_enum => (is_in_enum, number) = (true, 0),
            b'}' => is_in_enum = false,
            b'/' => {
                while text[at] != b'\n' {
                    at += 1;
                }
            }
            b'A'..=b'Z' if is_in_enum => {
                let start = at;
                while is_of_name(text[at]) {
                    at += 1;
                }
                if is_same(text, start, at, name) {
                    return number;
                }
                number += 1;
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    panic!("the file has no such formula")
}

const fn is_of_name(byte: u8) -> bool {
    byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_'
}

const fn is_same(text: &[u8], start: usize, end: usize, name: &[u8]) -> bool {
    let mut index = 0;
    while index < name.len() && start + index < end && text[start + index] == name[index] {
        index += 1;
    }
    index == name.len() && start + index == end
}
