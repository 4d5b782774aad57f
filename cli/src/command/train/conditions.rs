//! The conditions under which a run goes on to the same bits: how it is divided, its budget, its
//! plan, and the files that it reads. Each of its checkpoints has them.

use std::collections::BTreeMap;
use std::io::{self, Write};

use lowtide_ranks::Rank;
use lowtide_trainer::{Fingerprint, Knobs, Parallelism, Plan};
use serde::{Deserialize, Serialize};

use super::arguments::RunArgs;
use crate::command::staging::Origin;
use crate::human::format_bytes;
use crate::recipe::Recipe;

/// The conditions of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::command) struct Conditions {
    /// Names the training: equal for runs that began with the same recipe and the same files. A
    /// run that is resumed keeps it.
    pub(in crate::command) id: String,
    /// The kind of the device: `cpu` or `cuda`.
    pub(super) device: String,
    pub(super) ranks: usize,
    pub(super) zero: Parallelism,
    /// `--budget`, if it was given.
    pub(super) budget_bytes: Option<usize>,
    /// `--process-budget`, if it was given.
    pub(super) process_budget_bytes: Option<usize>,
    /// `--offload-budget`, if it was given.
    pub(super) offload_budget_bytes: Option<usize>,
    pub(super) tf32: bool,
    /// The knobs of the first rank's plan.
    pub(super) knobs: Knobs,
    /// The files and folders of the data and of pretrained weights.
    pub(super) files: BTreeMap<String, Fingerprint>,
}

impl Conditions {
    /// The conditions of a run of `recipe` that begins or goes on with these arguments.
    pub(super) fn of(
        recipe: &Recipe,
        arguments: &RunArgs,
        zero: Parallelism,
        plan: &Plan,
    ) -> Conditions {
        let paths = recipe.paths();
        // A file that cannot be read now is an error where it is opened.
        let read = |path: &std::path::PathBuf| {
            Some((path.display().to_string(), Fingerprint::of_contents(path).ok()?))
        };
        let files: BTreeMap<_, _> = paths.iter().filter_map(read).collect();
        let id = match &arguments.resumed {
            Some(resumed) => resumed.id.clone(),
            None => {
                let files = serde_json::to_string(&files).expect("plain values");
                Fingerprint::of_bytes((recipe.to_toml() + &files).as_bytes()).xxh3().to_owned()
            }
        };
        Conditions {
            id,
            device: arguments.device.kind_name().to_owned(),
            ranks: arguments.planning.rank_count(),
            zero,
            budget_bytes: arguments.device.budget(),
            process_budget_bytes: arguments.device.process_bytes(),
            offload_budget_bytes: arguments.planning.offload_budget,
            tf32: arguments.device.tf32,
            knobs: plan.knobs,
            files,
        }
    }

    /// Prints a line on the error stream for each file that is not as it was when the run last
    /// began or went on. A file that is gone is an error where it is opened.
    pub(super) fn tell_changed_files(&self, recipe: &Recipe) {
        for path in recipe.paths() {
            let Some(before) = self.files.get(&path.display().to_string()) else { continue };
            let Ok(now) = Fingerprint::of_contents(&path) else { continue };
            if now != *before {
                let [was, is] = [before, &now].map(Fingerprint::size_bytes);
                let difference = if was == is {
                    "it has other contents".to_owned()
                } else {
                    format!("it had {}, and has {}", format_bytes(was), format_bytes(is))
                };
                note(&format!("{} is not what the run began with: {difference}", path.display()));
            }
        }
    }
}

impl RunArgs {
    /// These arguments for a run that goes on from `origin` as `recipe`: what the user does not
    /// give is as it was. The first rank prints a line on the error stream for each difference that
    /// may change the bits.
    pub(super) fn going_on(&self, origin: Option<&Origin>, recipe: &Recipe, rank: Rank) -> RunArgs {
        let mut own = self.clone();
        let Some((origin, was)) = origin.and_then(|of| Some((of, of.conditions.as_ref()?))) else {
            return own;
        };
        let tell = |line: &str| {
            if rank.index == 0 {
                note(line)
            }
        };
        let mut is_same = origin.recipe.as_ref().is_some_and(|saved| recipe.has_steps_of(saved));
        let mut differ = |name: &str, was: &str, is: &str| {
            if was != is {
                tell(&format!("{name} is {is}, and was {was}: the run may go on to other bits"));
                is_same = false;
            }
        };
        let RunArgs { device, planning, resumed, .. } = &mut own;
        planning.ranks_of_run = Some(was.ranks);
        let ranks = planning.rank_count();
        differ("--ranks", &was.ranks.to_string(), &ranks.to_string());
        if ranks == was.ranks && ranks > 1 {
            planning.zero = planning.divided().or(Some(was.zero));
            let zero = planning.divided().unwrap_or(was.zero);
            differ("the division", option_of(was.zero), option_of(zero));
        }
        differ("--device", &was.device, device.kind_name());
        if device.kind_name() == was.device {
            if [device.budget(), device.process_bytes()] == [None; 2] {
                device.budgets.extend(was.budget_bytes);
                device.process_budget = was.process_budget_bytes.filter(|_| ranks == 1);
            }
            let given = planning.offload_budget;
            planning.offload_budget = given.or(was.offload_budget_bytes);
            device.tf32 |= was.tf32;
        }
        let bytes = |bytes: Option<usize>| {
            bytes.map_or_else(|| "not given".to_owned(), |bytes| format_bytes(bytes as u64))
        };
        let budgets = [
            ("--budget", was.budget_bytes, device.budget()),
            ("--process-budget", was.process_budget_bytes, device.process_bytes()),
            ("--offload-budget", was.offload_budget_bytes, planning.offload_budget),
        ];
        for (name, was, is) in budgets {
            differ(name, &bytes(was), &bytes(is));
        }
        let given = |is: bool| if is { "given" } else { "not given" };
        differ("--tf32", given(was.tf32), given(device.tf32));
        if rank.index == 0 {
            was.tell_changed_files(recipe);
        }
        *resumed = Some(was.clone());
        own.keeps_knobs = is_same;
        own
    }
}

/// The option for a division.
fn option_of(zero: Parallelism) -> &'static str {
    match zero {
        Parallelism::DataParallel => "--zero 0",
        Parallelism::Zero1 => "--zero 1",
        Parallelism::Zero2 => "--zero 2",
        Parallelism::Zero3 => "--zero 3",
        Parallelism::Pipeline => "--pipeline",
        Parallelism::TensorParallel => "--tensor-parallel",
    }
}

fn note(line: &str) {
    drop(writeln!(io::stderr(), "note: {line}"));
}
