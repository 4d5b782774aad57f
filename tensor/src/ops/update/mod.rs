//! Fused updates of one or many tensors by an optimizer, with a formula for one element.

mod cpu;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod kernel;
mod known;
mod norms;
mod quantized;

use std::panic::Location;

use crate::device::Device;
use crate::dtype::{DType, Float};
use crate::error::{Result, TensorError};
use crate::launch::overlap;
use crate::layout::Shape;
use crate::random::RandomKey;
use crate::tensor::Tensor;

use kernel::{Item, Update};
pub use known::{AdamUpdate, KnownFormula, KnownNorms, SgdUpdate};
pub use norms::{NormFormula, update_norms_workspace_len};
pub use quantized::StateRange;
#[cfg(feature = "testing")]
pub(crate) use quantized::testing;
use quantized::{BLOCK_BYTES, BLOCK_LEN};

/// Largest number of states of a formula.
const STATES_MAX: usize = 4;

/// The update of one element by an optimizer. [`Tensor::update_`] applies it to all elements in one
/// pass.
///
/// `STATES` tensors are stored between updates. `SCALARS` numbers are on the device, such as a norm
/// that the host never sees.
pub trait UpdateFormula<const STATES: usize, const SCALARS: usize>: Copy + Send + Sync {
    /// The optimizer's name in errors.
    const NAME: &'static str;

    /// Arithmetic operations for each element, for the simulated time.
    const FLOPS: f64;

    /// The range of each state; used for quantised states only.
    fn state_ranges(&self) -> [StateRange; STATES] {
        [StateRange::Signed; STATES]
    }

    /// The equivalent known formula, for devices that have kernels for known formulas only.
    fn known(&self) -> Option<KnownFormula> {
        None
    }

    /// The new parameter and the new states. Written `#[inline(always)]` and without branches that
    /// depend on the element, it runs on whole vectors. `T` is f64 for f64 parameters, else f32.
    fn element<T: Float>(
        &self,
        scalars: [T; SCALARS],
        parameter: T,
        gradient: T,
        states: [T; STATES],
    ) -> (T, [T; STATES]);
}

/// The rounding of a new parameter to its element type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rounding {
    /// Rounding to nearest.
    #[default]
    Nearest,
    /// Rounding up or down at random, so that the mean is exact and small steps are not lost; for
    /// bf16 (Zamirai et al. 2020). Element `i` draws from place `i` of the key's stream.
    Stochastic(RandomKey),
}

/// One tensor's part of an [`update_all_`].
pub struct TensorUpdate<'a, F> {
    /// The tensor to train.
    pub parameter: &'a mut Tensor,
    /// The gradient, of the parameter's shape.
    pub gradient: &'a Tensor,
    /// The states of the formula.
    pub states: &'a mut [Tensor],
    /// The scalars of the formula, of one element each.
    pub scalars: &'a [Tensor],
    /// The update of each element of this tensor.
    pub formula: F,
    /// The rounding of the parameter to its type.
    pub rounding: Rounding,
}

/// The common properties of the operands of updates in one launch.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Form {
    /// Types of parameter and gradient.
    dtypes: [DType; 2],
    quantized: bool,
    is_contiguous: bool,
}

impl Form {
    /// The form of one update's operands.
    ///
    /// # Errors
    /// `Shape`, `DType` or `Strided` if the operands do not match.
    fn of(
        op: &'static str,
        parameter: &Tensor,
        gradient: &Tensor,
        states: &[Tensor],
        scalars: &[Tensor],
    ) -> Result<Self> {
        let mismatch = |left, right| TensorError::DType { op, left, right };
        let dtype = parameter.dtype();
        if !dtype.is_float() {
            return Err(mismatch(dtype, DType::F32));
        }
        let wide = dtype.computed();
        let is_narrower = dtype == DType::F32 && gradient.dtype().size_bytes() == 2;
        if gradient.dtype() != dtype && gradient.dtype() != wide && !is_narrower {
            return Err(mismatch(gradient.dtype(), dtype));
        }
        let quantized = !states.is_empty() && states.iter().all(|state| state.dtype() == DType::U8);
        let mut wide_ones = scalars.iter().chain(states.iter().filter(|_| !quantized));
        if let Some(other) = wide_ones.find(|other| other.dtype() != wide) {
            return Err(mismatch(other.dtype(), wide));
        }
        let state_shape = match quantized {
            true => Tensor::quantized_state_shape(parameter.element_count()),
            false => *parameter.shape(),
        };
        let shapes = [(gradient, *parameter.shape())].into_iter();
        for (other, right) in shapes.chain(states.iter().map(|state| (state, state_shape))) {
            if *other.shape() != right {
                return Err(TensorError::Shape { op, left: *other.shape(), right });
            }
        }
        if let Some(scalar) = scalars.iter().find(|scalar| scalar.element_count() != 1) {
            let (left, right) = (*scalar.shape(), Shape::new(&[]));
            return Err(TensorError::Shape { op, left, right });
        }
        let mut operands = [parameter, gradient].into_iter().chain(states);
        let is_contiguous = operands.all(|tensor| tensor.layout().is_contiguous());
        if quantized && !is_contiguous {
            return Err(TensorError::Strided { op });
        }
        Ok(Form { dtypes: [dtype, gradient.dtype()], quantized, is_contiguous })
    }

