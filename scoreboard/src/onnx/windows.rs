//! Convolutions and pooling. The input is padded first if the padding differs between the sides, or
//! if lowtide's own pooling does not take the padding.

use lowtide_autograd::Var;
use lowtide_nn::{ConvTranspose3dGeometry, conv_transpose3d};
use lowtide_tensor::{
    AvgPool, Conv1dGeometry, Conv2dGeometry, ConvTranspose1dGeometry, ConvTranspose2dGeometry,
    DType, Divisor, MaxPool, PadMode, Pool2dGeometry, SizeRounding, Tensor,
};

use super::Family;
use super::node::NodeCall;
use super::views::padded;
use crate::call::{Output, Result, one};

pub(super) const OPS: Family = &[
    ("AveragePool", average_pool),
    ("CausalConvWithState", |node| {
        let (x, w, b) = (node.var(0)?, node.var(1)?, node.optional_var(2));
        let (channels, kept) = (w.shape()[0], w.shape()[2].saturating_sub(1));
        let x = match node.optional_var(3) {
            Some(past) => Var::cat(vec![past, x], 2)?,
            None => x.pad(&[[0, 0], [0, 0], [kept, 0]], PadMode::Constant(0.0))?,
        };
        let geometry = Conv1dGeometry { stride: 1, padding: 0, dilation: 1, groups: channels };
        let y = x.clone().conv1d(w, b, geometry)?;
        let y = match node.text("activation")?.unwrap_or("none") {
            "none" => y,
            "silu" | "swish" => y.silu()?,
            other => return node.no_form(&format!("activation = {other}")),
        };
        let len = x.shape()[2];
        Ok(vec![y.into(), x.narrow(2, len - kept, kept)?.into()])
    }),
    ("Conv", |node| {
        let (x, w, b) = (node.var(0)?, node.var(1)?, node.optional_var(2));
        let window = Window::of(node, &x, Some(&w))?;
        let groups = node.attribute_count("group")?.unwrap_or(1);
        let (x, padding) = window.even(x, PadMode::Constant(0.0), |_| true)?;
        match (&window.stride[..], &window.dilation[..], &padding[..]) {
            (&[stride], &[dilation], &[padding]) => {
                one(x.conv1d(w, b, Conv1dGeometry { stride, padding, dilation, groups })?)
            }
            (&[s0, s1], &[d0, d1], &[p0, p1]) => {
                let (stride, dilation, padding) = ([s0, s1], [d0, d1], [p0, p1]);
                one(x.conv2d(w, b, Conv2dGeometry { stride, padding, dilation, groups })?)
            }
            _ => node.no_form("volumes"),
        }
    }),
    ("ConvTranspose", conv_transpose),
    ("GlobalAveragePool", |node| {
        let x = node.var(0)?;
        let axes: Vec<usize> = (2..x.shape().len()).collect();
        one(x.mean_keep(&axes)?)
    }),
    ("GlobalMaxPool", |node| {
        let x = node.var(0)?;
        let axes: Vec<usize> = (2..x.shape().len()).collect();
        one(x.amax_keep(&axes)?)
    }),
    ("LpPool", |node| {
        let x = node.var(0)?;
        let order = node.attribute_number("p")?.unwrap_or(2.0);
        let window = Window::of(node, &x, None)?;
        let (y, axes) = window.spread(x, 0.0)?;
        one(y.norm(&axes, order)?)
    }),
    ("MaxPool", max_pool),
];

/// Windows over the dimensions after sample and channel.
struct Window {
    kernel: Vec<usize>,
    stride: Vec<usize>,
    dilation: Vec<usize>,
    /// Padding before and after each dimension.
    pads: Vec<[usize; 2]>,
    rounding: SizeRounding,
    /// Sizes of the input in these dimensions.
    lens: Vec<usize>,
}

