//! Shapes and views; tensors that are joined, split or created.

use lowtide_autograd::Var;
use lowtide_tensor::{DType, PadMode, Shape, Tensor};

use super::node::NodeCall;
use super::{Family, converted};
use crate::call::{Output, Result, one};

pub(super) const OPS: Family = &[
    ("CenterCropPad", |node| {
        let mut x = node.var(0)?;
        let sizes = node.integers(1)?.unwrap_or_default();
        let rank = x.shape().len();
        let axes = match node.attribute_integers("axes")? {
            Some(axes) => axes.iter().map(|&axis| node.axis(axis, rank)).collect::<Result<_>>()?,
            None => (0..rank).collect::<Vec<usize>>(),
        };
        for (axis, size) in axes.into_iter().zip(sizes) {
            let (len, size) = (x.shape()[axis], size.max(0) as usize);
            if size <= len {
                x = x.narrow(axis, (len - size) / 2, size)?;
                continue;
            }
            let (more, mut padding) = (size - len, vec![[0, 0]; rank]);
            padding[axis] = [more / 2, more - more / 2];
            x = x.pad(&padding, PadMode::Constant(0.0))?;
        }
        one(x)
    }),
    ("Concat", |node| {
        let all = node.vars()?;
        let rank = all.first().map_or(0, |x| x.shape().len());
        one(Var::cat(all, node.attribute_axis("axis", 1, rank)?)?)
    }),
    ("Constant", |node| {
        if let Some(value) = node.attribute_tensor("value")? {
            return one(value);
        }
        let device = node.device();
        if let Some(value) = node.attribute_number("value_float")? {
            return one(Tensor::from_slice(device, [], &[value as f32])?);
        }
        if let Some(value) = node.attribute_integer("value_int")? {
            return one(Tensor::from_slice(device, [], &[value as i64])?);
        }
        if let Some(values) = node.attribute_integers("value_ints")? {
            return one(whole_numbers(node, &values)?);
        }
        node.no_form("a constant that is not a tensor or a number")
    }),
    ("ConstantOfShape", |node| {
        let shape = sizes(&node.integers(0)?.unwrap_or_default());
        let value = match node.attribute_tensor("value")? {
            Some(value) => value,
            None => node.constant(Tensor::zeros(node.device(), [1], DType::F32)?),
        };
        one(value.reshape([])?.expand(&shape[..])?.contiguous()?)
    }),
    ("DepthToSpace", |node| {
        let (x, block) = (node.var(0)?, node.attribute_count("blocksize")?.unwrap_or(1));
        let [n, c, h, w] = image(node, &x)?;
        let inner = c / (block * block).max(1);
        // The mode determines the outer part of the channels: the place in a block, or the channel.
        let x = match node.text("mode")?.unwrap_or("DCR") {
            "DCR" => x.reshape([n, block, block, inner, h, w])?.permute(&[0, 3, 4, 1, 5, 2])?,
            _ => x.reshape([n, inner, block, block, h, w])?.permute(&[0, 1, 4, 2, 5, 3])?,
        };
        one(x.reshape([n, inner, h * block, w * block])?)
    }),
    ("Expand", |node| {
        let x = node.var(0)?;
        let wanted = sizes(&node.integers(1)?.unwrap_or_default());
        one(x.clone().expand(&stretched(x.shape(), &wanted)[..])?)
    }),
    ("EyeLike", |node| {
        let x = node.tensor(0)?;
        let dtype = node.element_type("dtype")?.unwrap_or(x.dtype());
        let diagonal = node.attribute_integer("k")?.unwrap_or(0);
        let ones = Tensor::ones(node.device(), *x.shape(), DType::F32)?;
        one(ones.triu(diagonal)?.tril(diagonal)?.to_dtype(dtype)?)
    }),
    ("Flatten", |node| {
        let x = node.var(0)?;
        let axis = node.attribute_integer("axis")?.unwrap_or(1);
        let rank = x.shape().len();
        let axis = if axis < 0 { rank.saturating_add_signed(axis) } else { axis.unsigned_abs() };
        let shape = *x.shape();
        let (rows, columns) = shape.split_at(axis.min(rank));
        one(x.reshape([rows.iter().product(), columns.iter().product()])?)
    }),
    ("Pad", |node| {
        let x = node.var(0)?;
        let mode = node.text("mode")?.unwrap_or("constant");
        let amounts = node.integers_or(1, "pads")?.unwrap_or_default();
        let value = match node.number(2)? {
            Some(value) => value,
            None => node.attribute_number("value")?.unwrap_or(0.0),
        };
        let mode = match mode {
            "constant" => PadMode::Constant(value),
            "reflect" => PadMode::Reflect,
            "edge" => PadMode::Replicate,
            "wrap" => PadMode::Circular,
            other => return Err(node.wrong(&format!("mode = {other}"))),
        };
        let rank = x.shape().len();
        let axes = node.integers(3)?.unwrap_or_else(|| (0..rank as isize).collect());
        if amounts.len() != 2 * axes.len() {
            return Err(node.wrong("there are not two pads for each dimension"));
        }
        let mut pads = vec![[0, 0]; rank];
        for (place, &axis) in axes.iter().enumerate() {
            pads[node.axis(axis, rank)?] = [amounts[place], amounts[place + axes.len()]];
        }
        one(padded(x, &pads, mode)?)
    }),
    ("Range", |node| {
        let dtype = node.dtype();
        let start = node.number(0)?.ok_or_else(|| node.wrong("no start"))?;
        let limit = node.number(1)?.ok_or_else(|| node.wrong("no limit"))?;
        let step = node.number(2)?.ok_or_else(|| node.wrong("no delta"))?;
        // ONNX computes floats of the range in f32, lowtide in f64.
        node.ignore(&["stash_type"]);
        one(Tensor::arange(node.device(), start..limit, step, dtype)?)
    }),
    ("Reshape", |node| {
        let x = node.var(0)?;
        let wanted = node.integers_or(1, "shape")?.unwrap_or_default();
        let zeros_are_zero = node.flag("allowzero")?.unwrap_or(false);
        let own = |index: usize| x.shape().get(index).copied().unwrap_or(0);
        let known = |(index, &size): (usize, &isize)| match size {
            0 if !zeros_are_zero => Some(own(index)),
            size => usize::try_from(size).ok(),
        };
        let known: Vec<Option<usize>> = wanted.iter().enumerate().map(known).collect();
        let product: usize = known.iter().flatten().product();
        let rest = x.shape().element_count().checked_div(product).unwrap_or(0);
        let shape: Vec<usize> = known.into_iter().map(|size| size.unwrap_or(rest)).collect();
        one(x.reshape(&shape[..])?)
    }),
    ("Shape", |node| {
        let x = node.tensor(0)?;
        let rank = x.shape().len();
        let place = |axis: isize| {
            if axis < 0 { rank.saturating_add_signed(axis) } else { axis.unsigned_abs().min(rank) }
        };
        let start = node.attribute_integer("start")?.map_or(0, place);
        let end = node.attribute_integer("end")?.map_or(rank, place).max(start);
        let sizes: Vec<isize> = x.shape()[start..end].iter().map(|&size| size as isize).collect();
        one(whole_numbers(node, &sizes)?)
    }),
    ("Size", |node| {
        let count = node.tensor(0)?.element_count() as i64;
        one(Tensor::from_slice(node.device(), [], &[count])?)
    }),
    ("Slice", |node| {
        let x = node.var(0)?;
        let starts = node.integers_or(1, "starts")?.unwrap_or_default();
        let ends = node.integers_or(2, "ends")?.unwrap_or_default();
        let axes = node.integers_or(3, "axes")?;
        let axes = axes.unwrap_or_else(|| (0..starts.len() as isize).collect());
        let steps = node.integers(4)?.unwrap_or_else(|| vec![1; starts.len()]);
        if [ends.len(), axes.len(), steps.len()].iter().any(|&count| count != starts.len()) {
            return Err(node.wrong("not as many ends, axes or steps as starts"));
        }
        let mut x = x;
        for (place, &axis) in axes.iter().enumerate() {
            let axis = node.axis(axis, x.shape().len())?;
            x = sliced(x, axis, [starts[place], ends[place]], steps[place])?;
        }
        one(x)
    }),
    ("SpaceToDepth", |node| {
        let (x, block) = (node.var(0)?, node.attribute_count("blocksize")?.unwrap_or(1));
        let [n, c, h, w] = image(node, &x)?;
        let (rows, columns) = (h / block.max(1), w / block.max(1));
        let x = x.reshape([n, c, rows, block, columns, block])?;
        let x = match node.text("mode")?.unwrap_or("DCR") {
            "DCR" => x.permute(&[0, 3, 5, 1, 2, 4])?,
            _ => x.permute(&[0, 1, 3, 5, 2, 4])?,
        };
        one(x.reshape([n, c * block * block, rows, columns])?)
    }),
    ("Split", |node| {
        let x = node.var(0)?;
        let axis = node.attribute_axis("axis", 0, x.shape().len())?;
        let sizes_of_parts = node.integers_or(1, "split")?;
        let count = node.attribute_count("num_outputs")?.unwrap_or(node.output_count());
        let parts = match sizes_of_parts {
            Some(lens) => x.split_with_sizes(axis, &sizes(&lens))?,
            None => {
                // The last part is shorter, and may be empty.
                let len = x.shape()[axis];
                let each = len.div_ceil(count.max(1));
                let place = |index: usize| (index * each).min(len);
                let lens: Vec<usize> =
                    (0..count).map(|index| place(index + 1) - place(index)).collect();
                x.split_with_sizes(axis, &lens)?
            }
        };
        Ok(parts.into_iter().map(Output::Var).collect())
    }),
    ("Squeeze", |node| {
        let mut x = node.var(0)?;
        let rank = x.shape().len();
        let mut axes = match node.integers_or(1, "axes")? {
            Some(axes) => axes.iter().map(|&axis| node.axis(axis, rank)).collect::<Result<_>>()?,
            None => (0..rank).filter(|&axis| x.shape()[axis] == 1).collect::<Vec<_>>(),
        };
        axes.sort_unstable();
        for axis in axes.into_iter().rev() {
            x = x.squeeze(axis)?;
        }
        one(x)
    }),
    ("Tile", |node| one(node.var(0)?.repeat(&sizes(&node.integers(1)?.unwrap_or_default()))?)),
    ("Transpose", |node| {
        let x = node.var(0)?;
        let rank = x.shape().len();
        let axes = node.attribute_counts("perm")?.unwrap_or_else(|| (0..rank).rev().collect());
        one(x.permute(&axes)?)
    }),
    ("Trilu", |node| {
        let x = node.var(0)?;
        let diagonal = node.integers(1)?.and_then(|k| k.first().copied()).unwrap_or(0);
        let is_upper = node.flag("upper")?.unwrap_or(true);
        one(if is_upper { x.triu(diagonal)? } else { x.tril(diagonal)? })
    }),
    ("Unsqueeze", |node| {
        let mut x = node.var(0)?;
        let axes = node.integers_or(1, "axes")?.unwrap_or_default();
        let rank = x.shape().len() + axes.len();
        let mut axes: Vec<usize> =
            axes.iter().map(|&axis| node.axis(axis, rank)).collect::<Result<_>>()?;
        axes.sort_unstable();
        for axis in axes {
            x = x.unsqueeze(axis)?;
        }
        one(x)
    }),
];

