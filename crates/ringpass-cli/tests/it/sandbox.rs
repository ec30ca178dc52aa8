//! Privileges that are left to the program once its ports are open: only those that it needs.

use std::fs;
use std::process::Command;
use std::time::Duration;

use crate::common::back::Back;
use crate::common::{Lab, Program, RINGPASS, flood, ringpass, wait_until};
use ringpass_lab::Ended;
use ringpass_port::Role;

/// Returns a field of a `status` file of `/proc`.
fn field<'a>(status: &'a str, name: &str) -> &'a str {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name} in {status}")).trim()
}

/// Returns the `status` files of all threads of a process.
fn threads(process: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).expect("the process runs");
    tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("status")).ok()).collect()
}

fn assert_sandboxed(process: u32, at_least: usize) {
    let threads = threads(process);
    assert!(threads.len() >= at_least, "{} threads", threads.len());
    for status in &threads {
        let name = field(status, "Name");
        for (what, value) in [("Seccomp", "2"), ("NoNewPrivs", "1"), ("Groups", "")] {
            assert_eq!(field(status, what), value, "{what} of thread {name}");
        }
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(field(status, set), "0000000000000000", "{set} of thread {name}");
        }
        for ids in ["Uid", "Gid"] {
            let ids = field(status, ids);
            assert!(ids.split_whitespace().all(|id| id != "0"), "{ids} of thread {name}");
        }
    }
}

/// Starts a subcommand and waits until it reports that it is in the sandbox.
fn start(arguments: &[&str]) -> Program {
    let program = Program::spawn(&[&[RINGPASS], arguments].concat());
    wait_until("the sandbox's last note", || program.line().contains("system calls"));
    program
}

/// The kernel's own traffic flows through a process without privileges, which still counts it and ends on
/// Ctrl-C.
#[test]
fn a_forwarder_has_no_privileges_and_forwards() {
    let lab = Lab::new(|_, card| card.to_owned(), &["--queues", "2"]);
    assert_sandboxed(lab.forwarder.id(), 4); // main, two workers, the cards
    flood(&lab.a, &lab.left, "198.18.0.2", 500, &[]);
    let summary = lab.forwarder.summary();
    assert!(summary["ports"][0]["rx_packets"].as_u64() >= Some(500), "{summary}");
}

#[test]
fn all_that_moves_packets_is_sandboxed() {
    let files = crate::common::folder();
    let file = |name: &str| crate::common::text(&files.path().join(name)).to_owned();
    let capture = format!("capture,file={}:model:null", file("a.pcap.gz"));
    for (arguments, threads) in [
        (&["pktgen", "faults,drop=0.1:model:null", "--rate", "1000", "--queues", "2", "--flows", "2"][..], 4),
        (&["fwd", &capture, "null"], 4),
        (&["dump", "model:null", "-w", &file("b.pcapng")], 3),
        (&["echo", "null"], 2),
        (&["ping", "model:null"], 3),
        (&["demo"], 3),
    ] {
        let program = start(arguments);
        wait_until("all threads", || self::threads(program.id()).len() >= threads);
        assert_sandboxed(program.id(), threads);
        program.signal("TERM");
        let Ended { status, lines, errors } = program.wait(Duration::from_secs(60));
        // A ping without an answer is a failure; no program is ended by a signal.
        assert_eq!(status, Some(i32::from(arguments[0] == "ping")), "{arguments:?}: {errors:?}");
        assert!(lines.iter().any(|line| line.contains("in all")), "{arguments:?}: {lines:?}");
    }
}

