//! `cargo xtask kernels`: compiles every kernel with NVRTC from PyPI, without a device.
//!
//! No kernel may spill, or need more registers or shared memory than `needs.txt` states. The table
//! also has hashes of the sources, so that a changed source is detected without the compiler. The
//! PTX of the tests' small kernels is checked in, compressed, and must equal the compiler's output.
//! `--write` writes the table and all PTX, also of the other kernels, for programs with the feature
//! `ptx` of lowtide-tensor.

mod archive;
pub mod needs;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::tally::Counts;
use crate::workspace;
use archive::{compressed, read_archive};
use needs::{Need, Table};

/// This version makes PTX 8.0, which drivers since 525 load.
const PACKAGE: &str = "nvidia-cuda-nvrtc-cu12==12.0.140";

/// The architecture of the PTX, which newer devices also run.
const VIRTUAL: &str = "compute_80";

/// The architectures whose registers are counted.
const REAL: [&str; 2] = ["sm_80", "sm_90"];

/// The kernels below a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelSet {
    /// The folder of files that end with `.cu`. The text of `common.cu` is put before each file.
    pub folder: &'static str,
    /// The PTX of all files, in the form that `lowtide_tensor::cuda::gate::PtxArchive` reads.
    pub archive: &'static str,
    /// True if the archive is in the repository.
    pub is_checked_in: bool,
}

/// The kernels of operations, and the small kernels of tests.
pub const KERNELS: [KernelSet; 2] = [
    KernelSet {
        folder: "tensor/src",
        archive: "tensor/src/cuda/kernels.ptx.xz",
        is_checked_in: false,
    },
    KernelSet {
        folder: "tensor/tests/cuda/kernels",
        archive: "tensor/tests/cuda/kernels/kernels.ptx.xz",
        is_checked_in: true,
    },
];

/// The table of the needs of the operations' kernels.
pub const NEEDS: &str = "tensor/src/cuda/needs.txt";

const COMMON: &str = "common.cu";

/// The mark of a file that is compiled once for each type of `TYPES`, with `STORED` defined as the
/// type.
const TYPED: &str = "KERNEL(";
const TYPES: [&str; 8] = ["f32", "f64", "f16", "bf16", "i64", "i32", "u8", "bool"];

/// Marks of files for all types, and of files for the types of tensor cores. A file without a mark
/// is for the floats.
const WITH_INTEGERS: &str = "// Integers, too.";
const FOR_TENSOR_CORES: &str = "// For tensor cores.";
const FACTORS: [&str; 3] = ["f32", "f16", "bf16"];

fn types_of(source: &str) -> &'static [&'static str] {
    if source.contains(WITH_INTEGERS) {
        &TYPES
    } else if source.contains(FOR_TENSOR_CORES) {
        &FACTORS
    } else {
        &TYPES[..4]
    }
}

/// The mark before the hash of the source, in the first line of a PTX file.
const HASH_MARK: &str = "// source ";

const COMPILER: &str = include_str!("nvrtc.py");

/// The runs of the compiler for one file. The output depends on the addresses of the compiler's
/// memory: most runs agree, and the others differ in the order of instructions. 78 of 100 runs
/// agreed on `conv2d.cu`, and 11 of 16 runs on `matmul.cu` (NVRTC 12.0.140, November 2026). The
/// first output that two of these runs share is checked in, so that one of the runs makes it again.
/// Seed 0 asks for the same addresses in each run.
const SEEDS: std::ops::Range<usize> = 0..8;

/// One file of kernels, compiled for one type if the file has several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// The file's name without its ending, and the type.
    pub name: String,
    /// The input of the compiler: the common source and the file's source.
    pub source: String,
}

