//! Initial values with the distributions of `torch.nn.init`. The random numbers differ from
//! PyTorch's.
//!
//! Each function fills a tensor in place. The values depend on the key alone, not on the number of
//! threads. The first two dimensions of a weight are outputs and inputs, the rest is the kernel's
//! window, as in PyTorch. Distributions that do not depend on the shape are methods of the tensor:
//! [`Tensor::uniform_`], [`Tensor::normal_`], and [`Tensor::fill_`] for constants.

use std::f64::consts::{SQRT_2, TAU};

use lowtide_allocator::Category;
use lowtide_tensor::{
    Cost, Cpu, DType, DeviceKind, Element, Kernel, OpClass, Operands, RandomKey, Tensor,
    TensorError, bf16, f16,
};

use crate::checks::check_option;
use crate::error::Result;

/// The bound of PyTorch's uniform distribution for weights and biases of linear and convolution
/// layers: `kaiming_uniform_(a = √5)` is `1 / √fan_in` (`torch.nn.Linear.reset_parameters`).
pub fn default_bound(fan_in: usize) -> f64 {
    1.0 / (fan_in.max(1) as f64).sqrt()
}

/// The variance that the initial weights preserve: the variance of values, or of gradients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fan {
    /// Keeps the variance of values in the forward pass.
    #[default]
    In,
    /// Keeps the variance of gradients in the backward pass.
    Out,
}

/// The activation after a layer, which decides the gain of its weights (`calculate_gain`).
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Nonlinearity {
    /// No activation, or a sigmoid.
    Linear,
    /// The hyperbolic tangent.
    Tanh,
    /// `max(x, 0)`.
    Relu,
    /// Leaky ReLU with this slope.
    LeakyRelu(f64),
    /// The activation [`crate::SELU`].
    Selu,
}

impl Nonlinearity {
    /// The gain: the factor of the standard deviation.
    pub fn gain(self) -> f64 {
        match self {
            Nonlinearity::Linear => 1.0,
            Nonlinearity::Tanh => 5.0 / 3.0,
            Nonlinearity::Relu => SQRT_2,
            Nonlinearity::LeakyRelu(slope) => (2.0 / (1.0 + slope * slope)).sqrt(),
            Nonlinearity::Selu => 0.75,
        }
    }
}

/// The fan in and the fan out of a weight, `[O, I, window..]`.
fn fans(op: &'static str, weight: &Tensor) -> Result<[usize; 2]> {
    let shape = weight.shape();
    let &[outputs, inputs, ref window @ ..] = &**shape else {
        return Err(TensorError::Shape { op, left: *shape, right: [1, 1].into() }.into());
    };
    let window: usize = window.iter().product();
    Ok([inputs * window, outputs * window])
}

/// Draws from the uniform distribution with the standard deviation `gain · √(2 / (fan_in +
/// fan_out))` (Glorot & Bengio 2010).
///
/// # Errors
/// `Shape` with less than two dimensions, `DType`, `Frozen`.
pub fn xavier_uniform_(weight: &mut Tensor, key: RandomKey, gain: f64) -> Result<()> {
    let bound = 3f64.sqrt() * xavier("xavier_uniform", weight, gain)?;
    Ok(weight.uniform_(key, -bound, bound)?)
}

/// Draws from the normal distribution with the standard deviation of [`xavier_uniform_`].
///
/// # Errors
/// The errors of [`xavier_uniform_`].
pub fn xavier_normal_(weight: &mut Tensor, key: RandomKey, gain: f64) -> Result<()> {
    let deviation = xavier("xavier_normal", weight, gain)?;
    Ok(weight.normal_(key, 0.0, deviation)?)
}

fn xavier(op: &'static str, weight: &Tensor, gain: f64) -> Result<f64> {
    let [inputs, outputs] = fans(op, weight)?;
    Ok(gain * (2.0 / (inputs + outputs).max(1) as f64).sqrt())
}

