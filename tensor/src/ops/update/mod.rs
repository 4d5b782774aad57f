//! An optimizer's update of one tensor, fused, by a formula for one element.

mod cpu;
mod quantized;

use crate::cpu::Cpu;
use crate::layout::{Layout, Nest};
use crate::{
    Cost, DType, Device, Element, Float, Kernel, Operands, RandomKey, Result, Shape, Tensor,
    TensorError,
};

pub use quantized::StateRange;
use quantized::{BLOCK_BYTES, BLOCK_LEN};

/// What an optimizer does to one element; [`Tensor::update_`] does it to all, in one pass.
///
/// `STATES` tensors are kept between updates, `SCALARS` numbers lie on the device, such as a norm
/// that the host never sees.
pub trait UpdateFormula<const STATES: usize, const SCALARS: usize>: Copy + Send + Sync {
    /// The optimizer's name, as errors show it.
    const NAME: &'static str;

    /// Arithmetic operations per element, for the time of the simulated device.
    const FLOPS: f64;

    /// What values each state can have; only quantised states ask.
    fn state_ranges(&self) -> [StateRange; STATES] {
        [StateRange::Signed; STATES]
    }

    /// The new parameter and the new states. Write it `#[inline(always)]` and without branches that
    /// depend on the element, and it runs on whole vectors. `T` is f64 beside f64 parameters, else
    /// f32.
    fn element<T: Float>(
        &self,
        scalars: [T; SCALARS],
        parameter: T,
        gradient: T,
        states: [T; STATES],
    ) -> (T, [T; STATES]);
}

/// How a new parameter becomes one of its element type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rounding {
    /// To the nearest.
    #[default]
    Nearest,
    /// Up or down at random, so that the mean is exact and small steps are not lost; for bf16
    /// (Zamirai et al. 2020). Element `i` draws from place `i` of the key's stream.
    Stochastic(RandomKey),
}

struct Update<F, const STATES: usize, const SCALARS: usize> {
    formula: F,
    rounding: Rounding,
    len: usize,
    quantized: bool,
    /// Bytes of a parameter, a gradient and a state.
    sizes_bytes: [usize; 3],
    dtypes: [DType; 2],
}

impl<F, const STATES: usize, const SCALARS: usize> Update<F, STATES, SCALARS>
where
    F: UpdateFormula<STATES, SCALARS>,
{
    fn run<P: Element, G: Element, T: cpu::Wide>(&self, cpu: &Cpu, operands: &mut Operands<'_>) {
        if self.quantized {
            return self.run_quantized::<P, G, T>(cpu, operands);
        }
        let gradient = operands.read::<G>(0);
        let scalars = std::array::from_fn(|index| operands.read::<T>(1 + index).data()[0]);
        let mut parameter = operands.write::<P>(0);
        let mut states: [_; STATES] = std::array::from_fn(|index| operands.write::<T>(1 + index));
        // All of one shape; a stack of layouts because the nest wants a fixed number.
        let layout_of = |index: usize| match index {
            0 => *parameter.layout(),
            1 => *gradient.layout(),
            _ => states.get(index - 2).map_or(*parameter.layout(), |state| *state.layout()),
        };
        let layouts: [Layout; 2 + STATES_MAX] = std::array::from_fn(layout_of);
        let nest = Nest::new(layouts[0].shape(), layouts.each_ref().map(Layout::strides));
        let mut first = 0;
        nest.runs(self.len, |starts, len| {
            let mut rest = states.iter_mut().zip(&starts[2..]);
            let states = std::array::from_fn(|_| {
                let (state, &start) = rest.next().expect("as many as states");
                &mut state.data()[start..][..len]
            });
            let run = cpu::Run {
                formula: self.formula,
                rounding: self.rounding,
                scalars,
                first,
                gradient: &gradient.data()[starts[1]..][..len],
            };
            run.update(cpu.pool(), &mut parameter.data()[starts[0]..][..len], states);
            first += len as u64;
        });
    }

    /// [`Update::run`] where the states are blocks of 8 bits, and all is contiguous.
    fn run_quantized<P, G, T>(&self, cpu: &Cpu, operands: &mut Operands<'_>)
    where
        P: Element,
        G: Element,
        T: cpu::Wide,
    {
        let run = cpu::Run {
            formula: self.formula,
            rounding: self.rounding,
            scalars: std::array::from_fn(|index| operands.read::<T>(1 + index).data()[0]),
            first: 0,
            gradient: operands.read::<G>(0).slice(),
        };
        let parameter = operands.write::<P>(0).slice();
        let states = std::array::from_fn(|index| operands.write::<u8>(1 + index).slice());
        run.update_quantized(cpu.pool(), parameter, states);
    }
}

/// No formula may have more states.
const STATES_MAX: usize = 4;

impl<F, const STATES: usize, const SCALARS: usize> Kernel for Update<F, STATES, SCALARS>
where
    F: UpdateFormula<STATES, SCALARS>,
{
    fn name(&self) -> &'static str {
        F::NAME
    }

    fn cost(&self) -> Cost {
        let [parameter, gradient, state] = self.sizes_bytes;
        let bytes = self.len * (2 * parameter + gradient + 2 * STATES * state);
        Cost { flops: F::FLOPS * self.len as f64, bytes: bytes as f64 }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        use half::{bf16, f16};
        match self.dtypes {
            [DType::F64, _] => self.run::<f64, f64, f64>(cpu, operands),
            [DType::F32, _] => self.run::<f32, f32, f32>(cpu, operands),
            [DType::F16, DType::F16] => self.run::<f16, f16, f32>(cpu, operands),
            [DType::F16, _] => self.run::<f16, f32, f32>(cpu, operands),
            [DType::BF16, DType::BF16] => self.run::<bf16, bf16, f32>(cpu, operands),
            [DType::BF16, _] => self.run::<bf16, f32, f32>(cpu, operands),
            _ => unreachable!("checked to be a float"),
        }
        Ok(())
    }
}

