//! Every public operation, once, for the laws that hold for all of them.

use lowtide_tensor::{
    AdamStep, Conv2dGeometry, DType, Device, Pool2dGeometry, RandomKey, Result, SgdStep, Tensor,
    WeightDecay, scale_and_check_finite, squared_norm,
};

use crate::common::upload;
use crate::naive::Array;

/// An operation on inputs that are large enough for several chunks.
pub(crate) struct Op {
    /// The method's name; it ends in `_` for those that write in place.
    pub(crate) name: &'static str,
    pub(crate) run: fn(&mut Inputs) -> Result<Vec<Tensor>>,
}

/// Two of a kind under short names; `a`, `m` and `v` are written by the operations in place.
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
    scalar: Tensor,
}

const GEOMETRY: Conv2dGeometry =
    Conv2dGeometry { stride: [2, 1], padding: [1, 2], dilation: [1, 2], groups: 2 };
const POOL: Pool2dGeometry = Pool2dGeometry { kernel: [3, 2], stride: [2, 2], padding: [1, 0] };
const SGD: SgdStep = SgdStep {
    learning_rate: 0.1,
    momentum: 0.9,
    dampening: 0.0,
    weight_decay: 1e-3,
    nesterov: true,
    is_first: false,
    grad_scale: 0.3,
};
const ADAM: AdamStep = AdamStep {
    learning_rate: 0.1,
    beta1: 0.9,
    beta2: 0.999,
    eps: 1e-8,
    weight_decay: WeightDecay::Decoupled(0.01),
    bias_correction1: 0.1,
    bias_correction2: 0.001,
    grad_scale: 0.3,
};

impl Inputs {
    /// The same numbers on every device.
    pub(crate) fn new(device: &Device, dtype: DType) -> Self {
        // Divided by 3, so that sums round and their order shows.
        let make = |dims: &[usize], seed| {
            upload(device, &Array::pattern(dims, seed).map(|x| x / 3.0), dtype)
        };
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
            lse: make(&[500], 15),
            scalar: make(&[], 16),
            a,
            image,
            filter,
        }
    }

    /// The same inputs again, with copies of those that operations write.
    pub(crate) fn fork(&self) -> Self {
        let [a, m, v] = [&self.a, &self.m, &self.v].map(|x| x.copied().unwrap());
        Inputs { a, m, v, ..self.clone() }
    }

    /// All of them, to compare before and after.
    pub(crate) fn all(&self) -> [&Tensor; 21] {
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
            &self.scalar,
        ]
    }
}

/// An operation with a result of its own.
macro_rules! out {
    ($name:ident, $inputs:ident => $result:expr) => {
        Op { name: stringify!($name), run: |$inputs| Ok(vec![$result?]) }
    };
}

/// An operation that writes `a`.
macro_rules! in_place {
    ($name:ident, $inputs:ident => $result:expr) => {
        Op {
            name: stringify!($name),
            run: |$inputs| {
                $result?;
                Ok(vec![$inputs.a.clone(), $inputs.m.clone(), $inputs.v.clone()])
            },
        }
    };
}

