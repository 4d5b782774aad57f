//! Mistakes are errors that name the operation, and leave the operands as they were.

use lowtide_allocator::{AllocError, Fault, Repeat};
use lowtide_tensor::{
    Conv2dGeometry, DType, PadMode, Pool2dGeometry, RANK_MAX, RandomKey, Tensor, TensorError,
    TensorResult as Result,
};

use crate::common::{cpu, shared, sim};

fn ones(dims: &[usize], dtype: DType) -> Tensor {
    Tensor::full(shared(), dims, dtype, 1.0).unwrap()
}

/// Fails unless the error's text begins with the operation's name.
#[track_caller]
fn assert_names<T>(outcome: Result<T>, op: &str) -> TensorError {
    let error = outcome.err().expect("a mistake");
    let text = error.to_string();
    let named = text.strip_prefix(op).is_some_and(|rest| rest.starts_with([':', ' ']));
    assert!(named, "{text:?} does not name {op}");
    error
}

macro_rules! assert_is {
    ($outcome:expr, $op:literal, $kind:ident) => {
        let error = assert_names($outcome, $op);
        assert!(matches!(error, TensorError::$kind { op: $op, .. }), "{error:?}");
    };
}

#[test]
fn shapes_that_do_not_go_together_are_named() {
    let (a, b) = (ones(&[2, 3], DType::F32), ones(&[4], DType::F32));
    let mut c = ones(&[3], DType::F32);
    assert_is!(a.add(&b), "add", Shape);
    assert_is!(a.sub(&b), "sub", Shape);
    assert_is!(a.mul(&b), "mul", Shape);
    assert_is!(a.div(&b), "div", Shape);
    // The destination is not broadcast.
    assert_is!(c.add_(&a), "add", Shape);
    assert_is!(c.copy_(&a), "copy", Shape);
    assert_is!(c.add_scaled_(&a, 2.0), "add_scaled", Shape);
    assert_is!(a.relu_backward(&c), "relu_backward", Shape);
    assert_is!(c.relu_backward_(&a), "relu_backward", Shape);
    assert_is!(c.clone().lerp_(&a, 0.5), "lerp", Shape);
    assert_is!(a.addcdiv(&a, &b, 0.5), "addcdiv", Shape);
    assert_is!(c.addcmul_(&c.clone(), &a, 0.5), "addcmul", Shape);
    assert_is!(a.matmul(&b), "matmul", Shape);
    assert_is!(a.matmul(&a), "matmul", Shape);
    assert_is!(a.linear(&b, None), "linear", Shape);
    assert_is!(a.linear(&a, Some(&b)), "linear", Shape);
    assert_is!(a.linear(&ones(&[2, 2], DType::F32), None), "linear", Shape);
    assert_is!(a.reshape([7]), "reshape", Shape);
    assert_is!(a.view([7]), "view", Shape);
    assert_is!(a.t().unwrap().view([6]), "view", Shape);
    assert_is!(a.unsqueeze(0).unwrap().t(), "t", Shape);
    assert_is!(a.slice(0, 0..2, 0), "slice", Shape);
    assert_is!(a.split(1, 0), "split", Shape);
    assert_is!(a.diagonal(0, 1, 1), "diagonal", Shape);
    assert_is!(a.unfold(1, 4, 1), "unfold", Shape);
    assert_is!(a.unfold(1, 2, 0), "unfold", Shape);
    let vast = ones(&[1], DType::F32).expand([1 << 62]).unwrap();
    assert_is!(vast.unfold(0, 1 << 61, 1), "unfold", Shape);
    assert_is!(a.expand([3, 3]), "expand", Shape);
    assert_is!(a.expand([3]), "expand", Shape);
    assert_is!(a.squeeze(0), "squeeze", Shape);
    assert_is!(a.permute(&[0]), "permute", Shape);
    assert_is!(a.permute(&[1, 1]), "permute", Shape);
    assert_is!(a.permute(&[0; RANK_MAX + 1]), "permute", Shape);
    assert_is!(Tensor::cat(&[&a, &b], 0), "cat", Shape);
    assert_is!(Tensor::cat(&[&a, &ones(&[3, 2], DType::F32)], 1), "cat", Shape);
    assert_is!(Tensor::stack(&[&a, &ones(&[2, 2], DType::F32)], 1), "stack", Shape);
    assert_is!(a.flip(&[1, 0, 1]), "flip", Shape);
    assert_is!(a.sum(&[0, 0]), "sum", Shape);
    assert_is!(a.mean_keep(&[1, 0, 1]), "mean", Shape);
    assert_is!(a.amax(&[1, 1]), "amax", Shape);
    assert_is!(a.var(&[0, 0], 1.0), "var", Shape);
    assert_is!(b.triu(0), "triu", Shape);
    assert_is!(c.tril_(0), "tril", Shape);
    assert_is!(a.pad(&[[1, 1]; 3], PadMode::Constant(0.0)), "pad", Shape);
    assert_is!(a.pad(&[[0, 3]], PadMode::Reflect), "pad", Shape);
    assert_is!(a.pad(&[[4, 0]], PadMode::Circular), "pad", Shape);
    assert_is!(ones(&[0], DType::F32).pad(&[[1, 0]], PadMode::Replicate), "pad", Shape);
    let outcome = a.pad_backward([2, 3], &[[1, 0]], PadMode::Replicate);
    assert_is!(outcome, "pad_backward", Shape);
    let index = ones(&[2, 3], DType::I64);
    assert_is!(a.gather(0, &ones(&[2, 4], DType::I64)), "gather", Shape);
    assert_is!(b.gather(0, &index), "gather", Shape);
    assert_is!(a.index_select(0, &index), "index_select", Shape);
    assert_is!(b.embedding(&index), "embedding", Shape);
    assert_is!(a.embedding_backward(&index, 2), "embedding_backward", Shape);
    assert_is!(c.scatter_(0, &index, &a), "scatter", Shape);
    assert_is!(a.scatter_add(0, &index, &b), "scatter_add", Shape);
    assert_is!(a.index_add(0, &ones(&[3], DType::I64), &a), "index_add", Shape);
    assert_is!(a.masked_select(&ones(&[2], DType::Bool)), "masked_select", Shape);
    assert_is!(a.sum_to([2]), "sum_to", Shape);
    assert_is!(a.item::<f32>(), "item", Shape);
    assert_is!(c.set_bytes_(&[0; 11]), "set_bytes", Shape);
    assert_is!(Tensor::from_slice(shared(), [2], &[1.0f32]), "from_bytes", Shape);
    assert_is!(a.max_pool2d(Pool2dGeometry::square(1)), "max_pool2d", Shape);
    assert_is!(a.cross_entropy(&ones(&[3], DType::I64), 0), "cross_entropy", Shape);
}

