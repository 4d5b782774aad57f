//! Recurrent layers, which run along a sequence with a state: LSTM, GRU and RNN.
//!
//! `B` batch, `T` positions, `I` input features, `H` state features, `L` layers, `S` directions.

mod cells;
mod gru;
mod gru_walk;
mod lstm;
mod lstm_walk;
mod packed;
mod rnn;
mod stack;

pub use cells::{CellOptions, GruCell, LstmCell, RnnCell};
pub use gru::Gru;
pub use lstm::{Lstm, LstmState};
pub use packed::PackedSequence;
pub use rnn::{Rnn, RnnActivation};
pub use stack::{Directions, RecurrentOptions};
