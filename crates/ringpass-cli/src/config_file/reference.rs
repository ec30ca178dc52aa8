//! The schema of the file, and what is made from it: the page of the documentation, and the manual page.

use std::fmt::Write;

use clap_mangen::roff::{Inline, Roff, bold, roman};
use schemars::{Schema, schema_for};
use serde_json::Value;

use super::File;
use crate::schema_keys::{self, Key, resolve};

/// Returns the JSON Schema of a service's file.
pub fn schema() -> Schema {
    schema_for!(File)
}

const INTRODUCTION: &str = "# The configuration file

All keys of the file of `ringpass run`, made from the program's own types: `ringpass check --reference` prints this page, and
`ringpass check --schema` the same as JSON Schema, for editors. [The service](service.md) shows their use. A file with the keys of one
`[[switch]]` at its top, without a heading, describes a service with that switch.
";

/// A table of the file, with its keys in the order of the program's type.
struct Table {
    /// Its heading in a file, such as `[[switch.port]]`.
    heading: String,
    text: String,
    keys: Vec<Key>,
}

/// Returns the reference page, in Markdown: a section for each table.
pub fn page() -> String {
    let mut page = String::from(INTRODUCTION);
    for Table { heading, text, keys } in tables() {
        let _ = writeln!(page, "\n## `{heading}`\n\n{text}\n");
        schema_keys::write(&mut page, &keys);
    }
    page
}

/// Returns the manual page `ringpass.toml(5)`, with `example` as a file to begin with.
pub fn manual_page(example: &str) -> Roff {
    let mut page = Roff::new();
    page.control("TH", ["ringpass.toml", "5", "", concat!("ringpass ", env!("CARGO_PKG_VERSION")), ""]);
    page.control("SH", ["NAME"]).text([roman("ringpass.toml - configuration file of a Ringpass service")]);
    page.control("SH", ["DESCRIPTION"]);
    page.text([roman(
        "What 'ringpass run' runs, in TOML: switches, pairs of ports, and what belongs to them. A file with the keys",
    )]);
    page.text([roman("of one [[switch]] at its top, without a heading, describes a service with that switch.")]);
    for Table { heading, text, keys } in tables() {
        page.control("SH", [&heading[..]]).text(words(&text));
        for Key { name, kind, required, text } in keys {
            let needed = if required { ", required" } else { "" };
            page.control("TP", []).text([bold(name), roman(format!(" ({kind}{needed})"))]).text(words(&text));
        }
    }
    page.control("SH", ["EXAMPLES"]).control("nf", []).text([roman(example.trim_end())]).control("fi", []);
    page.control("SH", ["SEE ALSO"]).text(
        ["run", "check", "apply"]
            .into_iter()
            .flat_map(|name| {
                let comma = if name == "apply" { "" } else { ", " };
                [bold(format!("ringpass-{name}")), roman(format!("(1){comma}"))]
            })
            .collect::<Vec<_>>(),
    );
    page
}

/// Returns a description in roman and bold letters; the latter where it has backquotes.
fn words(text: &str) -> Vec<Inline> {
    text.split('`').enumerate().map(|(at, part)| if at % 2 == 1 { bold(part) } else { roman(part) }).collect()
}

/// Returns the tables of the file, each before those in it.
fn tables() -> Vec<Table> {
    let schema = schema();
    let root = schema.as_value();
    let mut tables = Vec::new();
    add_tables(&mut tables, root, root, "");
    tables
}

/// Adds the tables in `table`, whose path is `path`, and those in them.
fn add_tables(tables: &mut Vec<Table>, root: &Value, table: &Value, path: &str) {
    for (name, key) in table["properties"].as_object().into_iter().flatten() {
        let Some((inner, is_list)) = inner_table(root, key) else { continue };
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let heading = if is_list { format!("[[{path}]]") } else { format!("[{path}]") };
        let text = inner["description"].as_str().unwrap_or_default().lines().next().unwrap_or_default().to_owned();
        tables.push(Table { heading, text, keys: keys(root, inner) });
        add_tables(tables, root, inner, &path);
    }
}

/// Returns the keys of a table that are no tables themselves.
fn keys(root: &Value, table: &Value) -> Vec<Key> {
    schema_keys::keys(root, table)
        .into_iter()
        .filter(|key| inner_table(root, &table["properties"][&key.name]).is_none())
        .collect()
}

/// Returns the table that a key holds, if it holds one, and whether it may hold several.
fn inner_table<'a>(root: &'a Value, key: &'a Value) -> Option<(&'a Value, bool)> {
    let value = resolve(root, key);
    let (value, is_list) = match value["items"].is_null() {
        true => (value, false),
        false => (resolve(root, &value["items"]), true),
    };
    value["properties"].is_object().then_some((value, is_list))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::docs_page;

    #[test]
    fn the_page_in_the_documentation_is_up_to_date() {
        docs_page::check("configuration.md", &page());
    }

    #[test]
    fn every_key_has_a_description() {
        fn check(place: &str, value: &Value) {
            for (name, key) in value["properties"].as_object().into_iter().flatten() {
                let text = key["description"].as_str().unwrap_or_default();
                assert!(text.ends_with('.'), "{place}.{name}: {text}");
            }
        }
        let schema = schema();
        let root = schema.as_value();
        check("", root);
        let tables = root["$defs"].as_object().expect("tables");
        assert!(tables.len() >= 6, "{tables:?}");
        tables.iter().for_each(|(name, table)| check(name, table));
    }
}