#[test]
fn element_types_that_do_not_go_together_are_named() {
    let (f, d) = (ones(&[2, 2], DType::F32), ones(&[2, 2], DType::F64));
    let (i, mut u) = (ones(&[2, 2], DType::I64), ones(&[2, 2], DType::U8));
    let geometry = Conv2dGeometry::default();
    let image = |x: &Tensor| x.reshape([1, 1, 2, 2]).unwrap();
    assert_is!(f.add(&d), "add", DType);
    let mask = ones(&[2, 2], DType::Bool);
    assert_is!(i.div(&i), "div", DType);
    assert_is!(u.add_(&i), "add", DType);
    assert_is!(mask.mul(&mask), "mul", DType);
    assert_is!(i.add_scalar(0.5), "add_scalar", DType);
    assert_is!(i.exp(), "exp", DType);
    assert_is!(u.sqrt_(), "sqrt", DType);
    assert_is!(mask.clone().relu_(), "relu", DType);
    assert_is!(f.lt(&d), "lt", DType);
    assert_is!(i.where_cond(&f, &f), "where_cond", DType);
    assert_is!(mask.where_cond(&f, &d), "where_cond", DType);
    assert_is!(f.masked_fill(&f, 0.0), "masked_fill", DType);
    assert_is!(f.clone().masked_fill_(&u, 0.0), "masked_fill", DType);
    assert_is!(f.clone().masked_copy_(&f, &f), "masked_copy", DType);
    assert_is!(f.clone().masked_copy_(&mask, &d), "masked_copy", DType);
    assert_is!(f.addcmul(&f, &d, 1.0), "addcmul", DType);
    assert_is!(i.mean(&[0]), "mean", DType);
    assert_is!(Tensor::cat(&[&f, &d], 0), "cat", DType);
    assert_is!(i.pad_backward([2, 1], &[[1, 0]], PadMode::Circular), "pad_backward", DType);
    assert_is!(f.gather(0, &f), "gather", DType);
    assert_is!(f.index_select(0, &u.select(0, 0).unwrap()), "index_select", DType);
    assert_is!(f.embedding(&u), "embedding", DType);
    assert_is!(i.embedding_backward(&i.select(0, 0).unwrap(), 2), "embedding_backward", DType);
    assert_is!(f.one_hot(2, DType::F32), "one_hot", DType);
    assert_is!(f.scatter(0, &i, &d), "scatter", DType);
    assert_is!(
        f.clone().scatter_add_(0, &i, &f.to_dtype(DType::F16).unwrap()),
        "scatter_add",
        DType
    );
    assert_is!(mask.scatter_add(0, &i, &mask), "scatter_add", DType);
    assert_is!(f.masked_select(&f), "masked_select", DType);
    assert_is!(f.matmul(&d), "matmul", DType);
    assert_is!(i.matmul(&i), "matmul", DType);
    assert_is!(f.linear(&f, Some(&ones(&[2], DType::F64))), "linear", DType);
    assert_is!(u.uniform_(RandomKey::new(1), 0.0, 1.0), "uniform", DType);
    assert_is!(f.to_vec::<f64>(), "to_vec", DType);
    assert_is!(ones(&[], DType::I64).item::<f32>(), "item", DType);
    assert_is!(image(&f).conv2d(&image(&d), None, geometry), "conv2d", DType);
    assert_is!(image(&i).conv2d(&image(&i), None, geometry), "conv2d", DType);
    let (y, winners) = image(&f).max_pool2d(Pool2dGeometry::square(1)).unwrap();
    let square = Pool2dGeometry::square(1);
    assert_is!(y.max_pool2d_backward(&y, *y.shape(), square), "max_pool2d_backward", DType);
    let truths = winners.to_dtype(DType::Bool).unwrap();
    assert_is!(truths.max_pool2d(square), "max_pool2d", DType);
    assert_is!(f.cross_entropy(&f.select(0, 0).unwrap(), 0), "cross_entropy", DType);
    let (dy, labels) = (ones(&[], DType::F32), ones(&[2], DType::I64));
    let lse = ones(&[2], DType::F64);
    let outcome = dy.cross_entropy_backward(&f, &labels, &lse, 0);
    assert_is!(outcome, "cross_entropy_backward", DType);
}

