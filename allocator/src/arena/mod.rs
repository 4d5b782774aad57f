//! The arena: free lists, pages, views and counters. Code here decides where blocks lie, and
//! touches no memory, takes no lock, calls no source.

pub(crate) mod block_info;
pub(crate) mod extent;
pub(crate) mod free_list;
pub(crate) mod freed;
pub(crate) mod layout;
pub(crate) mod pages;
pub(crate) mod state;
pub(crate) mod views;
