//! Rules of the matrix products.

use lowtide_tensor::{Scales, Shape, Tensor};

use crate::error::Result;
use crate::rule::Needs;
use crate::rules::elementwise_fused::scaled;
use crate::rules::{unbroadcast, when};
use crate::saved::Saved;
use crate::var::Var;

/// `x` as matrices `[.., rows, columns]`. A vector becomes a row if `axis` is 0, as on the left of
/// a product, and a column if `axis` is 1, as on the right.
fn as_matrices(x: Tensor, axis: usize) -> Result<Tensor> {
    if x.shape().len() == 1 { Ok(x.unsqueeze(axis)?) } else { Ok(x) }
}

/// `x` as a matrix: all dimensions but the last merged into one.
fn rows(x: &Tensor) -> Result<Tensor> {
    let (&columns, outer) =
        x.shape().split_last().expect("an operand of a product has a dimension");
    Ok(x.reshape([outer.iter().product(), columns])?)
}

/// `Σ xᵀ · y` over all dimensions before the last two, in one product.
fn transposed_product(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    Ok(rows(x)?.transpose(0, 1)?.matmul(&rows(y)?)?)
}

/// `Σ x · y` over all dimensions before the last two that `shape` lacks or has as 1, as a tensor of
/// that shape. Half types are summed in f32, so that they are rounded once.
fn summed_product(x: &Tensor, y: &Tensor, shape: Shape) -> Result<Tensor> {
    let batch: usize = shape[..shape.len() - 2].iter().product();
    let [x_rank, y_rank] = [x, y].map(|x| x.shape().len());
    let outer = Shape::from(&x.shape()[..x_rank - 2]);
    let outer = outer.broadcast(&Shape::from(&y.shape()[..y_rank - 2]));
    let count = outer.map_or(1, |outer| outer.element_count());
    let dtype = x.dtype();
    if dtype == dtype.computed() || batch != 1 || count == 1 || x_rank != y_rank {
        return unbroadcast(&x.matmul(y)?, shape);
    }
    let matrices = |x: &Tensor| -> Result<Tensor> {
        let (rank, shape) = (x.shape().len(), x.shape());
        Ok(x.reshape([shape[..rank - 2].iter().product(), shape[rank - 2], shape[rank - 1]])?)
    };
    let (x, y) = (matrices(x)?, matrices(y)?);
    if x.shape()[0] != count || y.shape()[0] != count {
        return unbroadcast(&x.matmul(&y)?, shape);
    }
    let matrix = [shape[shape.len() - 2], shape[shape.len() - 1]];
    let mut sum = Tensor::zeros(x.device(), matrix, dtype.computed())?;
    for index in 0..count {
        sum.matmul_add_(&x.select(0, index)?, &y.select(0, index)?)?;
    }
    Ok(sum.to_dtype(dtype)?.reshape(shape)?)
}

/// The gradients of `a` and `b`. All operands are matrices or batches of matrices.
fn matmul_backward(
    dy: &Tensor,
    a: &Tensor,
    b: &Tensor,
    needs: [bool; 2],
) -> Result<[Option<Tensor>; 2]> {
    let [a_rank, b_rank] = [a, b].map(|x| x.shape().len());
    let da =
        when(needs[0], || summed_product(dy, &b.transpose(b_rank - 2, b_rank - 1)?, *a.shape()))?;
    let db = when(needs[1], || {
        if b_rank == 2 {
            return transposed_product(a, dy);
        }
        summed_product(&a.transpose(a_rank - 2, a_rank - 1)?, dy, *b.shape())
    })?;
    Ok([da, db])
}

/// A matrix product. `forward` is [`Tensor::matmul`] or an operation that equals it on some shapes.
#[track_caller]
fn product(
    op: &'static str,
    a: Var,
    b: Var,
    forward: impl FnOnce(&Tensor, &Tensor) -> lowtide_tensor::TensorResult<Tensor>,
) -> Result<Var> {
    Var::apply(op, [a, b], |[a, b], save| {
        let y = forward(&a, &b)?;
        let (saved_a, saved_b) = (save.keep(&a), save.keep(&b));
        // da = dy · bᵀ, db = aᵀ · dy, summed over what was broadcast
        let rule = move |dy: Tensor, needs: Needs| {
            let (a, b) = (saved_a.unpack()?, saved_b.unpack()?);
            let (a_shape, b_shape) = (*a.shape(), *b.shape());
            let mut dy = dy;
            if b_shape.len() == 1 {
                dy = dy.unsqueeze(dy.shape().len())?;
            }
            if a_shape.len() == 1 {
                dy = dy.unsqueeze(dy.shape().len() - 1)?;
            }
            let (a, b) = (as_matrices(a, 0)?, as_matrices(b, 1)?);
            let [da, db] = matmul_backward(&dy, &a, &b, [0, 1].map(|index| needs.input(index)))?;
            let da = da.map(|da| da.reshape(a_shape)).transpose()?;
            let db = db.map(|db| db.reshape(b_shape)).transpose()?;
            Ok(vec![da, db])
        };
        Ok((y, rule))
    })
}