#[test]
fn indices_out_of_range_are_named() {
    let x = ones(&[2, 3], DType::F32);
    assert_is!(x.transpose(0, 2), "transpose", Index);
    assert_is!(x.permute(&[0, 2]), "permute", Index);
    assert_is!(x.narrow(2, 0, 1), "narrow", Index);
    assert_is!(x.narrow(1, 2, 2), "narrow", Index);
    assert_is!(x.narrow(1, usize::MAX, usize::MAX), "narrow", Index);
    assert_is!(x.slice(2, 0..1, 1), "slice", Index);
    assert_is!(x.slice(1, 2..4, 1), "slice", Index);
    assert_is!(x.split(2, 1), "split", Index);
    assert_is!(x.split_with_sizes(1, &[1, 1]), "split_with_sizes", Index);
    assert_is!(x.split_with_sizes(1, &[usize::MAX, 4]), "split_with_sizes", Index);
    assert_is!(x.chunk(1, 0), "chunk", Index);
    assert_is!(x.chunk(2, 1), "chunk", Index);
    assert_is!(x.movedim(0, 2), "movedim", Index);
    assert_is!(x.diagonal(0, 0, 2), "diagonal", Index);
    assert_is!(x.unfold(2, 1, 1), "unfold", Index);
    assert_is!(ones(&[1; RANK_MAX], DType::F32).unfold(0, 1, 1), "unfold", Index);
    assert_is!(x.select(1, 3), "select", Index);
    assert_is!(x.select(2, 0), "select", Index);
    assert_is!(x.unsqueeze(3), "unsqueeze", Index);
    assert_is!(ones(&[1; RANK_MAX], DType::F32).unsqueeze(0), "unsqueeze", Index);
    assert_is!(x.squeeze(2), "squeeze", Index);
    assert_is!(x.flatten(1..3), "flatten", Index);
    assert_is!(Tensor::cat(&[], 0), "cat", Index);
    assert_is!(Tensor::cat(&[&x], 2), "cat", Index);
    assert_is!(Tensor::stack(&[], 0), "stack", Index);
    assert_is!(Tensor::stack(&[&x], 3), "stack", Index);
    assert_is!(x.flip(&[0, 2]), "flip", Index);
    assert_is!(x.roll(2, 1), "roll", Index);
    assert_is!(x.repeat(&[1; RANK_MAX + 1]), "repeat", Index);
    assert_is!(x.repeat_interleave(2, 1), "repeat_interleave", Index);
    let index = ones(&[2, 3], DType::I64);
    assert_is!(x.gather(2, &index), "gather", Index);
    assert_is!(x.index_select(2, &index), "index_select", Index);
    assert_is!(x.scatter(2, &index, &x), "scatter", Index);
    assert_is!(x.index_add(2, &index, &x), "index_add", Index);
    assert_is!(ones(&[1; RANK_MAX], DType::I64).one_hot(2, DType::U8), "one_hot", Index);
    assert_is!(x.flatten(1..1), "flatten", Index);
    assert_is!(x.sum(&[2]), "sum", Index);
    assert_is!(ones(&[], DType::F32).argmax(), "argmax", Index);
    assert_is!(ones(&[2, 0], DType::F32).argmax(), "argmax", Index);
}

