//! Stand-ins for compiled kernels on the pretend driver: text that names the kernels of a source.

use std::fmt::Write;

/// The first line of every image of a source.
fn of_source(source: &str) -> String {
    // FNV-1a of 64 bits, by its definition (Fowler, Noll, Vo).
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    format!("// source {:016x}\n", source.bytes().fold(0xcbf2_9ce4_8422_2325, step))
}

/// An image, for the pretend driver alone, that names a file of kernels. The driver runs the
/// kernels that were compiled for the processor, which must come from exactly this source.
pub fn stand_in(name: &str, source: &str) -> String {
    format!("{}// stands for {name}\n.version 8.0\n.target sm_80\n", of_source(source))
}

/// True if an image was made from a source.
pub(super) fn is_of_source(image: &str, source: &str) -> bool {
    image.starts_with(&of_source(source))
}

/// The text that the driver reads in place of compiled kernels: the names of the kernels and the
/// largest number of threads of a block, taken from the preprocessed source. The driver asks the
/// kernels that were compiled for the processor for their parameters.
pub(super) fn entries_of(source: &str, preprocessed: &str) -> String {
    let mut text = of_source(source) + "// parameters of the source\n.version 8.0\n.target sm_80\n";
    for kernel in preprocessed.split("__global__").skip(1) {
        let kernel = kernel.trim_start().trim_start_matches("void").trim_start();
        let bounded = kernel.strip_prefix("__launch_bounds__(").and_then(|at| at.split_once(')'));
        let (bounds, kernel) =
            bounded.map_or((None, kernel), |(bounds, rest)| (Some(bounds), rest));
        let name = kernel.split('(').next().unwrap_or_default().trim();
        let _ = writeln!(text, ".entry {name}()");
        if let Some(threads) = bounds.and_then(|bounds| bounds.split(',').next()) {
            let _ = writeln!(text, ".maxntid {}, 1, 1", threads.trim());
        }
        text += "{}\n";
    }
    text
}

/// The names of the kernels of an image.
pub(super) fn names_in(image: &str) -> impl Iterator<Item = &str> {
    let name = |entry: &'_ str| entry.trim_start().find([' ', '\n', '\t', '(']);
    image.split(".entry").skip(1).map(move |entry| {
        let entry = entry.trim_start();
        &entry[..name(entry).unwrap_or(entry.len())]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_of_a_source_are_found_with_their_threads() {
        let preprocessed = "\
inline void helper(int x) {}
extern \"C\" __global__ void __launch_bounds__(256, 1)
  add_f32(float* y) {}
extern \"C\" __global__ void tell(int a) { helper(a); }";
        let entries = entries_of("source", preprocessed);
        assert!(is_of_source(&entries, "source") && !is_of_source(&entries, "another"));
        assert!(is_of_source(&stand_in("tell", "source"), "source"));
        assert_eq!(names_in(&entries).collect::<Vec<_>>(), ["add_f32", "tell"]);
        assert_eq!(entries.matches(".maxntid 256, 1, 1").count(), 1, "{entries}");
        assert_eq!(names_in(".visible .entry a(\n.param .u64 b)\n.entry c\n").count(), 2);
    }
}
