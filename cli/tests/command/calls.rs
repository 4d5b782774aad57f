//! A run is killed, or the disk is full, at each call that changes a file. Complete files stay
//! complete, and `--resume` leads to the bits of an undisturbed run.

#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::place::{Outcome, Place, is_deep, skip};

/// Momentum, a schedule and clipping; twelve steps.
const RECIPE: &str = "\
[model]
channels = 4
[optimizer]
kind = \"sgd\"
learning_rate = 0.05
momentum = 0.9
[schedule]
kind = \"cosine\"
steps = 18
[train]
epochs = 2
clip_norm = 1.0
";

/// System calls that write, sync and rename, with their names on all processors.
const WRITES: &str =
    "write,pwrite64,fsync,fdatasync,?rename,?renameat,renameat2,?mkdir,mkdirat,fallocate";

/// System calls that change files but take no room.
const REMOVALS: &str = "?unlink,unlinkat,?rmdir,ftruncate";

/// Every file below a folder, by its path.
type Tree = BTreeMap<String, Vec<u8>>;

fn read_tree(folder: &Path) -> Tree {
    fn add(tree: &mut Tree, folder: &Path, place: &str) {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name").to_str().expect("UTF-8");
            let place = format!("{place}/{name}");
            if path.is_dir() {
                add(tree, &path, &place);
            } else {
                tree.insert(place, fs::read(&path).expect("readable"));
            }
        }
    }
    let mut tree = Tree::new();
    add(&mut tree, folder, "");
    // Temporary files, and the files of a failed run, are left out.
    tree.retain(|place, _| !place.starts_with("/.") && !place.starts_with("/unfinished/"));
    tree
}

fn write_tree(tree: &Tree, folder: &Path) {
    for (place, content) in tree {
        let path = folder.join(&place[1..]);
        fs::create_dir_all(path.parent().expect("a folder")).expect("room");
        fs::write(path, content).expect("room");
    }
}

/// A folder with an earlier run, `cut`. The disturbed runs are trained into it.
struct Drill {
    place: Place,
    /// The arguments of the run that is disturbed.
    arguments: String,
    /// The earlier run's files.
    earlier: Tree,
    /// Final hashes of undisturbed runs: of this one, and of one that is an epoch longer.
    hashes: [String; 2],
}

impl Drill {
    fn new() -> Drill {
        let place = Place::new();
        place.write("recipe.toml", RECIPE);
        let hash = |summary: serde_json::Value| {
            summary["final_state_hash"].as_str().expect("a hash").to_owned()
        };
        let plain = place.train("recipe.toml", "plain");
        let longer = place.train("recipe.toml --epochs 3", "longer");
        place.train("recipe.toml --seed 1 --checkpoint-every 6steps", "cut");
        let earlier = read_tree(&place.path("cut"));
        // Without memory for a copy, the training thread also writes the checkpoints. Only this
        // thread is traced, because calls of other threads come at other moments in each run.
        let budget = plain["predicted_peak_bytes"].as_u64().expect("a number");
        let arguments =
            format!("train recipe.toml --checkpoint-every 3steps --budget {budget}B --quiet");
        Drill { place, arguments, earlier, hashes: [hash(plain), hash(longer)] }
    }

    /// Runs the training under `strace` with these options.
    fn trace(&self, options: &[&str]) -> std::io::Result<Outcome> {
        drop(fs::remove_dir_all(self.place.path("cut")));
        write_tree(&self.earlier, &self.place.path("cut"));
        let mut command = Command::new("strace");
        command.arg("-qq").args(options).arg(env!("CARGO_BIN_EXE_lowtide"));
        command.args(self.arguments.split(' ')).args(["--out", "cut"]);
        command.current_dir(self.place.path(".")).stdin(Stdio::null()).env("LOWTIDE_RATES", "");
        let output = command.output()?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let (stdout, stderr) = (text(output.stdout), text(output.stderr));
        Ok(Outcome { code: output.status.code(), stdout, stderr })
    }

