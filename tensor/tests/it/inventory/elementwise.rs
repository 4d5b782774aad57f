use lowtide_tensor::{Closeness, DType, Draw, RandomKey, Replacements, Tensor};

use super::{Op, both, in_place, out};

pub(super) fn ops() -> Vec<Op> {
    [arithmetic(), comparisons(), functions(), gradients(), moves()].into_iter().flatten().collect()
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
        pow_scalar pow_scalar_ (2.7);
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
    both! { i;
        abs abs_ ();
        neg neg_ ();
        sign sign_ ();
        relu relu_ ();
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
        asin asin_ ();
        acos acos_ ();
        sinh sinh_ ();
        cosh cosh_ ();
        asinh asinh_ ();
        acosh acosh_ ();
        atanh atanh_ ();
        erfc erfc_ ();
        erfinv erfinv_ ();
        lgamma lgamma_ ();
        digamma digamma_ ();
        frac frac_ ();
        log2 log2_ ();
        log10 log10_ ();
        exp2 exp2_ ();
        tanh tanh_ ();
        erf erf_ ();
        sigmoid sigmoid_ ();
        silu silu_ ();
        gelu gelu_ ();
        gelu_tanh gelu_tanh_ ();
        mish mish_ ();
        hardswish hardswish_ ();
        hardsigmoid hardsigmoid_ ();
        selu selu_ ();
        softsign softsign_ ();
        logsigmoid logsigmoid_ ();
        floor floor_ ();
        ceil ceil_ ();
        round round_ ();
        trunc trunc_ ();
        leaky_relu leaky_relu_ (0.1);
        elu elu_ (0.9);
        celu celu_ (0.9);
        softplus softplus_ (2.0, 1.0);
    }
}

fn gradients() -> Vec<Op> {
    both! { i;
        relu_backward relu_backward_ (&i.b);
        sigmoid_backward sigmoid_backward_ (&i.b);
        tanh_backward tanh_backward_ (&i.b);
        gelu_backward gelu_backward_ (&i.b);
        gelu_tanh_backward gelu_tanh_backward_ (&i.b);
        silu_backward silu_backward_ (&i.b);
        elu_backward elu_backward_ (&i.b, 0.9);
        leaky_relu_backward leaky_relu_backward_ (&i.b, 0.1);
        celu_backward celu_backward_ (&i.b, 0.9);
        softplus_backward softplus_backward_ (&i.b, 2.0, 1.0);
        mish_backward mish_backward_ (&i.b);
        hardswish_backward hardswish_backward_ (&i.b);
        hardsigmoid_backward hardsigmoid_backward_ (&i.b);
        hardtanh_backward hardtanh_backward_ (&i.b, -0.2, 0.3);
        selu_backward selu_backward_ (&i.b);
        softsign_backward softsign_backward_ (&i.b);
        logsigmoid_backward logsigmoid_backward_ (&i.b);
        digamma_backward digamma_backward_ (&i.b);
    }
}

fn moves() -> Vec<Op> {
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
