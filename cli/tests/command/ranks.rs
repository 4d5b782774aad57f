//! `--ranks`: several ranks on one machine do the run of one rank.

use serde_json::Value;

use crate::place::{Place, bytes_of};

/// A model with its data and batches, and the samples of a shard.
const TASKS: [(&str, &str); 3] = [
    ("simple-cnn", "[model]\nkind = \"simple-cnn\"\nchannels = 8\n[data]\nkind = \"digits\"\n"),
    (
        "resnet",
        "[model]\nkind = \"resnet\"\ndepth = 18\nwidth = 4\n\
         [data]\nkind = \"random-images\"\nshape = [3, 32, 32]\nclasses = 10\nsamples = 40\n",
    ),
    (
        "gpt",
        "[model]\nkind = \"gpt\"\nwidth = 16\nheads = 2\nblocks = 2\ndropout = 0.1\n\
         [data]\nkind = \"random-tokens\"\nvocabulary = 50\ncontext = 12\nsamples = 40\n",
    ),
];

/// The values that are equal for every number of ranks.
fn learned(summary: &Value) -> [&Value; 5] {
    let names = ["final_state_hash", "test_loss", "train_loss_last", "steps", "batch_size"];
    names.map(|name| &summary[name])
}

#[test]
fn with_leaves_every_number_of_ranks_comes_to_the_same_bits_in_the_predicted_memory() {
    let place = Place::new();
    for (name, task) in TASKS {
        let (batch, leaf) = if name == "simple-cnn" { (256, 32) } else { (16, 2) };
        let train = format!("[train]\nepochs = 1\nbatch_size = {batch}\nleaf = {leaf}\n");
        place.write("task.toml", format!("{task}{train}"));
        let one = place.train("task.toml --threads 1", &format!("{name}-1"));
        for ranks in [2, 4, 8] {
            let out = format!("{name}-{ranks}");
            let many = place.train(&format!("task.toml --ranks {ranks}"), &out);
            assert_eq!(learned(&many), learned(&one), "{name} on {ranks} ranks");
            assert_eq!(many["ranks"], ranks);
            assert_eq!(many["predicted_peak_bytes"], many["measured_peak_bytes"], "{out}");
            let plan = place.run(&format!("plan task.toml --ranks {ranks}")).check_done();
            assert_eq!(many["predicted_peak_bytes"], bytes_of(&plan, "predicted peak"), "{out}");
            assert!(plan.contains(&format!("{} samples on each of {ranks} ranks", batch / ranks)));
        }
        assert_eq!(one["predicted_peak_bytes"], one["measured_peak_bytes"], "{name}");
    }
}

#[test]
fn what_is_divided_changes_no_bit_of_any_model_and_goes_on_undivided() {
    let place = Place::new();
    for (name, task) in TASKS {
        let (batch, leaf, step) = if name == "simple-cnn" { (256, 32, 8) } else { (16, 2, 2) };
        let train = format!(
            "[train]\nepochs = 2\nbatch_size = {batch}\nleaf = {leaf}\n\
             checkpoint_every = \"{step}steps\"\n"
        );
        place.write("task.toml", format!("{task}{train}"));
        let one = place.train("task.toml --threads 1", &format!("{name}-1"));
        for (ranks, zero, divided) in [(2, 1, "states"), (4, 1, "states"), (2, 3, "parameters")] {
            let out = format!("{name}-{ranks}-{zero}");
            let many = place.train(&format!("task.toml --ranks {ranks} --zero {zero}"), &out);
            assert_eq!(learned(&many), learned(&one), "{name} on {ranks} ranks");
            assert_eq!(many["zero"], divided);
            assert_eq!(many["predicted_peak_bytes"], many["measured_peak_bytes"], "{out}");
            let plan = format!("plan task.toml --ranks {ranks} --zero {zero}");
            let plan = place.run(&plan).check_done();
            assert_eq!(many["predicted_peak_bytes"], bytes_of(&plan, "predicted peak"), "{out}");
            assert!(plan.contains("\ndivided         the optimizer's states"), "{plan}");
            let from = format!("train --resume {out}/checkpoints/step-{step:08} --out resumed");
            for more in ["", "--ranks 1", "--ranks 2 --zero 0", "--ranks 4 --zero 3"] {
                place.run(&format!("{from} {more}")).check_done();
                let resumed = place.json("resumed/summary.json");
                assert_eq!(learned(&resumed), learned(&one), "{name}, {ranks}, then {more}");
            }
        }
    }
}

