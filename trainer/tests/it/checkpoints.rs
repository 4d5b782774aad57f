//! A saved training continues as if it had never stopped, or is refused.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use lowtide_amp::{LossScaler, LossScalerOptions};
use lowtide_nn::optim::{Adam, AdamOptions, Averaged, Stateful};
use lowtide_trainer::observers::{CheckpointEvery, Checkpoints};
use lowtide_trainer::{
    CheckpointFolder, Flow, Observer, Options, Position, Result, RunStart, StepReport, Task,
    TrainError, Trainer, Training,
};

use crate::buffers::{self, Middle};
use crate::common::{KINDS, Kind, Run, cnn, is_deep};

const FILES: [&str; 3] = ["checkpoint.json", "model.safetensors", "optimizer.safetensors"];

/// Two epochs of three steps. The last step of each epoch has a short batch.
fn run() -> Run {
    Run { channels: 4, train_len: 40, test_len: 8, batch_size: 16, epochs: 2, ..Run::default() }
}

/// Stops after a step.
struct StopAfter(u64);

impl Observer for StopAfter {
    fn on_step(&mut self, report: &StepReport, _: &mut dyn Training) -> Result<Flow> {
        Ok(if report.step == self.0 { Flow::Stop } else { Flow::Continue })
    }
}

/// Trains to the end of the second epoch. After each step the training is saved, and resumed by
/// another trainer.
fn in_pieces<T: Task + Clone, O: Stateful + Clone>(
    run: &Run,
    folder: &Path,
    new: impl Fn(&Run) -> Trainer<T, O>,
) -> u64 {
    let mut trainer = new(run);
    for step in 1..=6 {
        // The numbers of threads and of workers do not matter.
        let (threads, workers) = (1 + step as usize % 3, step as usize % 2);
        let (train, test) = Run { workers, ..*run }.loaders();
        let epochs = run.epochs - trainer.position().epoch;
        let mut stop = StopAfter(step);
        trainer.fit(&train, &test, epochs, &mut [&mut stop]).expect("fits");
        assert_eq!(trainer.steps(), step);
        let path = folder.join(format!("step-{step}"));
        trainer.save(&path).expect("room");
        let mut next = new(&Run { threads, ..*run });
        next.load(&path).expect("whole");
        assert_eq!(next.position(), trainer.position());
        assert_eq!(next.state_hash().expect("cpu"), trainer.state_hash().expect("cpu"));
        trainer = next;
    }
    trainer.state_hash().expect("cpu")
}

#[test]
fn resumed_after_any_step_is_never_stopped() {
    let folder = tempfile::tempdir().expect("a folder");
    for kind in KINDS {
        let run = Run { kind, ..run() };
        let whole = run.fit(None).state_hash;
        let path = folder.path().join(format!("{kind:?}"));
        assert_eq!(in_pieces(&run, &path, |run| run.trainer(&run.device(None))), whole, "{kind:?}");
    }
    for middle in [Middle::BatchNorm, Middle::Dropout] {
        let run = run();
        let new = |run: &Run| buffers::trainer(&run.device(None), run, middle);
        let device = run.device(None);
        let mut calm = buffers::trainer(&device, &run, middle);
        let whole = run.fit_trainer(&device, &mut calm, |_, _| {}).expect("fits").state_hash;
        let path = folder.path().join(format!("{middle:?}"));
        assert_eq!(in_pieces(&run, &path, new), whole, "{middle:?}");
    }
    // Clipping, and a loss scale that grows at every second step and overflows on the way.
    let options = || {
        let scale = LossScalerOptions {
            initial_scale: 2f32.powi(120),
            growth_interval: 2,
            ..LossScalerOptions::default()
        };
        let scaler = LossScaler::new(scale).expect("in range");
        Options { clip_norm: Some(0.1), scaler: Some(scaler), ..Options::default() }
    };
    let run = run();
    let whole = run.fit_with(None, options(), |_, _| {}).state_hash;
    let new = |run: &Run| run.trainer_with(&run.device(None), options());
    assert_eq!(in_pieces(&run, &folder.path().join("scaled"), new), whole);
}

/// A trainer after two steps, and its checkpoint.
fn saved(folder: &Path) -> (Trainer<crate::common::Cnn, impl Stateful + Clone + use<>>, Run) {
    let run = run();
    let mut trainer = run.trainer(&run.device(None));
    let (train, test) = run.loaders();
    trainer.fit(&train, &test, 1, &mut [&mut StopAfter(2)]).expect("fits");
    trainer.save(&folder.join("saved")).expect("room");
    (trainer, run)
}

/// Checks that the checkpoint is refused and that the trainer is unchanged. Returns the error's
/// line.
#[track_caller]
fn check_refused(run: &Run, path: &Path, what: &str) -> String {
    let mut trainer = run.trainer(&run.device(None));
    let (train, test) = run.loaders();
    trainer.fit(&train, &test, 1, &mut [&mut StopAfter(1)]).expect("fits");
    let (hash, position) = (trainer.state_hash().expect("cpu"), trainer.position());
    let error = trainer.load(path).expect_err(what);
    assert_eq!(trainer.state_hash().expect("cpu"), hash, "{what}");
    assert_eq!(trainer.position(), position, "{what}");
    error.to_string()
}

