//! `ringpass netmapd`, and programs at its ports.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ringpass_lab::Ended;
use ringpass_netmap::client::Port;
use ringpass_netmap::request::Register;
use ringpass_netmap::{Flags, PortRing, Slot};
use serde_json::Value;

use super::{Namespace, Program, RINGPASS, folder, text, wait_until};

/// The server process, in a separate namespace.
pub struct Netmapd {
    pub program: Option<Program>,
    pub socket: PathBuf,
    pub namespace: Namespace,
    pub folder: tempfile::TempDir,
}

impl Netmapd {
    pub fn new(options: &[&str]) -> Self {
        Self::in_namespace(Namespace::new(), options)
    }

    pub fn in_namespace(namespace: Namespace, options: &[&str]) -> Self {
        let folder = folder();
        let socket = folder.path().join("netmap.sock");
        let program = namespace.spawn(&[&[RINGPASS, "netmapd", "--socket", text(&socket)], options].concat());
        wait_until("the serving process", || program.line().starts_with("netmap ports at"));
        Self { program: Some(program), socket, namespace, folder }
    }

    /// Starts a program that opens ports of this server.
    pub fn spawn(&self, arguments: &[&str]) -> Program {
        let socket = format!("RINGPASS_NETMAP_SOCKET={}", text(&self.socket));
        self.namespace.spawn(&[&["env", &socket, RINGPASS], arguments].concat())
    }

    /// Runs `ringpass vale`; returns its exit status, output and errors.
    pub fn vale(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let Ended { status, lines, errors } =
            self.spawn(&[&["vale"], arguments].concat()).wait(Duration::from_secs(60));
        (status, lines.join("\n"), errors.join("\n"))
    }

    /// Returns the state of all ports.
    pub fn status(&self) -> Value {
        let (_, text, errors) = self.vale(&["--json"]);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text} {errors}"))
    }

    /// Returns the counters of a program's port.
    pub fn counters(&self, port: &str) -> Value {
        let status = self.status();
        let ports = status["vale"].as_array().expect("a list");
        ports.iter().find(|entry| entry["port"] == port).map_or(Value::Null, |entry| entry["counters"].clone())
    }

    /// Returns whether no program holds a buffer, in either memory, and ports have all of theirs.
    pub fn all_free(&self) -> bool {
        let status = self.status();
        let [common, exchanged] = [&status["common"], &status["exchanged"]].map(|memory| {
            let of = |what: &str| memory[what].as_u64();
            [of("free"), of("programs"), of("buffers").zip(of("pool")).map(|(all, pool)| all - pool)]
        });
        common[0] == Some(16_382) && [[None; 3], [Some(16_382), Some(0), Some(16_384)]].contains(&exchanged)
    }

    /// Returns the state of the first native port.
    pub fn native(&self) -> Value {
        self.status()["ports"][0].clone()
    }

    /// Opens a port as a program does.
    pub fn open(&self, name: &str) -> Port {
        self.open_with(name, 0)
    }

    /// Opens a port with `slots` slots in each ring.
    pub fn open_with(&self, name: &str, slots: u32) -> Port {
        let more = Register { slots: [slots; 2], ..Register::default() };
        let opened = Port::open(&name.parse().expect("a name"), &self.socket, more);
        opened.unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Ends the server, which must succeed without errors.
    pub fn end(self) {
        let socket = self.socket.clone();
        let errors = self.end_with_errors();
        assert!(!socket.exists() || errors.is_empty(), "{errors:?}");
    }

    /// Ends the server, which must succeed. Returns what it printed to standard error.
    pub fn end_with_errors(mut self) -> Vec<String> {
        let program = self.program.take().expect("it runs");
        program.signal("TERM");
        let Ended { status, errors, .. } = program.wait(Duration::from_secs(60));
        assert_eq!(status, Some(0), "{errors:?}");
        errors
    }
}

/// Creates a numbered frame from one station to another.
pub fn frame(to: u8, from: u8, number: u64) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from, 0x88, 0xb5];
    frame.extend(number.to_le_bytes());
    frame.resize(60, 0);
    frame
}

pub fn number(frame: &[u8]) -> u64 {
    u64::from_le_bytes(frame[14..22].try_into().expect("eight bytes"))
}

/// Sends one frame, as soon as there is room.
pub fn send(port: &Port, frame: &[u8]) {
    put(port, &port.tx()[0], frame);
}

