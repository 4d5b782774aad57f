use std::fs;
use std::path::Path;
use std::process::Command;

use xtask::tree::Tree;
use xtask::workspace;

fn write(root: &Path, path: &str, text: impl AsRef<[u8]>) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().expect("below the root")).expect("a folder");
    fs::write(path, text).expect("a file");
}

fn git(root: &Path, arguments: &[&str]) {
    let status = Command::new("git").args(arguments).current_dir(root).status().expect("git");
    assert!(status.success());
}

#[test]
fn root_is_the_nearest_workspace_above() {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), "Cargo.toml", "[workspace]\nmembers = [\"nn\"]\n");
    write(folder.path(), "nn/Cargo.toml", "[package]\nname = \"lowtide-nn\"\n");
    write(folder.path(), "nn/src/lib.rs", "");
    let root = workspace::root_above(&folder.path().join("nn/src")).expect("a workspace");
    assert_eq!(root, folder.path());
    assert_eq!(workspace::package_in(&root, "nn").as_deref(), Some("lowtide-nn"));
    assert_eq!(workspace::package_in(&root, "amp"), None);
}

#[test]
fn tree_holds_what_git_tracks_or_would_track() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    git(root, &["init", "-q"]);
    write(root, ".gitignore", "/target\n");
    write(root, "staged.rs", "//! s\n");
    write(root, "deleted.rs", "//! d\n");
    git(root, &["add", "staged.rs", "deleted.rs"]);
    fs::remove_file(root.join("deleted.rs")).expect("it is there");
    write(root, "new folder/ü.md", "# new\n");
    write(root, "image.png", [0x89, 0xff, 0x00]);
    write(root, "target/out.rs", "no header");
    let tree = Tree::read(root).expect("git answers");
    let files: Vec<(&str, bool)> =
        tree.files.iter().map(|file| (file.path.as_str(), file.text.is_some())).collect();
    let expected = [
        (".gitignore", true),
        ("image.png", false),
        ("new folder/ü.md", true),
        ("staged.rs", true),
    ];
    assert_eq!(files, expected);
}

#[test]
fn tree_outside_a_repository_is_an_error_that_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let error = Tree::read(folder.path()).expect_err("no repository");
    assert!(error.contains("git"), "{error}");
}
