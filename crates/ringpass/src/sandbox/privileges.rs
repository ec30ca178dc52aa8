//! Drop of user, groups and capabilities.

use std::fs;

use nix::unistd::{Gid, Uid, geteuid, setgroups, setresgid, setresuid};
use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set,
    clear_ambient_capability_set, remove_capability_from_bounding_set, set_capabilities, set_capabilities_secure_bits,
    set_no_new_privs,
};

/// ID of `nobody` and `nogroup`, which own no files.
const NOBODY: u32 = 65534;

/// Drops all capabilities for good. Root becomes `nobody`; an ordinary user stays the same.
pub fn drop_all() -> Result<String, String> {
    lock_privileges()?;
    let user = if geteuid().is_root() { become_nobody()? } else { format!("user {}, as before", geteuid()) };
    limit_capabilities(CapabilitySet::empty())?;
    Ok(format!("{user}; no capabilities, and no way to new privileges"))
}

/// Keeps the user and, if the process has it, the one capability that gives access to other users' sockets
/// (CAP_DAC_OVERRIDE).
pub fn keep_for_connecting() -> Result<(), String> {
    lock_privileges()?;
    limit_capabilities(CapabilitySet::DAC_OVERRIDE)
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

/// Changes from root to nobody. Not to the user who called `sudo`, whose files and processes would then be
/// within reach: all that a run needs of them is open.
fn become_nobody() -> Result<String, String> {
    if !is_mapped(NOBODY, "/proc/self/uid_map") || !is_mapped(NOBODY, "/proc/self/gid_map") {
        return Ok(format!("user 0 as before, because its namespace has no user {NOBODY}"));
    }
    let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    setgroups(&[]).map_err(|errno| format!("leaving supplementary groups: {errno}"))?;
    setresgid(gid, gid, gid).map_err(|errno| format!("changing to group {NOBODY}: {errno}"))?;
    setresuid(uid, uid, uid).map_err(|errno| format!("changing to user {NOBODY}: {errno}"))?;
    Ok(format!("user {NOBODY}, group {NOBODY} instead of root"))
}

/// Returns whether the user namespace maps an ID. Each line of the map has the first ID inside, the first ID
/// outside and the number of IDs (user_namespaces(7)).
fn is_mapped(id: u32, map: &str) -> bool {
    fs::read_to_string(map).is_ok_and(|map| map_contains(id, &map))
}

fn map_contains(id: u32, map: &str) -> bool {
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
        assert!(map_contains(65534, "         0          0 4294967295\n"));
        let rootless = "0 1000 1\n1 100000 65536\n";
        assert!(map_contains(0, rootless) && map_contains(65534, rootless) && !map_contains(65537, rootless));
        assert!(!map_contains(65534, "0 1000 1\n") && !map_contains(0, ""));
    }
}
