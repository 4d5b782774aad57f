//! Dimensions counted back from the last one.

use lowtide_tensor::{
    Axis, CpuOptions, DType, Device, SimSpec, SortOrder, Tensor, TensorError,
    TensorResult as Result,
};

use crate::common::{download, shared};

fn numbers(dims: [usize; 3]) -> Tensor {
    let len = dims.iter().product::<usize>();
    let values: Vec<f64> = (0..len).map(|at| ((at * 7) % 11) as f64).collect();
    Tensor::from_slice(shared(), dims, &values).unwrap()
}

type Call = fn(&Tensor, Axis) -> Result<Tensor>;

#[test]
fn negative_dimensions_count_from_the_last_one() {
    let x = numbers([2, 3, 4]);
    let calls: [(&str, Call); 22] = [
        ("sum", |x, axis| x.sum(&[axis])),
        ("mean_keep", |x, axis| x.mean_keep(&[axis])),
        ("amax", |x, axis| x.amax(&[axis])),
        ("var", |x, axis| x.var(&[axis], 1.0)),
        ("norm", |x, axis| x.norm(&[axis], 2.0)),
        ("argmax", |x, axis| x.argmax_axis(axis)),
        ("max", |x, axis| Ok(x.max(axis)?.0)),
        ("softmax", |x, axis| x.softmax(axis)),
        ("log_softmax", |x, axis| x.log_softmax(axis)),
        ("cumsum", |x, axis| x.cumsum(axis)),
        ("cumprod", |x, axis| x.cumprod(axis)),
        ("sort", |x, axis| Ok(x.sort(axis, SortOrder::Ascending)?.1)),
        ("topk", |x, axis| Ok(x.topk(1, axis, SortOrder::Descending)?.0)),
        ("flip", |x, axis| x.flip(&[axis])),
        ("roll", |x, axis| x.roll(axis, 1)),
        ("repeat_interleave", |x, axis| x.repeat_interleave(axis, 2)),
        ("narrow", |x, axis| x.narrow(axis, 1, 1)),
        ("select", |x, axis| x.select(axis, 1)),
        ("cat", |x, axis| Tensor::cat(&[x, x], axis)),
        ("transpose", |x, axis| x.transpose(axis, 0)),
        ("movedim", |x, axis| x.movedim(0, axis)),
        ("chunk", |x, axis| Ok(x.chunk(axis, 2)?.remove(0))),
    ];
    for (op, call) in calls {
        for axis in 0..3 {
            let back = axis as isize - 3;
            let (found, expected) = (call(&x, back.into()), call(&x, Axis::from(axis)));
            let values = |y: Result<Tensor>| {
                let y = y.unwrap_or_else(|error| panic!("{op} along {axis}: {error}"));
                download(&y.to_dtype(DType::F64).unwrap())
            };
            assert_eq!(values(found), values(expected), "{op} along {back}");
        }
        let error = call(&x, (-4).into()).expect_err("there are three");
        let text = format!("{op}: index -4 is out of range for length 3");
        assert_eq!(error.to_string().replace("mean:", "mean_keep:"), text);
    }
}

#[test]
fn literals_are_dimensions_as_they_stand() {
    let x = numbers([2, 3, 4]);
    assert_eq!(x.sum(&[0, -1]).unwrap().shape()[..], [3]);
    assert_eq!(x.permute(&[-1, 0, 1]).unwrap().shape()[..], [4, 2, 3]);
    assert_eq!(x.transpose(1, -1).unwrap().shape()[..], [2, 4, 3]);
    assert_eq!(x.unsqueeze(-1).unwrap().shape()[..], [2, 3, 4, 1]);
    assert_eq!(x.unsqueeze(-4).unwrap().shape()[..], [1, 2, 3, 4]);
    assert_eq!(Tensor::stack(&[&x, &x], -1).unwrap().shape()[..], [2, 3, 4, 2]);
    let number = Tensor::ones(shared(), [], DType::F32).unwrap();
    assert_eq!(number.softmax(-1).unwrap().item::<f32>().unwrap(), 1.0);
    let index = Tensor::from_slice(shared(), [1], &[1_i64]).unwrap();
    assert_eq!(x.index_select(-2, &index).unwrap().shape()[..], [2, 1, 4]);
}

#[test]
fn one_dimension_under_two_names_is_named_twice() {
    let x = numbers([2, 3, 4]);
    for outcome in [x.sum(&[2, -1]), x.flip(&[0, -3]), x.permute(&[0, 1, -3])] {
        assert!(matches!(outcome, Err(TensorError::Shape { .. })), "{outcome:?}");
    }
}

#[test]
fn two_devices_are_named_and_two_of_the_processor_explained() {
    let cpu = |bytes| {
        let options =
            CpuOptions { budget_bytes: Some(bytes), threads: Some(1), ..Default::default() };
        Device::cpu(options).unwrap()
    };
    let error = |left: &Device, right: &Device| {
        let ones = |device| Tensor::ones(device, [2], DType::F32).unwrap();
        ones(left).add(&ones(right)).unwrap_err().to_string()
    };
    let (one, other) = (cpu(1 << 20), cpu(2 << 20));
    assert_eq!(
        error(&one, &other),
        "add: the operands are on different devices, cpu (1048576 bytes) and cpu (2097152 bytes); \
         every Device::cpu is a device of its own: make one and clone it"
    );
    let sim = Device::sim(SimSpec::like_this_machine(1 << 20)).unwrap();
    assert_eq!(
        error(&one, &sim),
        "add: the operands are on different devices, cpu (1048576 bytes) and sim (1048576 bytes)"
    );
}
