//! Keys of a table or object in a JSON Schema, and a page's table of them.

use std::fmt::Write;

use serde_json::Value;

/// A key.
pub struct Key {
    /// Its name.
    pub name: String,
    /// The kind of its value in a word or two.
    pub kind: String,
    /// Whether it has to be there.
    pub required: bool,
    /// Its description.
    pub text: String,
}

/// Returns the keys of a table or object, in the order of the program's type.
pub fn keys(root: &Value, table: &Value) -> Vec<Key> {
    let required: Vec<&str> = table["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let key = |(name, key): (&String, &Value)| Key {
        name: name.clone(),
        kind: kind(root, key),
        required: required.contains(&name.as_str()),
        text: key["description"].as_str().unwrap_or_default().replace('\n', " "),
    };
    table["properties"].as_object().into_iter().flatten().map(key).collect()
}

/// Adds a table of keys to a page in Markdown.
pub fn write(page: &mut String, keys: &[Key]) {
    if !keys.is_empty() {
        let _ = writeln!(page, "| key | value | meaning |\n|---|---|---|");
    }
    for Key { name, kind, required, text } in keys {
        let needed = if *required { ", required" } else { "" };
        let _ = writeln!(page, "| `{name}` | {kind}{needed} | {text} |");
    }
}

/// Follows a reference to another part of the schema.
pub fn resolve<'a>(root: &'a Value, part: &'a Value) -> &'a Value {
    let alternatives = part["anyOf"].as_array().into_iter().flatten();
    let part = alternatives.into_iter().find(|part| part["type"] != "null").unwrap_or(part);
    match part["$ref"].as_str() {
        Some(path) => root.pointer(path.trim_start_matches('#')).unwrap_or(&Value::Null),
        None => part,
    }
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
        Some("object") => "object".into(),
        Some("integer") => "number".into(),
        Some("boolean") => "true or false".into(),
        Some("string") => "text".into(),
        Some("number") => "number".into(),
        // One of several words.
        _ if value["oneOf"][0]["const"].is_string() => {
            let words = value["oneOf"].as_array().into_iter().flatten().filter_map(|word| word["const"].as_str());
            words.map(|word| format!("`{word}`")).collect::<Vec<_>>().join(" or ")
        }
        _ => "value".into(),
    }
}
