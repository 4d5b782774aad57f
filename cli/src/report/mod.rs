//! The outcome of a run as one page for a browser: curves, the memory of one step, retries with
//! reasons, and everything needed to repeat the run.
//!
//! [`Report`] is an observer for any training. It writes the page and updates it during the run.
//! The content of the page is a [`Run`], which can also be [read](Run::read) from the folder of a
//! finished run; [`compare`] draws several runs on one page.
//!
//! A page is one file that loads nothing: style, script and data are inline, and a content security
//! policy forbids everything else. Without JavaScript, figures and tables are complete and only the
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