/// A task that does not fit ranks with whole states fits ranks that shard them. Sharding needs no
/// option.
#[test]
fn states_are_divided_where_the_budget_asks_for_it() {
    let place = Place::new();
    let task = "--epochs 1 --set data.workers=0 --set model.channels=64 --ranks 2";
    let least = |zero: &str| {
        let plan = place.run(&format!("plan {task} {zero} --least")).check_done();
        bytes_of(&plan, "budget")
    };
    let (whole, divided) = (least("--zero 0"), least("--zero 1"));
    assert!(divided < whole, "{divided} of {whole}");
    assert!(least("--zero 2") <= divided);
    assert_eq!(least(""), least("--zero 2").min(least("--zero 3")));
    let budget = format!("--budget {divided}B");
    let trained = place.train(&format!("{task} {budget}"), "run");
    // The run takes the parallelism that is the fastest by the plan among those that fit.
    let plan = place.run(&format!("plan {task} {budget} --json")).check_done();
    let plan: Value = serde_json::from_str(&plan).expect("JSON");
    let ways = plan["ways"].as_array().expect("a list").iter();
    let fitting = ways.filter(|way| way["predicted_peak_bytes"].is_u64());
    let time = |way: &&Value| way["relative_time"].as_f64().expect("a number");
    let fastest = fitting.min_by(|own, other| time(own).total_cmp(&time(other))).expect("one");
    assert_eq!(time(&fastest), 1.0);
    assert_ne!(fastest["zero"], "off");
    assert_eq!(
        (&trained["zero"], &trained["measured_peak_bytes"]),
        (&fastest["zero"], &fastest["predicted_peak_bytes"])
    );
    let refused = format!("train {task} {budget} --zero 0");
    place.run(&refused).check_refused(2, &["does not fit"]);
    place.write("plan.json", place.run(&format!("plan {task} {budget} --json")).check_done());
    let planned = place.train(&format!("{task} --plan plan.json"), "planned");
    assert_eq!(learned(&planned), learned(&trained));
    for wrong in ["--zero 4", "--zero x"] {
        place.run(&format!("train {task} {wrong}")).check_refused(1, &["no stage: 0, 1, 2 or 3"]);
    }
}

/// The difference of two losses, relative to their size.
fn distance(summary: &Value, other: &Value, name: &str) -> f64 {
    let [own, other] = [summary, other].map(|of| of[name].as_f64().expect("a number"));
    (own - other).abs() / other.abs()
}

/// Batch norm keeps a batch whole, so the bits are those of one rank. The transformer's embedding
/// is in two stages, so its gradient is summed in another order.
#[test]
fn a_pipeline_trains_as_one_rank_does_and_goes_on_in_any_way() {
    let place = Place::new();
    for (name, task) in &TASKS[1..] {
        let train = "[train]\nepochs = 2\nbatch_size = 16\ncheckpoint_every = \"2steps\"\n";
        place.write("task.toml", format!("{task}{train}"));
        let one = place.train("task.toml --threads 1", &format!("{name}-1"));
        let same = |many: &Value, place: &str| match *name {
            "resnet" => assert_eq!(learned(many), learned(&one), "{place}"),
            _ => {
                let far = ["test_loss", "train_loss_last"].map(|name| distance(many, &one, name));
                assert!(far.iter().all(|&far| far < 1e-4), "{place}: {far:?}");
            }
        };
        let out = format!("{name}-2");
        let many = place.train("task.toml --ranks 2 --pipeline", &out);
        same(&many, name);
        assert_eq!((&many["zero"], &many["ranks"]), (&"blocks".into(), &2.into()));
        assert_eq!(many["predicted_peak_bytes"], many["measured_peak_bytes"], "{out}");
        let plan = place.run("plan task.toml --ranks 2 --pipeline --json").check_done();
        let plan: Value = serde_json::from_str(&plan).expect("JSON");
        let stages = plan["stages"].as_array().expect("a list");
        assert_eq!(stages.len(), 2);
        assert_eq!(stages[0]["predicted_peak_bytes"], many["predicted_peak_bytes"]);
        assert_eq!(stages[0]["blocks"][1], stages[1]["blocks"][0]);
        let idle = stages.iter().map(|stage| stage["idle"].as_f64().expect("a share"));
        assert!(idle.clone().all(|idle| (0.0..1.0).contains(&idle)), "{stages:?}");
        let said = place.run("plan task.toml --ranks 2 --pipeline").check_done();
        assert!(said.contains("\nbatch           16 samples through 2 stages\n"), "{said}");
        let from = format!("train --resume {out}/checkpoints/step-00000004 --out resumed");
        for more in ["", "--ranks 2 --pipeline", "--ranks 2 --zero 1"] {
            if *name == "resnet" && more.ends_with('1') {
                // The statistics would be means over two ranks.
                continue;
            }
            place.run(&format!("{from} {more}")).check_done();
            same(&place.json("resumed/summary.json"), &format!("{name} {more}"));
        }
    }
}