/// Draws from the uniform distribution with the standard deviation `gain / √fan` (He et al. 2015).
///
/// # Errors
/// `Shape` with less than two dimensions, `DType`, `Frozen`.
pub fn kaiming_uniform_(
    weight: &mut Tensor,
    key: RandomKey,
    fan: Fan,
    before: Nonlinearity,
) -> Result<()> {
    let bound = 3f64.sqrt() * kaiming("kaiming_uniform", weight, fan, before)?;
    Ok(weight.uniform_(key, -bound, bound)?)
}

/// Draws from the normal distribution with the standard deviation of [`kaiming_uniform_`].
///
/// # Errors
/// The errors of [`kaiming_uniform_`].
pub fn kaiming_normal_(
    weight: &mut Tensor,
    key: RandomKey,
    fan: Fan,
    before: Nonlinearity,
) -> Result<()> {
    let deviation = kaiming("kaiming_normal", weight, fan, before)?;
    Ok(weight.normal_(key, 0.0, deviation)?)
}

fn kaiming(op: &'static str, weight: &Tensor, fan: Fan, before: Nonlinearity) -> Result<f64> {
    let [inputs, outputs] = fans(op, weight)?;
    let fan = if fan == Fan::In { inputs } else { outputs };
    Ok(before.gain() / (fan.max(1) as f64).sqrt())
}

/// Draws from a normal distribution; a value outside `range` is drawn again.
///
/// # Errors
/// `Option` for a negative deviation or an empty range, `DType`, `Frozen`, `OutOfMemory`. The call
/// takes 8 bytes an element of scratch memory, as do the functions below.
pub fn truncated_normal_(
    tensor: &mut Tensor,
    key: RandomKey,
    [mean, deviation]: [f64; 2],
    [low, high]: [f64; 2],
) -> Result<()> {
    check_option("deviation", deviation, "0..", |x| x >= 0.0)?;
    check_option("high", high, "above low", |x| x > low)?;
    let [from, to] = [low, high].map(|end| (end - mean) / deviation.max(f64::MIN_POSITIVE));
    fill(tensor, "truncated_normal", |values| {
        for (index, value) in values.iter_mut().enumerate() {
            let normal = draw_between(key, index as u64, from, to);
            *value = (mean + deviation * normal).clamp(low, high);
        }
    })
}

/// A standard normal number from `from` to `to`.
fn draw_between(key: RandomKey, place: u64, from: f64, to: f64) -> f64 {
    /// Enough tries for a range with a tenth of the probability.
    const TRIES: u64 = 64;
    for attempt in 0..TRIES {
        let [a, b, ..] = key.op("draw").step(attempt).block(place);
        let normal = box_muller(a, b);
        if (from..=to).contains(&normal) {
            return normal;
        }
    }
    // The range lies in a tail. Bisection finds the number whose distribution function has the
    // drawn value.
    let below = |x: f64| libm::erfc(-x / SQRT_2) / 2.0;
    let u = f64::from(key.op("tail").uniform(place));
    let (mut left, mut right) = (from.max(-39.0), to.min(39.0));
    // In the upper tail the distribution function would round to 1, so the range is mirrored.
    let is_upper = left > 0.0;
    if is_upper {
        (left, right) = (-right, -left);
    }
    let goal = below(left) + u * (below(right) - below(left));
    for _ in 0..64 {
        let middle = f64::midpoint(left, right);
        if below(middle) < goal { left = middle } else { right = middle }
    }
    if is_upper { -left } else { left }
}

/// A standard normal number from two words (Box & Muller 1958).
fn box_muller(a: u32, b: u32) -> f64 {
    let unit = |word: u32| (f64::from(word) + 0.5) / 2f64.powi(32);
    (-2.0 * unit(a).ln()).sqrt() * (TAU * unit(b)).cos()
}

