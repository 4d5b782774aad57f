use xtask::tidy::{CHECKS, Finding, circles, imports, paths, rust, unsafety, words};
use xtask::tree::{File, Tree};

pub(crate) fn tree(files: &[(&str, &str)]) -> Tree {
    let file = |(path, text): &(&str, &str)| File::new(*path, Some((*text).to_owned()));
    Tree { files: files.iter().map(file).collect() }
}

/// Compares the findings of a check, as `path:line`.
pub(crate) fn check(rule: fn(&Tree) -> Vec<Finding>, files: &[(&str, &str)], expected: &[&str]) {
    let findings = rule(&tree(files));
    let places: Vec<String> = findings.iter().map(|f| format!("{}:{}", f.path, f.line)).collect();
    assert_eq!(places, expected, "{findings:#?} in {files:#?}");
}

const CLEAN_SOURCE: &str = "\
//! One noun.

/// Reads.
///
/// # Safety
///
/// `x` must be valid for reads of one byte.
pub unsafe fn read(x: *const u8) -> u8 {
    // SAFETY: the caller promises that `x` is valid.
    unsafe { *x }
}
";

#[test]
fn clean_tree_has_no_findings() {
    let files = tree(&[
        ("Cargo.toml", "[workspace]\nmembers = [\"allocator\", \"tensor\"]\n"),
        ("README.md", "# lowtide\n\nSee [allocator](allocator/README.md#rules).\n"),
        ("allocator/Cargo.toml", "[dependencies]\nthiserror.workspace = true\n"),
        ("allocator/README.md", "# allocator\n\n## Rules\n"),
        ("allocator/src/lib.rs", CLEAN_SOURCE),
        ("tensor/Cargo.toml", "[dependencies]\nlowtide-allocator.workspace = true\n"),
        ("tensor/src/lib.rs", "#![doc = include_str!(\"../README.md\")]\n"),
        ("tensor/tests/it/main.rs", "//! Laws.\n\nmod laws;\n"),
        ("tensor/tests/it/laws.rs", "#[test]\nfn law() {}\n"),
    ]);
    for check in CHECKS {
        assert_eq!((check.run)(&files), [], "{}", check.name);
    }
}

#[test]
fn finding_reads_as_file_line_message() {
    let finding = Finding { path: "a/b.rs".to_owned(), line: 7, message: "no".to_owned() };
    assert_eq!(finding.to_string(), "a/b.rs:7: no");
}

#[test]
fn import_against_the_arrows_is_found_however_it_is_written() {
    for manifest in [
        "[dependencies]\nlowtide-nn.workspace = true\n",
        "[dependencies]\nlowtide-nn = { path = \"../nn\" }\n",
        "[dependencies]\nlayers = { package = \"lowtide-nn\", path = \"../nn\" }\n",
        "[build-dependencies]\nlowtide-nn.workspace = true\n",
        "[package]\n[dependencies.lowtide-nn]\n",
        "[target.'cfg(unix)'.dependencies]\nlowtide-nn.workspace = true\n",
    ] {
        check(imports::check, &[("tensor/Cargo.toml", manifest)], &["tensor/Cargo.toml:2"]);
    }
}

#[test]
fn import_along_the_arrows_is_allowed_transitively() {
    for (path, imported) in [
        ("tensor/Cargo.toml", "allocator"),
        ("autograd/Cargo.toml", "allocator"),
        ("nn/Cargo.toml", "autograd"),
        ("trainer/Cargo.toml", "amp"),
        ("cli/Cargo.toml", "amp"),
    ] {
        let manifest = format!("[dependencies]\nlowtide-{imported}.workspace = true\n");
        check(imports::check, &[(path, &manifest)], &[]);
    }
}

#[test]
fn every_pair_without_a_path_of_arrows_is_found() {
    for (folder, imported) in [
        ("allocator", "tensor"),
        ("tensor", "autograd"),
        ("autograd", "nn"),
        ("autograd", "data"),
        ("nn", "amp"),
        ("nn", "data"),
        ("amp", "nn"),
        ("amp", "data"),
        ("data", "tensor"),
        ("trace", "tensor"),
        ("tensor", "trace"),
        ("data", "trainer"),
        ("trainer", "cli"),
        ("xtask", "allocator"),
    ] {
        let path = format!("{folder}/Cargo.toml");
        let manifest = format!("[dependencies]\nlowtide-{imported}.workspace = true\n");
        check(imports::check, &[(&path, &manifest)], &[&format!("{path}:2")]);
    }
}

#[test]
fn dev_dependencies_and_comments_are_no_imports() {
    let manifest = "[dependencies] # lowtide-nn\n[dev-dependencies]\nlowtide-nn.workspace = true\n";
    check(imports::check, &[("tensor/Cargo.toml", manifest)], &[]);
}

