//! Compiled kernels, kept in files so that the next process need not compile them again.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use super::compiler::{CompileError, Compiler, KernelSource};
use lowtide_allocator::cuda::{Architecture, CudaDevice};

/// The beginning of every file. Other formats of later versions begin with another mark.
const MARK: &[u8; 16] = b"lowtide kernel 1";

/// A folder for compiled kernels. Any file may be removed at any time.
///
/// A file is named after the program and a hash of all that decides its code: source, options,
/// version of the compiler, architecture, and this crate's version. A file appears whole or not at
/// all, and a file with a wrong checksum is made again. A folder that cannot be written is no
/// error: nothing is kept then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelCache {
    folder: Option<PathBuf>,
}

impl KernelCache {
    /// The environment variable that names the folder; an empty value means no cache.
    pub const VARIABLE: &'static str = "LOWTIDE_KERNEL_CACHE";

    /// A cache in the folder of [`VARIABLE`](Self::VARIABLE), else in `lowtide/kernels` of the
    /// user's cache: `XDG_CACHE_HOME`, else `.cache` in `HOME` (XDG Base Directory Specification
    /// 0.8). No cache if none of these variables is set.
    pub fn from_environment() -> KernelCache {
        let values = [KernelCache::VARIABLE, "XDG_CACHE_HOME", "HOME"].map(env::var_os);
        KernelCache::from_values(values)
    }

    /// A cache in this folder, which is made when the first file is kept.
    pub fn in_folder(folder: impl Into<PathBuf>) -> KernelCache {
        KernelCache { folder: Some(folder.into()) }
    }

    /// No cache: every process compiles.
    pub fn nowhere() -> KernelCache {
        KernelCache { folder: None }
    }

    /// The folder, if there is one.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    fn from_values([named, cache, home]: [Option<OsString>; 3]) -> KernelCache {
        if let Some(named) = named {
            return KernelCache {
                folder: Some(named.into()).filter(|path| *path != Path::new("")),
            };
        }
        let [cache, home] = [cache, home].map(|value| value.map(PathBuf::from));
        let home = home.map(|home| home.join(".cache"));
        // The specification asks to ignore paths that are not absolute.
        let cache = [cache, home].into_iter().flatten().find(|path| path.is_absolute());
        KernelCache { folder: cache.map(|cache| cache.join("lowtide").join("kernels")) }
    }

    /// The code that was kept under a key; else `make` makes the code, which is then kept.
    fn get_or_make(
        &self,
        name: &str,
        key: &str,
        make: impl FnOnce() -> Result<Vec<u8>, CompileError>,
    ) -> Result<Vec<u8>, CompileError> {
        let key = hash(&[key.as_bytes()]);
        let path =
            self.folder.as_ref().map(|folder| folder.join(format!("{name}-{key:032x}.cubin")));
        let known = path.as_ref().and_then(|path| fs::read(path).ok());
        if let Some(code) = known.and_then(|file| code_of(&file, key)) {
            return Ok(code);
        }
        let code = make()?;
        if let Some(path) = path {
            keep(&path, &file_of(&code, key));
        }
        Ok(code)
    }
}

/// The compiler for one architecture, with a cache of compiled code.
#[derive(Clone, Debug)]
pub struct KernelCompiler {
    compiler: Compiler,
    architecture: Architecture,
    cache: KernelCache,
}

impl KernelCompiler {
    /// The compiler for just this device, of a version that its driver can use.
    ///
    /// # Errors
    /// There is no compiler that the driver can use, the device reports no architecture, or a call
    /// failed.
    pub fn of(device: &CudaDevice, cache: KernelCache) -> Result<KernelCompiler, CompileError> {
        let architecture = device.architecture()?.ok_or(CompileError::NoArchitecture)?;
        let compiler = Compiler::of(device.driver())?;
        Ok(KernelCompiler { compiler, architecture, cache })
    }

    /// A compiler of any version, for an architecture.
    pub fn with(
        compiler: Compiler,
        architecture: Architecture,
        cache: KernelCache,
    ) -> KernelCompiler {
        KernelCompiler { compiler, architecture, cache }
    }

    /// The code of a program, from the cache or compiled now.
    ///
    /// # Errors
    /// As for [`Compiler::compile`].
    ///
    /// # Panics
    /// As for [`Compiler::compile`].
    pub fn cubin(&self, program: &KernelSource<'_>) -> Result<Vec<u8>, CompileError> {
        let KernelSource { name, source, options } = program;
        let (version, architecture) = (self.compiler.version(), self.architecture);
        let key = format!(
            "lowtide {} nvrtc {version} {architecture} {options:?} {name:?}\n{source}",
            env!("CARGO_PKG_VERSION")
        );
        self.cache.get_or_make(name, &key, || self.compiler.compile(program, architecture))
    }

    /// The architecture that kernels are compiled for.
    pub fn architecture(&self) -> Architecture {
        self.architecture
    }

    /// The compiler itself.
    pub fn compiler(&self) -> &Compiler {
        &self.compiler
    }

    /// The cache that keeps the compiled code.
    pub fn cache(&self) -> &KernelCache {
        &self.cache
    }
}

/// The contents of a file: the mark, the key, a hash of key and code, the code.
fn file_of(code: &[u8], key: u128) -> Vec<u8> {
    let key = key.to_le_bytes();
    [MARK, &key, &hash(&[&key, code]).to_le_bytes(), code].concat()
}

/// The code in a file; `None` if the file is damaged or has another key.
fn code_of(file: &[u8], key: u128) -> Option<Vec<u8>> {
    let code = file.get(3 * size_of::<u128>()..)?;
    (file == file_of(code, key)).then(|| code.to_vec())
}

/// Writes a file under another name and renames it, so that no reader sees a part of it. If writing
/// fails, nothing is kept.
fn keep(path: &Path, bytes: &[u8]) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let fresh = path.with_extension(format!("{}-{number}.fresh", process::id()));
    let folder = path.parent().unwrap_or(Path::new(""));
    let kept = fs::create_dir_all(folder)
        .and_then(|()| fs::write(&fresh, bytes))
        .and_then(|()| fs::rename(&fresh, path));
    if kept.is_err() {
        let _ = fs::remove_file(&fresh);
    }
}

/// FNV-1a of 128 bits, by its definition (Fowler, Noll, Vo), over parts one after the other.
fn hash(parts: &[&[u8]]) -> u128 {
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    const START: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    let step = |hash: u128, &byte: &u8| (hash ^ u128::from(byte)).wrapping_mul(PRIME);
    parts.iter().copied().flatten().fold(START, step)
}

#[cfg(feature = "testing")]
pub mod testing {
    //! Parts of the cache, for the tests of this crate.

    use std::ffi::OsString;

    use super::{CompileError, KernelCache};

    /// The cache of these values of the variables.
    pub fn from_values(values: [Option<OsString>; 3]) -> KernelCache {
        KernelCache::from_values(values)
    }

    /// The code that was kept under a key; else the code that `make` makes, which is kept.
    ///
    /// # Errors
    /// The error of `make`.
    pub fn get_or_make(
        cache: &KernelCache,
        name: &str,
        key: &str,
        make: impl FnOnce() -> Result<Vec<u8>, CompileError>,
    ) -> Result<Vec<u8>, CompileError> {
        cache.get_or_make(name, key, make)
    }

    /// FNV-1a of 128 bits over parts one behind the other.
    pub fn hash(parts: &[&[u8]]) -> u128 {
        super::hash(parts)
    }
}
