//! The code in the root README works as shown.

use std::fs;
use std::path::Path;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn example_in_the_readme_is_the_one_that_compiles() {
    let (readme, example) = (read("../README.md"), read("examples/01_digits.rs"));
    assert!(readme.contains(&format!("```rust\n{example}```\n")), "copy examples/01_digits.rs");
}