/// Fills a matrix with orthogonal rows (or columns, if they are fewer) of length `gain`, in a
/// direction drawn uniformly (Saxe, McClelland & Ganguli 2014). All dimensions but the first count
/// as columns.
///
/// # Errors
/// `Shape` with less than two dimensions, `DType`, `Frozen`, `OutOfMemory`.
pub fn orthogonal_(weight: &mut Tensor, key: RandomKey, gain: f64) -> Result<()> {
    fans("orthogonal", weight)?;
    let rows = weight.shape()[0];
    let columns = weight.element_count() / rows.max(1);
    fill(weight, "orthogonal", |values| {
        // `count` vectors of `len` numbers. Element `k` of vector `v` is at `v · step + k ·
        // stride`.
        let (count, len) = (rows.min(columns), rows.max(columns));
        let (step, stride) = if rows <= columns { (columns, 1) } else { (1, columns) };
        for (index, value) in values.iter_mut().enumerate() {
            let [a, b, ..] = key.block(index as u64);
            *value = box_muller(a, b);
        }
        for v in 0..count {
            // Gram-Schmidt, twice: the second pass removes the rounding errors of the first.
            for earlier in (0..v).chain(0..v) {
                let at = |vector: usize, k: usize| vector * step + k * stride;
                let dot: f64 = (0..len).map(|k| values[at(v, k)] * values[at(earlier, k)]).sum();
                let squared = gain * gain;
                let share = if squared == 0.0 { 0.0 } else { dot / squared };
                (0..len).for_each(|k| values[at(v, k)] -= share * values[at(earlier, k)]);
            }
            let own = |k: usize| v * step + k * stride;
            let norm = (0..len).map(|k| values[own(k)].powi(2)).sum::<f64>().sqrt();
            (0..len).for_each(|k| values[own(k)] *= gain / norm);
        }
    })
}

/// Sets the diagonal of a matrix to 1 and the rest to 0: a linear layer that copies its input.
///
/// # Errors
/// `Shape` unless the weight is a matrix, `DType`, `Frozen`, `OutOfMemory`.
pub fn eye_(weight: &mut Tensor) -> Result<()> {
    let &[rows, columns] = &**weight.shape() else {
        let (left, right) = (*weight.shape(), [1, 1].into());
        return Err(TensorError::Shape { op: "eye", left, right }.into());
    };
    let eye = Tensor::eye(weight.device(), rows, columns, weight.dtype())?;
    Ok(weight.copy_(&eye)?)
}

/// Makes a convolution that copies its input, in each of `groups`: output channel k has a 1 for
/// input channel k in the middle of the window, and 0 elsewhere.
///
/// # Errors
/// `Shape` unless there are three to five dimensions whose first is a multiple of `groups`,
/// `DType`, `Frozen`, `OutOfMemory`.
pub fn dirac_(weight: &mut Tensor, groups: usize) -> Result<()> {
    let shape = *weight.shape();
    if !(3..=5).contains(&shape.len()) || groups == 0 || !shape[0].is_multiple_of(groups) {
        let right = [groups, 1, 1].into();
        return Err(TensorError::Shape { op: "dirac", left: shape, right }.into());
    }
    let window: usize = shape[2..].iter().product();
    // The index of the middle of the window; each dimension is halved and rounded down.
    let middle = shape[2..].iter().fold(0, |at, &len| at * len + len / 2);
    let (per_group, inputs) = (shape[0] / groups, shape[1]);
    fill(weight, "dirac", move |values| {
        values.fill(0.0);
        for output in 0..per_group * groups {
            let input = output % per_group;
            if input < inputs && window > 0 {
                values[(output * inputs + input) * window + middle] = 1.0;
            }
        }
    })
}

