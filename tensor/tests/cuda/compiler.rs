use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use lowtide_allocator::Repeat;
use lowtide_allocator::cuda::{Architecture, Libraries};
use lowtide_tensor::cuda::gate::{
    CompileError, Compiler, KernelCache, KernelCompiler, KernelSource, Module,
};
use lowtide_tensor::cuda::pretend::kernel_files;

use crate::gpu::{BASICS, Gpu, KERNELS, package};
use crate::launches::{ADD, check_sum};

const SM_80: Architecture = Architecture { major: 8, minor: 0 };
const SM_90: Architecture = Architecture { major: 9, minor: 0 };
const OPTIONS: [&str; 2] = ["--std=c++17", "--fmad=false"];

/// A folder for one test, which does not exist yet.
fn folder(name: &str) -> PathBuf {
    let tests = Path::new(env!("CARGO_TARGET_TMPDIR"));
    // The folder is missing if the tests were carried to another machine.
    let temporary = if tests.is_dir() { tests.to_path_buf() } else { std::env::temp_dir() };
    let folder = temporary.join(format!("compiler-{name}"));
    let _ = fs::remove_dir_all(&folder);
    folder
}

/// The kernels of a folder as they are compiled: names, and sources with the common part.
fn programs(folder: &Path) -> Vec<(String, String)> {
    let files = kernel_files(folder).unwrap();
    files.into_iter().map(|file| (file.name.clone(), file.whole_source())).collect()
}

fn own_kernels() -> Vec<(String, String)> {
    programs(&package().join(BASICS))
}

fn program<'a>((name, source): &'a (String, String)) -> KernelSource<'a> {
    KernelSource { name, source, options: &OPTIONS }
}

#[test]
fn device_without_an_architecture_is_compiled_nothing_for() {
    let Some(gpu) = Gpu::pretend() else { return };
    assert_eq!(gpu.cuda_device().architecture(), Ok(None));
    let none = KernelCompiler::of(&gpu.cuda_device(), KernelCache::nowhere());
    assert!(matches!(none, Err(CompileError::NoArchitecture)), "{none:?}");
    gpu.pretend.architecture(SM_90);
    assert_eq!(gpu.cuda_device().architecture(), Ok(Some(SM_90)));
    assert_eq!(SM_90.to_string(), "sm_90");
}

#[test]
fn kernel_is_compiled_for_its_device_once_and_runs() {
    let Some(gpu) = Gpu::pretend() else { return };
    gpu.pretend.architecture(SM_80);
    let (streams, memory) = gpu.memory();
    let cache = KernelCache::in_folder(folder("once"));
    let mut codes = Vec::new();
    for _ in 0..2 {
        let compiler = KernelCompiler::of(streams.device(), cache.clone()).unwrap();
        assert_eq!((compiler.architecture(), compiler.compiler().version()), (SM_80, 12_000));
        let basics = own_kernels().into_iter().find(|(name, _)| name == "basics").unwrap();
        let code = compiler.cubin(&program(&basics)).unwrap();
        let module = Module::load(streams.device(), "basics", &code).unwrap();
        check_sum(&streams, &memory, &module.function(&ADD).unwrap(), 100);
        codes.push(code);
    }
    assert_eq!(codes[0], codes[1]);
    assert_eq!(gpu.pretend.calls("nvrtcCompileProgram"), 1, "the second one is of the cache");
    // For another device, code is compiled under another name, and code of the first device is not
    // loaded.
    gpu.pretend.architecture(SM_90);
    let compiler = KernelCompiler::of(streams.device(), cache.clone()).unwrap();
    compiler.cubin(&program(&own_kernels()[0])).unwrap();
    assert_eq!(gpu.pretend.calls("nvrtcCompileProgram"), 2);
    assert_eq!(fs::read_dir(cache.folder().unwrap()).unwrap().count(), 2);
    let other = Module::load(streams.device(), "basics", &codes[0]).unwrap_err();
    assert_eq!(
        other.cause().unwrap().to_string(),
        "cuModuleLoadDataEx failed with \
                                                    CUDA_ERROR_NO_BINARY_FOR_GPU (209)"
    );
}

#[test]
fn key_of_the_cache_has_all_that_decides_the_code() {
    let Some(gpu) = Gpu::pretend() else { return };
    let compiler = Compiler::of(&gpu.driver).unwrap();
    let cache = KernelCache::in_folder(folder("key"));
    let [one, two] = [SM_80, SM_90]
        .map(|architecture| KernelCompiler::with(compiler.clone(), architecture, cache.clone()));
    let [basics, planted] = own_kernels().try_into().unwrap();
    let renamed = ("planted".to_owned(), basics.1.clone());
    let plain = KernelSource { options: &[], ..program(&basics) };
    let kept = || fs::read_dir(cache.folder().unwrap()).map_or(0, Iterator::count);
    for (index, (compiler, program)) in [
        (&one, program(&basics)),
        (&two, program(&basics)),
        (&one, plain),
        (&one, program(&planted)),
    ]
    .into_iter()
    .enumerate()
    {
        compiler.cubin(&program).unwrap();
        compiler.cubin(&program).unwrap();
        assert_eq!(kept(), index + 1);
    }
    // Code of another source is not found under the name: its source is refused.
    let refused = one.cubin(&program(&renamed)).unwrap_err();
    assert!(matches!(refused, CompileError::Refused { .. }), "{refused}");
    assert_eq!(kept(), 4);
}