/// Eight layers of one size. Each of four ranks has two layers, and no budget for more.
#[test]
fn a_transformer_that_fits_no_rank_is_trained_in_stages() {
    let place = Place::new();
    let task = "[model]\nkind = \"gpt\"\nwidth = 64\nheads = 2\nblocks = 8\n\
                [data]\nkind = \"random-tokens\"\nvocabulary = 50\ncontext = 12\nsamples = 40\n\
                [train]\nepochs = 1\nbatch_size = 16\n";
    place.write("task.toml", task);
    let least = place.run("plan task.toml --least").check_done();
    let budget = bytes_of(&least, "budget") / 2;
    let refused = format!("train task.toml --budget {budget}B");
    place.run(&refused).check_refused(2, &["does not fit"]);
    let one = place.train("task.toml --threads 1", "one");
    let many = place.train(&format!("task.toml --ranks 4 --pipeline --budget {budget}B"), "many");
    assert!(distance(&many, &one, "test_loss") < 1e-5);
    assert_eq!(many["predicted_peak_bytes"], many["measured_peak_bytes"]);
    assert!(many["measured_peak_bytes"].as_u64() <= Some(budget));
    // Stages send the values between blocks for all samples, and the gradient of the token table.
    let plan = place.run("plan task.toml --ranks 4 --pipeline --json").check_done();
    let plan: Value = serde_json::from_str(&plan).expect("JSON");
    let sent = plan["stages"].as_array().expect("a list").iter();
    let sent: Vec<_> = sent.map(|stage| stage["sent_bytes"].as_u64().expect("bytes")).collect();
    let (between, table) = (16 * 12 * 64 * 4, 50 * 64 * 4);
    assert_eq!(sent, [between + table, 2 * between, 2 * between, between + table]);
}

