//! The operations of the sweep, in lowtide.

use lowtide_tensor::{
    AttentionOptions, Causal, Conv2dGeometry, ConvTranspose2dGeometry, DType, Device,
    Pool2dGeometry, Statistics, Tensor, TensorResult as Result,
};

use super::{Line, Run};
use crate::measure::{integers, uniform};

const EPS: f64 = 1e-5;

impl Line<'_> {
    /// The parts of the operation that are measured.
    pub(super) fn parts(&self) -> &'static [&'static str] {
        match self.operation {
            // Inputs that are images or tokens need no gradient.
            "conv" if self.size("c") == 3 => &["forward", "to-weight"],
            "conv" | "conv-transpose" | "linear" => &["forward", "to-input", "to-weight"],
            "add" => &["forward"],
            _ => &["forward", "backward"],
        }
    }

    /// Fills the operands of a part from streams 1, 2, 3, ... and returns the part as a function.
    pub(super) fn prepare(&self, part: &str, device: &Device, dtype: DType) -> Result<Run> {
        let fill = |stream: u64, dims: &[usize]| {
            let numbers = uniform(stream, dims.iter().product(), 1.0);
            Tensor::from_slice(device, dims, &numbers)?.to_dtype(dtype)
        };
        match self.operation {
            "conv" | "conv-transpose" => self.convolution(part, &fill),
            "linear" => self.linear(part, &fill),
            "attention" => self.attention(part, &fill),
            "cross-entropy" => self.cross_entropy(part, &fill),
            "layer-norm" | "rms-norm" | "softmax" | "gelu" => self.of_rows(part, &fill),
            "batch-norm" | "relu" | "add" | "max-pool" => self.of_images(part, &fill),
            other => panic!("no operation is called {other}"),
        }
    }

    /// A size for height and width. For a sequence, the height is `one`.
    fn pair(&self, name: &str, one: usize) -> [usize; 2] {
        let size = self.size(name);
        if self.size("h") == 1 { [one, size] } else { [size, size] }
    }

    fn image(&self) -> [usize; 4] {
        ["n", "c", "h", "w"].map(|name| self.size(name))
    }

    fn convolution(
        &self,
        part: &str,
        fill: &dyn Fn(u64, &[usize]) -> Result<Tensor>,
    ) -> Result<Run> {
        let (stride, padding, dilation) = (self.pair("s", 1), self.pair("p", 0), self.pair("d", 1));
        let ([kh, kw], groups, x_dims) = (self.pair("k", 1), self.size("g"), self.image());
        let (ins, outs) = (x_dims[1], self.size("o"));
        let x = fill(1, &x_dims)?;
        if self.operation == "conv" {
            let geometry = Conv2dGeometry { stride, padding, dilation, groups };
            let w = fill(2, &[outs, ins / groups, kh, kw])?;
            let dy = fill(3, x.conv2d(&w, None, geometry)?.shape())?;
            let [x_shape, w_shape] = [*x.shape(), *w.shape()];
            return Ok(match part {
                "forward" => Box::new(move || x.conv2d(&w, None, geometry)),
                "to-input" => Box::new(move || dy.conv2d_backward_input(&w, x_shape, geometry)),
                _ => Box::new(move || dy.conv2d_backward_weight(&x, w_shape, geometry)),
            });
        }
        let geometry =
            ConvTranspose2dGeometry { stride, padding, output_padding: [0, 0], dilation, groups };
        let w = fill(2, &[ins, outs / groups, kh, kw])?;
        let dy = fill(3, x.conv_transpose2d(&w, None, geometry)?.shape())?;
        let [x_shape, w_shape] = [*x.shape(), *w.shape()];
        Ok(match part {
            "forward" => Box::new(move || x.conv_transpose2d(&w, None, geometry)),
            "to-input" => {
                Box::new(move || dy.conv_transpose2d_backward_input(&w, x_shape, geometry))
            }
            _ => Box::new(move || dy.conv_transpose2d_backward_weight(&x, w_shape, geometry)),
        })
    }

    fn linear(&self, part: &str, fill: &dyn Fn(u64, &[usize]) -> Result<Tensor>) -> Result<Run> {
        let [m, k, n] = ["m", "k", "n"].map(|name| self.size(name));
        let (x, w, dy) = (fill(1, &[m, k])?, fill(2, &[n, k])?, fill(3, &[m, n])?);
        Ok(match part {
            "forward" => Box::new(move || x.linear(&w, None)),
            "to-input" => Box::new(move || dy.matmul(&w)),
            _ => Box::new(move || dy.transpose(0, 1)?.matmul(&x)),
        })
    }

    fn attention(&self, part: &str, fill: &dyn Fn(u64, &[usize]) -> Result<Tensor>) -> Result<Run> {
        let dims = ["n", "heads", "t", "d"].map(|name| self.size(name));
        let [q, k, v, dy] = [1, 2, 3, 4].map(|stream| fill(stream, &dims));
        let (q, k, v, dy) = (q?, k?, v?, dy?);
        let causal = if self.size("causal") == 1 { Causal::UpperLeft } else { Causal::No };
        let options = AttentionOptions { causal, ..Default::default() };
        let found = q.attention(&k, &v, None, &options)?;
        Ok(match part {
            "forward" => Box::new(move || Ok(q.attention(&k, &v, None, &options)?.y)),
            _ => Box::new(move || {
                let [dq, ..] = dy.attention_backward([&q, &k, &v], None, &found, &options)?;
                Ok(dq)
            }),
        })
    }

    fn cross_entropy(
        &self,
        part: &str,
        fill: &dyn Fn(u64, &[usize]) -> Result<Tensor>,
    ) -> Result<Run> {
        let [rows, columns] = ["rows", "columns"].map(|name| self.size(name));
        let x = fill(1, &[rows, columns])?;
        let labels = integers(2, rows, columns as u32);
        let labels = Tensor::from_slice(x.device(), [rows], &labels)?;
        let found = x.cross_entropy(&labels, -100)?;
        let dy = Tensor::ones(x.device(), *found.sum.shape(), found.sum.dtype())?;
        Ok(match part {
            "forward" => Box::new(move || Ok(x.cross_entropy(&labels, -100)?.sum)),
            _ => Box::new(move || dy.cross_entropy_backward(&x, &labels, &found.log_sum_exp, -100)),
        })
    }

    fn of_rows(&self, part: &str, fill: &dyn Fn(u64, &[usize]) -> Result<Tensor>) -> Result<Run> {
        let dims = ["rows", "columns"].map(|name| self.size(name));
        let (x, dy) = (fill(1, &dims)?, fill(2, &dims)?);
        let (weight, bias) = (fill(3, &dims[1..])?, fill(4, &dims[1..])?);
        let forward = part == "forward";
        Ok(match self.operation {
            "layer-norm" => {
                let found = x.layer_norm(1, Some(&weight), Some(&bias), EPS)?;
                let mean = found.mean.expect("a layer norm has means");
                if forward {
                    Box::new(move || Ok(x.layer_norm(1, Some(&weight), Some(&bias), EPS)?.y))
                } else {
                    Box::new(move || {
                        Ok(dy.layer_norm_backward(&x, &mean, &found.rstd, Some(&weight))?.dx)
                    })
                }
            }
            "rms-norm" => {
                let found = x.rms_norm(1, Some(&weight), EPS)?;
                if forward {
                    Box::new(move || Ok(x.rms_norm(1, Some(&weight), EPS)?.y))
                } else {
                    Box::new(move || Ok(dy.rms_norm_backward(&x, &found.rstd, Some(&weight))?.dx))
                }
            }
            "softmax" => {
                let y = x.softmax(1)?;
                if forward {
                    Box::new(move || x.softmax(1))
                } else {
                    Box::new(move || dy.softmax_backward(&y, 1))
                }
            }
            _ => {
                if forward {
                    Box::new(move || x.gelu())
                } else {
                    Box::new(move || dy.gelu_backward(&x))
                }
            }
        })
    }

    fn of_images(&self, part: &str, fill: &dyn Fn(u64, &[usize]) -> Result<Tensor>) -> Result<Run> {
        let dims = self.image();
        let (x, dy) = (fill(1, &dims)?, fill(2, &dims)?);
        let forward = part == "forward";
        Ok(match self.operation {
            "add" => Box::new(move || x.add(&dy)),
            "relu" => {
                let y = x.relu()?;
                if forward {
                    Box::new(move || x.relu())
                } else {
                    Box::new(move || dy.relu_backward(&y))
                }
            }
            "batch-norm" => {
                let (weight, bias) = (fill(3, &dims[1..2])?, fill(4, &dims[1..2])?);
                let found = x.batch_norm(Some(&weight), Some(&bias), EPS)?;
                if forward {
                    Box::new(move || Ok(x.batch_norm(Some(&weight), Some(&bias), EPS)?.y))
                } else {
                    Box::new(move || {
                        let (mean, variance) = (&found.mean, &found.variance);
                        let statistics = Statistics::Batch;
                        let w = Some(&weight);
                        Ok(dy.batch_norm_backward(&x, mean, variance, w, statistics, EPS)?.dx)
                    })
                }
            }
            _ => {
                let [kernel, stride, padding] = ["k", "s", "p"].map(|name| self.pair(name, 1));
                let geometry = Pool2dGeometry { kernel, stride, padding };
                let (y, winners) = x.max_pool2d(geometry)?;
                let (dy, shape) = (fill(2, y.shape())?, *x.shape());
                if forward {
                    Box::new(move || Ok(x.max_pool2d(geometry)?.0))
                } else {
                    Box::new(move || dy.max_pool2d_backward(&winners, shape, geometry))
                }
            }
        })
    }
}