pub(crate) fn all_ops() -> Vec<Op> {
    [elementwise_ops(), in_place_ops(), views(), reductions(), network()]
        .into_iter()
        .flatten()
        .collect()
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

/// Those that are defined for the half types too.
pub(crate) fn elementwise_ops() -> Vec<Op> {
    [arithmetic(), comparisons(), functions(), moves()].into_iter().flatten().collect()
}

fn arithmetic() -> Vec<Op> {
    both! { i;
        add add_ (&i.row);
        add_scalar add_scalar_ (0.1);
        sub sub_ (&i.b);
        sub_scalar sub_scalar_ (0.1);
        mul mul_ (&i.scalar);
        mul_scalar mul_scalar_ (0.1);
        div div_ (&i.positive);
        div_scalar div_scalar_ (0.1);
        remainder remainder_ (&i.positive);
        remainder_scalar remainder_scalar_ (-0.1);
        maximum maximum_ (&i.row);
        maximum_scalar maximum_scalar_ (0.1);
        minimum minimum_ (&i.row);
        minimum_scalar minimum_scalar_ (0.1);
        pow pow_ (&i.positive);
        pow_scalar pow_scalar_ (2.7);
        clamp clamp_ (-0.1, 0.2);
        lerp lerp_ (&i.b, 0.3);
        addcmul addcmul_ (&i.b, &i.row, 0.3);
        addcdiv addcdiv_ (&i.b, &i.positive, 0.3);
    }
}

fn comparisons() -> Vec<Op> {
    let mut ops = both! { i;
        eq eq_ (&i.row);
        eq_scalar eq_scalar_ (0.125);
        ne ne_ (&i.row);
        ne_scalar ne_scalar_ (0.125);
        lt lt_ (&i.row);
        lt_scalar lt_scalar_ (0.125);
        le le_ (&i.row);
        le_scalar le_scalar_ (0.125);
        gt gt_ (&i.row);
        gt_scalar gt_scalar_ (0.125);
        ge ge_ (&i.row);
        ge_scalar ge_scalar_ (0.125);
        logical_and logical_and_ (&i.row);
        logical_or logical_or_ (&i.row);
        logical_xor logical_xor_ (&i.row);
        logical_not logical_not_ ();
        masked_fill masked_fill_ (&i.mask, 0.1);
    };
    ops.extend([
        out!(is_finite, i => i.a.is_finite()),
        out!(is_inf, i => i.a.is_inf()),
        out!(is_nan, i => i.a.is_nan()),
        out!(where_cond, i => i.mask.where_cond(&i.a, &i.row)),
    ]);
    ops
}

fn functions() -> Vec<Op> {
    both! { i;
        abs abs_ ();
        neg neg_ ();
        sign sign_ ();
        relu relu_ ();
        relu_backward relu_backward_ (&i.b);
        exp exp_ ();
        expm1 expm1_ ();
        log log_ ();
        log1p log1p_ ();
        sqrt sqrt_ ();
        rsqrt rsqrt_ ();
        reciprocal reciprocal_ ();
        sin sin_ ();
        cos cos_ ();
        tan tan_ ();
        atan atan_ ();
        tanh tanh_ ();
        erf erf_ ();
        sigmoid sigmoid_ ();
        silu silu_ ();
        gelu gelu_ ();
        gelu_tanh gelu_tanh_ ();
        floor floor_ ();
        ceil ceil_ ();
        round round_ ();
        trunc trunc_ ();
        leaky_relu leaky_relu_ (0.1);
        elu elu_ (0.9);
        softplus softplus_ (2.0, 1.0);
    }
}

fn moves() -> Vec<Op> {
    vec![
        out!(to_dtype, i => i.a.to_dtype(DType::U8)),
        in_place!(uniform_, i => i.a.uniform_(RandomKey::new(3), -1.0, 1.0)),
        in_place!(normal_, i => i.a.normal_(RandomKey::new(3), -1.0, 2.0)),
        in_place!(bernoulli_, i => i.a.bernoulli_(RandomKey::new(3), 0.3)),
        out!(permutation, i => Tensor::permutation(&i.device, 3000, RandomKey::new(3))),
        out!(arange, i => Tensor::arange(&i.device, 0.0..9000.0, 0.1, i.a.dtype())),
        out!(eye, i => Tensor::eye(&i.device, 90, 300, i.a.dtype())),
        in_place!(add_scaled_, i => i.a.add_scaled_(&i.b, 0.1)),
        in_place!(fill_, i => i.a.fill_(0.1)),
        in_place!(zero_, i => i.a.zero_()),
        in_place!(copy_, i => i.a.copy_(&i.row)),
        in_place!(set_bytes_, i => {
            let bytes = vec![1; i.a.size_bytes()];
            i.a.set_bytes_(&bytes)
        }),
    ]
}

fn in_place_ops() -> Vec<Op> {
    vec![
        in_place!(sgd_, i => i.a.sgd_(&i.b, Some(&mut i.m), SGD)),
        in_place!(adam_, i => i.a.adam_(&i.b, &mut i.m, &mut i.v, ADAM)),
    ]
}

fn views() -> Vec<Op> {
    vec![
        out!(reshape, i => i.a.transpose(0, 1)?.reshape([65, 1001])),
        out!(flatten, i => i.image.transpose(2, 3)?.flatten(2..4)),
        out!(transpose, i => i.a.transpose(0, 1)),
        out!(permute, i => i.image.permute(&[3, 1, 0, 2])),
        out!(narrow, i => i.a.narrow(0, 3, 20)),
        out!(select, i => i.a.select(1, 7)),
        out!(unsqueeze, i => i.a.unsqueeze(1)),
        out!(squeeze, i => i.row.squeeze(0)),
        out!(expand, i => i.row.expand([65, 1001])),
        out!(contiguous, i => i.a.transpose(0, 1)?.contiguous()),
        out!(copied, i => i.a.copied()),
    ]
}

fn reductions() -> Vec<Op> {
    vec![
        out!(sum, i => i.a.sum(&[0])),
        out!(sum_all, i => i.a.sum_all()),
        out!(mean, i => i.image.mean(&[0, 2, 3])),
        out!(sum_to, i => i.a.sum_to([65, 1])),
        out!(argmax, i => i.a.argmax()),
        out!(squared_norm, i => squared_norm(&i.device, [&i.a, &i.left.transpose(0, 1)?])),
        Op {
            name: "scale_and_check_finite",
            run: |i| {
                let flag = scale_and_check_finite(&i.device, [&mut i.a, &mut i.m], 0.1)?;
                Ok(vec![flag, i.a.clone(), i.m.clone()])
            },
        },
    ]
}

fn network() -> Vec<Op> {
    vec![
        out!(matmul, i => i.left.matmul(&i.right)),
        out!(linear, i => i.right.transpose(0, 1)?.linear(&i.left, Some(&i.bias))),
        out!(conv2d, i => i.image.conv2d(&i.filter, Some(&i.filter_bias), GEOMETRY)),
        out!(conv2d_backward_input, i => {
            i.dy.conv2d_backward_input(&i.filter, *i.image.shape(), GEOMETRY)
        }),
        out!(conv2d_backward_weight, i => {
            i.dy.conv2d_backward_weight(&i.image, *i.filter.shape(), GEOMETRY)
        }),
        Op { name: "max_pool2d", run: |i| i.image.max_pool2d(POOL).map(|(y, at)| vec![y, at]) },
        out!(max_pool2d_backward, i => {
            i.dpooled.max_pool2d_backward(&i.winners, *i.image.shape(), POOL)
        }),
        Op {
            name: "cross_entropy",
            run: |i| {
                let found = i.logits.cross_entropy(&i.labels, -100)?;
                Ok(vec![found.sum, found.count, found.log_sum_exp])
            },
        },
        out!(cross_entropy_backward, i => {
            i.scalar.cross_entropy_backward(&i.logits, &i.labels, &i.lse, -100)
        }),
    ]
}
