//! Builds the pretend driver and its kernels with the system's C++ compiler.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{env, fs, io};

use thiserror::Error;

use super::stand_in::{entries_of, is_of_source, names_in, stand_in};
use crate::cuda::ptx::PtxArchive;

/// How closely kernels are watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// Every access to memory: whether it is inside what the launch was given, aligned, written
    /// before it is read where it is shared, and a barrier away from what other threads do. Some
    /// ten times slower.
    Accesses,
    /// Every access to memory, by the compiler's address sanitizer: whether it is inside what the
    /// launch was given, its block's shared memory, or a variable. The driver is watched, too. The
    /// process has to be started with the sanitizer's library preloaded (`LD_PRELOAD`), and with
    /// `ASAN_OPTIONS=halt_on_error=0:suppress_equal_pcs=0:detect_leaks=0`: a fault of a kernel ends
    /// the device alone.
    Addresses,
    /// Nothing but barriers that not all threads reach.
    Barriers,
}

/// What to build: the pretend driver, and beside it kernels for the processor.
#[derive(Clone, Debug)]
pub struct Library<'a> {
    /// The folder with the driver's sources, `xtask/pretend-gpu`.
    pub sources: &'a Path,
    /// Folders of kernels, see [`KernelFile::all_below`].
    pub kernels: &'a [&'a Path],
    /// How the kernels are compiled.
    pub watch: Watch,
}

/// Why there is no pretend driver.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LibraryError {
    /// It is for another machine.
    #[error("the pretend driver is for Linux on x86-64")]
    OtherMachine,
    /// A file is not there, or cannot be written.
    #[error("{path:?}: {cause}")]
    File {
        /// The file of the library.
        path: PathBuf,
        /// What the system says of it.
        #[source]
        cause: io::Error,
    },
    /// There is no compiler.
    #[error("no C++ compiler `{compiler}`: {cause}")]
    NoCompiler {
        /// What was started.
        compiler: String,
        /// What the system says of it.
        #[source]
        cause: io::Error,
    },
    /// The compiler does not take a source.
    #[error("{compiler} does not compile {file:?}:\n{message}")]
    Refused {
        /// Which compiler.
        compiler: String,
        /// Which source.
        file: PathBuf,
        /// What it said.
        message: String,
    },
}

/// The common source, beside the kernels that it stands before.
const COMMON: &str = "common.cu";

/// A file that has this is compiled once for each of these types, with [`STORED`] defined as it.
const TYPED: &str = "KERNEL(";
const TYPES: [&str; 8] = ["f32", "f64", "f16", "bf16", "i64", "i32", "u8", "bool"];

/// The types of a file with the first of these are all, with the other those that tensor cores
/// take, and without either the floats.
const WITH_INTEGERS: &str = "// Integers, too.";
const FOR_TENSOR_CORES: &str = "// For tensor cores.";
const FACTORS: [&str; 3] = ["f32", "f16", "bf16"];

fn types_of(source: &str) -> &'static [&'static str] {
    match (source.contains(WITH_INTEGERS), source.contains(FOR_TENSOR_CORES)) {
        (true, _) => &TYPES,
        (_, true) => &FACTORS,
        _ => &TYPES[..4],
    }
}

const STORED: &str = "STORED";

/// The libraries that the driver's file is, beside the driver.
const OTHER_NAMES: [&str; 3] = ["libnvrtc.so.12", "libcublasLt.so.12", "libnccl.so.2"];

const WARNINGS: [&str; 7] =
    ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fvisibility=hidden"];

/// What is common to kernels need not be of use to each, and says things to another compiler.
const KERNEL_WARNINGS: [&str; 2] = ["-Wno-unused-function", "-Wno-unknown-pragmas"];

/// What tells the executor of each access, and what kernels are not to do.
const WATCH: [&str; 2] = [
    "-fsanitize=thread,alignment,bounds,integer-divide-by-zero,shift",
    "-fno-sanitize-recover=alignment,bounds,integer-divide-by-zero,shift",
];

