//! User, groups and capabilities.

use std::fs;

use nix::unistd::{Gid, Uid, geteuid, setgroups, setresgid, setresuid};
use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set,
    clear_ambient_capability_set, remove_capability_from_bounding_set, set_capabilities, set_capabilities_secure_bits,
    set_no_new_privs,
};

/// Who has no files: `nobody` and `nogroup`.
const NOBODY: u32 = 65534;

/// Becomes `nobody`, or stays the ordinary user that it is, without capabilities, for good.
pub fn drop_all() -> Result<String, String> {
    lock()?;
    let user = if geteuid().is_root() { become_nobody()? } else { format!("user {}, as before", geteuid()) };
    keep(CapabilitySet::empty())?;
    Ok(format!("{user}; no capabilities, and no way to new privileges"))
}

/// Keeps the user and, where it is there, the one capability that reaches other users' sockets.
pub fn keep_for_connecting() -> Result<(), String> {
    lock()?;
    keep(CapabilitySet::DAC_OVERRIDE)
}

/// Gives up all ways to new privileges.
fn lock() -> Result<(), String> {
    set_no_new_privs(true).map_err(|errno| format!("no_new_privs: {errno}"))?;
    let own = capabilities(None).map_err(|errno| format!("capabilities: {errno}"))?;
    // Without this capability these stay; but then no program that could use them may be executed either.
    if own.effective.contains(CapabilitySet::SETPCAP) {
        empty_bounding_set()?;
        lock_secure_bits()?;
    }
    clear_ambient_capability_set().map_err(|errno| format!("ambient capabilities: {errno}"))
}

/// Drops all capabilities but these.
fn keep(few: CapabilitySet) -> Result<(), String> {
    let permitted = capabilities(None).map_err(|errno| format!("capabilities: {errno}"))?.permitted & few;
    set_capabilities(None, CapabilitySets { effective: permitted, permitted, inheritable: CapabilitySet::empty() })
        .map_err(|errno| format!("dropping capabilities: {errno}"))
}

fn empty_bounding_set() -> Result<(), String> {
    // Also those that are newer than this program: the kernel knows where they end.
    for capability in (0..64).map(|bit| CapabilitySet::from_bits_retain(1 << bit)) {
        if capability_is_in_bounding_set(capability) == Ok(true) {
            remove_capability_from_bounding_set(capability).map_err(|errno| format!("bounding set: {errno}"))?;
        }
    }
    Ok(())
}

/// User id 0 means nothing any more.
fn lock_secure_bits() -> Result<(), String> {
    let bits = CapabilitiesSecureBits::NO_ROOT
        | CapabilitiesSecureBits::NO_ROOT_LOCKED
        | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE
        | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED
        | CapabilitiesSecureBits::KEEP_CAPS_LOCKED;
    set_capabilities_secure_bits(bits).map_err(|errno| format!("secure bits: {errno}"))
}

/// From root to nobody. Not to whoever called `sudo`, whose files and processes are worth more than nobody's: all that a
/// run needs of them is open.
fn become_nobody() -> Result<String, String> {
    if !exists(NOBODY, "/proc/self/uid_map") || !exists(NOBODY, "/proc/self/gid_map") {
        return Ok(format!("user 0 as before, because its namespace has no user {NOBODY}"));
    }
    let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    setgroups(&[]).map_err(|errno| format!("leaving supplementary groups: {errno}"))?;
    setresgid(gid, gid, gid).map_err(|errno| format!("changing to group {NOBODY}: {errno}"))?;
    setresuid(uid, uid, uid).map_err(|errno| format!("changing to user {NOBODY}: {errno}"))?;
    Ok(format!("user {NOBODY}, group {NOBODY} instead of root"))
}

/// Whether the user namespace has an id: first id inside, outside, and how many, a line each (user_namespaces(7)).
fn exists(id: u32, map: &str) -> bool {
    fs::read_to_string(map).is_ok_and(|map| maps(id, &map))
}

fn maps(id: u32, map: &str) -> bool {
    map.lines().any(|line| {
        let mut numbers = line.split_whitespace().map(|number| number.parse::<u64>().unwrap_or(0));
        let (first, _, count) = (numbers.next().unwrap_or(0), numbers.next(), numbers.next().unwrap_or(0));
        (first..first + count).contains(&id.into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_looked_up_in_the_namespace() {
        assert!(maps(65534, "         0          0 4294967295\n"));
        let rootless = "0 1000 1\n1 100000 65536\n";
        assert!(maps(0, rootless) && maps(65534, rootless) && !maps(65537, rootless));
        assert!(!maps(65534, "0 1000 1\n") && !maps(0, ""));
    }
}
