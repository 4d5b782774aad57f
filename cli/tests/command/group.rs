//! Control groups for tests.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::place::{Outcome, Place};

/// Runs `lowtide` in a shell after the command `first`.
pub(crate) fn after(place: &Place, first: &str, arguments: &str) -> Outcome {
    Outcome::of(&mut command_after(place, first, arguments))
}

/// A command that starts `lowtide` in a shell after `first`.
pub(crate) fn command_after(place: &Place, first: &str, arguments: &str) -> Command {
    let script = format!("{first} && exec \"$0\" {arguments}");
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(script).arg(env!("CARGO_BIN_EXE_lowtide")).current_dir(place.path("."));
    shell
}

/// A control group for one test. Dropping this removes the group.
pub(crate) struct Group {
    folder: PathBuf,
    is_v2: bool,
}

impl Group {
    /// A group with this memory limit and without swap; `None` if this user may not make groups.
    pub(crate) fn new(name: &str, limit_bytes: usize) -> Option<Group> {
        let folder = format!("lowtide-test-{}-{name}", std::process::id());
        let [v2, v1] = ["/sys/fs/cgroup", "/sys/fs/cgroup/memory"].map(PathBuf::from);
        let is_v2 = v2.join("cgroup.controllers").exists();
        let (base, limit) = if is_v2 { (v2, "memory.max") } else { (v1, "memory.limit_in_bytes") };
        let group = Group { folder: base.join(folder), is_v2 };
        fs::create_dir(&group.folder).ok()?;
        fs::write(group.folder.join(limit), limit_bytes.to_string()).ok()?;
        // Not every system has swap to forbid.
        if is_v2 {
            drop(fs::write(group.folder.join("memory.swap.max"), "0"));
        } else {
            drop(fs::write(group.folder.join("memory.swappiness"), "0"));
            let both = group.folder.join("memory.memsw.limit_in_bytes");
            drop(fs::write(both, limit_bytes.to_string()));
        }
        Some(group)
    }

    /// A shell command that moves the shell into the group.
    pub(crate) fn join(&self) -> String {
        format!("echo $$ >{}", self.folder.join("cgroup.procs").display())
    }

    /// Number of processes that the system has killed for lack of memory; `None` if it does not
    /// report it.
    pub(crate) fn kills(&self) -> Option<usize> {
        let name = if self.is_v2 { "memory.events" } else { "memory.oom_control" };
        let text = fs::read_to_string(self.folder.join(name)).ok()?;
        text.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
    }

    /// Bytes charged now that cannot be given back: everything except pages of files. 0 if the
    /// system does not report it.
    pub(crate) fn kept_bytes(&self) -> usize {
        let (usage, files) = if self.is_v2 {
            ("memory.current", ["inactive_file ", "active_file "])
        } else {
            ("memory.usage_in_bytes", ["total_inactive_file ", "total_active_file "])
        };
        let read = |name: &str| fs::read_to_string(self.folder.join(name)).unwrap_or_default();
        let (stat, usage) = (read("memory.stat"), read(usage));
        let count = |text: &str| text.trim().parse::<usize>().unwrap_or(0);
        let of_files = files
            .iter()
            .filter_map(|name| stat.lines().find_map(|line| line.strip_prefix(name)).map(count));
        count(&usage).saturating_sub(of_files.sum())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        drop(fs::remove_dir(&self.folder));
    }
}