impl KernelSet {
    /// Reads every file of kernels, in the order of their names.
    ///
    /// # Errors
    /// One line about a folder or a file that cannot be read.
    pub fn units(&self, root: &Path) -> Result<Vec<Unit>, String> {
        let read = |path: &Path| {
            fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
        };
        let (mut paths, mut common) = (files_below(&root.join(self.folder))?, String::new());
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "cu"));
        if let Some(at) = paths.iter().position(|path| path.ends_with(COMMON)) {
            common = read(&paths.remove(at))?;
        }
        let mut units = Vec::new();
        for path in &paths {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let text = read(path)?;
            let source = format!("{common}{text}");
            // Only the file's own text is searched: the common source has the marks too, and is in
            // every unit.
            if !text.contains(TYPED) {
                units.push(Unit { name, source });
                continue;
            }
            units.extend(types_of(&text).iter().map(|of| Unit {
                name: format!("{name}_{of}"),
                source: format!("#define STORED {of}\n{source}"),
            }));
        }
        units.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(units)
    }

    /// Reads the PTX that is checked in, by the names of the files; empty if there is no archive.
    ///
    /// # Errors
    /// One line about an archive that cannot be read.
    pub fn ptx(&self, root: &Path) -> Result<BTreeMap<String, String>, String> {
        let path = root.join(self.archive);
        if !path.exists() {
            return Ok(BTreeMap::new());
        }
        let texts = fs::read(&path).and_then(|bytes| read_archive(&bytes));
        texts.map_err(|error| format!("{}: {error}", path.display()))
    }
}

fn files_below(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut files = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            files.extend(files_below(&path)?);
        } else {
            files.push(path);
        }
    }
    Ok(files)
}

/// FNV-1a of 64 bits, by its definition (Fowler, Noll, Vo).
fn hash(text: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

/// True if checked-in PTX was made from this source.
pub fn is_of_source(ptx: &str, source: &str) -> bool {
    let first = ptx.lines().next().and_then(|line| line.strip_prefix(HASH_MARK));
    first.is_some_and(|written| written == format!("{:016x}", hash(source)))
}

fn hash_of(unit: &Unit) -> String {
    format!("{:016x}", hash(&unit.source))
}

/// The hashes of the compiler's inputs, by the names of the files.
pub fn sources_of(units: &[Unit]) -> BTreeMap<String, String> {
    units.iter().map(|unit| (unit.name.clone(), hash_of(unit))).collect()
}

/// The part of the compiler's output that is checked in: everything except the unused tables that
/// the compiler's own header adds to each file.
pub fn checked_in(ptx: &str, source: &str) -> String {
    let mut text = format!("{HASH_MARK}{:016x}\n", hash(source));
    for line in ptx.lines().filter(|line| !line.contains("nv6target")) {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text.truncate(text.trim_end().len());
    text + "\n"
}

/// Runs the command. True if nothing failed.
///
/// # Errors
/// One line with the reason why nothing ran.
pub fn run(root: &Path, arguments: &[String]) -> Result<bool, String> {
    let writes = match arguments {
        [] => false,
        [only] if only == "--write" => true,
        [other, ..] => return Err(format!("kernels does not understand `{other}`")),
    };
    let mut counts = Counts::default();
    match install(root) {
        Ok(compiler) => {
            let table_path = root.join(NEEDS);
            let known = Table::parse(&fs::read_to_string(&table_path).unwrap_or_default())?;
            let mut found = Table::default();
            // The small kernels of tests are not measured.
            let (units, ptx) = (KERNELS[0].units(root)?, KERNELS[0].ptx(root)?);
            let rows = of_each(&units, |unit| {
                let limits = (!writes).then_some(&known);
                // An unchanged source has its known needs.
                let is_known = known.sources.get(&unit.name) == Some(&hash_of(unit));
                let same = ptx.get(&unit.name).filter(|ptx| is_of_source(ptx, &unit.source));
                match same.filter(|_| writes && is_known).map(|ptx| rows_of(&known, ptx)) {
                    Some(rows) if !rows.is_empty() => Ok(rows),
                    _ => needs_of(&compiler, unit, limits),
                }
            })?;
            found.rows.extend(rows.into_iter().flatten());
            found.sources = sources_of(&units);
            for set in &KERNELS {
                let units = set.units(root)?;
                if writes {
                    write_ptx(root, &compiler, set, &units)?;
                    continue;
                }
                if !set.is_checked_in {
                    continue;
                }
                let checked_in = set.ptx(root)?;
                let are_made = of_each(&units, |unit| {
                    let ptx = checked_in.get(&unit.name).map_or("", String::as_str);
                    is_made_again(&compiler, unit, ptx)
                })?;
                are_made.into_iter().for_each(|is_made| counts.add(Counts::one(is_made)));
            }
            print!("{}", found.report());
            counts.add(Counts::one(found.spills().is_empty()));
            for need in found.narrow() {
                println!("{} for {}: no access of 16 bytes", need.kernel, need.architecture);
            }
            counts.add(Counts::one(found.narrow().is_empty()));
            if writes {
                write(&table_path, found.text().as_bytes())?;
            } else {
                let growth = found.growth_over(&known);
                growth.iter().for_each(|line| println!("{line}"));
                counts.add(Counts::one(growth.is_empty()));
                let is_known = found.sources == known.sources;
                if !is_known {
                    println!("{NEEDS} is about other sources; see --write");
                }
                counts.add(Counts::one(is_known));
            }
        }
        Err(reason) => {
            counts.add(Counts::skipped("a fresh compile of the kernels", reason));
            let known = Table::parse(&fs::read_to_string(root.join(NEEDS)).unwrap_or_default())?;
            let sources = sources_of(&KERNELS[0].units(root)?);
            counts.add(Counts::one(sources == known.sources));
            for set in KERNELS.iter().filter(|set| set.is_checked_in) {
                let checked_in = set.ptx(root)?;
                for unit in set.units(root)? {
                    let ptx = checked_in.get(&unit.name).map_or("", String::as_str);
                    counts.add(Counts::one(is_of_source(ptx, &unit.source)));
                }
            }
        }
    }
    counts.skips.iter().for_each(|skip| println!("{skip}"));
    println!("{counts}");
    Ok(counts.failed == 0)
}

/// The results of `work` for each unit, in the order of the units, by one thread for each CPU.
fn of_each<T: Send>(
    units: &[Unit],
    work: impl Fn(&Unit) -> Result<T, String> + Sync,
) -> Result<Vec<T>, String> {
    let next = AtomicUsize::new(0);
    let one = || {
        let mut made = Vec::new();
        while let Some(unit) = units.get(next.fetch_add(1, Ordering::Relaxed)) {
            made.push((&unit.name, work(unit)));
        }
        made
    };
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let mut made: Vec<_> = thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
        running.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
    });
    made.sort_by_key(|&(name, _)| name);
    made.into_iter().map(|(_, made)| made).collect()
}

