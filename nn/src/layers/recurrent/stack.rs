//! The stack of cells that all recurrent layers share: parameters, layers and directions.

use lowtide_autograd::{Pass, Var};
use lowtide_tensor::{DType, Device, RandomKey, Shape, Tensor, TensorError};

use crate::checks::check_option;
use crate::error::Result;
use crate::init;
use crate::layers::dropout::Dropout;
use crate::module::Module;
use crate::node::{Nodes, Visitor};
use crate::parameter::Parameter;

/// The directions in which a recurrent layer reads a sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Directions {
    /// From the first position to the last.
    #[default]
    Forward,
    /// Both directions, with separate parameters. The outputs of both are concatenated along the
    /// features.
    Both,
}

impl Directions {
    pub(super) fn count(self) -> usize {
        match self {
            Directions::Forward => 1,
            Directions::Both => 2,
        }
    }
}

/// Options of a recurrent layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecurrentOptions {
    /// Number of features of each position of the input.
    pub inputs: usize,
    /// Number of features of the hidden state.
    pub hidden: usize,
    /// Number of layers.
    pub layers: usize,
    /// Dropout probability between two layers.
    pub dropout: f64,
    /// The directions of each layer.
    pub directions: Directions,
    /// True if cells add biases.
    pub bias: bool,
}

impl RecurrentOptions {
    /// One layer in the forward direction with biases and without dropout, PyTorch's defaults.
    pub fn new(inputs: usize, hidden: usize) -> Self {
        let (layers, directions) = (1, Directions::Forward);
        RecurrentOptions { inputs, hidden, layers, dropout: 0.0, directions, bias: true }
    }
}

/// The parameters of one layer and direction: `W_ih: [G · H, I]` and `W_hh: [G · H, H]` for G
/// gates, each with an optional bias. With projected states `W_hh: [G · H, P]` and `W_hr: [P, H]`.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    weight_ih: Parameter,
    weight_hh: Parameter,
    bias_ih: Option<Parameter>,
    bias_hh: Option<Parameter>,
    weight_hr: Option<Parameter>,
    /// End of the parameter names: `_l0`, `_l0_reverse` and so on.
    suffix: String,
}

/// The sizes of a [`Cell`].
#[derive(Clone, Copy)]
pub(super) struct CellShape {
    pub(super) gates: usize,
    pub(super) inputs: usize,
    pub(super) hidden: usize,
    /// Number of features of a projected state; `None` without a projection.
    pub(super) projected: Option<usize>,
    /// True if the cell adds biases.
    pub(super) bias: bool,
}

impl Cell {
    /// A cell with uniform values in `±1 / √H`.
    pub(super) fn new(
        device: &Device,
        key: RandomKey,
        suffix: &str,
        shape: CellShape,
    ) -> Result<Self> {
        let CellShape { gates, inputs, hidden, projected, bias } = shape;
        let bound = init::default_bound(hidden);
        let new = |name: &str, shape: &[usize]| {
            Parameter::uniform(device, key.op(&format!("{name}{suffix}")), shape, bound)
        };
        Ok(Cell {
            weight_ih: new("weight_ih", &[gates * hidden, inputs])?,
            weight_hh: new("weight_hh", &[gates * hidden, projected.unwrap_or(hidden)])?,
            bias_ih: bias.then(|| new("bias_ih", &[gates * hidden])).transpose()?,
            bias_hh: bias.then(|| new("bias_hh", &[gates * hidden])).transpose()?,
            weight_hr: projected.map(|len| new("weight_hr", &[len, hidden])).transpose()?,
            suffix: suffix.to_owned(),
        })
    }

    /// `x W_ihᵀ + b_ih`
    pub(super) fn projected(&self, pass: &Pass, x: Var) -> Result<Var> {
        let bias = self.bias_ih.as_ref().map(|bias| bias.var(pass)).transpose()?;
        Ok(x.linear(self.weight_ih.var(pass)?, bias)?)
    }

    /// The recurrent weight and its bias, in the type of `x`. Without a bias, zeros.
    pub(super) fn recurrent(&self, pass: &Pass, x: &Var) -> Result<[Var; 2]> {
        let (device, dtype) = (x.value().device(), x.value().dtype());
        let weight = in_type(&self.weight_hh, pass, dtype)?;
        let bias = match &self.bias_hh {
            Some(bias) => in_type(bias, pass, dtype)?,
            None => pass.constant(Tensor::zeros(device, [weight.shape()[0]], dtype)?),
        };
        Ok([weight, bias])
    }

    /// The projection weight in the type of `x`; `None` without a projection.
    pub(super) fn projection(&self, pass: &Pass, x: &Var) -> Result<Option<Var>> {
        let dtype = x.value().dtype();
        self.weight_hr.as_ref().map(|weight| in_type(weight, pass, dtype)).transpose()
    }
}

fn in_type(parameter: &Parameter, pass: &Pass, dtype: DType) -> Result<Var> {
    let var = parameter.var(pass)?;
    Ok(if var.value().dtype() == dtype { var } else { var.to_dtype(dtype)? })
}

/// Layers of cells, with one cell for each layer and direction.
#[derive(Clone, Debug)]
pub(super) struct Stack {
    pub(super) options: RecurrentOptions,
    /// Number of features of a projected state; `None` without a projection.
    pub(super) projected: Option<usize>,
    cells: Vec<Cell>,
    dropout: Dropout,
}

