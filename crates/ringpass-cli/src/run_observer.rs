//! What a subcommand adds to its run: numbers, a picture, decisions on its ports, and answers to those who ask over a control socket.

use std::os::fd::OwnedFd;
use std::time::Duration;

use ringpass::control::{EndStatus, Request, SwitchStatus};
use ringpass::models::Stepper;
use ringpass::{Error, Port, Ports, Totals, check_ports, model_stepper};
use serde_json::Value;

use crate::stats::Fields;

/// Callbacks of a subcommand into its run.
pub trait RunObserver {
    /// Returns the subcommand's additions to the statistics of all ports.
    fn fields(&mut self, totals: &Totals) -> Fields;

    /// Returns lines that are shown below the statistics on a terminal.
    fn picture(&mut self, ports: &mut [Box<dyn Port>]) -> Vec<String> {
        let _ = ports;
        Vec::new()
    }

    /// Returns its additions to the counters of one port in the summary.
    fn extended(&self, port: usize) -> Vec<(&'static str, u64)> {
        let _ = port;
        Vec::new()
    }

    /// Returns the other ends of a port's tunnel.
    fn ends(&self, port: usize) -> Vec<EndStatus> {
        let _ = port;
        Vec::new()
    }

    /// Returns the time that the summary's rates refer to, given that of the whole run.
    fn duration(&self, elapsed: Duration) -> Duration {
        elapsed
    }

    /// Returns the name of a port and its switch, where that is not its address alone.
    fn place(&self, port: usize) -> Option<PortPlace<'_>> {
        let _ = port;
        None
    }

    /// Returns the switches.
    fn switches(&self) -> Vec<SwitchStatus> {
        Vec::new()
    }

    /// Returns the stations of a switch, or of all.
    ///
    /// # Errors
    /// There is none, in a line.
    fn stations(&self, switch: Option<&str>) -> Result<Vec<Value>, String> {
        let _ = switch;
        Err("this program has no switch".into())
    }

    /// Returns what the service consists of.
    ///
    /// # Errors
    /// This is no service, in a line.
    fn plan(&self) -> Result<Value, String> {
        Err("this program does not run from a file".into())
    }

    /// Returns what stops and steps the software cards of the run, if it has any.
    fn stepper(&self) -> Option<Stepper> {
        model_stepper()
    }

    /// Returns how many ports may still be added.
    fn room(&self) -> usize {
        0
    }

    /// Returns whether a port is still one of the run.
    fn is_present(&self, port: usize) -> bool {
        let _ = port;
        true
    }

    /// Changes the ports of the run, as a client asks.
    ///
    /// # Errors
    /// Why not, in a line; then nothing has changed.
    fn change(&mut self, request: &Request, descriptors: Vec<OwnedFd>, ports: &mut Ports) -> Result<Value, String> {
        let _ = (request, descriptors, ports);
        Err("the ports of this program are fixed; those of 'ringpass run' are not".into())
    }

    /// Prints what SIGUSR1 asks for besides statistics.
    fn report(&self) {}

    /// Inspects the ports and decides whether the run continues. Called several times a second.
    fn check_ports(&mut self, ports: &mut [Box<dyn Port>]) -> Decision {
        match check_ports(ports) {
            Err(error) => Decision::Failed(error),
            Ok(true) => Decision::StopWhenIdle,
            Ok(false) => Decision::Continue,
        }
    }
}

/// Place of a port in a program.
pub struct PortPlace<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its switch.
    pub switch: &'a str,
}

/// Decision on a run.
pub enum Decision {
    /// The run continues.
    Continue,
    /// An input has ended: the run ends once all packets in flight have arrived.
    StopWhenIdle,
    /// The run ends with an error.
    Failed(Error),
}
