use xtask::tree::source::Source;

/// Compares the code of each line, which the rules about code read.
fn check(text: &str, expected: &[&str]) {
    let source = Source::parse(text);
    let code: Vec<&str> = source.lines.iter().map(|line| line.code.trim()).collect();
    assert_eq!(code, expected, "{text}");
}

#[test]
fn comments_are_not_code() {
    check("a // b\nc", &["a", "c"]);
    check("a /* b /* c */ d */ e", &["a  e"]);
    check("a /* b\nc */ d", &["a", "d"]);
    check("/// a\n//! b\nc", &["", "", "c"]);
}

#[test]
fn strings_are_not_code_and_keep_their_lines() {
    check(r#"f("// a", b"\" b", c)"#, &[r#"f("", b"", c)"#]);
    check("f(\"a\nb\", c)", &["f(\"", "\", c)"]);
    check("f(\"a\\\n b\", c)", &["f(\"", "\", c)"]);
    check("f(r\"\\\", br#\"a\"b\"#, c)", &["f(\"\", b\"\", c)"]);
    check("f(r##\"a\"# b\"##, c)", &["f(\"\", c)"]);
}

#[test]
fn raw_names_and_words_that_end_in_r_begin_no_string() {
    check("r#type + 1", &["r#type + 1"]);
    check("for\"a\"b", &["for\"\"b"]);
}

#[test]
fn characters_are_literals_and_lifetimes_are_not() {
    check(r#"['"', '\'', '\\', '\u{1b}', 'a'] x"#, &["['', '', '', '', ''] x"]);
    check("fn f<'a>(x: &'a str) {} // b", &["fn f<'a>(x: &'a str) {}"]);
    check("'outer: loop {} \"a\"", &["'outer: loop {} \"\""]);
}

#[test]
fn comment_text_has_no_marks() {
    let source = Source::parse("/// a\n///\n//! b\n\n/* c */ d // e");
    let comments: Vec<(&str, bool)> =
        source.lines.iter().map(|line| (line.comment.trim(), line.has_comment)).collect();
    assert_eq!(comments, [("a", true), ("", true), ("b", true), ("", false), ("c  e", true)]);
}

#[test]
fn text_that_ends_early_is_split_without_panic() {
    for text in ["", "\"", "r#\"", "/*", "'", "'\\", "r#", "b'"] {
        let _ = Source::parse(text);
    }
    check("'", &["'"]);
}