/// Draws from the normal distribution with `deviation`, and sets a share of each column to zero,
/// rounded up (Martens 2010).
///
/// # Errors
/// `Option` for a share outside 0 to 1, `Shape` unless the weight is a matrix, `DType`, `Frozen`,
/// `OutOfMemory`.
pub fn sparse_(weight: &mut Tensor, key: RandomKey, share: f64, deviation: f64) -> Result<()> {
    check_option("share", share, "0..=1", |x| (0.0..=1.0).contains(&x))?;
    let &[rows, columns] = &**weight.shape() else {
        let (left, right) = (*weight.shape(), [1, 1].into());
        return Err(TensorError::Shape { op: "sparse", left, right }.into());
    };
    let zero_count = (share * rows as f64).ceil() as usize;
    fill(weight, "sparse", move |values| {
        for (index, value) in values.iter_mut().enumerate() {
            let [a, b, ..] = key.block(index as u64);
            *value = deviation * box_muller(a, b);
        }
        for column in 0..columns {
            let place = |row: usize| (row * columns + column) as u64;
            let mut order: Vec<usize> = (0..rows).collect();
            order.sort_by_key(|&row| (key.op("zeros").block(place(row)), row));
            order[..zero_count].iter().for_each(|&row| values[row * columns + column] = 0.0);
        }
    })
}

/// A kernel that computes values one after the other in f64, and converts them.
struct Fill<F> {
    name: &'static str,
    values: F,
    len: usize,
    dtype: DType,
}

impl<F: FnOnce(&mut [f64])> Kernel for Fill<F> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cost(&self) -> Cost {
        let len = self.len as f64;
        Cost {
            class: OpClass::Random,
            flops: 10.0 * len,
            bytes: (16 + self.dtype.size_bytes()) as f64 * len,
        }
    }

    fn cpu(self, _: &Cpu, operands: &mut Operands<'_>) -> lowtide_tensor::TensorResult<()> {
        fn store<T: Element>(operands: &mut Operands<'_>, values: &[f64]) {
            for (to, &value) in operands.write::<T>(0).slice().iter_mut().zip(values) {
                *to = T::from_f64(value);
            }
        }
        let values = operands.write::<f64>(1).slice();
        (self.values)(values);
        match self.dtype {
            DType::F64 => store::<f64>(operands, values),
            DType::F32 => store::<f32>(operands, values),
            DType::F16 => store::<f16>(operands, values),
            DType::BF16 => store::<bf16>(operands, values),
            dtype => return Err(not_a_float(self.name, dtype)),
        }
        Ok(())
    }
}

fn not_a_float(op: &'static str, dtype: DType) -> TensorError {
    TensorError::DType { op, left: dtype, right: DType::F32 }
}

/// Fills a tensor of a device that does not compute the values itself. The values are copied from
/// the host once, before the first step.
fn fill_from_host(tensor: &mut Tensor, values: impl FnOnce(&mut [f64])) -> Result<()> {
    if tensor.device().is_simulated() {
        return Ok(());
    }
    let mut wide = vec![0.0; tensor.element_count()];
    values(&mut wide);
    let wide = wide.into_iter();
    let bytes: Vec<u8> = match tensor.dtype() {
        DType::F64 => wide.flat_map(f64::to_ne_bytes).collect(),
        DType::F32 => wide.flat_map(|value| (value as f32).to_ne_bytes()).collect(),
        DType::F16 => wide.flat_map(|value| f16::from_f64(value).to_ne_bytes()).collect(),
        _ => wide.flat_map(|value| bf16::from_f64(value).to_ne_bytes()).collect(),
    };
    Ok(tensor.set_bytes_(&bytes)?)
}

fn fill(tensor: &mut Tensor, name: &'static str, values: impl FnOnce(&mut [f64])) -> Result<()> {
    let (device, dtype, len) = (tensor.device().clone(), tensor.dtype(), tensor.element_count());
    if !dtype.is_float() {
        return Err(not_a_float(name, dtype).into());
    }
    if !tensor.layout().is_contiguous() {
        return Err(TensorError::Strided { op: name }.into());
    }
    if device.kind() == DeviceKind::Cuda {
        return fill_from_host(tensor, values);
    }
    let work = Tensor::empty_in(&device, Category::Workspace, [len], DType::F64)?;
    Ok(device.launch(Fill { name, values, len, dtype }, &[], &[&*tensor, &work])?)
}
