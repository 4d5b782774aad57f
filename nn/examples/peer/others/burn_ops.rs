//! The single operations of `cases.rs` in burn, over its flex backend.
//!
//! burn has a function for each forward operation and for the gradients of convolution, pooling and
//! GELU; its autodiff calls these functions, two of which are only in the backend. For layer norm
//! and attention, autodiff computes the gradients from many operations. Here `backward` of `y * dy`
//! is timed, which includes a tensor of ones of y's size and its product with dy.

mod harness;

use std::convert::Infallible;

use burn::tensor::activation::{gelu, softmax};
use burn::tensor::module::{
    attention, conv2d, conv2d_weight_backward, layer_norm, max_pool2d_with_indices,
    max_pool2d_with_indices_backward,
};
use burn::tensor::ops::{AttentionModuleOptions, ConvOptions, MaxPoolOptions};
use burn::tensor::{Bool, Device, Tensor, TensorData};
use burn_backend::ops::{ActivationOps, ModuleOps};
use burn_flex::{Flex, FlexTensor};

use harness::{Part, Session, uniform};

fn main() {
    // Products use AVX-512 if the feature `x86-v4` is on, as it is here.
    let session = Session::from_arguments("burn-flex-avx512");
    match session.part() {
        Part::Conv | Part::ConvToInput | Part::ConvToWeight => conv(&session),
        Part::MaxPool | Part::MaxPoolBackward => max_pool(&session),
        Part::LayerNorm => norm(&session),
        Part::LayerNormBackward => norm_backward(&session),
        Part::Gelu | Part::GeluBackward => activation(&session),
        Part::Attention => attend(&session),
        Part::AttentionBackward => attend_backward(&session),
    }
}

fn conv(session: &Session) {
    let [batch, inputs, side, outputs] = session.sizes();
    let x = data(1, [batch, inputs, side, side]);
    let w = data(2, [outputs, inputs, 3, 3]);
    let dy = data(3, [batch, outputs, side, side]);
    let options = || ConvOptions::new([1, 1], [1, 1], [1, 1], 1);
    match session.part() {
        Part::Conv => {
            let (x, w) = (tensor(x), tensor(w));
            time(session, || conv2d(x.clone(), w.clone(), None, options()));
        }
        Part::ConvToInput => {
            let [x, w, dy] = [x, w, dy].map(FlexTensor::from_data);
            time_in_flex(session, || {
                Flex::conv2d_x_backward(x.clone(), w.clone(), dy.clone(), options())
            });
        }
        _ => {
            let [x, w, dy] = [x, w, dy].map(tensor);
            time(session, || conv2d_weight_backward(x.clone(), w.clone(), dy.clone(), options()));
        }
    }
}

fn max_pool(session: &Session) {
    let [batch, channels, side] = session.sizes();
    let x = tensor::<4>(data(1, [batch, channels, side, side]));
    let dy = tensor::<4>(data(2, [batch, channels, side / 2, side / 2]));
    // Computes the indices too, as in training.
    let forward = || max_pool2d_with_indices(x.clone(), MaxPoolOptions::new([2, 2]));
    let (_, indices) = forward();
    match session.part() {
        Part::MaxPool => time(session, || forward().0),
        _ => time(session, || {
            let (x, dy, indices) = (x.clone(), dy.clone(), indices.clone());
            max_pool2d_with_indices_backward(x, [2, 2], [2, 2], [0, 0], [1, 1], false, dy, indices)
        }),
    }
}

const EPS: f64 = 1e-5;

fn norm(session: &Session) {
    let [rows, columns] = session.sizes();
    let x = tensor::<2>(data(1, [rows, columns]));
    let (gamma, beta) = (tensor::<1>(data(3, [columns])), tensor::<1>(data(4, [columns])));
    time(session, || layer_norm(x.clone(), gamma.clone(), Some(beta.clone()), EPS));
}

