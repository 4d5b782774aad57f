//! The bytes that ranks send to each other in a step.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};

use lowtide_cli::recipe::{Recipe, RecipeData};
use lowtide_ranks::{Rank, RanksError, Result, Wire, Wired};
use lowtide_trainer::{Fit, Knobs, Parallelism};

use crate::common::PATIENT;
use crate::pipeline::{trainer, watch};

/// Largest bytes of a message without a tensor: its call, and the values exchanged in it.
const WORDS_BYTES_MAX: usize = 40;

/// A rank's lines to all ranks, including itself.
struct Lines {
    rank: Rank,
    to: Vec<Sender<Vec<u8>>>,
    from: Vec<Mutex<Receiver<Vec<u8>>>>,
    sent: Arc<Sent>,
}

/// Number of bytes and messages that a rank has sent over its lines so far.
#[derive(Default)]
struct Sent {
    bytes: AtomicUsize,
    messages: AtomicUsize,
}

impl Sent {
    fn so_far(&self) -> [usize; 2] {
        [&self.bytes, &self.messages].map(|count| count.load(Ordering::Relaxed))
    }
}

impl Lines {
    fn of_each(count: usize) -> Vec<Lines> {
        let rank = |index| Rank { index, count };
        let ends =
            |index| Lines { rank: rank(index), to: vec![], from: vec![], sent: Arc::default() };
        let mut all: Vec<Lines> = (0..count).map(ends).collect();
        for from in 0..count {
            for to in 0..count {
                let (sender, receiver) = channel();
                all[from].to.push(sender);
                all[to].from.push(Mutex::new(receiver));
            }
        }
        all
    }
}

impl Wire for Lines {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn send(&self, message: Vec<u8>, to: usize) -> Result<()> {
        self.sent.bytes.fetch_add(message.len(), Ordering::Relaxed);
        self.sent.messages.fetch_add(1, Ordering::Relaxed);
        self.to[to].send(message).map_err(|_| RanksError::Lost { rank: to })
    }

    fn receive(&self, from: usize, op: &'static str) -> Result<Vec<u8>> {
        let line = self.from[from].lock().expect("no panic");
        line.recv_timeout(PATIENT).map_err(|error| match error {
            RecvTimeoutError::Disconnected => RanksError::Lost { rank: from },
            RecvTimeoutError::Timeout => {
                RanksError::Late { op, missing: vec![from], waited: PATIENT }
            }
        })
    }

    /// Dropping the lines ends every wait for them.
    fn abort(&self, _: &str) {}
}

struct Network {
    recipe: &'static str,
    blocks: usize,
    parameter_bytes: usize,
    /// Bytes of the parameters outside of blocks.
    outside_bytes: usize,
    /// Bytes of the parameters that are used in two places.
    tied_bytes: usize,
}

impl Network {
    /// Bytes of sharded parameters that a micro-batch gathers: once at each use, and once more in
    /// recomputed blocks.
    fn gathered_bytes(&self, recomputes: bool) -> usize {
        let again = if recomputes { self.parameter_bytes - self.outside_bytes } else { 0 };
        self.parameter_bytes + self.tied_bytes + again
    }
}

const CNN_BYTES: usize = 4 * (32 * 28 + 64 * (32 * 9 + 1) + 128 * (64 * 9 + 1) + 10 * 8193);

/// Networks of the workloads w2 and w4.
const NETWORKS: [Network; 2] = [
    Network {
        recipe: "[model]\nkind = \"deep-cnn\"\nchannels = [32, 64, 128]\n\
                 [data]\nkind = \"random-images\"\nshape = [3, 64, 64]\nclasses = 10\n\
                 samples = 32\n[train]\nbatch_size = 16\n",
        blocks: 0,
        parameter_bytes: CNN_BYTES,
        outside_bytes: CNN_BYTES,
        tied_bytes: 0,
    },
    Network {
        recipe: "[model]\nkind = \"gpt\"\nwidth = 128\nheads = 4\nblocks = 4\n\
                 [data]\nkind = \"random-tokens\"\nvocabulary = 128\ncontext = 128\n\
                 samples = 32\n[train]\nbatch_size = 16\n",
        blocks: 4,
        parameter_bytes: 4 * (4 * 128 * (12 * 128 + 13) + 128 * (128 + 128 + 2)),
        outside_bytes: 4 * 128 * (128 + 128 + 2),
        tied_bytes: 4 * 128 * 128,
    },
];

