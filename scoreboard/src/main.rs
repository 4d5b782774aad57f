//! `scoreboard names SUITE` prints the operations that a suite's script is to make cases for.
//! `scoreboard run SUITE CASES OUT` runs the cases of a folder and writes `OUT.jsonl`, `OUT.md`,
//! and the suite's rows of the table in the README, `OUT.rows`.

#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use lowtide_scoreboard::ops;
use lowtide_scoreboard::report::Report;
use lowtide_scoreboard::transformers;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments[..] {
        ["names", "opinfo"] => {
            ops::names().for_each(|name| println!("{name}"));
            Ok(true)
        }
        ["names", "moduleinfo"] => {
            ops::modules().for_each(|name| println!("{name}"));
            Ok(true)
        }
        ["names", "optiminfo"] => {
            ops::optimizers().for_each(|name| println!("{name}"));
            Ok(true)
        }
        // Its cases are all written: what lowtide does not have is told case by case.
        ["names", "onnx"] => Ok(true),
        // Its script knows its models; those that lowtide cannot build count as missing.
        ["names", transformers::SUITE] => Ok(true),
        ["run", suite, cases, out] => run(suite, Path::new(cases), Path::new(out)),
        _ => Err("usage: scoreboard names SUITE | scoreboard run SUITE CASES OUT".to_owned()),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("scoreboard: {message}");
            ExitCode::FAILURE
        }
    }
}

/// `Ok(false)` where a case failed.
fn run(suite: &str, cases: &Path, out: &Path) -> Result<bool, String> {
    let report = Report::of_folder(suite, cases)?;
    let write = |extension: &str, text: &str| {
        let path: PathBuf = out.with_extension(extension);
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
    };
    write("jsonl", &report.lines())?;
    write("md", &report.markdown())?;
    write("rows", &report.table())?;
    println!("{}", report.summary());
    Ok(report.is_good())
}
