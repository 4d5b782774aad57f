//! Complete recipes, and recipes with mistakes, which errors name.

use std::fs;

use lowtide_cli::recipe::{ModelRecipe, OPTIMIZERS, OptimizerRecipe, Recipe, SimpleCnnRecipe};
use lowtide_data::{Batch, Loader};
use lowtide_nn::optim::{Momentum, RULES, SgdOptions};
use lowtide_trainer::TrainError;

fn load(text: &str) -> Result<Recipe, TrainError> {
    let file = tempfile::NamedTempFile::new().expect("a folder");
    fs::write(file.path(), text).expect("a file");
    Recipe::load(file.path())
}

/// Checks that the mistake is reported in one line with the file, the line and the key.
#[track_caller]
fn check_mistake(text: &str, line: usize, key: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("mistaken.toml");
    fs::write(&path, text).expect("a file");
    let error = Recipe::load(&path).expect_err("a mistake");
    assert!(matches!(error, TrainError::Setting { .. }), "{error:?}");
    let message = error.to_string();
    assert!(!message.contains('\n'), "{message}");
    assert!(message.contains(&path.display().to_string()), "no file: {message}");
    assert!(message.contains(&format!("line {line} ")), "not in line {line}: {message}");
    assert!(message.contains(key), "no {key}: {message}");
}

#[test]
fn defaults_round_trip() {
    let recipe = Recipe::default();
    assert_eq!(load(&recipe.to_toml()).expect("complete"), recipe);
    assert_eq!(load("").expect("everything has a default"), recipe);
    recipe.check().expect("the defaults are in range");
}

#[test]
fn every_optimizer_round_trips() {
    let kinds = [
        "kind = \"adam\"\nlearning_rate = 0.003\nbetas = [0.8, 0.99]\nweight_decay = 0.1",
        "kind = \"adamw\"\neps = 1e-6",
        "kind = \"sgd\"\nmomentum = 0.5\nnesterov = true\nweight_decay = 1e-4",
        "kind = \"rms-prop\"\ncentered = true\nmomentum = 0.5",
        "kind = \"adagrad\"\ninitial_sum = 0.5",
        "kind = \"amsgrad\"\nweight_decay = 0.2",
        "kind = \"nadam\"\nmomentum_decay = 0.1\nweight_decay = { decoupled = 0.1 }",
        "kind = \"radam\"\nbetas = [0.8, 0.99]",
        "kind = \"adamax\"\neps = 1e-6",
        "kind = \"adadelta\"\nsmoothing = 0.5",
        "kind = \"rprop\"\nfactors = [0.4, 1.5]",
        "kind = \"lion\"\nbetas = [0.8, 0.9]",
        "kind = \"lamb\"\nweight_decay = 0.2",
        "kind = \"adafactor\"\neps = 1e-6\nclip = 2.0",
        "kind = \"muon\"\nrate_scale = \"match-rms-adamw\"\nothers_learning_rate = 0.1",
    ];
    let by_default = OPTIMIZERS.map(|kind| format!("kind = \"{kind}\""));
    let mut seen = Vec::new();
    for kind in kinds.iter().copied().chain(by_default.iter().map(String::as_str)) {
        let recipe = load(&format!("[optimizer]\n{kind}\n")).expect("valid");
        recipe.optimizer().expect("in range");
        assert_eq!(load(&recipe.to_toml()).expect("complete"), recipe);
        seen.push(recipe);
    }
    assert!(matches!(&seen[0].optimizer, OptimizerRecipe::Adam(adam) if adam.betas == [0.8, 0.99]));
    assert!(matches!(&seen[1].optimizer, OptimizerRecipe::Adamw(adam) if adam.eps == 1e-6));
    let is_nesterov = |sgd: &SgdOptions| sgd.momentum_kind == Momentum::Nesterov;
    assert!(matches!(&seen[2].optimizer, OptimizerRecipe::Sgd(sgd) if is_nesterov(sgd)));
}