#[test]
fn operands_of_two_devices_are_refused() {
    let here = ones(&[2, 2], DType::F32);
    for device in [cpu(1), sim(1)] {
        let there = Tensor::zeros(&device, [2, 2], DType::F32).unwrap();
        assert_is!(here.add(&there), "add", Device);
        assert_is!(there.clone().add_(&here), "add", Device);
        assert_is!(here.matmul(&there), "matmul", Device);
        assert_is!(here.linear(&there, None), "linear", Device);
        assert_is!(here.clone().copy_(&there), "copy", Device);
        assert_is!(Tensor::cat(&[&here, &there], 0), "cat", Device);
        let image = |x: &Tensor| x.reshape([1, 1, 2, 2]).unwrap();
        let outcome = image(&here).conv2d(&image(&there), None, Conv2dGeometry::default());
        assert_is!(outcome, "conv2d", Device);
    }
    assert_eq!(here.to_vec::<f32>().unwrap(), [1.0; 4]);
}

#[test]
fn destination_that_overlaps_is_refused_and_unchanged() {
    let base = Tensor::from_slice(shared(), [3, 3], &[1.0f32, 2., 3., 4., 5., 6., 7., 8., 9.]);
    let base = base.unwrap();
    let version = base.version();
    let mut x = base.clone();
    assert_is!(x.add_(&base.transpose(0, 1).unwrap()), "add", Overlap);
    assert_is!(x.mul_(&base), "mul", Overlap);
    assert_is!(x.copy_(&base.select(0, 1).unwrap()), "copy", Overlap);
    let mut upper = base.narrow(0, 0, 2).unwrap();
    assert_is!(upper.sub_(&base.narrow(0, 1, 2).unwrap()), "sub", Overlap);
    let mut wide = base.narrow(0, 0, 1).unwrap().expand([3, 3]).unwrap();
    assert_is!(wide.fill_(0.0), "fill", Overlap);
    assert_is!(wide.relu_(), "relu", Overlap);
    assert_is!(wide.clamp_(0.0, 1.0), "clamp", Overlap);
    assert_is!(x.addcmul_(&ones(&[3, 3], DType::F32), &base, 1.0), "addcmul", Overlap);
    assert_is!(wide.uniform_(RandomKey::new(1), 0.0, 1.0), "uniform", Overlap);
    assert_is!(wide.set_bytes_(&[0; 36]), "set_bytes", Overlap);
    assert_is!(wide.triu_(0), "triu", Overlap);
    let index = Tensor::zeros(shared(), [3], DType::I64).unwrap();
    assert_is!(x.index_add_(0, &index, &base.transpose(0, 1).unwrap()), "index_add", Overlap);
    assert_is!(wide.index_copy_(0, &index, &ones(&[3, 3], DType::F32)), "index_copy", Overlap);
    assert_eq!(base.to_vec::<f32>().unwrap(), [1., 2., 3., 4., 5., 6., 7., 8., 9.]);
    assert_eq!(base.version(), version);
}

