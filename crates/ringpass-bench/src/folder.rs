//! Temporary folder of a benchmark.

use std::path::{Path, PathBuf};

use ringpass::Error;

/// A temporary folder that is removed when dropped.
pub struct TempDir(PathBuf);

impl TempDir {
    /// Creates a folder in the system's folder for temporary files.
    pub fn new(bench: &str) -> Result<Self, Error> {
        let path = std::env::temp_dir().join(format!("ringpass-{bench}-{}", std::process::id()));
        let made = std::fs::create_dir_all(&path);
        made.map_err(|source| Error::os(path.display().to_string(), source))?;
        Ok(Self(path))
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
