//! Mistakes of the user: each leads to one clear line, and nothing else happens.

use std::fs;

use crate::place::{Outcome, Place, skip};

/// Checks that `arguments` are refused with a line that has all of `words`, and leave no files.
#[track_caller]
fn check(arguments: &str, words: &[&str]) {
    let place = Place::new();
    place.run(arguments).check_refused(1, words);
    assert!(place.list(".").is_empty(), "{:?}", place.list("."));
}

/// Checks that a recipe of these bytes is refused with a line that has all of `words`.
#[track_caller]
fn check_recipe(recipe: impl AsRef<[u8]>, words: &[&str]) {
    let place = Place::new();
    place.write("recipe.toml", recipe);
    for command in ["train", "plan"] {
        let line = place.run(&format!("{command} recipe.toml")).check_refused(1, words);
        assert!(line.starts_with("lowtide: recipe.toml"), "{line}");
    }
    assert_eq!(place.list("."), ["recipe.toml"]);
}

#[test]
fn unknown_words_on_the_command_line_are_named() {
    check(
        "",
        &["a command is missing", "train, finetune, plan, calibrate, generate, export, shrink"],
    );
    check("trian", &["'trian'", "'train'"]);
    check("train --frobnicate", &["'--frobnicate'"]);
    check("train --epoch 3", &["'--epoch'", "'--epochs'"]);
    check("train one.toml two.toml", &["'two.toml'"]);
    check("train --device quantum", &["'quantum'", "--device", "cpu"]);
    check("eval run --epochs 3", &["'--epochs'"]);
    check("train --out", &["--out"]);
}

#[test]
fn numbers_out_of_range_on_the_command_line_are_named() {
    for flag in ["--epochs", "--batch-size", "--seed", "--fault-at"] {
        for value in ["-1", "x", "1.5", "99999999999999999999"] {
            let words = [flag, &format!("'{value}'"), "expected a whole number from"];
            check(&format!("train {flag} {value}"), &words);
        }
    }
    for flag in ["--epochs", "--batch-size", "--fault-at"] {
        check(&format!("train {flag} 0"), &[flag, "'0'"]);
    }
    check("train --epochs 18446744073709551615", &["--epochs"]);
    for wait in ["18446744073709551615s", "1193047h", "0s"] {
        check(&format!("train --wait {wait}"), &["--wait", wait]);
        check(&format!("train --checkpoint-every {wait}"), &["--checkpoint-every", wait]);
    }
    // A recipe with this seed could be written, and not be read.
    let words = ["--seed", "'9223372036854775808'", "0 to 9223372036854775807"];
    check("train --seed 9223372036854775808", &words);
}

#[test]
fn budgets_that_are_none_are_named() {
    for budget in ["6M", "abc", "-1", "-5MiB", "0", "0GiB", "1.5", "99999999999GiB", "16EiB"] {
        check(&format!("train --budget {budget}"), &["--budget", budget]);
        check(&format!("plan --budget {budget}"), &["--budget", budget]);
    }
    for command in ["train", "plan"] {
        check(&format!("{command} --budget 6,5MiB"), &["--budget", "6 bytes", "take a point"]);
    }
    check("train --budget 6M", &["MiB"]);
    check("plan --budget -5MiB", &["'-5MiB'", "write a number and a unit, such as 6MiB"]);
}

#[test]
fn recipes_that_cannot_be_read_are_named() {
    let place = Place::new();
    fs::create_dir(place.path("folder")).expect("a folder");
    place.run("train none.toml").check_refused(1, &["none.toml", "No such file"]);
    place.run("train folder").check_refused(1, &["folder", "directory"]);
    place.run("train folder/none/none.toml").check_refused(1, &["folder/none/none.toml"]);
    check_recipe(b"[train]\nepochs = \xff\n", &["recipe.toml", "UTF-8"]);
    place.write("long.toml", "#".repeat((1 << 20) + 1));
    place.run("train long.toml").check_refused(1, &["long.toml: more than 1048576 bytes"]);
}

#[cfg(unix)]
#[test]
fn pipes_and_devices_in_place_of_files_are_refused_without_waiting() {
    let place = Place::new();
    place.make_pipe("pipe");
    for path in ["pipe", "/dev/zero"] {
        for arguments in ["train", "plan", "check", "train --plan", "explain", "replay"] {
            let words = [path, "not a regular file"];
            place.run(&format!("{arguments} {path}")).check_refused(1, &words);
        }
    }
    for run in ["other", "run"] {
        place.train("--epochs 1 --set model.channels=4", run);
    }
    for (name, command) in [
        ("recipe.toml", "eval run"),
        ("model.safetensors", "eval run"),
        ("metrics.jsonl", "compare other run"),
        ("summary.json", "compare other run"),
    ] {
        let file = format!("run/{name}");
        let before = place.read(&file);
        fs::remove_file(place.path(&file)).expect("it is there");
        place.make_pipe(&file);
        place.run(command).check_refused(1, &[&file, "not a regular file"]);
        place.run("runs .").check_done();
        fs::remove_file(place.path(&file)).expect("it is there");
        place.write(&file, before);
    }
}