    fn state_dtype(&self) -> DType {
        if self.quantized { DType::U8 } else { self.dtypes[0].computed() }
    }
}

/// Calls a method with the types of parameter, gradient and states.
macro_rules! for_update {
    ($dtypes:expr, $kernel:ident.$method:ident($($argument:expr),*)) => {
        match $dtypes {
            [DType::F64, _] => $kernel.$method::<f64, f64, f64>($($argument),*),
            [DType::F32, DType::F16] => $kernel.$method::<f32, f16, f32>($($argument),*),
            [DType::F32, DType::BF16] => $kernel.$method::<f32, bf16, f32>($($argument),*),
            [DType::F32, _] => $kernel.$method::<f32, f32, f32>($($argument),*),
            [DType::F16, DType::F16] => $kernel.$method::<f16, f16, f32>($($argument),*),
            [DType::F16, _] => $kernel.$method::<f16, f32, f32>($($argument),*),
            [DType::BF16, DType::BF16] => $kernel.$method::<bf16, bf16, f32>($($argument),*),
            [DType::BF16, _] => $kernel.$method::<bf16, f32, f32>($($argument),*),
            _ => unreachable!("checked to be a float"),
        }
    };
}
use for_update;

/// [`Tensor::update_`] of many tensors, with the same bits as one after the other. Contiguous
/// tensors of the same types share launches, so that many small tensors take about as long as one
/// large tensor. Allocates nothing.
///
/// # Errors
/// The errors of [`Tensor::update_`], and `Overlap` for operands of different updates; all of them
/// before anything is written. An NVIDIA device may refuse a launch after earlier launches are
/// enqueued; the operands are then invalid.
///
/// # Panics
/// If a number of states or scalars is not the formula's: a bug in the caller.
#[track_caller]
pub fn update_all_<F, const STATES: usize, const SCALARS: usize>(
    device: &Device,
    updates: &mut [TensorUpdate<'_, F>],
) -> Result<()>
where
    F: UpdateFormula<STATES, SCALARS>,
{
    const { assert!(STATES <= STATES_MAX, "too many states") };
    let op = F::NAME;
    let mut batches: Vec<(Form, Vec<usize>)> = Vec::new();
    for (index, update) in updates.iter().enumerate() {
        let TensorUpdate { parameter, gradient, states, scalars, rounding, .. } = update;
        assert_eq!([states.len(), scalars.len()], [STATES, SCALARS], "states, scalars of {op}");
        let form = Form::of(op, parameter, gradient, states, scalars)?;
        let dtype = parameter.dtype();
        if matches!(rounding, Rounding::Stochastic(_)) && dtype != DType::BF16 {
            return Err(TensorError::DType { op, left: dtype, right: DType::BF16 });
        }
        let has_room = |(other, items): &&mut (Form, Vec<usize>)| {
            *other == form && items.len() < Update::<F, STATES, SCALARS>::ITEMS_MAX
        };
        match batches.iter_mut().rev().find(has_room).filter(|_| form.is_contiguous) {
            Some((_, items)) => items.push(index),
            None => batches.push((form, vec![index])),
        }
    }
    let batches: Vec<Batch<'_>> =
        batches.into_iter().map(|batch| Batch::new(batch, updates)).collect();
    batches.iter().try_for_each(|batch| device.check_launch(op, &batch.reads, &batch.writes))?;
    check_apart(op, &batches)?;
    let kernels: Vec<_> = batches.iter().map(|batch| batch.kernel(updates)).collect();
    for (kernel, Batch { reads, writes, .. }) in kernels.iter().zip(&batches) {
        device.check_kernel(kernel, reads, writes)?;
    }
    let mut launches = batches.iter().zip(kernels);
    launches
        .try_for_each(|(Batch { reads, writes, .. }, kernel)| device.launch(kernel, reads, writes))
}

/// Prepares a device for updates of parameters of `dtype` by known formulas. After this, the first
/// update has nothing to load that could fail. NVIDIA devices load the kernels, others do nothing.
///
/// # Errors
/// The error of a device that fails.
pub fn reserve_updates(device: &Device, dtype: DType) -> Result<()> {
    match device.accelerator() {
        Some(accelerator) if dtype.is_float() => accelerator.reserve_updates(dtype),
        _ => Ok(()),
    }
}

/// The updates of one launch.
struct Batch<'a> {
    form: Form,
    items: Vec<usize>,
    reads: Vec<&'a Tensor>,
    writes: Vec<&'a Tensor>,
}

