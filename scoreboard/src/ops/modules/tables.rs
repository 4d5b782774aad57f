//! Linear layers, embeddings and activations with parameters.

use lowtide_nn::{Embedding, Linear, PReLU};

use super::{Family, INPUT, KEY, flag, forward, size};
use crate::call::{named, one};

pub(super) const OPS: Family = &[
    ("nn.Embedding", |call| {
        let (rows, width) = (size(call, "num_embeddings")?, size(call, "embedding_dim")?);
        let layer = Embedding::new(&call.device, KEY, rows, width)?;
        forward(
            call,
            match call.count(named("padding_idx"))? {
                Some(row) => layer.with_padding(row)?,
                None => layer,
            },
        )
    }),
    ("nn.Softmax2d", |call| one(call.var(INPUT)?.softmax(-3)?)),
    ("nn.Linear", |call| {
        let (inputs, outputs) = (size(call, "in_features")?, size(call, "out_features")?);
        let layer = if flag(call, "bias")? {
            Linear::new(&call.device, KEY, inputs, outputs)?
        } else {
            Linear::without_bias(&call.device, KEY, inputs, outputs)?
        };
        forward(call, layer)
    }),
    ("nn.PReLU", |call| {
        let channels = call.count(named("num_parameters"))?.unwrap_or(1);
        // The initial value does not matter, because the case has the parameter.
        call.number(named("init"))?;
        forward(call, PReLU::new(&call.device, channels)?)
    }),
];
