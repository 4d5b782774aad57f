//! Every public operation, once, for laws that hold for all operations. There is one file per
//! family. The functions of one tensor are read from the table of formulas; any other operation is
//! one line.

mod attention;
mod elementwise;
mod indexing;
mod joining;
mod losses;
mod normalization;
mod optimizers;
mod products;
mod reductions;
mod scans;
mod views;
mod windows;

use lowtide_tensor::{DType, Device, Tensor, TensorResult as Result};

use crate::common::upload;
use crate::naive::Array;

type Run = Box<dyn Fn(&mut Inputs) -> Result<Vec<Tensor>>>;

/// An operation on inputs that are large enough for several chunks.
pub(crate) struct Op {
    /// The method's name, which ends in `_` if the method writes in place.
    pub(crate) name: &'static str,
    pub(crate) run: Run,
    /// True if the operation is defined for f16 and bf16 too.
    half: bool,
}

/// An operation as a family lists it.
struct Entry {
    name: &'static str,
    run: fn(&mut Inputs) -> Result<Vec<Tensor>>,
    half: bool,
}

impl From<Entry> for Op {
    fn from(Entry { name, run, half }: Entry) -> Self {
        Op { name, run: Box::new(run), half }
    }
}

/// Inputs under short names, mostly two of a kind. Operations in place write `a`, `m` and `v`.
#[derive(Clone)]
pub(crate) struct Inputs {
    device: Device,
    a: Tensor,
    b: Tensor,
    m: Tensor,
    v: Tensor,
    row: Tensor,
    positive: Tensor,
    mask: Tensor,
    left: Tensor,
    right: Tensor,
    bias: Tensor,
    image: Tensor,
    filter: Tensor,
    filter_bias: Tensor,
    dy: Tensor,
    pooled: Tensor,
    dpooled: Tensor,
    winners: Tensor,
    logits: Tensor,
    labels: Tensor,
    lse: Tensor,
    /// The gradient of a sum, in f32 or f64 like `lse`.
    seed: Tensor,
    scalar: Tensor,
    places: Tensor,
    rows: Tensor,
}

impl Inputs {
    /// Inputs with the same numbers on every device.
    pub(crate) fn new(device: &Device, dtype: DType) -> Self {
        // Numbers divided by 3, so that sums round and their order shows.
        let make = |dims: &[usize], seed| {
            upload(device, &Array::pattern(dims, seed).map(|x| x / 3.0), dtype)
        };
        let statistics = if dtype == DType::F64 { dtype } else { DType::F32 };
        let labels: Vec<i64> = (0..500).map(|n| if n % 7 == 0 { -100 } else { n % 37 }).collect();
        let (a, image, filter) =
            (make(&[65, 1001], 1), make(&[6, 8, 40, 41], 8), make(&[12, 4, 3, 3], 9));
        let y_dims = [6, 12, 20, 41];
        let pooled_dims = [6, 8, 20, 20];
        let winners = Array::from_fn(&pooled_dims, |at| {
            // The first row of windows starts in the padding; its winners are in the second row.
            if at[2] == 0 { 2.0 } else { ((at[1] + at[3]) % 6) as f64 }
        });
        Inputs {
            device: device.clone(),
            b: make(&[65, 1001], 2),
            m: make(&[65, 1001], 3),
            v: upload(device, &Array::pattern(&[65, 1001], 4).map(|x| x * x), dtype),
            row: make(&[1, 1001], 5),
            positive: upload(device, &Array::pattern(&[65, 1001], 6).map(|x| x + 2.0), dtype),
            mask: upload(
                device,
                &Array::from_fn(&[65, 1001], |at| ((at[0] + at[1]) % 3) as f64),
                DType::Bool,
            ),
            left: make(&[150, 90], 6),
            right: make(&[90, 170], 7),
            bias: make(&[150], 8),
            filter_bias: make(&[12], 10),
            dy: make(&y_dims, 11),
            pooled: make(&pooled_dims, 12),
            dpooled: make(&pooled_dims, 13),
            winners: upload(device, &winners, DType::U8),
            logits: make(&[500, 37], 14),
            labels: Tensor::from_slice(device, [500], &labels).unwrap(),
            lse: make(&[500], 15).to_dtype(statistics).unwrap(),
            seed: make(&[], 17).to_dtype(statistics).unwrap(),
            scalar: make(&[], 16),
            // Indices with many repeats: into the rows of `a`, for each element of `a`, and into 37
            // places.
            places: upload(
                device,
                &Array::from_fn(&[60, 1001], |at| ((at[0] * at[0] + at[1] * 3) % 65) as f64),
                DType::I64,
            ),
            rows: upload(
                device,
                &Array::from_fn(&[500], |at| (at[0] * at[0] % 37) as f64),
                DType::I64,
            ),
            a,
            image,
            filter,
        }
    }

