//! Guests on our vhost-user back-end: `ringpass fwd` between a socket, which QEMU uses, and a TAP, behind which
//! the host's kernel has a namespace. Back-end N carries 198.18.N.1 in the namespace and 198.18.N.2 in the
//! guest.

use std::path::Path;
use std::time::Duration;

use ringpass_lab::{Builder, Ended, Guest, Namespace, Program, nic_address, wait_until};
use serde_json::Value;

use super::guest::{answered, pace, tcp_to};
use super::{RINGPASS, folder, noise, text, unique};

/// A back-end, and the kernel at its far end. The TAP stays when the back-end is killed.
pub struct Backend {
    number: u8,
    command: Vec<String>,
    pub host: Namespace,
    pub tap: String,
    program: Option<Program>,
}

impl Backend {
    /// Starts `ringpass fwd` with these options between the port `vhost` and a TAP.
    pub fn new(number: u8, vhost: &str, options: &str) -> Self {
        Self::between(number, vhost, "tap:", options)
    }

    /// Starts `ringpass fwd` with the TAP inside another port: `far` is its address up to the TAP's name.
    pub fn between(number: u8, vhost: &str, far: &str, options: &str) -> Self {
        let (host, tap) = (Namespace::new(), unique("tv"));
        let queues: &[&str] = if options.contains("--queues") { &["multi_queue"] } else { &[] };
        host.run(&[&["ip", "tuntap", "add", "dev", &tap, "mode", "tap"], queues].concat());
        host.run(&["ip", "address", "add", &format!("198.18.{number}.1/24"), "dev", &tap]);
        host.run(&["ip", "link", "set", &tap, "up"]);
        let far = format!("{far}{tap}");
        let command = [RINGPASS, "fwd", &far, vhost, "--json", "--hugepages", "off"].into_iter();
        let command = command.chain(options.split_whitespace()).map(str::to_owned).collect();
        let mut backend = Self { number, command, host, tap, program: None };
        backend.start();
        backend
    }

    /// Starts it, also again after a kill.
    pub fn start(&mut self) {
        let command: Vec<&str> = self.command.iter().map(String::as_str).collect();
        let program = self.host.spawn(&command);
        wait_until("the forwarder's first line", || program.line().contains("stats"));
        self.program = Some(program);
    }

    /// Kills it by SIGKILL.
    pub fn kill(&mut self) {
        self.program.take().expect("it runs").signal("KILL");
    }

    /// Ends it as Ctrl-C does; returns its summary and its log.
    pub fn end(mut self) -> (Value, String) {
        let program = self.program.take().expect("it runs");
        program.signal("INT");
        let Ended { status, lines, errors } = program.wait(Duration::from_secs(60));
        let errors = errors.join("\n");
        assert_eq!(status, Some(0), "{errors}");
        (serde_json::from_str(lines.last().expect("a summary")).expect("JSON"), errors)
    }

    /// Returns its process ID.
    pub fn id(&self) -> u32 {
        self.program.as_ref().expect("it runs").id()
    }

    /// Returns the guest's address.
    pub fn guest(&self) -> String {
        format!("198.18.{}.2", self.number)
    }

    /// Waits until packets pass.
    pub fn first_ping(&self) {
        wait_until("the first ping", || {
            let first = self.host.spawn(&["ping", "-c", "1", "-W", "1", &self.guest()]);
            first.wait(Duration::from_secs(60)).status == Some(0)
        });
    }

    /// Sends `count` pings of `size` bytes, in one frame each, of which none may be lost.
    pub fn pings(&self, count: usize, size: u32) {
        let (number, size, pace) = (count.to_string(), size.to_string(), pace(size));
        let ping = ["ping", "-c", &number, "-s", &size, "-M", "do", "-w", "60", &self.guest()];
        let text = self.host.run(&[&ping, pace].concat());
        assert!(answered(&text, count), "{text}");
    }

    /// Sends TCP for a second; returns the rate in Mbit/s, which must be at least 1.
    pub fn tcp(&self, options: &[&str]) -> f64 {
        tcp_to(&self.host, &self.guest(), options)
    }

    /// Sends bytes to the guest and back, which must arrive unchanged.
    pub fn file(&self) {
        file_to(&self.host, &self.guest());
    }

