//! The kernel's virtio-net driver over vhost-user. It sends with the kernel's generator, or receives frames
//! that no program reads.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ringpass::Error;
use ringpass_lab::{Guest, VhostUser, nic_address, wait_until};

use super::{BURST, GuestCase, GuestRoute};
use crate::cores::pause;
use crate::netmap::Sample;
use crate::netmap::rig::Rig;
use crate::process::Process;
use crate::progress::progress;

/// Time until traffic is steady.
const START: Duration = Duration::from_secs(2);

/// A guest with a card that only sends and a card that only receives.
struct Cards {
    guest: Guest,
    names: [String; 2],
    switch: Process,
    generator: Process,
}

const SENDS: usize = 0;
const RECEIVES: usize = 1;

/// Measures each direction in turn.
pub fn measure(rig: &Rig, folder: &Path, settings: &[GuestCase], time: Duration) -> Result<Vec<Sample>, Error> {
    progress("a guest boots: virtio-net");
    let cards = Cards::boot(rig, folder)?;
    let samples = settings.iter().map(|setting| {
        progress(&format!("{setting:?}"));
        match setting.path {
            GuestRoute::HostGuest => cards.receive(time),
            _ => cards.send(time),
        }
    });
    let samples = samples.collect();
    let Cards { guest, switch, generator, .. } = cards;
    drop(guest);
    for program in [switch, generator] {
        program.summary()?;
    }
    samples
}

impl Cards {
    fn boot(rig: &Rig, folder: &Path) -> Result<Self, Error> {
        let sockets: [PathBuf; 2] = [SENDS, RECEIVES].map(|card| folder.join(format!("virtio{card}")));
        let ports = sockets.each_ref().map(|socket| format!("vhost:{}", socket.display()));
        let switch = rig.start(&["switch", &ports[SENDS], "null", "--flood", "0", "--json"])?;
        let generator = rig.start(&["pktgen", &ports[RECEIVES], "--json"])?;
        wait_until("the back-ends", || sockets.iter().all(|socket| socket.exists()));
        let guest = sockets.iter().fold(Guest::new().memory(384), |guest, socket| {
            guest.vhost_user_nic("virtio-net-pci", &VhostUser::at(socket))
        });
        let guest = guest.boot();
        let names = [SENDS, RECEIVES].map(|card| {
            let address = nic_address(card);
            let script = format!(
                "modprobe -a virtio_net pktgen
                 until ls /sys/bus/pci/devices/{address}/virtio*/net 2>/dev/null; do sleep 0.1; done"
            );
            guest.run(&script).trim().to_owned()
        });
        Ok(Self { guest, names, switch, generator })
    }

    /// Measures what the guest receives from the host's generator.
    fn receive(&self, time: Duration) -> Result<Sample, Error> {
        let name = &self.names[RECEIVES];
        self.guest.run(&format!("ip link set {name} up"));
        let sample = self.sample(RECEIVES, "rx_packets", time);
        self.guest.run(&format!("ip link set {name} down"));
        sample
    }

    /// Measures what the guest's kernel generator sends.
    fn send(&self, time: Duration) -> Result<Sample, Error> {
        let name = &self.names[SENDS];
        self.guest.run(&format!(
            "ip link set {name} up; sleep 0.2; cd /proc/net/pktgen; echo 'add_device {name}' >kpktgend_0
             for word in 'count 0' 'clone_skb 100000' 'burst {BURST}' 'pkt_size 60' 'dst 198.19.0.1' \\
                 'dst_mac 02:00:00:00:00:ff'; do
                 echo \"$word\" >{name}
             done"
        ));
        let job = self.guest.spawn("echo start >/proc/net/pktgen/pgctrl");
        let sample = self.sample(SENDS, "tx_packets", time);
        self.guest.run("echo stop >/proc/net/pktgen/pgctrl");
        let _ = self.guest.wait(&job, Duration::from_secs(30));
        sample
    }

    /// Measures the packets of a card by one of its counters, and the interrupts of its queues.
    fn sample(&self, card: usize, counter: &str, time: Duration) -> Result<Sample, Error> {
        pause(START)?;
        let before = self.now(card, counter);
        pause(time)?;
        let after = self.now(card, counter);
        let [packets, interrupts, seconds] = [0, 1, 2].map(|which| after[which] - before[which]);
        Ok(Sample {
            mpps: packets / seconds.max(0.01) / 1e6,
            interrupts_per_million: interrupts * 1e6 / packets.max(1.0),
            ..Sample::default()
        })
    }

    /// Returns packets, interrupts and seconds, the latter from the guest's own clock.
    fn now(&self, card: usize, counter: &str) -> [f64; 3] {
        let text = self.guest.run(&format!(
            "cat /sys/class/net/{}/statistics/{counter}
             virtio=$(basename /sys/bus/pci/devices/{}/virtio*)
             awk -v card=$virtio- '$NF ~ card && /put/ {{ for (i = 2; i < NF && $i ~ /^[0-9]+$/; i++) n += $i }}
                 END {{ print n + 0 }}' /proc/interrupts
             cut -d ' ' -f 1 /proc/uptime",
            self.names[card],
            nic_address(card)
        ));
        let numbers: Vec<f64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        numbers.try_into().unwrap_or_else(|_| panic!("three numbers are expected of a guest, not: {text}"))
    }
}
