//! The messages in the tables of `docs/troubleshooting.md` are those of the program.

use crate::pages::{files, read, root};

#[test]
fn every_message_in_the_tables_exists() {
    let mut sources = String::new();
    for path in files(&root().join("crates"), ".rs") {
        // A text that is continued on the next line becomes one.
        let text = read(path);
        let mut lines = text.split("\\\n");
        sources.push_str(lines.next().unwrap_or_default());
        lines.for_each(|line| sources.push_str(line.trim_start()));
    }
    let page = read(root().join("docs/troubleshooting.md"));
    let messages: Vec<_> =
        page.lines().filter_map(|line| Some(line.strip_prefix("| `")?.split_once("` |")?.0)).collect();
    assert!(messages.len() > 60, "only {} messages were found", messages.len());
    // Between the parts are names and numbers.
    let missing: Vec<_> =
        messages.iter().filter(|message| message.split('…').any(|part| !sources.contains(part.trim()))).collect();
    assert!(missing.is_empty(), "no source has these messages: {missing:#?}");
}