#[test]
fn place_at_the_end_of_an_epoch_goes_on_with_the_next_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = run();
    let (train, test) = run.loaders();
    let whole = run.fit(None).state_hash;
    // In early versions, an epoch that had ended was counted only by the next run.
    let path = folder.path().join("early");
    let mut first = run.trainer(&run.device(None));
    first.fit(&train, &test, 2, &mut [&mut StopAfter(3)]).expect("fits");
    first.save(&path).expect("room");
    let place = r#"{"epoch":0,"batch":3,"seed":7,"batch_size":16,"sample_count":40}"#;
    rewrite_header(
        &path,
        &[(r#""epoch":1,"in_epoch":null"#, &format!(r#""epoch":0,"in_epoch":{place}"#))],
    );
    let mut second = run.trainer(&run.device(None));
    second.load(&path).expect("whole");
    assert_eq!(second.position(), Position { step: 3, epoch: 1, batch: 0 });
    second.fit(&train, &test, 1, &mut []).expect("fits");
    assert_eq!(second.position(), Position { step: 6, epoch: 2, batch: 0 });
    assert_eq!(second.state_hash().expect("cpu"), whole);

    // A loader that drops the last batch has no batch after the second one.
    let (shorter, _) = Run { drop_last: true, ..run }.loaders();
    for (epochs, step) in [(1, 2), (2, 4)] {
        let mut trainer = run.trainer(&run.device(None));
        trainer.fit(&train, &test, 2, &mut [&mut StopAfter(2)]).expect("fits");
        let score = trainer.fit(&shorter, &test, epochs, &mut []).expect("fits");
        assert_eq!(trainer.position(), Position { step, epoch: epochs, batch: 0 });
        assert_eq!(score, trainer.evaluate(&test).expect("fits"));
    }
}

/// Replaces parts of a checkpoint's header and corrects the checksum.
fn rewrite_header(checkpoint: &Path, changes: &[(&str, &str)]) {
    let path = checkpoint.join(FILES[0]);
    let text = fs::read_to_string(&path).expect("there");
    let (_, content) = text.split_once(r#""content":"#).expect("a header");
    let mut content = content.strip_suffix('}').expect("an object").to_owned();
    for (from, to) in changes {
        assert!(content.contains(from), "no {from} in {content}");
        content = content.replace(from, to);
    }
    let checksum = xxhash_rust::xxh3::xxh3_64(content.as_bytes());
    let text = format!(r#"{{"checksum":"{checksum:016x}","content":{content}}}"#);
    fs::write(path, text).expect("writable");
}

#[test]
fn one_flipped_bit_anywhere_is_refused_by_the_name_of_the_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut trainer, _) = saved(folder.path());
    let path = folder.path().join("saved");
    let hash = trainer.state_hash().expect("cpu");
    for name in FILES {
        let file = path.join(name);
        let whole = fs::read(&file).expect("there");
        let bits = whole.len() * 8;
        // All bytes of the header are tried; of the tensors every 13th, which meets every bit of a
        // byte.
        let stride = if name == FILES[0] || is_deep() { 1 } else { 13 };
        // The byte is changed in place, because rewriting the file takes a hundred times as long.
        let mut damaged = File::options().write(true).open(&file).expect("writable");
        let mut set = |byte: usize, value: u8| {
            damaged.seek(SeekFrom::Start(byte as u64)).expect("within the file");
            damaged.write_all(&[value]).expect("writable");
        };
        for bit in (0..bits).step_by(stride) {
            let byte = bit / 8;
            set(byte, whole[byte] ^ (1 << (bit % 8)));
            match trainer.load(&path) {
                Err(TrainError::Checkpoint { path, .. }) => assert_eq!(path, file, "bit {bit}"),
                other => panic!("bit {bit} of {name}: {other:?}"),
            }
            set(byte, whole[byte]);
        }
        trainer.load(&path).expect("whole again");
        for len in [0, 1, whole.len() / 2, whole.len() - 1] {
            fs::write(&file, &whole[..len]).expect("writable");
            assert!(trainer.load(&path).is_err(), "{len} bytes of {name}");
        }
        fs::remove_file(&file).expect("there");
        let error = trainer.load(&path).expect_err("a file is missing").to_string();
        assert!(error.contains(name) && error.contains("No such file"), "{error}");
        fs::write(&file, &whole).expect("writable");
    }
    trainer.load(&path).expect("whole again");
    assert_eq!(trainer.state_hash().expect("cpu"), hash);
}

/// Records the sizes of the files that are set aside for a checkpoint.
struct SetAside<'a>(&'a Path, Vec<u64>);

impl Observer for SetAside<'_> {
    fn on_start(&mut self, _: &RunStart, _: &mut dyn Training) -> Result<()> {
        let len = |name| fs::metadata(self.0.join(".reserve/0").join(name)).expect("there").len();
        self.1 = ["2", "0", "1"].map(len).to_vec();
        Ok(())
    }
}

