//! Recipes: results that are cheap to recompute from tensors that the record keeps anyway.

use std::rc::Rc;

use lowtide_allocator::{Category, Origin};
use lowtide_tensor::{DType, Shape, StorageWatch, Tensor};

use crate::error::Result;
use crate::saved::{Saved, Saver};

/// The longest chain of operations that recomputes one tensor. Without a limit, backward of a model
/// that consists of cheap operations would be quadratic in its depth.
const DEPTH_MAX: usize = 4;

/// Computes a result a second time, with the same bits.
type Recompute = dyn Fn(Vec<Tensor>) -> Result<Tensor>;

/// The operation that recomputes a result, and its inputs.
pub(crate) struct Recipe {
    sources: Vec<Source>,
    recompute: Box<Recompute>,
    /// Category and origin of the result, which its recomputation keeps.
    category: Category,
    origin: Origin,
    /// Number of operations from kept tensors to the result.
    depth: usize,
}

/// The way in which backward gets an input of a recipe.
pub(crate) enum Source {
    /// The record keeps the tensor for a rule.
    Kept(Saved),
    /// Another recipe recomputes the tensor.
    Recomputed { recipe: Rc<Recipe>, shape: Shape },
}

impl Source {
    fn depth(&self) -> usize {
        match self {
            Source::Kept(saved) => saved.recipe().map_or(0, |recipe| recipe.depth),
            Source::Recomputed { recipe, .. } => recipe.depth,
        }
    }

    fn tensor(&self) -> Result<Tensor> {
        match self {
            Source::Kept(saved) => saved.tensor(),
            Source::Recomputed { recipe, shape } => Ok(recipe.run()?.reshape(*shape)?),
        }
    }
}

impl Recipe {
    /// Recomputes the result.
    ///
    /// # Errors
    /// `Modified` if an input was written since; errors of the operation.
    pub(crate) fn run(&self) -> Result<Tensor> {
        let inputs = self.sources.iter().map(Source::tensor).collect::<Result<Vec<Tensor>>>()?;
        let _scope = inputs[0].device().category(self.category);
        let _origin = self.origin.enter();
        (self.recompute)(inputs)
    }
}

/// The recipes of the results that are alive.
#[derive(Default)]
pub(crate) struct Recipes(Vec<KnownResult>);

/// A result with its recipe. The recipe is valid as long as the result is not written.
pub(crate) struct KnownResult {
    watch: StorageWatch,
    element_count: usize,
    dtype: DType,
    recipe: Rc<Recipe>,
}

impl Recipes {
    /// The recipe of `tensor`, if it holds a whole unwritten result, in any shape.
    pub(crate) fn of(&self, tensor: &Tensor) -> Option<Rc<Recipe>> {
        let is_this = |known: &&KnownResult| {
            known.watch.is_of(tensor)
                && !known.watch.is_written()
                && known.element_count == tensor.element_count()
                && known.dtype == tensor.dtype()
        };
        let is_whole = tensor.layout().is_contiguous() && tensor.layout().offset() == 0;
        let known = self.0.iter().filter(|_| is_whole).find(is_this)?;
        Some(Rc::clone(&known.recipe))
    }

    pub(crate) fn add(&mut self, known: KnownResult) {
        self.0.push(known);
    }

    /// Removes the recipes of results that were freed or written.
    pub(crate) fn remove_dead(&mut self) {
        self.0.retain(|known| !known.watch.is_written() && known.watch.clone().renewed().is_some());
    }
}

impl Saver {
    /// The source of `x`, an input that the rule of this operation does not keep. `None` if the
    /// record does not keep `x` for another rule, or if results are not recomputed.
    pub(crate) fn source(&self, x: &Tensor) -> Option<Source> {
        let store = self.cheap_store()?;
        if let Some(stored) = store.find(x) {
            return Some(Source::Kept(self.stored(x, stored)));
        }
        Some(Source::Recomputed { recipe: store.recipe(x)?, shape: *x.shape() })
    }

    /// The source of `x`, an input that the rule of this operation keeps. `None` if results are not
    /// recomputed.
    pub(crate) fn source_kept(&self, x: &Tensor) -> Option<Source> {
        self.cheap_store().map(|_| Source::Kept(self.keep(x)))
    }

    /// Adds the recipe of the result `y`: `recompute` computes `y` from `sources`, with the same
    /// bits and at little cost. The record then need not keep `y` for other operations. Does
    /// nothing if a source is `None`.
    pub(crate) fn add_recipe(
        &self,
        y: &Tensor,
        sources: impl IntoIterator<Item = Option<Source>>,
        recompute: impl Fn(Vec<Tensor>) -> Result<Tensor> + 'static,
    ) {
        let Some(store) = self.cheap_store() else { return };
        let Some(sources) = sources.into_iter().collect::<Option<Vec<Source>>>() else { return };
        let depth = 1 + sources.iter().map(Source::depth).max().unwrap_or(0);
        let is_whole = y.layout().is_contiguous() && y.layout().offset() == 0;
        if depth > DEPTH_MAX || !is_whole {
            return;
        }
        let (category, origin) = (y.category(), y.origin());
        let recompute = Box::new(recompute);
        let recipe = Rc::new(Recipe { sources, recompute, category, origin, depth });
        let (element_count, dtype) = (y.element_count(), y.dtype());
        store.add_recipe(KnownResult { watch: y.watch(), element_count, dtype, recipe });
    }
}
