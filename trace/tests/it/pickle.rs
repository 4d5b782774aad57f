//! The pickle machine reads plain data and refuses everything else, at an offset.

use lowtide_trace::pickle::{Document, Kind, MEMORY_PER_BYTE, PickleProblem, Value};
use lowtide_trace::{TraceError, TraceProblem};
use proptest::prelude::*;

/// The instructions with protocol 2 in front and the end behind.
fn pickle(instructions: &[u8]) -> Vec<u8> {
    [b"\x80\x02", instructions, b"."].concat()
}

/// The root in Python's notation.
fn show(bytes: &[u8]) -> Result<String, TraceError> {
    let document = Document::read(bytes)?;
    Ok(format(&document, document.root.kind))
}

fn format(document: &Document<'_>, kind: Kind) -> String {
    let items = |index| -> Vec<String> {
        document.items(index).iter().map(|item| format(document, item.kind)).collect()
    };
    match kind {
        Kind::None => "None".to_owned(),
        Kind::Bool(flag) => flag.to_string(),
        Kind::Int(number) => number.to_string(),
        Kind::Float(number) => format!("{number:?}"),
        Kind::Text(index) => format!("{:?}", document.text(index)),
        Kind::List(index) => format!("[{}]", items(index).join(",")),
        Kind::Tuple(index) => format!("({})", items(index).join(",")),
        Kind::Dict(index) => {
            let pairs: Vec<_> = items(index).chunks(2).map(|pair| pair.join(":")).collect();
            format!("{{{}}}", pairs.join(","))
        }
    }
}

fn problem(error: &TraceError) -> PickleProblem {
    match error.problem {
        TraceProblem::Pickle(problem) => problem,
        ref other => panic!("{other:?}"),
    }
}

#[track_caller]
fn check_refused(bytes: &[u8], offset: u64, expected: PickleProblem) {
    let error = Document::read(bytes).expect_err("no plain data");
    assert_eq!((error.offset, problem(&error)), (offset, expected));
    let line = error.to_string();
    assert!(line.starts_with(&format!("byte {offset}: ")) && !line.contains('\n'), "{line}");
}

