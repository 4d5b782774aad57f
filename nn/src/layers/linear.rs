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

/// A fully connected layer, `torch.nn.Linear`. It can have an [adapter](crate::adapt).
#[derive(Clone, Debug)]
pub struct Linear {
    weight: LinearWeight,
    bias: Option<Parameter>,
    adapter: Option<Adapter>,
    /// The part of the layer on this rank, if ranks share the layer.
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

    /// The weight, `[O, I]`. If the layer is [quantised](Linear::quantize), this parameter has the
    /// shape and the type of the weight, but no values.
    pub fn weight(&self) -> &Parameter {
        &self.weight.parameter
    }

    /// The weight, to show to a visitor or to replace.
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

    /// The weight without the change of the adapter.
    pub(crate) fn base(&self) -> &LinearWeight {
        &self.weight
    }

    /// The weight in a pass including the adapter's change, `[O, I]`, for a loss that takes the
    /// weight of an output layer. The dropout of an adapter is not applied.
    ///
    /// # Errors
    /// `Consumed` after backward, `OutOfMemory`.
    pub fn adapted_weight(&self, pass: &Pass) -> Result<Var> {
        match &self.adapter {
            Some(adapter) => adapter.weight(pass, &self.weight),
            None => self.weight.var(pass),
        }
    }

    /// Quantises the weight. The weight has no gradient any more, and its floats are freed unless
    /// other handles hold them. The bias stays. See [`crate::quantize`] for whole models.
    ///
    /// # Errors
    /// `Shape` for rows that are not a whole number of blocks, `OutOfMemory`. The layer is then as
    /// before.
    pub fn quantize(&mut self, format: QuantFormat) -> Result<()> {
        self.weight.quantize(format)
    }

    /// Replaces the weight by a quantised weight, such as one from a file.
    ///
    /// # Errors
    /// `Shape` unless `weight` has the shape of this layer's weight, `OutOfMemory`.
    pub fn set_quantized(&mut self, weight: &Quantized) -> Result<()> {
        self.weight.set_quantized(weight)
    }

    /// Decodes a quantised weight to a frozen parameter of this type. A weight of floats stays.
    ///
    /// # Errors
    /// `DType`, `OutOfMemory`.
    pub fn dequantize(&mut self, dtype: DType) -> Result<()> {
        self.weight.dequantize(dtype)
    }

    /// The quantised weight; `None` if the weight is not quantised.
    ///
    /// # Errors
    /// `DType` if the type of a scale was changed.
    pub fn quantized(&self) -> Option<Result<Quantized>> {
        self.weight.quantized.as_ref().map(QuantizedWeight::get)
    }

    /// Sets the type of the numbers that the layer multiplies. The setting lasts until the weight
    /// is decoded or replaced. See [`crate::set_activations`] for whole models.
    ///
    /// # Errors
    /// For [`Activations::Int8`]: `Format` unless the format of the weight is
    /// [`QuantFormat::Int8Rows`], and `DType` for a weight of floats.
    pub fn set_activations(&mut self, activations: Activations) -> Result<()> {
        self.weight.set_activations(activations)
    }

    /// The format of the weight, if it is quantised.
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

    /// The rows on this rank, if the layer is an output layer that ranks
    /// [share](crate::parallel::share_layers).
    pub fn vocabulary(&self) -> Option<&VocabularyShare> {
        match &self.share {
            Some(LayerShare::Rows(share)) => Some(share),
            Some(LayerShare::End(_)) | None => None,
        }
    }

    /// The input x of the branch that this layer ends. If ranks
    /// [share](crate::parallel::share_layers) the branch, the gradient of x is summed over the
    /// ranks. Every input that the branch reads, except parameters, has to come through this
    /// function.
    ///
    /// # Errors
    /// `Consumed` after backward.
    pub fn branch_input(&self, x: Var) -> Result<Var> {
        self.branch().map_or(Ok(x.clone()), |share| share.input(x))
    }

    /// The part of x, along a dimension, for the heads or features of this rank.
    ///
    /// # Errors
    /// `Consumed` after backward.
    pub fn own_units(&self, x: Var, axis: usize) -> Result<Var> {
        self.branch().map_or(Ok(x.clone()), |share| share.own_units(x, axis))
    }

    /// Runs a function that draws random numbers in the branch that this layer ends. Each rank
    /// draws its own numbers.
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

/// Parameter names are PEFT's.
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
