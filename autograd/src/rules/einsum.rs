//! Products and sums in Einstein notation, composed of views, matrix products and sums.

use std::collections::{BTreeMap, BTreeSet};

use lowtide_tensor::{Shape, TensorError};

use crate::error::{AutogradError, Result};
use crate::var::Var;

/// The name of a dimension. Labels sort as in the result of an equation without an arrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Label {
    /// A dimension of `...`, counted from the last one.
    Ellipsis(std::cmp::Reverse<usize>),
    /// A letter of the equation.
    Letter(char),
}

/// An operand with a label for each dimension.
struct Labelled {
    x: Var,
    labels: Vec<Label>,
}

fn fault(equation: &str, fault: &'static str) -> AutogradError {
    AutogradError::Equation { equation: equation.to_owned(), fault }
}

/// The labels of one term. `ellipsis_len` maps the number of letters of the term to the number of
/// dimensions of its ellipsis, or to `None` if the term has too many letters.
fn labels(
    equation: &str,
    term: &str,
    ellipsis_len: impl Fn(usize) -> Option<usize>,
) -> Result<Vec<Label>> {
    let mut parts = term.splitn(2, "...");
    let (before, after) = (parts.next().unwrap_or_default(), parts.next());
    let letters = |part: &str| -> Result<Vec<Label>> {
        let label = |letter: char| {
            if !letter.is_ascii_alphabetic() {
                return Err(fault(equation, "has a character that is no letter"));
            }
            Ok(Label::Letter(letter))
        };
        part.chars().map(label).collect()
    };
    let mut labels = letters(before)?;
    let after = after.map(&letters).transpose()?;
    let letter_count = labels.len() + after.as_ref().map_or(0, Vec::len);
    let Some(len) = ellipsis_len(letter_count).filter(|&len| after.is_some() || len == 0) else {
        return Err(fault(equation, "has not as many letters as an operand has dimensions"));
    };
    labels.extend((0..len).rev().map(|place| Label::Ellipsis(std::cmp::Reverse(place))));
    labels.extend(after.unwrap_or_default());
    Ok(labels)
}

impl Labelled {
    /// The operand with each label once: the diagonal of dimensions with one label.
    fn diagonals(mut self) -> Result<Self> {
        let mut place = 0;
        while place < self.labels.len() {
            let label = self.labels[place];
            let again = self.labels[place + 1..].iter().position(|&other| other == label);
            let Some(again) = again.map(|offset| place + 1 + offset) else {
                place += 1;
                continue;
            };
            let shape = *self.x.shape();
            if shape[place] != shape[again] {
                let (left, right) =
                    (Shape::new(&shape[place..=place]), Shape::new(&shape[again..=again]));
                return Err(TensorError::Shape { op: "einsum", left, right }.into());
            }
            // `diagonal` appends its dimension as the last one.
            self.x = self.x.diagonal(0, place, again)?;
            self.labels.remove(again);
            self.labels.remove(place);
            self.labels.push(label);
        }
        Ok(self)
    }

    /// Sums over the dimensions whose labels are not kept.
    fn keeping(self, keep: impl Fn(Label) -> bool) -> Result<Self> {
        let Labelled { x, labels } = self;
        let summed: Vec<usize> = (0..labels.len()).filter(|&at| !keep(labels[at])).collect();
        if summed.is_empty() {
            return Ok(Labelled { x, labels });
        }
        let labels = labels.into_iter().filter(|&label| keep(label)).collect();
        Ok(Labelled { x: x.sum(&summed)?, labels })
    }

    fn len_of(&self, labels: &[Label]) -> usize {
        labels.iter().map(|label| self.size(*label)).product()
    }

    fn size(&self, label: Label) -> usize {
        let place = self.labels.iter().position(|&other| other == label);
        place.map_or(1, |place| self.x.shape()[place])
    }

    /// The operand with its labels in `order`, reshaped to `shape`.
    fn arranged(self, order: &[Label], shape: &[usize]) -> Result<Var> {
        let place = |label| self.labels.iter().position(|other| other == label).unwrap_or_default();
        let axes: Vec<usize> = order.iter().map(place).collect();
        let is_in_order = axes.iter().copied().eq(0..axes.len());
        let x = if is_in_order { self.x } else { self.x.permute(&axes)? };
        if x.shape()[..] == *shape { Ok(x) } else { x.reshape(shape) }
    }

    /// The product with `other`, summed over the common labels that are not kept.
    fn times(self, other: Labelled, keep: impl Fn(Label) -> bool) -> Result<Self> {
        let (shared, rows): (Vec<Label>, Vec<Label>) =
            self.labels.iter().copied().partition(|label| other.labels.contains(label));
        let columns: Vec<Label> =
            other.labels.iter().copied().filter(|label| !self.labels.contains(label)).collect();
        let (batch, summed): (Vec<Label>, Vec<Label>) =
            shared.into_iter().partition(|&label| keep(label));
        let result: Vec<Label> = [&batch[..], &rows, &columns].concat();
        let owner = |label: &Label| if columns.contains(label) { &other } else { &self };
        let shape: Vec<usize> = result.iter().map(|label| owner(label).size(*label)).collect();
        let [b, m, k] = [&batch, &rows, &summed].map(|labels| self.len_of(labels));
        let n = other.len_of(&columns);
        let left = [&batch[..], &rows, &summed].concat();
        let right = [&batch[..], &summed, &columns].concat();
        let y = if summed.is_empty() {
            self.arranged(&left, &[b, m, 1])?.mul(other.arranged(&right, &[b, 1, n])?)?
        } else {
            self.arranged(&left, &[b, m, k])?.bmm(other.arranged(&right, &[b, k, n])?)?
        };
        Ok(Labelled { x: y.reshape(&shape[..])?, labels: result })
    }
}

