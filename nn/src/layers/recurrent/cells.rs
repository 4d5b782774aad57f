//! Cells that run one step of a recurrence: x: [B, I], h: [B, H].

use lowtide_autograd::{Pass, Var};
use lowtide_tensor::{Device, RandomKey, Shape, Tensor, TensorError};

use super::gru_walk::gru_walk;
use super::lstm_walk::lstm_walk;
use super::rnn::{RnnActivation, rnn_walk};
use super::stack::{Cell, CellShape, Direction};
use crate::error::Result;
use crate::module::Module;
use crate::node::parameters;

/// Options of a single cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellOptions {
    /// Number of features of the input.
    pub inputs: usize,
    /// Number of features of the state.
    pub hidden: usize,
    /// True if the cell adds biases.
    pub bias: bool,
}

impl CellOptions {
    /// A cell with biases, PyTorch's default.
    pub fn new(inputs: usize, hidden: usize) -> Self {
        CellOptions { inputs, hidden, bias: true }
    }
}

/// The parameters of one cell, with the cell's options.
#[derive(Clone, Debug)]
struct Single {
    cell: Cell,
    options: CellOptions,
}

impl Single {
    fn new(device: &Device, key: RandomKey, gates: usize, options: CellOptions) -> Result<Self> {
        let CellOptions { inputs, hidden, bias } = options;
        let shape = CellShape { gates, inputs, hidden, projected: None, bias };
        let cell = Cell::new(device, key, "", shape)?;
        Ok(Single { cell, options })
    }

    /// `x W_ihᵀ + b_ih` as a sequence of one position, `[B, 1, G · H]`.
    fn projected(&self, op: &'static str, pass: &Pass, x: Var) -> Result<Var> {
        let left = *x.shape();
        if left.len() != 2 {
            let right = Shape::new(&[1, self.options.inputs]);
            return Err(TensorError::Shape { op, left, right }.into());
        }
        self.cell.projected(pass, x.unsqueeze(1)?)
    }

    /// The state, checked against `projected`, or zeros.
    fn start(
        &self,
        op: &'static str,
        pass: &Pass,
        state: Option<Var>,
        projected: &Var,
    ) -> Result<Var> {
        let right = Shape::new(&[projected.shape()[0], self.options.hidden]);
        let (device, dtype) = (projected.value().device(), projected.value().dtype());
        let Some(state) = state else {
            return Ok(pass.constant(Tensor::zeros(device, right, dtype)?));
        };
        if *state.shape() != right {
            return Err(TensorError::Shape { op, left: *state.shape(), right }.into());
        }
        if state.value().dtype() != dtype {
            let (left, right) = (state.value().dtype(), dtype);
            return Err(TensorError::DType { op, left, right }.into());
        }
        Ok(state)
    }
}

parameters!(Single { cell as "" });

/// One step of an LSTM, `torch.nn.LSTMCell`, with the gates and saved tensors of [`super::Lstm`].
#[derive(Clone, Debug)]
pub struct LstmCell(Single);

impl LstmCell {
    /// A cell with uniform values in `±1 / √H`, drawn from `key`.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn new(device: &Device, key: RandomKey, options: CellOptions) -> Result<Self> {
        Ok(LstmCell(Single::new(device, key, 4, options)?))
    }

    /// The states h and c after `input`. Without `state`, the step starts from zeros.
    ///
    /// # Shapes
    /// `input: [B, I] → [B, H], [B, H]`
    ///
    /// # Errors
    /// `Shape`, `DType`, `OutOfMemory`.
    pub fn step(&self, pass: &Pass, input: Var, state: Option<[Var; 2]>) -> Result<[Var; 2]> {
        let op = "lstm_cell";
        let x = self.0.projected(op, pass, input)?;
        let start = match state {
            Some(state) => {
                let [h, c] = state.map(|state| self.0.start(op, pass, Some(state), &x));
                [h?, c?]
            }
            None => {
                let zeros = self.0.start(op, pass, None, &x)?;
                [zeros.clone(), zeros]
            }
        };
        let recurrent = self.0.cell.recurrent(pass, &x)?;
        let [_, h, c] = lstm_walk(x, recurrent, start, Direction::Forward)?;
        Ok([h, c])
    }
}

/// One step of a GRU, `torch.nn.GRUCell`, with the gates of [`super::Gru`].
#[derive(Clone, Debug)]
pub struct GruCell(Single);

impl GruCell {
    /// A cell with uniform values in `±1 / √H`, drawn from `key`.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn new(device: &Device, key: RandomKey, options: CellOptions) -> Result<Self> {
        Ok(GruCell(Single::new(device, key, 3, options)?))
    }

    /// The state after `input`. Without `state`, the step starts from zeros.
    ///
    /// # Shapes
    /// `input: [B, I] → [B, H]`
    ///
    /// # Errors
    /// `Shape`, `DType`, `OutOfMemory`.
    pub fn step(&self, pass: &Pass, input: Var, state: Option<Var>) -> Result<Var> {
        let op = "gru_cell";
        let x = self.0.projected(op, pass, input)?;
        let start = self.0.start(op, pass, state, &x)?;
        let recurrent = self.0.cell.recurrent(pass, &x)?;
        let [_, h] = gru_walk(x, recurrent, start, Direction::Forward)?;
        Ok(h)
    }
}

/// One step of Elman's recurrence, `torch.nn.RNNCell`: `h = f(x W_ihᵀ + b_ih + h W_hhᵀ + b_hh)`.
#[derive(Clone, Debug)]
pub struct RnnCell {
    single: Single,
    activation: RnnActivation,
}

impl RnnCell {
    /// A cell with uniform values in `±1 / √H`, drawn from `key`.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn new(
        device: &Device,
        key: RandomKey,
        options: CellOptions,
        activation: RnnActivation,
    ) -> Result<Self> {
        Ok(RnnCell { single: Single::new(device, key, 1, options)?, activation })
    }

    /// The state after `input`. Without `state`, the step starts from zeros.
    ///
    /// # Shapes
    /// `input: [B, I] → [B, H]`
    ///
    /// # Errors
    /// `Shape`, `DType`, `OutOfMemory`.
    pub fn step(&self, pass: &Pass, input: Var, state: Option<Var>) -> Result<Var> {
        let op = "rnn_cell";
        let x = self.single.projected(op, pass, input)?;
        let start = self.single.start(op, pass, state, &x)?;
        let recurrent = self.single.cell.recurrent(pass, &x)?;
        let [_, h] = rnn_walk(self.activation, recurrent, x, start, Direction::Forward)?;
        Ok(h)
    }
}

parameters!(LstmCell { 0 as "" });
parameters!(GruCell { 0 as "" });
parameters!(RnnCell { single as "" });

impl Module for LstmCell {
    /// # Shapes
    /// `input: [B, I] → [B, H]`, the state h after a step from zeros
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        let [h, _] = self.step(pass, input, None)?;
        Ok(h)
    }
}

impl Module for GruCell {
    /// # Shapes
    /// `input: [B, I] → [B, H]`, the state after a step from zeros
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        self.step(pass, input, None)
    }
}

impl Module for RnnCell {
    /// # Shapes
    /// `input: [B, I] → [B, H]`, the state after a step from zeros
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        self.step(pass, input, None)
    }
}