/// Sizes as counts. A negative size becomes 0.
pub(super) fn sizes(values: &[isize]) -> Vec<usize> {
    values.iter().map(|&value| value.max(0) as usize).collect()
}

/// Numbers of the program as an i64 tensor.
fn whole_numbers(node: &NodeCall<'_>, values: &[isize]) -> Result<Tensor> {
    let values: Vec<i64> = values.iter().map(|&value| value as i64).collect();
    if values.is_empty() {
        return Ok(Tensor::empty(node.device(), [0], DType::I64)?);
    }
    Ok(Tensor::from_slice(node.device(), [values.len()], &values)?)
}

/// The shape that `x` and `wanted` broadcast to.
pub(super) fn stretched(x: &Shape, wanted: &[usize]) -> Vec<usize> {
    let rank = x.len().max(wanted.len());
    let at = |sizes: &[usize], index: usize| {
        let before = rank - sizes.len();
        index.checked_sub(before).map_or(1, |index| sizes[index])
    };
    let size = |index| match (at(x, index), at(wanted, index)) {
        (1, size) | (size, 1) => size,
        (_, size) => size,
    };
    (0..rank).map(size).collect()
}

fn image(node: &NodeCall<'_>, x: &Var) -> Result<[usize; 4]> {
    <[usize; 4]>::try_from(&x.shape()[..]).map_err(|_| node.wrong("not a batch of images"))
}

