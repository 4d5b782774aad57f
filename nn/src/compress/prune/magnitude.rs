//! Prunes the weights with the smallest magnitudes.

use std::collections::BTreeMap;

use lowtide_allocator::Category;
use lowtide_tensor::{DType, Tensor};
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use crate::checks::check_option;
use crate::compress::prune::masks::Masks;
use crate::error::{PruneProblem, Result};
use crate::module::{Parameters, visit_once};
use crate::pattern::is_like;

/// Options of [`magnitude`]: the choice of the weights that are pruned.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(deny_unknown_fields, default))]
pub struct MagnitudeOptions {
    /// Fraction of the weights that is pruned, from 0 to 1. Weights that are zero already count:
    /// pruning again with the same fraction changes nothing.
    pub fraction: f64,
    /// The set of weights that are ranked together.
    pub scope: Scope,
    /// Patterns of parameters' names, in which `*` matches anything. Parameters of one dimension,
    /// biases and the gains of norms, are never pruned.
    pub targets: Vec<String>,
}

/// Sets of weights that are ranked together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(rename_all = "kebab-case"))]
pub enum Scope {
    /// The smallest weights of the whole model: layers with small weights lose more.
    #[default]
    Global,
    /// The smallest weights of each parameter: all parameters lose the same share.
    PerParameter,
}

impl Default for MagnitudeOptions {
    fn default() -> Self {
        let targets = vec!["*".to_owned()];
        MagnitudeOptions { fraction: 0.5, scope: Scope::Global, targets }
    }
}

/// Sets the weights with the smallest magnitudes to zero and returns their masks. Of equal
/// magnitudes, the first weights are pruned; NaN counts as the largest.
/// [`Masked`](crate::optim::Masked) keeps the weights zero in training. Values are read on the
/// host, one parameter at a time.
///
/// ```
/// use lowtide_nn::optim::{Adam, AdamOptions, Masked};
/// use lowtide_nn::{models::Mlp, prune};
/// use lowtide_tensor::{CpuOptions, Device, RandomKey};
///
/// let device = Device::cpu(CpuOptions::default())?;
/// let mut model = Mlp::new(&device, RandomKey::new(0), &[4, 8, 2])?;
/// let masks = prune::magnitude(&mut model, &prune::MagnitudeOptions::default())?;
/// assert_eq!(masks.size_bytes(), 4 * 8 + 8 * 2);
/// let optimizer = Masked::new(Adam::new(AdamOptions::adamw())?, masks);
/// # Ok::<(), lowtide_nn::NnError>(())
/// ```
///
/// # Errors
/// `Option` for a fraction outside `[0, 1]`; `Prune` for a target that matches nothing;
/// `OutOfMemory`, `Frozen`, `ReadOnly`, `ValueUnavailable` on a simulated device. The model is
/// then as before.
pub fn magnitude(model: &mut dyn Parameters, options: &MagnitudeOptions) -> Result<Masks> {
    let MagnitudeOptions { fraction, scope, targets } = options;
    check_option("fraction", *fraction, "[0, 1]", |share| (0.0..=1.0).contains(&share))?;
    let parameters = matched(model, targets)?;
    let together: Vec<&[Target]> = match scope {
        Scope::Global => vec![&parameters],
        Scope::PerParameter => parameters.chunks(1).collect(),
    };
    let mut masks = BTreeMap::new();
    for parameters in together {
        let len: usize = parameters.iter().map(|(_, _, value)| value.element_count()).sum();
        let count = (fraction * len as f64).round() as usize;
        let Some(mut limit) = Limit::find(parameters, count)? else { continue };
        for (_, id, value) in parameters {
            let pruned: Vec<bool> =
                magnitudes(value)?.into_iter().map(|key| limit.takes(key)).collect();
            masks.extend(mask(value, &pruned)?.map(|mask| (*id, mask)));
        }
    }
    applied(model, masks)
}

