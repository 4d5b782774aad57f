//! Memory that the operating system lets this process take: the machine's memory, control groups
//! (containers, batch jobs), the limit on address space.

use std::collections::HashSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// Stands in if the machine does not tell its memory. The system's own refusal is then the limit.
const UNKNOWN_PHYSICAL_BYTES: usize = 1 << 40;

/// The largest amount of memory that this process may take, and the origin of the limit.
///
/// A control group and a limit on address space count everything that a process has. So a part of
/// their limit is left for code, heap, stacks and libraries: see [`LimitOrigin`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// Bytes that an allocator may take.
    pub bytes: usize,
    /// The smallest of the limits, from which `bytes` follows.
    pub origin: LimitOrigin,
}

/// Limits of the memory of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LimitOrigin {
    /// The memory of the machine. Nothing is subtracted for other processes.
    Machine,
    /// A control group of Linux (version 1 or 2), or a group above it, less a margin: a sixteenth
    /// of the limit, at least 64 MiB, at most half.
    ControlGroup {
        /// Bytes that the system allows.
        limit_bytes: usize,
    },
    /// `RLIMIT_AS` (`ulimit -v`): half of the addresses that the process does not use yet.
    AddressSpace {
        /// Bytes that the system allows.
        limit_bytes: usize,
    },
}

impl fmt::Display for LimitOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LimitOrigin::Machine => "all that the machine has",
            LimitOrigin::ControlGroup { .. } => "what its control group allows, less a margin",
            LimitOrigin::AddressSpace { .. } => "half of what ulimit -v leaves",
        })
    }
}

impl MemoryLimit {
    /// The current limit of this process.
    pub fn of_this_process() -> MemoryLimit {
        System::here().limit(address_space())
    }
}

/// Memory that this process could get now without taking it from another process: the least of the
/// machine's available memory and of the room in its control groups. `None` if the system does not
/// tell.
pub fn available_bytes() -> Option<usize> {
    System::here().available_bytes()
}

/// Current memory of this process, as a control group charges it. `None` outside Linux, where the
/// system does not tell.
pub fn process_memory() -> Option<ProcessMemory> {
    System::here().process_memory()
}

/// Memory that a process takes of the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessMemory {
    /// Private memory without a file: heaps, stacks, static data that was written to.
    pub anonymous_bytes: usize,
    /// Shared memory without a file, such as the memory of a [`HostSource`](crate::HostSource). A
    /// page that is mapped twice counts twice.
    pub shared_bytes: usize,
    /// Resident pages of the program and its libraries. The system may drop such a page, and reads
    /// it again when its code runs.
    pub code_bytes: usize,
    /// Page tables.
    pub page_table_bytes: usize,
}

/// The root of the system's files; another folder in tests.
#[derive(Clone, Debug)]
pub(super) struct System {
    root: PathBuf,
}

/// A control group that limits memory, by its folder and the names of its files.
#[derive(Clone, Debug)]
pub(super) struct Group {
    folder: PathBuf,
    names: &'static GroupNames,
}

#[derive(Debug)]
struct GroupNames {
    limit: &'static str,
    usage: &'static str,
    /// Names in `memory.stat` of cached file pages, which the system drops before memory is short.
    files: [&'static str; 2],
}

const VERSION_2: GroupNames = GroupNames {
    limit: "memory.max",
    usage: "memory.current",
    files: ["inactive_file", "active_file"],
};

const VERSION_1: GroupNames = GroupNames {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    files: ["total_inactive_file", "total_active_file"],
};

impl System {
    pub(super) fn here() -> System {
        System { root: PathBuf::from("/") }
    }

    /// Physical memory of the machine.
    pub(super) fn physical_bytes(&self) -> usize {
        self.meminfo("MemTotal:").unwrap_or(UNKNOWN_PHYSICAL_BYTES)
    }