#[test]
fn member_outside_the_graph_is_found() {
    check(imports::check, &[("gpu/Cargo.toml", "[package]\n")], &["gpu/Cargo.toml:1"]);
    check(imports::check, &[("allocator/fuzz/Cargo.toml", "[package]\n")], &[]);
}

#[test]
fn file_without_a_header_is_found_except_test_modules() {
    let bare = "fn f() {}\n";
    let files = [
        ("nn/benches/linear.rs", bare),
        ("nn/examples/01.rs", bare),
        ("nn/src/lib.rs", bare),
        ("nn/src/tests/x.rs", bare),
        ("nn/tests/it/laws/deep.rs", bare),
        ("nn/tests/it/laws.rs", bare),
        ("nn/tests/it/main.rs", bare),
        ("nn/tests/one.rs", bare),
    ];
    let expected = [
        "nn/benches/linear.rs:1",
        "nn/examples/01.rs:1",
        "nn/src/lib.rs:1",
        "nn/src/tests/x.rs:1",
        "nn/tests/it/main.rs:1",
        "nn/tests/one.rs:1",
    ];
    check(rust::check_headers, &files, &expected);
}

#[test]
fn empty_file_has_no_header() {
    check(rust::check_headers, &[("nn/src/lib.rs", "")], &["nn/src/lib.rs:1"]);
}

#[test]
fn line_over_the_limit_is_found_by_characters_not_bytes() {
    let fits = "é".repeat(100);
    let wide = "x".repeat(101);
    let text = format!("{fits}\n{wide}\n");
    check(rust::check_line_lengths, &[("a.rs", &text), ("a.md", &wide)], &["a.rs:2"]);
}