/// Each of two ranks has one head, and half of the hidden features and of the vocabulary.
#[test]
fn ranks_that_share_features_train_as_one_does_and_go_on_in_any_way() {
    let place = Place::new();
    let (_, task) = TASKS[2];
    // Without dropout, because ranks draw different random numbers for their heads.
    let task = task.replace("dropout = 0.1", "dropout = 0.0");
    let train = "[train]\nepochs = 2\nbatch_size = 16\ncheckpoint_every = \"2steps\"\n";
    place.write("task.toml", format!("{task}{train}"));
    let one = place.train("task.toml --threads 1", "one");
    let same = |many: &Value, place: &str| {
        let far = ["test_loss", "train_loss_last"].map(|name| distance(many, &one, name));
        assert!(far.iter().all(|&far| far < 1e-5), "{place}: {far:?}");
    };
    let many = place.train("task.toml --ranks 2 --tensor-parallel", "two");
    same(&many, "two ranks");
    assert_eq!((&many["zero"], &many["ranks"]), (&"features".into(), &2.into()));
    assert_eq!(many["predicted_peak_bytes"], many["measured_peak_bytes"]);
    let plan = place.run("plan task.toml --ranks 2 --tensor-parallel --json").check_done();
    let plan: Value = serde_json::from_str(&plan).expect("JSON");
    assert_eq!(plan["predicted_peak_bytes"], many["predicted_peak_bytes"]);
    // Each of 16 x 12 positions sends its embedding once, the inputs and outputs of four branches
    // and of the output layer, and for its loss three numbers per rank.
    let position = (1 + 8 + 1) * 16 * 4 + 2 * 3 * 4;
    assert_eq!(plan["sent_bytes"], 16 * 12 * position);
    // The plan is also listed beside the other kinds of parallelism.
    let all = place.run("plan task.toml --ranks 2 --json").check_done();
    let all: Value = serde_json::from_str(&all).expect("JSON");
    let ways = all["ways"].as_array().expect("a list");
    let names: Vec<_> = ways.iter().map(|way| way["zero"].as_str().expect("a name")).collect();
    assert_eq!(names, ["off", "states", "gradients", "parameters", "blocks", "features"]);
    assert_eq!(ways[5]["predicted_peak_bytes"], plan["predicted_peak_bytes"]);
    assert_eq!(ways[5]["sent_bytes"], plan["sent_bytes"]);
    let table = place.run("plan task.toml --ranks 2").check_done();
    for flag in ["--pipeline", "--tensor-parallel"] {
        assert!(table.lines().any(|line| line.contains(flag) && line.contains("KiB")), "{table}");
    }
    let said = place.run("plan task.toml --ranks 2 --tensor-parallel").check_done();
    assert!(said.contains("\nbatch           16 samples on all of 2 ranks\n"), "{said}");
    assert!(said.contains("heads, hidden features and vocabulary among the ranks"), "{said}");
    assert!(said.contains(" by each rank in a step\n"), "{said}");
    for (drill, retried) in [("--fault-at 30", 1), ("", 0)] {
        let again = place.train(&format!("task.toml --ranks 2 --tensor-parallel {drill}"), "again");
        assert_eq!(learned(&again), learned(&many), "{drill}");
        assert_eq!(again["retried_steps"], retried);
    }
    let from = "train --resume two/checkpoints/step-00000004 --out resumed";
    for more in ["", "--ranks 2 --tensor-parallel", "--ranks 2 --pipeline", "--ranks 2 --zero 1"] {
        place.run(&format!("{from} {more}")).check_done();
        same(&place.json("resumed/summary.json"), more);
    }
    let rows = place.run("plan task.toml --ranks 2 --tensor-parallel --budget 1GiB,8KiB");
    assert_eq!(rows.code, Some(2), "{rows:?}");
    let is_planned = |row: &str| row.starts_with("1 GiB ") && row.contains("vocabulary divided");
    assert!(rows.stdout.lines().any(is_planned), "{rows:?}");
}

/// A transformer with a budget that is too small for the whole model on any rank.
#[test]
fn a_model_that_fits_no_rank_is_trained_by_all_of_them() {
    let place = Place::new();
    let task = "[model]\nkind = \"gpt\"\nwidth = 64\nheads = 2\nblocks = 6\n\
                [data]\nkind = \"random-tokens\"\nvocabulary = 50\ncontext = 12\nsamples = 40\n\
                [train]\nepochs = 1\nbatch_size = 16\nleaf = 2\n";
    place.write("task.toml", task);
    let least = |ways: &str| {
        let plan = place.run(&format!("plan task.toml --ranks 4 {ways} --least")).check_done();
        bytes_of(&plan, "budget")
    };
    let (whole, divided) = (least("--zero 2"), least("--zero 3"));
    assert!(divided < whole, "{divided} of {whole}");
    let one = place.train("task.toml --threads 1", "one");
    let many = place.train(&format!("task.toml --ranks 4 --budget {divided}B"), "many");
    assert_eq!(learned(&many), learned(&one));
    let found = (&many["zero"], &many["measured_peak_bytes"]);
    assert_eq!(found, (&"parameters".into(), &divided.into()));
}

/// The parameters are a convolution of 1 to 8 channels and a linear layer of 128 to 10, together
/// 1370 numbers. Two ranks send each other one half at a time.
#[test]
fn a_plan_says_how_many_bytes_each_way_sends() {
    let place = Place::new();
    place.write("task.toml", TASKS[0].1);
    let half = 4 * 1370 / 2;
    for (leaf, expected) in [
        // Units are halves of the 1370 numbers. A sum of gradients takes two, or one if each rank
        // keeps its part. Updated parameters take one, and so does each gathering of parameters.
        ("", [2, 3, 2, 2]),
        // The sum of four shards is reduced once, but each shard gathers the parameters.
        ("--set train.leaf=32", [2, 3, 3, 2 + 4]),
    ] {
        let plan = place.run(&format!("plan task.toml --ranks 2 --json {leaf}")).check_done();
        let plan: Value = serde_json::from_str(&plan).expect("JSON");
        let ways = plan["ways"].as_array().expect("a list");
        let sent: Vec<_> = ways.iter().map(|way| way["sent_bytes"].as_u64().unwrap()).collect();
        assert_eq!(sent, expected.map(|halves| halves * half), "{leaf}");
    }
}

