//! `cargo xtask scoreboard [SUITE]`: makes the cases of another library's test suite with that
//! library, and runs the cases in lowtide.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::python::{self, Packages, call};
use crate::{test, workspace};

const PYTORCH: Packages = Packages {
    names: &["torch==2.15.0", "numpy==2.4.6", "expecttest==0.3.0"],
    probe: "import torch, numpy, expecttest; assert torch.__version__.startswith('2.15.0')",
    size: "more than 5 GB",
};

const ONNX: Packages = Packages {
    names: &["onnx==1.23.2", "numpy==2.4.6"],
    probe: "import onnx; assert onnx.__version__ == '1.23.2'",
    size: "120 MB",
};

const TRANSFORMERS: Packages = Packages {
    names: &[PYTORCH.names[0], "numpy==2.4.6", "transformers==5.24.0", "safetensors==0.8.0"],
    probe: "import torch, numpy, safetensors; from importlib.metadata import version; \
            assert torch.__version__.startswith('2.15.0') and version('transformers') == '5.24.0'",
    size: "more than 5 GB",
};

/// A suite of another library.
struct Suite {
    name: &'static str,
    /// The script below `scoreboard/python` that makes the cases. A script named like a package
    /// would hide the package from the other scripts.
    script: &'static str,
    packages: &'static Packages,
}

const SUITES: &[Suite] = &[
    Suite { name: "opinfo", script: "opinfo.py", packages: &PYTORCH },
    Suite { name: "moduleinfo", script: "moduleinfo.py", packages: &PYTORCH },
    Suite { name: "optiminfo", script: "optiminfo.py", packages: &PYTORCH },
    Suite { name: "onnx", script: "onnx_nodes.py", packages: &ONNX },
    Suite { name: "transformers", script: "transformers_suite.py", packages: &TRANSFORMERS },
];

/// The first lines of the table of all suites.
const TABLE_HEAD: &str = "\
| suite | cases | passed | by f64 | failed | n/a | missing | passed of those that apply |
|---|---|---|---|---|---|---|---|
";

/// Runs the suites; `Ok(false)` if a case failed.
///
/// # Errors
/// One line about arguments, and about programs that are missing or fail.
pub fn run(root: &Path, arguments: &[String]) -> Result<bool, String> {
    let suites: Vec<&Suite> = match arguments {
        [] => SUITES.iter().collect(),
        [name] => SUITES.iter().filter(|suite| suite.name == name).collect(),
        _ => Vec::new(),
    };
    if suites.is_empty() {
        let names: Vec<&str> = SUITES.iter().map(|suite| suite.name).collect();
        let (names, found) = (names.join(", "), arguments.join(" "));
        return Err(format!("scoreboard takes one of {names}, got `{found}`"));
    }
    let pythons: Vec<PathBuf> = suites
        .iter()
        .map(|suite| python::find_or_install(root, suite.packages))
        .collect::<Result<_, _>>()?;
    let program = program(root)?;
    let (mut good, mut rows) = (true, String::new());
    for (suite, python) in suites.iter().zip(&pythons) {
        good &= run_suite(root, suite, python, &program)?;
        let path = root.join(format!("target/scoreboard-{}.rows", suite.name));
        rows +=
            &fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    let table = root.join("target/scoreboard.md");
    let text = format!("{TABLE_HEAD}{rows}");
    fs::write(&table, text).map_err(|error| format!("{}: {error}", table.display()))?;
    println!("{} has the table of the README", table.display());
    Ok(good)
}

/// Builds the program that runs cases, with the features of the tests.
fn program(root: &Path) -> Result<PathBuf, String> {
    let mut build = workspace::cargo(root);
    build.args(["build", "--quiet", "--bin", "scoreboard"]);
    call(build.args(test::scope(None).split_whitespace()))?;
    Ok(workspace::target(root).join("debug/scoreboard"))
}

fn run_suite(root: &Path, suite: &Suite, python: &Path, program: &Path) -> Result<bool, String> {
    let Suite { name: suite, script, .. } = suite;
    let cases = root.join("target/scoreboard").join(suite);
    if cases.exists() {
        fs::remove_dir_all(&cases).map_err(|error| format!("{}: {error}", cases.display()))?;
    }
    let failed = |error| format!("{} does not start: {error}", program.display());
    let output = Command::new(program).args(["names", suite]).stderr(Stdio::inherit()).output();
    let output = output.map_err(failed)?;
    if !output.status.success() {
        return Err(format!("{} failed: {}", program.display(), output.status));
    }
    let names = String::from_utf8_lossy(&output.stdout).into_owned();
    let script = root.join("scoreboard/python").join(script);
    println!("{suite}: making cases in {}", cases.display());
    let mut make = Command::new(python);
    make.arg(&script).arg(&cases).arg("--ops").args(names.split_whitespace());
    call(&mut make)?;
    let out = root.join(format!("target/scoreboard-{suite}"));
    let paths = [&cases, &out].map(|path| path.display().to_string());
    let status = Command::new(program).args(["run", suite, &paths[0], &paths[1]]).status();
    let status = status.map_err(failed)?;
    println!("{suite}: {}.md has the table, {}.jsonl a line for each case", paths[1], paths[1]);
    Ok(status.success())
}

/// True if there is a Python for every suite.
pub fn is_ready(root: &Path) -> bool {
    SUITES.iter().all(|suite| python::find(root, suite.packages).is_some())
}