#[test]
fn leftovers_are_found_in_code_only() {
    let text = "\
todo!()
let x = unimplemented!(\"later\");
dbg!(x);
#[ignore]
#[ignore = \"slow\"]
// todo!() is a macro
let s = \"dbg!(x)\";
my_todo!();
#[ignored]
";
    let expected = ["a/src/x.rs:1", "a/src/x.rs:2", "a/src/x.rs:3", "a/src/x.rs:4", "a/src/x.rs:5"];
    check(rust::check_leftovers, &[("a/src/x.rs", text)], &expected);
}

#[test]
fn machine_paths_are_found_in_any_text_file() {
    for root in ["home", "root", "work"] {
        let text = format!("fine\nsee /{root}/someone/x\n");
        check(paths::check, &[("a/b.toml", &text)], &["a/b.toml:2"]);
        let quoted = format!("\"/{root}/x\"");
        check(paths::check, &[("a.rs", &quoted)], &["a.rs:1"]);
    }
}

#[test]
fn longer_paths_and_addresses_are_no_machine_paths() {
    let text = "https://example.org/home/page src/work/x ../root/y $HOME/work/z /workshop/a";
    check(paths::check, &[("a.md", text)], &[]);
}

#[test]
fn unsafe_code_without_argument_is_found() {
    for code in [
        "unsafe { f() }",
        "let x = unsafe { f() };",
        "unsafe impl Send for X {}",
        "pub unsafe fn f() {}",
        "pub unsafe extern \"C\" fn f() {}",
        "unsafe trait T {}",
        "unsafe extern \"C\" {}",
        "unsafe\n{ f() }",
    ] {
        check(unsafety::check, &[("a.rs", code)], &["a.rs:1"]);
        let argued = format!("// SAFETY: the length was checked above.\n{code}\n");
        check(unsafety::check, &[("a.rs", &argued)], &[]);
        let short = format!("// SAFETY: ffi is fine.\n{code}\n");
        check(unsafety::check, &[("a.rs", &short)], &["a.rs:2"]);
        let apart = format!("// SAFETY: the length was checked above.\n\n{code}\n");
        check(unsafety::check, &[("a.rs", &apart)], &["a.rs:3"]);
        let other = format!("// The length was checked above this.\n{code}\n");
        check(unsafety::check, &[("a.rs", &other)], &["a.rs:2"]);
    }
}

#[test]
fn argument_may_stand_above_attributes_and_the_statement() {
    let text = "\
// SAFETY: the length was checked above,
// and nothing writes in between.
#[inline]
let x =
    unsafe { f() };
";
    check(unsafety::check, &[("a.rs", text)], &[]);
}

#[test]
fn argument_covers_one_item() {
    let text = "\
// SAFETY: the pointer is owned by this value alone.
unsafe impl Send for X {}
unsafe impl Sync for X {}
";
    check(unsafety::check, &[("a.rs", text)], &["a.rs:3"]);
}

#[test]
fn what_carries_no_obligation_needs_no_argument() {
    let text = "\
#![forbid(unsafe_code)]
type F = unsafe fn(usize) -> usize;
type G = unsafe extern \"C\" fn(usize);
#[unsafe(no_mangle)]
// An unsafe { block } in prose.
let s = \"unsafe { f() }\";
let is_unsafe = 1;
";
    check(unsafety::check, &[("a.rs", text)], &[]);
}

#[test]
fn type_that_is_imported_from_the_root_of_its_crate_is_found() {
    let bad = "//! x\nuse crate::Tensor;\nuse crate::{layout::Shape, Tensor};\nuse crate::{\n    \
        dtype::{DType, Element},\n    Tensor,\n};\nfn f() -> crate::Result<()> {}\n";
    check(
        rust::check_root_imports,
        &[("tensor/src/a.rs", bad), ("tensor/src/lib.rs", bad), ("tensor/tests/it/a.rs", bad)],
        &["tensor/src/a.rs:2", "tensor/src/a.rs:3", "tensor/src/a.rs:6", "tensor/src/a.rs:8"],
    );
}

#[test]
fn imports_of_modules_and_of_what_is_in_them_are_fine() {
    let good = "//! See [`Tensor`](crate::Tensor).\nuse crate::layout::Shape;\n\
        use crate::{layout, tensor::Tensor};\nuse crate::dtype::{DType, Element};\n\
        macro_rules! m { () => { $crate::Tensor } }\n";
    check(rust::check_root_imports, &[("tensor/src/a.rs", good)], &[]);
}

#[test]
fn comments_that_say_neither_who_nor_what_are_found() {
    let bad = "//! x\n/// Of nobody.\nstruct A {\n    /// Where.\n    a: u8,\n    /// Where\n    \
        /// it lies.\n    b: u8,\n    /// The key.\n    c: u8,\n    /// The key of all.\n    \
        d: u8,\n}\n// Whoever comes.\nconst C: &str = \"nobody\";\n";
    check(
        words::check_meaning,
        &[("tensor/src/a.rs", bad), ("tensor/tests/it/a.rs", bad)],
        &["tensor/src/a.rs:2", "tensor/src/a.rs:4", "tensor/src/a.rs:9", "tensor/src/a.rs:14"],
    );
}

/// A crate whose `count` files import each other in a ring.
fn ring(folder: &str, count: usize) -> Vec<(String, String)> {
    let file = |index: usize| {
        let next = (index + 1) % count;
        let text = format!("//! x\nuse crate::m{next}::X;\n");
        (format!("{folder}/src/m{index}.rs"), text)
    };
    let manifest = (format!("{folder}/Cargo.toml"), String::new());
    (0..count).map(file).chain([manifest]).collect()
}

#[test]
fn circle_of_more_than_six_files_is_found() {
    for (folder, count, expected) in [
        ("amp", 6, &[][..]),
        ("amp", 7, &["amp/src/m0.rs:1"]),
        ("tensor", 12, &["tensor/src/m0.rs:1"]),
    ] {
        let files = ring(folder, count);
        let files: Vec<(&str, &str)> =
            files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        check(circles::check, &files, expected);
    }
}

#[test]
fn comment_that_opens_without_its_subject_is_found() {
    let bad = "\
//! Of a crate.
/// Those of a block,
/// of which it is one.
///
/// It is the second paragraph.
///
/// - Of a list.
/// ```
/// Of code
/// ```
fn f() {} // Who asks.
// The same again.
// It goes on.
fn g() {} // What a name hides.
/// What is wrong with a setting. It is fine here.
/// That too.
fn h() {}

/// That is not.
/// What they take.
/// There are so
/// many, as many as there are blocks.
const C: &str = \"// Of a string\";
/// # Errors
/// Those of another function.
fn i() {}
";
    let found = [1, 2, 5, 11, 12, 14, 19, 19, 19, 25].map(|line| format!("xtask/src/a.rs:{line}"));
    let found: Vec<&str> = found.iter().map(String::as_str).collect();
    check(words::check_openings, &[("xtask/src/a.rs", bad)], &found);
}

#[test]
fn unit_test_in_a_library_that_is_built_for_no_tests_is_found() {
    let none = "[lib]\nbench = false\ntest = false\n\n[features]\n";
    let unit_test = "//! A.\n\nfn a() {}\n\n#[cfg(test)]\nmod tests {}\n";
    for (manifest, test, expected) in [
        (none, "//! Laws.\n", &["tensor/src/cpu/a.rs:5"][..]),
        (none, "//! Laws.\n#[path = \"../../src/cpu/a.rs\"]\nmod a;\n", &[]),
        (none, "//! Laws.\n#[path = \"../../src/cpu/b.rs\"]\nmod b;\n", &["tensor/src/cpu/a.rs:5"]),
        ("[lib]\nbench = false\n\n[[bin]]\ntest = false\n", "//! Laws.\n", &[]),
    ] {
        let files = [
            ("tensor/Cargo.toml", manifest),
            ("tensor/src/cpu/a.rs", unit_test),
            ("tensor/tests/it/main.rs", test),
        ];
        check(rust::check_unit_tests, &files, expected);
    }
}
