//! `y = x Wᵀ + b`; x: [N, I], W: [O, I], b: [O], y: [N, O].

use lowtide_allocator::Category;
use lowtide_autograd::{Pass, Var};
use lowtide_tensor::{DType, Device, QuantFormat, Quantized, RandomKey, Tensor, TensorError};

use crate::error::Result;
use crate::init;
use crate::layers::weight_norm::weighted;
use crate::lora::{Adapter, MergePlan};
use crate::module::Module;
use crate::node::{Node, Nodes, Visitor};
use crate::parameter::Parameter;
use crate::quantized::{Activations, QuantizedWeight, stand_in};
use crate::tensor_parallel::{BranchShare, LayerShare, VocabularyShare};

/// A fully connected layer, `torch.nn.Linear`; perhaps with an [adapter](crate::adapt).
#[derive(Clone, Debug)]
pub struct Linear {
    weight: Parameter,
    bias: Option<Parameter>,
    adapter: Option<Adapter>,
    /// In place of the weight, of which only the shape and the type are then there.
    quantized: Option<QuantizedWeight>,
    /// What other ranks have of it.
    pub(crate) share: Option<LayerShare>,
}

impl Linear {
    /// A layer from `inputs` to `outputs` features with a bias.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn new(device: &Device, key: RandomKey, inputs: usize, outputs: usize) -> Result<Self> {
        let bound = init::default_bound(inputs);
        let bias = Parameter::uniform(device, key.op("bias"), [outputs], bound)?;
        Ok(Linear { bias: Some(bias), ..Self::without_bias(device, key, inputs, outputs)? })
    }

    /// A layer from `inputs` to `outputs` features without a bias.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn without_bias(
        device: &Device,
        key: RandomKey,
        inputs: usize,
        outputs: usize,
    ) -> Result<Self> {
        let bound = init::default_bound(inputs);
        let weight = Parameter::uniform(device, key.op("weight"), [outputs, inputs], bound)?;
        Ok(Linear::from_parameters(weight, None))
    }

    /// [`Linear::new`] or [`Linear::without_bias`].
    pub(crate) fn with(
        device: &Device,
        key: RandomKey,
        [inputs, outputs]: [usize; 2],
        bias: bool,
    ) -> Result<Self> {
        match bias {
            true => Linear::new(device, key, inputs, outputs),
            false => Linear::without_bias(device, key, inputs, outputs),
        }
    }

    /// A layer with these parameters: a weight `[O, I]` and a bias `[O]`.
    pub fn from_parameters(weight: Parameter, bias: Option<Parameter>) -> Self {
        Linear { weight, bias, adapter: None, quantized: None, share: None }
    }

    /// The weight, `[O, I]`. Of a [quantised](Linear::quantize) layer it has the shape and the
    /// type, but no values of its own.
    pub fn weight(&self) -> &Parameter {
        &self.weight
    }

    /// The bias, `[O]`, if there is one.
    pub fn bias(&self) -> Option<&Parameter> {
        self.bias.as_ref()
    }

    /// What [LoRA](crate::adapt) added, if anything.
    pub fn adapter(&self) -> Option<&Adapter> {
        self.adapter.as_ref()
    }

    pub(crate) fn adapter_mut(&mut self) -> Option<&mut Adapter> {
        self.adapter.as_mut()
    }

    pub(crate) fn set_adapter(&mut self, adapter: Option<Adapter>) {
        self.adapter = adapter;
    }

    /// The weight in a pass with what an adapter adds to it, `[O, I]`: for a loss that takes the
    /// weight of an output layer. An adapter's dropout has no place in it.
    ///
    /// # Errors
    /// `Consumed` after backward, `OutOfMemory`.
    pub fn adapted_weight(&self, pass: &Pass) -> Result<Var> {
        match &self.adapter {
            Some(adapter) => adapter.weight(pass, self),
            None => self.weight_in(pass),
        }
    }

    /// `input Wᵀ + bias`, without the adapter.
    pub(crate) fn product(&self, pass: &Pass, input: Var, bias: Option<Var>) -> Result<Var> {
        match &self.quantized {
            Some(weight) => weight.product(input, bias),
            None => Ok(input.linear(self.weight.var(pass)?, bias)?),
        }
    }

    /// The weight without an adapter; a quantised one is decoded as a whole.
    pub(crate) fn weight_in(&self, pass: &Pass) -> Result<Var> {
        match &self.quantized {
            Some(weight) => Ok(pass.constant(weight.get()?.decode(self.weight.value().dtype())?)),
            None => self.weight.var(pass),
        }
    }

    /// Rows of the weight from `first` on, as many as `to` has, in its type. Allocates nothing.
    pub(crate) fn copy_rows(&self, first: usize, to: &mut Tensor) -> Result<()> {
        match &self.quantized {
            Some(weight) => weight.get()?.decode_rows_into(first, to)?,
            None => to.copy_(&self.weight.value().narrow(0, first, to.shape()[0])?)?,
        }
        Ok(())
    }

    /// Puts the weight in few bits, for good: it has no gradient any more, and what it was is
    /// freed unless others hold it. The bias stays. See [`crate::quantize`] for whole models.
    ///
    /// # Errors
    /// `Shape` for rows that are no whole blocks, `OutOfMemory`; then nothing was changed.
    pub fn quantize(&mut self, format: QuantFormat) -> Result<()> {
        if self.quantized.is_some() {
            return Ok(());
        }
        let quantized = QuantizedWeight::encode(self.weight.value(), format)?;
        self.set_stand_in()?;
        self.quantized = Some(quantized);
        Ok(())
    }

    /// Takes a weight that was quantised elsewhere, such as one that was stored.
    ///
    /// # Errors
    /// `Shape` unless it has the shape of this layer's, `OutOfMemory`.
    pub fn set_quantized(&mut self, weight: &Quantized) -> Result<()> {
        let (left, right) = (*weight.shape(), *self.weight.value().shape());
        if left != right {
            return Err(TensorError::Shape { op: "set_quantized", left, right }.into());
        }
        let quantized = QuantizedWeight::of(weight)?;
        self.set_stand_in()?;
        self.quantized = Some(quantized);
        Ok(())
    }

    /// Decodes the weight to floats of this type, frozen; nothing to do unless it is quantised.
    ///
    /// # Errors
    /// `DType`, `OutOfMemory`.
    pub fn dequantize(&mut self, dtype: DType) -> Result<()> {
        if let Some(weight) = &self.quantized {
            let weight = weight.get()?;
            let _scope = weight.device().category(Category::Parameter);
            self.weight = Parameter::new(weight.decode(dtype)?);
            self.weight.freeze();
            self.quantized = None;
        }
        Ok(())
    }

    /// The weight in few bits, if it is.
    ///
    /// # Errors
    /// `DType` where the type of a scale was changed.
    pub fn quantized(&self) -> Option<Result<Quantized>> {
        self.quantized.as_ref().map(QuantizedWeight::get)
    }

    /// What the layer multiplies from now on, until its weight is decoded or another one. See
    /// [`crate::set_activations`] for whole models.
    ///
    /// # Errors
    /// For [`Activations::Int8`] `Format` unless the weight is in [`QuantFormat::Int8Rows`], and
    /// `DType` for a weight of floats.
    pub fn set_activations(&mut self, activations: Activations) -> Result<()> {
        match (&mut self.quantized, activations) {
            (Some(weight), _) => weight.set_activations(activations),
            (None, Activations::Float) => Ok(()),
            (None, Activations::Int8) => {
                let (left, right) = (self.weight.value().dtype(), DType::U8);
                Err(TensorError::DType { op: "set_activations", left, right }.into())
            }
        }
    }

    /// How the weight is quantised, if it is.
    pub(crate) fn format(&self) -> Option<QuantFormat> {
        self.quantized.as_ref().map(QuantizedWeight::format)
    }

    /// Leaves nothing of the weight but its shape and its type.
    fn set_stand_in(&mut self) -> Result<()> {
        let weight = Parameter::new(stand_in(self.weight.value())?);
        weight.freeze();
        self.weight = weight;
        Ok(())
    }

    /// Whether it has a weight of floats and no adapter.
    pub(crate) fn is_plain(&self) -> bool {
        self.adapter.is_none() && self.quantized.is_none() && self.weight.quantized.is_none()
    }

    fn branch(&self) -> Option<&BranchShare> {
        match &self.share {
            Some(LayerShare::End(share)) => Some(share),
            Some(LayerShare::Rows(_)) | None => None,
        }
    }

    /// The rows that this rank has of an output layer that ranks [share](crate::share_layers).
    pub fn vocabulary(&self) -> Option<&VocabularyShare> {
        match &self.share {
            Some(LayerShare::Rows(share)) => Some(share),
            Some(LayerShare::End(_)) | None => None,
        }
    }

    /// What the first layers of the branch that this layer ends are given: where ranks
    /// [share](crate::share_layers) the branch, its gradient is added up over them. Everything that
    /// the branch reads, but for parameters, has to come through here.
    ///
    /// # Errors
    /// `Consumed` after backward.
    pub fn branch_input(&self, x: Var) -> Result<Var> {
        self.branch().map_or(Ok(x.clone()), |share| share.input(x))
    }

    /// What the heads or features that this rank has of the branch have of x, along a dimension.
    ///
    /// # Errors
    /// `Consumed` after backward.
    pub fn own_units(&self, x: Var, axis: usize) -> Result<Var> {
        self.branch().map_or(Ok(x.clone()), |share| share.own_units(x, axis))
    }

    /// Runs what draws random numbers in the branch that this layer ends: each rank's are its own.
    pub fn within_branch<T>(&self, pass: &Pass, run: impl FnOnce() -> T) -> T {
        match self.branch() {
            Some(share) => share.within(pass, run),
            None => run(),
        }
    }

    pub(crate) fn bias_in(&self, pass: &Pass) -> Result<Option<Var>> {
        self.bias.as_ref().map(|bias| bias.var(pass)).transpose()
    }

    /// Adds what the adapter does to the weight, in place.
    pub(crate) fn merge(&self, plan: &MergePlan, scratch: &mut [Tensor; 2]) -> Result<()> {
        match &self.adapter {
            Some(adapter) => adapter.merge_into(self, plan, scratch),
            None => Ok(()),
        }
    }
}

impl Nodes for Linear {
    fn visit_nodes(&mut self, visitor: &mut Visitor<'_>) {
        visitor.node("", Node::Linear(self));
        match &mut self.quantized {
            Some(quantized) => visitor.field("weight", quantized),
            None => visitor.field("weight", &mut self.weight),
        }
        visitor.field("bias", &mut self.bias);
        visitor.field("", &mut self.adapter);
    }
}

impl Module for Linear {
    /// # Shapes
    /// `input: [.., I] → [.., O]`
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        match &self.adapter {
            Some(adapter) => adapter.forward(pass, self, input),
            None => match self.branch() {
                Some(share) => share.end(self.product(pass, input, None)?, self.bias_in(pass)?),
                None => self.product(pass, input, self.bias_in(pass)?),
            },
        }
    }
}

weighted!(Linear, |self, input, weight, bias| Ok(input.linear(weight, bias)?));