#[test]
fn disjoint_views_of_one_storage_go_together() {
    let base = Tensor::from_slice(shared(), [2, 2], &[1.0f32, 2., 3., 4.]).unwrap();
    let mut upper = base.select(0, 0).unwrap();
    upper.add_(&base.select(0, 1).unwrap()).unwrap();
    assert_eq!(base.to_vec::<f32>().unwrap(), [4., 6., 3., 4.]);
}

#[test]
fn frozen_storage_is_refused_through_every_handle_until_it_thaws() {
    let base = Tensor::from_slice(shared(), [2], &[1.0f32, 2.0]).unwrap();
    let mut view = base.narrow(0, 1, 1).unwrap();
    base.freeze();
    let version = base.version();
    let one = ones(&[], DType::F32);
    assert_is!(view.add_(&one), "add", Frozen);
    assert_is!(view.fill_(7.0), "fill", Frozen);
    assert_is!(view.check_writable("commit"), "commit", Frozen);
    assert_is!(view.copy_(&one), "copy", Frozen);
    assert_is!(view.set_bytes_(&[0; 4]), "set_bytes", Frozen);
    assert_is!(view.uniform_(RandomKey::new(1), 0.0, 1.0), "uniform", Frozen);
    let text = view.relu_().unwrap_err().to_string();
    assert!(text.contains(file!()), "{text} does not name the caller");
    assert_eq!(base.add(&one).unwrap().to_vec::<f32>().unwrap(), [2.0, 3.0]);
    assert_eq!((base.to_vec::<f32>().unwrap(), base.version()), (vec![1.0, 2.0], version));
    view.unfreeze();
    base.check_writable("commit").unwrap();
    view.add_(&one).unwrap();
    assert_eq!(base.to_vec::<f32>().unwrap(), [1.0, 3.0]);
}

#[test]
fn sizes_beyond_any_memory_are_out_of_memory() {
    for device in [cpu(1), sim(1)] {
        for len in [1 << 40, 1 << 62, usize::MAX] {
            let error = Tensor::empty(&device, [len], DType::F32).unwrap_err();
            assert!(error.out_of_memory().is_some(), "{error}");
            assert!(Tensor::from_bytes(&device, [len], DType::F32, &[]).is_err());
        }
        let one = Tensor::zeros(&device, [1, 1], DType::F32).unwrap();
        let [tall, wide] = [[1 << 40, 1], [1, 1 << 40]].map(|dims| one.expand(dims).unwrap());
        assert_is!(tall.add(&wide), "add", Shape);
        for outcome in [
            one.repeat(&[1 << 40, 1 << 40]),
            one.pad(&[[usize::MAX, 1], [1, 1]], PadMode::Constant(0.0)),
            tall.repeat_interleave(1, 1 << 40),
            Tensor::cat(&[&one.expand([1 << 63, 1]).unwrap(); 2], 0),
        ] {
            assert!(outcome.unwrap_err().out_of_memory().is_some());
        }
    }
}

