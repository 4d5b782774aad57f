use std::path::Path;

use xtask::kernels::needs::{Need, Table};
use xtask::kernels::{KERNELS, NEEDS, checked_in, is_of_source, sources_of};

/// Output of NVRTC 12.0.
const LOG: &str = "\
ptxas info    : 304 bytes gmem
ptxas info    : Compiling entry function 'small' for 'sm_90'
ptxas info    : Function properties for small
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 11 registers
ptxas info    : Compiling entry function 'large' for 'sm_90'
ptxas info    : Function properties for large
ptxas         .     40 bytes stack frame, 36 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 255 registers, 2048 bytes smem, 400 bytes cmem[0]

counted in 'large': 3 accesses of 16 bytes, 16 divisions
counted in 'small': 0 accesses of 16 bytes, 0 divisions
";

fn need(kernel: &str, registers: usize) -> Need {
    let (kernel, architecture) = (kernel.to_owned(), "sm_90".to_owned());
    Need { kernel, architecture, registers, ..Need::default() }
}

#[test]
fn log_of_the_assembler_is_read() {
    let large = Need {
        shared_bytes: 2048,
        stack_bytes: 40,
        spill_bytes: 56,
        wide_accesses: 3,
        divisions: 16,
        ..need("large", 255)
    };
    assert_eq!(Need::of_log(LOG, "sm_90"), [need("small", 11), large.clone()]);
    let table = Table { rows: Need::of_log(LOG, "sm_90"), ..Table::default() };
    assert_eq!(table.spills(), [&large]);
    assert!(table.report().contains("255 registers   2048 B shared   40 B stack   56 B spills"));
}

#[test]
fn table_is_read_as_it_is_written_and_growth_is_told() {
    let sources = [("file".to_owned(), "00ff".to_owned())].into();
    let known = Table { rows: vec![need("a", 10), need("b", 20)], sources };
    assert_eq!(Table::parse(&known.text()), Ok(known.clone()));
    assert!(Table::parse("a sm_80 10").is_err());
    assert_eq!(known.growth_over(&known), Vec::<String>::new());
    let fewer = Table { rows: vec![need("a", 9)], ..Table::default() };
    assert_eq!(fewer.growth_over(&known), Vec::<String>::new());
    let shared = Need { shared_bytes: 1, wide_accesses: 2, ..need("b", 20) };
    let divides = Table { rows: vec![Need { divisions: 1, ..need("a", 1) }], ..Table::default() };
    let lines = divides.growth_over(&known);
    assert_eq!(lines, ["a for sm_90: 1 integer divisions, 0 in needs.txt"]);
    let rows = vec![need("a", 11), shared, need("c", 1)];
    let more = Table { rows, ..Table::default() };
    let lines = more.growth_over(&known);
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines[0].contains("a for sm_90: 11 registers, 10 in"), "{lines:?}");
    assert!(lines[1].contains("1 bytes of shared memory"), "{lines:?}");
    assert!(lines[2].contains("c for sm_90: not in"), "{lines:?}");
}

#[test]
fn kernel_over_elements_side_by_side_is_to_access_16_bytes_at_once() {
    let wide = Need { wide_accesses: 1, ..need("cast_f32_bf16", 1) };
    let rows = vec![wide, need("fill_8", 1), need("formula_walk_f32", 1), need("reduce_f32", 1)];
    let table = Table { rows, ..Table::default() };
    assert_eq!(table.narrow(), [&need("fill_8", 1)]);
}

#[test]
fn checked_in_ptx_leaves_out_what_nothing_uses_and_knows_its_source() {
    let ptx = "\n.version 8.0  \n.global .u64 _ZN3_nv6target5sm_35E = 35;\n.entry a\n\n\n";
    let text = checked_in(ptx, "source");
    assert!(text.ends_with("\n\n.version 8.0\n.entry a\n"), "{text:?}");
    assert!(is_of_source(&text, "source") && !is_of_source(&text, "source "));
    assert!(!is_of_source("", ""));
}

#[test]
fn compiler_has_seen_every_kernel_as_it_is() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let table = Table::parse(&std::fs::read_to_string(root.join(NEEDS)).unwrap()).unwrap();
    let units = KERNELS[0].units(&root).unwrap();
    assert_eq!(table.sources, sources_of(&units), "see `cargo xtask kernels --write`");
    for set in KERNELS.iter().filter(|set| set.is_checked_in) {
        let (units, ptx) = (set.units(&root).unwrap(), set.ptx(&root).unwrap());
        assert!(units.iter().map(|unit| &unit.name).eq(ptx.keys()), "{}", set.archive);
        for unit in units {
            let ptx = &ptx[&unit.name];
            assert!(is_of_source(ptx, &unit.source), "{}: see `cargo xtask kernels`", unit.name);
        }
    }
}
