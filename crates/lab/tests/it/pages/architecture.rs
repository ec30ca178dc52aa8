//! The table of crates in `docs/architecture.md` is complete, and true about `unsafe` and about what uses what.

use std::path::Path;

use crate::pages::{files, read, root};

/// A row of the table.
struct Row {
    name: String,
    permission: String,
}

/// Rows of the table, in order.
fn table() -> Vec<Row> {
    let page = read(root().join("docs/architecture.md"));
    let (_, table) = page.split_once("| folder | crate | `unsafe` |").expect("the table");
    let lines = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let row = |line: &str| {
        let columns: Vec<&str> =
            line.trim_matches('|').split('|').map(|column| column.trim().trim_matches('`')).collect();
        let [_, name, permission, _] = columns[..] else { panic!("a row without four columns: {line}") };
        Row { name: name.into(), permission: permission.into() }
    };
    lines.map(row).collect()
}

/// Returns the name of the package that a manifest describes.
fn package(manifest: &str) -> &str {
    let name = manifest.lines().find_map(|line| line.strip_prefix("name = \"")).expect("a name");
    name.trim_end_matches('"')
}

/// Returns the crates of this workspace that a package uses outside of its tests.
fn dependencies(manifest: &str) -> Vec<&str> {
    let (_, rest) = manifest.split_once("\n[dependencies]\n").unwrap_or_default();
    let section = rest.split("\n[").next().unwrap_or_default();
    let names = section.lines().filter_map(|line| line.split(['.', ' ', '=']).next());
    names.filter(|name| name.starts_with("ringpass")).collect()
}

/// Returns what the roots of a package (its library, its program) say of `unsafe`: the weakest of them counts.
fn permission(folder: &Path) -> &'static str {
    let roots = ["src/lib.rs", "src/main.rs"].map(|file| folder.join(file)).into_iter().filter(|file| file.exists());
    let says = |text: &str, lint| text.lines().any(|line| line.starts_with("#![") && line.contains(lint));
    let permission = roots.map(|file| match &*read(file) {
        text if says(text, "forbid(unsafe_code") => 0,
        text if says(text, "deny(unsafe_code") => 1,
        _ => 2,
    });
    ["forbidden", "denied", "allowed"][permission.max().expect("a library or a program")]
}

#[test]
fn each_crate_is_in_the_table_and_permits_what_it_says() {
    let (table, mut wrong, mut found) = (table(), Vec::new(), Vec::new());
    for path in files(&root().join("crates"), "Cargo.toml") {
        let manifest = read(&path);
        let (name, permission) = (package(&manifest), permission(path.parent().expect("a folder")));
        found.push(name.to_owned());
        let Some(place) = table.iter().position(|row| row.name == name) else {
            wrong.push(format!("{name} is not in the table"));
            continue;
        };
        if table[place].permission != permission {
            wrong.push(format!("{name}: unsafe is {permission}"));
        }
        for used in dependencies(&manifest) {
            if !table[..place].iter().any(|row| row.name == used) {
                wrong.push(format!("{name} uses {used}, which is not above it"));
            }
        }
    }
    let gone = table.iter().filter(|row| !found.contains(&row.name));
    wrong.extend(gone.map(|row| format!("there is no crate {}", row.name)));
    assert!(wrong.is_empty(), "docs/architecture.md: {wrong:#?}");
}
