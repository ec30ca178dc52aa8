//! The schema of the file, and the page of the documentation that is made from it.

use std::fmt::Write;

use schemars::{Schema, schema_for};
use serde_json::Value;

use super::File;

/// Returns the JSON Schema of a service's file.
pub fn schema() -> Schema {
    schema_for!(File)
}

const INTRODUCTION: &str = "# The configuration file

All keys of the file of `ringpass run`, made from the program's own types: `ringpass check --reference` prints this page, and
`ringpass check --schema` the same as JSON Schema, for editors. [The service](service.md) shows their use. A file with the keys of one
`[[switch]]` at its top, without a heading, describes a service with that switch.
";

/// Returns the reference page, in Markdown: a section for each table.
pub fn page() -> String {
    let schema = schema();
    let root = schema.as_value();
    let mut page = String::from(INTRODUCTION);
    section(&mut page, root, root, "");
    page
}

/// Writes the section of a table, and those of the tables in it.
fn section(page: &mut String, root: &Value, table: &Value, path: &str) {
    let none = serde_json::Map::new();
    let keys = table["properties"].as_object().unwrap_or(&none);
    let required: Vec<&str> = table["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let (tables, plain): (Vec<_>, Vec<_>) = keys.iter().partition(|(_, key)| inner_table(root, key).is_some());
    if !path.is_empty() {
        let _ = writeln!(page, "\n## {path}\n");
        let text = table["description"].as_str().unwrap_or_default().lines().next().unwrap_or_default();
        let _ = writeln!(page, "{text}\n");
    }
    if !plain.is_empty() {
        let _ = writeln!(page, "| key | value | meaning |\n|---|---|---|");
    }
    for (name, key) in plain {
        let text = key["description"].as_str().unwrap_or_default().replace('\n', " ");
        let needed = if required.contains(&name.as_str()) { ", required" } else { "" };
        let _ = writeln!(page, "| `{name}` | {}{needed} | {text} |", kind(root, key));
    }
    for (name, key) in tables {
        let Some((inner, is_list)) = inner_table(root, key) else { continue };
        let path = path.trim_matches(['[', ']', '`']);
        let full = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let heading = if is_list { format!("`[[{full}]]`") } else { format!("`[{full}]`") };
        section(page, root, inner, &heading);
    }
}

/// Follows a reference to another part of the schema.
fn resolve<'a>(root: &'a Value, part: &'a Value) -> &'a Value {
    let alternatives = part["anyOf"].as_array().into_iter().flatten();
    let part = alternatives.into_iter().find(|part| part["type"] != "null").unwrap_or(part);
    match part["$ref"].as_str() {
        Some(path) => root.pointer(path.trim_start_matches('#')).unwrap_or(&Value::Null),
        None => part,
    }
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

/// Returns the kind of a value in a word or two.
fn kind(root: &Value, key: &Value) -> String {
    let value = resolve(root, key);
    let name = match &value["type"] {
        Value::Array(names) => names.iter().find_map(|name| name.as_str().filter(|name| *name != "null")),
        name => name.as_str(),
    };
    match name {
        Some("array") => format!("list of {}s", kind(root, &value["items"])),
        Some("integer") => "number".into(),
        Some("boolean") => "true or false".into(),
        Some("string") => "text".into(),
        _ => "value".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_in_the_documentation_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
        let page = page();
        if std::env::var_os("RINGPASS_UPDATE_QUOTES").is_some() {
            std::fs::write(path, &page).expect("the page is written");
        }
        let there = std::fs::read_to_string(path).unwrap_or_default();
        assert!(there == page, "docs/configuration.md differs; RINGPASS_UPDATE_QUOTES=1 writes it anew");
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
