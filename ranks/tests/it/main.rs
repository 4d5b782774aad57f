//! Laws of the collectives.

#![expect(clippy::duplicate_mod, reason = "each engine has to keep the same laws")]

mod threads;
mod wired;
