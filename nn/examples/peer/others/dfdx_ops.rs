//! The single operations of `cases.rs` in dfdx.
//!
//! dfdx computes gradients only from its tape. Here `backward` of a loss with the gradient dy is
//! timed, which includes a copy of dy to the tape. Shapes are types, so sizes are constants.
//!
//! dfdx's gradient of GELU is wrong, and so is its "loss": the formula has 1/√π instead of 1/√(2π).
//! The work is the same.

mod harness;

use std::convert::Infallible;

use dfdx::prelude::*;

use harness::cases::{HEADS, ROWS, WIDE_ROWS};
use harness::{Part, Session, uniform};

const N: usize = ROWS[0];
const C: usize = ROWS[1];
const B: usize = HEADS[0];
const H: usize = HEADS[1];
const T: usize = HEADS[2];
const HEAD: usize = HEADS[3];

type Rows = Rank2<N, C>;
type WideRows = Rank2<{ WIDE_ROWS[0] }, { WIDE_ROWS[1] }>;
type Heads = Rank4<B, H, T, HEAD>;

type Leaf<S> = Tensor<S, f32, Cpu>;
type Traced<S> = Tensor<S, f32, Cpu, OwnedTape<f32, Cpu>>;

fn main() {
    let session = Session::from_arguments("dfdx");
    let device = Cpu::default();
    match session.part() {
        Part::Conv | Part::ConvToInput | Part::ConvToWeight => {
            session.unsupported("convolution needs nightly Rust");
        }
        Part::MaxPool | Part::MaxPoolBackward => {
            session.unsupported("pooling needs nightly Rust");
        }
        Part::LayerNorm | Part::LayerNormBackward => layer_norm(&session, &device),
        Part::Gelu | Part::GeluBackward => gelu(&session, &device),
        Part::Attention | Part::AttentionBackward => attention(&session, &device),
    }
}

fn layer_norm(session: &Session, device: &Cpu) {
    assert_eq!(session.sizes(), [N, C], "the sizes of the type");
    let (x, dy) = (tensor::<Rows>(1, device), tensor::<Rows>(2, device));
    let layer =
        modules::LayerNorm1D { gamma: tensor(3, device), beta: tensor(4, device), epsilon: 1e-5 };
    match session.part() {
        Part::LayerNorm => time(session, || layer.forward(x.clone())),
        // dx, and the gradients of gamma and beta.
        _ => time_backward(session, &x, &dy, || layer.forward(x.leaky_trace())),
    }
}

fn gelu(session: &Session, device: &Cpu) {
    assert_eq!(session.sizes(), WideRows::default().concrete(), "the sizes of the type");
    let (x, dy) = (tensor::<WideRows>(1, device), tensor::<WideRows>(2, device));
    match session.part() {
        Part::Gelu => time(session, || x.clone().accurate_gelu()),
        _ => time_backward(session, &x, &dy, || x.leaky_trace().accurate_gelu()),
    }
}

fn attention(session: &Session, device: &Cpu) {
    assert_eq!(session.sizes(), [B, H, T, HEAD], "the sizes of the type");
    let [q, k, v, dy] = [1, 2, 3, 4].map(|stream| tensor::<Heads>(stream, device));
    let mask = (0..T * T).map(|at| if at % T > at / T { f32::NEG_INFINITY } else { 0.0 });
    let mask: Leaf<Rank2<T, T>> = device.tensor(mask.collect::<Vec<_>>());
    match session.part() {
        Part::Attention => {
            time(session, || attend(q.clone(), k.clone(), v.clone(), &mask));
        }
        // dq, dk and dv.
        _ => time_backward(session, &q, &dy, || {
            attend(q.leaky_trace(), k.leaky_trace(), v.leaky_trace(), &mask)
        }),
    }
}

fn attend<G: Tape<f32, Cpu> + Merge<G>>(
    q: Tensor<Heads, f32, Cpu, G>,
    k: Tensor<Heads, f32, Cpu, G>,
    v: Tensor<Heads, f32, Cpu, G>,
    mask: &Leaf<Rank2<T, T>>,
) -> Tensor<Heads, f32, Cpu, G> {
    let k = k.permute::<Rank4<B, H, HEAD, T>, Axes4<0, 1, 3, 2>>();
    let scores = (q / (HEAD as f32).sqrt()).matmul(k);
    let scores = scores + mask.clone().broadcast::<Rank4<B, H, T, T>, _>();
    scores.softmax::<Axis<3>>().matmul(v)
}

fn tensor<S: ConstShape>(stream: u64, device: &Cpu) -> Leaf<S> {
    device.tensor(uniform(stream, S::NUMEL, 1.0))
}

fn time<S: ConstShape>(session: &Session, mut run: impl FnMut() -> Leaf<S>) {
    let Ok(()) = session.measure(|| Ok::<_, Infallible>(run()), |y| Ok(y.as_vec()));
}

/// The gradient of `leaf` counts as the first result.
fn time_backward<S: ConstShape>(
    session: &Session,
    leaf: &Leaf<S>,
    dy: &Leaf<S>,
    forward: impl Fn() -> Traced<S>,
) {
    let dy = dy.as_vec();
    let Ok(()) = session.measure_backward(
        || Ok::<_, Infallible>(Some(loss(forward(), dy.clone()))),
        |graph| Ok(graph.take().expect("each step has its graph").backward()),
        |gradients| Ok(gradients.get(leaf).as_vec()),
    );
}

/// A scalar whose gradient is `dy`. Nothing reads its value, which is 0.
fn loss<S: ConstShape>(y: Traced<S>, dy: Vec<f32>) -> Traced<Rank0> {
    let (y, mut tape) = y.split_tape();
    let loss = y.device().zeros::<Rank0>();
    tape.add_backward_op(move |gradients| {
        gradients.get_or_alloc_mut(&y)?.copy_from_slice(&dy);
        Ok(())
    });
    loss.put_tape(tape)
}
