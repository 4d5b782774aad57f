//! The `lowtide` command as a stranger at a shell sees it: exit codes, words and files.

mod disk;
mod eval;
mod faults;
mod memory;
mod mistakes;
mod output;
mod place;
mod readme;
mod replay;
mod train;