#[cfg(unix)]
#[test]
fn recipe_and_plan_are_read_from_standard_input() {
    use std::io::pipe;
    let place = Place::new();
    let plan = place.run("plan --epochs 1 --set model.channels=4 --json").check_done();
    for (text, arguments) in [
        ("[train]\nepochs = 3\n", "check /dev/stdin"),
        (&plan, "train --plan /dev/stdin --epochs 1 --set model.channels=4 --out run"),
    ] {
        let (reader, mut writer) = pipe().expect("a pipe");
        std::io::Write::write_all(&mut writer, text.as_bytes()).expect("the pipe has room");
        drop(writer);
        Outcome::of(place.command(arguments).stdin(reader)).check_done();
    }
}

#[cfg(unix)]
#[test]
fn recipe_without_permission_is_named() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    place.write("recipe.toml", "");
    let path = place.path("recipe.toml");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o0)).expect("its owner may");
    if fs::read(&path).is_ok() {
        return skip("recipe without permission", "this user may read every file");
    }
    place.run("train recipe.toml").check_refused(1, &["recipe.toml: Permission denied"]);
}

#[test]
fn recipe_errors_name_the_line_and_the_key() {
    check_recipe("[train]\nseed = 1\nepoch = 3\n", &["line 3 (epoch = 3)", "`epochs`"]);
    check_recipe("epochs = 3\n", &["line 1 (epochs = 3)", "`train`"]);
    check_recipe("[model]\n\n[trian]\n", &["line 3 ([trian])", "`trian`", "`train`"]);
    check_recipe(
        "[train]\nepochs = \"three\"\n",
        &["line 2 (epochs = \"three\")", "a whole number"],
    );
    check_recipe("[train]\nepochs = 3.5\n", &["line 2 (epochs = 3.5)"]);
    check_recipe("[train]\nepochs = -1\n", &["line 2 (epochs = -1)", "`-1`"]);
    check_recipe("[train]\nclip_norm = \"x\"\n", &["line 2 (clip_norm = \"x\")", "a number"]);
    check_recipe("[train]\nsplit_batches = 1\n", &["line 2 (split_batches = 1)", "boolean"]);
    check_recipe("[model]\nkind = \"resent\"\n", &["line 2", "`resent`", "`simple-cnn`"]);
    check_recipe("[data]\nkind = 7\n", &["line 2 (kind = 7)"]);
    check_recipe("[optimizer]\nkind = \"bfgs\"\n", &["`bfgs`", "`adam`", "`sgd`", "`muon`"]);
    check_recipe("[optimizer]\nlearning_rate = 1\n", &["line 1 ([optimizer])", "`kind`"]);
    let adam = "[train]\nseed = 0\n[optimizer]\nkind = \"adam\"\nmomentum = 0.9\n";
    check_recipe(adam, &["line 5 (momentum = 0.9)", "`momentum`", "`betas`"]);
    check_recipe("[train\n", &["line 1 ([train)"]);
    check_recipe("[train]\nepochs = 1\nepochs = 2\n", &["line 3", "duplicate"]);
    check_recipe("[train]\nclip_norm = \n", &["line 2"]);
}

#[test]
fn recipe_numbers_out_of_range_name_the_line_and_the_range() {
    check_recipe("[train]\nbatch_size = 0\n", &["line 2 (batch_size = 0)", "must be 1 to"]);
    check_recipe("\n[train]\nepochs = 0\n", &["line 3 (epochs = 0)", "must be 1 to"]);
    check_recipe("[train]\nepochs = 9223372036854775807\n", &["line 2", "must be 1 to"]);
    for beyond in ["9223372036854775808", "18446744073709551616", "-9223372036854775809"] {
        for (table, key) in [("train", "seed"), ("model", "channels")] {
            let line = format!("{key} = {beyond}");
            let words = [&*format!("line 2 ({line})"), "whole numbers", "9223372036854775807"];
            check_recipe(format!("[{table}]\n{line}\n"), &words);
        }
    }
    let skip = "[train]\nbad_samples = { skip = 9223372036854775808 }\n";
    check_recipe(skip, &["line 2 (bad_samples =", "whole numbers"]);
    check_recipe("[model]\nchannels = 0\n", &["line 2 (channels = 0)", "must be 1 to"]);
    check_recipe("[model]\nchannels = 99999999999999\n", &["line 2", "must be 1 to"]);
    check_recipe("[data]\nworkers = 1000000\n", &["line 2", "must be 0 to"]);
    check_recipe("[train]\nclip_norm = 0\n", &["line 2 (clip_norm = 0)", "above 0"]);
    check_recipe("[train]\nclip_norm = nan\n", &["line 2", "above 0"]);
    check_recipe("train.epochs = 0\n", &["train.epochs", "must be 1 to"]);
    let adam = |line| format!("[optimizer]\nkind = \"adam\"\n{line}\n");
    check_recipe(adam("learning_rate = -1"), &["line 3 (learning_rate = -1)", "0.."]);
    check_recipe(adam("learning_rate = nan"), &["line 3", "NaN"]);
    check_recipe(adam("learning_rate = inf"), &["line 3 (learning_rate = inf)", "finite"]);
    check_recipe("[train]\nleaf = 0\n", &["line 2 (leaf = 0)", "a whole number, 1 or more"]);
    let cosine = "[schedule]\nkind = \"cosine\"\nsteps = 0\n";
    check_recipe(cosine, &["line 3 (steps = 0)", "must be 1 to"]);
    let table = "[data]\nkind = \"csv\"\nfill = nan\n";
    check_recipe(table, &["line 3 (fill = nan)", "is not finite"]);
    check_recipe(adam("betas = [0.9, 1.5]"), &["line 3 (betas = [0.9, 1.5])", "1.5", "0..1"]);
    check_recipe(adam("betas = [0.9]"), &["([optimizer])", "length 2"]);
    check_recipe(adam("eps = -1"), &["line 3 (eps = -1)"]);
    check_recipe(adam("weight_decay = -1"), &["line 3 (weight_decay = -1)"]);
    let sgd = "[optimizer]\nkind = \"sgd\"\nnesterov = true\nmomentum = 0\n";
    check_recipe(sgd, &["line 4 (momentum = 0)"]);
}

