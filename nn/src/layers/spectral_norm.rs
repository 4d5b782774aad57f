//! Layers with a weight that is divided by its largest singular value.
//!
//! Miyato, Kataoka, Koyama and Yoshida, "Spectral normalization for generative adversarial
//! networks" (2018).

use lowtide_allocator::Category;
use lowtide_autograd::{Needs, Pass, Saved, Var};
use lowtide_tensor::{Axis, DType, RandomKey, Tensor};

use crate::buffer::Buffer;
use crate::checks::check_option;
use crate::error::{NnError, Result};
use crate::layers::weight_norm::{Weighted, visit_without_weight};
use crate::module::Module;
use crate::node::{Node, Nodes, Visitor};

/// Number of rounds of the power iteration when a layer is made, as in PyTorch.
const FIRST_ITERATIONS: usize = 15;

/// Options of [`SpectralNorm`], with PyTorch's defaults.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpectralNormOptions {
    /// The dimension of the weight that becomes the rows of the matrix, PyTorch's `dim`. 0 for most
    /// layers; 1 for transposed convolutions, whose second dimension is the outputs.
    pub axis: usize,
    /// Number of rounds of the power iteration in each forward pass in training, at least 1.
    pub iterations: usize,
    /// Smallest norm that a vector is divided by.
    pub eps: f64,
}

impl Default for SpectralNormOptions {
    fn default() -> Self {
        SpectralNormOptions { axis: 0, iterations: 1, eps: 1e-12 }
    }
}

/// A layer with the weight `w = W / σ`, where `σ = uᵀ W v` approximates the largest singular value
/// of W as a matrix: `torch.nn.utils.parametrizations.spectral_norm`. Names are PyTorch's:
/// `parametrizations.weight.original` for the parameter, `parametrizations.weight.0._u` and `_v`
/// for the buffers.
///
/// Each forward pass in training runs rounds of the power iteration, `u = W v / ‖W v‖` and `v = Wᵀ
/// u / ‖Wᵀ u‖`, without a gradient. The vectors are written to the buffers when the step is
/// committed. A batch is therefore never split in training. Evaluation uses the vectors of the
/// buffers.
///
/// Backward keeps W and the vectors; the layer also keeps w.
#[derive(Clone, Debug)]
pub struct SpectralNorm<M> {
    layer: M,
    /// u, `[rows]`, and v, `[columns]`, of the matrix.
    vectors: [Buffer; 2],
    options: SpectralNormOptions,
}

impl<M: Weighted> SpectralNorm<M> {
    /// The layer with its weight as W. The vectors are drawn at random, then take fifteen rounds.
    ///
    /// # Errors
    /// The errors of [`SpectralNorm::with`].
    pub fn new(layer: M, key: RandomKey) -> Result<Self> {
        Self::with(layer, key, SpectralNormOptions::default())
    }

    /// [`SpectralNorm::new`] with other options.
    ///
    /// # Errors
    /// `Index` for a dimension that does not exist, `Option` for no iterations or an `eps` below 0,
    /// `OutOfMemory`.
    pub fn with(layer: M, key: RandomKey, options: SpectralNormOptions) -> Result<Self> {
        let weight = layer.weight().value().clone();
        Axis::from(options.axis).index("spectral_norm", weight.shape().len())?;
        check_option("iterations", options.iterations as f64, "[1, ∞)", |count| count >= 1.0)?;
        check_option("eps", options.eps, "[0, ∞)", |eps| eps >= 0.0)?;
        // Computed in f64, so that the vectors are equal on every device.
        let matrix = as_matrix(&weight, options.axis)?.to_dtype(DType::F64)?;
        let drawn = |name, len| -> Result<Tensor> {
            let mut vector = Tensor::empty(weight.device(), [len], DType::F32)?;
            vector.normal_(key.op(name), 0.0, 1.0)?;
            normalized(&vector.to_dtype(DType::F64)?, options.eps)
        };
        let drawn = [drawn("u", matrix.shape()[0])?, drawn("v", matrix.shape()[1])?];
        let found = iterated(&matrix, drawn, FIRST_ITERATIONS, options.eps)?;
        let [u, v] = found.map(|vector| -> Result<Buffer> {
            let (device, shape) = (vector.device(), *vector.shape());
            let dtype = weight.dtype().computed();
            let mut kept = Tensor::empty_in(device, Category::Parameter, shape, dtype)?;
            kept.copy_(&vector.to_dtype(dtype)?)?;
            Ok(Buffer::new(kept))
        });
        Ok(SpectralNorm { layer, vectors: [u?, v?], options })
    }