/// The budget is for each rank: several ranks can train a model that does not fit one.
#[test]
fn a_budget_is_that_of_each_rank() {
    let place = Place::new();
    let task = "--epochs 1 --set data.workers=0";
    let one = place.run(&format!("plan {task} --least")).check_done();
    let two = place.run(&format!("plan {task} --ranks 2 --least")).check_done();
    assert_eq!(bytes_of(&one, "predicted peak"), bytes_of(&one, "budget"));
    let least = bytes_of(&two, "budget");
    let trained = place.train(&format!("{task} --ranks 2 --budget {least}B"), "run");
    assert_eq!(trained["measured_peak_bytes"], least);
    let less = format!("train {task} --ranks 2 --budget {}B", least - 1);
    place.run(&less).check_refused(2, &["does not fit", "1 bytes more"]);
}

#[test]
fn a_model_is_planned_for_with_batches_as_large_as_they_are_said_to_be() {
    let place = Place::new();
    for (batch, ranks, said) in
        [(5, 1, "5 samples\n"), (64, 1, "64 samples\n"), (64, 8, "8 samples on each of 8 ranks\n")]
    {
        let asked = format!("--seq 8 --batch {batch} --ranks {ranks}");
        let plan = format!("plan openai-community/gpt2 {asked} --device a100:80GiB");
        let plan = place.run(&plan).check_done();
        assert!(plan.contains(&format!("\nbatch           {said}")), "{plan}");
    }
}

#[test]
fn a_run_of_four_ranks_goes_on_with_two_or_one_to_the_same_bits() {
    let place = Place::new();
    let (_, task) = TASKS[0];
    let train = "[train]\nepochs = 2\nleaf = 32\ncheckpoint_every = \"4steps\"\n";
    place.write("task.toml", format!("{task}{train}"));
    let whole = place.train("task.toml --ranks 4", "whole");
    for ranks in [2, 1] {
        let from = "whole/checkpoints/step-00000008";
        let out = format!("with-{ranks}");
        let resumed = format!("train --resume {from} --ranks {ranks} --out {out}");
        place.run(&resumed).check_done();
        let resumed = place.json(&format!("{out}/summary.json"));
        assert_eq!(learned(&resumed), learned(&whole), "{ranks} ranks");
    }
}

/// Processes that MPI starts are ranks as well.
#[cfg(feature = "mpi")]
mod processes {
    use std::process::{Command, Stdio};

    use super::{TASKS, learned};
    use crate::place::{Outcome, Place, is_deep, skip};

    /// The command `lowtide` in `count` processes.
    fn command(place: &Place, count: usize, arguments: &str) -> Command {
        let one = place.command(arguments);
        let mut command = Command::new("mpirun");
        command.args(["-n", &count.to_string()]).arg(one.get_program()).args(one.get_args());
        command.current_dir(place.path("")).stdin(Stdio::null()).env("LOWTIDE_RATES", "");
        command
    }

    #[test]
    fn processes_come_to_the_bits_of_one_in_the_predicted_memory() {
        let place = Place::new();
        for (name, task) in TASKS {
            let (batch, leaf) = if name == "simple-cnn" { (256, 32) } else { (16, 2) };
            let train = format!("[train]\nepochs = 1\nbatch_size = {batch}\nleaf = {leaf}\n");
            place.write("task.toml", format!("{task}{train}"));
            let one = place.train("task.toml", &format!("{name}-1"));
            for (count, zero, fault) in [
                (2, "", ""),
                (4, "", ""),
                (2, "", "--fault-at 30"),
                (2, "--zero 1", ""),
                (4, "--zero 2", ""),
                (2, "--zero 1", "--fault-at 30"),
                (2, "--zero 3", ""),
                (2, "--zero 3", "--fault-at 30"),
            ] {
                let arguments = format!("train task.toml --quiet --out many {zero} {fault}");
                Outcome::of(&mut command(&place, count, &arguments)).check_done();
                let many = place.json("many/summary.json");
                assert_eq!(learned(&many), learned(&one), "{name} in {count} processes {zero}");
                assert_eq!(many["ranks"], count);
                assert_eq!(many["predicted_peak_bytes"], many["measured_peak_bytes"]);
                assert_eq!(many["retried_steps"], u64::from(!fault.is_empty()));
            }
        }
    }