/// For kernels and the driver. What is found is reported, and the process goes on.
const ADDRESSES: [&str; 4] =
    ["-fsanitize=address", "-fsanitize-recover=address", "-fno-omit-frame-pointer", "-g1"];

impl Library<'_> {
    /// Builds what is not built yet below a folder, and returns where it is now: a folder for
    /// [`Libraries::in_folders`](crate::cuda::Libraries::in_folders).
    ///
    /// # Errors
    /// There is no compiler, or something to compile.
    pub fn build(&self, below: &Path) -> Result<PathBuf, LibraryError> {
        if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
            return Err(LibraryError::OtherMachine);
        }
        let sources = Sources::read(self)?;
        let build = Build {
            compiler: env::var("CXX").unwrap_or_else(|_| "c++".to_owned()),
            include: self.sources.to_path_buf(),
            objects: below.join("objects"),
        };
        create(&build.objects)?;
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
        let mut images = Vec::new();
        for kernels in &sources.kernels {
            let image = match &kernels.ptx {
                Some(ptx) => ptx.clone(),
                None => build.entries(kernels)?,
            };
            let (name, text) = (&kernels.name, &kernels.on_processor(&image));
            library.push(build.object(name, text, &sources.headers, kernel_flags)?);
            images.push((name, image));
        }
        let all: Vec<&PathBuf> = driver.iter().chain(&library).collect();
        let folder = below.join(hash(all.iter().map(|path| path.as_os_str().as_encoded_bytes())));
        create(&folder)?;
        // cudarc asks for `libcuda.so`: by this name it finds what is loaded already.
        build.link(&driver, flags, "libcuda.so", &folder.join("libcuda.so.1"))?;
        build.link(&library, flags, "kernels.so", &folder.join("kernels.so"))?;
        for (name, image) in images {
            Build::put(&folder.join(format!("{name}.ptx")), |fresh| fs::write(fresh, image))?;
        }
        // One file, so that all names are of one library: the compiler's code is for this driver.
        let driver = folder.join("libcuda.so.1");
        for name in OTHER_NAMES {
            let into = folder.join(name);
            link_unless_there(&driver, &into).map_err(|cause| of_file(&into, cause))?;
        }
        Ok(folder)
    }
}

/// Texts to compile.
struct Sources {
    files: BTreeMap<String, String>,
    headers: String,
    kernels: Vec<KernelFile>,
}

/// A file of kernels, with what was made of it.
#[derive(Clone, Debug)]
pub struct KernelFile {
    /// The file's name without its ending. For a file that is compiled for several types, the type
    /// follows, as in `norm_f32`.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
    /// What stands before it: the type that it is compiled for, and what is common to all.
    pub common: String,
    /// What is in it.
    pub source: String,
    /// What NVRTC made of both, where there is an archive that has it.
    ptx: Option<String>,
}

impl KernelFile {
    /// Every `NAME.cu` in a folder and those below it, in the order of their names, once for each
    /// type where its kernels are named by `KERNEL(..)`. Above or beside them there may be one
    /// [`PtxArchive`] of all, and one `common.cu`, which stands before each of them.
    ///
    /// # Errors
    /// `File` for one that cannot be read.
    pub fn all_below(folder: &Path) -> Result<Vec<KernelFile>, LibraryError> {
        let (mut paths, mut common, mut archive) = (Vec::new(), String::new(), None);
        for path in files_below(folder)? {
            match path.file_name().and_then(OsStr::to_str).unwrap_or_default() {
                COMMON => common = read(&path)?,
                PtxArchive::FILE_NAME => {
                    let bytes = fs::read(&path).and_then(|bytes| PtxArchive::read(&bytes));
                    archive = Some(bytes.map_err(|cause| of_file(&path, cause))?);
                }
                _ if parts(&path).1 == "cu" => paths.push(path),
                _ => {}
            }
        }
        paths.sort_by(|a, b| parts(a).0.cmp(parts(b).0));
        // One that was made before the last change is of no use.
        let ptx_of = |name: &str, source: &str| {
            let ptx = archive.as_ref().and_then(|archive| archive.get(name));
            ptx.filter(|ptx| is_of_source(ptx, source)).map(str::to_owned)
        };
        let mut files = Vec::new();
        for path in paths {
            let (stem, source) = (parts(&path).0.to_owned(), read(&path)?);
            let mut variants = vec![(stem.clone(), common.clone())];
            if source.contains(TYPED) {
                let variant = |name: &&str| {
                    (format!("{stem}_{name}"), format!("#define {STORED} {name}\n{common}"))
                };
                variants = types_of(&source).iter().map(variant).collect();
            }
            for (name, common) in variants {
                let (source, path) = (source.clone(), path.clone());
                let mut file = KernelFile { name, path, common, source, ptx: None };
                file.ptx = ptx_of(&file.name, &file.whole_source());
                files.push(file);
            }
        }
        Ok(files)
    }

