//! The adapter of one linear layer; A: [r, I], B: [O, r], magnitude: [O].

use lowtide_allocator::Category;
use lowtide_autograd::{Pass, Var};
use lowtide_tensor::{DType, Device, RandomKey, Tensor};

use crate::error::Result;
use crate::functional::dropout::dropout;
use crate::init;
use crate::layers::linear_weight::LinearWeight;
use crate::lora::options::LoraOptions;
use crate::parameter::Parameter;

/// Largest number of elements in a panel: norms and merges work on one panel of rows at a time.
const PANEL_LEN: usize = 1 << 20;

/// The two matrices that LoRA adds to a frozen [`Linear`](crate::Linear): `y = W x + b + s · B (A
/// drop(x))`. Clones share the parameters, like clones of a layer.
#[derive(Clone, Debug)]
pub struct Adapter {
    pub(crate) a: Parameter,
    pub(crate) b: Parameter,
    pub(crate) magnitude: Option<Parameter>,
    pub(crate) scale: f64,
    /// Probability of the dropout before A in training.
    pub(crate) dropout: f64,
}

impl Adapter {
    /// An adapter that does not change the layer's function: B is 0, and the magnitude is the row
    /// norms of W.
    pub(crate) fn new(
        weight: &LinearWeight,
        key: RandomKey,
        options: &LoraOptions,
    ) -> Result<Self> {
        let (shape, device) = (*weight.value().shape(), weight.value().device());
        let dtype = weight.value().dtype().computed();
        let (rank, bound) = (options.rank, init::default_bound(shape[1]));
        let mut a = parameter(device, &[rank, shape[1]], dtype)?;
        a.uniform_(key.op("lora_A"), -bound, bound)?;
        let mut b = parameter(device, &[shape[0], rank], dtype)?;
        b.zero_()?;
        let [a, b] = [a, b].map(Parameter::new);
        let (scale, dropout) = (options.scale(), options.dropout);
        let mut adapter = Adapter { a, b, magnitude: None, scale, dropout };
        if options.dora {
            let mut magnitude = parameter(device, &[shape[0]], dtype)?;
            magnitude.copy_(&adapter.row_norms(weight)?)?;
            adapter.magnitude = Some(Parameter::new(magnitude));
        }
        Ok(adapter)
    }

    /// The factor s.
    pub fn scale(&self) -> f64 {
        self.scale
    }

    /// A: `[r, I]`.
    pub fn a(&self) -> &Parameter {
        &self.a
    }

    /// B: `[O, r]`.
    pub fn b(&self) -> &Parameter {
        &self.b
    }

    /// The magnitudes of the rows, `[O]`; `None` without DoRA.
    pub fn magnitude(&self) -> Option<&Parameter> {
        self.magnitude.as_ref()
    }

    /// The output of the layer with the adapter.
    pub(crate) fn forward(
        &self,
        pass: &Pass,
        weight: &LinearWeight,
        bias: Option<&Parameter>,
        x: Var,
    ) -> Result<Var> {
        let bias = || bias.map(|bias| bias.var(pass)).transpose();
        let is_dropping = pass.is_training() && self.dropout > 0.0;
        let dropped = pass.within("lora_dropout", || dropout(pass, x.clone(), self.dropout))?;
        let Some(magnitude) = &self.magnitude else {
            let y = weight.product(pass, x, bias()?)?;
            return Ok(y.add(self.low_rank(pass, dropped)?)?);
        };
        // m / ‖W + s B A‖. As in PEFT, only m has a gradient.
        let norms = pass.constant(self.row_norms(weight)?);
        let factor = magnitude.var(pass)?.div(norms)?;
        if !is_dropping {
            let y = weight.product(pass, x, None)?.add(self.low_rank(pass, dropped)?)?;
            let factor = factor.to_dtype(y.value().dtype())?;
            let y = y.mul(factor)?;
            return Ok(match bias()? {
                Some(bias) => y.add(bias)?,
                None => y,
            });
        }
        // As in PEFT, dropout changes only the input of the added terms:
        // W x + b + (m / ‖·‖ - 1) · W drop(x) + m / ‖·‖ · s · B A drop(x).
        let y = weight.product(pass, x, bias()?)?;
        let factor = factor.to_dtype(y.value().dtype())?;
        let base = weight.product(pass, dropped.clone(), None)?;
        let change = self.low_rank(pass, dropped)?.mul(factor.clone())?;
        Ok(y.add(base.mul(factor.add_scalar(-1.0)?)?)?.add(change)?)
    }

    /// `s · B (A x)`, in the type of x as under autocast: no tensor of the size of x is made in the
    /// adapter's type.
    fn low_rank(&self, pass: &Pass, x: Var) -> Result<Var> {
        let a = self.a.var(pass)?.to_dtype(x.value().dtype())?;
        let hidden = x.linear(a, None)?.mul_scalar(self.scale)?;
        let b = self.b.var(pass)?.to_dtype(hidden.value().dtype())?;
        Ok(hidden.linear(b, None)?)
    }