#[test]
fn what_the_compiler_says_is_in_the_error() {
    let Some(gpu) = Gpu::pretend() else { return };
    let compiler = Compiler::of(&gpu.driver).unwrap();
    let wrong = KernelSource { name: "wrong", source: "not C", options: &OPTIONS };
    let error = compiler.compile(&wrong, SM_80).unwrap_err();
    assert_eq!(
        error.to_string(),
        "wrong does not compile for sm_80:\nwrong.cu(1): error: nobody compiled this before"
    );
    let wrong = KernelSource { options: &["--unheard-of"], ..wrong };
    let error = compiler.compile(&wrong, SM_80).unwrap_err();
    let CompileError::Refused { log, .. } = &error else { panic!("{error}") };
    assert!(log.contains("--unheard-of"), "{log}");
    let future = Architecture { major: 99, minor: 0 };
    let error = compiler.compile(&wrong, future).unwrap_err();
    assert_eq!(error, CompileError::UnknownArchitecture { architecture: future, version: 12_000 });
    assert_eq!(gpu.pretend.live("programs"), 0);
}

#[test]
fn every_call_that_fails_is_an_error_and_leaves_nothing() {
    let Some(gpu) = Gpu::pretend() else { return };
    gpu.pretend.architecture(SM_80);
    let device = gpu.cuda_device();
    let kernels = own_kernels();
    let compile = || -> Result<(), CompileError> {
        let compiler = KernelCompiler::of(&device, KernelCache::nowhere())?;
        compiler.cubin(&program(&kernels[0])).map(drop)
    };
    let before = gpu.pretend.calls("");
    compile().unwrap();
    let calls = gpu.pretend.calls("") - before;
    for nth in 1..=calls {
        gpu.pretend.fail("", 11, nth, Repeat::Once);
        let result = compile();
        // The last call destroys the program, and is repeated.
        assert_eq!(result.is_err(), nth < calls, "{nth} of {calls}: {result:?}");
        if let Err(error) = result {
            assert!(error.to_string().contains("failed with"), "{error}");
        }
        gpu.pretend.fail("", 0, 0, Repeat::Once);
        assert_eq!(gpu.pretend.live("programs"), 0, "{nth}");
    }
    compile().unwrap();
}

#[test]
fn missing_compiler_is_an_error_that_says_where_it_was_looked_for() {
    let folder = folder("missing");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("libnvrtc.so.12"), "no library").unwrap();
    let error = Compiler::open(&Libraries::in_folders([folder.clone()])).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("no compiler NVRTC: ") && text.contains("libnvrtc.so.12"), "{text}");
}

/// NVRTC from the environment, or as `cargo xtask kernels` installs it below `target`.
fn real_compiler() -> Result<Compiler, CompileError> {
    let installed = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../nvrtc");
    let packages = fs::read_dir(installed).into_iter().flatten().flatten();
    let packages = packages.map(|package| package.path().join("nvidia/cuda_nvrtc/lib"));
    let environment = Libraries::from_environment();
    let folders = environment.folders().iter().cloned().chain(packages);
    // The compiler of a pretend driver does not count.
    let is_real = |folder: &PathBuf| folder.is_dir() && !folder.join("kernels.so").exists();
    Compiler::open(&Libraries::in_folders(folders.filter(is_real)))
}

#[test]
fn every_kernel_compiles_with_the_real_compiler() {
    let compiler = match real_compiler() {
        Ok(compiler) => compiler,
        Err(error) => {
            println!(
                "skipped: every kernel compiles with the real compiler: {error}; `cargo xtask \
                 kernels` installs one below target"
            );
            return;
        }
    };
    let root = package();
    let kernels = [root.join(BASICS), root.join(KERNELS)];
    let cache = KernelCache::in_folder(folder("real"));
    let kernels: Vec<_> =
        kernels.iter().filter(|folder| folder.is_dir()).flat_map(|of| programs(of)).collect();
    let check = |kernel, architecture| {
        let compiler = KernelCompiler::with(compiler.clone(), architecture, cache.clone());
        let code = compiler.cubin(&program(kernel)).unwrap_or_else(|error| panic!("{error}"));
        // ELF, for the machine EM_CUDA, 190.
        assert_eq!((&code[..4], &code[18..20]), (&b"\x7fELF"[..], &[190, 0][..]));
        assert_eq!(compiler.cubin(&program(kernel)), Ok(code));
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for part in kernels.chunks(kernels.len().div_ceil(threads).max(1)) {
            let each = || [SM_80, SM_90].map(|to| part.iter().for_each(|kernel| check(kernel, to)));
            scope.spawn(each);
        }
    });
    let wrong =
        KernelSource { name: "wrong", source: "__global__ void f() { x = 1; }", options: &[] };
    let error = compiler.compile(&wrong, SM_90).unwrap_err();
    let CompileError::Refused { log, .. } = &error else { panic!("{error}") };
    assert!(log.contains("identifier \"x\" is undefined"), "{log}");
}
