//! Access to a socket that this process creates.

use std::fs::Permissions;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use nix::unistd::{Group, User};
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, Uid, chownat, fstat, open};

/// Mode and owners of a socket's file. Those who may write to it may connect (unix(7)). Without any of them, only
/// the user who creates the socket may, and root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SocketAccess {
    mode: Option<u32>,
    user: Option<u32>,
    group: Option<u32>,
}

impl SocketAccess {
    /// Sets one of them, if the option `key=value` is one of `mode=0660`, `user=NAME` and `group=NAME`; owners may also
    /// be given by number. Returns whether it is.
    ///
    /// # Errors
    /// In a line: what the value should be, or that there is no such user or group.
    pub fn set(&mut self, key: &str, value: &str) -> Result<bool, String> {
        match key {
            "mode" => {
                let mode = u32::from_str_radix(value, 8).ok().filter(|mode| *mode <= 0o777);
                self.mode = Some(mode.ok_or_else(|| format!("mode={value}; write an octal mode, such as mode=0660"))?);
            }
            "user" => {
                let named = || User::from_name(value).ok().flatten().map(|user| user.uid.as_raw());
                let user = value.parse().ok().or_else(named);
                self.user = Some(user.ok_or_else(|| format!("there is no user '{value}'; write a name or a number"))?);
            }
            "group" => {
                let named = || Group::from_name(value).ok().flatten().map(|group| group.gid.as_raw());
                let group = value.parse().ok().or_else(named);
                self.group =
                    Some(group.ok_or_else(|| format!("there is no group '{value}'; write a name or a number"))?);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Returns whether nothing was set.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Applies them to the socket that this process has just bound to a path.
    pub(crate) fn apply(&self, path: &Path) -> io::Result<()> {
        if self.is_default() {
            return Ok(());
        }
        // Opened once and checked, because the owner of the folder may have put something else there.
        let file = open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        let stat = fstat(&file)?;
        let own = stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_nlink == 1;
        if !own || FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
            return Err(io::Error::other("another process has replaced the socket"));
        }
        let (user, group) = (self.user.map(Uid::from_raw), self.group.map(Gid::from_raw));
        if user.is_some() || group.is_some() {
            let opened = format!("/proc/self/fd/{}", file.as_raw_fd());
            chownat(CWD, &*opened, user, group, AtFlags::empty())
                .map_err(|errno| io::Error::new(errno.kind(), format!("its owner cannot be changed: {errno}")))?;
        }
        if let Some(mode) = self.mode {
            std::fs::set_permissions(format!("/proc/self/fd/{}", file.as_raw_fd()), Permissions::from_mode(mode))?;
        }
        Ok(())
    }
}

/// A socket to be created: `PATH[,mode=0660][,user=NAME][,group=NAME]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SocketPlace {
    /// Path of its file.
    pub path: PathBuf,
    /// Mode and owners of its file.
    pub access: SocketAccess,
}

impl FromStr for SocketPlace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (path, options) = text.split_once(',').unwrap_or((text, ""));
        let mut place = Self { path: path.into(), access: SocketAccess::default() };
        for option in options.split(',').filter(|option| !option.is_empty()) {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            if !place.access.set(key, value)? {
                return Err(format!("a socket has no option '{key}'; it has mode=, user=, group="));
            }
        }
        Ok(place)
    }
}