#[test]
fn flag_that_does_not_go_with_the_recipe_is_named() {
    let place = Place::new();
    place.write("leaves.toml", "[train]\nleaf = 32\n");
    place.write("bf16.toml", "[train]\nparameters = \"bf16\"\n");
    for command in ["train", "plan", "check"] {
        let words = ["train.leaf", "batches of 100 are not made of leaves of 32"];
        place.run(&format!("{command} leaves.toml --batch-size 100")).check_refused(1, &words);
        let words = ["train.parameters", "cannot be bf16 where train.precision is f16"];
        place.run(&format!("{command} bf16.toml --precision f16")).check_refused(1, &words);
    }
}

#[test]
fn run_folders_that_cannot_be_are_named() {
    let place = Place::new();
    place.write("file", "mine");
    place.run("train --epochs 1 --out file").check_refused(1, &["file: not a directory"]);
    place.run("train --epochs 1 --out file/run").check_refused(1, &["file/run"]);
    place.run("train --epochs 1 --out /dev/full/run").check_refused(1, &["/dev/full/run"]);
    place.run("train --epochs 1 --out /proc/run").check_refused(1, &["/proc/run"]);
    assert_eq!(place.read("file"), b"mine");
    // If this were not refused, writing the summary would fail at the end, after the whole
    // training.
    fs::create_dir_all(place.path("run/summary.json")).expect("folders");
    place.run("train --epochs 1 --out run").check_refused(1, &["summary.json: is a directory"]);
    assert_eq!(place.list("run"), ["summary.json"]);
    fs::create_dir_all(place.path("other/.lock")).expect("folders");
    let words = ["other/.lock", "not a regular file", "remove it"];
    place.run("train --epochs 1 --out other").check_refused(1, &words);
}

#[cfg(unix)]
#[test]
fn run_folder_without_permission_is_named() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    let path = place.path("locked");
    fs::create_dir(&path).expect("a folder");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o500)).expect("its owner may");
    if fs::write(path.join("probe"), "").is_ok() {
        return skip("run folder without permission", "this user may write everywhere");
    }
    let refused = |out| place.run(&format!("train --epochs 1 --out {out}"));
    refused("locked").check_refused(1, &["locked", "Permission denied"]);
    refused("locked/run").check_refused(1, &["locked/run", "Permission denied"]);
}

#[test]
fn keys_that_cannot_be_set_are_named() {
    for (set, words) in [
        ("epochs", &["--set epochs", "TABLE.KEY=VALUE"][..]),
        ("train.epochs", &["--set train.epochs", "TABLE.KEY=VALUE"]),
        ("train.epoch=3", &["--set train.epoch=3", "unknown field `epoch`", "epochs"]),
        ("trains.epochs=3", &["--set trains.epochs=3", "unknown field `trains`", "train"]),
        ("train.epochs=0", &["--set train.epochs=0", "must be 1 to"]),
        ("train.seed=9223372036854775808", &["--set train.seed=", "9223372036854775807"]),
        ("train.seed=x", &["--set train.seed=x", "a whole number, 0 or more"]),
        ("optimizer.kind=adamant", &["--set optimizer.kind=adamant", "adamant", "adam"]),
        ("optimizer.betas=[0.9,1.5]", &["--set", "1.5"]),
    ] {
        check(&format!("train --set {set}"), words);
        check(&format!("plan --set {set}"), words);
    }
}