/// The sandbox allows everything that each kind of port does: while packets flow, when statistics are read, and
/// at the end.
#[test]
fn every_kind_of_port_works_in_it() {
    let (inside, files) = (crate::common::Namespace::new(), crate::common::folder());
    inside.run(&["ip", "link", "add", "va", "type", "veth", "peer", "name", "vb"]);
    inside.run(&["ip", "link", "set", "va", "up"]);
    inside.run(&["ip", "link", "set", "vb", "up"]);
    let file = |name: &str| crate::common::text(&files.path().join(name)).to_owned();
    let (capture, copy, dump) = (file("a.pcap.gz"), file("b.pcapng.zst"), file("c.pcap"));
    let (out, again) = (format!("pcap:,out={capture}"), format!("pcap:{capture},loop=3"));
    let wrapped = format!("capture,file={copy}:faults,duplicate=0.5:model:tap:rptap1");
    for arguments in [
        &["pktgen", &out, "--count", "1000"][..],
        &["fwd", &again, &wrapped],
        &["pktgen", "packet:va", "--pcap", &capture, "--rate", "10k"],
        &["dump", "packet:vb", "-w", &dump, "-t", "1"],
        &["fwd", "model:packet:va", "model:tap:rptap2", "--queues", "2", "-t", "1"],
        &["pktgen", "packet:va", "--rate", "10k", "--offloads", "checksum,tso", "-t", "1"],
        &["fwd", "tap:rptap3", "packet:vb", "--offloads", "checksum,tso", "-t", "1"],
    ] {
        let program = inside.spawn(&[&[RINGPASS], arguments].concat());
        let Ended { status, lines, errors } = program.wait(Duration::from_secs(60));
        // 159 would be SIGSYS.
        assert_eq!(status, Some(0), "{arguments:?}: {lines:?} {errors:?}");
        assert!(lines.iter().any(|line| line.contains("system calls")), "{arguments:?}: {lines:?}");
    }
}

/// Sends a datagram through each of a program's sockets, as code that has taken it over could.
#[test]
fn its_sockets_reach_no_other_service() {
    let (inside, folder) = (crate::common::Namespace::new(), crate::common::folder());
    inside.run(&["ip", "link", "add", "va", "type", "veth", "peer", "name", "vb"]);
    for end in ["va", "vb"] {
        inside.run(&["ip", "link", "set", end, "up"]);
    }
    let path = folder.path().join("service");
    let service = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    let address = nix::sys::socket::UnixAddr::new(&path).unwrap();
    let program = inside.spawn(&[RINGPASS, "fwd", "tap:rptap4", "packet:va"]);
    wait_until("the sandbox", || program.line().contains("system calls"));
    let process = rustix::process::Pid::from_raw(program.id() as i32).unwrap();
    let process = rustix::process::pidfd_open(process, rustix::process::PidfdFlags::empty()).unwrap();
    let mut sockets = 0;
    for file in fs::read_dir(format!("/proc/{}/fd", program.id())).unwrap().flatten() {
        if !fs::read_link(file.path()).is_ok_and(|target| target.display().to_string().starts_with("socket:")) {
            continue;
        }
        let number = file.file_name().into_string().unwrap().parse().unwrap();
        let socket = rustix::process::pidfd_getfd(&process, number, rustix::process::PidfdGetfdFlags::empty()).unwrap();
        let flags = nix::sys::socket::MsgFlags::MSG_DONTWAIT;
        let sent = nix::sys::socket::sendto(std::os::fd::AsRawFd::as_raw_fd(&socket), b"x", &address, flags);
        assert!(sent.is_err(), "descriptor {number} has sent a datagram to a service");
        sockets += 1;
    }
    assert!(sockets >= 3, "a packet socket, and one for requests of each port: {sockets}");
    service.set_nonblocking(true).unwrap();
    assert!(service.recv(&mut [0; 8]).is_err());
}

#[test]
fn no_sandbox_leaves_it_off_and_says_so() {
    let program = Program::spawn(&[RINGPASS, "fwd", "null", "null", "--no-sandbox"]);
    wait_until("the note", || program.line().contains("sandbox: none"));
    let own = fs::read_to_string("/proc/self/status").unwrap();
    for status in threads(program.id()) {
        for what in ["Seccomp", "NoNewPrivs", "CapEff", "CapPrm", "Uid", "Groups"] {
            assert_eq!(field(&status, what), field(&own, what), "{what}");
        }
    }
}

#[test]
fn it_becomes_nobody_also_under_sudo() {
    let output = Command::new(RINGPASS)
        .args(["sandbox-check"])
        .env("SUDO_UID", "1234")
        .env("SUDO_GID", "1235")
        .output()
        .expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("sandbox: user 65534, group 65534 instead of root"), "{text}");
}

