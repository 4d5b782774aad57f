//! CIFAR, CSV and npy files: their samples, and the files that are refused.

use crate::folders::{first, put};
use lowtide_data::{
    Cifar, Csv, CsvError, CsvOptions, CsvTarget, DataError, Dataset, Element, Npy, NpyError,
};
use std::path::Path;
use tempfile::TempDir;

fn values<T: Element>(dataset: impl Dataset + 'static, field: &str) -> Vec<T> {
    let batch = first(dataset).unwrap();
    batch.field(field).unwrap().values::<T>().unwrap().to_vec()
}

/// The typed cause of a file's error, and the text of the error.
fn cause<E: std::error::Error + Clone + 'static>(error: DataError) -> (E, String) {
    let text = error.to_string();
    let DataError::File { source, .. } = error else { panic!("{text}") };
    let cause = source.get_ref().and_then(|cause| cause.downcast_ref::<E>());
    (cause.unwrap_or_else(|| panic!("{text}")).clone(), text)
}

fn records(label: &[u8], count: usize) -> Vec<u8> {
    let record = |at: usize| [label, &[at as u8; 1024], &[2; 1024], &[3; 1024]].concat();
    (0..count).flat_map(record).collect()
}

#[test]
fn cifar_records_are_planes_with_a_label_in_front() {
    let folder = TempDir::new().unwrap();
    for part in 1..=5 {
        put(folder.path(), &format!("data_batch_{part}.bin"), &records(&[part], 2));
    }
    put(folder.path(), "test_batch.bin", &records(&[9], 1));
    let (train, test) = Cifar::ten(folder.path()).unwrap();
    assert_eq!((train.len(), train.classes(), test.classes()), (10, 10, 10));
    assert_eq!(values::<i64>(train.clone(), "labels"), [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]);
    let pixels = values::<f32>(train, "images");
    assert_eq!(pixels.len(), 10 * 3072);
    assert_eq!([pixels[3072], pixels[1024]], [1.0 / 255.0, 2.0 / 255.0]);
    put(folder.path(), "train.bin", &records(&[3, 42], 3));
    put(folder.path(), "test.bin", &records(&[3, 99], 1));
    let (train, test) = Cifar::hundred(folder.path()).unwrap();
    assert_eq!(values::<i64>(train, "labels"), [42; 3]);
    assert_eq!(values::<i64>(test, "labels"), [99]);
}

#[test]
fn cifar_files_that_lie_are_refused_with_the_place() {
    let folder = TempDir::new().unwrap();
    put(folder.path(), "test.bin", &records(&[0, 0], 1));
    for (bytes, word) in [
        (records(&[3, 100], 2), "record 0 has the label 100"),
        (records(&[0, 0], 2)[1..].to_vec(), "records of 3074"),
        (Vec::new(), "records of 3074"),
    ] {
        put(folder.path(), "train.bin", &bytes);
        let text = Cifar::hundred(folder.path()).expect_err("it lies").to_string();
        assert!(text.contains("train.bin") && text.contains(word), "{text}");
    }
    assert!(Cifar::ten(folder.path()).is_err());
}

fn csv(text: &str, options: &CsvOptions) -> Result<Csv, DataError> {
    let folder = TempDir::new().unwrap();
    put(folder.path(), "table.csv", text.as_bytes());
    Csv::open(folder.path().join("table.csv"), options)
}

fn with(target: CsvTarget) -> CsvOptions {
    CsvOptions { target, ..Default::default() }
}