    /// The least of the limits. `address_space` is the used bytes and the limit of the address
    /// space.
    fn limit(&self, address_space: Option<(usize, usize)>) -> MemoryLimit {
        let machine = MemoryLimit { bytes: self.physical_bytes(), origin: LimitOrigin::Machine };
        let group = self.groups().iter().map(Group::limit_bytes).min().map(|limit_bytes| {
            let margin_bytes = (limit_bytes / 16).max(64 << 20).min(limit_bytes / 2);
            let origin = LimitOrigin::ControlGroup { limit_bytes };
            MemoryLimit { bytes: limit_bytes - margin_bytes, origin }
        });
        let addresses = address_space.map(|(used_bytes, limit_bytes)| {
            let bytes = limit_bytes.saturating_sub(used_bytes) / 2;
            MemoryLimit { bytes, origin: LimitOrigin::AddressSpace { limit_bytes } }
        });
        let limits = [Some(machine), group, addresses].into_iter().flatten();
        limits.min_by_key(|limit| limit.bytes).expect("the machine's is one")
    }

    fn available_bytes(&self) -> Option<usize> {
        let machine = self.meminfo("MemAvailable:");
        let rooms = self.groups().iter().filter_map(Group::room_bytes).collect::<Vec<_>>();
        rooms.into_iter().chain(machine).min()
    }

    /// A line of `/proc/meminfo`, in bytes.
    fn meminfo(&self, name: &str) -> Option<usize> {
        bytes_in(&fs::read_to_string(self.root.join("proc/meminfo")).ok()?, name)
    }

    fn process_memory(&self) -> Option<ProcessMemory> {
        let status = fs::read_to_string(self.root.join("proc/self/status")).ok()?;
        let maps = fs::read_to_string(self.root.join("proc/self/smaps")).ok()?;
        Some(ProcessMemory {
            anonymous_bytes: bytes_in(&status, "RssAnon:")?,
            shared_bytes: bytes_in(&status, "RssShmem:")?,
            code_bytes: code_bytes(&maps),
            page_table_bytes: bytes_in(&status, "VmPTE:")?,
        })
    }

    /// The control groups of this process that limit its memory, the innermost first.
    pub(super) fn groups(&self) -> Vec<Group> {
        let text = fs::read_to_string(self.root.join("proc/self/cgroup")).unwrap_or_default();
        let mounts = self.root.join("sys/fs/cgroup");
        let mut groups = Vec::new();
        for line in text.lines() {
            // `hierarchy:controllers:path`; version 2 is the hierarchy 0 and names no controller.
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
            if controllers.is_empty() {
                groups.extend(Group::all(&mounts, path, &VERSION_2));
                groups.extend(Group::all(&mounts.join("unified"), path, &VERSION_2));
            } else if controllers.split(',').any(|name| name == "memory") {
                groups.extend(Group::all(&mounts.join("memory"), path, &VERSION_1));
            }
        }
        groups
    }
}

impl Group {
    /// The group at `path` below `mount` and the groups above it, which limit it too. Inside a
    /// container the path may be a path of the host; then only its root folder exists.
    fn all(mount: &Path, path: &str, names: &'static GroupNames) -> Vec<Group> {
        let path = Path::new(path.trim_start_matches('/'));
        let folders = path.ancestors().map(|path| mount.join(path));
        let groups = folders.map(|folder| Group { folder, names });
        groups.filter(|group| group.read(names.limit).is_some()).collect()
    }

    fn limit_bytes(&self) -> usize {
        self.read(self.names.limit).unwrap_or(usize::MAX)
    }

    /// Bytes that the processes of the group may still take, cached files not counted. `None` if
    /// the system does not tell.
    pub(super) fn room_bytes(&self) -> Option<usize> {
        let stat = fs::read_to_string(self.folder.join("memory.stat")).ok()?;
        let of = |name: &str| {
            let mut words = stat.lines().map(|line| line.split_whitespace());
            let mut found =
                words.find_map(|mut words| (words.next() == Some(name)).then_some(words));
            found.as_mut().and_then(Iterator::next).and_then(|bytes| bytes.parse::<usize>().ok())
        };
        let files_bytes: usize = self.names.files.iter().filter_map(|name| of(name)).sum();
        let used_bytes = self.read(self.names.usage)?.saturating_sub(files_bytes);
        Some(self.limit_bytes().saturating_sub(used_bytes))
    }

