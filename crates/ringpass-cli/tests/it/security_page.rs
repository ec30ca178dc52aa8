//! The tables of `docs/security.md` name tests and fuzz targets that exist.

use std::fs;
use std::path::Path;

/// Returns the texts between backticks, in order.
fn code_spans(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn every_test_and_fuzz_target_in_the_tables_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("docs/security.md")).unwrap();
    let (mut tests, mut targets, mut missing) = (0, 0, Vec::new());
    for row in page.lines().filter(|line| line.starts_with("| ")) {
        let columns: Vec<&str> = row.trim_matches('|').split('|').collect();
        let [_, _, _, in_tests, in_fuzz] = columns[..] else { panic!("a row without five columns: {row}") };
        let mut file = "";
        for span in code_spans(in_tests) {
            let Some((path, name)) = span.split_once("::") else { continue };
            // `…::name` is another test of the file named before.
            if path != "…" {
                file = path;
            }
            tests += 1;
            let source = fs::read_to_string(root.join(file)).unwrap_or_default();
            if !source.contains(&format!("fn {name}(")) {
                missing.push(format!("{file}::{name}"));
            }
        }
        for target in code_spans(in_fuzz) {
            targets += 1;
            if !root.join("fuzz/fuzz_targets").join(target).with_extension("rs").exists() {
                missing.push(format!("fuzz target {target}"));
            }
        }
    }
    assert!(tests > 100 && targets > 20, "only {tests} tests and {targets} fuzz targets were found in the tables");
    assert!(missing.is_empty(), "docs/security.md names what does not exist: {missing:#?}");
}
