//! The adapter of one linear layer; A: [r, I], B: [O, r], magnitude: [O].

use lowtide_allocator::Category;
use lowtide_autograd::{Pass, Var};
use lowtide_tensor::{DType, Device, RandomKey, Tensor};

use crate::error::Result;
use crate::init;
use crate::layers::dropout::Dropout;
use crate::layers::linear::Linear;
use crate::lora::LoraOptions;
use crate::module::Module;
use crate::node::{Nodes, Visitor};
use crate::parameter::Parameter;

/// Elements of the rows of a weight that norms and merges work on at a time.
const PANEL_LEN: usize = 1 << 20;

/// What LoRA adds to a frozen [`Linear`]: `y = W x + b + s · B (A drop(x))`. Clones share the
/// parameters, as those of layers do.
#[derive(Clone, Debug)]
pub struct Adapter {
    pub(crate) a: Parameter,
    pub(crate) b: Parameter,
    pub(crate) magnitude: Option<Parameter>,
    pub(crate) scale: f64,
    pub(crate) dropout: Dropout,
}

impl Adapter {
    /// An adapter that leaves the layer's function as it is: B is 0, and the magnitude that of W.
    pub(crate) fn new(layer: &Linear, key: RandomKey, options: &LoraOptions) -> Result<Self> {
        let weight = layer.weight().value();
        let (shape, device) = (*weight.shape(), weight.device());
        let dtype = weight.dtype().computed();
        let (rank, bound) = (options.rank, init::default_bound(shape[1]));
        let mut a = parameter(device, &[rank, shape[1]], dtype)?;
        a.uniform_(key.op("lora_A"), -bound, bound)?;
        let mut b = parameter(device, &[shape[0], rank], dtype)?;
        b.zero_()?;
        let dropout = Dropout::new(options.dropout)?;
        let [a, b] = [a, b].map(Parameter::new);
        let mut adapter = Adapter { a, b, magnitude: None, scale: options.scale(), dropout };
        if options.dora {
            let mut magnitude = parameter(device, &[shape[0]], dtype)?;
            magnitude.copy_(&adapter.row_norms(layer)?)?;
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

    /// The magnitudes of the rows, `[O]`, with DoRA.
    pub fn magnitude(&self) -> Option<&Parameter> {
        self.magnitude.as_ref()
    }

    /// The layer's result with the adapter.
    pub(crate) fn forward(&self, pass: &Pass, layer: &Linear, x: Var) -> Result<Var> {
        let is_dropping = pass.is_training() && self.dropout.probability() > 0.0;
        let dropped = pass.within("lora_dropout", || self.dropout.forward(pass, x.clone()))?;
        let Some(magnitude) = &self.magnitude else {
            let y = layer.product(pass, x, layer.bias_in(pass)?)?;
            return Ok(y.add(self.low_rank(pass, dropped)?)?);
        };
        // m / ‖W + s B A‖, which PEFT takes as a constant but for m.
        let norms = pass.constant(self.row_norms(layer)?);
        let factor = magnitude.var(pass)?.div(norms)?;
        if !is_dropping {
            let y = layer.product(pass, x, None)?.add(self.low_rank(pass, dropped)?)?;
            let factor = factor.to_dtype(y.value().dtype())?;
            let y = y.mul(factor)?;
            return Ok(match layer.bias_in(pass)? {
                Some(bias) => y.add(bias)?,
                None => y,
            });
        }
        // As in PEFT, only the change sees what dropout left:
        // W x + b + (m / ‖·‖ - 1) · W drop(x) + m / ‖·‖ · s · B A drop(x).
        let y = layer.product(pass, x, layer.bias_in(pass)?)?;
        let factor = factor.to_dtype(y.value().dtype())?;
        let base = layer.product(pass, dropped.clone(), None)?;
        let change = self.low_rank(pass, dropped)?.mul(factor.clone())?;
        Ok(y.add(base.mul(factor.add_scalar(-1.0)?)?)?.add(change)?)
    }

    /// `s · B (A x)`, in the type of x, as under autocast: nothing of the size of x is made in the
    /// adapter's own type.
    fn low_rank(&self, pass: &Pass, x: Var) -> Result<Var> {
        let a = self.a.var(pass)?.to_dtype(x.value().dtype())?;
        let hidden = x.linear(a, None)?.mul_scalar(self.scale)?;
        let b = self.b.var(pass)?.to_dtype(hidden.value().dtype())?;
        Ok(hidden.linear(b, None)?)
    }

    /// The weight of the layer with the adapter: `W + s B A`, by rows `m / ‖W + s B A‖` times that
    /// with DoRA. For heads whose weight a loss takes; it is a whole layer, kept for backward by
    /// what uses it.
    pub(crate) fn weight(&self, pass: &Pass, layer: &Linear) -> Result<Var> {
        let weight = layer.weight_in(pass)?;
        let dtype = weight.value().dtype();
        let b = self.b.var(pass)?.mul_scalar(self.scale)?;
        let change = b.matmul(self.a.var(pass)?)?.to_dtype(dtype)?;
        let sum = weight.add(change)?;
        let Some(magnitude) = &self.magnitude else { return Ok(sum) };
        let norms = pass.constant(self.row_norms(layer)?);
        let factor = magnitude.var(pass)?.div(norms)?.unsqueeze(1)?;
        Ok(sum.mul(factor.to_dtype(dtype)?)?)
    }

    /// `‖W + s B A‖` of each row, `[O]`, over a panel of rows at a time.
    fn row_norms(&self, layer: &Linear) -> Result<Tensor> {
        let weight = layer.weight().value();
        let scaled = self.b.value().mul_scalar(self.scale)?;
        // Of a quantised layer only the shape and the type of the weight are there.
        let device = scaled.device();
        let (rows, dtype) = (weight.shape()[0], weight.dtype().computed());
        let norms = Tensor::empty(device, [rows], dtype)?;
        let mut scratch = Tensor::empty(device, [panel_len(weight)], dtype)?;
        for (first, count) in panels(weight) {
            let sum = self.sum_rows(layer, &scaled, &mut scratch, [first, count])?;
            norms.narrow(0, first, count)?.copy_(&sum.norm(&[1], 2.0)?)?;
        }
        Ok(norms)
    }

    /// `W + s B A` of some rows, in the scratch. Allocates nothing.
    fn sum_rows(
        &self,
        layer: &Linear,
        scaled: &Tensor,
        scratch: &mut Tensor,
        [first, count]: [usize; 2],
    ) -> Result<Tensor> {
        let inputs = layer.weight().value().shape()[1];
        let mut sum = scratch.narrow(0, 0, count * inputs)?.reshape([count, inputs])?;
        layer.copy_rows(first, &mut sum)?;
        sum.matmul_add_(&scaled.narrow(0, first, count)?, self.a.value())?;
        Ok(sum)
    }

    /// What a merge of this adapter takes, made beforehand.
    pub(crate) fn merge_plan(&self, layer: &Linear) -> Result<MergePlan> {
        layer.weight().value().check_writable("merge")?;
        let scaled = self.b.value().mul_scalar(self.scale)?;
        let factor = match &self.magnitude {
            Some(magnitude) => Some(magnitude.value().div(&self.row_norms(layer)?)?.unsqueeze(1)?),
            None => None,
        };
        Ok(MergePlan { scaled, factor })
    }

    /// Writes the merged weight in place, a panel of rows at a time. Allocates nothing, so that
    /// nothing can fail half-way for lack of memory.
    pub(crate) fn merge_into(
        &self,
        layer: &Linear,
        plan: &MergePlan,
        [sums, scaled]: &mut [Tensor; 2],
    ) -> Result<()> {
        let weight = layer.weight().value();
        for (first, count) in panels(weight) {
            let sum = self.sum_rows(layer, &plan.scaled, sums, [first, count])?;
            let mut rows = weight.narrow(0, first, count)?;
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

/// The names are PEFT's.
impl Nodes for Adapter {
    fn visit_nodes(&mut self, visitor: &mut Visitor<'_>) {
        visitor.field("lora_A.weight", &mut self.a);
        visitor.field("lora_B.weight", &mut self.b);
        visitor.field("lora_magnitude_vector", &mut self.magnitude);
    }
}

/// What one layer's merge takes.
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

/// Rows of a panel of the weight.
fn panel_rows(weight: &Tensor) -> usize {
    let [rows, inputs] = [weight.shape()[0], weight.shape()[1]];
    (PANEL_LEN / inputs.max(1)).clamp(1, rows.max(1))
}

/// Elements of a panel of the weight.
pub(crate) fn panel_len(weight: &Tensor) -> usize {
    panel_rows(weight) * weight.shape()[1]
}

/// The first row and the rows of each panel.
fn panels(weight: &Tensor) -> impl Iterator<Item = (usize, usize)> + use<> {
    let (rows, step) = (weight.shape()[0], panel_rows(weight));
    (0..rows).step_by(step).map(move |first| (first, step.min(rows - first)))
}
