//! Fingerprints of files: equal for equal files, and different after a change.

use std::fs;
use std::path::PathBuf;

use lowtide_trainer::{Fingerprint, TrainError};

/// Four MiB that begin with the length of a header of one MiB, as in a safetensors file.
fn contents() -> Vec<u8> {
    let mut bytes = vec![7; 4 << 20];
    bytes[..8].copy_from_slice(&(1_u64 << 20).to_le_bytes());
    bytes
}

/// The fingerprints, whole and by samples, of a file with `bytes`.
fn fingerprints(bytes: &[u8]) -> [Fingerprint; 2] {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("file.safetensors");
    fs::write(&path, bytes).expect("room");
    let of_file = Fingerprint::of_file(&path).expect("readable");
    [of_file, Fingerprint::of_samples(&[path]).expect("readable")]
}

#[test]
fn samples_differ_after_a_change_at_the_ends_and_in_the_header() {
    let bytes = contents();
    let [whole, samples] = fingerprints(&bytes);
    assert_eq!(fingerprints(&bytes), [whole.clone(), samples.clone()]);
    // The second place is in the header, and between the first two samples.
    for place in [0, 100_000, bytes.len() - 1] {
        let mut changed = bytes.clone();
        changed[place] ^= 1;
        let found = fingerprints(&changed);
        assert!(found[0] != whole && found[1] != samples, "{place}: {found:?}");
    }
    for len in [0, 1, 7, 8, bytes.len() - 1] {
        let found = fingerprints(&bytes[..len]);
        assert!(found[0] != whole && found[1] != samples, "{len}: {found:?}");
    }
}

#[test]
fn small_files_are_sampled_whole() {
    let bytes = &contents()[..1 << 20];
    let [_, samples] = fingerprints(bytes);
    for place in (0..bytes.len()).step_by(99_991) {
        let mut changed = bytes.to_vec();
        changed[place] ^= 1;
        assert_ne!(fingerprints(&changed)[1], samples, "{place}");
    }
}

#[test]
fn what_is_no_file_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let none = folder.path().join("none");
    let named = |found: Result<Fingerprint, TrainError>| match found {
        Err(TrainError::File { path, .. }) => path,
        other => panic!("{other:?}"),
    };
    let of_samples = |path: &PathBuf| Fingerprint::of_samples(std::slice::from_ref(path));
    for path in [folder.path().to_owned(), none] {
        assert_eq!(named(Fingerprint::of_file(&path)), path);
        assert_eq!(named(of_samples(&path)), path);
    }
}

#[test]
fn folder_is_known_by_names_and_lengths_and_by_its_weights() {
    let folder = tempfile::tempdir().expect("a folder");
    let of = || Fingerprint::of_contents(folder.path()).expect("readable");
    let write = |name: &str, bytes: &[u8]| {
        fs::write(folder.path().join(name), bytes).expect("room");
        of()
    };
    fs::create_dir(folder.path().join("inner")).expect("a folder");
    let first = write("inner/a.png", b"abc");
    assert_eq!(write("inner/a.png", b"abd"), first, "images are too many to read");
    assert_eq!(first.size_bytes(), 3);
    let longer = write("inner/a.png", b"abcd");
    assert_ne!(longer, first);
    fs::rename(folder.path().join("inner/a.png"), folder.path().join("inner/b.png")).unwrap();
    let renamed = of();
    assert_ne!(renamed, longer);
    let weights = write("model.safetensors", b"12");
    assert_ne!(write("model.safetensors", b"13"), weights);
    let file = folder.path().join("model.safetensors");
    let of_file = Fingerprint::of_contents(&file).expect("readable");
    assert_eq!(of_file, Fingerprint::of_samples(&[file]).expect("readable"));
}
