//! Files that no source waits for or reads without end, and inputs that are open already.

use crate::Folder;
use lowtide_data::{
    Bytes, Csv, CsvOptions, DataError, Documents, Images, JsonLines, LineFormat, Npy, Text,
    TokenFile,
};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;

/// The error of each source of files at `path`.
fn errors(path: &Path) -> Vec<(&'static str, Option<DataError>)> {
    let lines = JsonLines::new(LineFormat::text(), Arc::new(Bytes::new())).expect("a format");
    vec![
        ("csv", Csv::open(path, &CsvOptions::default()).err()),
        ("text", Text::read(path, 4).err()),
        ("texts", Documents::read_texts(&[path], &Bytes::new()).err()),
        ("tokens", TokenFile::open(&[path], 4).err()),
        ("json lines", lines.read(&[path]).err()),
        ("idx", Images::idx(path, path).err()),
        ("npy", Npy::open("x", path).err()),
    ]
}

#[cfg(unix)]
#[test]
fn pipe_or_device_in_place_of_data_is_refused_without_waiting() {
    let folder = Folder::new("inputs");
    let pipe = folder.path("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo is there");
    assert!(made.success());
    for path in [&*pipe, Path::new("/dev/zero")] {
        for (source, error) in errors(path) {
            let error = error.unwrap_or_else(|| panic!("{source} has read {}", path.display()));
            assert!(matches!(error, DataError::File { .. }), "{source}: {error}");
            assert!(error.to_string().contains("not a regular file"), "{source}: {error}");
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn pipe_that_is_open_already_is_read() {
    use std::io::Write;
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    writer.write_all(b"abcdefgh").expect("the pipe has room");
    drop(writer);
    let path = format!("/dev/fd/{}", reader.as_raw_fd());
    let text = Text::read(Path::new(&path), 3).expect("a text");
    assert_eq!(text.vocabulary().len(), 8);
}
