//! Files are written under a temporary name first, so an earlier file stays whole.

use std::fs;
use std::path::Path;
#[cfg(target_os = "linux")]
use std::process::Command;

use lowtide_trainer::{Metrics, NewFile};

use crate::common::path_of;

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry"));
    entries.map(|entry| entry.file_name().into_string().expect("UTF-8")).collect()
}

#[test]
fn written_file_replaces_the_earlier_one_and_leaves_nothing_beside_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("summary.json");
    for text in ["first", "second, longer", ""] {
        NewFile::write(&path, text).expect("a folder");
        assert_eq!(fs::read_to_string(&path).expect("readable"), text);
        assert_eq!(names(folder.path()), ["summary.json"]);
    }
}

#[cfg(unix)]
#[test]
fn written_file_has_the_mode_of_any_new_file() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a folder");
    let [plain, written] = ["plain", "written"].map(|name| folder.path().join(name));
    fs::write(&plain, "").expect("a folder");
    NewFile::write(&written, "").expect("a folder");
    let mode = |path| fs::metadata(path).expect("there").permissions().mode();
    assert_eq!(mode(&written), mode(&plain), "others may read a report, if they may read at all");
}

#[cfg(unix)]
#[test]
fn link_stays_and_the_file_that_it_leads_to_is_replaced() {
    use std::os::unix::fs::symlink;
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("inner")).expect("a folder");
    let path = |name: &str| folder.path().join(name);
    symlink("inner/target", path("link")).expect("a link");
    symlink(path("link"), path("chain")).expect("a link");
    // The target does not exist at first.
    for text in ["first", "second"] {
        NewFile::write(&path("chain"), text).expect("a file");
        assert_eq!(fs::read_to_string(path("inner/target")).expect("readable"), text);
        assert!(path("link").is_symlink() && path("chain").is_symlink());
        assert_eq!(names(&path("inner")), ["target"]);
    }
    symlink("circle", path("circle")).expect("a link");
    assert_eq!(path_of(NewFile::write(&path("circle"), "text")), path("circle"));
    symlink("inner", path("folder")).expect("a link");
    assert_eq!(path_of(NewFile::write(&path("folder"), "text")), path("folder"));
}

#[cfg(unix)]
#[test]
fn pipe_is_written_in_place() {
    use std::os::unix::fs::{FileTypeExt, symlink};
    let folder = tempfile::tempdir().expect("a folder");
    let [pipe, link] = ["pipe", "link"].map(|name| folder.path().join(name));
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo is there");
    assert!(made.success());
    symlink("pipe", &link).expect("a link");
    for path in [&pipe, &link] {
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || fs::read_to_string(pipe)
        });
        NewFile::write(path, "through").expect("a pipe");
        // If the pipe was replaced, the reader would wait for ever.
        assert!(fs::symlink_metadata(&pipe).expect("there").file_type().is_fifo());
        assert!(link.is_symlink());
        assert_eq!(reader.join().expect("no panic").expect("readable"), "through");
    }
}

#[test]
fn folder_in_the_way_is_an_error_that_names_the_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("report.html");
    fs::create_dir(&path).expect("a folder");
    assert_eq!(path_of(NewFile::write(&path, "text")), path);
    assert_eq!(names(folder.path()), ["report.html"], "nothing is left beside it");
    let missing = folder.path().join("missing").join("report.html");
    assert_eq!(path_of(NewFile::write(&missing, "text")), missing);
}

#[cfg(unix)]
#[test]
fn unwritable_folder_is_an_error_that_names_the_file() {
    use std::os::unix::fs::PermissionsExt;
    const NAME: &str = "unwritable_folder_is_an_error_that_names_the_file";
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("summary.json");
    NewFile::write(&path, "earlier").expect("still writable");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o555)).expect("one's own");
    if fs::write(folder.path().join("probe"), "").is_ok() {
        return println!("skipped: {NAME}: this user may write everywhere");
    }
    assert_eq!(path_of(NewFile::write(&path, "later")), path);
    assert!(path_of(Metrics::create(&folder.path().join("m.jsonl"))).starts_with(folder.path()));
    assert_eq!(fs::read_to_string(&path).expect("readable"), "earlier");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("one's own");
}

/// The mount point of the full disk. Set in the process that runs inside.
#[cfg(target_os = "linux")]
const FULL_DISK: &str = "LOWTIDE_TEST_FULL_DISK";

#[cfg(target_os = "linux")]
#[test]
fn full_disk_is_an_error_that_names_the_file_and_leaves_the_earlier_one() {
    const NAME: &str = "full_disk_is_an_error_that_names_the_file_and_leaves_the_earlier_one";
    if let Some(folder) = std::env::var_os(FULL_DISK) {
        return check_full_disk(Path::new(&folder));
    }
    // A disk of 64 KiB that only this test sees, in a separate mount namespace.
    let folder = tempfile::tempdir().expect("a folder");
    let script = "mount -t tmpfs -o size=64k tmpfs \"$1\" || exit 77; shift; exec \"$@\"";
    let inside = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"])
        .arg(folder.path())
        .arg(std::env::current_exe().expect("a test runs from a file"))
        .args([&format!("files::{NAME}"), "--exact", "--nocapture"])
        .env(FULL_DISK, folder.path())
        .output();
    let skip = |reason: &str| println!("skipped: {NAME}: {reason}");
    let inside = match inside {
        Err(error) => return skip(&format!("unshare cannot be run: {error}")),
        Ok(inside) => inside,
    };
    let output = String::from_utf8_lossy(&inside.stdout) + String::from_utf8_lossy(&inside.stderr);
    if !output.contains("running 1 test") {
        return skip("no file system can be mounted here");
    }
    assert!(inside.status.success() && output.contains("1 passed"), "{output}");
}

#[cfg(target_os = "linux")]
fn check_full_disk(folder: &Path) {
    let path = folder.join("summary.json");
    NewFile::write(&path, "earlier").expect("there is room");
    assert_eq!(path_of(NewFile::write(&path, &"later".repeat(1 << 16))), path);
    assert_eq!(fs::read_to_string(&path).expect("readable"), "earlier");
    assert_eq!(names(folder), ["summary.json"], "the part that was written is gone");
}

#[cfg(target_os = "linux")]
#[test]
fn metrics_on_a_full_disk_do_not_cost_the_run() {
    use crate::common::Run;
    // Every write to this device fails for lack of room.
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("metrics.jsonl");
    let partial = folder.path().join("metrics.jsonl.partial");
    std::os::unix::fs::symlink("/dev/full", &partial).expect("a folder");
    let run = Run::default();
    let (train, test) = run.loaders();
    let mut trainer = run.trainer(&run.device(None));
    let mut metrics = Metrics::create(&path).expect("it can be opened");
    trainer.fit(&train, &test, 1, &mut [&mut metrics]).expect("the lines are lost, no more");
    assert_eq!(trainer.state_hash().expect("cpu"), run.fit(None).state_hash);
    assert!(!partial.exists() && path.exists());
}
