//! Results that are cheap to compute again from what the record keeps anyway.

use std::rc::Rc;

use lowtide_allocator::{Category, Origin};
use lowtide_tensor::{DType, Shape, StorageWatch, Tensor};

use crate::error::Result;
use crate::saved::{Saved, Saver};

/// The longest chain of operations that is run for one tensor. A longer one would make backward
/// of a model of cheap operations alone quadratic in its depth.
const DEPTH_MAX: usize = 4;

/// Computes a result once more, to the same bits.
type Again = dyn Fn(Vec<Tensor>) -> Result<Tensor>;

/// How a result is computed again.
pub(crate) struct Recipe {
    sources: Vec<Source>,
    again: Box<Again>,
    /// What the result counts for, whichever operation asks for it.
    category: Category,
    origin: Origin,
    /// Operations from what is kept to the result.
    depth: usize,
}

/// Where backward has an input of an operation from.
pub(crate) enum Source {
    /// The record keeps it for a rule.
    Kept(Saved),
    /// It is computed again itself, and then taken in this shape.
    Again(Rc<Recipe>, Shape),
}

impl Source {
    fn depth(&self) -> usize {
        match self {
            Source::Kept(saved) => saved.recipe().map_or(0, |recipe| recipe.depth),
            Source::Again(recipe, _) => recipe.depth,
        }
    }

    fn tensor(&self) -> Result<Tensor> {
        match self {
            Source::Kept(saved) => saved.tensor(),
            Source::Again(recipe, shape) => Ok(recipe.run()?.reshape(*shape)?),
        }
    }
}

impl Recipe {
    /// Computes the result once more.
    ///
    /// # Errors
    /// `Modified` where an input was written since; those of the operation.
    pub(crate) fn run(&self) -> Result<Tensor> {
        let inputs = self.sources.iter().map(Source::tensor).collect::<Result<Vec<Tensor>>>()?;
        let _scope = inputs[0].device().category(self.category);
        let _origin = self.origin.enter();
        (self.again)(inputs)
    }
}

/// The recipes of the results that exist.
#[derive(Default)]
pub(crate) struct Recipes(Vec<Known>);

pub(crate) struct Known {
    /// Of the result as it was made.
    watch: StorageWatch,
    element_count: usize,
    dtype: DType,
    recipe: Rc<Recipe>,
}

impl Recipes {
    /// The recipe of `tensor`, if it is a result as it was made, whatever its shape.
    pub(crate) fn of(&self, tensor: &Tensor) -> Option<Rc<Recipe>> {
        let is_this = |known: &&Known| {
            known.watch.is_of(tensor)
                && !known.watch.is_written()
                && known.element_count == tensor.element_count()
                && known.dtype == tensor.dtype()
        };
        let is_whole = tensor.layout().is_contiguous() && tensor.layout().offset() == 0;
        let known = self.0.iter().filter(|_| is_whole).find(is_this)?;
        Some(Rc::clone(&known.recipe))
    }

    pub(crate) fn add(&mut self, known: Known) {
        self.0.push(known);
    }

    /// Drops the recipes of results that are gone.
    pub(crate) fn tidy(&mut self) {
        self.0.retain(|known| !known.watch.is_written() && known.watch.clone().renewed().is_some());
    }
}

impl Saver {
    /// Where `x`, an input that this operation's rule has no use for, will be had from; `None` if
    /// the record does not keep it, or results are not computed again.
    pub(crate) fn source(&self, x: &Tensor) -> Option<Source> {
        let store = self.cheap_store()?;
        if let Some(parked) = store.kept(x) {
            return Some(Source::Kept(self.parked(x, parked)));
        }
        Some(Source::Again(store.recipe(x)?, *x.shape()))
    }

    /// Where `x`, an input that this operation's rule keeps, will be had from; `None` where results
    /// are not computed again.
    pub(crate) fn source_kept(&self, x: &Tensor) -> Option<Source> {
        self.cheap_store().map(|_| Source::Kept(self.keep(x)))
    }

    /// Says that `again` of `sources` gives the bits of `y` at little cost, so that `y` need not be
    /// kept for other operations. Without effect unless each source is there.
    pub(crate) fn is_cheap(
        &self,
        y: &Tensor,
        sources: impl IntoIterator<Item = Option<Source>>,
        again: impl Fn(Vec<Tensor>) -> Result<Tensor> + 'static,
    ) {
        let Some(store) = self.cheap_store() else { return };
        let Some(sources) = sources.into_iter().collect::<Option<Vec<Source>>>() else { return };
        let depth = 1 + sources.iter().map(Source::depth).max().unwrap_or(0);
        let is_whole = y.layout().is_contiguous() && y.layout().offset() == 0;
        if depth > DEPTH_MAX || !is_whole {
            return;
        }
        let (category, origin) = (y.category(), y.origin());
        let recipe = Rc::new(Recipe { sources, again: Box::new(again), category, origin, depth });
        let (element_count, dtype) = (y.element_count(), y.dtype());
        store.know(Known { watch: y.watch(), element_count, dtype, recipe });
    }
}
