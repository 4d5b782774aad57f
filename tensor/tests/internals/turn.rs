use lowtide_tensor::testing::cpu::turn_doubled;
use proptest::prelude::*;

proptest! {
    #[test]
    fn rows_become_columns(
        rows in 0..=35usize,
        cols in 0..=35usize,
        gaps in [0..=3usize, 0..=3usize],
    ) {
        let (from_stride, to_stride) = (cols + gaps[0], rows + gaps[1]);
        let from: Vec<f32> = (0..rows * from_stride).map(|i| i as f32 + 1.0).collect();
        let mut to = vec![0.0_f64; cols * to_stride];
        let size = [rows, cols];
        turn_doubled((&from, from_stride), size, (&mut to, to_stride));
        for (at, &found) in to.iter().enumerate() {
            let (col, row) = (at / to_stride, at % to_stride);
            let expected =
                if row < rows { 2.0 * f64::from(from[row * from_stride + col]) } else { 0.0 };
            prop_assert_eq!(found, expected, "[{}, {}]", col, row);
        }
    }
}