#[test]
fn recipes_have_every_update_rule() {
    let names = RULES.map(|rule| rule.replace('_', "-"));
    let missing: Vec<_> = names.iter().filter(|name| !OPTIMIZERS.contains(&&name[..])).collect();
    assert!(missing.is_empty(), "no kind of optimizer for {missing:?}");
}

#[test]
fn optimizers_have_the_options_of_their_recipe() {
    let optimizer = |text: &str| {
        load(&format!("[optimizer]\n{text}\n")).expect("valid").optimizer().expect("in range")
    };
    let muon = optimizer("kind = \"muon\"\nlearning_rate = 0.25\nrate_scale = \"original\"");
    assert_eq!(muon.learning_rate(), 0.25);
    let text = format!("{muon:?}");
    assert!(text.contains("MuonOptions") && text.contains("rate_scale: Original"), "{text}");
    let text = format!("{:?}", optimizer("kind = \"rms-prop\"\ncentered = true"));
    assert!(text.contains("spread: Variance"), "{text}");
    let scale = "kind = \"muon\"\nrate_scale = \"spectral-unclamped\"\nnesterov = false";
    let text = format!("{:?}", optimizer(scale));
    assert!(text.contains("SpectralUnclamped") && text.contains("Classical"), "{text}");
}

#[test]
fn every_schedule_round_trips_and_moves_the_learning_rate() {
    // With a learning rate of 2: the rate of the first step, and of a step in which all schedules
    // have changed.
    let schedules = [
        ("", 2.0, 2.0),
        ("kind = \"constant\"", 2.0, 2.0),
        ("kind = \"linear\"\nsteps = 40\nto = 0.5", 2.0, 1.5),
        ("kind = \"cosine\"\nsteps = 40\nfloor = 1.0", 2.0, 1.5),
        ("kind = \"cosine-restarts\"\nfirst = 10\ngrowth = 2", 2.0, 1.0),
        ("kind = \"step\"\nevery = 15\nfactor = 0.5", 2.0, 1.0),
        ("kind = \"milestones\"\nat = [3, 20]\nfactor = 0.5", 2.0, 0.5),
        ("kind = \"exponential\"\nfactor = 0.5", 2.0, 2.0 * 0.5f64.powi(20)),
        ("kind = \"polynomial\"\nsteps = 40\npower = 2.0", 2.0, 0.5),
        (
            "kind = \"one-cycle\"\nsteps = 41\nstart_divisor = 4.0\nrising = 0.512195121951",
            0.5,
            2.0,
        ),
    ];
    for (schedule, first, later) in schedules {
        for warm_up in [0, 4] {
            let text = format!(
                "[optimizer]\nkind = \"sgd\"\nlearning_rate = 2.0\n[warm_up]\nsteps = {warm_up}\n\
                 from = 0.5\n{}{schedule}\n",
                if schedule.is_empty() { "" } else { "[schedule]\n" },
            );
            let recipe = load(&text).expect("valid");
            assert_eq!(load(&recipe.to_toml()).expect("complete"), recipe);
            let rate = |step| recipe.schedule().learning_rate(2.0, step);
            let close = |found: f64, expected: f64| (found - expected).abs() < 1e-9;
            if warm_up > 0 {
                assert!(close(rate(0), 1.0) && close(rate(2), 1.5), "{schedule}: {}", rate(0));
            }
            assert!(close(rate(warm_up), first), "{schedule}: {}", rate(warm_up));
            assert!(close(rate(warm_up + 20), later), "{schedule}: {}", rate(warm_up + 20));
            assert_eq!(recipe.optimizer().expect("in range").learning_rate(), rate(0));
        }
    }
}