/// Of the state for `len` elements.
fn quantized_shape(len: usize) -> Shape {
    Shape::new(&[len.div_ceil(BLOCK_LEN), BLOCK_BYTES])
}

impl Tensor {
    /// Zeros as the state of [`Tensor::update_`] for a parameter of `len` elements, in 8 bits:
    /// blocks of 256 codes with a scale of their own.
    ///
    /// # Errors
    /// `OutOfMemory`.
    #[track_caller]
    pub fn quantized_state(device: &Device, len: usize) -> Result<Tensor> {
        Tensor::zeros(device, quantized_shape(len), DType::U8)
    }

    /// The bytes of a [`Tensor::quantized_state`].
    pub fn quantized_state_bytes(len: usize) -> usize {
        quantized_shape(len).element_count()
    }

    /// One update of `self` and `states` by `formula`, in place; allocates nothing.
    ///
    /// All but the `scalars` have one shape. A parameter of f64 goes with f64 throughout; other
    /// floats with states and scalars of f32 and a gradient of f32 or their own type. Where they
    /// are not contiguous, it is slow.
    ///
    /// The states may also be [`Tensor::quantized_state`]s, all of them: a quarter of the memory of
    /// f32, and less precise. Then parameter and gradient have to be contiguous.
    ///
    /// # Errors
    /// `Strided` for what has to be contiguous and is not; `Shape`, also for a scalar that is not
    /// one element; `DType`, also for stochastic rounding of anything but bf16; `Frozen`,
    /// `Overlap`.
    #[track_caller]
    pub fn update_<const STATES: usize, const SCALARS: usize>(
        &mut self,
        gradient: &Tensor,
        states: &mut [Tensor; STATES],
        scalars: [&Tensor; SCALARS],
        formula: impl UpdateFormula<STATES, SCALARS>,
        rounding: Rounding,
    ) -> Result<()> {
        const { assert!(STATES <= STATES_MAX, "too many states") };
        let kernel = self.update_kernel(gradient, states, &scalars, formula, rounding)?;
        let reads: Vec<&Tensor> = [gradient].into_iter().chain(scalars).collect();
        let writes: Vec<&Tensor> = [&*self].into_iter().chain(&*states).collect();
        self.device().launch(kernel, &reads, &writes)
    }

    fn update_kernel<F, const STATES: usize, const SCALARS: usize>(
        &self,
        gradient: &Tensor,
        states: &[Tensor; STATES],
        scalars: &[&Tensor; SCALARS],
        formula: F,
        rounding: Rounding,
    ) -> Result<Update<F, STATES, SCALARS>>
    where
        F: UpdateFormula<STATES, SCALARS>,
    {
        let op = F::NAME;
        let mismatch = |left, right| TensorError::DType { op, left, right };
        let dtype = self.dtype();
        let wide = match dtype {
            DType::F64 => DType::F64,
            dtype if dtype.is_float() => DType::F32,
            dtype => return Err(mismatch(dtype, DType::F32)),
        };
        if matches!(rounding, Rounding::Stochastic(_)) && dtype != DType::BF16 {
            return Err(mismatch(dtype, DType::BF16));
        }
        if gradient.dtype() != dtype && gradient.dtype() != wide {
            return Err(mismatch(gradient.dtype(), dtype));
        }
        let quantized = STATES > 0 && states.iter().all(|state| state.dtype() == DType::U8);
        let is_wide = |other: &Tensor| other.dtype() == wide;
        let mut wide_ones = scalars.iter().copied().chain(states.iter().filter(|_| !quantized));
        if let Some(other) = wide_ones.find(|&other| !is_wide(other)) {
            return Err(mismatch(other.dtype(), wide));
        }
        let state_shape = match quantized {
            true => quantized_shape(self.element_count()),
            false => *self.shape(),
        };
        let shapes = [(gradient, *self.shape())].into_iter();
        for (other, right) in shapes.chain(states.iter().map(|state| (state, state_shape))) {
            if *other.shape() != right {
                return Err(TensorError::Shape { op, left: *other.shape(), right });
            }
        }
        let strided = |tensor: &Tensor| !tensor.layout().is_contiguous();
        if quantized && (strided(self) || strided(gradient) || states.iter().any(strided)) {
            return Err(TensorError::Strided { op });
        }
        for scalar in scalars {
            if scalar.element_count() != 1 {
                let (left, right) = (*scalar.shape(), Shape::new(&[]));
                return Err(TensorError::Shape { op, left, right });
            }
        }
        let state = if quantized { DType::U8 } else { wide };
        let sizes_bytes = [dtype, gradient.dtype(), state].map(DType::size_bytes);
        let dtypes = [dtype, gradient.dtype()];
        Ok(Update { formula, rounding, len: self.element_count(), quantized, sizes_bytes, dtypes })
    }
}