/// dx, and the gradients of gamma and beta.
fn norm_backward(session: &Session) {
    let [rows, columns] = session.sizes();
    let x = leaf::<2>(data(1, [rows, columns]));
    let dy = constant::<2>(data(2, [rows, columns]));
    let (gamma, beta) = (leaf::<1>(data(3, [columns])), leaf::<1>(data(4, [columns])));
    time_backward(session, &x, || {
        layer_norm(x.clone(), gamma.clone(), Some(beta.clone()), EPS) * dy.clone()
    });
}

fn activation(session: &Session) {
    let dims = session.sizes::<2>();
    match session.part() {
        Part::Gelu => {
            let x = tensor::<2>(data(1, dims));
            time(session, || gelu(x.clone()));
        }
        _ => {
            let [x, dy] = [data(1, dims), data(2, dims)].map(FlexTensor::from_data);
            time_in_flex(session, || Flex::gelu_backward(x.clone(), dy.clone()));
        }
    }
}

fn attend(session: &Session) {
    let [q, k, v] = [1, 2, 3].map(|stream| tensor(data::<4>(stream, session.sizes())));
    let causal = AttentionModuleOptions { is_causal: true, ..Default::default() };
    time(session, || attention(q.clone(), k.clone(), v.clone(), None, None, causal));
}

/// dq, dk and dv of attention written as operations. Under autodiff, `attention` consists of more
/// operations, and its gradients took a fifth longer.
fn attend_backward(session: &Session) {
    let dims @ [batch, heads, time, width] = session.sizes();
    let [q, k, v] = [1, 2, 3].map(|stream| leaf(data::<4>(stream, dims)));
    let dy = constant(data::<4>(4, dims));
    let future = Tensor::<2, Bool>::tril_mask([time, time], 0, &Device::flex().autodiff());
    let future = future.unsqueeze::<4>().expand([batch, heads, time, time]);
    time_backward(session, &q, || {
        let scaled = q.clone() / (width as f64).sqrt();
        let scores = scaled.matmul(k.clone().swap_dims(2, 3));
        let scores = scores.mask_fill(future.clone(), f32::NEG_INFINITY);
        softmax(scores, 3).matmul(v.clone()) * dy.clone()
    });
}

fn data<const N: usize>(stream: u64, dims: [usize; N]) -> TensorData {
    TensorData::new(uniform(stream, dims.iter().product(), 1.0), dims)
}

fn tensor<const N: usize>(data: TensorData) -> Tensor<N> {
    Tensor::from_data(data, &Device::flex())
}

fn constant<const N: usize>(data: TensorData) -> Tensor<N> {
    Tensor::from_data(data, &Device::flex().autodiff())
}

fn leaf<const N: usize>(data: TensorData) -> Tensor<N> {
    constant(data).require_grad()
}

/// flex computes synchronously, so nothing has to be waited for.
fn time<const N: usize>(session: &Session, mut run: impl FnMut() -> Tensor<N>) {
    let Ok(()) = session.measure(|| Ok::<_, Infallible>(run()), |y| Ok(values(y.into_data())));
}

fn time_in_flex(session: &Session, mut run: impl FnMut() -> FlexTensor) {
    let Ok(()) = session.measure(|| Ok::<_, Infallible>(run()), |y| Ok(values(y.into_data())));
}

/// The gradient of `leaf` counts as the first result.
fn time_backward<const M: usize, const N: usize>(
    session: &Session,
    leaf: &Tensor<M>,
    mut forward: impl FnMut() -> Tensor<N>,
) {
    let Ok(()) = session.measure_backward(
        || Ok::<_, Infallible>(forward()),
        |loss| Ok(loss.backward()),
        |gradients| {
            let first = leaf.grad(&gradients).expect("the leaf requires its gradient");
            Ok(values(first.into_data()))
        },
    );
}

fn values(data: TensorData) -> Vec<f32> {
    data.try_into_vec().expect("all are f32")
}