#[test]
fn what_is_set_aside_is_as_much_as_a_checkpoint_takes() {
    let adam = Adam::new(AdamOptions::default()).expect("in range");
    let averaged = Averaged::new(adam, 0.9).expect("in range");
    let optimizers: [Box<dyn Stateful>; 4] = [
        Kind::Adam.build(0.1),
        Kind::Momentum.build(0.1),
        Kind::Plain.build(0.1),
        Box::new(averaged),
    ];
    for (index, optimizer) in optimizers.into_iter().enumerate() {
        let folder = tempfile::tempdir().expect("a folder");
        let run = run();
        let (train, test) = run.loaders();
        let device = run.device(None);
        let task = cnn(&device, run.channels, run.seed);
        let mut trainer = Trainer::new(&device, task, optimizer, Options::default());
        let kept = CheckpointFolder::new(folder.path());
        let mut checkpoints = Checkpoints::new(kept, CheckpointEvery::Steps(1));
        let mut set_aside = SetAside(folder.path(), Vec::new());
        trainer.fit(&train, &test, 2, &mut [&mut checkpoints, &mut set_aside]).expect("fits");
        drop(checkpoints);
        let len = |name| fs::metadata(folder.path().join("step-00000006").join(name));
        let written = FILES.map(|name| len(name).expect("there").len());
        for (set_aside, written) in set_aside.1.iter().zip(&written) {
            assert!(set_aside >= written, "{index}: {set_aside} for {written}");
        }
        // Nothing of the reserve stays.
        assert!(!folder.path().join(".reserve").exists());
    }
}

#[test]
fn checkpoint_of_another_training_is_refused_and_changes_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_, run) = saved(folder.path());
    let path = folder.path().join("saved");
    let seed = check_refused(&Run { seed: 8, ..run }, &path, "another seed");
    assert!(seed.contains("its seed is 7, that of the options 8"), "{seed}");
    let wider = check_refused(&Run { channels: 5, ..run }, &path, "another model");
    assert!(wider.contains("conv.weight"), "{wider}");
    let plain = check_refused(&Run { kind: Kind::Plain, ..run }, &path, "another optimizer");
    assert!(plain.contains("state."), "{plain}");
}

#[test]
fn training_goes_back_to_a_snapshot_and_takes_the_same_steps_again() {
    let run = run();
    let (train, test) = run.loaders();
    let new = |run: &Run| run.trainer(&run.device(None));
    let mut trainer = new(&run);
    trainer.fit(&train, &test, 2, &mut [&mut StopAfter(2)]).expect("fits");
    let (position, hash) = (trainer.position(), trainer.state_hash().expect("cpu"));
    let snapshot = trainer.snapshot().expect("cpu");
    trainer.fit(&train, &test, 2, &mut []).expect("fits");
    let end = (trainer.position(), trainer.state_hash().expect("cpu"));
    let mut other = new(&Run { threads: 2, ..run });
    for trainer in [&mut trainer, &mut other] {
        trainer.restore(&snapshot).expect("of this training");
        assert_eq!((trainer.position(), trainer.state_hash().expect("cpu")), (position, hash));
        trainer.fit(&train, &test, 2, &mut []).expect("fits");
        assert_eq!((trainer.position(), trainer.state_hash().expect("cpu")), end);
    }
    for (run, problem) in [
        (Run { seed: 8, ..run }, "(in memory)/checkpoint.json: its seed is 7"),
        (Run { channels: 5, ..run }, "(in memory)/optimizer.safetensors: state.conv.weight"),
        (Run { kind: Kind::Plain, ..run }, "(in memory)/optimizer.safetensors: state."),
    ] {
        let mut trainer = new(&run);
        let hash = trainer.state_hash().expect("cpu");
        let error = trainer.restore(&snapshot).expect_err("another training").to_string();
        assert!(error.starts_with(problem), "{error}");
        assert_eq!(trainer.state_hash().expect("cpu"), hash);
    }
}

#[test]
fn checkpoint_is_never_written_over_and_a_failed_one_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut trainer, _) = saved(folder.path());
    let again = trainer.save(&folder.path().join("saved")).expect_err("it is there").to_string();
    assert!(again.contains("saved"), "{again}");
    fs::write(folder.path().join("file"), "mine").expect("writable");
    assert!(trainer.save(&folder.path().join("file/inside")).is_err());
    // Files of a killed process do not stop a later save.
    fs::create_dir(folder.path().join(".next.partial")).expect("writable");
    fs::write(folder.path().join(".next.partial/model.safetensors"), "half").expect("writable");
    trainer.save(&folder.path().join("next")).expect("room");
    let mut names: Vec<_> = fs::read_dir(folder.path())
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
        .collect();
    names.sort();
    assert_eq!(names, ["file", "next", "saved"]);
    let mut files: Vec<_> = fs::read_dir(folder.path().join("next"))
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
        .collect();
    files.sort();
    assert_eq!(files, FILES);
}