#[test]
fn instances_of_root_can_have_a_user_each() {
    for user in ["61234", "61235"] {
        let program = start(&["demo", "--user", user]);
        assert_sandboxed(program.id(), 2);
        let ids = [user; 4].join("\t");
        for status in threads(program.id()) {
            assert_eq!([field(&status, "Uid"), field(&status, "Gid")], [&ids; 2]);
        }
    }
    for (wrong, why) in [("root", "no use for root"), ("no-such-user", "there is no user 'no-such-user'")] {
        let (status, _, errors) = ringpass(&["demo", "-t", "1", "--user", wrong]);
        assert!(status == Some(2) && errors.contains(why), "{errors}");
    }
}

/// Another user than its own is refused, and not ignored.
#[test]
fn an_ordinary_user_stays_one() {
    let (_folder, program) = crate::common::for_everybody();
    let program = crate::common::text(&program);
    let output = Command::new("setpriv")
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups", program, "demo", "-t", "1", "--user", "61234"])
        .output()
        .expect("this test needs the program setpriv (util-linux)");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.contains("cannot become user 61234"), "{errors}");
}

#[test]
fn an_ordinary_user_is_sandboxed_too() {
    let (_folder, program) = crate::common::for_everybody();
    let program = crate::common::text(&program);
    let output = Command::new("setpriv")
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups", program, "demo", "-t", "1"])
        .output()
        .expect("this test needs the program setpriv (util-linux)");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("sandbox: user 65534, as before") && text.contains("system calls"), "{text}");
}

#[test]
fn files_are_out_of_reach() {
    for path in ["/etc/shadow", "/etc/passwd", "/proc/self/mem", "/dev/null", "/sys/class/net/lo/mtu", "/"] {
        let (status, out, errors) = ringpass(&["sandbox-check", "--open", path]);
        assert_eq!(status, Some(0), "{errors}");
        assert!(out.contains("code: 13") && out.ends_with("alive"), "{path}: {out}");
        let (_, out, _) = ringpass(&["sandbox-check", "--no-sandbox", "--open", path]);
        assert!(out.contains("open: Ok"), "without a sandbox, {path}: {out}");
    }
}

/// Tries a system call in the sandbox. Returns the output of the check, or the signal that ended it.
fn attempt(call: &str) -> Result<String, i32> {
    attempt_as(&[], call)
}

fn attempt_as(options: &[&str], call: &str) -> Result<String, i32> {
    use std::os::unix::process::ExitStatusExt;
    let mut command = Command::new(RINGPASS);
    let output = command.arg("sandbox-check").args(options).args(["--call", call]).output().expect("it starts");
    match output.status.signal() {
        Some(signal) => Err(signal),
        None => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
    }
}

#[test]
fn a_forbidden_system_call_ends_the_program() {
    let sockets = ["socket-inet", "socket-packet", "socket-unix"];
    let network = ["connect", "bind", "accept4", "sendto-address", "setsockopt"];
    let programs = ["execve", "execveat", "fork", "vfork", "clone-process"];
    let processes = ["kill", "tgkill", "ptrace", "process_vm_readv", "pidfd_open"];
    let files = ["open", "openat-write", "openat-create", "openat2", "unlinkat", "chmod"];
    let privileges = ["setuid", "capset", "prctl-dumpable", "mount", "unshare"];
    let system = ["bpf", "keyctl", "init_module", "io_uring_setup", "perf_event_open", "userfaultfd", "unassigned"];
    let arguments = ["ioctl-tiocsti", "ioctl-tunsetiff", "mmap-execute", "mprotect-execute"];
    let groups: [&[&str]; 8] = [&sockets, &network, &programs, &processes, &files, &privileges, &system, &arguments];
    for forbidden in groups.concat() {
        assert_eq!(attempt(forbidden), Err(libc::SIGSYS), "{forbidden}");
    }
}

#[test]
fn an_allowed_system_call_goes_on() {
    // Among them are calls that the library can do without: they return an error and do not end the program.
    for allowed in ["getpid", "clone3", "unlink", "ioctl-tcgets"] {
        let out = attempt(allowed).unwrap_or_else(|signal| panic!("{allowed}: signal {signal}"));
        assert!(out.contains("call: ") && out.ends_with("alive\n"), "{allowed}: {out}");
    }
}

