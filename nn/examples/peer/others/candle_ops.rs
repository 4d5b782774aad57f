//! The single operations of `cases.rs` in candle.
//!
//! candle has no functions for gradients. The gradient of a single operation is timed as the calls
//! in candle's `backprop.rs`. Layer norm and attention consist of several operations; for them
//! `backward` of a loss with the gradient `dy` is timed. This includes adding `dy` to zeros, which
//! candle does for each operation of the graph.
//!
//! candle's gradient of max pooling is a quarter of the correct one, and so is its "loss": each dy
//! is multiplied with the mean of the window's mask. The work is the same.

mod harness;

use candle_core::{
    CpuStorage, CustomOp1, D, DType, Device::Cpu, Layout, Result, Shape, Tensor, Var,
};
use candle_nn::ops;

use harness::{Part, Session, uniform};

fn main() -> Result<()> {
    // Products use AVX-512 if `gemm` is configured so, as it is here.
    let session = Session::from_arguments("candle-avx512");
    match session.part() {
        Part::Conv | Part::ConvToInput | Part::ConvToWeight => conv(&session),
        Part::MaxPool | Part::MaxPoolBackward => max_pool(&session),
        Part::LayerNorm => layer_norm(&session),
        Part::LayerNormBackward => layer_norm_backward(&session),
        Part::Gelu | Part::GeluBackward => gelu(&session),
        Part::Attention => attention(&session),
        Part::AttentionBackward => attention_backward(&session),
    }
}

fn conv(session: &Session) -> Result<()> {
    let [batch, inputs, side, outputs] = session.sizes();
    let x = tensor(1, &[batch, inputs, side, side])?;
    let w = tensor(2, &[outputs, inputs, 3, 3])?;
    let dy = tensor(3, &[batch, outputs, side, side])?;
    match session.part() {
        Part::Conv => session.measure(|| x.conv2d(&w, 1, 1, 1, 1), values),
        Part::ConvToInput => session.measure(|| dy.conv_transpose2d(&w, 1, 0, 1, 1), values),
        _ => {
            let run = || {
                let dw = x.transpose(0, 1)?.conv2d(&dy.transpose(0, 1)?, 1, 1, 1, 1)?;
                dw.transpose(0, 1)
            };
            session.measure(run, values)
        }
    }
}

/// The gradient compares x with the maxima, since candle keeps no indices.
fn max_pool(session: &Session) -> Result<()> {
    let [batch, channels, side] = session.sizes();
    let x = tensor(1, &[batch, channels, side, side])?;
    let dy = tensor(2, &[batch, channels, side / 2, side / 2])?;
    let y = x.max_pool2d(2)?;
    match session.part() {
        Part::MaxPool => session.measure(|| x.max_pool2d(2), values),
        _ => {
            let run = || {
                let mask = x.eq(&y.upsample_nearest2d(side, side)?)?.to_dtype(DType::F32)?;
                let share = mask.avg_pool2d(2)?;
                (&dy * share)?.upsample_nearest2d(side, side)? * mask
            };
            session.measure(run, values)
        }
    }
}

const EPS: f32 = 1e-5;

fn layer_norm(session: &Session) -> Result<()> {
    let [rows, columns] = session.sizes();
    let x = tensor(1, &[rows, columns])?;
    let (w, b) = (tensor(3, &[columns])?, tensor(4, &[columns])?);
    session.measure(|| ops::layer_norm(&x, &w, &b, EPS), values)
}

/// dx, dw and db, of the layer norm made of many operations: the fused one has no gradient.
fn layer_norm_backward(session: &Session) -> Result<()> {
    let [rows, columns] = session.sizes();
    let (x, dy) = (variable(1, &[rows, columns])?, tensor(2, &[rows, columns])?);
    let (w, b) = (variable(3, &[columns])?, variable(4, &[columns])?);
    time_backward(session, &x, &dy, || ops::layer_norm_slow(&x, &w, &b, EPS))
}

fn gelu(session: &Session) -> Result<()> {
    let dims: [usize; 2] = session.sizes();
    let (x, dy) = (tensor(1, &dims)?, tensor(2, &dims)?);
    match session.part() {
        Part::Gelu => session.measure(|| x.gelu_erf(), values),
        _ => {
            let run = || {
                let density = (0.398942 * (x.sqr()?.neg()? / 2.)?.exp()? * &x)?;
                let half_erf = (0.5 * (&x / 2f64.sqrt())?.erf()?)?;
                &dy * ((0.5 + density)? + half_erf)?
            };
            session.measure(run, values)
        }
    }
}

/// Attention written as operations: `flash_attn` took three times as long.
fn attention(session: &Session) -> Result<()> {
    let dims: [usize; 4] = session.sizes();
    let (q, k, v) = (tensor(1, &dims)?, tensor(2, &dims)?, tensor(3, &dims)?);
    let mask = causal(dims[2])?;
    let run = || ops::softmax_last_dim(&scores(&q, &k, &mask)?)?.matmul(&v);
    session.measure(run, values)
}

/// dq, dk and dv. `softmax_last_dim` has no gradient.
fn attention_backward(session: &Session) -> Result<()> {
    let dims: [usize; 4] = session.sizes();
    let (q, k, v) = (variable(1, &dims)?, variable(2, &dims)?, variable(3, &dims)?);
    let (dy, mask) = (tensor(4, &dims)?, causal(dims[2])?);
    time_backward(session, &q, &dy, || ops::softmax(&scores(&q, &k, &mask)?, D::Minus1)?.matmul(&v))
}

/// Scores, with -∞ for keys after the query.
fn scores(q: &Tensor, k: &Tensor, mask: &Tensor) -> Result<Tensor> {
    let scale = 1.0 / (q.dim(D::Minus1)? as f64).sqrt();
    (q * scale)?.matmul(&k.t()?)?.broadcast_add(mask)
}

/// -∞ above the diagonal, 0 elsewhere: `[T, T]`.
fn causal(time: usize) -> Result<Tensor> {
    let mask =
        (0..time * time).map(|at| if at % time > at / time { f32::NEG_INFINITY } else { 0. });
    Tensor::from_vec(mask.collect(), (time, time), &Cpu)
}

/// The gradient of `leaf` counts as the first result.
fn time_backward(
    session: &Session,
    leaf: &Tensor,
    dy: &Tensor,
    y: impl Fn() -> Result<Tensor>,
) -> Result<()> {
    session.measure_backward(
        || y()?.apply_op1(Loss { dy: dy.clone() }),
        |loss| loss.backward(),
        |gradients| values(gradients.get(leaf).expect("the leaf is a variable").clone()),
    )
}

/// A scalar whose gradient is `dy`. Nothing reads its value, which is 0.
struct Loss {
    dy: Tensor,
}

impl CustomOp1 for Loss {
    fn name(&self) -> &'static str {
        "loss"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F32(vec![0.0]), Shape::from(())))
    }

    fn bwd(&self, _y: &Tensor, _loss: &Tensor, _ones: &Tensor) -> Result<Option<Tensor>> {
        Ok(Some(self.dy.clone()))
    }
}

fn tensor(stream: u64, dims: &[usize]) -> Result<Tensor> {
    Tensor::from_vec(uniform(stream, dims.iter().product(), 1.0), dims, &Cpu)
}

fn variable(stream: u64, dims: &[usize]) -> Result<Tensor> {
    Ok(Var::from_tensor(&tensor(stream, dims)?)?.into_inner())
}

fn values(y: Tensor) -> Result<Vec<f32>> {
    y.flatten_all()?.to_vec1()
}
