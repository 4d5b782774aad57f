//! One training step of a transformer as large as the smallest GPT-2, from the shapes of its
//! layers.
//!
//! `B` batch, `T` time, `C` channels, `H` heads, `V` vocabulary. Single precision, no recomputation
//! and no fused attention. The forward pass keeps the tensors that the backward pass needs; the
//! backward pass frees them in reverse order. Gradients live until AdamW has used them. Weights and
//! moments are live before the step.

use crate::load::{Load, Script};

const B: u64 = 8;
const T: u64 = 1024;
const C: u64 = 768;
const H: u64 = 12;
const V: u64 = 50_257;
const LAYERS: usize = 12;
const FLOAT_BYTES: u64 = 4;
const INDEX_BYTES: u64 = 8;

/// Numbers of weights of a layer: norm, query-key-value, projection, norm, expansion, contraction.
const LAYER_WEIGHTS: [u64; 12] =
    [C, C, 3 * C * C, 3 * C, C * C, C, C, C, 4 * C * C, 4 * C, 4 * C * C, C];

/// Lengths of an activation, and of the scratch memory for its computation.
struct Made {
    kept: u64,
    scratch: u64,
}

/// Memory that one layer allocates in the forward pass: one row for each operation.
const LAYER: [Made; 12] = [
    Made { kept: B * T * C, scratch: 0 },     // first norm
    Made { kept: 2 * B * T, scratch: 0 },     // its means and deviations
    Made { kept: 3 * B * T * C, scratch: 0 }, // queries, keys, values
    Made { kept: 3 * B * T * C, scratch: 0 }, // the same by head
    Made { kept: B * H * T * T, scratch: B * H * T * T }, // softmax of the scores
    Made { kept: B * T * C, scratch: B * T * C }, // attention, heads side by side again
    Made { kept: B * T * C, scratch: B * T * C }, // residual after the projection
    Made { kept: B * T * C, scratch: 0 },     // second norm
    Made { kept: 2 * B * T, scratch: 0 },     // its means and deviations
    Made { kept: 4 * B * T * C, scratch: 0 }, // expansion
    Made { kept: 4 * B * T * C, scratch: 0 }, // GELU
    Made { kept: B * T * C, scratch: B * T * C }, // residual after the contraction
];

/// The load of one training step.
pub(crate) fn step() -> Load {
    let mut script = Script::new();
    let weights = weights();
    for &len in &weights {
        // The weight and its two moments.
        for _ in 0..3 {
            script.allocate(len * FLOAT_BYTES);
        }
    }
    script.start_the_clock();
    let batch = [script.allocate(B * T * INDEX_BYTES), script.allocate(B * T * INDEX_BYTES)];
    let kept = forward(&mut script);
    let gradients = backward(&mut script, &weights, kept);
    batch.into_iter().for_each(|block| script.free(block));
    adamw(&mut script, &weights, &gradients);
    gradients.into_iter().for_each(|block| script.free(block));
    script.finish("training_step")
}

/// Lengths of the weights: embeddings, layers, last norm. The head shares the embedding's weights.
fn weights() -> Vec<u64> {
    let layers = (0..LAYERS).flat_map(|_| LAYER_WEIGHTS);
    [V * C, T * C].into_iter().chain(layers).chain([C, C]).collect()
}

/// Runs the forward pass. Returns the tensors kept for the backward pass, as block and length, in
/// the order of their allocation.
fn forward(script: &mut Script) -> Vec<(u32, u64)> {
    let mut kept = Vec::new();
    let mut make = |script: &mut Script, made: &Made| {
        let scratch = (made.scratch > 0).then(|| script.allocate(made.scratch * FLOAT_BYTES));
        kept.push((script.allocate(made.kept * FLOAT_BYTES), made.kept));
        scratch.into_iter().for_each(|block| script.free(block));
    };
    make(script, &Made { kept: B * T * C, scratch: T * C });
    for _ in 0..LAYERS {
        LAYER.iter().for_each(|made| make(script, made));
    }
    make(script, &Made { kept: B * T * C, scratch: 0 });
    make(script, &Made { kept: 2 * B * T, scratch: 0 });
    make(script, &Made { kept: B * T * V, scratch: 0 });
    make(script, &Made { kept: B * T, scratch: B * T * V });
    make(script, &Made { kept: 1, scratch: 0 });
    kept
}

/// Walks back through the activations: each gradient replaces the gradient of the next activation.
/// The weights get their gradients on the way, spread evenly. Returns the gradients of the weights.
fn backward(script: &mut Script, weights: &[u64], kept: Vec<(u32, u64)>) -> Vec<u32> {
    let mut gradients = Vec::new();
    let mut weights = weights.iter().rev();
    let mut incoming = script.allocate(FLOAT_BYTES);
    for (block, len) in kept.into_iter().rev() {
        let outgoing = script.allocate(len * FLOAT_BYTES);
        script.free(incoming);
        script.free(block);
        incoming = outgoing;
        gradients.extend(weights.next().map(|len| script.allocate(len * FLOAT_BYTES)));
    }
    gradients.extend(weights.map(|len| script.allocate(len * FLOAT_BYTES)));
    script.free(incoming);
    gradients
}

/// Takes the norm of all gradients, then two scratch blocks for each weight.
fn adamw(script: &mut Script, weights: &[u64], gradients: &[u32]) {
    let norms: Vec<u32> = gradients.iter().map(|_| script.allocate(FLOAT_BYTES)).collect();
    let total = script.allocate(FLOAT_BYTES);
    norms.into_iter().for_each(|block| script.free(block));
    for &len in weights {
        let [square, denominator] = [(); 2].map(|()| script.allocate(len * FLOAT_BYTES));
        script.free(square);
        script.free(denominator);
    }
    script.free(total);
}
