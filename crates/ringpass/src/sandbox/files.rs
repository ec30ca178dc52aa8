//! Access to the file system, restricted by Landlock: nothing can be opened, created, changed or removed any
//! more.

use landlock::{
    ABI, Access, AccessFs, AccessNet, LandlockStatus, RestrictionStatus, Ruleset, RulesetAttr, RulesetError,
    RulesetStatus, Scope,
};

/// Denies everything that the kernel's Landlock can deny: files, TCP, and signals and abstract sockets of other
/// processes. Open files stay usable.
///
/// Returns whether files are denied, and what is missing, if anything is.
pub fn deny_all() -> Result<(bool, Option<String>), String> {
    let newest = ABI::V7;
    let deny = || -> Result<RestrictionStatus, RulesetError> {
        let all = Ruleset::default()
            .handle_access(AccessFs::from_all(newest))?
            .handle_access(AccessNet::from_all(newest))?
            .scope(Scope::from_all(newest))?;
        // No rule is added, so nothing is allowed.
        all.create()?.restrict_self()
    };
    let status = deny().map_err(|error| format!("Landlock: {error}"))?;
    Ok(match (status.ruleset, status.landlock) {
        (RulesetStatus::FullyEnforced, _) => (true, None),
        (RulesetStatus::PartiallyEnforced, LandlockStatus::Available { effective_abi, .. }) => {
            (true, Some(format!("Landlock of this kernel is version {effective_abi}, {newest} denies more")))
        }
        (_, LandlockStatus::NotEnabled) => {
            (false, Some("Landlock is not enabled; add landlock to lsm= on the kernel's command line".into()))
        }
        _ => (false, Some("no Landlock in this kernel (5.13 or newer, with CONFIG_SECURITY_LANDLOCK)".into())),
    })
}