/// The rows of the kernels in a file's PTX.
fn rows_of(table: &Table, ptx: &str) -> Vec<Need> {
    let name = |entry: &str| entry.trim_start().split(['(', ' ', '\n']).next().map(str::to_owned);
    let names: BTreeSet<String> = ptx.split(".entry").skip(1).filter_map(name).collect();
    table.rows.iter().filter(|row| names.contains(&row.kernel)).cloned().collect()
}

/// The needs of a file's kernels on each architecture, the best of [`SEEDS`] runs.
fn needs_of(compiler: &Compiler, unit: &Unit, known: Option<&Table>) -> Result<Vec<Need>, String> {
    let mut rows = Vec::new();
    for architecture in REAL {
        let mut table = Table::default();
        for seed in SEEDS {
            table.rows = Need::of_log(&compiler.run(unit, architecture, seed)?, architecture);
            if known.is_none_or(|known| table.growth_over(known).is_empty()) {
                break;
            }
        }
        rows.extend(table.rows);
    }
    Ok(rows)
}

/// True if one of [`SEEDS`] runs of the compiler makes this PTX of a file.
fn is_made_again(compiler: &Compiler, unit: &Unit, ptx: &str) -> Result<bool, String> {
    for seed in SEEDS.take_while(|_| is_of_source(ptx, &unit.source)) {
        if checked_in(&compiler.run(unit, VIRTUAL, seed)?, &unit.source) == ptx {
            return Ok(true);
        }
    }
    println!("{}.cu: its PTX is not what {PACKAGE} makes of it; see --write", unit.name);
    Ok(false)
}

/// Makes the PTX that the feature `ptx` of lowtide-tensor embeds in a program.
///
/// # Errors
/// One line about a compiler that cannot be installed, or a kernel that it refuses.
pub fn make_ptx(root: &Path) -> Result<(), String> {
    let (compiler, set) = (install(root)?, &KERNELS[0]);
    write_ptx(root, &compiler, set, &set.units(root)?)
}

