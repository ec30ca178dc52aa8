//! A Debian with systemd in a container, in which packages are installed and services run as on a machine of their own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::guest::LAB;
use crate::host::{Program, run, wait_until};

/// A booted container with a network of its own and `/dev/net/tun`. It ends, and its files go, when this is dropped.
pub struct Container {
    nspawn: Program,
    /// Process ID of its systemd, as this machine sees it.
    leader: u32,
    folder: PathBuf,
}

impl Container {
    /// Unpacks and boots one in a folder, which must have room for 200 MiB.
    ///
    /// # Panics
    ///
    /// If it does not get up.
    pub fn boot(folder: &Path) -> Self {
        assert!(crate::is_made(), "this test needs what `make lab` makes; run it first");
        let folder = folder.join("container");
        fs::create_dir(&folder).expect("a folder");
        let path = folder.to_str().expect("a path in UTF-8").to_owned();
        run(&["tar", "--zstd", "--numeric-owner", "-C", &path, "-xpf", &format!("{LAB}/systemd.tar.zst")]);
        let mut command = Command::new("systemd-nspawn");
        command.args(["--quiet", "--boot", "--keep-unit", "--register=no", "--private-network", "--console=pipe"]);
        command.args(["--capability=CAP_NET_ADMIN", "--bind=/dev/net/tun", "--link-journal=no", "--directory", &path]);
        let nspawn = Program::start(&mut command).expect("this test needs systemd-nspawn");
        let children = format!("/proc/{0}/task/{0}/children", nspawn.id());
        let mut leader = None;
        wait_until("the container", || {
            let children = fs::read_to_string(&children).unwrap_or_default();
            leader = children.split_whitespace().next().and_then(|id| id.parse().ok());
            leader.is_some_and(|id: u32| {
                fs::read(format!("/proc/{id}/comm")).is_ok_and(|name| name.starts_with(b"systemd\n"))
            })
        });
        let container = Self { nspawn, leader: leader.expect("its first process"), folder };
        // "degraded" is as good: what a container cannot have is not what is tested.
        wait_until("systemd", || {
            let state = container.try_run("systemctl is-system-running").unwrap_or_else(|said| said);
            ["running", "degraded"].contains(&state.trim())
        });
        container
    }

    /// Runs a script in it; returns what it prints, or all that it has said if it fails.
    pub fn try_run(&self, script: &str) -> Result<String, String> {
        let leader = self.leader.to_string();
        let mut command = Command::new("nsenter");
        command.args(["--target", &leader, "--all", "--root", "--wd", "sh", "-c", script]);
        let environment = [("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"), ("LANG", "C.UTF-8")];
        let output = command.env_clear().envs(environment).output().expect("util-linux");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match output.status.success() {
            true => Ok(text(&output.stdout)),
            false => Err(text(&output.stdout) + &text(&output.stderr)),
        }
    }

    /// Runs a script in it and returns what it prints.
    ///
    /// # Panics
    ///
    /// If it fails.
    pub fn run(&self, script: &str) -> String {
        self.try_run(script).unwrap_or_else(|said| panic!("{script}: {said}"))
    }

    /// Returns where this machine sees a file of the container.
    pub fn path(&self, inside: &str) -> PathBuf {
        format!("/proc/{}/root{inside}", self.leader).into()
    }

    /// Returns the command by which programs of this machine enter the container's network, and nothing else of it.
    pub fn enter_network(&self) -> [String; 4] {
        ["nsenter", "--target", &self.leader.to_string(), "--net"].map(str::to_owned)
    }

    /// Starts a command of this machine in the container's network alone.
    pub fn spawn_in_network(&self, command: &[&str]) -> Program {
        let enter = self.enter_network();
        Program::spawn(&[&enter.each_ref().map(String::as_str), command].concat())
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // With its first process, all others end, and its mounts go.
        run(&["sh", "-c", &format!("kill -KILL {} || true", self.leader)]);
        wait_until("the container's end", || self.nspawn.ended().is_some());
        let removed = || fs::remove_dir_all(&self.folder).is_ok() || !self.folder.exists();
        wait_until("the container's files to go", removed);
    }
}
