//! Netmap ports that were passed into guests, where Ringpass's driver uses them over VFIO.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ringpass::Error;
use ringpass_lab::{Builder, Guest, Iommu, Job, wait_until};
use serde_json::Value;

use super::{GuestCase, GuestLink, GuestRoute, number};
use crate::netmap::Sample;
use crate::netmap::rig::Rig;
use crate::process::{Process, ringpass};

/// PCI addresses of the port and of its memory in a guest.
const DEVICES: [&str; 2] = ["0000:00:10.0", "0000:00:11.0"];
/// Longest time for a program to start, or to end.
const LIMIT: Duration = Duration::from_secs(30);
/// Names under which guests store the process IDs of their programs.
const RECEIVER: &str = "receiver";
const SENDER: &str = "sender";

/// Guests and host, between which packets are sent.
pub struct PassthroughRig<'a> {
    rig: &'a Rig,
    /// Guests. The second one is dropped when its end of the connection is needed on the host.
    guests: Vec<PassthroughGuest>,
    /// Port of the host's end.
    port: &'static str,
}

/// A guest with its port. The port must outlive the guest, so it is the second field.
struct PassthroughGuest {
    guest: Guest,
    port: Passed,
}

/// A port that is passed through, with its serving program.
struct Passed {
    program: Process,
    since: Instant,
    socket: PathBuf,
}

/// A program that sends or receives.
enum Running<'a> {
    Host(Process),
    Guest(&'a Guest, Job, &'static str),
}

impl<'a> PassthroughRig<'a> {
    /// Boots both guests.
    pub fn boot(rig: &'a Rig, folder: &Path, what: GuestLink) -> Result<Self, Error> {
        let (names, port, options) = match what {
            GuestLink::Pipe => (["netmap:x{1", "netmap:x}1"], "netmap:x}1", &["--trusted"][..]),
            _ => (["vale0:vm1", "vale0:vm2"], "vale0:host", &[][..]),
        };
        let pass = |number: usize| Passed::new(rig, folder.join(format!("port{number}")), names[number], options);
        let ports = [pass(0)?, pass(1)?];
        let program = ringpass()?;
        let guests = Builder::boot_all(ports.each_ref().map(|port| {
            let guest = Guest::new().memory(384).iommu(Iommu::Translated).program(&program);
            guest.card(&port.socket).card(&port.socket.with_extension("mem"))
        }));
        for guest in &guests {
            guest.run("modprobe vfio-pci");
            for device in DEVICES {
                guest.run(&format!(
                    "echo vfio-pci >/sys/bus/pci/devices/{device}/driver_override
                     echo {device} >/sys/bus/pci/drivers_probe"
                ));
            }
        }
        let guests = guests.into_iter().zip(ports).map(|(guest, port)| PassthroughGuest { guest, port }).collect();
        Ok(Self { rig, guests, port })
    }

    /// Measures packets from one place to another.
    pub fn measure(&mut self, setting: &GuestCase, time: Duration) -> Result<Sample, Error> {
        let [from, to] = match setting.path {
            GuestRoute::GuestGuest => [Some(0), Some(1)],
            GuestRoute::GuestHost => [Some(0), None],
            GuestRoute::HostGuest => [None, Some(0)],
        };
        if setting.path != GuestRoute::GuestGuest {
            // The second guest's port is used by the host now, or not at all.
            self.guests.truncate(1);
        }
        let (batch, seconds) = (setting.batch, time.as_secs_f64());
        let before = self.counters()?;
        let mut receiver =
            self.start(to, RECEIVER, &format!("fwd PORT null --json --hugepages off --batch {batch}"))?;
        receiver.up()?;
        let command = format!("pktgen PORT --json --hugepages off -t {seconds} --batch {batch}");
        let sender = self.start(from, SENDER, &command)?;
        let (sent, received) = (sender.wait()?, receiver.end()?);
        let after = self.counters()?;
        let packets = [number(&sent["ports"][0], "tx_packets")?, number(&received["ports"][0], "rx_packets")?];
        // Kicks and interrupts per million of the packets that the guest itself has sent or received. The guest
        // with the higher value is reported.
        let own: Vec<f64> = [from, to].iter().zip(packets).filter_map(|(place, own)| place.map(|_| own)).collect();
        let most = |which: usize| {
            let rung = before.iter().zip(&after).map(|(before, after)| after[which] - before[which]);
            rung.zip(&own).map(|(rung, own)| rung * 1e6 / own.max(1.0)).fold(0.0, f64::max)
        };
        let mpps = packets[1] / number(&sent, "seconds")? / 1e6;
        Ok(Sample { mpps, kicks_per_million: most(0), interrupts_per_million: most(1), ..Sample::default() })
    }

    /// Returns the kicks and interrupts of each guest so far.
    fn counters(&mut self) -> Result<Vec<[f64; 2]>, Error> {
        self.guests.iter_mut().map(|room| room.port.counters()).collect()
    }

    /// Starts a subcommand in a guest, or on the host.
    fn start(&self, guest: Option<usize>, name: &'static str, command: &str) -> Result<Running<'_>, Error> {
        let Some(guest) = guest else {
            let command = command.replace("PORT", self.port);
            return Ok(Running::Host(self.rig.start(&command.split(' ').collect::<Vec<_>>())?));
        };
        let guest = &self.guests[guest].guest;
        let command = command.replace("PORT", DEVICES[0]);
        let script = format!("echo $$ >/run/{name}; exec ringpass {command} 2>/dev/null");
        Ok(Running::Guest(guest, guest.spawn(&script), name))
    }
}

impl Running<'_> {
    /// Waits until the program has started.
    fn up(&mut self) -> Result<(), Error> {
        match self {
            Self::Host(program) => program.event("stats", LIMIT).map(drop),
            Self::Guest(guest, job, _) => {
                wait_until("the receiver", || guest.printed(job).contains("\"stats\""));
                Ok(())
            }
        }
    }

    /// Waits until the program ends and returns its summary.
    fn wait(self) -> Result<Value, Error> {
        match self {
            Self::Host(mut program) => program.event("summary", LIMIT),
            Self::Guest(guest, job, name) => {
                let text = guest.wait(&job, LIMIT).text;
                let last = text.lines().last().unwrap_or_default();
                serde_json::from_str(last).map_err(|error| Error::Fault(format!("a guest's {name}: {error}: '{last}'")))
            }
        }
    }

    /// Tells the program to end and returns its summary.
    fn end(self) -> Result<Value, Error> {
        match self {
            Self::Host(program) => program.summary(),
            Self::Guest(guest, _, name) => {
                guest.run(&format!("kill -INT $(cat /run/{name})"));
                self.wait()
            }
        }
    }
}

impl Passed {
    fn new(rig: &Rig, socket: PathBuf, port: &str, options: &[&str]) -> Result<Self, Error> {
        let path = socket.to_str().ok_or_else(|| Error::Config("a folder whose name is not text".into()))?;
        let since = Instant::now();
        let mut program = rig.start(&[&["passthrough", port, "--socket", path, "--json"], options].concat())?;
        program.event("start", LIMIT)?;
        Ok(Self { program, since, socket })
    }

    /// Returns the kicks and interrupts so far.
    fn counters(&mut self) -> Result<[f64; 2], Error> {
        let now = self.since.elapsed().as_secs_f64();
        loop {
            let event = self.program.event("stats", LIMIT)?;
            // The program's clock started after ours, so this event is newer than this call.
            if number(&event, "seconds")? > now {
                return Ok([number(&event, "kicks")?, number(&event, "interrupts")?]);
            }
        }
    }
}
