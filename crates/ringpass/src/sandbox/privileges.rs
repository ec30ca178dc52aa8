//! Drop of user, groups and capabilities.

use std::fs;
use std::str::FromStr;

use nix::unistd::{self, Gid, Uid, geteuid, setgroups, setresgid, setresuid};
use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set,
    clear_ambient_capability_set, remove_capability_from_bounding_set, set_capabilities, set_capabilities_secure_bits,
    set_no_new_privs,
};

/// User that a process of root becomes in the sandbox. Processes of one user can signal each other, and share its limits; so
/// instances that are not to reach each other each need their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    uid: u32,
    gid: u32,
}

impl User {
    /// `nobody` and `nogroup`, which own no files.
    pub const NOBODY: Self = Self { uid: 65534, gid: 65534 };
}

/// The default is [`NOBODY`](Self::NOBODY).
impl Default for User {
    fn default() -> Self {
        Self::NOBODY
    }
}

/// Parses a name, whose group is that of the user database, or a number above 0, which is the group's as well.
impl FromStr for User {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = || unistd::User::from_name(text).ok().flatten();
        let user = match text.parse::<u32>() {
            Ok(id) => Some(Self { uid: id, gid: id }),
            Err(_) => named().map(|user| Self { uid: user.uid.as_raw(), gid: user.gid.as_raw() }),
        };
        match user {
            Some(user) if user.uid == 0 || user.gid == 0 => {
                Err("the sandbox has no use for root; name another user, or none for 'nobody'".into())
            }
            Some(user) if user.uid < u32::MAX => Ok(user),
            _ => Err(format!("there is no user '{text}'; write a name or a number")),
        }
    }
}

/// Drops all capabilities for good. Root becomes `user`; an ordinary user stays the same.
pub fn drop_all(user: User) -> Result<String, String> {
    lock_privileges()?;
    let user = match geteuid() {
        root if root.is_root() => become_user(user)?,
        own if user == User::NOBODY || user.uid == own.as_raw() => format!("user {own}, as before"),
        own => return Err(format!("user {own} cannot become user {}; start it as root, or without --user", user.uid)),
    };
    limit_capabilities(CapabilitySet::empty())?;
    Ok(user)
}

/// Keeps the user and, if the process has it, the one capability that gives access to other users' sockets
/// (CAP_DAC_OVERRIDE).
pub fn keep_for_connecting() -> Result<(), String> {
    lock_privileges()?;
    limit_capabilities(CapabilitySet::DAC_OVERRIDE)
}

/// Keeps the user and what it takes to open XDP sockets on memory of others and to put them into a map (CAP_NET_RAW, CAP_IPC_LOCK,
/// CAP_BPF).
pub fn keep_for_xdp() -> Result<String, String> {
    lock_privileges()?;
    limit_capabilities(CapabilitySet::NET_RAW | CapabilitySet::IPC_LOCK | CapabilitySet::BPF)?;
    Ok(format!("user {}, with CAP_NET_RAW, CAP_IPC_LOCK and CAP_BPF", geteuid()))
}

/// Gives up all ways to gain new privileges.
fn lock_privileges() -> Result<(), String> {
    set_no_new_privs(true).map_err(|errno| format!("no_new_privs: {errno}"))?;
    let own = capabilities(None).map_err(|errno| format!("capabilities: {errno}"))?;
    // Without CAP_SETPCAP the bounding set and secure bits stay. With `no_new_privs`, no program can use them
    // to gain privileges.
    if own.effective.contains(CapabilitySet::SETPCAP) {
        empty_bounding_set()?;
        lock_secure_bits()?;
    }
    clear_ambient_capability_set().map_err(|errno| format!("ambient capabilities: {errno}"))
}

/// Drops all capabilities except `few`.
fn limit_capabilities(few: CapabilitySet) -> Result<(), String> {
    let permitted = capabilities(None).map_err(|errno| format!("capabilities: {errno}"))?.permitted & few;
    set_capabilities(None, CapabilitySets { effective: permitted, permitted, inheritable: CapabilitySet::empty() })
        .map_err(|errno| format!("dropping capabilities: {errno}"))
}

fn empty_bounding_set() -> Result<(), String> {
    // Includes capabilities newer than this program: the kernel reports which exist.
    for capability in (0..64).map(|bit| CapabilitySet::from_bits_retain(1 << bit)) {
        if capability_is_in_bounding_set(capability) == Ok(true) {
            remove_capability_from_bounding_set(capability).map_err(|errno| format!("bounding set: {errno}"))?;
        }
    }
    Ok(())
}

/// Removes the special meaning of user ID 0.
fn lock_secure_bits() -> Result<(), String> {
    let bits = CapabilitiesSecureBits::NO_ROOT
        | CapabilitiesSecureBits::NO_ROOT_LOCKED
        | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE
        | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED
        | CapabilitiesSecureBits::KEEP_CAPS_LOCKED;
    set_capabilities_secure_bits(bits).map_err(|errno| format!("secure bits: {errno}"))
}

/// Changes from root to another user. Not to the one who called `sudo`, whose files and processes would then be
/// within reach: all that a run needs of them is open.
fn become_user(user: User) -> Result<String, String> {
    let User { uid, gid } = user;
    if !is_mapped(uid, "/proc/self/uid_map") || !is_mapped(gid, "/proc/self/gid_map") {
        return match user {
            User::NOBODY => Ok(format!("user 0 as before, because its namespace has no user {uid}")),
            _ => Err(format!("the user namespace has no user {uid} and group {gid}")),
        };
    }
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(gid));
    setgroups(&[]).map_err(|errno| format!("leaving supplementary groups: {errno}"))?;
    setresgid(group, group, group).map_err(|errno| format!("changing to group {gid}: {errno}"))?;
    setresuid(user, user, user).map_err(|errno| format!("changing to user {uid}: {errno}"))?;
    Ok(format!("user {uid}, group {gid} instead of root"))
}

/// Returns whether the user namespace maps an ID. Each line of the map has the first ID inside, the first ID
/// outside and the number of IDs (user_namespaces(7)).
fn is_mapped(id: u32, map: &str) -> bool {
    fs::read_to_string(map).is_ok_and(|map| map_contains(id, &map))
}

fn map_contains(id: u32, map: &str) -> bool {
    map.lines().any(|line| {
        let mut numbers = line.split_whitespace().map(|number| number.parse::<u64>().unwrap_or(0));
        let first = numbers.next().unwrap_or(0);
        let _ = numbers.next();
        let count = numbers.next().unwrap_or(0);
        (first..first + count).contains(&id.into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_names_or_numbers_and_not_root() {
        assert_eq!("61234".parse(), Ok(User { uid: 61234, gid: 61234 }));
        for wrong in ["0", "root", "-1", "4294967295", "no-such-user", ""] {
            assert!(wrong.parse::<User>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn ids_are_looked_up_in_the_namespace() {
        assert!(map_contains(65534, "         0          0 4294967295\n"));
        let rootless = "0 1000 1\n1 100000 65536\n";
        assert!(map_contains(0, rootless) && map_contains(65534, rootless) && !map_contains(65537, rootless));
        assert!(!map_contains(65534, "0 1000 1\n") && !map_contains(0, ""));
    }
}
