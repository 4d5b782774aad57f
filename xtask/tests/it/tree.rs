use xtask::tree::circles::circles;
use xtask::tree::items::{functions, public_items};
use xtask::tree::modules::{imports, modules};
use xtask::tree::source::Source;
use xtask::tree::tokens::{tokens, without_tests};

use crate::tidy::tree;

fn check_tokens(text: &str, expected: &[&str]) {
    let source = Source::parse(text);
    let found: Vec<&str> = tokens(&source).iter().map(|token| token.text).collect();
    assert_eq!(found, expected, "{text}");
}

#[test]
fn code_is_words_and_marks_without_literals_of_text() {
    check_tokens(
        "a::b->c <'d> // e\n\"f\" + 'g'",
        &["a", "::", "b", "->", "c", "<", "'d", ">", "+"],
    );
    check_tokens("x.0 += 1_u8; é", &["x", ".", "0", "+", "=", "1_u8", ";", "é"]);
}

/// Compares the code without tests, and its number of lines.
fn check_shipped(text: &str, expected: &str, line_count: usize) {
    let source = Source::parse(text);
    let shipped = without_tests(&source);
    let found: Vec<&str> = shipped.tokens.iter().map(|token| token.text).collect();
    assert_eq!((found.join(" ").as_str(), shipped.line_count), (expected, line_count), "{text}");
}

#[test]
fn items_of_tests_are_left_out() {
    check_shipped("a;\n#[cfg(test)]\nmod tests {\n    x;\n}\nb;\n", "a ; b ;", 2);
    check_shipped("#[cfg(all(test, unix))]\n#[allow(x)]\nuse a::{b, c};\nd", "d", 1);
    check_shipped("#[test]\nfn f<A, B>(a: [A; 2]) -> B {\n}\nd", "d", 1);
    check_shipped("struct A {\n#[cfg(test)]\na: u8,\nb: u8,\n}", "struct A { b : u8 , }", 3);
    check_shipped("f(#[cfg(test)] a)", "f ( )", 0);
    check_shipped("#[cfg(not(test))]\na;", "# [ cfg ( not ( test ) ) ] a ;", 2);
    check_shipped("#[cfg(feature = \"testing\")]\na;", "# [ cfg ( feature = ) ] a ;", 2);
}

/// Compares the imports, as `importer: imported..` with the names of files.
fn check_imports(files: &[(&str, &str)], expected: &[&str]) {
    let tree = tree(files);
    let modules = modules(&tree, "nn");
    let path = |index: usize| modules[index].file.path.trim_start_matches("nn/src/");
    let line = |(index, imports): (usize, Vec<usize>)| {
        let imports: Vec<&str> = imports.into_iter().map(path).collect();
        (!imports.is_empty()).then(|| format!("{}: {}", path(index), imports.join(" ")))
    };
    let found: Vec<String> = imports(&modules).into_iter().enumerate().filter_map(line).collect();
    assert_eq!(found, expected, "{files:?}");
}

/// Three files of one crate. The first file has `text`.
fn with_two_others(text: &str) -> [(&str, &str); 4] {
    [("nn/src/a.rs", text), ("nn/src/b/c.rs", ""), ("nn/src/b/mod.rs", ""), ("nn/src/lib.rs", "")]
}

#[test]
fn path_leads_to_the_file_of_the_module_that_it_names() {
    for (text, imported) in [
        ("use crate::b::c::X;", "a.rs: b/c.rs"),
        ("use crate::b::X;", "a.rs: b/mod.rs"),
        ("use crate::{b::{c::X, Y as Z}, d};", "a.rs: b/c.rs b/mod.rs lib.rs"),
        ("use super::b::{self, c::*};", "a.rs: b/c.rs b/mod.rs"),
        ("fn f() -> super::b::X { crate::b::c::f::<u8>() }", "a.rs: b/c.rs b/mod.rs"),
        ("mod inline { use super::super::b::X; }\nuse super::b::c::Y;", "a.rs: b/c.rs b/mod.rs"),
        ("macro_rules! m { () => { $crate::b::X } }", "a.rs: b/mod.rs"),
    ] {
        check_imports(&with_two_others(text), &[imported]);
    }
}

#[test]
fn declarations_tests_and_own_items_are_no_imports() {
    for text in [
        "mod b;",
        "use b::c::X;",
        "use self::inline::X;\nmod inline { use super::Y; }",
        "pub(in crate::b) fn f() {}",
        "/// [`X`](crate::b::X)\n#[cfg(test)]\nmod tests { use crate::b::X; }",
        "use lowtide_tensor::b::X;",
        "fn f() { \"crate::b::X\"; x.super_; }",
    ] {
        check_imports(&with_two_others(text), &[]);
    }
    let files = [
        ("nn/src/a.rs", "#[cfg(test)]\nmod laws;"),
        ("nn/src/a/laws.rs", "use crate::b::X;"),
        ("nn/src/b.rs", ""),
        ("nn/src/bin/c.rs", "use crate::b::X;"),
        ("nn/src/lib.rs", ""),
        ("nn/tests/it/main.rs", "use crate::b::X;"),
    ];
    check_imports(&files, &[]);
}

#[test]
fn circles_are_what_can_be_reached_from_each_member() {
    let arrows = |of: &[&[usize]]| of.iter().map(|to| to.to_vec()).collect::<Vec<_>>();
    assert_eq!(circles(&arrows(&[&[1], &[2], &[]])), Vec::<Vec<usize>>::new());
    assert_eq!(circles(&arrows(&[&[1], &[0]])), [[0, 1]]);
    let two = arrows(&[&[1], &[0, 2], &[3], &[4], &[2], &[0, 4]]);
    assert_eq!(circles(&two), [vec![2, 3, 4], vec![0, 1]]);
    assert_eq!(circles(&arrows(&[&[1, 2], &[3], &[3], &[0]])), [[0, 1, 2, 3]]);
}

#[test]
fn functions_have_lines_and_parameters() {
    let text = "\
fn one(&self, x: [u8; 2], f: impl Fn(A, B) -> C,) -> Map<K, V>
where
    K: Clone,
{
    let g: fn(u8) = |a, b| { a };
}
trait T { fn none(); fn given() {} }
";
    let source = Source::parse(text);
    let found: Vec<(&str, usize, usize, usize)> = functions(&tokens(&source))
        .iter()
        .map(|of| (of.name, of.line, of.line_count, of.parameter_count))
        .collect();
    assert_eq!(found, [("one", 1, 6, 3), ("given", 7, 1, 0)]);
}

#[test]
fn public_items_are_those_that_other_crates_may_name() {
    let text = "\
pub struct A { pub field: u8 }
pub(crate) struct B;
impl A { pub const fn c() {} pub unsafe extern \"C\" fn d() {} fn e() {} }
pub use x::F;
pub const G: u8 = 0;
pub static mut H: u8 = 0;
pub mod i {}
#[macro_export]
macro_rules! j { () => {} }
macro_rules! k { () => {} }
";
    let source = Source::parse(text);
    let names: Vec<&str> = public_items(&tokens(&source)).iter().map(|item| item.name).collect();
    assert_eq!(names, ["A", "c", "d", "G", "H", "i", "j"]);
}
