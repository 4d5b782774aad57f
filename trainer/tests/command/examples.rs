//! The examples do what they say: each ends by checking it.

use std::process::Command;

use crate::place::{Outcome, Place, skip};

#[test]
fn every_example_runs() {
    // Cargo builds them beside the folder of this test, unless it was asked for this test alone.
    let folder = std::env::current_exe().expect("it runs");
    let folder = folder.ancestors().nth(2).expect("target/PROFILE/deps/NAME").join("examples");
    let place = Place::new();
    for (name, word) in [
        ("01_digits", "accuracy 0.9"),
        ("02_bare_loop", "accuracy 0.9"),
        ("03_own_task", "off on average"),
        ("04_characters", "perplexity"),
        ("05_resume", "goes on after step 20"),
    ] {
        let program = folder.join(name).with_extension(std::env::consts::EXE_EXTENSION);
        if !program.exists() {
            skip(&format!("example {name}"), "it was not built");
            continue;
        }
        let said = Outcome::of(Command::new(&program).current_dir(place.path("."))).check_done();
        assert!(said.contains(word), "{name}: {said}");
    }
}