#[test]
fn mistakes_in_schedules_are_named() {
    check_mistake("[schedule]\nkind = \"cosine\"\nstep = 3\nsteps = 4\n", 3, "step");
    check_mistake("[schedule]\nkind = \"cosine\"\n", 1, "steps");
    check_mistake("[schedule]\nkind = \"constant\"\nsteps = 3\n", 3, "steps");
    check_mistake("[schedule]\nkind = \"zigzag\"\n", 2, "zigzag");
    check_mistake("[schedule]\nkind = \"exponential\"\nfactor = 1.5\n", 3, "factor");
    check_mistake("[schedule]\nkind = \"milestones\"\nat = [3, 2]\n", 3, "rising");
    check_mistake("[warm_up]\nsteps = 3\nfrom = -1.0\n", 3, "from");
    check_mistake("[warm_up]\nsteps = 3\nto = 1.0\n", 3, "to");
    check_mistake("[optimizer]\nkind = \"adafactor\"\nclip = 0.5\n", 3, "clip");
    check_mistake("[optimizer]\nkind = \"muon\"\nmomentum = -0.5\n", 3, "momentum");
}

#[test]
fn every_setting_round_trips() {
    let text = "[data]\nworkers = 3\n[model]\nchannels = 5\n[train]\nepochs = 2\nbatch_size = 9\n\
                seed = 11\nclip_norm = 0.5\nsplit_batches = false\n";
    let recipe = load(text).expect("valid");
    assert_eq!(recipe.data.workers(), 3);
    assert_eq!(recipe.model, ModelRecipe::SimpleCnn(SimpleCnnRecipe { channels: 5 }));
    assert_eq!((recipe.train.epochs, recipe.train.batch_size, recipe.train.seed), (2, 9, 11));
    assert_eq!((recipe.train.clip_norm, recipe.train.split_batches), (Some(0.5), false));
    assert_eq!(load(&recipe.to_toml()).expect("complete"), recipe);
}

#[test]
fn seed_that_no_recipe_can_hold_is_named() {
    let mut recipe = Recipe::default();
    recipe.train.seed = i64::MAX as u64;
    recipe.check().expect("in range");
    assert_eq!(load(&recipe.to_toml()).expect("complete"), recipe);
    recipe.train.seed += 1;
    let error = recipe.check().expect_err("a seed that is too large").to_string();
    assert!(error.contains("train.seed") && error.contains("9223372036854775807"), "{error}");
    check_mistake(&recipe.to_toml(), seed_line(&recipe), "seed");
}

/// The line of a recipe's text that sets the seed.
fn seed_line(recipe: &Recipe) -> usize {
    let text = recipe.to_toml();
    text.lines().position(|line| line.starts_with("seed = ")).expect("every key is written") + 1
}

#[test]
fn unknown_keys_and_tables_are_named() {
    check_mistake("[train]\nepochs = 3\nepoch = 3\n", 3, "epoch");
    check_mistake("\n\n[model]\nchanels = 3\n", 4, "chanels");
    check_mistake("[trian]\nepochs = 3\n", 1, "trian");
    check_mistake("epochs = 3\n", 1, "epochs");
}

#[test]
fn wrong_types_are_named() {
    check_mistake("[train]\nseed = 1\nepochs = \"three\"\n", 3, "epochs");
    check_mistake("[train]\nbatch_size = 2.5\n", 2, "batch_size");
    check_mistake("[train]\nbatch_size = -1\n", 2, "batch_size");
    check_mistake("[train]\nsplit_batches = 1\n", 2, "split_batches");
    check_mistake("train = 3\n", 1, "train");
}

#[test]
fn unknown_choices_are_named() {
    check_mistake("[model]\nkind = \"resent\"\n", 2, "resent");
    check_mistake("[data]\nkind = \"minst\"\n", 2, "minst");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("recipe.toml");
    fs::write(&path, "[optimizer]\nkind = \"bfgs\"\n").expect("a file");
    let message = Recipe::load(&path).expect_err("no such optimizer").to_string();
    assert!(message.contains("bfgs") && message.contains("sgd"), "{message}");
}

