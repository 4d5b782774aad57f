//! The source files of a crate as modules, and the imports between these modules.

use std::collections::BTreeMap;

use super::tokens::{Shipped, Token, group_len, is_of_name, without_tests};
use super::{File, Tree};

/// A source file of a crate, without its tests.
#[derive(Clone, Debug)]
pub struct Module<'a> {
    /// The file of the module.
    pub file: &'a File,
    /// The names of the path from the crate's root; `None` for a program beside a library, whose
    /// paths begin at another root.
    pub name: Option<Vec<&'a str>>,
    /// The code of the file without tests.
    pub code: Shipped<'a>,
}

/// The modules of the crate in a folder, by the paths of their files. Modules that only tests use
/// are left out.
pub fn modules<'a>(tree: &'a Tree, folder: &str) -> Vec<Module<'a>> {
    let sources = format!("{folder}/src/");
    let has_library = tree.get(&format!("{sources}lib.rs")).is_some();
    let module = |file: &'a File| {
        let path = file.path.strip_prefix(&sources)?.strip_suffix(".rs")?;
        let name = match path {
            "lib" => Some(Vec::new()),
            "main" => (!has_library).then(Vec::new),
            _ if path.starts_with("bin/") => None,
            _ => Some(path.strip_suffix("/mod").unwrap_or(path).split('/').collect()),
        };
        Some(Module { file, name, code: without_tests(file.source()) })
    };
    let mut modules: Vec<Module<'a>> = tree.rust_files().filter_map(module).collect();
    let mut for_tests: Vec<Vec<&str>> = Vec::new();
    for module in &modules {
        let Some(name) = &module.name else { continue };
        let child = |last: &&'a str| name.iter().chain([last]).copied().collect();
        for_tests.extend(module.code.test_modules.iter().map(child));
    }
    let is_shipped = |module: &Module<'_>| {
        let name = module.name.as_deref().unwrap_or_default();
        !for_tests.iter().any(|start| name.starts_with(start))
    };
    modules.retain(is_shipped);
    modules
}

/// For each module, the indices of the other modules in its paths that begin with `crate`, `self`
/// or `super`. A folder and its `mod.rs` are one subject, so a child that is named without one of
/// these is no import, nor is `mod x;`. A path through a re-export counts as an import of the
/// module in the written path.
pub fn imports(modules: &[Module<'_>]) -> Vec<Vec<usize>> {
    let by_name: BTreeMap<&[&str], usize> = modules
        .iter()
        .enumerate()
        .filter_map(|(index, module)| Some((module.name.as_deref()?, index)))
        .collect();
    let imports_of = |(index, module): (usize, &Module<'_>)| {
        let Some(name) = &module.name else { return Vec::new() };
        let mut reader = PathReader { by_name: &by_name, here: name.clone(), found: Vec::new() };
        reader.read(&module.code.tokens);
        let mut found = reader.found;
        found.retain(|&other| other != index);
        found.sort_unstable();
        found.dedup();
        found
    };
    modules.iter().enumerate().map(imports_of).collect()
}

struct PathReader<'a, 'b> {
    by_name: &'b BTreeMap<&'b [&'a str], usize>,
    /// The module that is being read, which may be an inline module.
    here: Vec<&'a str>,
    found: Vec<usize>,
}

impl<'a> PathReader<'a, '_> {
    fn read(&mut self, tokens: &[Token<'a>]) {
        let text = |index: usize| tokens.get(index).map_or("", |token| token.text);
        // The brace depths of the open inline modules.
        let mut inline = Vec::new();
        let (mut at, mut depth) = (0, 0_usize);
        while at < tokens.len() {
            match (text(at), text(at + 1)) {
                ("{", _) => depth += 1,
                ("}", _) => {
                    depth = depth.saturating_sub(1);
                    if inline.last() == Some(&depth) {
                        inline.pop();
                        self.here.pop();
                    }
                }
                ("mod", name) if text(at + 2) == "{" => {
                    inline.push(depth);
                    self.here.push(name);
                    depth += 1;
                    at += 2;
                }
                ("pub", "(") => at += group_len(&tokens[at + 1..]),
                ("use", _) => at += self.read_use(&tokens[at + 1..], &[]),
                (_, "::") if at == 0 || !matches!(text(at - 1), "::" | ".") => {
                    let path = path_at(&tokens[at..]);
                    self.name(&path);
                    at += 2 * path.len() - 2;
                }
                _ => {}
            }
            at += 1;
        }
    }

    /// Reads a tree of imports that begins with the path `start`, and returns its number of tokens.
    fn read_use(&mut self, tokens: &[Token<'a>], start: &[&'a str]) -> usize {
        let text = |index: usize| tokens.get(index).map_or(";", |token| token.text);
        let mut path = start.to_vec();
        let mut at = 0;
        loop {
            match text(at) {
                ";" | "," | "}" => break,
                "{" => {
                    at += 1;
                    while !matches!(text(at), "}" | ";") {
                        at += self.read_use(&tokens[at..], &path);
                        at += usize::from(text(at) == ",");
                    }
                    at += usize::from(text(at) == "}");
                    return at;
                }
                "as" => at += 1,
                "::" | "*" => {}
                name => path.push(name),
            }
            at += 1;
        }
        self.name(&path);
        at
    }

    /// Records the module that a path leads to, if the module belongs to this crate.
    fn name(&mut self, path: &[&'a str]) {
        let mut place = self.here.clone();
        let mut rest = path;
        match rest.first() {
            Some(&"crate") => {
                place.clear();
                rest = &rest[1..];
            }
            Some(&"self" | &"super") => {
                while let Some((first @ (&"self" | &"super"), others)) = rest.split_first() {
                    if *first == "super" {
                        place.pop();
                    }
                    rest = others;
                }
            }
            _ => return,
        }
        for segment in rest {
            place.push(segment);
            if !self.by_name.contains_key(place.as_slice()) {
                place.pop();
                break;
            }
        }
        // Inline modules have no separate file.
        while !self.by_name.contains_key(place.as_slice()) && place.pop().is_some() {}
        self.found.extend(self.by_name.get(place.as_slice()));
    }
}

/// The names of the path at the start of the tokens: `a::b` of `a::b::<c>()`.
fn path_at<'a>(tokens: &[Token<'a>]) -> Vec<&'a str> {
    let mut path = vec![tokens[0].text];
    while let [separator, name, ..] = &tokens[2 * path.len() - 1..]
        && separator.text == "::"
        && name.text.starts_with(is_of_name)
    {
        path.push(name.text);
    }
    path
}