/// Puts a frame into one of the port's rings; returns its slot and buffer. The next sync of the ring sends it.
pub fn put(port: &Port, ring: &PortRing, frame: &[u8]) -> (u32, u32) {
    if ring.own() == 0 {
        assert!(port.wait(std::iter::once(ring), Duration::from_secs(60)).unwrap(), "no room for a minute");
    }
    let position = ring.position(0);
    let slot = Slot { len: frame.len() as u16, flags: Flags::default(), ..ring.ring().slot(position) };
    assert!(port.buffers().write(slot, frame));
    ring.ring().set(position, slot);
    ring.release_slots(1);
    (position, slot.buffer)
}

/// Waits for frames for at most `limit`, and returns them.
pub fn receive(port: &Port, limit: Duration) -> Vec<Vec<u8>> {
    let ring: &PortRing = &port.rx()[0];
    let mut frames = Vec::new();
    if port.wait(std::iter::once(ring), limit).unwrap() {
        let own = ring.own();
        for position in ring.first(own) {
            let mut bytes = vec![0; 2048];
            let len = port.buffers().read(ring.ring().slot(position), &mut bytes).expect("a frame");
            bytes.truncate(len);
            frames.push(bytes);
        }
        ring.release_slots(own);
    }
    ring.sync().unwrap();
    frames
}

/// Sends numbered frames between two programs on the switch vale0 while `others` runs: all frames arrive in
/// order, and the resources of the others are returned.
pub fn undisturbed(netmapd: &Netmapd, others: impl FnOnce()) {
    // The rings have room for more than a second of frames, as a receiver may have to wait that long on a
    // loaded machine.
    let [one, other] = ["vale0:one", "vale0:other"].map(|name| netmapd.open_with(name, 16_384));
    // The station that generators send to; frames to an unknown station would be flooded.
    let sink = netmapd.open("vale0:sink");
    let announce = || {
        send(&other, &frame(1, 2, 0));
        send(&sink, &frame(1, 0xff, 0));
        [&other, &sink].into_iter().for_each(|port| port.tx()[0].sync().unwrap());
    };
    // The switch knows all three from here on.
    send(&one, &frame(2, 1, 0));
    one.tx()[0].sync().unwrap();
    announce();
    wait_until("the three addresses", || {
        netmapd.status()["switches"][0]["stations"].as_array().is_some_and(|all| all.len() == 3)
    });
    let common = netmapd.status()["common"]["free"].as_u64();
    let (until_told, all) = (AtomicBool::new(false), AtomicU64::new(u64::MAX));
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            let mut next = 1;
            while !until_told.load(Ordering::Relaxed) {
                // Slow enough to be received on a loaded machine.
                let start = Instant::now();
                (0..50).for_each(|n| send(&one, &frame(2, 1, next + n)));
                next += 50;
                one.tx()[0].sync().unwrap();
                std::thread::sleep(Duration::from_millis(10).saturating_sub(start.elapsed()));
            }
            all.store(next, Ordering::Relaxed);
        });
        let receiving = scope.spawn(|| {
            let (mut expected, mut last) = (1, Instant::now());
            let mut announced = Instant::now();
            // Frames of other programs may come in between, and the last of these late.
            while expected != all.load(Ordering::Relaxed) || last.elapsed() < Duration::from_secs(1) {
                assert!(last.elapsed() < Duration::from_secs(20), "nothing after {expected}");
                // The switch forgets stations that are silent for five minutes.
                if announced.elapsed() > Duration::from_secs(60) {
                    announce();
                    announced = Instant::now();
                }
                let frames = receive(&other, Duration::from_millis(500));
                let ours = frames.iter().filter(|frame| frame[..12] == [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
                for frame in ours.filter(|frame| number(frame) > 0) {
                    assert_eq!(number(frame), expected, "a frame was lost");
                    (expected, last) = (expected + 1, Instant::now());
                }
            }
            expected
        });
        // The threads end in any case.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(others));
        until_told.store(true, Ordering::Relaxed);
        sending.join().expect("the sender");
        let received = receiving.join().expect("the receiver");
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
        eprintln!("{received} frames, none lost");
    });
    wait_until("the end of what they had", || {
        let status = netmapd.status();
        status["common"]["free"].as_u64() == common && status["vale"].as_array().map(Vec::len) == Some(3)
    });
}
