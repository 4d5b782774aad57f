//! `y = x Wᵀ + b`; x: [N, I], W: [O, I], b: [O], y: [N, O].

use lowtide_autograd::{Pass, Var};
use lowtide_tensor::{DType, Device, QuantFormat, Quantized, RandomKey};

use crate::compress::quantized_weight::{Activations, QuantizedWeight};
use crate::error::Result;
use crate::init;
use crate::layers::linear_weight::LinearWeight;
use crate::lora::adapter::Adapter;
use crate::module::Module;
use crate::node::{Node, Nodes, Visitor};
use crate::parallel::features::layer_share::{BranchShare, LayerShare};
use crate::parallel::features::vocabulary::VocabularyShare;
use crate::parameter::Parameter;

/// A fully connected layer, `torch.nn.Linear`; perhaps with an [adapter](crate::adapt).
#[derive(Clone, Debug)]
pub struct Linear {
    weight: LinearWeight,
    bias: Option<Parameter>,
    adapter: Option<Adapter>,
    /// The part of the layer that this rank has, where ranks share it.
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
        if bias {
            Linear::new(device, key, inputs, outputs)
        } else {
            Linear::without_bias(device, key, inputs, outputs)
        }
    }

    /// A layer with these parameters: a weight `[O, I]` and a bias `[O]`.
    pub fn from_parameters(weight: Parameter, bias: Option<Parameter>) -> Self {
        Linear { weight: LinearWeight::new(weight), bias, adapter: None, share: None }
    }

    /// The weight, `[O, I]`. The weight of a [quantised](Linear::quantize) layer has the shape and
    /// the type, but no values of its own.
    pub fn weight(&self) -> &Parameter {
        &self.weight.parameter
    }

    /// The weight, to show or to replace.
    pub(super) fn weight_mut(&mut self) -> &mut Parameter {
        &mut self.weight.parameter
    }

    /// The bias, `[O]`, if there is one.
    pub fn bias(&self) -> Option<&Parameter> {
        self.bias.as_ref()
    }

    /// The [adapter](crate::adapt), if there is one.
    pub fn adapter(&self) -> Option<&Adapter> {
        self.adapter.as_ref()
    }

    pub(crate) fn adapter_mut(&mut self) -> Option<&mut Adapter> {
        self.adapter.as_mut()
    }

    pub(crate) fn set_adapter(&mut self, adapter: Option<Adapter>) {
        self.adapter = adapter;
    }

    /// The weight without the adapter.
    pub(crate) fn base(&self) -> &LinearWeight {
        &self.weight
    }

    /// The weight in a pass with the adapter's change, `[O, I]`: for a loss that takes the weight
    /// of an output layer. An adapter's dropout has no place in it.
    ///
    /// # Errors
    /// `Consumed` after backward, `OutOfMemory`.
    pub fn adapted_weight(&self, pass: &Pass) -> Result<Var> {
        match &self.adapter {
            Some(adapter) => adapter.weight(pass, &self.weight),
            None => self.weight.var(pass),
        }
    }

    /// Puts the weight in few bits, for good: it has no gradient any more, and its floats are freed
    /// unless others hold them. The bias stays. See [`crate::quantize`] for whole models.
    ///
    /// # Errors
    /// `Shape` for rows that are no whole blocks, `OutOfMemory`; then nothing was changed.
    pub fn quantize(&mut self, format: QuantFormat) -> Result<()> {
        self.weight.quantize(format)
    }

    /// Takes a weight that was quantised elsewhere, such as one that was stored.
    ///
    /// # Errors
    /// `Shape` unless it has the shape of this layer's, `OutOfMemory`.
    pub fn set_quantized(&mut self, weight: &Quantized) -> Result<()> {
        self.weight.set_quantized(weight)
    }

    /// Decodes the weight to floats of this type, frozen; nothing to do unless it is quantised.
    ///
    /// # Errors
    /// `DType`, `OutOfMemory`.
    pub fn dequantize(&mut self, dtype: DType) -> Result<()> {
        self.weight.dequantize(dtype)
    }

    /// The weight in few bits, if it is.
    ///
    /// # Errors
    /// `DType` where the type of a scale was changed.
    pub fn quantized(&self) -> Option<Result<Quantized>> {
        self.weight.quantized.as_ref().map(QuantizedWeight::get)
    }

    /// Sets the type of the numbers that the layer multiplies, until its weight is decoded or
    /// another one. See [`crate::set_activations`] for whole models.
    ///
    /// # Errors
    /// For [`Activations::Int8`] `Format` unless the weight is in [`QuantFormat::Int8Rows`], and
    /// `DType` for a weight of floats.
    pub fn set_activations(&mut self, activations: Activations) -> Result<()> {
        self.weight.set_activations(activations)
    }

    /// How the weight is quantised, if it is.
    pub(crate) fn format(&self) -> Option<QuantFormat> {
        self.weight.quantized.as_ref().map(QuantizedWeight::format)
    }

    /// True if the layer has a weight of floats and no adapter.
    pub(crate) fn is_plain(&self) -> bool {
        self.adapter.is_none() && self.weight.is_plain()
    }

    fn branch(&self) -> Option<&BranchShare> {
        match &self.share {
            Some(LayerShare::End(share)) => Some(share),
            Some(LayerShare::Rows(_)) | None => None,
        }
    }

    /// The rows that this rank has of an output layer that ranks
    /// [share](crate::parallel::share_layers).
    pub fn vocabulary(&self) -> Option<&VocabularyShare> {
        match &self.share {
            Some(LayerShare::Rows(share)) => Some(share),
            Some(LayerShare::End(_)) | None => None,
        }
    }

    /// The input x of the branch that this layer ends. Where ranks
    /// [share](crate::parallel::share_layers) the branch, the gradient of x is summed over them.
    /// Everything that the branch reads, but for parameters, has to come through here.
    ///
    /// # Errors
    /// `Consumed` after backward.
    pub fn branch_input(&self, x: Var) -> Result<Var> {
        self.branch().map_or(Ok(x.clone()), |share| share.input(x))
    }

    /// The part of x, along a dimension, that belongs to the heads or features of this rank.
    ///
    /// # Errors
    /// `Consumed` after backward.
    pub fn own_units(&self, x: Var, axis: usize) -> Result<Var> {
        self.branch().map_or(Ok(x.clone()), |share| share.own_units(x, axis))
    }

    /// Runs a function that draws random numbers in the branch that this layer ends: each rank's
    /// numbers are its own.
    pub fn within_branch<T>(&self, pass: &Pass, run: impl FnOnce() -> T) -> T {
        match self.branch() {
            Some(share) => share.within(pass, run),
            None => run(),
        }
    }

    fn bias_in(&self, pass: &Pass) -> Result<Option<Var>> {
        self.bias.as_ref().map(|bias| bias.var(pass)).transpose()
    }
}

impl Nodes for Linear {
    fn visit_nodes(&mut self, visitor: &mut Visitor<'_>) {
        visitor.node("", Node::Linear(self));
        let Linear { weight: LinearWeight { parameter, quantized }, bias, adapter, .. } = self;
        match quantized {
            Some(quantized) => visitor.field("weight", quantized),
            None => visitor.field("weight", parameter),
        }
        visitor.field("bias", bias);
        visitor.field("", adapter);
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

impl Module for Linear {
    /// # Shapes
    /// `input: [.., I] → [.., O]`
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        if let Some(adapter) = &self.adapter {
            return adapter.forward(pass, &self.weight, self.bias.as_ref(), input);
        }
        match self.branch() {
            Some(share) => share.end(self.weight.product(pass, input, None)?, self.bias_in(pass)?),
            None => self.weight.product(pass, input, self.bias_in(pass)?),
        }
    }
}
