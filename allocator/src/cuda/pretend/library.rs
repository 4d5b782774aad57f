//! Builds the pretend driver and its kernels with the system's C++ compiler.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::hash::{DefaultHasher, Hasher};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::{env, fs, io, thread};

use thiserror::Error;

use super::stand_in::{entries_of, is_of_source, names_in, stand_in};

/// The checks that kernels run under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// Checks every access to memory. An access must be aligned and inside the memory that the
    /// launch was given; shared memory must be written before it is read; a barrier must separate
    /// accesses of different threads. Some ten times slower.
    Accesses,
    /// Checks every access to memory with the compiler's address sanitizer. An access must be
    /// inside the memory that the launch was given, the shared memory of the block, or a variable.
    /// The driver is checked too. Start the process with the sanitizer's library preloaded
    /// (`LD_PRELOAD`), and with `ASAN_OPTIONS=halt_on_error=0:suppress_equal_pcs=0:detect_leaks=0`:
    /// a fault of a kernel then ends the device alone.
    Addresses,
    /// Checks only that all threads reach each barrier.
    Barriers,
}

/// Inputs of a build: the sources of the pretend driver, and kernels to compile for the processor.
#[derive(Clone, Debug)]
pub struct Library<'a> {
    /// The folder with the driver's sources, `xtask/pretend-gpu`.
    pub sources: &'a Path,
    /// Files of kernels.
    pub kernels: &'a [KernelFile],
    /// The way in which the kernels are compiled.
    pub watch: Watch,
}

/// Reasons why there is no pretend driver.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LibraryError {
    /// The pretend driver does not support this machine.
    #[error("the pretend driver is for Linux on x86-64")]
    OtherMachine,
    /// A file is not there, or cannot be written.
    #[error("{path:?}: {cause}")]
    File {
        /// The file of the library.
        path: PathBuf,
        /// Error of the system.
        #[source]
        cause: io::Error,
    },
    /// There is no compiler.
    #[error("no C++ compiler `{compiler}`: {cause}")]
    NoCompiler {
        /// Name of the compiler.
        compiler: String,
        /// Error of the system.
        #[source]
        cause: io::Error,
    },
    /// The compiler rejects a source.
    #[error("{compiler} does not compile {file:?}:\n{message}")]
    Refused {
        /// Name of the compiler.
        compiler: String,
        /// Path of the source.
        file: PathBuf,
        /// Message of the compiler.
        message: String,
    },
}

/// The compiler's name for the text before the kernels of a file.
const COMMON: &str = "common.cu";

/// Further names of the driver's file, which stands for these libraries too.
const OTHER_NAMES: [&str; 3] = ["libnvrtc.so.12", "libcublasLt.so.12", "libnccl.so.2"];

const WARNINGS: [&str; 7] =
    ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fvisibility=hidden"];

/// Warnings that are off: not every file uses all shared functions, and pragmas are for another
/// compiler.
const KERNEL_WARNINGS: [&str; 2] = ["-Wno-unused-function", "-Wno-unknown-pragmas"];

/// Flags that report each access to the executor, and end the process at undefined operations.
const WATCH: [&str; 2] = [
    "-fsanitize=thread,alignment,bounds,integer-divide-by-zero,shift",
    "-fno-sanitize-recover=alignment,bounds,integer-divide-by-zero,shift",
];

/// Flags for kernels and the driver. Errors are reported, and the process goes on.
const ADDRESSES: [&str; 4] =
    ["-fsanitize=address", "-fsanitize-recover=address", "-fno-omit-frame-pointer", "-g1"];

