//! Kernels for the pretend driver, which is the device in tests of crates that compute with
//! tensors.
//!
//! The allocator builds the driver and the kernels. This module reads the files of kernels.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use lowtide_allocator::cuda::pretend::{
    KernelFile, KernelFolder, LibraryError, TestDriver, Watch, files_in, read_text,
};

use super::gate::PtxArchive;

/// Name of the source that stands before each file of kernels.
const COMMON: &str = "common.cu";

/// The mark of a file that is compiled once for each of its types, with [`STORED`] defined as the
/// type.
const TYPED: &str = "KERNEL(";
const STORED: &str = "STORED";

/// Types of a file with the mark [`WITH_INTEGERS`]; without the mark, the types before i64.
const TYPES: [&str; 8] = ["f32", "f64", "f16", "bf16", "i64", "i32", "u8", "bool"];
const WITH_INTEGERS: &str = "// Integers, too.";

/// Types of a file with the mark [`FOR_TENSOR_CORES`].
const FACTORS: [&str; 3] = ["f32", "f16", "bf16"];
const FOR_TENSOR_CORES: &str = "// For tensor cores.";

fn types_of(source: &str) -> &'static [&'static str] {
    match (source.contains(WITH_INTEGERS), source.contains(FOR_TENSOR_CORES)) {
        (true, _) => &TYPES,
        (_, true) => &FACTORS,
        _ => &TYPES[..4],
    }
}

/// The kernels of this crate, as seen from the folder of a crate beside it.
const OWN_KERNELS: &[KernelFolder<'_>] = &[kernels_below("../tensor/src")];

/// A driver for the tests of a crate that computes with tensors, in a folder beside this crate's.
/// The device has 64 MiB in pages of 2 MiB, and the barriers of kernels are checked. The tests of
/// this crate check that kernels stay inside their memory.
pub const fn test_driver<'a>(package: &'a str, scratch: &'a str) -> TestDriver<'a> {
    const PAGE_BYTES: usize = 2 << 20;
    TestDriver {
        package,
        scratch,
        kernels: OWN_KERNELS,
        watch: Watch::Barriers,
        capacity_bytes: 64 << 20,
        page_bytes: PAGE_BYTES,
        context_bytes: PAGE_BYTES,
    }
}

/// A folder whose files [`kernel_files`] reads.
pub const fn kernels_below(path: &str) -> KernelFolder<'_> {
    KernelFolder { path, read: kernel_files }
}

/// Every `NAME.cu` in a folder and the folders below it, in the order of their names. A file whose
/// kernels are named by `KERNEL(..)` is listed once for each type. Above or beside the files there
/// may be one [`PtxArchive`] of all files, and one `common.cu`, which is put before each file.
///
/// # Errors
/// `File` for a file that cannot be read.
pub fn kernel_files(folder: &Path) -> Result<Vec<KernelFile>, LibraryError> {
    let (mut paths, mut common, mut archive) = (Vec::new(), String::new(), None);
    for path in files_below(folder)? {
        match text_of(path.file_name()) {
            COMMON => common = read_text(&path)?,
            PtxArchive::FILE_NAME => {
                let bytes = fs::read(&path).and_then(|bytes| PtxArchive::read(&bytes));
                let in_file = |cause| LibraryError::File { path: path.clone(), cause };
                archive = Some(bytes.map_err(in_file)?);
            }
            _ if text_of(path.extension()) == "cu" => paths.push(path),
            _ => {}
        }
    }
    paths.sort_by(|a, b| a.file_stem().cmp(&b.file_stem()));
    let mut files = Vec::new();
    for path in paths {
        let (stem, source) = (text_of(path.file_stem()), read_text(&path)?);
        let mut variants = vec![(stem.to_owned(), common.clone())];
        if source.contains(TYPED) {
            let variant =
                |of: &&str| (format!("{stem}_{of}"), format!("#define {STORED} {of}\n{common}"));
            variants = types_of(&source).iter().map(variant).collect();
        }
        for (name, common) in variants {
            let (source, path) = (source.clone(), path.clone());
            let mut file = KernelFile { name, path, common, source, ptx: None };
            let ptx = archive.as_ref().and_then(|archive| archive.get(&file.name));
            file.ptx = ptx.filter(|ptx| file.is_source_of(ptx)).map(str::to_owned);
            files.push(file);
        }
    }
    Ok(files)
}

fn text_of(part: Option<&OsStr>) -> &str {
    part.and_then(OsStr::to_str).unwrap_or_default()
}

/// The files of a folder and of the folders in it, in the order of their paths.
fn files_below(folder: &Path) -> Result<Vec<PathBuf>, LibraryError> {
    let mut files = Vec::new();
    for path in files_in(folder)? {
        if path.is_dir() {
            files.extend(files_below(&path)?);
        } else {
            files.push(path);
        }
    }
    Ok(files)
}