    /// The number in a file of the group; `None` for `max`, which means no limit, and for the
    /// number that version 1 writes in its place.
    fn read(&self, name: &str) -> Option<usize> {
        let text = fs::read_to_string(self.folder.join(name)).ok()?;
        text.trim().parse().ok().filter(|&bytes| bytes < 1 << 62)
    }
}

/// The line of `text` that begins with `name` and gives a number of kB, in bytes.
fn bytes_in(text: &str, name: &str) -> Option<usize> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()? << 10)
}

/// Resident bytes of files with an executable part, from the text of `/proc/self/smaps`. Pages that
/// were written to do not count: they no longer belong to the file.
fn code_bytes(maps: &str) -> usize {
    let (mut programs, mut by_file) = (HashSet::new(), Vec::new());
    for line in maps.lines() {
        let (key, rest) = line.split_once(' ').unwrap_or((line, ""));
        if !key.ends_with(':') {
            // `55d0-55d8 r-xp 00012000 fe:01 1234  /usr/bin/name`: a mapping, its fields follow.
            let mut words = rest.split_whitespace();
            let (rights, file) = (words.next().unwrap_or(""), words.nth(3).unwrap_or(""));
            if rights.contains('x') && file.starts_with('/') {
                programs.insert(file);
            }
            by_file.push((file, 0, 0));
        } else if let Some((_, resident, anonymous)) = by_file.last_mut() {
            *resident += bytes_in(line, "Rss:").unwrap_or(0);
            *anonymous += bytes_in(line, "Anonymous:").unwrap_or(0);
        }
    }
    let of_programs = by_file.iter().filter(|(file, ..)| programs.contains(file));
    of_programs.map(|&(_, resident, anonymous)| usize::saturating_sub(resident, anonymous)).sum()
}

/// Bytes of address space that the process uses, and their limit; `None` if there is no limit.
#[cfg(target_os = "linux")]
pub(super) fn address_space() -> Option<(usize, usize)> {
    use rustix::process::{Resource, getrlimit};
    let limit_bytes = usize::try_from(getrlimit(Resource::As).current?).ok()?;
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: usize = statm.split_whitespace().next()?.parse().ok()?;
    Some((pages * rustix::param::page_size(), limit_bytes))
}

