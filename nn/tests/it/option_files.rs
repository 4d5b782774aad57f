//! Options of optimizers are written to files and read back.

use lowtide_nn::optim::{
    AdadeltaOptions, AdafactorOptions, AdagradOptions, AdamOptions, AdamaxOptions, AmsgradOptions,
    LambOptions, LionOptions, Momentum, MuonOptions, NadamOptions, RadamOptions, RateScale,
    RmsPropOptions, RpropOptions, SgdOptions, Spread, UpdateRule,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::common::check_every_rule;

/// Checks options, and returns the name of their update rule.
fn check_round_trip<O>(options: O) -> &'static str
where
    O: UpdateRule + Serialize + DeserializeOwned + PartialEq,
{
    let text = serde_json::to_string(&options).expect("plain values");
    assert_eq!(serde_json::from_str::<O>(&text).expect(&text), options);
    let unknown = text.replacen('{', "{\"unheard_of\":1,", 1);
    let error = serde_json::from_str::<O>(&unknown).expect_err("an unknown key").to_string();
    assert!(error.contains("unheard_of"), "{error}");
    O::NAME
}

#[test]
fn options_round_trip_and_refuse_unknown_keys() {
    let rate_scale = RateScale::MatchRmsAdamW;
    let momentum_kind = Momentum::Classical;
    check_every_rule([
        check_round_trip(AdafactorOptions { eps: Some(1e-6), ..Default::default() }),
        check_round_trip(AdafactorOptions::default()),
        check_round_trip(AdagradOptions { initial_sum: 0.5, ..Default::default() }),
        check_round_trip(AdamOptions::adamw()),
        check_round_trip(AdadeltaOptions { smoothing: 0.75, ..Default::default() }),
        check_round_trip(AdamaxOptions { weight_decay: 0.5, ..Default::default() }),
        check_round_trip(AmsgradOptions(AdamOptions::adamw())),
        check_round_trip(NadamOptions { momentum_decay: 0.5, ..Default::default() }),
        check_round_trip(RadamOptions(AdamOptions::adamw())),
        check_round_trip(RpropOptions { factors: [0.25, 1.5], ..Default::default() }),
        check_round_trip(LambOptions { eps: 1e-3, ..Default::default() }),
        check_round_trip(LionOptions { betas: [0.5, 0.75], ..Default::default() }),
        check_round_trip(MuonOptions { rate_scale, momentum_kind, ..Default::default() }),
        check_round_trip(RmsPropOptions { spread: Spread::Variance, ..Default::default() }),
        check_round_trip(SgdOptions { momentum_kind: Momentum::Nesterov, ..SgdOptions::new(0.5) }),
    ]);
}

#[test]
fn keys_that_are_absent_have_defaults() {
    assert_eq!(
        serde_json::from_str::<AdamOptions>("{}").expect("defaults"),
        AdamOptions::default()
    );
    let nesterov = serde_json::from_str::<SgdOptions>("{\"nesterov\": true}").expect("defaults");
    assert_eq!((nesterov.momentum, nesterov.momentum_kind), (0.9, Momentum::Nesterov));
}