impl Window {
    /// Reads a node's attributes for the input `x`, and for a convolution with the kernel `w`.
    fn of(node: &NodeCall<'_>, x: &Var, w: Option<&Var>) -> Result<Self> {
        let lens =
            x.shape().get(2..).ok_or_else(|| node.wrong("no dimensions of places"))?.to_vec();
        let count = lens.len();
        let all = |name, default: usize| {
            let values = node.attribute_counts(name)?.unwrap_or_else(|| vec![default; count]);
            if values.len() == count {
                Ok(values)
            } else {
                Err(node.wrong(&format!("{name} is not for {count} dimensions")))
            }
        };
        let kernel = match w {
            Some(w) => {
                // The kernel determines its shape.
                node.ignore(&["kernel_shape"]);
                w.shape().get(2..).unwrap_or_default().to_vec()
            }
            None => all("kernel_shape", 1)?,
        };
        let (stride, dilation) = (all("strides", 1)?, all("dilations", 1)?);
        let is_up = node.flag("ceil_mode")?.unwrap_or(false);
        let rounding = if is_up { SizeRounding::Up } else { SizeRounding::Down };
        let (pads, auto) = (node.attribute_counts("pads")?, node.text("auto_pad")?);
        let mut window = Window { kernel, stride, dilation, pads: Vec::new(), rounding, lens };
        if window.kernel.len() != count {
            return Err(node.wrong("the kernel has other dimensions"));
        }
        window.pads = match (auto.unwrap_or("NOTSET"), pads) {
            ("NOTSET", Some(pads)) if pads.len() == 2 * count => {
                (0..count).map(|axis| [pads[axis], pads[axis + count]]).collect()
            }
            ("NOTSET", None) | ("VALID", _) => vec![[0, 0]; count],
            ("SAME_UPPER", _) => (0..count).map(|axis| window.same(axis)).collect(),
            ("SAME_LOWER", _) => (0..count)
                .map(|axis| {
                    let [less, more] = window.same(axis);
                    [more, less]
                })
                .collect(),
            (other, _) => return Err(node.wrong(&format!("auto_pad = {other}"))),
        };
        Ok(window)
    }

    /// Number of places from the first to the last element of a window.
    fn reach(&self, axis: usize) -> usize {
        (self.kernel[axis].max(1) - 1) * self.dilation[axis] + 1
    }

    /// Padding that gives one window for each step in the input, with the smaller half first.
    fn same(&self, axis: usize) -> [usize; 2] {
        let (len, stride) = (self.lens[axis], self.stride[axis].max(1));
        let covered = (len.div_ceil(stride).max(1) - 1) * stride + self.reach(axis);
        let total = covered.saturating_sub(len);
        [total / 2, total - total / 2]
    }

    /// The input, and the padding on both sides that is left for the operation. If the padding
    /// differs between the sides, or is not `allowed` along a dimension, the input is padded here.
    fn even(
        &self,
        x: Var,
        mode: PadMode,
        allowed: impl Fn(usize) -> bool,
    ) -> Result<(Var, Vec<usize>)> {
        let is_even =
            |(axis, [before, after]): (usize, &[usize; 2])| before == after && allowed(axis);
        if self.pads.iter().enumerate().all(is_even) {
            return Ok((x, self.pads.iter().map(|pair| pair[0]).collect()));
        }
        Ok((x.pad(&self.pads, mode)?, vec![0; self.pads.len()]))
    }

    /// Number of windows along a dimension, and number of places of the last window beyond the
    /// padding.
    fn count(&self, axis: usize) -> (usize, usize) {
        let [before, after] = self.pads[axis];
        let (len, stride) = (self.lens[axis] + before + after, self.stride[axis].max(1));
        let steps = len.saturating_sub(self.reach(axis));
        let mut count = steps / stride + 1;
        // One more window that does not fit whole, unless it would begin after the input.
        let begin = count * stride;
        if self.rounding == SizeRounding::Up
            && !steps.is_multiple_of(stride)
            && begin < self.lens[axis] + before
        {
            count += 1;
        }
        (count, ((count - 1) * stride + self.reach(axis)).saturating_sub(len))
    }

    /// The input with the places of each window in new last dimensions, and the indices of these
    /// dimensions.
    fn spread(&self, x: Var, fill: f64) -> Result<(Var, Vec<usize>)> {
        let dims = self.lens.len();
        let pads: Vec<[isize; 2]> = (0..dims)
            .map(|axis| {
                let [before, after] = self.pads[axis];
                [before as isize, (after + self.count(axis).1) as isize]
            })
            .collect();
        let pads = [vec![[0, 0]; 2], pads].concat();
        let mut x = padded(x, &pads, PadMode::Constant(fill))?;
        for axis in 0..dims {
            let (reach, step) = (self.reach(axis), self.dilation[axis].max(1));
            x = x.unfold(axis + 2, reach, self.stride[axis].max(1))?;
            let last = x.shape().len() - 1;
            x = x.slice(last, 0..reach, step)?;
        }
        Ok((x, (dims + 2..2 * dims + 2).collect()))
    }