    /// The weight of the layer with the adapter: `W + s B A`. With DoRA each row is multiplied by
    /// `m / ‖W + s B A‖`. A loss that takes the weight of an output layer uses this. The result has
    /// the size of the whole weight, and its user keeps it for backward.
    pub(crate) fn weight(&self, pass: &Pass, weight: &LinearWeight) -> Result<Var> {
        let whole = weight.var(pass)?;
        let dtype = whole.value().dtype();
        let b = self.b.var(pass)?.mul_scalar(self.scale)?;
        let change = b.matmul(self.a.var(pass)?)?.to_dtype(dtype)?;
        let sum = whole.add(change)?;
        let Some(magnitude) = &self.magnitude else { return Ok(sum) };
        let norms = pass.constant(self.row_norms(weight)?);
        let factor = magnitude.var(pass)?.div(norms)?.unsqueeze(1)?;
        Ok(sum.mul(factor.to_dtype(dtype)?)?)
    }

    /// `‖W + s B A‖` of each row, `[O]`. Computes one panel of rows at a time.
    fn row_norms(&self, weight: &LinearWeight) -> Result<Tensor> {
        let scaled = self.b.value().mul_scalar(self.scale)?;
        // `weight.value()` has no values if the weight is quantised; only its shape and type are
        // used.
        let device = scaled.device();
        let (rows, dtype) = (weight.value().shape()[0], weight.value().dtype().computed());
        let norms = Tensor::empty(device, [rows], dtype)?;
        let mut scratch = Tensor::empty(device, [panel_len(weight.value())], dtype)?;
        for (first, count) in panels(weight.value()) {
            let sum = self.sum_rows(weight, &scaled, &mut scratch, [first, count])?;
            norms.narrow(0, first, count)?.copy_(&sum.norm(&[1], 2.0)?)?;
        }
        Ok(norms)
    }

    /// `W + s B A` of some rows, in scratch memory. Allocates nothing.
    fn sum_rows(
        &self,
        weight: &LinearWeight,
        scaled: &Tensor,
        scratch: &mut Tensor,
        [first, count]: [usize; 2],
    ) -> Result<Tensor> {
        let inputs = weight.value().shape()[1];
        let mut sum = scratch.narrow(0, 0, count * inputs)?.reshape([count, inputs])?;
        weight.copy_rows(first, &mut sum)?;
        sum.matmul_add_(&scaled.narrow(0, first, count)?, self.a.value())?;
        Ok(sum)
    }

    /// Allocates and computes the tensors that a merge of this adapter needs.
    pub(crate) fn merge_plan(&self, weight: &LinearWeight) -> Result<MergePlan> {
        weight.value().check_writable("merge")?;
        let scaled = self.b.value().mul_scalar(self.scale)?;
        let factor = match &self.magnitude {
            Some(magnitude) => Some(magnitude.value().div(&self.row_norms(weight)?)?.unsqueeze(1)?),
            None => None,
        };
        Ok(MergePlan { scaled, factor })
    }

    /// Writes the merged weight in place, one panel of rows at a time. Allocates nothing, so that a
    /// merge cannot run out of memory half-way.
    pub(crate) fn merge_into(
        &self,
        weight: &LinearWeight,
        plan: &MergePlan,
        [sums, scaled]: &mut [Tensor; 2],
    ) -> Result<()> {
        for (first, count) in panels(weight.value()) {
            let sum = self.sum_rows(weight, &plan.scaled, sums, [first, count])?;
            let mut rows = weight.value().narrow(0, first, count)?;
            let Some(factor) = &plan.factor else {
                rows.copy_(&sum)?;
                continue;
            };
            let shape = *sum.shape();
            let mut product = scaled.narrow(0, 0, shape.element_count())?.reshape(shape)?;
            product.zero_()?;
            product.addcmul_(&sum, &factor.narrow(0, first, count)?.expand(shape)?, 1.0)?;
            rows.copy_(&product)?;
        }
        Ok(())
    }
}

/// The tensors that the merge of one layer needs.
pub(crate) struct MergePlan {
    /// `s B`
    scaled: Tensor,
    /// `m / ‖W + s B A‖`: [O, 1].
    factor: Option<Tensor>,
}

impl MergePlan {
    pub(crate) fn has_factor(&self) -> bool {
        self.factor.is_some()
    }
}

fn parameter(device: &Device, shape: &[usize], dtype: DType) -> Result<Tensor> {
    Ok(Tensor::empty_in(device, Category::Parameter, shape, dtype)?)
}

/// Number of rows of a panel of the weight.
fn panel_rows(weight: &Tensor) -> usize {
    let [rows, inputs] = [weight.shape()[0], weight.shape()[1]];
    (PANEL_LEN / inputs.max(1)).clamp(1, rows.max(1))
}

/// Number of elements of a panel of the weight.
pub(crate) fn panel_len(weight: &Tensor) -> usize {
    panel_rows(weight) * weight.shape()[1]
}

/// The first row and the number of rows of each panel.
fn panels(weight: &Tensor) -> impl Iterator<Item = (usize, usize)> + use<> {
    let (rows, step) = (weight.shape()[0], panel_rows(weight));
    (0..rows).step_by(step).map(move |first| (first, step.min(rows - first)))
}