/// Makes the PTX of the files of a set whose sources have changed.
fn write_ptx(
    root: &Path,
    compiler: &Compiler,
    set: &KernelSet,
    units: &[Unit],
) -> Result<(), String> {
    let known = set.ptx(root)?;
    let texts = of_each(units, |unit| {
        // The compiler's options may change as well, which the hash of a source does not show.
        if let Some(ptx) = known.get(&unit.name).filter(|ptx| is_of_source(ptx, &unit.source))
            && (!set.is_checked_in || is_made_again(compiler, unit, ptx)?)
        {
            return Ok((unit.name.clone(), ptx.clone()));
        }
        let mut drawn = Vec::new();
        for seed in SEEDS {
            let fresh = checked_in(&compiler.run(unit, VIRTUAL, seed)?, &unit.source);
            let is_again = drawn.contains(&fresh);
            drawn.push(fresh);
            if is_again {
                break;
            }
        }
        Ok((unit.name.clone(), most_frequent(&drawn).to_owned()))
    })?;
    let texts = texts.into_iter().collect();
    let bytes = compressed(&texts).map_err(|error| format!("{}: {error}", set.archive))?;
    write(&root.join(set.archive), &bytes)
}

/// The most frequent text; on ties, the first of the most frequent texts.
fn most_frequent(texts: &[String]) -> &str {
    let count = |text: &&String| texts.iter().filter(|other| other == text).count();
    texts.iter().rev().max_by_key(count).map_or("", String::as_str)
}

fn write(path: &Path, contents: &[u8]) -> Result<(), String> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let written = fs::create_dir_all(folder).and_then(|()| fs::write(path, contents));
    written.map_err(|error| format!("{}: {error}", path.display()))
}

/// The compiler of the package, and the script that calls it.
struct Compiler {
    script: PathBuf,
    package: PathBuf,
}

/// Installs the package below `target`, unless it is there. The error is the reason of a skip.
fn install(root: &Path) -> Result<Compiler, String> {
    let folder = root.join("target/nvrtc");
    let package = folder.join(PACKAGE.replace("==", "-"));
    let script = folder.join("nvrtc.py");
    write(&script, COMPILER.as_bytes())?;
    if !package.join("nvidia").is_dir() {
        println!("installs {PACKAGE} below target");
        // The installation has a separate folder until it is complete.
        let fresh = folder.join("fresh");
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--only-binary=:all:", "--no-deps"]);
        pip.arg("--target").arg(&fresh).arg(PACKAGE).stdin(Stdio::null());
        let output = pip.output().map_err(|error| format!("python3 does not start: {error}"))?;
        if !output.status.success() {
            let message = String::from_utf8_lossy(&output.stderr);
            let last = message.trim().lines().last().unwrap_or("no message").to_owned();
            return Err(format!("pip does not install {PACKAGE}: {last}"));
        }
        fs::rename(&fresh, &package).map_err(|e| format!("{}: {e}", package.display()))?;
    }
    workspace::first_line_of(root, "python3", &["--version"])
        .ok_or_else(|| "python3 does not start".to_owned())?;
    Ok(Compiler { script, package })
}

impl Compiler {
    /// The compiler's output for an architecture.
    fn run(&self, unit: &Unit, architecture: &str, seed: usize) -> Result<String, String> {
        use std::io::Write;
        let mut python = Command::new("python3");
        python.arg(&self.script).arg(&self.package).arg(&unit.name).arg(architecture);
        python.arg(seed.to_string());
        python.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = python.spawn().map_err(|e| format!("python3 does not start: {e}"))?;
        // The script reads all of its input before it writes.
        let sent = child.stdin.take().map(|mut input| input.write_all(unit.source.as_bytes()));
        let output = child.wait_with_output().map_err(|e| format!("python3: {e}"))?;
        let message = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() || !matches!(sent, Some(Ok(()))) {
            let (name, message) = (&unit.name, message.trim());
            return Err(format!("{name}.cu does not compile for {architecture}:\n{message}"));
        }
        eprint!("{message}");
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_frequent_text_wins_and_the_first_on_ties() {
        let texts = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        assert_eq!(most_frequent(&texts(&["a", "b", "b", "c"])), "b");
        assert_eq!(most_frequent(&texts(&["c", "a", "a", "c"])), "c");
    }
}
