//! Elements gathered by indices, scattered to indices, or found by values.

use lowtide_nn::{BagOptions, BagReduction, Bags, embedding_bag};
use lowtide_tensor::{DType, Tensor};

use super::reductions::axis;
use super::{Family, INPUT};
use crate::call::{At, Call, Output, Result, Stop, at, named, no_form, no_such, one};
use crate::outcome::Reason;

const DIM: At = at(1, "dim");
const INDEX: At = at(2, "index");

pub(super) const OPS: Family = &[
    ("argwhere", |call| one(nonzero(call)?)),
    ("gather", |call| {
        let x = call.var(INPUT)?;
        let dim = axis(call, DIM, &x)?.unwrap_or(0);
        one(x.gather(dim, &index(call, INDEX)?)?)
    }),
    ("index_add", |call| {
        let x = call.var(INPUT)?;
        let dim = axis(call, DIM, &x)?.unwrap_or(0);
        let source = call.var(at(3, "source"))?;
        let source = match call.number(named("alpha"))? {
            None | Some(1.0) => source,
            Some(alpha) => source.mul_scalar(alpha)?,
        };
        one(x.index_add(dim, &index(call, INDEX)?, source)?)
    }),
    ("index_copy", |call| {
        let x = call.var(INPUT)?;
        let dim = axis(call, DIM, &x)?.unwrap_or(0);
        one(x.index_copy(dim, &index(call, INDEX)?, call.var(at(3, "source"))?)?)
    }),
    ("index_select", |call| {
        let x = call.var(INPUT)?;
        let dim = axis(call, DIM, &x)?.unwrap_or(0);
        one(x.index_select(dim, &index(call, INDEX)?)?)
    }),
    ("masked_select", |call| {
        let len = expected_len(call);
        one(call.var(INPUT)?.masked_select_assuming(&call.constant(at(1, "mask"))?, len)?)
    }),
    ("nn.functional.embedding", |call| {
        one(call.var(at(0, "weight"))?.embedding(&index(call, at(1, "input"))?)?)
    }),
    ("nn.functional.embedding_bag", |call| {
        let table = call.var(at(0, "weight"))?;
        let index = index(call, at(1, "input"))?;
        let options = BagOptions {
            reduction: match call.text(named("mode"))? {
                Some("sum") => BagReduction::Sum,
                None | Some("mean") => BagReduction::Mean,
                Some("max") => BagReduction::Max,
                Some(_) => return no_such(call, "mode"),
            },
            padding: match call.integer(named("padding_idx"))? {
                // A negative row counts from the end.
                Some(row) if row < 0 => table.shape()[0].checked_add_signed(row),
                row => row.map(isize::unsigned_abs),
            },
        };
        let weights = call.optional_var(named("per_sample_weights"))?;
        let Some(starts) = call.optional_constant(named("offsets"))? else {
            return one(embedding_bag(table, &index, Bags::Rows, weights, options)?);
        };
        let starts = starts.to_dtype(DType::I64)?;
        let bags = starts.shape().element_count();
        let starts = if call.flag(named("include_last_offset"))?.unwrap_or(false) {
            starts.narrow(0, 0, bags.saturating_sub(1))?
        } else {
            starts
        };
        one(embedding_bag(table, &index, Bags::From(&starts), weights, options)?)
    }),
    ("nn.functional.one_hot", |call| {
        let classes = call.integer(at(1, "num_classes"))?.unwrap_or(-1);
        let Ok(classes) = usize::try_from(classes) else {
            return no_form("as many classes as the largest index needs");
        };
        one(index(call, INPUT)?.one_hot(classes, DType::I64)?)
    }),
    ("nonzero", |call| {
        let as_tuple = call.flag(at(1, "as_tuple"))?.unwrap_or(false);
        let places = nonzero(call)?;
        if !as_tuple {
            return one(places);
        }
        let columns = (0..places.shape()[1]).map(|axis| places.select(1, axis));
        Ok(columns
            .map(|column| column.map(Output::Tensor))
            .collect::<std::result::Result<_, _>>()?)
    }),
    ("scatter", |call| {
        let x = call.var(INPUT)?;
        let dim = axis(call, DIM, &x)?.unwrap_or(0);
        let index = index(call, INDEX)?;
        let source = at(3, "src");
        let is_tensor = call.value(source).is_some_and(|value| call.var_of(value).is_some());
        let source = if is_tensor {
            call.var(source)?
        } else {
            let value = call.number(source)?.unwrap_or_default();
            let dtype = x.value().dtype();
            call.pass.constant(Tensor::full(&call.device, *index.shape(), dtype, value)?)
        };
        match call.text(named("reduce"))? {
            None => one(x.scatter(dim, &index, source)?),
            Some("add") => one(x.scatter_add(dim, &index, source)?),
            Some(_) => no_such(call, "reduce"),
        }
    }),
    ("scatter_add", |call| {
        let x = call.var(INPUT)?;
        let dim = axis(call, DIM, &x)?.unwrap_or(0);
        one(x.scatter_add(dim, &index(call, INDEX)?, call.var(at(3, "src"))?)?)
    }),
    ("take_along_dim", |call| {
        let x = call.var(INPUT)?;
        let index = index(call, at(1, "indices"))?;
        match axis(call, at(2, "dim"), &x)? {
            Some(dim) => one(x.take_along_dim(&index, dim)?),
            None => {
                let len = x.shape().element_count();
                let index = index.reshape([index.element_count()])?;
                one(x.reshape([len])?.gather(0, &index)?)
            }
        }
    }),
];

/// An index argument, converted to i64 for lowtide.
pub(super) fn index(call: &Call<'_>, at: At) -> Result<Tensor> {
    Ok(call.constant(at)?.to_dtype(DType::I64)?)
}

/// The places of elements that are not 0. A simulated device cannot count them, so the number comes
/// from the case.
fn nonzero(call: &Call<'_>) -> Result<Tensor> {
    let x = call.var(INPUT)?;
    if x.shape().is_empty() && call.flag(named("as_tuple"))?.unwrap_or(false) {
        return Err(Stop::NotApplicable(Reason::NoDimensions, "nonzero".to_owned()));
    }
    Ok(x.value().nonzero_assuming(expected_len(call))?)
}

/// The length of the expected result.
pub(super) fn expected_len(call: &Call<'_>) -> usize {
    let case = call.case();
    let first = case.outputs.first().and_then(|output| case.tensor(output));
    first.and_then(|tensor| tensor.shape.first().copied()).unwrap_or(0)
}