impl Stack {
    /// A stack with uniform values in `±1 / √H`, as in `torch.nn.RNNBase`.
    pub(super) fn new(
        device: &Device,
        key: RandomKey,
        gates: usize,
        projected: Option<usize>,
        options: RecurrentOptions,
    ) -> Result<Self> {
        let RecurrentOptions { inputs, hidden, layers, dropout, directions, bias } = options;
        check_option("layers", layers as f64, "[1, ∞)", |count| count >= 1.0)?;
        let cell = |index: usize| {
            let (layer, side) = (index / directions.count(), index % directions.count());
            let suffix = format!("_l{layer}{}", ["", "_reverse"][side]);
            let above = projected.unwrap_or(hidden) * directions.count();
            let inputs = if layer == 0 { inputs } else { above };
            Cell::new(device, key, &suffix, CellShape { gates, inputs, hidden, projected, bias })
        };
        let cells = (0..layers * directions.count()).map(cell).collect::<Result<_>>()?;
        Ok(Stack { options, projected, cells, dropout: Dropout::new(dropout)? })
    }

    /// Runs all layers on `input: [B, T, I]`. `walk` gets the index of a cell, the cell, its
    /// direction and its input, and returns the outputs `[B, T, H]`.
    pub(super) fn forward(
        &self,
        op: &'static str,
        pass: &Pass,
        input: Var,
        walk: impl FnMut(usize, &Cell, Direction, Var) -> Result<Var>,
    ) -> Result<Var> {
        let left = *input.shape();
        if left.len() != 3 || left[1] == 0 {
            let right = Shape::new(&[1, 1, self.options.inputs]);
            return Err(TensorError::Shape { op, left, right }.into());
        }
        self.layers(pass, input, walk)
    }

    /// Runs all layers on `[.., I]`, with any leading dimensions.
    pub(super) fn layers(
        &self,
        pass: &Pass,
        input: Var,
        mut walk: impl FnMut(usize, &Cell, Direction, Var) -> Result<Var>,
    ) -> Result<Var> {
        let mut x = input;
        let sides = self.options.directions.count();
        for (layer, cells) in self.cells.chunks(sides).enumerate() {
            if layer > 0 {
                x = pass.within(&format!("dropout_l{layer}"), || self.dropout.forward(pass, x))?;
            }
            let mut outputs = Vec::with_capacity(sides);
            for (side, cell) in cells.iter().enumerate() {
                let direction = [Direction::Forward, Direction::Backward][side];
                outputs.push(walk(layer * sides + side, cell, direction, x.clone())?);
            }
            drop(x);
            x = match <[Var; 1]>::try_from(outputs) {
                Ok([only]) => only,
                Err(outputs) => Var::cat(outputs, -1)?,
            };
        }
        Ok(x)
    }

    /// True if there is dropout between layers.
    pub(super) fn has_dropout(&self) -> bool {
        self.options.dropout > 0.0 && self.options.layers > 1
    }

    /// Number of cells in all layers.
    pub(super) fn len(&self) -> usize {
        self.cells.len()
    }
}

/// The order in which a cell visits the positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Forward,
    Backward,
}

impl Direction {
    /// The positions of `0..len` in this order.
    pub(super) fn positions(self, len: usize) -> Box<dyn DoubleEndedIterator<Item = usize>> {
        match self {
            Direction::Forward => Box::new(0..len),
            Direction::Backward => Box::new((0..len).rev()),
        }
    }

    /// The position of `0..len` that is visited last.
    pub(super) fn last(self, len: usize) -> usize {
        if self == Direction::Forward { len - 1 } else { 0 }
    }

    /// The state before each position, for a walk with the states `y: [B, T, H]`: `start: [B, H]`
    /// before the first position, and else the state of the previous position.
    pub(super) fn states_before(
        self,
        y: &Tensor,
        start: &Tensor,
    ) -> lowtide_tensor::TensorResult<Tensor> {
        let (start, len) = (start.unsqueeze(1)?, y.shape()[1]);
        match self {
            Direction::Forward => Tensor::cat(&[&start, &y.narrow(1, 0, len - 1)?], 1),
            Direction::Backward => Tensor::cat(&[&y.narrow(1, 1, len - 1)?, &start], 1),
        }
    }
}

/// `Σ x[b, t, :]ᵀ · y[b, t, :]` over the batch and the positions.
pub(super) fn product_over_positions(
    x: &Tensor,
    y: &Tensor,
) -> lowtide_tensor::TensorResult<Tensor> {
    let rows = |x: &Tensor| x.reshape([x.shape()[0] * x.shape()[1], x.shape()[2]]);
    rows(x)?.transpose(0, 1)?.matmul(&rows(y)?)
}

/// The start state of a cell from `[cells, B, H]`, or zeros of `shape`.
pub(super) fn start_of(
    pass: &Pass,
    state: Option<&Var>,
    cell: usize,
    like: &Var,
    shape: [usize; 2],
) -> Result<Var> {
    if let Some(state) = state {
        return Ok(state.clone().select(0, cell)?);
    }
    let value = like.value();
    Ok(pass.constant(Tensor::zeros(value.device(), shape, value.dtype())?))
}

impl Nodes for Cell {
    fn visit_nodes(&mut self, visitor: &mut Visitor<'_>) {
        let Cell { weight_ih, weight_hh, bias_ih, bias_hh, weight_hr, suffix } = self;
        for (name, weight) in [("weight_ih", weight_ih), ("weight_hh", weight_hh)] {
            visitor.field(format!("{name}{suffix}").as_str(), weight);
        }
        let others = [("bias_ih", bias_ih), ("bias_hh", bias_hh), ("weight_hr", weight_hr)];
        for (name, parameter) in others {
            visitor.field(format!("{name}{suffix}").as_str(), parameter);
        }
    }
}

impl Nodes for Stack {
    fn visit_nodes(&mut self, visitor: &mut Visitor<'_>) {
        self.cells.iter_mut().for_each(|cell| visitor.field("", cell));
    }
}