/// Keeps the `kept` largest of every `of` consecutive weights along the inputs (axis 1) and prunes
/// the others. An example is 2:4, for matrix units that skip zeros.
///
/// # Errors
/// `Option` unless `kept` is less than `of`; `Prune` for a target whose number of inputs is no
/// multiple of `of`; the errors of [`magnitude`]. The model is then as before.
pub fn n_of_m(
    model: &mut dyn Parameters,
    [kept, of]: [usize; 2],
    targets: &[String],
) -> Result<Masks> {
    check_option("kept", kept as f64, "[0, of)", |_| kept < of)?;
    let mut masks = BTreeMap::new();
    for (name, id, value) in matched(model, targets)? {
        let shape = value.shape();
        if !shape[1].is_multiple_of(of) {
            return Err(PruneProblem::Inputs { name, inputs: shape[1], of }.into());
        }
        let (inner, keys) = (shape[2..].iter().product::<usize>(), magnitudes(&value)?);
        let mut pruned = vec![false; keys.len()];
        // The elements of a run are `inner` apart.
        for run in 0..keys.len() / of {
            let first = run / inner * inner * of + run % inner;
            let mut places: Vec<usize> = (0..of).map(|nth| first + nth * inner).collect();
            places.sort_by_key(|&place| (keys[place], place));
            places[..of - kept].iter().for_each(|&place| pruned[place] = true);
        }
        masks.extend(mask(&value, &pruned)?.map(|mask| (id, mask)));
    }
    applied(model, masks)
}

/// Name, identity and value of a parameter that may be pruned.
type Target = (String, lowtide_autograd::LeafId, Tensor);

/// The parameters of two dimensions and more whose names match one of the patterns.
fn matched(model: &mut dyn Parameters, targets: &[String]) -> Result<Vec<Target>> {
    let mut all = Vec::new();
    visit_once(model, &mut |name, parameter| {
        if parameter.value().shape().len() > 1 && parameter.value().dtype().is_float() {
            all.push((name.to_owned(), parameter.id(), parameter.value().clone()));
        }
    });
    let is_lost = |target: &&String| !all.iter().any(|(name, ..)| is_like(name, target));
    if let Some(target) = targets.iter().find(is_lost) {
        let names = all.into_iter().map(|(name, ..)| name).collect();
        return Err(PruneProblem::NoMatch { target: target.clone(), names }.into());
    }
    all.retain(|(name, ..)| targets.iter().any(|target| is_like(name, target)));
    Ok(all)
}

/// The magnitudes in row-major order, as integers that sort alike: the bits of |x| in f64.
fn magnitudes(value: &Tensor) -> Result<Vec<u64>> {
    Ok(match value.dtype() {
        DType::F64 => value.to_vec::<f64>()?.into_iter().map(|x| x.abs().to_bits()).collect(),
        DType::F32 => {
            value.to_vec::<f32>()?.into_iter().map(|x| f64::from(x).abs().to_bits()).collect()
        }
        _ => magnitudes(&value.to_dtype(DType::F32)?)?,
    })
}

/// The threshold of pruning. Every magnitude below `key` is pruned, and so are the first
/// `equal_left` magnitudes that equal `key`.
struct Limit {
    key: u64,
    equal_left: usize,
}

impl Limit {
    /// The limit that prunes `count` magnitudes; `None` if `count` is 0. Finds the limit digit by
    /// digit, 16 bits each, from the highest on: one table counts the magnitudes by the digit. The
    /// magnitudes of all parameters are never in memory at once.
    fn find(parameters: &[Target], count: usize) -> Result<Option<Limit>> {
        if count == 0 {
            return Ok(None);
        }
        let (mut key, mut left) = (0, count);
        for shift in [48, 32, 16, 0] {
            let mut table = vec![0; 1 << 16];
            for (_, _, value) in parameters {
                let keys = magnitudes(value)?;
                // The digits above are known.
                let alike =
                    keys.into_iter().filter(|x| shift == 48 || (x ^ key) >> (shift + 16) == 0);
                alike.for_each(|x| table[(x >> shift) as usize & 0xffff] += 1);
            }
            let mut digit = 0;
            while table[digit] < left {
                left -= table[digit];
                digit += 1;
            }
            key |= (digit as u64) << shift;
        }
        Ok(Some(Limit { key, equal_left: left }))
    }

    /// True if the next element is pruned; `key` is its magnitude.
    fn takes(&mut self, key: u64) -> bool {
        let is_equal = key == self.key && self.equal_left > 0;
        self.equal_left -= usize::from(is_equal);
        key < self.key || is_equal
    }
}

/// The mask of a parameter; `None` if no element is pruned.
fn mask(value: &Tensor, pruned: &[bool]) -> Result<Option<Tensor>> {
    if !pruned.contains(&true) {
        return Ok(None);
    }
    let _scope = value.device().category(Category::OptimizerState);
    Ok(Some(Tensor::from_slice(value.device(), *value.shape(), pruned)?))
}

fn applied(
    model: &mut dyn Parameters,
    masks: BTreeMap<lowtide_autograd::LeafId, Tensor>,
) -> Result<Masks> {
    let masks = Masks(masks);
    masks.apply(model)?;
    Ok(masks)
}