#[test]
fn csv_columns_are_chosen_by_name_and_classes_sorted() {
    let text = "\u{feff}\"length, cm\",width,kind\r\n1, 2.5,\"b \"\"x\"\"\"\r\n\r\n-3e1,4,a\n5,6,a";
    let table = csv(text, &with(CsvTarget::Class("kind".into()))).unwrap();
    assert_eq!(table.features(), ["length, cm", "width"]);
    assert_eq!(table.classes(), ["a", "b \"x\""]);
    assert_eq!(values::<f32>(table.clone(), "inputs"), [1.0, 2.5, -30.0, 4.0, 5.0, 6.0]);
    assert_eq!(values::<i64>(table, "labels"), [1, 0, 0]);
    let text = "a;b;c\n1;2;3\n4;?;6\n";
    let options = CsvOptions {
        features: vec!["c".into(), "b".into()],
        target: CsvTarget::Number("a".into()),
        fill: Some(-1.0),
        separator: b';',
    };
    let table = csv(text, &options).unwrap();
    assert_eq!(values::<f32>(table.clone(), "inputs"), [3.0, 2.0, 6.0, -1.0]);
    assert_eq!(values::<f32>(table, "targets"), [1.0, 4.0]);
    let table = csv("x,y\n1,7\n2,0\n", &with(CsvTarget::Index("y".into()))).unwrap();
    assert_eq!(values::<i64>(table, "labels"), [7, 0]);
    let known = CsvTarget::KnownClass("y".into(), vec!["b".into(), "a".into()]);
    let table = csv("x,y\n1,a\n2,b\n", &with(known)).unwrap();
    assert_eq!(values::<i64>(table, "labels"), [1, 0]);
}

#[test]
fn csv_errors_name_the_line_and_the_column() {
    let numbers = CsvOptions::default();
    let refused = |text: &str, options: &CsvOptions| {
        cause::<CsvError>(csv(text, options).expect_err("it is wrong")).0
    };
    assert_eq!(refused("", &numbers), CsvError::Empty);
    assert_eq!(refused("a,b\n", &numbers), CsvError::Empty);
    let ragged = CsvError::Ragged { line: 3, expected: 2, actual: 3 };
    assert_eq!(refused("a,b\n1,2\n1,2,3\n", &numbers), ragged);
    let line = 4;
    let ragged = CsvError::Ragged { line, expected: 2, actual: 1 };
    assert_eq!(refused("a,b\n1,2\n\n1\n", &numbers), ragged);
    let missing = CsvError::Missing { line: 2, column: "b".into() };
    assert_eq!(refused("a,b\n1,NA\n", &numbers), missing);
    let cell = CsvError::Cell { line: 2, column: "b".into(), cell: "inf".into() };
    assert_eq!(refused("a,b\n1,inf\n", &numbers), cell);
    assert_eq!(refused("a,b\n1,\"2\n", &numbers), CsvError::Quote { line: 2 });
    assert_eq!(refused("a,b\n1,\"2\"3\n", &numbers), CsvError::Quote { line: 2 });
    let column = CsvError::Column { column: "c".into() };
    let options = CsvOptions { features: vec!["c".into()], ..Default::default() };
    assert_eq!(refused("a,b\n1,2\n", &options), column);
    let options = with(CsvTarget::Index("b".into()));
    let cell = CsvError::Cell { line: 2, column: "b".into(), cell: "-1".into() };
    assert_eq!(refused("a,b\n1,-1\n", &options), cell);
    let options = with(CsvTarget::KnownClass("b".into(), vec!["x".into()]));
    let cell = CsvError::Cell { line: 2, column: "b".into(), cell: "y".into() };
    assert_eq!(refused("a,b\n1,y\n", &options), cell);
    let options = with(CsvTarget::Class("b".into()));
    assert!(matches!(refused("a,b\n1,\n", &options), CsvError::Missing { line: 2, .. }));
    // A quoted cell may contain newlines, which add to the line number of the next record.
    let ragged = CsvError::Ragged { line: 4, expected: 2, actual: 1 };
    assert_eq!(refused("a,b\n1,\"\n2\"\n3\n", &numbers), ragged);
    let long = format!("a,b\n1,\"{}", "x".repeat(2 << 20));
    assert_eq!(refused(&long, &numbers), CsvError::Long { line: 2 });
}

/// A file in the layout of NumPy.
fn npy(descr: &str, order: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let head = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}");
    let padded = (head.len() + 11).next_multiple_of(64) - 10;
    let head = format!("{head:width$}\n", width = padded - 1);
    [b"\x93NUMPY\x01\x00", &(padded as u16).to_le_bytes()[..], head.as_bytes(), data].concat()
}