    /// Number of these calls in the run; `None` without `strace`.
    fn count(&self, calls: &str) -> Option<usize> {
        self.trace(&["-o", "calls", "-e", &format!("trace={calls}")]).ok()?.check_done();
        let lines = String::from_utf8(self.place.read("calls")).expect("UTF-8").lines().count();
        Some(lines)
    }

    /// Checks that `cut` holds the earlier run or the undisturbed one. Returns true for the
    /// undisturbed one.
    #[track_caller]
    fn is_published(&self, what: &str) -> bool {
        // `eval` completes an interrupted publication. At every moment there is a model.
        self.place.run("eval cut --json").check_done();
        let tree = read_tree(&self.place.path("cut"));
        if tree == self.earlier {
            return false;
        }
        let summary = self.place.json("cut/summary.json");
        assert_eq!(summary["final_state_hash"], self.hashes[0], "{what}");
        let model = self.place.read("plain/model.safetensors");
        assert!(tree["/model.safetensors"] == model, "{what}");
        true
    }

    /// The checkpoints of a run's files, in order.
    fn checkpoints(&self, files: &str) -> Vec<String> {
        let folder = format!("{files}/checkpoints");
        if !self.place.path(&folder).is_dir() {
            return Vec::new();
        }
        let names = self.place.list(&folder);
        names.into_iter().filter(|name| name.starts_with("step-")).collect()
    }

    /// Checks that the run resumes after a disturbance. Returns true if there was a checkpoint.
    #[track_caller]
    fn check_goes_on(&self, what: &str) -> bool {
        if !self.is_published(what) {
            let files = ["cut/.partial", "cut/unfinished"];
            let is_begun = files.iter().any(|files| !self.checkpoints(files).is_empty());
            let resumed = self.place.run("train --resume cut --quiet");
            if !is_begun {
                // The earlier run has all its epochs.
                let line = resumed.check_refused(1, &["has its 2 epochs"]);
                assert_eq!(read_tree(&self.place.path("cut")), self.earlier, "{what}: {line}");
                return false;
            }
            assert_eq!(resumed.code, Some(0), "{what}: {resumed:?}");
            assert!(self.is_published(what), "{what}");
        }
        // The remaining files can be resumed too, unless no checkpoint could be written.
        if !self.checkpoints("cut").is_empty() {
            let resumed = self.place.run("train --resume cut --epochs 3 --quiet");
            assert_eq!(resumed.code, Some(0), "{what}: {resumed:?}");
            let summary = self.place.json("cut/summary.json");
            assert_eq!(summary["final_state_hash"], self.hashes[1], "{what}");
        }
        true
    }

    /// Applies `effect` to each of `calls` in turn, or to a sample of them. If `ever` is `+`, it
    /// also applies to all later calls.
    fn disturb(&self, calls: &str, effect: &str, ever: &str) {
        let Some(count) = self.count(calls) else {
            return skip("runs that are disturbed at a call", "strace does not start");
        };
        assert!(count > 100, "only {count} calls");
        let stride = if is_deep() { 1 } else { count / 8 };
        let (mut disturbed, mut resumed) = (0, 0);
        for nth in (1..=count).step_by(stride) {
            let what = format!("{effect} at call {nth}{ever} of {count}");
            let inject = format!("inject={calls}:{effect}:when={nth}{ever}");
            let options = ["-o", "/dev/null", "-e", &format!("trace={calls}"), "-e", &inject];
            self.trace(&options).expect("it started a moment ago");
            disturbed += 1;
            resumed += usize::from(self.check_goes_on(&what));
        }
        println!("{effect}{ever}: {disturbed} of {count} calls, {resumed} runs went on");
        assert!(resumed * 2 > disturbed, "{resumed} of {disturbed}");
    }
}

#[test]
fn run_that_is_killed_at_any_call_goes_on_to_the_same_bits() {
    Drill::new().disturb(&format!("{WRITES},{REMOVALS}"), "signal=KILL", "");
}

#[test]
fn disk_that_is_full_at_any_call_leaves_the_last_good_checkpoint() {
    let drill = Drill::new();
    drill.disturb(WRITES, "error=ENOSPC", "");
    drill.disturb(WRITES, "error=ENOSPC", "+");
}