#[test]
fn every_allowed_instruction_says_what_it_says_in_python() {
    let cases: &[(&[u8], &str)] = &[
        (b"N", "None"),
        (b"\x88", "true"),
        (b"\x89", "false"),
        (b"J\xfe\xff\xff\xff", "-2"),
        (b"K\xff", "255"),
        (b"M\x01\x02", "513"),
        (b"\x8a\x00", "0"),
        (b"\x8a\x01\xff", "-1"),
        (b"\x8a\x02\xff\x00", "255"),
        (b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f", "9223372036854775807"),
        (b"\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80", "-9223372036854775808"),
        (b"G\x3f\xf8\x00\x00\x00\x00\x00\x00", "1.5"),
        (b"\x8c\x02hi", "\"hi\""),
        (b"X\x03\x00\x00\x00\xe2\x82\xac", "\"€\""),
        (b"}", "{}"),
        (b"]", "[]"),
        (b")", "()"),
        (b"K\x01\x85", "(1)"),
        (b"K\x01K\x02\x86", "(1,2)"),
        (b"K\x01K\x02K\x03\x87", "(1,2,3)"),
        (b"(K\x01K\x02K\x03K\x04t", "(1,2,3,4)"),
        (b"(K\x01K\x02l", "[1,2]"),
        (b"(K\x01K\x02d", "{1:2}"),
        (b"]K\x01a", "[1]"),
        (b"](K\x01K\x02e(K\x03e(e", "[1,2,3]"),
        (b"}K\x01Ns", "{1:None}"),
        (b"}(K\x01K\x02K\x03K\x04u", "{1:2,3:4}"),
        (b"(]q\x03h\x03h\x03t", "([],[],[])"),
        (b"(Nr\x04\x00\x00\x00j\x04\x00\x00\x00t", "(None,None)"),
        (b"(K\x07\x94K\x08\x94h\x00h\x01t", "(7,8,7,8)"),
        (b"\x95\x02\x00\x00\x00\x00\x00\x00\x00N", "None"),
    ];
    for (instructions, expected) in cases {
        assert_eq!(show(&pickle(instructions)).unwrap(), *expected, "{instructions:?}");
    }
    for version in 2..=5 {
        assert_eq!(show(&[0x80, version, b'N', b'.']).unwrap(), "None");
    }
}

#[test]
fn every_other_instruction_is_refused_where_it_stands() {
    let allowed = b"\x80.\x95(N\x88\x89JKM\x8aG\x8cX}])\x85\x86\x87tldaesuqr\x94hj";
    for opcode in (0..=255).filter(|opcode| !allowed.contains(opcode)) {
        check_refused(&pickle(&[b'N', opcode, 0, 0]), 3, PickleProblem::Opcode(opcode));
    }
}

#[test]
fn pickles_of_other_protocols_are_refused() {
    for version in [0, 1, 6, 255] {
        check_refused(&[0x80, version, b'N', b'.'], 0, PickleProblem::Protocol);
    }
    check_refused(b"N.", 0, PickleProblem::Protocol);
    check_refused(b"\x80\x02\x80\x02N.", 2, PickleProblem::Protocol);
    check_refused(b"", 0, PickleProblem::Truncated);
}

#[test]
fn lengths_beyond_the_end_are_refused_without_being_believed() {
    let huge: &[&[u8]] = &[
        b"\x8c\xff",
        b"X\xff\xff\xff\xff",
        b"\x8a\x08\x00",
        b"\x95\xff\xff\xff\xff\xff\xff\xff\xff",
        b"G\x00",
        b"J\x00",
    ];
    for instructions in huge {
        check_refused(&pickle(instructions), 2, PickleProblem::Truncated);
    }
    check_refused(&pickle(b"\x8a\x09"), 2, PickleProblem::Number(9));
    check_refused(&pickle(b"Nr\xff\xff\xff\xff"), 3, PickleProblem::Memo(0xffff_ffff));
    check_refused(&pickle(b"\x8c\x01\xff"), 2, PickleProblem::Text);
}

#[test]
fn stack_and_memo_are_never_read_where_nothing_is() {
    let cases: &[(&[u8], u64)] = &[
        (b"a", 2),
        (b"Na", 3),
        (b"Ns", 3),
        (b"(", 3),
        (b"t", 2),
        (b"e", 2),
        (b"](N(\x85", 6),
        (b"](a", 4),
        (b"(e", 3),
        (b"(Nu", 4),
        (b"}(Nu", 5),
        (b"(Nd", 4),
        (b"\x94", 2),
        (b"N(\x94", 4),
        (b"NN", 4),
        (b"", 2),
    ];
    for &(instructions, offset) in cases {
        let error = Document::read(&pickle(instructions)).expect_err("too little");
        let problem = problem(&error);
        assert!(
            matches!(problem, PickleProblem::Stack | PickleProblem::Kind { .. }),
            "{instructions:?}: {problem:?}"
        );
        assert_eq!(error.offset, offset, "{instructions:?}");
    }
    check_refused(&pickle(b"h\x00"), 2, PickleProblem::Memo(0));
    check_refused(&pickle(b"Nq\x02h\x01"), 5, PickleProblem::Memo(1));
    check_refused(&pickle(b"N.N"), 3, PickleProblem::Trailing);
    let kind = PickleProblem::Kind { expected: "a key", found: "a list" };
    check_refused(&pickle(b"}]Ns"), 5, kind);
    let kind = PickleProblem::Kind { expected: "a list", found: "a tuple" };
    check_refused(&pickle(b")Na"), 4, kind);
}

#[test]
fn cycles_are_refused() {
    let cases: &[(&[u8], u64)] = &[
        // a = []; a.append(a)
        (b"]\x94h\x00a", 6),
        // a = []; a.append((a,))
        (b"]\x94h\x00\x85a", 7),
        // a = {}; a[1] = {2: a}
        (b"}\x94K\x01}K\x02h\x00ss", 12),
        // a = []; b = [a]; a.append(b)
        (b"]\x94]\x94h\x00ah\x00h\x01a", 13),
    ];
    for &(instructions, offset) in cases {
        check_refused(&pickle(instructions), offset, PickleProblem::Sealed);
    }
}

#[test]
fn containers_nest_only_so_deep() {
    let nested = |depth: usize| pickle(&[vec![b']'; depth], vec![b'a'; depth - 1]].concat());
    assert!(Document::read(&nested(64)).is_ok());
    let error = Document::read(&nested(65)).expect_err("too deep");
    assert_eq!(problem(&error), PickleProblem::Depth);
    let error = Document::read(&nested(1 << 14)).expect_err("too deep");
    assert!(matches!(problem(&error), PickleProblem::Depth | PickleProblem::Memory { .. }));
}

#[test]
fn memory_is_bounded_by_the_size_of_the_pickle() {
    const COUNT: usize = 1 << 16;
    // A value takes fewer bytes than a byte of pickle may ask for; a container takes more.
    const { assert!(size_of::<Value>() < MEMORY_PER_BYTE) };
    let values = pickle(&[vec![b'('], vec![b'N'; COUNT], vec![b'l']].concat());
    assert!(Document::read(&values).is_ok());
    for opcode in b"])}" {
        let containers = pickle(&[vec![b'('], vec![*opcode; COUNT], vec![b'l']].concat());
        let error = Document::read(&containers).expect_err("too much");
        assert!(matches!(problem(&error), PickleProblem::Memory { .. }), "{error}");
        assert!(error.offset < COUNT as u64);
    }
    // Memo numbers that grow as fast as possible.
    let memo: Vec<u8> = (0..COUNT as u32)
        .flat_map(|n| [b"Nr".as_slice(), &(6 * n).to_le_bytes()].concat())
        .collect();
    let error = Document::read(&pickle(&memo)).expect_err("a stack of values");
    assert!(matches!(problem(&error), PickleProblem::Memory { .. } | PickleProblem::Stack));
}

proptest! {
    #[test]
    fn no_bytes_make_the_machine_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Document::read(&bytes);
        let _ = Document::read(&pickle(&bytes));
    }

    #[test]
    fn no_instructions_make_the_machine_panic(
        picks in prop::collection::vec(prop::sample::select(
            b"(N\x88\x89K\x8a\x8c}])\x85\x86\x87tldaesuq\x94h\x00\x01\x02".to_vec(),
        ), 0..200),
    ) {
        let _ = Document::read(&pickle(&picks));
    }
}