impl Library<'_> {
    /// Builds all missing parts below a folder. Returns the folder with the library, for
    /// [`Libraries::in_folders`](crate::cuda::Libraries::in_folders).
    ///
    /// # Errors
    /// There is no compiler, or there is an error in a source.
    pub fn build(&self, below: &Path) -> Result<PathBuf, LibraryError> {
        if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
            return Err(LibraryError::OtherMachine);
        }
        let sources = Sources::read(self.sources)?;
        let build = Build {
            compiler: env::var("CXX").unwrap_or_else(|_| "c++".to_owned()),
            include: self.sources.to_path_buf(),
            objects: below.join("objects"),
        };
        create(&build.objects)?;
        // One process builds at a time; the next one finds the files. Closing the file unlocks it.
        let lock = below.join("lock");
        let locked = fs::File::create(&lock).and_then(|file| file.lock().map(|()| file));
        let _locked = locked.map_err(|cause| of_file(&lock, cause))?;
        let (flags, kernel_flags): (&[&str], &[&str]) = match self.watch {
            Watch::Accesses => (&[], &WATCH),
            Watch::Addresses => (&ADDRESSES, &ADDRESSES),
            Watch::Barriers => (&[], &["-O2"]),
        };
        let mut driver = Vec::new();
        for name in ["device", "memory", "work", "modules", "nvrtc", "blas", "nccl"] {
            driver.push(build.object(name, &sources.file(name), &sources.headers, flags)?);
        }
        let mut library = Vec::new();
        for name in ["executor", "access"] {
            library.push(build.object(name, &sources.file(name), &sources.headers, flags)?);
        }
        let compiled = on_all_processors(self.kernels, |kernels| {
            let image = match &kernels.ptx {
                Some(ptx) => ptx.clone(),
                None => build.entries(kernels)?,
            };
            let (name, text) = (&kernels.name, &kernels.on_processor(&image));
            let object = build.object(name, text, &sources.headers, kernel_flags)?;
            Ok((object, (name, image)))
        })?;
        let (objects, images): (Vec<_>, Vec<_>) = compiled.into_iter().unzip();
        library.extend(objects);
        let all: Vec<&PathBuf> = driver.iter().chain(&library).collect();
        let folder = below.join(hash(all.iter().map(|path| path.as_os_str().as_encoded_bytes())));
        create(&folder)?;
        // cudarc asks for `libcuda.so`: under this name it finds the library that is loaded
        // already.
        build.link(&driver, flags, "libcuda.so", &folder.join("libcuda.so.1"))?;
        build.link(&library, flags, "kernels.so", &folder.join("kernels.so"))?;
        for (name, image) in images {
            Build::put(&folder.join(format!("{name}.ptx")), |fresh| fs::write(fresh, image))?;
        }
        // One file, so that all names belong to one library: code of this compiler is for this
        // driver.
        let driver = folder.join("libcuda.so.1");
        for name in OTHER_NAMES {
            let into = folder.join(name);
            link_unless_there(&driver, &into).map_err(|cause| of_file(&into, cause))?;
        }
        Ok(folder)
    }
}

/// Texts of the driver, to be compiled.
struct Sources {
    files: BTreeMap<String, String>,
    headers: String,
}

/// A file of kernels, for one type if it is for several.
#[derive(Clone, Debug)]
pub struct KernelFile {
    /// The file's name without its ending. For a file that is compiled for several types, the type
    /// follows, as in `norm_f32`.
    pub name: String,
    /// Path of the file.
    pub path: PathBuf,
    /// Text before the text of the file: the type that the file is compiled for, and text that all
    /// files share.
    pub common: String,
    /// Text of the file.
    pub source: String,
    /// PTX that NVRTC made of `common` and `source`, if an archive has it.
    pub ptx: Option<String>,
}

/// A folder of kernels, with the function that reads its files: only the crate that launches the
/// kernels knows how its sources are put together.
#[derive(Clone, Copy, Debug)]
pub struct KernelFolder<'a> {
    /// Path of the folder, relative to the folder of the crate that is tested.
    pub path: &'a str,
    /// Reads the files in a folder and those below it.
    pub read: fn(&Path) -> Result<Vec<KernelFile>, LibraryError>,
}

impl KernelFile {
    /// The text that is compiled for a device.
    pub fn whole_source(&self) -> String {
        format!("{}{}", self.common, self.source)
    }

    /// True if the PTX was compiled from this text. PTX in an archive may be older than the source.
    pub fn is_source_of(&self, ptx: &str) -> bool {
        is_of_source(ptx, &self.whole_source())
    }