/// Number of bytes and messages that a rank sends in the second step of a training.
struct InAStep {
    planned_bytes: usize,
    bytes: usize,
    messages: usize,
}

fn in_a_step(recipe: &Recipe, count: usize, zero: Parallelism, knobs: Knobs) -> Vec<InAStep> {
    let work = |lines: Lines| {
        let (rank, sent) = (lines.rank, lines.sent.clone());
        let mut trainer = trainer(recipe, Some(Arc::new(Wired::new(lines))), zero);
        let RecipeData { train, .. } = recipe.open_share(rank).expect("data");
        let fit = Fit::new(&train).steps(2);
        let plan = trainer.plan_run(&fit, &knobs.into()).unwrap();
        let planned_bytes = trainer.sent_bytes(&plan);
        let mut after = Vec::new();
        let mut watch = watch(|_: &_, _| after.push(sent.so_far()));
        trainer.run(&fit, &mut [&mut watch]).unwrap();
        let [bytes, messages] = [0, 1].map(|of| after[1][of] - after[0][of]);
        InAStep { planned_bytes, bytes, messages }
    };
    let work = &work;
    std::thread::scope(|scope| {
        let each = Lines::of_each(count).into_iter();
        let handles: Vec<_> = each.map(|lines| scope.spawn(move || work(lines))).collect();
        handles.into_iter().map(|handle| handle.join().expect("no panic")).collect()
    })
}

/// The formula counts gradients, updated parts and gathered parameters, each as often as it is
/// sent. The same number of bytes is sent, except for the words of votes.
#[test]
fn ranks_send_what_the_formula_says_and_the_plan() {
    for network in NETWORKS {
        let recipe = Recipe::parse(network.recipe, Path::new("task.toml")).expect("a recipe");
        let all = network.parameter_bytes;
        for (count, parts) in [(2, 1), (2, 2), (2, 8), (4, 1), (4, 2)] {
            let mut ways = vec![
                (Parallelism::DataParallel, 0, 2 * all),
                (Parallelism::Zero1, 0, 3 * all),
                (Parallelism::Zero2, 0, (parts + 1) * all),
                (Parallelism::Zero3, 0, parts * (all + network.gathered_bytes(false))),
                (Parallelism::Zero3, network.blocks, parts * (all + network.gathered_bytes(true))),
            ];
            // Without blocks, the last two kinds of parallelism are the same.
            ways.dedup();
            for (zero, recomputed_blocks, around) in ways {
                let micro_batch = 16 / count / parts;
                let knobs = Knobs { micro_batch, recomputed_blocks, ..Knobs::default() };
                let of_each = around / count * (count - 1);
                let ranks = in_a_step(&recipe, count, zero, knobs);
                let place = format!("{count} ranks, {parts} parts, {zero:?}, {knobs}");
                assert!(ranks.iter().all(|own| own.planned_bytes == of_each), "{place}");
                // If parts do not divide evenly, one rank sends more and another less.
                let sent: usize = ranks.iter().map(|own| own.bytes).sum();
                let messages: usize = ranks.iter().map(|own| own.messages).sum();
                let words = sent.checked_sub(count * of_each);
                let words = words.unwrap_or_else(|| panic!("{sent} is less: {place}"));
                assert!(
                    (messages..WORDS_BYTES_MAX * messages).contains(&words),
                    "{words}: {place}"
                );
            }
        }
    }
}
