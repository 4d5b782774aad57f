//! NVRTC, the compiler of CUDA C for a device, used while a program runs.

use std::ffi::{CString, c_char, c_int, c_void};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;

use lowtide_allocator::cuda::{Architecture, CudaError, Driver, Libraries, MissingLibrary};
use lowtide_allocator::function_table;

/// File names of the library, each with the first CUDA version that has it. The last name is the
/// name in an installation for developers, of any version.
#[cfg(windows)]
const NAMES: [(&str, usize); 2] = [("nvrtc64_130_0.dll", 13_000), ("nvrtc64_120_0.dll", 12_000)];
#[cfg(not(windows))]
const NAMES: [(&str, usize); 4] = [
    ("libnvrtc.so.13", 13_000),
    ("libnvrtc.so.12", 12_000),
    ("libnvrtc.so.11.2", 11_020),
    ("libnvrtc.so", 0),
];

/// The library that the compiler itself loads through the system's loader.
const BUILTINS: &str = "libnvrtc-builtins.so";

/// Number of version numbers of one major version. A later major may compile code that this driver
/// does not load.
const VERSIONS_OF_A_MAJOR: usize = 1000;

function_table! {
    Nvrtc:
    all have {
        version = "nvrtcVersion" (*mut c_int, *mut c_int);
        create = "nvrtcCreateProgram" (
            *mut *mut c_void, *const c_char, *const c_char, c_int, *const *const c_char,
            *const *const c_char
        );
        destroy = "nvrtcDestroyProgram" (*mut *mut c_void);
        compile = "nvrtcCompileProgram" (*mut c_void, c_int, *const *const c_char);
        log_size = "nvrtcGetProgramLogSize" (*mut c_void, *mut usize);
        log = "nvrtcGetProgramLog" (*mut c_void, *mut c_char);
        cubin_size = "nvrtcGetCUBINSize" (*mut c_void, *mut usize);
        cubin = "nvrtcGetCUBIN" (*mut c_void, *mut c_char);
    }
    some have {
        // Since CUDA 11.2.
        architecture_count = "nvrtcGetNumSupportedArchs" (*mut c_int);
        architectures = "nvrtcGetSupportedArchs" (*mut c_int);
    }
}

/// NVRTC as found on this machine. Clones share the library.
///
/// # Examples
/// ```no_run
/// use lowtide_allocator::cuda::{Architecture, Libraries};
/// use lowtide_tensor::cuda::gate::{Compiler, KernelSource};
///
/// let compiler = Compiler::open(&Libraries::from_environment())?;
/// let source = "extern \"C\" __global__ void nothing() {}";
/// let program = KernelSource { name: "nothing", source, options: &[] };
/// let cubin = compiler.compile(&program, Architecture { major: 9, minor: 0 })?;
/// # Ok::<(), lowtide_tensor::cuda::gate::CompileError>(())
/// ```
#[derive(Clone)]
pub struct Compiler {
    loaded: Arc<Loaded>,
}

struct Loaded {
    table: Nvrtc,
    path: PathBuf,
    version: usize,
}

/// A program to compile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelSource<'a> {
    /// Name of the program in messages.
    pub name: &'a str,
    /// CUDA C. The compiler has no headers.
    pub source: &'a str,
    /// Options beside the architecture.
    pub options: &'a [&'a str],
}

