//! Access to the file system, restricted by Landlock: nothing can be opened, created, changed or removed any
//! more.

use landlock::{
    ABI, Access, AccessFs, AccessNet, LandlockStatus, RestrictionStatus, Ruleset, RulesetAttr, RulesetError,
    RulesetStatus, Scope,
};

/// Denies everything that the kernel's Landlock can deny: files, TCP, and signals and abstract sockets of other
/// processes. Open files stay usable.
pub fn deny_all() -> Result<String, String> {
    let deny = || -> Result<RestrictionStatus, RulesetError> {
        let newest = ABI::V7;
        let all = Ruleset::default()
            .handle_access(AccessFs::from_all(newest))?
            .handle_access(AccessNet::from_all(newest))?
            .scope(Scope::from_all(newest))?;
        // No rule is added, so nothing is allowed.
        all.create()?.restrict_self()
    };
    let status = deny().map_err(|error| format!("Landlock: {error}"))?;
    Ok(match (status.ruleset, status.landlock) {
        (RulesetStatus::FullyEnforced, _) => "Landlock: no file can be opened, no TCP port, no process outside".into(),
        (RulesetStatus::PartiallyEnforced, LandlockStatus::Available { effective_abi, .. }) => format!(
            "Landlock: no file can be opened; of the rest, what version {effective_abi} knows (a newer kernel: more)"
        ),
        (_, LandlockStatus::NotEnabled) => {
            "no Landlock: not enabled; add landlock to lsm= on the kernel's command line".into()
        }
        _ => "no Landlock: this kernel has none (5.13 or newer, with CONFIG_SECURITY_LANDLOCK)".into(),
    })
}