impl<'a> Batch<'a> {
    fn new<F>((form, items): (Form, Vec<usize>), updates: &'a [TensorUpdate<'_, F>]) -> Self {
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        for TensorUpdate { parameter, gradient, states, scalars, .. } in
            items.iter().map(|&index| &updates[index])
        {
            reads.push(*gradient);
            reads.extend(*scalars);
            writes.push(&**parameter);
            writes.extend(&**states);
        }
        Batch { form, items, reads, writes }
    }

    fn kernel<F: Copy, const STATES: usize, const SCALARS: usize>(
        &self,
        updates: &[TensorUpdate<'_, F>],
    ) -> Update<F, STATES, SCALARS> {
        let item = |&index: &usize| {
            let TensorUpdate { formula, rounding, ref parameter, .. } = updates[index];
            Item { formula, rounding, len: parameter.element_count() }
        };
        Update { form: self.form, items: self.items.iter().map(item).collect() }
    }
}

/// `Overlap` if a launch would write an operand of another update.
#[track_caller]
fn check_apart(op: &'static str, batches: &[Batch<'_>]) -> Result<()> {
    let site = Location::caller();
    let reads: Vec<&Tensor> = batches.iter().flat_map(|batch| &batch.reads).copied().collect();
    let writes: Vec<&Tensor> = batches.iter().flat_map(|batch| &batch.writes).copied().collect();
    if overlap(&reads, &writes) { Err(TensorError::Overlap { op, site }) } else { Ok(()) }
}

impl Tensor {
    /// A state of zeros in 8 bits for [`Tensor::update_`] of a parameter with `len` elements:
    /// blocks of 256 codes, each with its own scale.
    ///
    /// # Errors
    /// `OutOfMemory`.
    #[track_caller]
    pub fn quantized_state(device: &Device, len: usize) -> Result<Tensor> {
        Tensor::zeros(device, Tensor::quantized_state_shape(len), DType::U8)
    }

    /// The shape of a [`Tensor::quantized_state`]. Its elements are bytes.
    pub fn quantized_state_shape(len: usize) -> Shape {
        Shape::new(&[len.div_ceil(BLOCK_LEN), BLOCK_BYTES])
    }

    /// One update of `self` and `states` by `formula`, in place; allocates nothing.
    ///
    /// All operands but the `scalars` have one shape. With a parameter of f64, all operands are
    /// f64. With another float type, states and scalars are f32, and the gradient is f32 or of the
    /// parameter's type; an f32 parameter also takes gradients of the half types. Operands that are
    /// not contiguous are slow.
    ///
    /// All states may instead be [`Tensor::quantized_state`]s, which take a quarter of the memory
    /// of f32 and are less precise. Parameter and gradient must then be contiguous.
    ///
    /// # Errors
    /// `Strided` for operands that must be contiguous and are not; `Shape`, also for a scalar that
    /// is not one element; `DType`, also for stochastic rounding of anything but bf16; `Frozen`,
    /// `Overlap`; `NoKernel` on an NVIDIA device for all but a [`KnownFormula`].
    #[track_caller]
    pub fn update_<const STATES: usize, const SCALARS: usize>(
        &mut self,
        gradient: &Tensor,
        states: &mut [Tensor; STATES],
        scalars: [&Tensor; SCALARS],
        formula: impl UpdateFormula<STATES, SCALARS>,
        rounding: Rounding,
    ) -> Result<()> {
        let scalars = scalars.map(Tensor::clone);
        let device = self.device().clone();
        let (parameter, scalars) = (self, &scalars[..]);
        let update = TensorUpdate { parameter, gradient, states, scalars, formula, rounding };
        update_all_(&device, &mut [update])
    }
}
