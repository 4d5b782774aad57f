//! The needs of kernels: registers, memory and wide accesses, as the device's assembler prints
//! them.

use std::collections::BTreeMap;
use std::fmt::Write;

/// The needs of one kernel on one architecture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// Name of the kernel.
    pub kernel: String,
    /// `sm_N`.
    pub architecture: String,
    /// Number of registers of each thread.
    pub registers: usize,
    /// Bytes of declared shared memory of each block.
    pub shared_bytes: usize,
    /// Bytes of memory of each thread for indexed arrays, without spills.
    pub stack_bytes: usize,
    /// Bytes that are written and read because they do not fit in registers.
    pub spill_bytes: usize,
    /// Number of instructions that access 16 bytes of global memory at once.
    pub wide_accesses: usize,
    /// Number of integer divisions in the code.
    pub divisions: usize,
}

/// Prefixes of the names of kernels over contiguous elements. A thread of such a kernel must access
/// 16 bytes at once to reach the rate of the memory.
const WIDE: [&str; 8] =
    ["cast_", "copy_", "fill_1", "fill_2", "fill_4", "fill_8", "formula_", "scale_and_check_"];

/// A part of the names of kernels that follow strides, whose elements are not contiguous.
const WALKS: &str = "_walk_";

impl Need {
    /// True if the kernel should access 16 bytes at once but does not.
    pub fn is_narrow(&self) -> bool {
        let of_elements = WIDE.iter().any(|start| self.kernel.starts_with(start));
        of_elements && !self.kernel.contains(WALKS) && self.wide_accesses == 0
    }

    /// Reads the needs of every kernel from a log of the assembler (`ptxas -v`) with counts of
    /// instructions.
    pub fn of_log(log: &str, architecture: &str) -> Vec<Need> {
        let mut needs: Vec<Need> = Vec::new();
        for line in log.lines() {
            if let Some((_, rest)) = line.split_once("Compiling entry function '") {
                let kernel = rest.split('\'').next().unwrap_or_default().to_owned();
                let architecture = architecture.to_owned();
                needs.push(Need { kernel, architecture, ..Need::default() });
            }
            let number = |label: &str| number_before(line, label);
            if let Some((_, rest)) = line.split_once("counted in '") {
                let kernel = rest.split('\'').next().unwrap_or_default();
                for need in needs.iter_mut().filter(|need| need.kernel == kernel) {
                    need.wide_accesses = number(" accesses of 16 bytes").unwrap_or(0);
                    need.divisions = number(" divisions").unwrap_or(0);
                }
                continue;
            }
            let Some(need) = needs.last_mut() else { continue };
            need.registers = number(" registers").unwrap_or(need.registers);
            need.shared_bytes = number(" bytes smem").unwrap_or(need.shared_bytes);
            need.stack_bytes = number(" bytes stack frame").unwrap_or(need.stack_bytes);
            need.spill_bytes += number(" bytes spill stores").unwrap_or(0);
            need.spill_bytes += number(" bytes spill loads").unwrap_or(0);
        }
        needs
    }
}

fn number_before(line: &str, label: &str) -> Option<usize> {
    let before = line.split_once(label)?.0;
    before.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// The checked-in table: one line for each kernel and architecture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// In the order of files and kernels.
    pub rows: Vec<Need>,
    /// The hashes of the sources, by the names of their files.
    pub sources: BTreeMap<String, String>,
}

/// The mark before a file's name and hash.
const SOURCE_MARK: &str = "source ";

impl Table {
    /// Parses the output of [`text`](Self::text).
    ///
    /// # Errors
    /// One line about a line that is no row.
    pub fn parse(text: &str) -> Result<Table, String> {
        let row = |line: &str| -> Option<Need> {
            let mut words = line.split_whitespace();
            let (kernel, architecture) = (words.next()?.to_owned(), words.next()?.to_owned());
            let mut number = || words.next()?.parse().ok();
            let (registers, shared_bytes, stack_bytes) = (number()?, number()?, number()?);
            let (wide_accesses, divisions, spill_bytes) = (number()?, number()?, 0);
            Some(Need {
                kernel,
                architecture,
                registers,
                shared_bytes,
                stack_bytes,
                spill_bytes,
                wide_accesses,
                divisions,
            })
        };
        let mut table = Table::default();
        let lines = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
        for line in lines {
            let source = line.strip_prefix(SOURCE_MARK).and_then(|line| line.split_once(' '));
            match source {
                Some((name, hash)) => {
                    table.sources.insert(name.to_owned(), hash.to_owned());
                }
                None => {
                    let row = row(line).ok_or_else(|| format!("no row of a table: {line}"))?;
                    table.rows.push(row);
                }
            }
        }
        Ok(table)
    }

    /// The text that is checked in.
    pub fn text(&self) -> String {
        let mut text = "# source, file, hash of what the compiler got\n".to_owned();
        for (name, hash) in &self.sources {
            let _ = writeln!(text, "{SOURCE_MARK}{name} {hash}");
        }
        text.push_str(
            "# kernel, architecture, registers, shared bytes, stack bytes, accesses of 16 bytes, \
             integer divisions\n",
        );
        let mut rows: Vec<&Need> = self.rows.iter().collect();
        rows.sort_by_key(|need| (&need.kernel, &need.architecture));
        for need in rows {
            let Need { kernel, architecture, registers, shared_bytes, stack_bytes, .. } = need;
            let Need { wide_accesses, divisions, .. } = need;
            let _ = writeln!(
                text,
                "{kernel} {architecture} {registers} {shared_bytes} {stack_bytes} {wide_accesses} \
                 {divisions}"
            );
        }
        text
    }

    /// A report of every row, with its spills.
    pub fn report(&self) -> String {
        let mut text = String::new();
        for need in &self.rows {
            let Need { kernel, architecture, registers, .. } = need;
            let (shared, stack) = (need.shared_bytes, need.stack_bytes);
            let spill = need.spill_bytes;
            let row = format!("{kernel:<32} {architecture} {registers:>4} registers");
            let _ =
                writeln!(text, "{row} {shared:>6} B shared {stack:>4} B stack {spill:>4} B spills");
        }
        text
    }

    /// Rows that spill.
    pub fn spills(&self) -> Vec<&Need> {
        self.rows.iter().filter(|need| need.spill_bytes > 0).collect()
    }

    /// Rows of kernels whose accesses are narrower than they should be.
    pub fn narrow(&self) -> Vec<&Need> {
        self.rows.iter().filter(|need| need.is_narrow()).collect()
    }

    /// A line for each row that needs more than its row in `known`, or that is not in `known`.
    pub fn growth_over(&self, known: &Table) -> Vec<String> {
        let of = |need: &Need| {
            let is_same = |other: &&Need| {
                other.kernel == need.kernel && other.architecture == need.architecture
            };
            known.rows.iter().find(is_same).cloned()
        };
        let mut lines = Vec::new();
        for need in &self.rows {
            let name = format!("{} for {}", need.kernel, need.architecture);
            let Some(before) = of(need) else {
                lines.push(format!("{name}: not in needs.txt; see --write"));
                continue;
            };
            for (what, now, then) in [
                ("registers", need.registers, before.registers),
                ("bytes of shared memory", need.shared_bytes, before.shared_bytes),
                ("bytes of stack", need.stack_bytes, before.stack_bytes),
                ("integer divisions", need.divisions, before.divisions),
            ] {
                if now > then {
                    lines.push(format!("{name}: {now} {what}, {then} in needs.txt"));
                }
            }
        }
        lines
    }
}
