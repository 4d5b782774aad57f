//! The single operations of `cases.rs` in lowtide.

use lowtide_tensor::{
    AttentionOptions, Causal, Conv2dGeometry, Device, Pool2dGeometry, Tensor,
    TensorResult as Result,
};

use crate::cases::{Op, Part, find};
use crate::measure::{measure, uniform};

/// Runs an operation once more.
type Run = Box<dyn FnMut() -> Result<Tensor>>;

/// Measures the operation `name`; false if there is no such operation.
pub(crate) fn measure_op(device: &Device, name: &str, threads: usize) -> Result<bool> {
    let Some(op) = find(name) else { return Ok(false) };
    let mut run = op.prepare(device)?;
    let first = run()?.abs()?;
    let magnitude = first.sum_all()?.item::<f32>()? / first.element_count() as f32;
    measure(crate::PEER, &op.workload, threads, || run().map(|_| magnitude))?;
    Ok(true)
}

impl Op {
    /// Fills the operands from streams 1, 2 and 3, and returns the operation on them.
    fn prepare(&self, device: &Device) -> Result<Run> {
        let fill = |stream: u64, dims: &[usize]| {
            Tensor::from_slice(device, dims, &uniform(stream, dims.iter().product(), 1.0))
        };
        const EPS: f64 = 1e-5;
        let dims = self.dims;
        Ok(match self.part {
            Part::Conv | Part::ConvToInput | Part::ConvToWeight => {
                let [batch, inputs, side, outputs] = *dims else { unreachable!("four sizes") };
                let geometry = Conv2dGeometry { padding: [1, 1], ..Default::default() };
                let x = fill(1, &[batch, inputs, side, side])?;
                let w = fill(2, &[outputs, inputs, 3, 3])?;
                let dy = fill(3, &[batch, outputs, side, side])?;
                let [x_shape, w_shape] = [*x.shape(), *w.shape()];
                match self.part {
                    Part::Conv => Box::new(move || x.conv2d(&w, None, geometry)),
                    Part::ConvToInput => {
                        Box::new(move || dy.conv2d_backward_input(&w, x_shape, geometry))
                    }
                    _ => Box::new(move || dy.conv2d_backward_weight(&x, w_shape, geometry)),
                }
            }
            Part::MaxPool | Part::MaxPoolBackward => {
                let [batch, channels, side] = *dims else { unreachable!("three sizes") };
                let x = fill(1, &[batch, channels, side, side])?;
                let dy = fill(2, &[batch, channels, side / 2, side / 2])?;
                let geometry = Pool2dGeometry::square(2);
                let (winners, shape) = (x.max_pool2d(geometry)?.1, *x.shape());
                match self.part {
                    Part::MaxPool => Box::new(move || Ok(x.max_pool2d(geometry)?.0)),
                    _ => Box::new(move || dy.max_pool2d_backward(&winners, shape, geometry)),
                }
            }
            Part::LayerNorm | Part::LayerNormBackward => {
                let (x, dy) = (fill(1, dims)?, fill(2, dims)?);
                let (weight, bias) = (fill(3, &dims[1..])?, fill(4, &dims[1..])?);
                let found = x.layer_norm(1, Some(&weight), Some(&bias), EPS)?;
                match self.part {
                    Part::LayerNorm => {
                        Box::new(move || Ok(x.layer_norm(1, Some(&weight), Some(&bias), EPS)?.y))
                    }
                    _ => Box::new(move || {
                        let mean = found.mean.as_ref().expect("a layer norm has means");
                        Ok(dy.layer_norm_backward(&x, mean, &found.rstd, Some(&weight))?.dx)
                    }),
                }
            }
            Part::Gelu | Part::GeluBackward => {
                let (x, dy) = (fill(1, dims)?, fill(2, dims)?);
                match self.part {
                    Part::Gelu => Box::new(move || x.gelu()),
                    _ => Box::new(move || dy.gelu_backward(&x)),
                }
            }
            Part::Attention | Part::AttentionBackward => {
                let [q, k] = [fill(1, dims)?, fill(2, dims)?];
                let [v, dy] = [fill(3, dims)?, fill(4, dims)?];
                let options = AttentionOptions { causal: Causal::UpperLeft, ..Default::default() };
                let found = q.attention(&k, &v, None, &options)?;
                match self.part {
                    Part::Attention => Box::new(move || Ok(q.attention(&k, &v, None, &options)?.y)),
                    _ => Box::new(move || {
                        let [dq, ..] =
                            dy.attention_backward([&q, &k, &v], None, &found, &options)?;
                        Ok(dq)
                    }),
                }
            }
        })
    }
}