#[test]
fn failed_allocation_leaves_operands_and_memory_as_they_were() {
    let device = cpu(2);
    let values: Vec<f32> = (0..3072).map(|i| i as f32).collect();
    let x = Tensor::from_slice(&device, [4, 3, 16, 16], &values).unwrap();
    let w = Tensor::full(&device, [5, 3, 3, 3], DType::F32, 1.0).unwrap();
    let turned = x.transpose(2, 3).unwrap();
    let before = device.allocator().layout_hash();
    // The copy, the result or the workspace fails once.
    for nth in 1..=3 {
        device.allocator().inject_fault(Fault { nth, repeat: Repeat::Once });
        let error = turned.conv2d(&w, None, Conv2dGeometry::default()).unwrap_err();
        assert!(matches!(error, TensorError::Alloc(AllocError::OutOfMemory(_))), "{nth}: {error}");
        assert_eq!(device.allocator().layout_hash(), before, "request {nth} left something");
    }
    device.allocator().clear_fault();
    assert!(turned.conv2d(&w, None, Conv2dGeometry::default()).is_ok());
    assert_eq!(x.to_vec::<f32>().unwrap(), values);
    assert_eq!(device.allocator().layout_hash(), before);
}

/// Every function that takes sizes, with sizes that may be no shape: the error, if any.
fn sized(device: &lowtide_tensor::Device, x: &Tensor, dims: &[usize]) -> Vec<Result<Tensor>> {
    let [first, last] = [dims.first(), dims.last()].map(|dim| dim.copied().unwrap_or(1));
    let pair = [first, last];
    vec![
        Tensor::empty(device, dims, DType::F64),
        Tensor::zeros(device, dims, DType::U8),
        Tensor::ones(device, dims, DType::F32),
        Tensor::full(device, pair, DType::F32, 2.0),
        Tensor::from_slice(device, dims, &[1.0_f32]),
        Tensor::from_bytes(device, dims, DType::F32, &[0; 8]),
        Tensor::eye(device, first, last, DType::F32),
        x.reshape(dims),
        x.view(dims),
        x.expand(dims),
        x.sum_to(dims),
        x.repeat(dims),
        x.repeat_interleave(0, first),
        x.unfold(0, first, last),
        x.slice(0, 0..first, last),
        x.narrow(0, first, last),
        x.pad(&[pair], PadMode::Constant(0.0)),
        x.pad_backward(dims, &[pair], PadMode::Constant(0.0)),
        x.select(0, first),
    ]
}

/// True if a tensor can have these dimensions.
fn is_shape(dims: &[usize]) -> bool {
    let len = dims.iter().try_fold(1_usize, |len, &dim| len.checked_mul(dim.max(1)));
    dims.len() <= RANK_MAX && len.is_some()
}

proptest::proptest! {
    #[test]
    fn sizes_that_no_memory_has_are_errors_and_no_panics(
        dims in proptest::collection::vec(
            proptest::prop_oneof![
                0..3_usize,
                proptest::sample::select(vec![
                    1 << 48, 1 << 62, 1 << 63, usize::MAX - 511, usize::MAX,
                ]),
            ],
            0..RANK_MAX + 3,
        ),
    ) {
        for device in [shared(), &sim(1)] {
            let x = Tensor::ones(device, [1], DType::F32).unwrap();
            for y in sized(device, &x, &dims).into_iter().flatten() {
                proptest::prop_assert!(is_shape(y.shape()), "{:?} of {:?}", y.shape(), dims);
            }
        }
        let outcome = Tensor::empty(shared(), &dims[..], DType::U8);
        let is_refused = matches!(outcome, Err(TensorError::Size { op: "empty", .. }));
        proptest::prop_assert_eq!(is_refused, !is_shape(&dims), "{:?}", dims);
    }
}