    #[test]
    fn processes_are_the_stages_and_the_heads_that_threads_are() {
        let place = Place::new();
        let (_, task) = TASKS[2];
        let model = task.replace("blocks = 2", "blocks = 4").replace("heads = 2", "heads = 4");
        let train = "[train]\nepochs = 1\nbatch_size = 16\n";
        place.write("task.toml", format!("{model}{train}"));
        for (count, way) in [
            (2, "--pipeline"),
            (4, "--pipeline"),
            (2, "--tensor-parallel"),
            (4, "--tensor-parallel"),
        ] {
            let threads = format!("task.toml --ranks {count} {way}");
            let threads = place.train(&threads, "threads");
            for fault in ["", "--fault-at 30"] {
                let arguments = format!("train task.toml --quiet --out many {way} {fault}");
                Outcome::of(&mut command(&place, count, &arguments)).check_done();
                let many = place.json("many/summary.json");
                assert_eq!(learned(&many), learned(&threads), "{count} processes {way} {fault}");
                assert_eq!(many["predicted_peak_bytes"], many["measured_peak_bytes"]);
                assert_eq!(many["retried_steps"], u64::from(!fault.is_empty()));
            }
        }
    }

    /// A process that is killed before MPI has started in it never connects.
    #[test]
    fn a_process_that_does_not_come_ends_the_others_within_a_minute() {
        if !is_deep() {
            let what = "a process that does not come ends the others within a minute";
            return skip(what, "it takes that minute: with --deep");
        }
        let place = Place::new();
        let script = format!(
            "rank=${{PMI_RANK:-$PMIX_RANK}}; [ $rank = 1 ] || exec {} train --quiet --out many",
            env!("CARGO_BIN_EXE_lowtide")
        );
        let mut command = Command::new("mpirun");
        command.args(["-n", "2", "sh", "-c", &script]).current_dir(place.path(""));
        let ended = Outcome::of(command.stdin(Stdio::null()));
        assert_eq!(ended.code, Some(1), "{ended:?}");
        assert!(ended.stderr.contains("did not come together within 60 s"), "{ended:?}");
        assert!(!place.path("many").exists());
    }

    #[test]
    fn what_ends_one_process_ends_all_and_leaves_nothing() {
        let place = Place::new();
        for (arguments, code, words) in [
            ("train --set train.batch_size=255", 1, "no equal shares for 2 ranks"),
            ("train --ranks 2", 1, "MPI has started 2 processes"),
            ("train --budget 100KiB", 2, "does not fit"),
        ] {
            let ended = Outcome::of(&mut command(&place, 2, arguments));
            assert_eq!(ended.code, Some(code), "{ended:?}");
            assert!(ended.stderr.contains(words), "{ended:?}");
            assert!(place.list("").is_empty(), "{:?}", place.list(""));
        }
    }

