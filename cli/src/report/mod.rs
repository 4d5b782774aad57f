//! The outcome of a run as one page for a browser: curves, the memory of one step, retries and why,
//! and what it takes to do it again.
//!
//! [`Report`] is an observer of any training that writes the page and keeps it up to date while the
//! run goes on. What it shows is a [`Run`], which can also be [read](Run::read) from the folder of
//! a run that is over; [`compare`] draws several of them on one page.
//!
//! A page is one file that loads nothing: style, script and data are inline, and a content security
//! policy forbids the rest. Without JavaScript the figures and tables are complete, and only the
//! drawings are missing. [`Run::to_html`] is a pure function of the run.

mod about;
mod charts;
mod compare;
mod curves;
mod observer;
mod page;
mod run;
#[cfg(test)]
mod tests;
mod thin;

pub use about::About;
pub(crate) use about::{date, processor};
pub use compare::{Row, compare, figures, recipe_differences};
pub use curves::{Curves, Series};
pub use observer::Report;
pub use run::{Run, Status};
