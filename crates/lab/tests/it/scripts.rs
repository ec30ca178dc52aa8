//! Tests of the scripts as an ordinary user runs them: without `/usr/sbin` in PATH, and on a machine that lacks
//! something.

use std::fs::{Permissions, set_permissions, write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts");

/// PATH of an ordinary user on Debian, without the folders for games.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Shell scripts that replace programs.
struct Instead(tempfile::TempDir);

impl Instead {
    fn of(programs: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for (name, script) in programs {
            let file = folder.path().join(name);
            write(&file, format!("#!/bin/sh\n{script}\n")).expect("a file");
            set_permissions(&file, Permissions::from_mode(0o755)).expect("the mode");
        }
        Self(folder)
    }

    /// Runs a script whose PATH has these programs first, then the folders `further`, then an ordinary user's
    /// PATH.
    fn run(&self, script: &str, further: &[&Path]) -> Output {
        let first = std::iter::once(self.0.path()).chain(further.iter().copied());
        let folders: Vec<_> = first.map(|folder| folder.to_str().expect("a path in UTF-8")).chain([PATH]).collect();
        let mut command = Command::new(format!("{SCRIPTS}/{script}"));
        command.env("PATH", folders.join(":")).output().unwrap_or_else(|error| panic!("{script}: {error}"))
    }
}

/// Returns the folder of the Rust toolchain that runs this test, without rustup's proxies.
fn rust() -> PathBuf {
    let sysroot = ringpass_lab::run(&["rustc", "--print", "sysroot"]);
    Path::new(sysroot.trim()).join("bin")
}

/// Returns the only line that a failed script printed to standard error.
fn complaint(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.lines().count() == 1, "{text}");
    text
}

/// On a machine that runs the tests `scripts/setup` has been run: nothing is missing, so nothing is installed.
#[test]
fn setup_finds_what_is_in_usr_sbin() {
    let refuse = "echo \"$0 $*: not needed\" >&2; exit 1";
    let output = Instead::of(&[("sudo", refuse), ("apt-get", refuse)]).run("setup", &[&rust()]);
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{text}");
    assert!(!text.contains("installing"), "{text}");
}

#[test]
fn what_is_missing_to_build_is_named_with_its_remedy() {
    let new = ("cargo", "echo 'cargo 1.88.0 (873a06493 2025-05-10)'");
    let output = Instead::of(&[new]).run("rust", &[]);
    assert!(output.status.success(), "{output:?}");
    // The version in Debian 12.
    let old = complaint(&Instead::of(&[("cargo", "echo 'cargo 1.65.0'")]).run("rust", &[]));
    assert!(old.contains("1.88") && old.contains("1.65.0") && old.contains("rustup"), "{old}");
    // A compiler prints only the name of a file that it does not find.
    let library = complaint(&Instead::of(&[new, ("cc", "echo Scrt1.o")]).run("rust", &[]));
    assert!(library.contains("libc6-dev"), "{library}");
}
