//! Checks of the documentation against the tree: links, quoted code, the table of crates, error messages.

mod architecture;
mod links;
mod quotes;
mod troubleshooting;

use std::fs;
use std::path::{Path, PathBuf};

/// Root of the tree.
fn root() -> &'static Path {
    let parent = |path: &'static Path| path.parent().expect("this crate lies two folders below the root");
    parent(parent(Path::new(env!("CARGO_MANIFEST_DIR"))))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns all files below a folder of the tree whose names end in `end`. Folders of builds and of other tools are left out.
fn files(folder: &Path, end: &str) -> Vec<PathBuf> {
    const SKIPPED: [&str; 5] = ["target", "lab.new", "node_modules", "corpus", "artifacts"];
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name().into_string().unwrap_or_default());
        if name.starts_with('.') || SKIPPED.contains(&&*name) || path == root().join("lab") {
            continue;
        }
        if path.is_dir() {
            found.extend(files(&path, end));
        } else if name.ends_with(end) {
            found.push(path);
        }
    }
    found.sort();
    found
}