    /// The image that a driver loads: the PTX, or a stand-in for the pretend driver.
    pub fn image(&self) -> String {
        self.ptx.clone().unwrap_or_else(|| stand_in(&self.name, &self.whole_source()))
    }

    /// The file as source for the C++ compiler, with the kernel names of `image`. The names of one
    /// file are hidden from every other file.
    fn on_processor(&self, image: &str) -> String {
        let KernelFile { path, common, source, .. } = self;
        let path = path.display();
        let mut text = format!(
            "#include \"cuda.h\"\nnamespace {{\n#line 1 \"{COMMON}\"\n{common}\n#line 1 \
             \"{path}\"\n{source}\n}}\n"
        );
        for name in names_in(image) {
            text += &format!("PRETEND_KERNEL({name})\n");
        }
        text
    }
}

impl Sources {
    fn read(folder: &Path) -> Result<Sources, LibraryError> {
        let mut sources = Sources { files: BTreeMap::new(), headers: String::new() };
        for path in files_in(folder)? {
            let (stem, extension) = parts(&path);
            match extension {
                "h" => sources.headers += &read_text(&path)?,
                "cc" => drop(sources.files.insert(stem.to_owned(), read_text(&path)?)),
                _ => {}
            }
        }
        Ok(sources)
    }

    fn file(&self, name: &str) -> String {
        self.files.get(name).cloned().unwrap_or_default()
    }
}

struct Build {
    compiler: String,
    include: PathBuf,
    objects: PathBuf,
}

impl Build {
    /// The object of a source. Compiled now unless an earlier build has compiled it.
    fn object(
        &self,
        name: &str,
        source: &str,
        headers: &str,
        flags: &[&str],
    ) -> Result<PathBuf, LibraryError> {
        let parts = [self.compiler.as_str(), source, headers].into_iter();
        let parts = parts.chain(WARNINGS).chain(flags.iter().copied());
        let base = format!("{name}-{}", hash(parts.map(str::as_bytes)));
        let object = self.objects.join(format!("{base}.o"));
        if object.exists() {
            return Ok(object);
        }
        let file = fresh_for(&self.objects.join(&base)).with_extension("cc");
        write(&file, source)?;
        let mut command = Command::new(&self.compiler);
        command.args(WARNINGS).args(flags).args(KERNEL_WARNINGS).args(["-c", "-I"]);
        command.arg(&self.include).arg(&file);
        self.make(command, &file, &object)?;
        // The source is no longer needed; a file that stays does no harm.
        let _ = fs::remove_file(&file);
        Ok(object)
    }

    /// The text that the driver reads for a file without PTX, kept like objects.
    fn entries(&self, kernels: &KernelFile) -> Result<String, LibraryError> {
        let source = kernels.whole_source();
        let of = hash([self.compiler.as_bytes(), source.as_bytes()].into_iter());
        let kept = self.objects.join(format!("{}-{of}.entries", kernels.name));
        if let Ok(entries) = fs::read_to_string(&kept) {
            return Ok(entries);
        }
        let file = fresh_for(&kept).with_extension("cc");
        write(&file, &source)?;
        let preprocessed = file.with_extension("ii");
        let mut command = Command::new(&self.compiler);
        command.args(["-E", "-P", "-w"]).arg(&file);
        self.make(command, &kernels.path, &preprocessed)?;
        let entries = entries_of(&source, &read_text(&preprocessed)?);
        // They are of no use any more, and do no harm.
        let _ = (fs::remove_file(&file), fs::remove_file(&preprocessed));
        Build::put(&kept, |fresh| fs::write(fresh, &entries))?;
        Ok(entries)
    }

    fn link(
        &self,
        objects: &[PathBuf],
        flags: &[&str],
        name: &str,
        into: &Path,
    ) -> Result<(), LibraryError> {
        if into.exists() {
            return Ok(());
        }
        let mut command = Command::new(&self.compiler);
        command.args(["-shared", &format!("-Wl,-soname,{name}")]).args(flags);
        command.args(objects).arg("-ldl");
        self.make(command, into, into)
    }

