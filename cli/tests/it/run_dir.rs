//! The folder of a run: created with its parents, and never in place of a file.

use std::fs;

use lowtide_cli::RunDir;
use lowtide_trainer::{Metrics, NewFile};

use crate::common::path_of;

#[test]
fn file_in_the_way_is_an_error_that_names_the_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    fs::write(&file, "precious").expect("a folder");
    assert_eq!(path_of(RunDir::create(&file)), file);
    assert_eq!(path_of(RunDir::create(&file.join("run"))), file.join("run"));
    assert_eq!(path_of(RunDir::open(&file)), file);
    assert_eq!(path_of(RunDir::open(&folder.path().join("none"))), folder.path().join("none"));
    assert_eq!(fs::read_to_string(&file).expect("readable"), "precious");
    assert!(path_of(Metrics::create(&file.join("metrics.jsonl"))).starts_with(&file));
}

#[test]
fn run_folder_is_made_with_its_parents_and_opened_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a").join("b");
    let created = RunDir::create(&path).expect("a folder");
    NewFile::write(&created.summary(), "{}").expect("a folder");
    RunDir::create(&path).expect("it is there already");
    assert_eq!(RunDir::open(&path).expect("it is there").summary(), created.summary());
    assert_eq!(fs::read_to_string(created.summary()).expect("untouched"), "{}");
}