/// A product with an addend: `beta · x + alpha · a b`.
#[track_caller]
fn with_addend(
    op: &'static str,
    inputs: [Var; 3],
    scales: Scales,
    forward: fn(&Tensor, &Tensor, &Tensor, Scales) -> lowtide_tensor::TensorResult<Tensor>,
) -> Result<Var> {
    Var::apply(op, inputs, |[x, a, b], save| {
        let (x_shape, y) = (*x.shape(), forward(&x, &a, &b, scales)?);
        let saved = [&a, &b].map(|x| save.keep(x));
        // dx = beta · dy, summed over what was broadcast; da = alpha · dy · bᵀ,
        // db = alpha · aᵀ · dy
        let rule = move |dy: Tensor, needs: Needs| {
            let [a, b] = saved;
            let (a, b) = (a.unpack()?, b.unpack()?);
            let b_shape = *b.shape();
            let dx = when(needs.input(0), || unbroadcast(&scaled(&dy, scales.beta)?, x_shape))?;
            let dy = if b_shape.len() == 1 { dy.unsqueeze(1)? } else { dy };
            let b = as_matrices(b, 1)?;
            let factors = matmul_backward(&dy, &a, &b, [1, 2].map(|index| needs.input(index)))?;
            // Scaling after the products rounds a half type once less.
            let [da, db] = factors.map(|d| d.map(|d| scaled(&d, scales.alpha)).transpose());
            let (da, db) = (da?, db?);
            Ok(vec![dx, da, db.map(|db| db.reshape(b_shape)).transpose()?])
        };
        Ok((y, rule))
    })
}

impl Var {
    /// `beta · self + alpha · a b`; see [`Tensor::addmm`].
    #[track_caller]
    pub fn addmm(self, a: Var, b: Var, scales: Scales) -> Result<Var> {
        with_addend("addmm", [self, a, b], scales, Tensor::addmm)
    }

    /// `beta · self + alpha · a b` for each index of the first dimension; see [`Tensor::baddbmm`].
    #[track_caller]
    pub fn baddbmm(self, a: Var, b: Var, scales: Scales) -> Result<Var> {
        with_addend("baddbmm", [self, a, b], scales, Tensor::baddbmm)
    }

    /// `beta · self + alpha · a v` for a matrix a and a vector v; see [`Tensor::addmv`].
    #[track_caller]
    pub fn addmv(self, a: Var, vector: Var, scales: Scales) -> Result<Var> {
        with_addend("addmv", [self, a, vector], scales, Tensor::addmv)
    }

    /// The matrix product over the last two dimensions; the dimensions before them are broadcast.
    /// See [`Tensor::matmul`].
    #[track_caller]
    pub fn matmul(self, other: Var) -> Result<Var> {
        product("matmul", self, other, Tensor::matmul)
    }

    /// A batch of matrix products, one for each index of the first dimension; see [`Tensor::bmm`].
    #[track_caller]
    pub fn bmm(self, other: Var) -> Result<Var> {
        product("bmm", self, other, Tensor::bmm)
    }

    /// The dot product of two vectors; see [`Tensor::dot`].
    #[track_caller]
    pub fn dot(self, other: Var) -> Result<Var> {
        product("dot", self, other, Tensor::dot)
    }

    /// A matrix times a vector; see [`Tensor::matvec`].
    #[track_caller]
    pub fn matvec(self, vector: Var) -> Result<Var> {
        product("matvec", self, vector, Tensor::matvec)
    }

    /// The outer product of two vectors; see [`Tensor::outer`].
    #[track_caller]
    pub fn outer(self, other: Var) -> Result<Var> {
        Var::apply("outer", [self, other], |[a, b], save| {
            let y = a.outer(&b)?;
            let (saved_a, saved_b) = (save.keep(&a), save.keep(&b));
            // da = dy · b, db = dyᵀ · a
            let rule = move |dy: Tensor, needs: Needs| {
                let da = when(needs.input(0), || Ok(dy.matvec(&saved_b.unpack()?)?))?;
                let db =
                    when(needs.input(1), || Ok(dy.transpose(0, 1)?.matvec(&saved_a.unpack()?)?))?;
                Ok(vec![da, db])
            };
            Ok((y, rule))
        })
    }

    /// `x wᵀ + b` with `self = x`; see [`Tensor::linear`].
    #[track_caller]
    pub fn linear(self, w: Var, b: Option<Var>) -> Result<Var> {
        Var::apply_to(
            "linear",
            [Some(self), Some(w), b].into_iter().flatten().collect(),
            |inputs, save| {
                let (x, w, b) = (&inputs[0], &inputs[1], inputs.get(2));
                let y = x.linear(w, b)?;
                // The gradient of w reads x, and the gradient of x reads w. An operand is kept only
                // if the gradient that reads it is needed.
                let saved_x = save.needs(1).then(|| save.keep(x));
                let saved_w = save.needs(0).then(|| save.keep(w));
                let has_bias = b.is_some();
                // dx = dy · w, dw = dyᵀ · x, db = the sum of dy over the rows
                let rule = move |dy: Tensor, needs: Needs| {
                    let w = saved_w.map(Saved::unpack).transpose()?;
                    let needs_bias = has_bias && needs.input(2);
                    let x = saved_x.map(Saved::unpack).transpose()?;
                    let (dw, db) = match x.filter(|_| needs.input(1)) {
                        Some(x) if needs_bias => {
                            let (dw, db) = x.linear_weight_gradient(&dy)?;
                            (Some(dw), db)
                        }
                        Some(x) => (Some(transposed_product(&dy, &x)?), None),
                        None => (None, None),
                    };
                    let w = w.filter(|_| needs.input(0));
                    let dx = w.map(|w| dy.matmul(&w)).transpose()?;
                    let mut gradients = vec![dx, dw];
                    if has_bias {
                        let db = match db {
                            Some(db) => Some(db),
                            None => when(needs_bias, || Ok(rows(&dy)?.sum(&[0])?))?,
                        };
                        gradients.push(db);
                    }
                    Ok(gradients)
                };
                Ok((y, rule))
            },
        )
    }
}
