//! Laws of what ranks do together.

mod threads;
mod wired;
