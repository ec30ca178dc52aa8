//! Netmap ports that were passed into guests, and Ringpass's driver over VFIO there.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ringpass_lab::{Builder, Guest, Iommu, Job, until};
use ringpass_port::Error;
use serde_json::Value;

use super::{Setting, Through, Way, number};
use crate::bench::netmap::Sample;
use crate::bench::netmap::rig::Rig;
use crate::bench::process::Process;

/// Where a guest finds its port, and the port's memory.
const DEVICES: [&str; 2] = ["0000:00:10.0", "0000:00:11.0"];
/// Within this a program has ended that was told to, or has done what it does.
const LIMIT: Duration = Duration::from_secs(30);
/// The names under which guests note their processes.
const RECEIVER: &str = "receiver";
const SENDER: &str = "sender";

/// The guests and the host, between which packets go.
pub struct Rooms<'a> {
    rig: &'a Rig,
    /// The second one only as long as it has an end.
    guests: Vec<Room>,
    /// The host's end.
    port: &'static str,
}

/// A guest, and its port, which must outlive it.
struct Room {
    guest: Guest,
    port: Passed,
}

/// A port that is passed through.
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

impl<'a> Rooms<'a> {
    /// Starts both guests.
    pub fn boot(rig: &'a Rig, folder: &Path, what: Through) -> Result<Self, Error> {
        let (names, port, options) = match what {
            Through::Pipe => (["netmap:x{1", "netmap:x}1"], "netmap:x}1", &["--trusted"][..]),
            _ => (["vale0:vm1", "vale0:vm2"], "vale0:host", &[][..]),
        };
        let pass = |number: usize| Passed::new(rig, folder.join(format!("port{number}")), names[number], options);
        let ports = [pass(0)?, pass(1)?];
        let program = std::env::current_exe().map_err(|source| Error::Os { what: "this program".into(), source })?;
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
        let guests = guests.into_iter().zip(ports).map(|(guest, port)| Room { guest, port }).collect();
        Ok(Self { rig, guests, port })
    }

    /// Packets from one place to another.
    pub fn measure(&mut self, setting: &Setting, time: Duration) -> Result<Sample, Error> {
        let [from, to] = match setting.path {
            Way::GuestGuest => [Some(0), Some(1)],
            Way::GuestHost => [Some(0), None],
            Way::HostGuest => [None, Some(0)],
        };
        if setting.path != Way::GuestGuest {
            // Its end is the host's now, or nobody's.
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
        // Of each guest, by the packets that it has sent or received; the one that has most says how many.
        let own: Vec<f64> = [from, to].iter().zip(packets).filter_map(|(place, own)| place.map(|_| own)).collect();
        let most = |which: usize| {
            let rung = before.iter().zip(&after).map(|(before, after)| after[which] - before[which]);
            rung.zip(&own).map(|(rung, own)| rung * 1e6 / own.max(1.0)).fold(0.0, f64::max)
        };
        let mpps = packets[1] / number(&sent, "seconds")? / 1e6;
        Ok(Sample { mpps, kicks_per_million: most(0), interrupts_per_million: most(1), ..Sample::default() })
    }

    /// Kicks and interrupts of each guest up to now.
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
    /// Waits until it runs.
    fn up(&mut self) -> Result<(), Error> {
        match self {
            Self::Host(program) => program.event("stats", LIMIT).map(drop),
            Self::Guest(guest, job, _) => {
                until("the receiver", || guest.printed(job).contains("\"stats\""));
                Ok(())
            }
        }
    }

    /// Its summary, when it has ended by itself.
    fn wait(self) -> Result<Value, Error> {
        match self {
            Self::Host(mut program) => program.event("summary", LIMIT),
            Self::Guest(guest, job, name) => {
                let text = guest.wait(&job, LIMIT).text;
                let last = text.lines().last().unwrap_or_default();
                serde_json::from_str(last).map_err(|error| Error::Other(format!("a guest's {name}: {error}: '{last}'")))
            }
        }
    }

    /// The same, after telling it to end.
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
        let path = socket.to_str().ok_or_else(|| Error::Other("a folder whose name is not text".into()))?;
        let since = Instant::now();
        let mut program = rig.start(&[&["passthrough", port, "--socket", path, "--json"], options].concat())?;
        program.event("start", LIMIT)?;
        Ok(Self { program, since, socket })
    }

    /// Kicks and interrupts up to now.
    fn counters(&mut self) -> Result<[f64; 2], Error> {
        let now = self.since.elapsed().as_secs_f64();
        loop {
            let event = self.program.event("stats", LIMIT)?;
            // Its clock starts after ours.
            if number(&event, "seconds")? > now {
                return Ok([number(&event, "kicks")?, number(&event, "interrupts")?]);
            }
        }
    }
}