    /// As it is compiled for a device.
    pub fn whole_source(&self) -> String {
        format!("{}{}", self.common, self.source)
    }

    /// What a driver loads: the PTX, or what stands for it, which the pretend driver takes alone.
    pub fn image(&self) -> String {
        self.ptx.clone().unwrap_or_else(|| stand_in(&self.name, &self.whole_source()))
    }

    /// As the C++ compiler takes it, with the names of its kernels in an image. Nothing of one file
    /// is seen by another.
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
    fn read(library: &Library<'_>) -> Result<Sources, LibraryError> {
        let mut sources =
            Sources { files: BTreeMap::new(), headers: String::new(), kernels: Vec::new() };
        for path in entries(library.sources)? {
            let (stem, extension) = parts(&path);
            match extension {
                "h" => sources.headers += &read(&path)?,
                "cc" => drop(sources.files.insert(stem.to_owned(), read(&path)?)),
                _ => {}
            }
        }
        for folder in library.kernels {
            sources.kernels.extend(KernelFile::all_below(folder)?);
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
    /// The object of a source, which is compiled if no build has done that.
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
        // It is of no use any more, and does no harm.
        let _ = fs::remove_file(&file);
        Ok(object)
    }

    /// What the driver reads of a file without PTX, kept like objects.
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
        let entries = entries_of(&source, &read(&preprocessed)?);
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

    /// Makes a file that is not the compiler's, likewise whole or not at all.
    fn put(into: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> Result<(), LibraryError> {
        let fresh = fresh_for(into);
        let made = make(&fresh).and_then(|()| fs::rename(&fresh, into));
        made.map_err(|cause| of_file(into, cause))
    }

    /// Runs the compiler. Others, who may build the same right now, see the whole file or none.
    fn make(&self, mut command: Command, file: &Path, into: &Path) -> Result<(), LibraryError> {
        let (compiler, fresh) = (self.compiler.clone(), fresh_for(into));
        // What this process is started with is not for the compiler.
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

/// Gives a file another name, unless another process was first: a library that a process has loaded
/// has to stay the file that it was, or its other names would be of a second one.
fn link_unless_there(from: &Path, into: &Path) -> io::Result<()> {
    match fs::hard_link(from, into) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        linked => linked,
    }
}

/// A name beside a file's own that no other has: neither a process nor a thread.
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

fn entries(folder: &Path) -> Result<Vec<PathBuf>, LibraryError> {
    let entries = fs::read_dir(folder).map_err(|cause| of_file(folder, cause))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    Ok(paths)
}

/// The files of a folder and of those in it.
fn files_below(folder: &Path) -> Result<Vec<PathBuf>, LibraryError> {
    let mut files = Vec::new();
    for path in entries(folder)? {
        if path.is_dir() {
            files.extend(files_below(&path)?);
        } else {
            files.push(path);
        }
    }
    Ok(files)
}

fn read(path: &Path) -> Result<String, LibraryError> {
    fs::read_to_string(path).map_err(|cause| of_file(path, cause))
}

fn write(path: &Path, text: &str) -> Result<(), LibraryError> {
    fs::write(path, text).map_err(|cause| of_file(path, cause))
}

fn create(folder: &Path) -> Result<(), LibraryError> {
    fs::create_dir_all(folder).map_err(|cause| of_file(folder, cause))
}
