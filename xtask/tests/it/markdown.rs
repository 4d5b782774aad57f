use xtask::tidy::markdown::{check_links, check_recipes};

use crate::tidy::check;

/// Checks a link in a README beside `docs/guide.md`, which has the heading `How it *works*,
/// really`.
fn check_link(text: &str, found: bool) {
    let guide = "# Guide\n\n## How it *works*, really\n\n## Guide\n\n<a id=\"here\"></a>\n";
    let expected: &[&str] = if found { &["nn/README.md:1"] } else { &[] };
    check(check_links, &[("docs/guide.md", guide), ("nn/README.md", text)], expected);
}

#[test]
fn links_that_lead_somewhere_are_fine() {
    for text in [
        "[a](../docs/guide.md)",
        "[a](../docs/guide.md \"title\")",
        "![a](<../docs/guide.md>)",
        "[`a`](../docs/) and [b](./README.md)",
        "[a](../docs/guide.md#how-it-works-really)",
        "[a](../docs/guide.md#guide-1) [b](../docs/guide.md#here)",
        "# Own heading [a](#own-heading-a)",
        "[a](https://example.org/none.md) [b](mailto:a@example.org)",
        "[a]: ../docs/guide.md",
        "[^1]: not a link",
        "`[a](none.md)` and arrays[0](x)[1]",
    ] {
        check_link(text, text.contains("[0](x)"));
    }
}

#[test]
fn links_that_lead_nowhere_are_found() {
    for text in [
        "[a](guide.md)",
        "[a](../docs/none.md)",
        "![a](none.png)",
        "[a](../docs/guide.md#none)",
        "[a](#none)",
        "[a](../../outside.md)",
        "[a]: none.md",
        "[a](crate::Tensor)",
        "`code` [a](none.md) `code`",
    ] {
        check_link(text, true);
    }
}

#[test]
fn fenced_code_has_no_links_and_no_headings() {
    let text = "# A\n```text\n[a](none.md)\n# B\n```\n[b](#b)\n";
    check(check_links, &[("README.md", text)], &["README.md:6"]);
}

#[test]
fn every_bad_link_of_a_line_is_found() {
    check(check_links, &[("a.md", "[a](b.md) [c](d.md)")], &["a.md:1", "a.md:1"]);
}

#[test]
fn recipes_name_files_and_folders_that_are_there() {
    let text = "`nn/src/a.rs` in `nn/src`, `nn/src/NAME`, `a::b`, `cargo fmt`\n\
                `nn/src/b.rs`\n`nn/none/X`\n";
    let files = [("CONTRIBUTING.md", text), ("nn/src/a.rs", ""), ("docs/x.md", "`nn/src/b.rs`")];
    check(check_recipes, &files, &["CONTRIBUTING.md:2", "CONTRIBUTING.md:3"]);
}
