//! Training by several ranks together: each kind of parallelism is a [`division`].

pub(crate) mod alone;
pub(crate) mod division;
pub(crate) mod evaluate;
pub(crate) mod features;
pub(crate) mod gradients;
pub(crate) mod in_pass;
pub(crate) mod knobs;
pub(crate) mod meeting;
pub(crate) mod parallelism;
pub(crate) mod parameters;
pub(crate) mod parts;
pub(crate) mod reduce;
pub(crate) mod replicas;
pub(crate) mod stages;
pub(crate) mod states;
pub(crate) mod vote;
pub(crate) mod whole;

use std::sync::Arc;

use lowtide_ranks::Collectives;

use crate::options::Options;
use crate::parallel::alone::Alone;
use crate::parallel::division::Division;
use crate::parallel::features::Features;
use crate::parallel::gradients::Gradients;
use crate::parallel::parallelism::Parallelism;
use crate::parallel::parameters::Parameters;
use crate::parallel::replicas::Replicas;
use crate::parallel::stages::Stages;
use crate::parallel::states::States;
use crate::step::summation::Summation;
use crate::task::contract::Task;

/// The groups that a rank belongs to.
pub(crate) struct Groups {
    /// All ranks that train together, if there are several.
    pub(crate) all: Option<Arc<dyn Collectives>>,
}

impl Groups {
    pub(crate) fn of(options: &Options) -> Groups {
        Groups { all: options.ranks.clone() }
    }
}

/// The division of a training, fixed for the whole training.
pub(crate) enum Chosen<T> {
    Alone(Alone),
    Replicas(Replicas),
    States(States),
    Gradients(Gradients),
    Parameters(Parameters),
    Features(Features),
    Stages(Stages<T>),
}

impl<T: Task + Clone> Chosen<T> {
    /// The division that `options` ask for, among `groups`. A group of one rank divides nothing.
    pub(crate) fn new(groups: Groups, options: &Options) -> Chosen<T> {
        let Some(ranks) = groups.all else { return Chosen::Alone(Alone) };
        if ranks.rank().count == 1 {
            return Chosen::Replicas(Replicas { ranks });
        }
        let summation = Summation::of(options);
        match (options.parallelism, summation) {
            (Parallelism::DataParallel, _) => Chosen::Replicas(Replicas { ranks }),
            // Along a tree, gradients are complete only at the root, so they are divided after the
            // sum.
            (Parallelism::Zero1, _) | (Parallelism::Zero2, Summation::Shards(_)) => {
                Chosen::States(States { ranks })
            }
            (Parallelism::Zero2, Summation::Sequential) => Chosen::Gradients(Gradients { ranks }),
            (Parallelism::Zero3, _) => Chosen::Parameters(Parameters::new(ranks, summation)),
            (Parallelism::TensorParallel, _) => Chosen::Features(Features::new(ranks)),
            (Parallelism::Pipeline, _) => Chosen::Stages(Stages::new(ranks)),
        }
    }

    pub(crate) fn get(&self) -> &dyn Division<T> {
        match self {
            Chosen::Alone(division) => division,
            Chosen::Replicas(division) => division,
            Chosen::States(division) => division,
            Chosen::Gradients(division) => division,
            Chosen::Parameters(division) => division,
            Chosen::Features(division) => division,
            Chosen::Stages(division) => division,
        }
    }
}