    /// The geometry for lowtide's own pooling, which takes images, with padding of at most half a
    /// window.
    fn pool2d(&self) -> Option<Pool2dGeometry> {
        let (&[k0, k1], &[s0, s1]) = (&self.kernel[..], &self.stride[..]) else { return None };
        let is_even =
            |(pair, kernel): (&[usize; 2], &usize)| pair[0] == pair[1] && 2 * pair[0] <= *kernel;
        let are_even = self.pads.iter().zip(&self.kernel).all(is_even);
        let padding = [self.pads[0][0], self.pads[1][0]];
        let window = Pool2dGeometry { kernel: [k0, k1], stride: [s0, s1], padding };
        are_even.then_some(window)
    }
}

fn average_pool(node: &NodeCall<'_>) -> Result<Vec<Output>> {
    let x = node.var(0)?;
    let window = Window::of(node, &x, None)?;
    let counts_padding = node.flag("count_include_pad")?.unwrap_or(false);
    let is_dense = window.dilation.iter().all(|&dilation| dilation == 1);
    if let Some(pool) = window.pool2d().filter(|_| is_dense) {
        let divisor = if counts_padding { Divisor::Window } else { Divisor::Inside };
        return one(x.avg_pool2d(pool, AvgPool { divisor, rounding: window.rounding })?);
    }
    // The sum of each window, and the sum of ones over the counted places.
    let shape: Vec<usize> = [1, 1].into_iter().chain(window.lens.iter().copied()).collect();
    let counted = node.constant(Tensor::ones(node.device(), &shape[..], x.value().dtype())?);
    let (sums, axes) = window.spread(x, 0.0)?;
    let counts = if counts_padding {
        // Padding counts, but places of a window beyond the padding do not.
        let pads = [vec![[0, 0]; 2], window.pads.clone()].concat();
        let inside = counted.pad(&pads, PadMode::Constant(1.0))?;
        let lens = inside.shape()[2..].to_vec();
        let beyond = (0..lens.len()).map(|axis| [0, window.count(axis).1]).collect();
        let (kernel, stride) = (window.kernel.clone(), window.stride.clone());
        let (dilation, rounding) = (window.dilation.clone(), SizeRounding::Down);
        let rest = Window { kernel, stride, dilation, pads: beyond, rounding, lens };
        rest.spread(inside, 0.0)?.0
    } else {
        window.spread(counted, 0.0)?.0
    };
    one(sums.sum(&axes)?.div(counts.sum(&axes)?)?)
}

fn max_pool(node: &NodeCall<'_>) -> Result<Vec<Output>> {
    let x = node.var(0)?;
    let window = Window::of(node, &x, None)?;
    let by_columns = node.flag("storage_order")?.unwrap_or(false);
    let lowest = if x.value().dtype().is_float() { f64::NEG_INFINITY } else { 0.0 };
    let Some(pool) = window.pool2d().filter(|_| x.value().dtype().is_float()) else {
        if node.wants(1) {
            return node.no_form("places of the largest, but in images");
        }
        let (y, axes) = window.spread(x, lowest)?;
        return one(y.amax(&axes)?);
    };
    let options =
        MaxPool { dilation: [window.dilation[0], window.dilation[1]], rounding: window.rounding };
    if !node.wants(1) {
        return one(x.max_pool2d_with(pool, options)?);
    }
    // lowtide returns the place within each window.
    let winners = x.value().max_pool2d_with(pool, options)?.1.to_dtype(DType::I64)?;
    let columns = pool.kernel[1] as f64;
    let steps = [winners.div_floor_scalar(columns)?, winners.remainder_scalar(columns)?];
    let mut at = Vec::new();
    for (axis, step) in steps.iter().enumerate() {
        let count = winners.shape()[axis + 2];
        let origin = Tensor::arange(node.device(), 0.0..count as f64, 1.0, DType::I64)?;
        let origin = origin.mul_scalar(pool.stride[axis] as f64)?;
        let origin = origin.add_scalar(-(pool.padding[axis] as f64))?;
        let origin = origin.reshape([[count, 1], [1, count]][axis])?;
        at.push(step.mul_scalar(options.dilation[axis] as f64)?.add(&origin)?);
    }
    let [row, column] = &at[..] else { return Err(node.wrong("not images")) };
    let &[samples, channels, height, width] = &x.shape()[..] else {
        return Err(node.wrong("not a batch of images"));
    };
    // ONNX counts places through the whole tensor, and in an image row by row or column by column.
    let places = if by_columns {
        column.mul_scalar(height as f64)?.add(row)?
    } else {
        row.mul_scalar(width as f64)?.add(column)?
    };
    let planes = (samples * channels) as f64;
    let first = Tensor::arange(node.device(), 0.0..planes, 1.0, DType::I64)?;
    let first = first.mul_scalar((height * width) as f64)?;
    let first = first.reshape([samples, channels, 1, 1])?;
    Ok(vec![x.max_pool2d_with(pool, options)?.into(), places.add(&first)?.into()])
}