/// Pads either side of each dimension. A negative number removes positions.
pub(super) fn padded(x: Var, pads: &[[isize; 2]], mode: PadMode) -> Result<Var> {
    let mut x = x;
    for (axis, &[before, after]) in pads.iter().enumerate() {
        let [before, after] = [before, after].map(|amount| amount.min(0).unsigned_abs());
        if before + after > 0 {
            let len = x.shape()[axis].saturating_sub(before + after);
            x = x.narrow(axis, before, len)?;
        }
    }
    let more: Vec<[usize; 2]> =
        pads.iter().map(|pair| pair.map(|amount| amount.max(0) as usize)).collect();
    if more.iter().all(|pair| *pair == [0, 0]) { Ok(x) } else { Ok(x.pad(&more, mode)?) }
}

/// ONNX's slice: negative places count from the end, places outside are clamped, and a negative
/// step goes backwards.
fn sliced(x: Var, axis: usize, [start, end]: [isize; 2], step: isize) -> Result<Var> {
    let len = x.shape()[axis] as isize;
    let from_first = |place: isize| if place < 0 { place.saturating_add(len) } else { place };
    if step > 0 {
        let inside = |place: isize| from_first(place).clamp(0, len) as usize;
        let start = inside(start);
        return Ok(x.slice(axis, start..inside(end).max(start), step as usize)?);
    }
    // A negative step steps through the reversed tensor, where place p is at len - 1 - p.
    let start = len - 1 - from_first(start).clamp(-1, len - 1);
    let end = (len - 1 - from_first(end).clamp(-1, len - 1)).max(start);
    let step = step.unsigned_abs().max(1);
    Ok(x.flip(&[axis])?.slice(axis, start as usize..end as usize, step)?)
}

/// A value converted to another type, or unchanged if it has the type.
pub(super) fn as_type(node: &NodeCall<'_>, x: Tensor, dtype: DType) -> Result<Tensor> {
    Ok(converted(node, node.constant(x), dtype)?.into_value())
}
