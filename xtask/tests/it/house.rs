use xtask::house::{names, surveys, table};

use crate::tidy::tree;

fn long(head: &str, count: usize) -> String {
    format!("//! x\n{head} {{\n{}}}\n", "    x;\n".repeat(count - 2))
}

#[test]
fn crate_is_measured_without_its_tests() {
    let function =
        long("pub fn lengthy(a: u8, b: u8, c: u8, d: u8, e: u8, f: u8, g: u8, h: u8)", 71);
    let file = long("mod inline", 400);
    let test = format!("//! x\n#[cfg(test)]\n{}", long("mod tests", 400));
    let tree = tree(&[
        ("amp/Cargo.toml", ""),
        ("amp/src/a.rs", "//! Of a.\nuse crate::b::X;\npub fn told() {}\npub fn shown() {}\n"),
        ("amp/src/b.rs", "//! b\nuse crate::a::X;\npub fn known() {}\n"),
        ("amp/src/c.rs", &function),
        ("amp/src/d.rs", &file),
        ("amp/src/e.rs", &test),
        ("amp/tests/it/a.rs", "told();\n"),
        ("nn/Cargo.toml", ""),
        ("nn/README.md", "`shown`\n"),
        ("nn/tests/it/a.rs", "known();\n"),
    ]);
    let surveys = surveys(&tree);
    let [amp, nn] = &surveys[..] else { panic!("{surveys:?}") };
    assert_eq!((amp.file_count, amp.line_count), (5, 4 + 3 + 72 + 401 + 1));
    assert_eq!(amp.circles, [["amp/src/a.rs", "amp/src/b.rs"]]);
    let places =
        |places: &[xtask::house::Place]| places.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(places(&amp.long_files), ["amp/src/d.rs:1: 401 lines"]);
    assert_eq!(places(&amp.long_functions), ["amp/src/c.rs:2: lengthy, 71 lines"]);
    assert_eq!(places(&amp.wide_functions), ["amp/src/c.rs:2: lengthy, 8 parameters"]);
    assert_eq!(places(&amp.unnamed), ["amp/src/a.rs:3: told", "amp/src/c.rs:2: lengthy"]);
    assert_eq!((amp.public_count, amp.words.len(), nn.file_count), (4, 1, 0));
    let text = table(&surveys);
    let numbers: Vec<&str> = text.lines().nth(1).expect("a row").split_whitespace().collect();
    assert_eq!(numbers, ["amp", "5", "481", "1", "2", "1", "1", "1", "4", "2", "1"]);
    assert!(text.contains("\nthe largest circle: amp/src/a.rs, amp/src/b.rs\n"), "{text}");
    let text = names(amp);
    assert!(text.starts_with("a circle of 2 files\n  amp/src/a.rs\n  amp/src/b.rs\n"), "{text}");
    assert!(text.ends_with("\n  amp/src/a.rs: told\n  amp/src/c.rs: lengthy\n"), "{text}");
}
