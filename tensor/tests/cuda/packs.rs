//! Packs: a thread takes 16 bytes of elements at once. Results have the same bits wherever the
//! elements begin in memory, and nothing around the elements is touched.

use lowtide_tensor::{
    DType, Device, Dropout, RandomKey, Tensor, TensorResult as Result, scale_and_check_finite,
};

use crate::elementwise::noise;
use crate::gpu::Gpu;

const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::BF16];

/// The view of `len` elements that begins `start` elements into a storage.
fn view(whole: &Tensor, start: usize, len: usize) -> Tensor {
    whole.narrow(0, start, len).unwrap()
}

/// Starts of every alignment, and lengths of no pack, of whole packs, and of packs with a rest.
fn each_view(mut test: impl FnMut(usize, usize)) {
    for start in 0..=8 {
        for len in [1, 5, 16, 43] {
            test(start, len);
        }
    }
}

type Op = fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>;

/// Operations on `x`, on another tensor of its shape and type, and on a mask.
const OPS: [(&str, Op); 25] = [
    ("neg", |x, _, _| x.neg()),
    ("relu", |x, _, _| x.relu()),
    ("clamp", |x, _, _| x.clamp(-0.5, 0.5)),
    ("exp", |x, _, _| x.exp()),
    ("tanh", |x, _, _| x.tanh()),
    ("sigmoid", |x, _, _| x.sigmoid()),
    ("gelu", |x, _, _| x.gelu()),
    ("gelu_tanh", |x, _, _| x.gelu_tanh()),
    ("silu", |x, _, _| x.silu()),
    ("sin", |x, _, _| x.sin()),
    ("add", |x, y, _| x.add(y)),
    ("add_scalar", |x, _, _| x.add_scalar(0.7)),
    ("sub", |x, y, _| x.sub(y)),
    ("mul", |x, y, _| x.mul(y)),
    ("div", |x, y, _| x.div(y)),
    ("maximum", |x, y, _| x.maximum(y)),
    ("lerp", |x, y, _| x.lerp(y, 0.3)),
    ("addcmul", |x, y, _| x.addcmul(y, x, 0.3)),
    ("where", |x, y, mask| mask.where_cond(x, y)),
    ("masked_fill", |x, _, mask| x.masked_fill(mask, 0.25)),
    ("gelu_backward", |x, y, _| x.gelu_backward(y)),
    ("silu_backward", |x, y, _| x.silu_backward(y)),
    ("tanh_backward", |x, y, _| x.tanh_backward(y)),
    ("to_f32", |x, _, _| x.to_dtype(DType::F32)),
    ("to_i32", |x, _, _| x.to_dtype(DType::I32)),
];

#[test]
fn result_has_the_same_bits_wherever_its_operands_begin() {
    let Some(gpu) = Gpu::take() else { return };
    gpu.in_every_order(|| {
        let device = gpu.device();
        for dtype in FLOATS {
            let whole = |name| noise(&device, name, &[64], [-2.0, 2.0]).to_dtype(dtype).unwrap();
            let (x, y) = (whole("x"), whole("y"));
            let mask = x.gt_scalar(0.0).unwrap();
            each_view(|start, len| {
                let views = [&x, &y, &mask].map(|of| view(of, start, len));
                let copies = [0, 1, 2].map(|at: usize| views[at].copied().unwrap());
                let of = |[x, y, mask]: &[Tensor; 3], op: Op| op(x, y, mask).unwrap();
                for (name, op) in OPS {
                    let [there, moved] = [of(&views, op), of(&copies, op)];
                    let [there, moved] = [there, moved].map(|y| y.to_bytes().unwrap());
                    assert_eq!(there, moved, "{name} of {len} {dtype} from {start}");
                }
            });
        }
    });
}

#[test]
fn casts_from_each_type_to_each_have_the_same_bits_wherever_they_begin() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    let numbers: Vec<i64> = (0..64).map(|i| i * i % 57 - 20).collect();
    let numbers = Tensor::from_slice(&device, [64], &numbers).unwrap();
    for from in DType::ALL {
        let whole = numbers.to_dtype(from).unwrap();
        each_view(|start, len| {
            let there = view(&whole, start, len);
            let moved = there.copied().unwrap();
            for to in DType::ALL.into_iter().filter(|to| *to != from) {
                let cast = |x: &Tensor| x.to_dtype(to).unwrap().to_bytes().unwrap();
                assert_eq!(cast(&there), cast(&moved), "{len} {from} from {start} to {to}");
            }
        });
    }
}

/// An operation that changes a view in place, and a copy of the view.
type InPlace = fn(&Device, &mut Tensor) -> Result<()>;

const IN_PLACE: [(&str, InPlace); 5] = [
    ("fill", |_, x| x.fill_(1.5)),
    ("add_scalar", |_, x| x.add_scalar_(0.5)),
    ("scale_and_check", |device, x| scale_and_check_finite(device, [x], 0.3).map(drop)),
    ("copy", |device, x| {
        let other = noise(device, "other", &[64], [-2.0, 2.0]).to_dtype(x.dtype())?;
        x.copy_(&other.narrow(0, 3, x.element_count())?)
    }),
    ("dropout", |_, x| x.dropout_(Dropout { probability: 0.4, key: RandomKey::new(4), first: 8 })),
];

#[test]
fn change_in_place_has_the_same_bits_wherever_it_begins_and_stays_there() {
    let Some(gpu) = Gpu::take() else { return };
    gpu.in_every_order(|| {
        let device = gpu.device();
        for dtype in FLOATS {
            let before = noise(&device, "x", &[64], [-2.0, 2.0]).to_dtype(dtype).unwrap();
            each_view(|start, len| {
                for (name, change) in IN_PLACE {
                    let whole = before.copied().unwrap();
                    let mut moved = view(&whole, start, len).copied().unwrap();
                    change(&device, &mut view(&whole, start, len)).unwrap();
                    change(&device, &mut moved).unwrap();
                    let mut expected = before.to_bytes().unwrap();
                    let at = start * dtype.size_bytes();
                    let moved = moved.to_bytes().unwrap();
                    expected[at..at + moved.len()].copy_from_slice(&moved);
                    let found = whole.to_bytes().unwrap();
                    assert!(found == expected, "{name} of {len} {dtype} from {start}");
                }
            });
        }
    });
}