#[cfg(not(target_os = "linux"))]
pub(super) fn address_space() -> Option<(usize, usize)> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// A machine of 8 GiB, 6 of them available, with these files.
    struct Machine(PathBuf);

    impl Machine {
        fn new(name: &str, files: &[(&str, &str)]) -> Machine {
            let process = std::process::id();
            let root = std::env::temp_dir().join(format!("lowtide-system-{process}-{name}"));
            let meminfo = "MemTotal:  8388608 kB\nMemFree: 1 kB\nMemAvailable:  6291456 kB\n";
            for (path, text) in files.iter().chain([&("proc/meminfo", meminfo)]) {
                let path = root.join(path);
                fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
                fs::write(path, text).expect("a file");
            }
            Machine(root)
        }

        fn limit(&self) -> MemoryLimit {
            System { root: self.0.clone() }.limit(None)
        }

        fn available_bytes(&self) -> Option<usize> {
            System { root: self.0.clone() }.available_bytes()
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            drop(fs::remove_dir_all(&self.0));
        }
    }

    fn of_group(limit_bytes: usize, bytes: usize) -> MemoryLimit {
        MemoryLimit { bytes, origin: LimitOrigin::ControlGroup { limit_bytes } }
    }

    #[test]
    fn machine_is_the_limit_where_no_group_has_one() {
        let none = Machine::new("none", &[]);
        let whole = MemoryLimit { bytes: 8192 * MIB, origin: LimitOrigin::Machine };
        assert_eq!((none.limit(), none.available_bytes()), (whole, Some(6144 * MIB)));
        let unlimited = Machine::new(
            "unlimited",
            &[
                ("proc/self/cgroup", "4:memory:/a\n0::/b\n"),
                ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n"),
                ("sys/fs/cgroup/b/memory.max", "max\n"),
            ],
        );
        assert_eq!(unlimited.limit(), whole);
        let wide = Machine::new(
            "wide",
            &[("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/memory.max", "17179869184\n")],
        );
        assert_eq!(wide.limit(), whole, "a group may be allowed more than there is");
    }

    #[test]
    fn least_limit_of_all_groups_above_counts_in_version_2() {
        let machine = Machine::new(
            "v2",
            &[
                ("proc/self/cgroup", "0::/batch/job/step\n"),
                ("sys/fs/cgroup/batch/memory.max", "2147483648\n"),
                ("sys/fs/cgroup/batch/job/memory.max", "1073741824\n"),
                ("sys/fs/cgroup/batch/job/memory.current", "734003200\n"),
                ("sys/fs/cgroup/batch/job/memory.stat", "anon 1\ninactive_file 104857600\n"),
                ("sys/fs/cgroup/batch/job/step/memory.max", "max\n"),
            ],
        );
        assert_eq!(machine.limit(), of_group(1024 * MIB, 960 * MIB));
        // 700 MiB in use, 100 of them files.
        assert_eq!(machine.available_bytes(), Some(424 * MIB));
    }

    #[test]
    fn root_of_the_mount_counts_inside_a_container_of_version_1() {
        let machine = Machine::new(
            "v1",
            &[
                ("proc/self/cgroup", "9:cpu,memory:/docker/0123\n1:name=systemd:/x\n"),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "104857600\n"),
                ("sys/fs/cgroup/memory/memory.usage_in_bytes", "94371840\n"),
                (
                    "sys/fs/cgroup/memory/memory.stat",
                    "inactive_file 1\ntotal_inactive_file 10485760",
                ),
            ],
        );
        // The margin is never more than half.
        assert_eq!(machine.limit(), of_group(100 * MIB, 50 * MIB));
        assert_eq!(machine.available_bytes(), Some(20 * MIB));
    }

    #[test]
    fn limit_on_addresses_counts_by_half_of_what_is_left() {
        let machine = Machine::new("addresses", &[]);
        let system = System { root: machine.0.clone() };
        let origin = LimitOrigin::AddressSpace { limit_bytes: 4000 * MIB };
        let limit = system.limit(Some((1000 * MIB, 4000 * MIB)));
        assert_eq!(limit, MemoryLimit { bytes: 1500 * MIB, origin });
        assert_eq!(system.limit(Some((0, usize::MAX))).origin, LimitOrigin::Machine);
    }

    #[test]
    fn process_is_what_is_no_files_and_what_can_be_executed() {
        let maps = "\
5500-5580 r--p 00000000 fe:01 12    /usr/bin/lowtide
Rss:                 100 kB
Anonymous:             0 kB
5580-5600 r-xp 00080000 fe:01 12    /usr/bin/lowtide
Rss:                1000 kB
Anonymous:             0 kB
5600-5610 rw-p 00100000 fe:01 12    /usr/bin/lowtide
Rss:                  50 kB
Anonymous:            40 kB
VmFlags: rd wr mr mw me ac sd
7000-7800 r--s 00000000 fe:01 13    /data/tokens.bin
Rss:              900000 kB
Anonymous:             0 kB
7f00-7f10 rw-s 00000000 00:01 14    /dev/zero (deleted)
Rss:              700000 kB
7fff-8000 r-xp 00000000 00:00 0     [vdso]
Rss:                   4 kB
";
        let status = "VmPTE:\t      96 kB\nRssAnon:\t    2048 kB\nRssShmem:\t 700000 kB\n";
        let files = [("proc/self/smaps", maps), ("proc/self/status", status)];
        let machine = Machine::new("process", &files);
        let system = System { root: machine.0.clone() };
        let memory = ProcessMemory {
            anonymous_bytes: 2 * MIB,
            shared_bytes: 700_000 << 10,
            code_bytes: 1110 << 10,
            page_table_bytes: 96 << 10,
        };
        assert_eq!(system.process_memory(), Some(memory));
        assert_eq!(System { root: machine.0.join("none") }.process_memory(), None);
    }

    #[test]
    fn files_of_another_form_are_no_limit() {
        let odd = Machine::new(
            "odd",
            &[
                ("proc/self/cgroup", "nonsense\n0::\n7:memory:/a\n"),
                ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "many\n"),
            ],
        );
        assert_eq!(odd.limit().origin, LimitOrigin::Machine);
    }
}
