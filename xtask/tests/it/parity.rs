use xtask::parity::{TOLERANCE, compare_tensors, compare_text};

#[test]
fn texts_may_differ_in_the_last_digits_of_numbers_and_in_nothing_else() {
    let known = "losses 1.5 2.25\nname 3x4 nan\n";
    assert_eq!(compare_text(known, known), Ok(0.0));
    let near = compare_text("losses 1.5 2.2500001\nname 3x4 nan\n", known).expect("near");
    assert!(near > 0.0 && near < 1e-6, "{near}");
    for (other, place) in [
        ("losses 1.5 2.35\nname 3x4 nan\n", "line 1: 2.35"),
        ("losses 1.5\nname 3x4 nan\n", "line 1: 2 words"),
        ("losses 1.5 2.25\nname 4x3 nan\n", "line 2: 4x3"),
        ("losses 1.5 2.25\nname 3x4 1\n", "line 2: 1"),
        ("losses 1.5 2.25\n", "1 lines"),
    ] {
        let error = compare_text(other, known).expect_err("it differs");
        assert!(error.starts_with(place), "{error}");
    }
}

/// A safetensors file of one tensor.
fn file(name: &str, dtype: &str, shape: &[usize], data: &[u8]) -> Vec<u8> {
    let header = format!(
        "{{\"__metadata__\":{{\"made\":\"here\"}},\"{name}\":{{\"dtype\":\"{dtype}\",\
         \"shape\":{shape:?},\"data_offsets\":[0,{}]}}}}",
        data.len()
    );
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
}

#[test]
fn tensors_may_differ_by_the_tolerance_and_in_nothing_else() {
    let f32s = |values: [f32; 2]| values.map(f32::to_le_bytes).concat();
    let known = file("x", "F32", &[2], &f32s([1.0, -2.0]));
    assert_eq!(compare_tensors(&known, &known), Ok(0.0));
    let near = file("x", "F32", &[2], &f32s([1.0, -2.001]));
    let difference = compare_tensors(&near, &known).expect("near");
    assert!(difference > 0.0 && difference <= TOLERANCE, "{difference}");
    let far = file("x", "F32", &[2], &f32s([1.0, 2.0]));
    assert_eq!(compare_tensors(&far, &known), Err("x[1]: 2, checked in is -2".to_owned()));
    let renamed = file("y", "F32", &[2], &f32s([1.0, -2.0]));
    assert!(compare_tensors(&renamed, &known).is_err());
    let reshaped = file("x", "F32", &[1, 2], &f32s([1.0, -2.0]));
    assert!(compare_tensors(&reshaped, &known).is_err());
    let retyped = file("x", "I32", &[2], &f32s([1.0, -2.0]));
    assert!(compare_tensors(&retyped, &known).is_err());
    assert!(compare_tensors(b"no file", &known).is_err());
    assert!(compare_tensors(&known[..known.len() - 1], &known).is_err());
    let bytes = |last| file("labels", "I64", &[1], &[1, 0, 0, 0, 0, 0, 0, last]);
    assert_eq!(compare_tensors(&bytes(1), &bytes(1)), Ok(0.0));
    assert!(compare_tensors(&bytes(1), &bytes(2)).is_err());
}