    /// Asserts that all kinds of traffic pass.
    pub fn works(&self) {
        self.passes();
        self.tcp(&[]);
        self.tcp(&["-R"]);
    }

    /// Asserts that packets of all sizes pass.
    pub fn passes(&self) {
        self.first_ping();
        self.pings(100, 1000);
        self.file();
    }

    /// Sends pings for as long as the returned program lives, whether or not they are answered.
    pub fn flood(&self) -> Program {
        self.host.spawn(&["ping", "-q", "-i", "0.01", &self.guest()])
    }

    /// Returns the number of checksum errors that the far end's kernel has counted.
    pub fn wrong_checksums(&self) -> u64 {
        wrong_checksums(&self.host.run(&["cat", "/proc/net/snmp"]))
    }
}

/// Sends bytes to a guest that [serves](serve) and back, which must arrive unchanged.
pub fn file_to(from: &Namespace, to: &str) {
    let (folder, file) = (folder(), noise(256 << 10));
    let [there, back] = ["there", "back"].map(|name| folder.path().join(name));
    std::fs::write(&there, &file).expect("room for a file");
    let (data, url) = (format!("@{}", text(&there)), format!("http://{}:8000/cgi-bin/echo", to));
    let curl = ["curl", "-sS", "--max-time", "60", "-H", "Expect:", "--data-binary", &data, "-o", text(&back), &url];
    from.run(&curl);
    assert!(std::fs::read(&back).expect("an answer") == file, "the bytes differ");
}

/// Sums the checksum errors in a `/proc/net/snmp`.
pub fn wrong_checksums(snmp: &str) -> u64 {
    let lines: Vec<Vec<&str>> = snmp.lines().map(|line| line.split_whitespace().collect()).collect();
    let pairs = lines.chunks(2).flat_map(|pair| pair[0].iter().zip(&pair[1]));
    let wrong = pairs.filter(|(name, _)| ["InCsumErrors", "InHdrErrors"].contains(name));
    wrong.map(|(_, count)| count.parse::<u64>().expect("a number")).sum()
}

/// Adds the programs to the guest that the tests need.
pub fn with_servers(guest: Builder) -> Builder {
    let echo = "#!/bin/sh\nhead -c $CONTENT_LENGTH >/run/echo.$$\necho Content-type: x/x\necho\ncat /run/echo.$$\nrm /run/echo.$$\n";
    guest.file("echo", echo.as_bytes())
}

/// In the guest: starts the servers of TCP and files.
pub fn serve(guest: &Guest) {
    guest.run(
        "mkdir -p /run/www/cgi-bin; cp /host/echo /run/www/cgi-bin; httpd -p 8000 -h /run/www
         iperf3 -s -D; modprobe virtio_net",
    );
}

/// In the guest: gives card `card` the name vN and the address 198.18.N.2, brings it up and waits for the link.
pub fn up(guest: &Guest, card: usize, number: u8) {
    guest.run(&format!(
        "tries=0
         until name=$(ls /sys/bus/pci/devices/{0}/virtio*/net 2>/dev/null) && [ -n \"$name\" ]; do
             [ $((tries += 1)) -lt 300 ] || {{ echo no interface of card {card}; exit 1; }}
             sleep 0.1
         done
         [ \"$name\" = v{number} ] || ip link set $name down name v{number} || exit
         ip address replace 198.18.{number}.2/24 dev v{number}
         ip link set v{number} up || exit
         {1}",
        nic_address(card),
        carrier(number, 1),
    ));
}

/// Returns a script that waits until the link is up (1) or down (0).
pub fn carrier(number: u8, wanted: u8) -> String {
    format!(
        "tries=0
         until [ \"$(cat /sys/class/net/v{number}/carrier)\" = {wanted} ]; do
             [ $((tries += 1)) -lt 600 ] || {{ echo the link of v{number} is not {wanted}; exit 1; }}
             sleep 0.1
         done"
    )
}

/// Returns the socket of back-end `number`.
pub fn socket(folder: &tempfile::TempDir, number: u8) -> std::path::PathBuf {
    folder.path().join(number.to_string())
}

/// Returns the address of a port that listens at a socket.
pub fn vhost(socket: &Path) -> String {
    format!("vhost:{}", text(socket))
}
