//! The reference values of PyTorch in `nn/tests/fixtures`.

use lowtide_tensor::{Conv2dGeometry, DType, Pool2dGeometry, Tensor};
use safetensors::{Dtype, SafeTensors};

use crate::common::{assert_close, assert_same, download, shared};

struct Fixture(Vec<u8>);

impl Fixture {
    fn open() -> Self {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../nn/tests/fixtures/ops.safetensors");
        Fixture(std::fs::read(path).expect("the fixture is part of the repository"))
    }

    fn tensor(&self, op: &str, name: &str) -> Tensor {
        let file = SafeTensors::deserialize(&self.0).expect("a safetensors file");
        let view = file.tensor(&format!("{op}.{name}")).expect("a tensor of this name");
        let dtype = match view.dtype() {
            Dtype::F32 => DType::F32,
            Dtype::I64 => DType::I64,
            other => panic!("{other:?} is not in the fixture"),
        };
        Tensor::from_bytes(shared(), view.shape(), dtype, view.data()).unwrap()
    }
}

/// Compares exactly. The numbers are small multiples of powers of two, so every order of summation
/// gives the same bits.
#[track_caller]
fn assert_equal(found: &Tensor, expected: &Tensor) {
    assert_same(found, &download(expected));
}

#[test]
fn convolutions_equal_pytorch() {
    let strided = Conv2dGeometry { stride: [2; 2], padding: [1; 2], ..Default::default() };
    let grouped = Conv2dGeometry { dilation: [2; 2], groups: 2, ..strided };
    let fixture = Fixture::open();
    for (op, geometry) in [("conv2d", grouped), ("conv2d_strided", strided)] {
        let of = |name: &str| fixture.tensor(op, name);
        let [x, w, b, dy] = ["x", "weight", "bias", "out_grad"].map(of);
        assert_equal(&x.conv2d(&w, Some(&b), geometry).unwrap(), &of("out"));
        let dx = dy.conv2d_backward_input(&w, *x.shape(), geometry).unwrap();
        assert_equal(&dx, &of("x_grad"));
        let dw = dy.conv2d_backward_weight(&x, *w.shape(), geometry).unwrap();
        assert_equal(&dw, &of("weight_grad"));
        assert_equal(&dy.sum(&[0, 2, 3]).unwrap(), &of("bias_grad"));
    }
}

#[test]
fn poolings_equal_pytorch_with_and_without_ties() {
    let geometry = Pool2dGeometry { kernel: [3; 2], stride: [2; 2], padding: [1; 2] };
    let fixture = Fixture::open();
    for op in ["max_pool2d", "max_pool2d_ties"] {
        let of = |name: &str| fixture.tensor(op, name);
        let x = of("x");
        let (y, winners) = x.max_pool2d(geometry).unwrap();
        assert_equal(&y, &of("out"));
        let dx = of("out_grad").max_pool2d_backward(&winners, *x.shape(), geometry).unwrap();
        assert_equal(&dx, &of("x_grad"));
    }
}

#[test]
fn cross_entropies_agree_with_pytorch() {
    const IGNORED: i64 = -100;
    let fixture = Fixture::open();
    for (op, is_mean) in [("cross_entropy_mean", true), ("cross_entropy_sum", false)] {
        let of = |name: &str| fixture.tensor(op, name);
        let (x, labels) = (of("x"), of("target"));
        let found = x.cross_entropy(&labels, IGNORED).unwrap();
        let divided = |tensor: &Tensor| {
            if is_mean { tensor.div(&found.count).unwrap() } else { tensor.clone() }
        };
        // Eight rows have a few roundings each, on either side.
        assert_close(&divided(&found.sum), &download(&of("out")), 16);
        let dy = divided(&of("out_grad"));
        let dx = dy.cross_entropy_backward(&x, &labels, &found.log_sum_exp, IGNORED).unwrap();
        assert_close(&dx, &download(&of("x_grad")), 16);
    }
}
