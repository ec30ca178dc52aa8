//! EVPN for a switch: opens what it needs before the sandbox, and starts it.

use ringpass::Error;
use ringpass_evpn::{Files, Follower, Site};
use ringpass_switch::Switch;

use super::plan::{EvpnPlan, PortPlan};

/// Files of the port with EVPN.
pub(crate) struct Opened {
    port: usize,
    files: Files,
}

/// Returns the number of the port with EVPN, and what that is.
pub(crate) fn port_of(ports: &[PortPlan]) -> Option<(usize, &EvpnPlan)> {
    ports.iter().enumerate().find_map(|(port, plan)| Some((port, plan.evpn.as_ref()?)))
}

impl Opened {
    /// Opens what a switch's EVPN needs, if it has that.
    ///
    /// # Errors
    /// A device is missing.
    pub(crate) fn of(ports: &[PortPlan]) -> Result<Option<Self>, Error> {
        let Some((port, evpn)) = port_of(ports) else { return Ok(None) };
        let files = Files::open(&evpn.vnis).map_err(|error| {
            Error::Config(format!("EVPN: {error}; 'ringpass evpn setup' makes the devices, as the administrator"))
        })?;
        Ok(Some(Self { port, files }))
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// The process has no descriptor or thread left.
    pub(crate) fn start(self, switch: &Switch, ports: &[PortPlan]) -> Result<Follower, Error> {
        let Self { port, files } = self;
        let plan = &ports[port];
        let Some(tunnel) = plan.tunnel.clone() else { return Err(Error::Config("EVPN needs a tunnel".into())) };
        let (placement, arrivals) = (switch.placement(), switch.arrivals()?);
        Follower::start(files, Site { tunnel, placement, arrivals, port, untagged: plan.rules.vlans.untagged() })
    }
}