fn conv_transpose(node: &NodeCall<'_>) -> Result<Vec<Output>> {
    let (x, w, b) = (node.var(0)?, node.var(1)?, node.optional_var(2));
    let lens = x.shape().get(2..).unwrap_or_default().to_vec();
    let kernel = w.shape().get(2..).unwrap_or_default().to_vec();
    let count = lens.len();
    if count == 0 || kernel.len() != count {
        return Err(node.wrong("the kernel has other dimensions"));
    }
    node.ignore(&["kernel_shape"]);
    let all = |name, default: usize| -> Result<Vec<usize>> {
        Ok(node.attribute_counts(name)?.unwrap_or_else(|| vec![default; count]))
    };
    let (stride, dilation) = (all("strides", 1)?, all("dilations", 1)?);
    let (more, groups) = (all("output_padding", 0)?, node.attribute_count("group")?.unwrap_or(1));
    let (pads, auto) = (all("pads", 0)?, node.text("auto_pad")?.unwrap_or("NOTSET"));
    let wanted = node.attribute_counts("output_shape")?;
    let wanted = match auto {
        "SAME_UPPER" | "SAME_LOWER" => wanted
            .or_else(|| Some(lens.iter().zip(&stride).map(|(len, step)| len * step).collect())),
        _ => wanted,
    };
    // Number of places to cut at either side of the result. A negative number adds places.
    let mut cuts = vec![[0_isize; 2]; count];
    for (axis, cut) in cuts.iter_mut().enumerate() {
        let whole =
            (lens[axis].max(1) - 1) * stride[axis] + (kernel[axis] - 1) * dilation[axis] + 1;
        *cut = match &wanted {
            Some(wanted) => {
                let total = (whole + more[axis]) as isize - wanted[axis] as isize;
                let half = total.max(0) / 2;
                let rest = total - half;
                if auto == "SAME_UPPER" || total < 0 { [half, rest] } else { [rest, half] }
            }
            None if pads.len() == 2 * count => [pads[axis] as isize, pads[axis + count] as isize],
            None => [0, 0],
        };
        // Output padding adds places at the end of the result.
        cut[1] -= more[axis] as isize;
    }
    let y = match (&stride[..], &dilation[..]) {
        (&[stride], &[dilation]) => {
            let geometry =
                ConvTranspose1dGeometry { stride, padding: 0, output_padding: 0, dilation, groups };
            x.conv_transpose1d(w, b.clone(), geometry)?
        }
        (&[s0, s1], &[d0, d1]) => {
            let (stride, dilation) = ([s0, s1], [d0, d1]);
            let (padding, output_padding) = ([0; 2], [0; 2]);
            let geometry =
                ConvTranspose2dGeometry { stride, padding, output_padding, dilation, groups };
            x.conv_transpose2d(w, b.clone(), geometry)?
        }
        (&[s0, s1, s2], &[d0, d1, d2]) => {
            let (stride, dilation) = ([s0, s1, s2], [d0, d1, d2]);
            let (padding, output_padding) = ([0; 3], [0; 3]);
            let geometry =
                ConvTranspose3dGeometry { stride, padding, output_padding, dilation, groups };
            conv_transpose3d(x, w, b.clone(), geometry)?
        }
        _ => return node.no_form("more than three dimensions of places"),
    };
    let pads: Vec<[isize; 2]> = cuts.iter().map(|cut| cut.map(|amount| -amount)).collect();
    if b.is_some() && pads.iter().flatten().any(|&amount| amount > 0) {
        return node.no_form("a bias beside places that no window reaches");
    }
    one(padded(y, &[vec![[0, 0]; 2], pads].concat(), PadMode::Constant(0.0))?)
}
