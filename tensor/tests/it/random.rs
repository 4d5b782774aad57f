//! Random numbers are a function of key and place.

use lowtide_tensor::{DType, RandomKey, Tensor};
use proptest::prelude::*;

use crate::common::{cpu, download, floats, laid_out, shapes, writable_styles};
use crate::naive::Array;

const KEY: RandomKey = RandomKey::new(7).op("weights").step(3);

proptest! {
    #[test]
    fn element_in_row_major_order_is_the_streams(
        dims in shapes(), style in writable_styles(), dtype in floats(),
    ) {
        let mut x = laid_out(&Array::pattern(&dims, 1), style, dtype);
        x.uniform_(KEY, -2.0, 2.0).unwrap();
        let len: usize = dims.iter().product();
        // 24 bits times 4 is exact in f32.
        let expected = (0..len as u64).map(|i| f64::from(KEY.uniform(i)) * 4.0 - 2.0).collect();
        prop_assert_eq!(download(&x), Array::new(&dims, expected));
    }
}

#[test]
fn numbers_do_not_depend_on_threads() {
    let draw = |threads: usize| {
        let mut x = Tensor::zeros(&cpu(threads), [70_001], DType::F32).unwrap();
        x.uniform_(KEY, 0.0, 1.0).unwrap();
        x.to_vec::<f32>().unwrap()
    };
    assert_eq!(draw(1), draw(3));
}

#[test]
fn numbers_fill_the_interval_evenly() {
    let mut x = Tensor::zeros(&cpu(2), [1 << 16], DType::F64).unwrap();
    x.uniform_(KEY, 10.0, 12.0).unwrap();
    let mut counts = [0usize; 16];
    for value in x.to_vec::<f64>().unwrap() {
        assert!((10.0..12.0).contains(&value), "{value}");
        counts[((value - 10.0) * 8.0) as usize] += 1;
    }
    // 4096 expected with a deviation of 62; six of them do not happen by chance.
    assert!(counts.iter().all(|count| count.abs_diff(4096) < 372), "{counts:?}");
}
