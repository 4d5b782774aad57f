//! `cargo xtask tidy`: rules that the compiler and clippy do not check. Pure functions over
//! [`Tree`].
//!
//! Each subject has a file: [`imports`] between crates, [`circles`] of files that import each
//! other, [`rust`] sources line by line, [`words`] of comments, [`unsafety`], the argument above
//! each `unsafe`, [`markdown`] links, [`paths`] of one machine in any text file.

pub mod circles;
pub mod imports;
pub mod markdown;
pub mod paths;
pub mod rust;
pub mod unsafety;
pub mod words;

use std::fmt;

use crate::tree::{File, Tree};

/// One place that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Path relative to the root, with `/`.
    pub path: String,
    /// Number of the line, from 1.
    pub line: usize,
    /// The broken rule, or the way to fix it.
    pub message: String,
}

impl Finding {
    /// A finding in `file` on the line `index`, counted from 0.
    pub(crate) fn at(file: &File, index: usize, message: impl Into<String>) -> Self {
        Self { path: file.path.clone(), line: index + 1, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// A named rule over the tree.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// The rule in a few words.
    pub name: &'static str,
    /// Finds every place that breaks the rule.
    pub run: fn(&Tree) -> Vec<Finding>,
}

/// Every check, in the order in which they run.
pub const CHECKS: &[Check] = &[
    Check { name: "imports follow the graph", run: imports::check },
    Check { name: "files form no large circles", run: circles::check },
    Check { name: "imports name the module", run: rust::check_root_imports },
    Check { name: "files say what they are", run: rust::check_headers },
    Check { name: "unsafe code has its argument", run: unsafety::check },
    Check { name: "markdown links lead somewhere", run: markdown::check_links },
    Check { name: "recipes name files", run: markdown::check_recipes },
    Check { name: "lines fit", run: rust::check_line_lengths },
    Check { name: "comments say who and what", run: words::check_meaning },
    Check { name: "comments begin with their subject", run: words::check_openings },
    Check { name: "unit tests run", run: rust::check_unit_tests },
    Check { name: "nothing is left to do", run: rust::check_leftovers },
    Check { name: "no machine paths", run: paths::check },
];
