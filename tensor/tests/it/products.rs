//! Matrix products over operands that lie in every way.

use lowtide_tensor::{DType, Tensor};
use proptest::prelude::*;

use crate::common::{assert_same, cpu, floats, sample, sim, styles};

/// Lengths below and above the panels of the product.
fn lens() -> impl Strategy<Value = usize> {
    prop_oneof![0..=5usize, 6..=20usize, 60..=70usize, Just(129)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn matmul_is_the_sum_of_products(
        [m, k, n] in [lens(), lens(), lens()], styles in [styles(), styles()], dtype in floats(),
    ) {
        let (a, a_twin) = sample(&[m, k], styles[0], dtype, 1);
        let (b, b_twin) = sample(&[k, n], styles[1], dtype, 2);
        assert_same(&a.matmul(&b).unwrap(), &a_twin.matmul(&b_twin));
    }

    #[test]
    fn linear_multiplies_by_the_transpose_and_adds_the_bias(
        [rows, ins, outs] in [lens(), lens(), lens()],
        styles in [styles(), styles(), styles()],
        dtype in floats(),
    ) {
        let (x, x_twin) = sample(&[rows, ins], styles[0], dtype, 1);
        let (w, w_twin) = sample(&[outs, ins], styles[1], dtype, 2);
        let (b, b_twin) = sample(&[outs], styles[2], dtype, 3);
        let product = x_twin.matmul(&w_twin.permute(&[1, 0]));
        assert_same(&x.linear(&w, None).unwrap(), &product);
        let expected = product.zip(&b_twin, &[rows, outs], |y, b| y + b);
        assert_same(&x.linear(&w, Some(&b)).unwrap(), &expected);
    }
}

#[test]
fn packing_is_charged_once_and_by_the_largest_product() {
    for device in [cpu(2), sim(2)] {
        let charged = || device.allocator().statistics().charged.current_bytes;
        let product = |len: usize| {
            let x = Tensor::zeros(&device, [len, len], DType::F32).unwrap();
            x.matmul(&x).unwrap();
            charged()
        };
        assert_eq!(product(8), 0);
        let middle = product(100);
        let large = product(600);
        assert!(0 < middle && middle < large, "{middle} {large}");
        assert_eq!(product(100), large);
        assert_eq!(product(700), large);
    }
}
