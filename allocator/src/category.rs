//! Purposes of memory.

use std::fmt;
use std::ops::{Index, IndexMut};

/// The purpose of a block, taken from the caller's scope; see
/// [`CachingAllocator::category`](crate::CachingAllocator::category).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Category {
    /// Weights and buffers of a model: they live as long as the model.
    Parameter,
    /// Gradients of parameters.
    Gradient,
    /// Moments and master weights: they live as long as the optimizer.
    OptimizerState,
    /// Results of the forward pass, kept or not.
    Activation,
    /// Scratch memory of one operation.
    Workspace,
    /// Batches on their way in.
    Input,
    /// Memory that was allocated outside every scope.
    Other,
}

impl Category {
    /// Every category, in the order that reports use.
    pub const ALL: [Category; 7] = [
        Category::Parameter,
        Category::Gradient,
        Category::OptimizerState,
        Category::Activation,
        Category::Workspace,
        Category::Input,
        Category::Other,
    ];

    /// The name in snake case.
    pub const fn name(self) -> &'static str {
        match self {
            Category::Parameter => "parameter",
            Category::Gradient => "gradient",
            Category::OptimizerState => "optimizer_state",
            Category::Activation => "activation",
            Category::Workspace => "workspace",
            Category::Input => "input",
            Category::Other => "other",
        }
    }

    /// The position in [`Category::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Category {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One value per [`Category`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByCategory<T>([T; Category::ALL.len()]);

impl<T> ByCategory<T> {
    /// The value of every category, computed by `value`.
    pub fn from_fn(mut value: impl FnMut(Category) -> T) -> ByCategory<T> {
        ByCategory(Category::ALL.map(&mut value))
    }

    /// Pairs in the order of [`Category::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (Category, &T)> {
        Category::ALL.into_iter().zip(&self.0)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut()
    }
}

impl<T> Index<Category> for ByCategory<T> {
    type Output = T;

    fn index(&self, category: Category) -> &T {
        &self.0[category.index()]
    }
}

impl<T> IndexMut<Category> for ByCategory<T> {
    fn index_mut(&mut self, category: Category) -> &mut T {
        &mut self.0[category.index()]
    }
}
