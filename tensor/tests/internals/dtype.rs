use lowtide_tensor::DType;
use lowtide_tensor::testing::{computed_dtype, kernel_dtypes};

#[test]
fn floats_are_computed_in_what_their_dtype_says() {
    for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_float()) {
        assert_eq!(kernel_dtypes(dtype), [dtype, computed_dtype(dtype)]);
    }
}