    /// MPI then ends the other processes. Every second time the run has a checkpoint by then.
    #[test]
    fn a_run_of_which_a_process_was_killed_goes_on_with_as_many_or_one_to_the_same_bits() {
        let place = Place::new();
        let (_, task) = TASKS[0];
        let train = "[train]\nepochs = 60\nleaf = 32\ncheckpoint_every = \"5steps\"\n";
        place.write("task.toml", format!("{task}{train}"));
        let whole = place.train("task.toml", "whole");
        let mut resumed_count = 0;
        let kills = if is_deep() { 50 } else { 6 };
        for kill in 0..kills {
            drop(std::fs::remove_dir_all(place.path("cut")));
            // MPI starts a shell as rank 1, which ends its `lowtide` after a while.
            let lowtide = env!("CARGO_BIN_EXE_lowtide");
            let saved = "ls cut/.partial/checkpoints/step-* >/dev/null 2>&1";
            let (wait, zero) = (kill % 2 == 0, kill % 4);
            let until = if wait { saved } else { "true" };
            let seconds = 1.5 * f64::from(kill * 7 % kills) / f64::from(kills);
            let script = format!(
                "{lowtide} train task.toml --zero {zero} --quiet --out cut & own=$!; \
                 rank=${{PMI_RANK:-$PMIX_RANK}}; \
                 if [ $rank = 1 ]; then \
                   while kill -0 $own 2>/dev/null && ! {until}; do sleep 0.01; done; \
                   sleep {seconds}; kill -9 $own; \
                 fi; \
                 wait $own"
            );
            let mut cut = Command::new("mpirun");
            cut.args(["-n", "2", "sh", "-c", &script]).current_dir(place.path(""));
            drop(Outcome::of(cut.stdin(Stdio::null())));
            for count in [2, 1] {
                let arguments = "train --resume cut --quiet --out resumed";
                let resumed = Outcome::of(&mut command(&place, count, arguments));
                // The run may have ended before the kill, or had no checkpoint yet.
                if resumed.code == Some(0) {
                    let resumed = place.json("resumed/summary.json");
                    assert_eq!(learned(&resumed), learned(&whole), "kill {kill}, {count} ranks");
                    resumed_count += 1;
                }
            }
        }
        assert!(resumed_count > 0, "no run was cut off between its first checkpoint and its end");
    }
}

#[cfg(not(feature = "mpi"))]
#[test]
fn processes_that_mpi_starts() {
    crate::place::skip("processes that MPI starts are ranks", "built without the feature `mpi`");
}

#[test]
fn an_allocation_that_fails_on_the_first_rank_leaves_the_bits() {
    let place = Place::new();
    let task = "--epochs 1 --ranks 2 --set train.leaf=64";
    let calm = place.train(task, "calm");
    let stormy = place.train(&format!("{task} --fault-at 30"), "stormy");
    assert_eq!(learned(&stormy), learned(&calm));
    assert_eq!((&calm["retried_steps"], &stormy["retried_steps"]), (&0.into(), &1.into()));
}

#[test]
fn what_ranks_cannot_share_is_said() {
    let place = Place::new();
    let refused = |arguments: &str, words: &[&str]| {
        place.run(arguments).check_refused(1, words);
        assert!(place.list(".").is_empty(), "{:?}", place.list("."));
    };
    refused("train --ranks 3", &["train.batch_size", "no equal shares for 3 ranks"]);
    refused("plan --ranks 3", &["train.batch_size", "no equal shares for 3 ranks"]);
    let three = "train --ranks 3 --set train.batch_size=192 --set train.leaf=32";
    refused(three, &["leaves", "3 ranks have no common tree"]);
    refused("train --set train.leaf=48", &["train.leaf", "not made of leaves of 48"]);
    let shares = "train --ranks 8 --set train.leaf=64";
    refused(shares, &["leaves", "a rank's share of 32 samples"]);
    let whole = "train --set train.leaf=64 --set train.split_batches=false";
    refused(whole, &["train.leaf", "train.split_batches"]);
    refused("train --ranks 2 --process-budget 1GiB", &["--process-budget", "--budget"]);
    refused("train --ranks 0", &["--ranks"]);
    for alone in [
        "train --zero 1",
        "plan --zero 3",
        "train --pipeline",
        "plan --pipeline",
        "train --tensor-parallel",
        "plan --tensor-parallel",
    ] {
        refused(alone, &["takes several ranks", "--ranks"]);
    }
    refused("train --ranks 2 --pipeline", &["pipeline", "nowhere to cut"]);
    refused("plan --ranks 2 --pipeline", &["pipeline", "nowhere to cut"]);
    refused("plan --ranks 2 --pipeline --least", &["--pipeline", "within one budget"]);
    refused("train --ranks 2 --pipeline --process-budget 1GiB", &["--process-budget"]);
    refused("train --ranks 2 --pipeline --zero 1", &["--pipeline", "--zero"]);
    refused("train --ranks 2 --pipeline --tensor-parallel", &["--pipeline", "--tensor-parallel"]);
    refused("train --ranks 2 --tensor-parallel", &["tensor-parallel", "no attention heads"]);
    refused("plan --ranks 2 --tensor-parallel", &["tensor-parallel", "no attention heads"]);
}
