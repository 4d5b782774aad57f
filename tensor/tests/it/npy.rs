use lowtide_tensor::{DType, Tensor, npy};
use npy::NpyError;
use proptest::prelude::*;

use crate::common::{Style, assert_same, download, laid_out, sample, shapes, shared, sim, styles};
use crate::naive::Array;

fn file(name: &str) -> Vec<u8> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/npy/");
    std::fs::read(format!("{path}{name}.npy")).expect("the fixture is part of the repository")
}

fn read(bytes: &[u8]) -> Result<Tensor, NpyError> {
    npy::read(shared(), bytes)
}

fn written(tensor: &Tensor) -> Vec<u8> {
    let mut bytes = Vec::new();
    npy::write(tensor, &mut bytes).unwrap();
    bytes
}

#[test]
fn numpys_files_are_read_and_written_byte_for_byte() {
    let array = Array::new(&[2, 3], vec![0.0, 1.0, 2.0, 3.0, 0.0, 1.0]);
    for dtype in DType::ALL.into_iter().filter(|&dtype| dtype != DType::BF16) {
        let (name, array) = match dtype {
            DType::F64 => ("f8", array.clone()),
            DType::F32 => ("f4", array.clone()),
            DType::F16 => ("f2", array.clone()),
            DType::I64 => ("i8", array.clone()),
            DType::I32 => ("i4", array.clone()),
            DType::U8 => ("u1", array.clone()),
            _ => ("b1", array.map(|x| x.min(1.0))),
        };
        let bytes = file(name);
        let tensor = read(&bytes).unwrap();
        assert_eq!(tensor.dtype(), dtype);
        assert_same(&tensor, &array);
        assert_eq!(written(&tensor), bytes, "{name}");
    }
    for (name, expected) in [
        ("scalar", Array::new(&[], vec![2.5])),
        ("vector", Array::new(&[2], vec![1.5, -2.5])),
        ("empty", Array::new(&[0, 3], vec![])),
    ] {
        let tensor = read(&file(name)).unwrap();
        assert_same(&tensor, &expected);
        assert_eq!(written(&tensor), file(name), "{name}");
    }
}

#[test]
fn fortran_order_byte_order_and_later_versions_are_understood() {
    let count = Array::from_fn(&[2, 3], |at| (3 * at[0] + at[1]) as f64);
    assert_same(&read(&file("fortran")).unwrap(), &count.map(|x| x / 4.0));
    assert_same(&read(&file("big_endian")).unwrap(), &count);
    assert_same(&read(&file("version_2")).unwrap(), &count);
}

#[test]
fn what_has_no_tensor_or_no_file_is_an_error() {
    assert!(matches!(read(&file("complex")), Err(NpyError::Descr { descr }) if descr == "<c8"));
    let bf16 = Tensor::ones(shared(), [2], DType::BF16).unwrap();
    let error = npy::write(&bf16, Vec::new()).unwrap_err();
    assert!(matches!(error, NpyError::DType { dtype: DType::BF16 }));
    let simulated = Tensor::ones(&sim(1), [2], DType::F32).unwrap();
    assert!(matches!(npy::write(&simulated, Vec::new()), Err(NpyError::Tensor(_))));
    assert!(npy::read(&sim(1), &file("f4")[..]).is_ok());
}

#[test]
fn a_promise_of_much_is_not_an_allocation() {
    let header = "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }";
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    assert!(matches!(read(&bytes), Err(NpyError::Io(_))));
    bytes[6] = 3;
    assert!(matches!(read(&bytes), Err(NpyError::Header { .. })));
}

proptest! {
    #[test]
    fn every_view_survives_a_file(
        dims in shapes(), style in styles(), dtype in prop::sample::select(DType::ALL.to_vec()),
        seed in 0..50usize,
    ) {
        if dtype == DType::BF16 {
            return Ok(());
        }
        let (tensor, twin) = sample(&dims, style, dtype, seed);
        let back = read(&written(&tensor)).unwrap();
        prop_assert_eq!(back.dtype(), dtype);
        assert_same(&back, &twin);
    }

    #[test]
    fn damaged_files_are_errors(at in 0..200usize, byte in any::<u8>(), len in 0..250usize) {
        let whole = written(&laid_out(&Array::pattern(&[3, 4], 1), Style::Contiguous, DType::F64));
        if len < whole.len() {
            prop_assert!(read(&whole[..len]).is_err());
        }
        let mut bytes = whole.clone();
        bytes[at] = byte;
        // A changed byte gives another number, type or shape, or an error, but never a panic.
        if let Ok(tensor) = read(&bytes) {
            prop_assert!(download(&tensor).len() <= 96);
        }
    }
}
