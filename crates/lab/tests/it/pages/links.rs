//! Links between pages and to files of the tree lead somewhere, and quoted code exists.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::pages::{files, read, root};

/// A file of the tree, as pages of the book link to it: the book has no others than its own.
const TREE: &str = "https://github.com/ringpass/ringpass/blob/main/";

/// The targets of a page's links, and the anchors that others may link to.
#[derive(Default)]
struct Page {
    links: Vec<String>,
    /// Anchors of the headings.
    anchors: Vec<String>,
    /// Texts in code style.
    spans: Vec<String>,
}

impl Page {
    fn parse(text: &str) -> Self {
        let mut page = Self::default();
        let mut heading: Option<String> = None;
        for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(dest_url.into_string());
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => page.add_anchor(&heading.take().expect("it has begun")),
                Event::Text(text) | Event::Code(text) if heading.is_some() => {
                    heading.as_mut().expect("a heading").push_str(&text);
                }
                Event::Code(text) => page.spans.push(text.into_string()),
                _ => {}
            }
        }
        page
    }

    /// Adds the anchor of a heading, as mdBook and GitHub make it.
    fn add_anchor(&mut self, heading: &str) {
        let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        let anchor = kept.collect::<String>().to_lowercase().replace(' ', "-");
        match self.anchors.iter().filter(|other| **other == anchor).count() {
            0 => self.anchors.push(anchor),
            count => self.anchors.push(format!("{anchor}-{count}")),
        }
    }
}

/// Returns what is wrong with a link of the page at `path`.
fn fault(path: &Path, link: &str, pages: &HashMap<PathBuf, Page>) -> Option<&'static str> {
    let book = root().join("docs");
    let (file, anchor) = link.split_once('#').map_or((link, None), |(file, anchor)| (file, Some(anchor)));
    let target = match file.strip_prefix(TREE) {
        Some(file) => root().join(file),
        None if file.contains(':') => return None,
        None if file.is_empty() => path.to_owned(),
        None => path.parent().expect("a folder").join(file),
    };
    let Ok(target) = target.canonicalize() else { return Some("no such file") };
    if path.starts_with(&book) && !target.starts_with(&book) && !file.starts_with(TREE) {
        return Some("the book does not have this file; link to GitHub");
    }
    let anchor = anchor?;
    let known = pages.get(&target).is_some_and(|page| page.anchors.iter().any(|known| known == anchor));
    (!known).then_some("no such heading")
}

/// Returns whether a text in code style names a file or folder of the tree that does not exist.
fn is_missing_path(span: &str) -> bool {
    let span = span.split("::").next().unwrap_or_default();
    let is_path = ["crates/", "docs/", "scripts/", "fuzz/"].iter().any(|folder| span.starts_with(folder))
        && !span.contains(|c: char| "{}*… ".contains(c) || c.is_uppercase());
    is_path && !span.starts_with("fuzz/corpus") && !span.starts_with("fuzz/artifacts") && !root().join(span).exists()
}

#[test]
fn every_link_leads_somewhere() {
    let read_page = |path: PathBuf| (path.clone(), Page::parse(&read(path)));
    let pages: HashMap<_, _> = files(root(), ".md").into_iter().map(read_page).collect();
    assert!(pages.len() > 20, "only {} pages were found", pages.len());
    let mut wrong = Vec::new();
    for (path, page) in &pages {
        let name = path.strip_prefix(root()).expect("a page of the tree").display();
        for link in &page.links {
            if let Some(why) = fault(path, link, &pages) {
                wrong.push(format!("{name}: {link}: {why}"));
            }
        }
        wrong.extend(page.spans.iter().filter(|span| is_missing_path(span)).map(|span| format!("{name}: `{span}`")));
    }
    wrong.sort();
    assert!(wrong.is_empty(), "dead links: {wrong:#?}");
}

#[test]
fn every_page_of_the_book_is_in_its_summary() {
    let book = root().join("docs");
    let summary = Page::parse(&read(book.join("SUMMARY.md")));
    let name = |path: &PathBuf| path.strip_prefix(&book).expect("a page").to_str().expect("UTF-8").to_owned();
    // What is under way is a page for those who build.
    let is_missing =
        |name: &String| !["SUMMARY.md", "under-way.md"].contains(&&**name) && !summary.links.contains(name);
    let missing: Vec<_> = files(&book, ".md").iter().map(name).filter(is_missing).collect();
    assert!(missing.is_empty(), "docs/SUMMARY.md lacks {missing:?}");
}

/// Returns the first Rust block of a text, without comments and hidden lines.
fn first_example(text: &str) -> String {
    let (_, block) = text.split_once("```rust\n").or_else(|| text.split_once("```no_run\n")).expect("an example");
    let lines = block.lines().take_while(|line| !line.starts_with("```")).filter(|line| !line.starts_with("# "));
    lines.map(|line| line.split("//").next().expect("a text").trim_end()).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_example_of_the_readme_is_the_one_that_is_compiled() {
    let library = read(root().join("crates/ringpass/src/lib.rs"));
    let docs = library.lines().filter_map(|line| line.strip_prefix("//!"));
    let docs: String = docs.map(|line| format!("{}\n", line.strip_prefix(' ').unwrap_or(line))).collect();
    for readme in ["README.md", "crates/ringpass/README.md"] {
        assert_eq!(first_example(&read(root().join(readme))), first_example(&docs), "{readme}");
    }
}
