//! A folder of a bench's own.

use std::path::{Path, PathBuf};

use ringpass_port::Error;

/// A folder that is removed when dropped.
pub struct Folder(PathBuf);

impl Folder {
    /// A new one among the temporary files.
    pub fn new(bench: &str) -> Result<Self, Error> {
        let path = std::env::temp_dir().join(format!("ringpass-{bench}-{}", std::process::id()));
        let made = std::fs::create_dir_all(&path);
        made.map_err(|source| Error::Os { what: path.display().to_string(), source })?;
        Ok(Self(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
