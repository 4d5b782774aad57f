//! Tar shards: samples by name, long names of both kinds, and damaged archives.

use crate::folders::{first, jpeg, picture, png, put};
use lowtide_data::{DataError, ImageSource, Pipeline, Step, TarError, TarShards};
use png::{BitDepth, ColorType};
use tempfile::TempDir;

/// A member with its header; `kind` is the letter of its type.
fn member(name: &str, kind: u8, content: &[u8]) -> Vec<u8> {
    let mut header = [0_u8; 512];
    header[..name.len().min(100)].copy_from_slice(&name.as_bytes()[..name.len().min(100)]);
    header[100..108].copy_from_slice(b"0000644\0");
    header[124..136].copy_from_slice(format!("{:011o}\0", content.len()).as_bytes());
    header[156] = kind;
    header[257..265].copy_from_slice(b"ustar\x0000");
    sealed(header, content)
}

/// The header with its checksum, and the padded content.
fn sealed(mut header: [u8; 512], content: &[u8]) -> Vec<u8> {
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut bytes = [&header[..], content].concat();
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn grey(value: u8) -> Vec<u8> {
    png(2, 2, ColorType::Grayscale, BitDepth::Eight, &[value; 4])
}

fn open(archives: &[Vec<u8>]) -> Result<TarShards, DataError> {
    let folder = TempDir::new().unwrap();
    let names: Vec<_> = (0..archives.len()).map(|at| format!("{at}.tar")).collect();
    archives.iter().zip(&names).for_each(|(bytes, name)| put(folder.path(), name, bytes));
    TarShards::open(names.iter().map(|name| folder.path().join(name)))
}

fn refused(archive: Vec<u8>) -> TarError {
    let error = open(&[archive]).expect_err("it lies");
    let text = error.to_string();
    assert!(text.contains("0.tar"), "{text}");
    let DataError::File { source, .. } = error else { panic!("{text}") };
    source.get_ref().and_then(|cause| cause.downcast_ref::<TarError>()).expect(&text).clone()
}

#[test]
fn samples_are_members_of_one_name_in_the_order_of_the_archives() {
    let long = format!("{}/c.png", "x".repeat(150));
    let pax = format!("path={}/c.cls", "x".repeat(150));
    let pax = format!("{} {pax}\n", pax.len() + 5);
    let first_shard = [
        member("in/", b'5', b""),
        member("in/a.png", b'0', &grey(10)),
        member("in/a.cls", b'0', b"3\n"),
        member("in/b.1.txt", b'0', b"anything"),
        member("b.cls", 0, b"0"),
        member("b.jpg", 0, &jpeg(2, 2, &picture(2, 2))),
        vec![0; 1024],
    ]
    .concat();
    let second_shard = [
        member("././@LongLink", b'L', &[long.as_bytes(), b"\0"].concat()),
        member("xx", b'0', &grey(30)),
        member("pax", b'x', pax.as_bytes()),
        member("xx", b'0', b"7"),
    ]
    .concat();
    let shards = open(&[first_shard, second_shard]).unwrap();
    assert_eq!((shards.image_count(), shards.classes()), (3, 8));
    let pipeline = Pipeline::new([Step::CentreCrop([2, 2])]).unwrap().as_bytes().unwrap();
    let batch = first(shards.through(pipeline).unwrap()).unwrap();
    assert_eq!(batch.field("labels").unwrap().values::<i64>().unwrap(), [3, 0, 7]);
    let images = batch.field("images").unwrap().bytes();
    assert_eq!([images[0], images[24]], [10, 30]);
}

#[test]
fn members_that_lead_outside_or_are_no_files_are_refused_by_name() {
    for name in ["/etc/a.png", "../a.png", "in/../../a.png", "c:\\a.png", "\\\\a.png"] {
        let archive = member(name, b'0', b"x");
        assert_eq!(refused(archive), TarError::Name { name: name.to_owned() });
    }
    for kind in [b'1', b'2', b'3', b'6'] {
        let archive = member("a.png", kind, b"");
        let expected = TarError::Kind { name: "a.png".to_owned(), kind: kind.into() };
        assert_eq!(refused(archive), expected);
    }
}

#[test]
fn sizes_that_lie_and_damaged_headers_are_refused() {
    let good = member("a.png", b'0', &grey(1));
    assert!(matches!(refused(good[..540].to_vec()), TarError::Truncated { .. }));
    assert_eq!(refused(good[..100].to_vec()), TarError::Header { offset: 0 });
    let lying = |field: &[u8; 12]| {
        let mut header: [u8; 512] = good[..512].try_into().unwrap();
        header[124..136].copy_from_slice(field);
        refused(sealed(header, &grey(1)))
    };
    assert!(matches!(lying(b"77777777777\0"), TarError::Truncated { .. }));
    let mut binary = [0xff; 12];
    assert_eq!(lying(&binary), TarError::Header { offset: 0 });
    binary[..4].copy_from_slice(&[0x80, 0, 0, 0]);
    assert!(matches!(lying(&binary), TarError::Truncated { size_bytes: u64::MAX, .. }));
    assert_eq!(lying(b"99999999999\0"), TarError::Header { offset: 0 });
    let mut flipped = good.clone();
    flipped[3] ^= 1;
    assert_eq!(refused(flipped), TarError::Header { offset: 0 });
}

#[test]
fn samples_that_lack_a_part_or_have_it_twice_are_refused_by_key() {
    let image = || member("a.png", b'0', &grey(1));
    let part = |suffix: &str| TarError::Part { key: "a".to_owned(), suffix: suffix.to_owned() };
    assert_eq!(refused(image()), part("cls"));
    assert_eq!(refused(member("a.cls", b'0', b"1")), part("jpg, jpeg or png"));
    assert_eq!(refused([image(), member("a.jpg", b'0', b"")].concat()), part("jpg"));
    let class = TarError::Class { name: "a.cls".to_owned() };
    for text in ["-1", "cat", "", "99999999999"] {
        assert_eq!(refused([image(), member("a.cls", b'0', text.as_bytes())].concat()), class);
    }
}

proptest::proptest! {
    #[test]
    fn mutated_archives_never_panic(
        changes in proptest::collection::vec((0..4096_usize, proptest::num::u8::ANY), 0..6),
        reseal in proptest::bool::ANY,
        keep in 0..4096_usize,
    ) {
        let pax = member("pax", b'x', b"14 path=a.cls\n");
        let mut archive =
            [member("a.png", b'0', &grey(1)), pax, member("x", b'0', b"1")].concat();
        for (at, value) in changes {
            let len = archive.len();
            archive[at % len] = value;
        }
        if reseal {
            let header: [u8; 512] = archive[..512].try_into().unwrap();
            archive[..512].copy_from_slice(&sealed(header, b""));
        }
        archive.truncate(keep.max(1));
        if let Ok(shards) = open(&[archive])
            && shards.image_count() > 0
        {
            let pipeline = Pipeline::new([Step::Resize([2, 2])]).unwrap();
            let outcome = first(shards.through(pipeline).unwrap());
            let panicked = matches!(outcome, Err(DataError::Panicked { .. }));
            proptest::prop_assert!(!panicked, "{outcome:?}");
        }
    }
}