/// Reasons why there is no code for a device.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CompileError {
    /// There is no compiler on this machine, or it cannot be used.
    #[error("no compiler NVRTC: {0}")]
    Missing(#[from] MissingLibrary),
    /// The compiler is newer than the driver, which may refuse its code.
    #[error("NVRTC {path:?} is of CUDA {version}, the driver of CUDA {driver_version}")]
    NewerThanDriver {
        /// Path of the library's file.
        path: PathBuf,
        /// 1000 times the major number and 10 times the minor one.
        version: usize,
        /// The CUDA version that the driver serves, in the form of `version`.
        driver_version: usize,
    },
    /// The device reports no architecture, like the pretend device.
    #[error("the device names no architecture to compile for")]
    NoArchitecture,
    /// The compiler is older than the device.
    #[error("NVRTC of CUDA {version} does not know {architecture}")]
    UnknownArchitecture {
        /// Architecture of the device.
        architecture: Architecture,
        /// Version of the compiler.
        version: usize,
    },
    /// The source or an option is wrong.
    #[error("{program} does not compile for {architecture}:\n{log}")]
    Refused {
        /// Name of the program.
        program: String,
        /// Architecture that the program was compiled for.
        architecture: Architecture,
        /// Message of the compiler.
        log: String,
    },
    /// A call of the compiler failed.
    #[error("{call} failed with {name} ({code})")]
    Call {
        /// Name of the function that was called.
        call: &'static str,
        /// Code that the function returned.
        code: i32,
        /// NVIDIA's name of the code.
        name: &'static str,
    },
    /// The driver refused a query about its device.
    #[error(transparent)]
    Driver(#[from] CudaError),
}

impl Compiler {
    /// Opens the compiler that is found first, of any version.
    ///
    /// # Errors
    /// `Missing` if there is no compiler; or the compiler does not report its version.
    pub fn open(libraries: &Libraries) -> Result<Compiler, CompileError> {
        Compiler::named(libraries, &NAMES.map(|(name, _)| name))
    }

    /// Opens the compiler for a driver, of the same major version of CUDA or an earlier one. The
    /// search goes through the folders in which the driver was searched.
    ///
    /// # Errors
    /// `Missing` if there is no compiler, `NewerThanDriver` if there is only a later version; or a
    /// call failed.
    pub fn of(driver: &Driver) -> Result<Compiler, CompileError> {
        let driver_version = driver.version()?;
        let can_serve =
            |version| version / VERSIONS_OF_A_MAJOR <= driver_version / VERSIONS_OF_A_MAJOR;
        let names: Vec<_> = NAMES.iter().filter(|(_, version)| can_serve(*version)).collect();
        let names: Vec<&'static str> = names.into_iter().map(|(name, _)| *name).collect();
        let compiler = Compiler::named(driver.libraries(), &names)?;
        if can_serve(compiler.version()) {
            return Ok(compiler);
        }
        let (path, version) = (compiler.path().to_path_buf(), compiler.version());
        Err(CompileError::NewerThanDriver { path, version, driver_version })
    }

    fn named(libraries: &Libraries, names: &[&'static str]) -> Result<Compiler, CompileError> {
        if let Some(folder) = libraries.find(names).as_deref().and_then(Path::parent) {
            keep_builtins_of(folder);
        }
        let (library, path) = libraries.load(names)?;
        // SAFETY: 1. a library with these names is NVRTC: the search, or the user who named the
        // folder, promises so. Each function has had its type since CUDA 11.1. 2. The library is
        // never closed: it is forgotten below.
        let table = unsafe { Nvrtc::load(&library) };
        let table =
            table.map_err(|symbol| MissingLibrary::MissingSymbol { path: path.clone(), symbol })?;
        std::mem::forget(library);
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the compiler writes two numbers, to places for one each.
        check("nvrtcVersion", unsafe { (table.version)(&mut major, &mut minor) })?;
        let [major, minor] = [major, minor].map(|number| usize::try_from(number).unwrap_or(0));
        let version = VERSIONS_OF_A_MAJOR * major + 10 * minor;
        Ok(Compiler { loaded: Arc::new(Loaded { table, path, version }) })
    }

    /// The path of the library's file, or only its name if the system's loader found it.
    pub fn path(&self) -> &Path {
        &self.loaded.path
    }

    /// The compiler's version of CUDA: 1000 times the major number and 10 times the minor one.
    pub fn version(&self) -> usize {
        self.loaded.version
    }

    /// Compiles a program to a cubin for just this architecture, as
    /// [`Module::load`](super::Module::load) takes it.
    ///
    /// # Errors
    /// `Refused` with the compiler's message if the source is wrong; `UnknownArchitecture`; or a
    /// call failed.
    ///
    /// # Panics
    /// If name, source or an option has a zero inside.
    pub fn compile(
        &self,
        program: &KernelSource<'_>,
        architecture: Architecture,
    ) -> Result<Vec<u8>, CompileError> {
        if self.architectures()?.is_some_and(|known| !known.contains(&architecture)) {
            let version = self.version();
            return Err(CompileError::UnknownArchitecture { architecture, version });
        }
        let job = Job::new(&self.loaded.table, program)?;
        let target = format!("--gpu-architecture={architecture}");
        let options = program.options.iter().copied().chain([target.as_str()]);
        let options: Vec<CString> = options.map(text).collect();
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let count = pointers.len() as c_int;
        // SAFETY: the job is live; the options are strings that end with a zero, as many as said.
        let code = unsafe { (job.table.compile)(job.handle, count, pointers.as_ptr()) };
        match code {
            COMPILATION | INVALID_OPTION => {
                let (program, log) = (program.name.to_owned(), job.log()?);
                Err(CompileError::Refused { program, architecture, log })
            }
            _ => check("nvrtcCompileProgram", code).and_then(|()| job.cubin()),
        }
    }

    /// The architectures that the compiler supports; `None` if it cannot list them.
    fn architectures(&self) -> Result<Option<Vec<Architecture>>, CompileError> {
        let Nvrtc { architecture_count, architectures, .. } = &self.loaded.table;
        let Some((count_of, read)) = architecture_count.zip(*architectures) else {
            return Ok(None);
        };
        let mut count = 0;
        // SAFETY: the compiler writes one number, to a place for one.
        check("nvrtcGetNumSupportedArchs", unsafe { count_of(&mut count) })?;
        let mut found: Vec<c_int> = vec![0; usize::try_from(count).unwrap_or(0)];
        // SAFETY: the compiler writes as many numbers as it said, to a place for that many.
        check("nvrtcGetSupportedArchs", unsafe { read(found.as_mut_ptr()) })?;
        let found = found.into_iter().filter_map(|number| u32::try_from(number).ok());
        let of = |number| Architecture { major: number / 10, minor: number % 10 };
        Ok(Some(found.map(of).collect()))
    }
}

impl fmt::Debug for Compiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, version) = (self.path(), self.version());
        let mut text = f.debug_struct("Compiler");
        text.field("path", &path).field("version", &version).finish_non_exhaustive()
    }
}