impl Var {
    /// The product of the operands, summed over every letter that is missing in the result;
    /// `torch.einsum`. `"ij,jk->ik"` is a matrix product, `"bhqd,bhkd->bhqk"` the scores of
    /// attention, `"ii->i"` a diagonal, `"ij->ji"` a transpose.
    ///
    /// Each letter names a dimension. `...` stands for the dimensions of an operand without a
    /// letter, which are broadcast. Without an arrow, the result has the dimensions of `...`, then
    /// the letters that occur once, in alphabetical order.
    ///
    /// The operands are multiplied from left to right, each pair as one batched matrix product.
    ///
    /// # Errors
    /// `Equation` for a malformed equation, or one that does not fit the operands' dimensions.
    /// `Shape` if the sizes of one letter differ and neither is 1. `DType`, `OutOfMemory`.
    #[track_caller]
    pub fn einsum(equation: &str, operands: Vec<Var>) -> Result<Var> {
        let text: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
        let (inputs, output) = match text.split_once("->") {
            Some((inputs, output)) => (inputs, Some(output)),
            None => (&text[..], None),
        };
        let terms: Vec<&str> = inputs.split(',').collect();
        if terms.len() != operands.len() || operands.is_empty() {
            return Err(fault(equation, "has not as many terms as there are operands"));
        }
        let mut labelled = Vec::with_capacity(operands.len());
        for (term, x) in terms.into_iter().zip(operands) {
            let rank = x.shape().len();
            let labels = labels(equation, term, |letters| rank.checked_sub(letters))?;
            labelled.push(Labelled { x, labels }.diagonals()?);
        }

        let mut sizes: BTreeMap<Label, usize> = BTreeMap::new();
        for Labelled { x, labels } in &labelled {
            for (&label, &size) in labels.iter().zip(&x.shape()[..]) {
                let known = sizes.entry(label).or_insert(size);
                if *known != size && *known != 1 && size != 1 {
                    let (left, right) = (Shape::new(&[*known]), Shape::new(&[size]));
                    return Err(TensorError::Shape { op: "einsum", left, right }.into());
                }
                if *known == 1 {
                    *known = size;
                }
            }
        }
        let order = match output {
            Some(output) => {
                let ellipsis = sizes.keys().filter(|label| matches!(label, Label::Ellipsis(_)));
                let len = if output.contains("...") { ellipsis.count() } else { 0 };
                labels(equation, output, |_| Some(len))?
            }
            None => {
                let all: String = inputs.replace("...", "");
                let is_once = |label: &&Label| match label {
                    Label::Letter(letter) => all.matches(*letter).count() == 1,
                    Label::Ellipsis(_) => true,
                };
                sizes.keys().filter(is_once).copied().collect()
            }
        };
        let wanted: BTreeSet<Label> = order.iter().copied().collect();
        if wanted.len() < order.len() || !wanted.iter().all(|label| sizes.contains_key(label)) {
            return Err(fault(equation, "has a result with a letter twice, or one of no operand"));
        }

        // Leaving out a dimension of length 1 stretches it to the other length of its label.
        for operand in &mut labelled {
            let is_short = |label: Label| {
                operand.size(label) == 1 && sizes.get(&label).is_some_and(|&n| n != 1)
            };
            let short: BTreeSet<Label> =
                operand.labels.iter().copied().filter(|&label| is_short(label)).collect();
            let labels = std::mem::take(&mut operand.labels);
            let whole = Labelled { x: operand.x.clone(), labels };
            *operand = whole.keeping(|label| !short.contains(&label))?;
        }
        let mut rest = labelled.into_iter().rev().collect::<Vec<_>>();
        let mut product = rest.pop().ok_or_else(|| fault(equation, "has no operands"))?;
        while let Some(next) = rest.pop() {
            let is_needed = |label: Label| {
                wanted.contains(&label) || rest.iter().any(|later| later.labels.contains(&label))
            };
            // Labels that only one factor has are summed before the product.
            let next_labels: BTreeSet<Label> = next.labels.iter().copied().collect();
            let product_labels: BTreeSet<Label> = product.labels.iter().copied().collect();
            let left = product.keeping(|label| is_needed(label) || next_labels.contains(&label))?;
            let right =
                next.keeping(|label| is_needed(label) || product_labels.contains(&label))?;
            product = left.times(right, is_needed)?;
        }
        let product = product.keeping(|label| wanted.contains(&label))?;
        let shape: Vec<usize> = order.iter().map(|&label| product.size(label)).collect();
        product.arranged(&order, &shape)
    }
}
