use std::cell::Cell;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::{env, fs, process};

use lowtide_tensor::cuda::gate::{CompileError, KernelCache};
use lowtide_tensor::testing::cuda::{from_values, get_or_make, hash};

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = env::temp_dir().join(format!("lowtide-{name}-{}", process::id()));
        let _ = fs::remove_dir_all(&path);
        Folder(path)
    }

    fn cache(&self) -> KernelCache {
        KernelCache::in_folder(&self.0)
    }

    fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.0).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The code that the cache gives for a key, and whether it had to be made.
fn get(cache: &KernelCache, key: &str, code: &[u8]) -> (Vec<u8>, bool) {
    let made = Cell::new(false);
    let make = || {
        made.set(true);
        Ok(code.to_vec())
    };
    (get_or_make(cache, "name", key, make).unwrap(), made.get())
}

#[test]
fn hash_is_that_of_its_definition() {
    // Test vectors of draft-eastlake-fnv: "", "a" and "foobar".
    assert_eq!(hash(&[]), 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
    assert_eq!(hash(&[b"a"]), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
    assert_eq!(hash(&[b"foo", b"bar"]), 0x343e_1662_793c_64bf_6f0d_3597_ba44_6f18);
}

#[test]
fn what_was_made_is_kept_under_its_key_alone() {
    let folder = Folder::new("cache-kept");
    let cache = folder.cache();
    assert_eq!(get(&cache, "one", b"1"), (b"1".to_vec(), true));
    assert_eq!(get(&cache, "two", b""), (b"".to_vec(), true));
    assert_eq!(get(&cache, "one", b"other"), (b"1".to_vec(), false));
    assert_eq!(get(&cache, "two", b"other"), (b"".to_vec(), false));
    assert_eq!(folder.files().len(), 2, "and nothing beside them");
}

#[test]
fn what_fails_is_not_kept() {
    let folder = Folder::new("cache-failed");
    let failed = get_or_make(&folder.cache(), "name", "key", || Err(CompileError::NoArchitecture));
    assert_eq!(failed, Err(CompileError::NoArchitecture));
    assert!(get(&folder.cache(), "key", b"1").1);
}

#[test]
fn file_that_is_not_whole_or_of_another_key_is_made_again() {
    let folder = Folder::new("cache-corrupt");
    let cache = folder.cache();
    get(&cache, "other", b"code of another");
    let foreign = fs::read(&folder.files()[0]).unwrap();
    fs::remove_file(&folder.files()[0]).unwrap();
    get(&cache, "key", b"the code");
    let path = folder.files().remove(0);
    let whole = fs::read(&path).unwrap();
    let cut = (0..whole.len()).map(|len| whole[..len].to_vec());
    let flipped = (0..whole.len()).map(|at| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        bytes
    });
    let longer = [whole.as_slice(), b"!"].concat();
    for bytes in cut.chain(flipped).chain([longer, foreign]) {
        fs::write(&path, &bytes).unwrap();
        assert_eq!(get(&cache, "key", b"the code"), (b"the code".to_vec(), true), "{bytes:?}");
        assert_eq!(fs::read(&path).unwrap(), whole, "replaced");
    }
    assert_eq!(get(&cache, "key", b"other"), (b"the code".to_vec(), false));
}

#[test]
fn folder_that_cannot_be_used_is_no_error() {
    let folder = Folder::new("cache-unwritable");
    fs::create_dir_all(&folder.0).unwrap();
    let file = folder.0.join("file");
    fs::write(&file, "").unwrap();
    let below_a_file = KernelCache::in_folder(file.join("kernels"));
    for cache in [below_a_file, KernelCache::nowhere()] {
        for _ in 0..2 {
            assert_eq!(get(&cache, "key", b"1"), (b"1".to_vec(), true));
        }
    }
    // Root writes everywhere, so nothing is claimed about whether it is kept here.
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o500)).unwrap();
    assert_eq!(get(&folder.cache(), "key", b"1").0, b"1");
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o700)).unwrap();
    // A folder where the file should be: written beside, not renamed, taken away again.
    let key = hash(&[b"key"]);
    let taken = folder.0.join(format!("name-{key:032x}.cubin"));
    let _ = fs::remove_file(&taken);
    fs::create_dir_all(taken.join("inside")).unwrap();
    assert_eq!(get(&folder.cache(), "key", b"1"), (b"1".to_vec(), true));
    assert_eq!(folder.files().len(), 2, "the file and the folder");
}

#[test]
fn folder_is_that_of_the_environment() {
    let at = |values: [Option<&str>; 3]| {
        let cache = from_values(values.map(|value| value.map(OsString::from)));
        cache.folder().map(PathBuf::from)
    };
    let path = |text: &str| Some(PathBuf::from(text));
    assert_eq!(at([Some("/a/b"), Some("/c"), Some("/d")]), path("/a/b"));
    assert_eq!(at([Some(""), Some("/c"), Some("/d")]), None);
    assert_eq!(at([None, Some("/c"), Some("/d")]), path("/c/lowtide/kernels"));
    assert_eq!(at([None, Some("c"), Some("/d")]), path("/d/.cache/lowtide/kernels"));
    assert_eq!(at([None, None, Some("/d")]), path("/d/.cache/lowtide/kernels"));
    assert_eq!(at([None, None, None]), None);
}