    /// These inputs, with copies of the tensors that operations write.
    pub(crate) fn fork(&self) -> Self {
        let [a, m, v] = [&self.a, &self.m, &self.v].map(|x| x.copied().unwrap());
        Inputs { a, m, v, ..self.clone() }
    }

    /// The tensors that operations write in place.
    fn written(&self) -> Vec<Tensor> {
        vec![self.a.clone(), self.m.clone(), self.v.clone()]
    }

    /// All inputs, to compare before and after.
    pub(crate) fn all(&self) -> [&Tensor; 24] {
        [
            &self.a,
            &self.b,
            &self.m,
            &self.v,
            &self.row,
            &self.positive,
            &self.mask,
            &self.left,
            &self.right,
            &self.bias,
            &self.image,
            &self.filter,
            &self.filter_bias,
            &self.dy,
            &self.pooled,
            &self.dpooled,
            &self.winners,
            &self.logits,
            &self.labels,
            &self.lse,
            &self.seed,
            &self.scalar,
            &self.places,
            &self.rows,
        ]
    }
}

/// An operation with a result of its own.
macro_rules! out {
    ($name:ident, $inputs:ident => $result:expr) => {
        Entry { name: stringify!($name), run: |$inputs| Ok(vec![$result?]), half: true }
    };
}

/// An operation that writes `a`.
macro_rules! in_place {
    ($name:ident, $inputs:ident => $result:expr) => {
        Entry {
            name: stringify!($name),
            run: |$inputs| {
                $result?;
                Ok($inputs.written())
            },
            half: true,
        }
    };
}

/// Operations with a result of their own, and their forms in place.
macro_rules! both {
    ($inputs:ident; $($name:ident $in_place:ident ($($argument:expr),*);)*) => {
        vec![$(
            out!($name, $inputs => $inputs.a.$name($($argument),*)),
            in_place!($in_place, $inputs => $inputs.a.$in_place($($argument),*)),
        )*]
    };
}

use {both, in_place, out};

/// Operations that the half types lack.
fn not_half_yet(ops: Vec<Entry>) -> Vec<Entry> {
    ops.into_iter().map(|op| Entry { half: false, ..op }).collect()
}

/// All operations that are defined for `dtype`.
pub(crate) fn ops_of(dtype: DType) -> Vec<Op> {
    let families = [
        elementwise::ops(),
        views::ops(),
        joining::ops(),
        indexing::ops(),
        reductions::ops(),
        scans::ops(),
        products::ops(),
        windows::ops(),
        normalization::ops(),
        losses::ops(),
        attention::ops(),
        optimizers::ops(),
    ];
    let is_half = matches!(dtype, DType::F16 | DType::BF16);
    let listed = families.into_iter().flatten().map(Op::from).chain(elementwise::listed());
    listed.filter(|op| op.half || !is_half).collect()
}

/// Operations of f32.
pub(crate) fn all_ops() -> Vec<Op> {
    ops_of(DType::F32)
}