    /// The vectors of this pass. In training, the power iteration updates them, and the buffers get
    /// them when the attempt is committed.
    fn vectors(&self, pass: &Pass, weight: &Tensor) -> Result<[Tensor; 2]> {
        let dtype = weight.dtype();
        let current = self.vectors.each_ref().map(|vector| vector.current(pass).to_dtype(dtype));
        let [u, v] = current;
        let current = [u?, v?];
        if !pass.is_training() {
            return Ok(current);
        }
        // Parts of a batch would each compute other vectors.
        pass.couple_samples();
        let SpectralNormOptions { axis, iterations, eps } = self.options;
        let found = iterated(&as_matrix(weight, axis)?, current, iterations, eps)?;
        for (buffer, vector) in self.vectors.iter().zip(&found) {
            buffer.update(pass, vector.to_dtype(buffer.value().dtype())?);
        }
        Ok(found)
    }
}

/// An order of dimensions with `axis` first.
fn with_first(rank: usize, axis: usize) -> Vec<usize> {
    std::iter::once(axis).chain((0..rank).filter(|&other| other != axis)).collect()
}

/// The weight as a matrix: dimension `axis` as rows, all others as columns.
fn as_matrix(weight: &Tensor, axis: usize) -> Result<Tensor> {
    let (rank, rows) = (weight.shape().len(), weight.shape()[axis]);
    let columns = with_first(rank, axis)[1..].iter().map(|&other| weight.shape()[other]).product();
    Ok(weight.permute(&with_first(rank, axis))?.reshape([rows, columns])?)
}

/// A matrix of [`as_matrix`] as a weight of this shape.
fn as_weight(matrix: &Tensor, shape: &[usize], axis: usize) -> Result<Tensor> {
    let order = with_first(shape.len(), axis);
    let sizes: Vec<usize> = order.iter().map(|&dim| shape[dim]).collect();
    let back: Vec<usize> = (0..shape.len())
        .map(|dim| order.iter().position(|&other| other == dim).expect("each dimension is there"))
        .collect();
    Ok(matrix.reshape(&sizes[..])?.permute(&back)?)
}

fn normalized(vector: &Tensor, eps: f64) -> Result<Tensor> {
    Ok(vector.div(&vector.norm_keep(&[0], 2.0)?.maximum_scalar(eps)?)?)
}

/// The vectors after some rounds of the power iteration.
fn iterated(
    matrix: &Tensor,
    [mut u, mut v]: [Tensor; 2],
    rounds: usize,
    eps: f64,
) -> Result<[Tensor; 2]> {
    for _ in 0..rounds {
        u = normalized(&matrix.matvec(&v)?, eps)?;
        v = normalized(&matrix.transpose(0, 1)?.matvec(&u)?, eps)?;
    }
    Ok([u, v])
}

/// `w = W / σ` with `σ = uᵀ W v`, where u and v are constants.
fn spectral_norm(weight: Var, [u, v]: [Tensor; 2], axis: usize) -> Result<Var> {
    Ok(Var::apply("spectral_norm", [weight], |[weight], save| {
        let of = |error: NnError| error.into_autograd();
        let sigma = u.dot(&as_matrix(&weight, axis).map_err(of)?.matvec(&v)?)?;
        let w = weight.div(&sigma)?;
        let saved = [&weight, &sigma, &u, &v].map(|x| save.keep(x));
        // dW = dw / σ - Σ (dw · W) / σ² · u vᵀ
        let rule = move |dw: Tensor, _: Needs| {
            let [weight, sigma, u, v] = saved.map(Saved::unpack);
            let (weight, sigma, u, v) = (weight?, sigma?, u?, v?);
            let along = dw.mul(&weight)?.sum_all()?.div(&sigma)?.div(&sigma)?;
            let outer = as_weight(&u.mul(&along)?.outer(&v)?, weight.shape(), axis).map_err(of)?;
            Ok(vec![Some(dw.div(&sigma)?.sub(&outer)?)])
        };
        Ok((w, rule))
    })?)
}

impl<M: Weighted> Nodes for SpectralNorm<M> {
    fn visit_nodes(&mut self, visitor: &mut Visitor<'_>) {
        // PyTorch's order: the rest of the layer, then the parametrisation.
        visit_without_weight(&mut self.layer, visitor);
        let weight = Node::Parameter(self.layer.weight_mut());
        visitor.node("parametrizations.weight.original", weight);
        let [u, v] = &mut self.vectors;
        visitor.field("parametrizations.weight.0._u", u);
        visitor.field("parametrizations.weight.0._v", v);
    }
}

impl<M: Weighted> Module for SpectralNorm<M> {
    /// # Shapes
    /// The shapes of the layer.
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        let weight = self.layer.weight().var(pass)?;
        let vectors = self.vectors(pass, weight.value())?;
        let weight = spectral_norm(weight, vectors, self.options.axis)?;
        self.layer.forward_with(pass, weight, input)
    }
}