#[test]
fn npy_arrays_are_cut_along_their_first_axis_and_zipped_by_name() {
    let folder = TempDir::new().unwrap();
    let x: Vec<u8> = (0..6).flat_map(|n| (n as f32).to_le_bytes()).collect();
    let y: Vec<u8> = [7_i64, -8].iter().flat_map(|n| n.to_le_bytes()).collect();
    put(folder.path(), "x.npy", &npy("<f4", "False", "(2, 3)", &x));
    // The header of version 2 states its length in four bytes.
    let second = npy("<i8", "False", "(2,)", &y);
    let second = [b"\x93NUMPY\x02\x00", &second[8..10], &[0, 0], &second[10..]].concat();
    put(folder.path(), "y.npy", &second);
    put(folder.path(), "z.npy", &npy("|u1", "False", "(3,)", &[1, 2, 3]));
    let path = |name: &str| folder.path().join(name);
    let arrays = Npy::open("x", path("x.npy")).unwrap().with("y", path("y.npy")).unwrap();
    assert_eq!(arrays.fields()[0].shape, [3]);
    assert_eq!(values::<f32>(arrays.clone(), "x"), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!(values::<i64>(arrays.clone(), "y"), [7, -8]);
    let error = arrays.with("z", path("z.npy")).expect_err("three are not two");
    assert!(matches!(error, DataError::FieldLength { expected: 2, actual: 3, .. }), "{error}");
}

#[test]
fn npy_headers_that_lie_are_refused_by_what_is_wrong() {
    let folder = TempDir::new().unwrap();
    let refused = |bytes: &[u8]| {
        put(folder.path(), "x.npy", bytes);
        let error = Npy::open("x", folder.path().join("x.npy")).expect_err("it lies");
        let (cause, text) = cause::<NpyError>(error);
        assert!(text.contains("x.npy"), "{text}");
        cause
    };
    assert_eq!(refused(b"PK\x03\x04"), NpyError::Unknown);
    assert_eq!(refused(b"\x93NUMPY\x09\x00\x10\x00"), NpyError::Unknown);
    assert_eq!(refused(b"\x93NUMPY\x02\x00\xff\xff\xff\xff{}"), NpyError::Unknown);
    assert_eq!(refused(&npy("<f4", "True", "(1, 1)", &[0; 4])), NpyError::FortranOrder);
    for descr in ["|O", ">f4", "<c8", "<U5"] {
        let element = NpyError::Element { descr: descr.to_owned() };
        assert_eq!(refused(&npy(descr, "False", "(1,)", &[0; 64])), element);
    }
    assert_eq!(refused(&npy("<f4", "False", "()", &[0; 4])), NpyError::Scalar);
    let short = NpyError::Length { expected: 8, actual: 7 };
    assert_eq!(refused(&npy("<f4", "False", "(2,)", &[0; 7])), short);
    let huge = npy("<f4", "False", "(4611686018427387904, 4611686018427387904)", &[0; 8]);
    assert!(matches!(refused(&huge), NpyError::Length { expected: usize::MAX, .. }));
    let empty = npy("<f4", "False", "(18446744073709551615, 0)", &[]);
    assert_eq!(refused(&empty), NpyError::Empty { len: usize::MAX });
    for shape in ["(-1,)", "(x,)", "2"] {
        assert!(matches!(refused(&npy("<f4", "False", shape, &[0; 8])), NpyError::Header { .. }));
    }
    assert!(Npy::open("x", Path::new("missing.npy")).is_err());
}

proptest::proptest! {
    #[test]
    fn random_and_mutated_tables_never_panic(
        noise in proptest::collection::vec(proptest::num::u8::ANY, 0..200),
        changes in proptest::collection::vec((0..256_usize, proptest::num::u8::ANY), 0..6),
    ) {
        let folder = TempDir::new().unwrap();
        let mut csv = b"a,\"b\"\n1,2\n3,\"4\"\r\n5,6\n".to_vec();
        let mut npy = npy("<f4", "False", "(2, 3)", &[0; 24]);
        for (at, value) in changes {
            for bytes in [&mut csv, &mut npy] {
                let len = bytes.len();
                bytes[at % len] = value;
            }
        }
        for bytes in [&noise, &csv, &npy, &[&npy[..10], &noise].concat()] {
            put(folder.path(), "x", bytes);
            let path = folder.path().join("x");
            let target = CsvTarget::Class("b".into());
            let _ = Csv::open(&path, &with(target));
            if let Ok(arrays) = Npy::open("x", &path) {
                proptest::prop_assert!(arrays.len() == 0 || first(arrays).is_ok());
            }
        }
    }
}

/// An archive in the layout of `numpy.savez`: a name, a method and a content for each member.
fn npz(members: &[(&str, u8, &[u8])]) -> Vec<u8> {
    let (mut archive, mut directory) = (Vec::new(), Vec::new());
    for &(name, method, content) in members {
        let offset = (archive.len() as u32).to_le_bytes();
        let (len, name_len) = ((content.len() as u64).to_le_bytes(), name.len() as u8);
        // Sizes are in the 64-bit field, as NumPy writes them: kind 1, 16 bytes, both sizes.
        let wide = [&[1, 0, 16, 0], &len[..], &len].concat();
        let common = [45, 0, 0, 0, method, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let sizes = [0xff; 8];
        archive.extend([b"PK\x03\x04", &common[..], &sizes, &[name_len, 0, 20, 0]].concat());
        archive.extend([name.as_bytes(), &wide, content].concat());
        directory
            .extend([b"PK\x01\x02\x2d\x03", &common[..], &sizes, &[name_len, 0, 20, 0]].concat());
        directory.extend([&[0; 10][..], &offset, name.as_bytes(), &wide].concat());
    }
    let [offset, len] = [archive.len(), directory.len()].map(|n| (n as u32).to_le_bytes());
    let count = [members.len() as u8, 0];
    let end = [b"PK\x05\x06\0\0\0\0", &count[..], &count, &len, &offset, &[0, 0]].concat();
    [archive, directory, end].concat()
}

#[test]
fn npz_archives_are_fields_by_name() {
    let folder = TempDir::new().unwrap();
    let x: Vec<u8> = (0..4).flat_map(|n| (n as f32).to_le_bytes()).collect();
    let (x, y) = (npy("<f4", "False", "(2, 2)", &x), npy("|u1", "False", "(2,)", &[8, 9]));
    let archive = npz(&[("y.npy", 0, &y), ("x.npy", 0, &x), ("z.npy", 8, &x)]);
    put(folder.path(), "a.npz", &archive);
    let path = folder.path().join("a.npz");
    let arrays = Npy::archive(&path, &["x", "y"]).unwrap();
    assert_eq!(values::<f32>(arrays.clone(), "x"), [0.0, 1.0, 2.0, 3.0]);
    assert_eq!(values::<u8>(arrays, "y"), [8, 9]);
    let refused = |names: &[&str]| cause::<NpyError>(Npy::archive(&path, names).unwrap_err()).0;
    assert_eq!(refused(&["z"]), NpyError::Packed { member: "z.npy".into() });
    assert_eq!(refused(&["w"]), NpyError::Member { member: "w.npy".into() });
    put(folder.path(), "a.npz", &archive[..archive.len() - 30]);
    assert_eq!(refused(&["x"]), NpyError::Archive);
    assert!(Npy::archive(&path, &[]).is_err());
}

proptest::proptest! {
    #[test]
    fn mutated_archives_never_panic(
        changes in proptest::collection::vec((0..1024_usize, proptest::num::u8::ANY), 1..6),
        cut in 0..2048_usize,
    ) {
        let x = npy("<f4", "False", "(2, 2)", &[0; 16]);
        let mut archive = npz(&[("y.npy", 0, &x), ("x.npy", 0, &x)]);
        for (at, value) in changes {
            let len = archive.len();
            // The offset is counted from the end, where the directory is.
            archive[len - 1 - at % len] = value;
        }
        archive.truncate(cut.max(1));
        let folder = TempDir::new().unwrap();
        put(folder.path(), "a.npz", &archive);
        if let Ok(arrays) = Npy::archive(folder.path().join("a.npz"), &["x", "y"]) {
            proptest::prop_assert!(arrays.len() == 0 || first(arrays).is_ok());
        }
    }
}
