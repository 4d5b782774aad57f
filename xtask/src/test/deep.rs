//! The sections of `--deep`: sanitizers, models, separate workspaces, long property tests.

use super::Options;
use super::needs::{Needs, SANITIZER_TARGET};
use super::plan::{CASES, Counting, DEEP_CASES, Section, WITH_CUDA};

/// The configuration that makes cargo start tests under the address sanitizer of the C++ compiler.
/// Cargo itself runs without the sanitizer.
const PRELOADED: &str = concat!(
    "target.x86_64-unknown-linux-gnu.runner = [\"sh\", \"-c\", ",
    "'exec env LD_PRELOAD=\"$(${CXX:-c++} -print-file-name=libasan.so)\" \"$0\" \"$@\"']",
);

/// A kernel's fault stops the device, not the process, and is reported each time.
const PRELOADED_OPTIONS: &str = "halt_on_error=0:suppress_equal_pcs=0:detect_leaks=0";

/// The crates that hold the unsafe code, by folder.
const SANITIZED: &[&str] = &["allocator", "tensor"];

/// The crates with loom models, by folder.
const MODELLED: &[&str] = &["allocator", "tensor"];

/// A separate workspace, which no other section builds.
struct Apart {
    name: &'static str,
    /// The folder of the crate that the workspace belongs to.
    folder: &'static str,
    manifest: &'static str,
    /// The cargo command that checks the workspace.
    command: &'static str,
}

const APART: &[Apart] = &[
    Apart {
        name: "fuzz targets of trace",
        folder: "trace",
        manifest: "trace/fuzz/Cargo.toml",
        command: "check",
    },
    Apart {
        name: "fuzz targets of data",
        folder: "data",
        manifest: "data/fuzz/Cargo.toml",
        command: "check",
    },
    Apart {
        name: "fuzz targets of pretrained",
        folder: "pretrained",
        manifest: "pretrained/fuzz/Cargo.toml",
        command: "check",
    },
    Apart {
        name: "data with candle",
        folder: "data",
        manifest: "data/examples/candle/Cargo.toml",
        command: "run --release",
    },
];

/// The sections of `--deep` for the crates that `options` name.
pub(super) fn deep_sections(options: &Options, scope: &str) -> Vec<Section> {
    let mut sections = Vec::new();
    if let Some(packages) = wanted(options, SANITIZED) {
        sections.extend(sanitizers(&packages));
    }
    if WITH_CUDA.iter().any(|package| options.concerns(package.trim_start_matches("lowtide-"))) {
        sections.push(sanitized_kernels(scope));
    }
    if let Some(packages) = wanted(options, &["allocator"]) {
        // Tests of whole allocators are left out: Miri does not support their shared mappings, and
        // would take hours for the other tests.
        let command = format!("miri test {packages} --no-fail-fast --lib -- --show-output");
        // proptest reads the current directory to find its regression files.
        sections.push(
            Section::new("miri", &command, Counting::Runners)
                .needs(Needs::Subcommand("miri"))
                .env(CASES, "4")
                .env("MIRIFLAGS", "-Zmiri-disable-isolation"),
        );
    }
    if let Some(packages) = wanted(options, MODELLED) {
        // The models of tensor are in a target of their own.
        let targets = match wanted(options, &["tensor"]) {
            Some(tensor) if tensor == packages => "--test pool",
            Some(_) => "--lib --test pool",
            None => "--lib",
        };
        // Optimised, as a model runs its body some ten thousand times.
        let command = format!(
            "test {packages} --no-fail-fast {targets} --release --target-dir target/loom \
             models:: -- --show-output"
        );
        // The documentation of loom says that 2 or 3 preemptions catch most bugs.
        sections.push(
            Section::new("loom", &command, Counting::Runners)
                .env("RUSTFLAGS", "--cfg lowtide_loom")
                .env("LOOM_MAX_PREEMPTIONS", "3"),
        );
    }
    for Apart { name, manifest, command, .. } in
        APART.iter().filter(|apart| options.concerns(apart.folder))
    {
        let command = format!("{command} --manifest-path {manifest} --target-dir target/apart");
        // libFuzzer is written in C++.
        sections.push(Section::new(name, &command, Counting::Status).needs(Needs::CppCompiler));
    }
    if options.concerns("scoreboard") {
        let command = "run --package xtask -- scoreboard";
        sections.push(Section::new("scoreboard", command, Counting::Status).needs(Needs::Suites));
    }
    let command = format!("test {scope} --no-fail-fast --tests -- --show-output");
    sections.push(
        Section::new("long property tests", &command, Counting::Runners).env(CASES, DEEP_CASES),
    );
    sections
}

/// The packages of some folders that `options` name, as arguments of cargo; `None` if there are
/// none.
fn wanted(options: &Options, folders: &[&str]) -> Option<String> {
    let wanted = folders.iter().filter(|folder| options.concerns(folder));
    let names: Vec<String> = wanted.map(|folder| format!("-p lowtide-{folder}")).collect();
    (!names.is_empty()).then(|| names.join(" "))
}

fn sanitizers(packages: &str) -> [Section; 2] {
    let section = |name, folder: &str, [cargo, runner]: [&str; 2]| {
        let command = format!(
            "test {packages} --no-fail-fast --tests {cargo} --target {SANITIZER_TARGET} \
             --target-dir target/sanitizers/{folder} -- --show-output {runner}"
        );
        // The bootstrap variable allows `-Z` flags on a stable compiler.
        Section::new(name, &command, Counting::Runners).env("RUSTC_BOOTSTRAP", "1")
    };
    [
        section("address sanitizer", "address", ["", ""])
            .needs(Needs::SanitizerTarget)
            .env("RUSTFLAGS", "-Zsanitizer=address"),
        // The thread sanitizer does not track mappings. If one of two concurrent tests gets an
        // address that the other has just released, this looks like a race.
        section("thread sanitizer", "thread", ["-Zbuild-std", "--test-threads=1"])
            .needs(Needs::StandardSources)
            .env("RUSTFLAGS", "-Zsanitizer=thread --cfg lowtide_thread_sanitizer"),
    ]
}

fn sanitized_kernels(scope: &str) -> Section {
    let command = format!("test {scope} --no-fail-fast --test cuda -- --show-output");
    let name = "kernels under the address sanitizer";
    let mut section = Section::new(name, &command, Counting::Runners)
        .needs(Needs::CompilerSanitizer)
        .env("LOWTIDE_PRETEND_SANITIZER", "address")
        .env("ASAN_OPTIONS", PRELOADED_OPTIONS);
    section.arguments.splice(1..1, ["--config".to_owned(), PRELOADED.to_owned()]);
    section
}