#[test]
fn keys_of_another_optimizer_are_named() {
    check_mistake("[optimizer]\nkind = \"sgd\"\nbetas = [0.9, 0.99]\n", 3, "betas");
    check_mistake("[optimizer]\nkind = \"adam\"\n\nmomentum = 0.9\n", 4, "momentum");
}

#[test]
fn numbers_out_of_range_are_named() {
    check_mistake("[train]\nseed = 1\nepochs = 0\n", 3, "epochs");
    check_mistake("[train]\nbatch_size = 0\n", 2, "batch_size");
    check_mistake("[train]\nclip_norm = 0.0\n", 2, "clip_norm");
    check_mistake("[train]\nclip_norm = nan\n", 2, "clip_norm");
    let types = "[train]\nprecision = \"f16\"\nparameters = \"bf16\"\n";
    check_mistake(types, 3, "train.precision");
    check_mistake("[model]\nchannels = 0\n", 2, "channels");
    check_mistake("[optimizer]\nkind = \"sgd\"\nlearning_rate = -1.0\n", 3, "learning_rate");
    check_mistake("[optimizer]\nkind = \"adam\"\nbetas = [0.9, 1.0]\n", 3, "betas");
}

#[test]
fn what_is_not_toml_is_named() {
    check_mistake("[train]\nepochs = = 3\n", 2, "epochs");
    check_mistake("[train\nepochs = 3\n", 1, "[train");
}

#[test]
fn missing_recipe_is_a_file_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = folder.path().join("missing.toml");
    let error = Recipe::load(&missing).expect_err("it is not there");
    assert!(matches!(&error, TrainError::File { path, .. } if *path == missing), "{error:?}");
}

#[test]
fn images_to_train_on_are_varied_and_those_to_test_on_are_not() {
    let open = |sets: &[&str]| {
        let sets: Vec<String> = sets.iter().map(|&set| set.to_owned()).collect();
        Recipe::load_with(None, &sets).expect("a recipe").open().expect("the digits")
    };
    let batch = |loader: &Loader, epoch| loader.epoch(epoch).next().expect("one").expect("read");
    let images = |batch: &Batch| {
        let field = batch.field("images").expect("there");
        field.values::<f32>().expect("f32").to_vec()
    };
    let near = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1.0 / 255.0);
    let plain = open(&[]);
    let each = ["flip=true", "crop_padding=1", "random_resized_crop=true", "rotate=20", "erase=1"];
    for variation in each.into_iter().chain(["jitter=0.5", "mixup=1", "cutmix=1"]) {
        let varied = open(&[&format!("augment.{variation}")]);
        let first = batch(&varied.train, 0);
        // Augmentation keeps the samples and their order, and changes pixels.
        assert_eq!(first.sample_indices(), batch(&plain.train, 0).sample_indices());
        let changed = |epoch| {
            let still = images(&batch(&plain.train, epoch));
            !near(&images(&batch(&varied.train, epoch)), &still)
        };
        // A rectangle of CutMix may be too small for a pixel, or lie where all images are dark.
        let count = (0..8).filter(|&epoch| changed(epoch)).count();
        assert!(count == 8 || variation == "cutmix=1" && count > 0, "{variation}: {count} of 8");
        assert_eq!(images(&first), images(&batch(&varied.train, 0)), "{variation}");
        let is_mixed = variation.starts_with("mixup") || variation.starts_with("cutmix");
        assert_eq!(first.field("labels.weight").is_some(), is_mixed, "{variation}");
        let [test, expected] = [&varied.test, &plain.test].map(|loader| images(&batch(loader, 0)));
        assert!(near(&test, &expected), "{variation}");
    }
    let normal = open(&["augment.normalise=true"]);
    let pairs = [(&normal.train, &plain.train), (&normal.test, &plain.test)];
    for (normal, plain) in pairs.map(|(a, b)| (images(&batch(a, 0)), images(&batch(b, 0)))) {
        let expected: Vec<f32> = plain.iter().map(|x| (x - 0.449) / 0.226).collect();
        assert!(normal.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 0.02));
    }
}
