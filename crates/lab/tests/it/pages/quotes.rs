//! Code that the pages quote: it stands in them, so that they are read anywhere, and is that of the tree.
//!
//! A block of code behind a comment `<!-- quote: FILE -->` or `<!-- quote: FILE:ANCHOR -->` is the file's, or what lies
//! between its lines `// ANCHOR: NAME` and `// ANCHOR_END: NAME`.

use super::{files, read, root};

/// Set it to write the quotes anew instead of checking them.
const UPDATE: &str = "RINGPASS_UPDATE_QUOTES";

/// Returns the code that a quote names, as little indented as it can be.
fn quoted(quote: &str) -> String {
    let (file, anchor) = quote.split_once(':').unwrap_or((quote, ""));
    let text = read(root().join(file));
    let is_mark = |line: &str| line.trim_start().starts_with("// ANCHOR");
    let mark = |line: &str, kind: &str| line.trim() == format!("// {kind}: {anchor}");
    let mut lines: Vec<&str> = text.lines().collect();
    if !anchor.is_empty() {
        let at =
            |kind| lines.iter().position(|line| mark(line, kind)).unwrap_or_else(|| panic!("no {kind} of {quote}"));
        lines = lines[at("ANCHOR") + 1..at("ANCHOR_END")].to_vec();
    }
    lines.retain(|line| !is_mark(line));
    let indents = lines.iter().filter(|line| !line.trim().is_empty()).map(|line| line.len() - line.trim_start().len());
    let indent = indents.min().unwrap_or(0);
    lines.iter().map(|line| format!("{}\n", line.get(indent..).unwrap_or_default())).collect()
}

/// Returns a page with its quotes as the tree has them, and how many there are.
fn with_quotes(page: &str) -> (String, usize) {
    let (mut written, mut count, mut lines) = (String::new(), 0, page.lines());
    while let Some(line) = lines.next() {
        written += &format!("{line}\n");
        let quote = line.strip_prefix("<!-- quote: ").and_then(|rest| rest.strip_suffix(" -->"));
        let Some(quote) = quote else { continue };
        let fence = lines.next().filter(|fence| fence.starts_with("```"));
        written += &format!("{}\n{}```\n", fence.unwrap_or_else(|| panic!("no block behind {line}")), quoted(quote));
        assert!(lines.any(|line| line == "```"), "the block behind {line} does not end");
        count += 1;
    }
    (written, count)
}

#[test]
fn pages_quote_the_code_as_it_is() {
    let mut total = 0;
    for page in files(&root().join("docs"), ".md") {
        let text = read(&page);
        assert!(!text.contains("{{#"), "{}: only mdBook would see this code; quote it", page.display());
        let (right, count) = with_quotes(&text);
        total += count;
        if std::env::var_os(UPDATE).is_some() {
            std::fs::write(&page, right).expect("a page");
        } else if right != text {
            let differs = text.lines().zip(right.lines()).position(|(is, should)| is != should).unwrap_or(0);
            panic!(
                "{}:{}: the code has changed; to quote it anew: {UPDATE}=1 scripts/tools cargo nextest run --workspace \
                 -E 'test(/^pages::quotes::/)'",
                page.display(),
                differs + 1
            );
        }
    }
    assert!(total > 10, "only {total} quotes were found");
}