/// A user's session bus starts programs for any client, so connecting to it would be a way out of the sandbox.
#[test]
fn programs_with_sessions_can_make_no_socket_and_connect_none() {
    for forbidden in ["socket-unix", "connect", "openat2"] {
        assert_eq!(attempt_as(&["--sessions"], forbidden), Err(libc::SIGSYS), "{forbidden}");
    }
    let goes_on = attempt_as(&["--sessions"], "io_getevents").is_ok_and(|out| out.ends_with("alive\n"));
    assert!(goes_on, "what sessions need goes on");
}

/// A client reconnects through a process that can do nothing else, and only to the one socket.
#[test]
fn a_clients_connector_reaches_its_socket_and_no_other() {
    use std::os::unix::net::UnixListener;
    let (folder, elsewhere) = (crate::common::folder(), crate::common::folder());
    let (card, bus) = (folder.path().join("card"), elsewhere.path().join("bus"));
    let mut back = Back::new(&card, Role::Listen);
    let echo = Program::spawn(&[RINGPASS, "echo", &format!("virtio-user:{}", card.display())]);
    let mut notes = String::new();
    wait_until("the sandbox's last note", || {
        notes = notes.clone() + &echo.line();
        notes.contains("system calls")
    });
    back.echoed(10);
    assert_sandboxed(echo.id(), 2);
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", echo.id())).unwrap();
    let children: Vec<u32> = children.split_whitespace().map(|id| id.parse().unwrap()).collect();
    let is_connector = |&id: &u32| notes.contains(&format!("process {id} keeps its user"));
    let (connectors, others): (Vec<u32>, Vec<u32>) = children.into_iter().partition(is_connector);
    let [connector] = connectors[..] else { panic!("one connector: {connectors:?} {notes}") };
    // The other child receives file descriptors of peers, with no privileges at all.
    assert_eq!(others.len(), 1, "{others:?}");
    assert_sandboxed(others[0], 1);
    for status in threads(connector) {
        for (what, value) in [("Seccomp", "2"), ("NoNewPrivs", "1"), ("CapInh", "0000000000000000")] {
            assert_eq!(field(&status, what), value, "{what} of the connector");
        }
        // CAP_DAC_OVERRIDE.
        assert_eq!(field(&status, "CapPrm"), "0000000000000002");
        assert_eq!(field(&status, "CapBnd"), "0000000000000000");
    }
    // The owner of the socket's folder replaces the socket by a link to another service: no connection arrives
    // there, and when the socket is back, the port works again.
    drop(back);
    let service = UnixListener::bind(&bus).unwrap();
    service.set_nonblocking(true).unwrap();
    let _ = fs::remove_file(&card);
    std::os::unix::fs::symlink(&bus, &card).unwrap();
    // It tries at least once a second.
    let start = std::time::Instant::now();
    while start.elapsed() < Duration::from_secs(3) {
        assert!(service.accept().is_err(), "it went where the link leads");
        std::thread::sleep(Duration::from_millis(50));
    }
    fs::remove_file(&card).unwrap();
    Back::new(&card, Role::Listen).echoed(10);
    echo.signal("KILL");
    echo.wait(Duration::from_secs(10));
    wait_until("the connector's end", || !fs::exists(format!("/proc/{connector}")).unwrap());
}

#[test]
fn a_panic_in_the_sandbox_is_reported() {
    for backtrace in ["0", "1", "full"] {
        let output =
            Command::new(RINGPASS).args(["sandbox-check", "--panic"]).env("RUST_BACKTRACE", backtrace).output();
        let output = output.expect("it starts");
        let (out, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && out.contains("caught"), "{out}{errors}");
        assert!(errors.contains("as it was told to"), "{errors}");
    }
}

/// A model's wire that connects to a socket needs a connector as any other port does: the sandbox denies `connect`.
#[test]
fn a_models_wire_that_connects_has_a_connector() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (card, wire) = (path("card"), path("wire"));
    let wire_address = format!("vhost:{wire},client");
    let program = Program::spawn(&[RINGPASS, "model", "82599", "--socket", &card, "--wire", &wire_address]);
    let mut notes = Vec::new();
    wait_until("the sandbox's last note", || {
        notes.push(program.line());
        notes.last().is_some_and(|note| note.contains("system calls"))
    });
    assert!(notes.iter().any(|note| note.contains(&format!("to connect to {wire}"))), "{notes:?}");
}
