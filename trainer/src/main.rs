//! The `lowtide` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    lowtide_trainer::command::run(std::env::args_os())
}
