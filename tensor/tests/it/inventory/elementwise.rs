use lowtide_tensor::testing::{self, Function, FunctionGradient};
use lowtide_tensor::{
    Closeness, DType, Draw, RandomKey, Replacements, Tensor, TensorResult as Result,
};

use super::{Entry, Inputs, Op, both, in_place, out};
use crate::common::scalars;

pub(super) fn ops() -> Vec<Entry> {
    [arithmetic(), comparisons(), moves()].into_iter().flatten().collect()
}

/// The functions of one tensor and their gradients, as the table of formulas declares them.
pub(super) fn listed() -> Vec<Op> {
    functions().into_iter().chain(gradients()).collect()
}

fn arithmetic() -> Vec<Entry> {
    both! { i;
        add add_ (&i.row);
        add_scalar add_scalar_ (0.1);
        sub sub_ (&i.b);
        sub_scalar sub_scalar_ (0.1);
        mul mul_ (&i.scalar);
        mul_scalar mul_scalar_ (0.1);
        div div_ (&i.positive);
        div_scalar div_scalar_ (0.1);
        div_floor div_floor_ (&i.positive);
        div_floor_scalar div_floor_scalar_ (-0.1);
        div_trunc div_trunc_ (&i.positive);
        div_trunc_scalar div_trunc_scalar_ (-0.1);
        remainder remainder_ (&i.positive);
        remainder_scalar remainder_scalar_ (-0.1);
        maximum maximum_ (&i.row);
        maximum_scalar maximum_scalar_ (0.1);
        minimum minimum_ (&i.row);
        minimum_scalar minimum_scalar_ (0.1);
        pow pow_ (&i.positive);
        atan2 atan2_ (&i.row);
        hypot hypot_ (&i.row);
        copysign copysign_ (&i.row);
        logaddexp logaddexp_ (&i.row);
        xlogy xlogy_ (&i.positive);
        fmod fmod_ (&i.positive);
        fmod_scalar fmod_scalar_ (-0.1);
        fmax fmax_ (&i.row);
        fmin fmin_ (&i.row);
        heaviside heaviside_ (&i.row);
        nan_to_num nan_to_num_ (Replacements::default());
        lerp lerp_ (&i.b, 0.3);
        addcmul addcmul_ (&i.b, &i.row, 0.3);
        addcdiv addcdiv_ (&i.b, &i.positive, 0.3);
    }
}

fn comparisons() -> Vec<Entry> {
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
        masked_fill masked_fill_ (&i.mask, 0.1);
    };
    ops.extend([
        out!(isclose, i => i.a.isclose(&i.row, Closeness::default())),
        out!(is_finite, i => i.a.is_finite()),
        out!(is_inf, i => i.a.is_inf()),
        out!(is_nan, i => i.a.is_nan()),
        out!(where_cond, i => i.mask.where_cond(&i.a, &i.row)),
        in_place!(masked_copy_, i => i.a.masked_copy_(&i.mask, &i.row)),
    ]);
    ops
}

fn functions() -> Vec<Op> {
    let ops = |function: &'static Function| {
        let numbers = scalars(function.scalars);
        let in_place = numbers.clone();
        [
            op(function.name, move |i| Ok(vec![(function.run)(&i.a, &numbers)?])),
            op(function.in_place_name, move |i| {
                (function.run_in_place)(&mut i.a, &in_place)?;
                Ok(i.written())
            }),
        ]
    };
    testing::functions().flat_map(ops).collect()
}

fn gradients() -> Vec<Op> {
    let ops = |gradient: &'static FunctionGradient| {
        let numbers = scalars(gradient.scalars);
        let in_place = numbers.clone();
        [
            op(gradient.name, move |i| Ok(vec![(gradient.run)(&i.a, &i.b, &numbers)?])),
            op(gradient.in_place_name, move |i| {
                (gradient.run_in_place)(&mut i.a, &i.b, &in_place)?;
                Ok(i.written())
            }),
        ]
    };
    testing::functions().filter_map(|function| function.gradient.as_ref()).flat_map(ops).collect()
}

fn op(name: &'static str, run: impl Fn(&mut Inputs) -> Result<Vec<Tensor>> + 'static) -> Op {
    Op { name, run: Box::new(run), half: true }
}

fn moves() -> Vec<Entry> {
    vec![
        out!(to_dtype, i => i.a.to_dtype(DType::U8)),
        in_place!(uniform_, i => i.a.uniform_(RandomKey::new(3), -1.0, 1.0)),
        in_place!(normal_, i => i.a.normal_(RandomKey::new(3), -1.0, 2.0)),
        in_place!(bernoulli_, i => i.a.bernoulli_(RandomKey::new(3), 0.3)),
        out!(permutation, i => Tensor::permutation(&i.device, 3000, RandomKey::new(3))),
        in_place!(random_integers_, i => i.a.random_integers_(RandomKey::new(3), -5..90)),
        out!(multinomial, i => i.positive.multinomial(RandomKey::new(3), 3, Draw::Replaced)),
        out!(arange, i => Tensor::arange(&i.device, 0.0..9000.0, 0.1, i.a.dtype())),
        out!(linspace, i => Tensor::linspace(&i.device, [-1.0, 2.0], 900, i.a.dtype())),
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