    /// Makes a file without the compiler: like [`make`](Self::make), whole or not at all.
    fn put(into: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> Result<(), LibraryError> {
        let fresh = fresh_for(into);
        let made = make(&fresh).and_then(|()| fs::rename(&fresh, into));
        made.map_err(|cause| of_file(into, cause))
    }

    /// Runs the compiler. Another process that builds the same file at the same time sees the whole
    /// file or none.
    fn make(&self, mut command: Command, file: &Path, into: &Path) -> Result<(), LibraryError> {
        let (compiler, fresh) = (self.compiler.clone(), fresh_for(into));
        // A library that is preloaded into this process must not be preloaded into the compiler.
        let output = command.env_remove("LD_PRELOAD").arg("-o").arg(&fresh).output();
        let output = output
            .map_err(|cause| LibraryError::NoCompiler { compiler: compiler.clone(), cause })?;
        if !output.status.success() {
            let message = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(LibraryError::Refused { compiler, file: file.to_path_buf(), message });
        }
        let named = link_unless_there(&fresh, into);
        let _ = fs::remove_file(&fresh);
        named.map_err(|cause| of_file(into, cause))
    }
}

/// Gives a file another name, unless another process was first. A loaded library has to stay the
/// same file, or its other names would belong to a second library.
fn link_unless_there(from: &Path, into: &Path) -> io::Result<()> {
    match fs::hard_link(from, into) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        linked => linked,
    }
}

/// A fresh name beside a file, which no other process or thread uses.
/// The results for all items, in their order, computed on a thread for each processor.
fn on_all_processors<'a, T: Sync, R: Send>(
    items: &'a [T],
    compute: impl Fn(&'a T) -> Result<R, LibraryError> + Sync,
) -> Result<Vec<R>, LibraryError> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut results = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { return Ok(results) };
            results.push((at, compute(item)?));
        }
    };
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let parts: Result<Vec<_>, LibraryError> = thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        running
            .into_iter()
            .map(|thread| thread.join().expect("a compiler's error is no panic"))
            .collect()
    });
    let mut results: Vec<(usize, R)> = parts?.into_iter().flatten().collect();
    results.sort_by_key(|(at, _)| *at);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}

fn fresh_for(into: &Path) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let name = into.file_name().unwrap_or_default().to_string_lossy();
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    into.with_file_name(format!("{name}.{}.{count}.fresh", std::process::id()))
}

fn hash<'a>(parts: impl Iterator<Item = &'a [u8]>) -> String {
    let mut hasher = DefaultHasher::new();
    for part in parts {
        hasher.write(part);
        hasher.write_u8(0xff);
    }
    format!("{:016x}", hasher.finish())
}

fn parts(path: &Path) -> (&str, &str) {
    let [stem, extension] = [path.file_stem(), path.extension()]
        .map(|part| part.and_then(OsStr::to_str).unwrap_or_default());
    (stem, extension)
}

fn of_file(path: &Path, cause: io::Error) -> LibraryError {
    LibraryError::File { path: path.to_path_buf(), cause }
}

/// The files and folders in a folder, in the order of their paths.
///
/// # Errors
/// `File` if the folder cannot be read.
pub fn files_in(folder: &Path) -> Result<Vec<PathBuf>, LibraryError> {
    let entries = fs::read_dir(folder).map_err(|cause| of_file(folder, cause))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    Ok(paths)
}

/// The text of a file.
///
/// # Errors
/// `File` if the file cannot be read, or is not text.
pub fn read_text(path: &Path) -> Result<String, LibraryError> {
    fs::read_to_string(path).map_err(|cause| of_file(path, cause))
}

fn write(path: &Path, text: &str) -> Result<(), LibraryError> {
    fs::write(path, text).map_err(|cause| of_file(path, cause))
}

fn create(folder: &Path) -> Result<(), LibraryError> {
    fs::create_dir_all(folder).map_err(|cause| of_file(folder, cause))
}
