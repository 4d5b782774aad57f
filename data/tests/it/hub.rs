//! The local cache of the hub: files are found by branch, tag or commit, and never outside the
//! cache.

use crate::Folder;
use lowtide_data::{HubCache, HubError, HubRepo};
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

const COMMIT: &str = "607a30d783dfa663caf39e06633721c8d4cfcd7e";

/// A cache with one model: a file at a commit, to which `main` and a pull request point.
fn cache() -> (Folder, PathBuf) {
    let folder = Folder::new("hub");
    let model = folder.path("models--org--name");
    let snapshot = model.join("snapshots").join(COMMIT);
    for path in [snapshot.join("data"), model.join("refs/refs/pr")] {
        fs::create_dir_all(path).unwrap();
    }
    fs::write(model.join("refs/main"), COMMIT).unwrap();
    fs::write(model.join("refs/refs/pr/1"), format!("{COMMIT}\n")).unwrap();
    for file in ["tokenizer.json", "data/train.jsonl"] {
        fs::write(snapshot.join(file), "{}").unwrap();
    }
    (folder, snapshot)
}

#[test]
fn files_are_found_at_a_branch_a_pull_request_and_a_commit() {
    let (folder, snapshot) = cache();
    let hub = HubCache::at(folder.root());
    let model = HubRepo::model("org/name");
    for repo in [model.clone(), model.clone().at("refs/pr/1"), model.clone().at(COMMIT)] {
        for file in ["tokenizer.json", "data/train.jsonl"] {
            assert_eq!(hub.find(&repo, file), Ok(snapshot.join(file)));
        }
    }
}

#[test]
fn error_names_every_place_that_was_looked_at() {
    let (folder, snapshot) = cache();
    let hub = HubCache::at(folder.root());
    let error = hub.find(&HubRepo::model("org/name"), "config.json").unwrap_err();
    let HubError::NotFound { looked, .. } = &error else { panic!("{error}") };
    assert_eq!(looked[..], [snapshot.join("config.json")]);
    let text = error.to_string();
    assert!(text.contains("main of models/org/name has no config.json"), "{text}");
    assert!(text.contains(COMMIT), "{text}");
    let error = hub.find(&HubRepo::dataset("org/name").at("v1"), "tokenizer.json").unwrap_err();
    let HubError::NotFound { looked, .. } = error else { panic!("{error}") };
    let set = folder.path("datasets--org--name");
    assert_eq!(looked, [set.join("refs/v1"), set.join("snapshots/v1/tokenizer.json")]);
    // A folder is not a file.
    assert!(hub.find(&HubRepo::model("org/name"), "data").is_err());
}

#[test]
fn names_that_lead_out_of_the_cache_are_refused() {
    let (folder, _) = cache();
    let hub = HubCache::at(folder.root());
    let model = HubRepo::model("org/name");
    for name in ["", "..", "../x", "a/../../x", "/etc/passwd", "./x"] {
        let refused = Err(HubError::Name { name: name.to_owned() });
        assert_eq!(hub.find(&model, name), refused);
        assert_eq!(hub.find(&model.clone().at(name), "x"), refused);
        assert_eq!(hub.find(&HubRepo::model(name), "x"), refused);
    }
    fs::write(folder.path("models--org--name/refs/main"), "../../..").unwrap();
    assert!(matches!(hub.find(&model, "x"), Err(HubError::Name { .. })));
    for content in [&[0xff; 9][..], &[b'a'; 10_000], b""] {
        fs::write(folder.path("models--org--name/refs/main"), content).unwrap();
        assert!(hub.find(&model, "tokenizer.json").is_err());
    }
}

#[test]
fn variables_count_in_the_order_of_the_library() {
    let all = [
        ("HF_HUB_CACHE", "/hub", "/hub"),
        ("HF_HOME", "/hf", "/hf/hub"),
        ("XDG_CACHE_HOME", "/xdg", "/xdg/huggingface/hub"),
        ("HOME", "/h/a", "/h/a/.cache/huggingface/hub"),
        ("USERPROFILE", "/u/a", "/u/a/.cache/huggingface/hub"),
    ];
    for first in 0..all.len() {
        // Variables before `first` are set, and empty.
        let variable = |name: &str| {
            let at = all.iter().position(|(known, ..)| *known == name)?;
            Some(OsString::from(if at < first { "" } else { all[at].1 }))
        };
        assert_eq!(HubCache::from_variables(variable), HubCache::at(all[first].2));
    }
    let none = HubCache::from_variables(|_| None);
    assert_eq!(none.find(&HubRepo::model("org/name"), "x"), Err(HubError::NoFolder));
}