/// A program while it is compiled.
struct Job<'a> {
    table: &'a Nvrtc,
    handle: *mut c_void,
}

impl<'a> Job<'a> {
    fn new(table: &'a Nvrtc, program: &KernelSource<'_>) -> Result<Job<'a>, CompileError> {
        let (source, name) = (text(program.source), text(program.name));
        let mut handle = std::ptr::null_mut();
        let none = std::ptr::null();
        // SAFETY: the compiler reads two strings that end with a zero, no header, and writes one
        // pointer, to a place for one.
        let code =
            unsafe { (table.create)(&mut handle, source.as_ptr(), name.as_ptr(), 0, none, none) };
        check("nvrtcCreateProgram", code)?;
        Ok(Job { table, handle })
    }

    fn log(&self) -> Result<String, CompileError> {
        let mut size_bytes = 0;
        // SAFETY: the job is live; the compiler writes one number, to a place for one.
        let code = unsafe { (self.table.log_size)(self.handle, &mut size_bytes) };
        check("nvrtcGetProgramLogSize", code)?;
        let mut bytes = vec![0_u8; size_bytes];
        // SAFETY: the job is live; the compiler writes as many bytes as it said.
        let code = unsafe { (self.table.log)(self.handle, bytes.as_mut_ptr().cast()) };
        check("nvrtcGetProgramLog", code)?;
        let bytes = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
        Ok(String::from_utf8_lossy(bytes).trim().to_owned())
    }

    fn cubin(&self) -> Result<Vec<u8>, CompileError> {
        let mut size_bytes = 0;
        // SAFETY: the job is live; the compiler writes one number, to a place for one.
        let code = unsafe { (self.table.cubin_size)(self.handle, &mut size_bytes) };
        check("nvrtcGetCUBINSize", code)?;
        let mut bytes = vec![0_u8; size_bytes];
        // SAFETY: the job is live; the compiler writes as many bytes as it said.
        let code = unsafe { (self.table.cubin)(self.handle, bytes.as_mut_ptr().cast()) };
        check("nvrtcGetCUBIN", code)?;
        Ok(bytes)
    }
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        for _ in 0..2 {
            // SAFETY: the job is this value's own and not used again.
            if unsafe { (self.table.destroy)(&mut self.handle) } == 0 {
                break;
            }
        }
    }
}

/// Loads the compiler's own library from a folder that the system's loader would not search.
fn keep_builtins_of(folder: &Path) {
    for path in Libraries::entries(folder) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // Without this library, compiling fails with an error that names it.
        if name.starts_with(BUILTINS)
            && let Ok(library) = Libraries::open(&path)
        {
            std::mem::forget(library);
        }
    }
}

fn text(value: &str) -> CString {
    CString::new(value).expect("sources and options have no zero inside")
}

/// `NVRTC_ERROR_INVALID_OPTION`.
const INVALID_OPTION: c_int = 5;

/// `NVRTC_ERROR_COMPILATION`.
const COMPILATION: c_int = 6;

/// `nvrtcResult`, from 1 on (NVRTC documentation, "Error Handling").
const NAMES_OF_CODES: [&str; 11] = [
    "NVRTC_ERROR_OUT_OF_MEMORY",
    "NVRTC_ERROR_PROGRAM_CREATION_FAILURE",
    "NVRTC_ERROR_INVALID_INPUT",
    "NVRTC_ERROR_INVALID_PROGRAM",
    "NVRTC_ERROR_INVALID_OPTION",
    "NVRTC_ERROR_COMPILATION",
    "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE",
    "NVRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION",
    "NVRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION",
    "NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID",
    "NVRTC_ERROR_INTERNAL_ERROR",
];

fn check(call: &'static str, code: c_int) -> Result<(), CompileError> {
    if code == 0 {
        return Ok(());
    }
    let name = usize::try_from(code).ok().and_then(|code| NAMES_OF_CODES.get(code.wrapping_sub(1)));
    Err(CompileError::Call { call, code, name: name.copied().unwrap_or("a code without a name") })
}
