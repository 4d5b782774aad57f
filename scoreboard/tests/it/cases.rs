use lowtide_scoreboard::case::{Numbers, Stored, Values};
use lowtide_scoreboard::compare::{Tolerance, compare, distance};
use lowtide_tensor::{CpuOptions, DType, Device, Shape};

fn floats(values: &[f64]) -> Values {
    let numbers = Numbers::Floats(values.to_vec());
    Values { dtype: DType::F64, shape: Shape::new(&[values.len()]), numbers }
}

#[test]
fn an_uploaded_tensor_has_the_strides_and_the_elements_of_its_case() {
    let options = CpuOptions { budget_bytes: Some(1 << 20), ..Default::default() };
    let device = Device::cpu(options).expect("1 MiB of addresses");
    let file: Vec<u8> = (0..100_i64).flat_map(i64::to_le_bytes).collect();
    let layouts: [(&[usize], &[usize], usize); 10] = [
        (&[], &[], 3),
        (&[1], &[1], 0),
        (&[3, 4], &[4, 1], 0),
        (&[4, 3], &[1, 4], 2),
        (&[3, 4], &[20, 2], 5),
        (&[2, 3, 2], &[0, 7, 0], 1),
        (&[3, 1, 2], &[1, 50, 30], 0),
        // Overlapping windows.
        (&[5, 4], &[1, 1], 0),
        (&[2, 0], &[1, 1], 0),
        (&[2, 2, 2, 2, 2], &[1, 2, 4, 8, 40], 9),
    ];
    for (shape, strides, offset) in layouts {
        let (dtype, at, len) = ("i64".to_owned(), 0, 100);
        let (shape, strides) = (shape.to_vec(), strides.to_vec());
        let stored = Stored { dtype, shape, strides, offset, at, len };
        let tensor = stored.upload(&device, &file).expect("room for a small tensor");
        let found = Values::of(&tensor).expect("a tensor with values");
        let exactly = Tolerance { relative: 0.0, absolute: 0.0 };
        compare(&found, &stored.values(&file), exactly).expect("the same elements");
        let steps = stored.shape.iter().zip(tensor.layout().strides()).zip(&stored.strides);
        let steps = steps.filter(|((dim, _), _)| **dim > 1);
        let is_empty = stored.shape.contains(&0);
        for ((_, found), expected) in steps.filter(|_| !is_empty) {
            assert_eq!(found, expected, "{stored:?}");
        }
    }
}

#[test]
fn results_are_compared_as_pytorch_compares_them() {
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    let tolerance = Tolerance { relative: 0.1, absolute: 0.01 };
    let close = |found: &[f64], expected: &[f64]| {
        compare(&floats(found), &floats(expected), tolerance).is_ok()
    };
    assert!(close(&[1.1, -1.1, 0.01, nan, inf, 0.0], &[1.0, -1.0, 0.0, nan, inf, -0.0]));
    for (found, expected) in [
        ([1.12], [1.0]),
        ([nan], [1.0]),
        ([1.0], [nan]),
        ([1e300], [inf]),
        ([inf], [1e300]),
        ([inf], [-inf]),
    ] {
        assert!(!close(&found, &expected), "{found:?} {expected:?}");
    }
    assert!(!close(&[1.0], &[1.0, 1.0]));
    let narrow = Values { dtype: DType::F32, ..floats(&[1.0]) };
    assert!(compare(&narrow, &floats(&[1.0]), tolerance).is_err());
}

#[test]
fn distance_is_that_of_the_worst_finite_element() {
    let (peer, truth) = (floats(&[1.0, f64::INFINITY, 3.0]), floats(&[1.5, 1.0, 3.25]));
    assert_eq!(distance(&peer, &truth), 0.5);
}
