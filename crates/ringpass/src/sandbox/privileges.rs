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

/// Becomes an ordinary user without capabilities, for good.
pub fn drop_all() -> Result<String, String> {
    set_no_new_privs(true).map_err(|errno| format!("no_new_privs: {errno}"))?;
    let own = capabilities(None).map_err(|errno| format!("capabilities: {errno}"))?;
    // Without this capability these stay; but then no program that could use them may be executed either.
    if own.effective.contains(CapabilitySet::SETPCAP) {
        empty_bounding_set()?;
        lock_secure_bits()?;
    }
    let user = if geteuid().is_root() { change_user()? } else { format!("user {}, as before", geteuid()) };
    clear_ambient_capability_set().map_err(|errno| format!("ambient capabilities: {errno}"))?;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
        .map_err(|errno| format!("dropping capabilities: {errno}"))?;
    Ok(format!("{user}; no capabilities, and no way to new privileges"))
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

/// From root to whoever called `sudo`, else to nobody.
fn change_user() -> Result<String, String> {
    let id = |variable: &str| std::env::var(variable).ok().and_then(|text| text.parse().ok()).filter(|&id| id > 0);
    let (user, group) = id("SUDO_UID").zip(id("SUDO_GID")).unwrap_or((NOBODY, NOBODY));
    if !exists(user, "/proc/self/uid_map") || !exists(group, "/proc/self/gid_map") {
        return Ok(format!("user 0 as before, because its namespace has no user {user}"));
    }
    let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(group));
    setgroups(&[]).map_err(|errno| format!("leaving supplementary groups: {errno}"))?;
    setresgid(gid, gid, gid).map_err(|errno| format!("changing to group {group}: {errno}"))?;
    setresuid(uid, uid, uid).map_err(|errno| format!("changing to user {user}: {errno}"))?;
    Ok(format!("user {user}, group {group} instead of root"))
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
