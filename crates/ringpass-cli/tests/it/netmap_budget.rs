//! Limits on what one program or one user can take from the others of a `ringpass netmapd`: descriptors,
//! memory, time, connections.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::netmap::{Netmapd, frame, receive, send};
use crate::common::{Namespace, Program, RINGPASS, folder, text, wait_until};
use ringpass_lab::Ended;
use ringpass_lab::SlowEventfd;
use ringpass_netmap::client::{Client, Error, Port};
use ringpass_netmap::protocol::Request;
use ringpass_netmap::request::{Kind, PortInfo, Register};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Starts a server with limits of descriptors, soft and hard.
fn limited(soft: u32, hard: u32) -> Netmapd {
    let (namespace, folder) = (Namespace::new(), folder());
    let socket = folder.path().join("netmap.sock");
    let script =
        format!("ulimit -Sn {soft} && ulimit -Hn {hard} && exec {RINGPASS} netmapd --socket {}", text(&socket));
    let program = namespace.spawn(&["sh", "-c", &script]);
    wait_until("the serving process", || program.line().starts_with("netmap ports at"));
    Netmapd { program: Some(program), socket, namespace, folder }
}

#[test]
fn a_server_without_descriptors_serves_those_that_it_has() {
    let netmapd = limited(100, 100);
    let mut first = Client::connect(&netmapd.socket).expect("a connection");
    first.status().expect("a status");
    let (mut served, mut refused) = (Vec::new(), 0);
    for _ in 0..150 {
        let mut client = Client::connect(&netmapd.socket).expect("a connection");
        match client.status() {
            Ok(_) => served.push(client),
            Err(Error::Refused { errno: Errno::MFILE, why }) => {
                assert!(why.contains("ulimit -n") && !why.contains('\n'), "{why}");
                refused += 1;
            }
            Err(error) => panic!("{error}"),
        }
        first.status().expect("it is served on");
    }
    assert!(refused > 50 && served.len() > 20, "{} are served, {refused} are refused", served.len());
    drop(served);
    wait_until("others' turn", || Client::connect(&netmapd.socket).and_then(|mut client| client.status()).is_ok());
    netmapd.end();
}

#[test]
fn a_server_raises_its_limit_of_descriptors() {
    let netmapd = limited(64, 1000);
    let clients: Vec<_> = (0..300)
        .map(|number| {
            let mut client = Client::connect(&netmapd.socket).expect("a connection");
            client.status().unwrap_or_else(|error| panic!("program {number}: {error}"));
            client
        })
        .collect();
    drop(clients);
    netmapd.end();
}

/// Returns the bytes that programs' ports take of the budget.
fn used(netmapd: &Netmapd) -> u64 {
    netmapd.status()["memory"]["used"].as_u64().expect("a number")
}

fn open(netmapd: &Netmapd, name: &str, register: Register) -> Result<Port, Error> {
    Port::open(&name.parse().expect("a name"), &netmapd.socket, register)
}

/// Creates a persistent port.
fn keep(client: &mut Client, name: &str) -> Result<(), Error> {
    client.ask(&Request::new(Kind::ValeNewif, name, &[0; 16])).map(drop)
}

/// Attaches a persistent port to a switch.
fn attach(client: &mut Client, name: &str) -> Result<(), Error> {
    client.ask(&Request::new(Kind::ValeAttach, name, &[])).map(drop)
}

/// Returns the number of a program's threads.
fn threads(program: &Program) -> usize {
    std::fs::read_dir(format!("/proc/{}/task", program.id())).expect("it runs").count()
}

#[test]
fn ports_that_stay_and_switches_have_a_limit_for_each_user() {
    let netmapd = Netmapd::new(&[]);
    let mut client = Client::connect(&netmapd.socket).expect("a connection");
    let program = netmapd.program.as_ref().expect("it runs");
    let made = (0..200).filter(|number| match keep(&mut client, &format!("p{number}")) {
        Ok(()) => true,
        Err(Error::Refused { errno: Errno::NOSPC, why }) => {
            assert!(why.contains("64") && !why.contains('\n'), "{why}");
            false
        }
        Err(error) => panic!("{error}"),
    });
    assert_eq!(made.count(), 64);
    for number in 0..64 {
        attach(&mut client, &format!("vale{number}:p{number}")).expect("attached");
    }
    let cpus = std::thread::available_parallelism().expect("a number").get();
    assert!(threads(program) < 5 + cpus, "switches share the threads of {cpus} CPUs: {}", threads(program));
    assert!(used(&netmapd) >= 64 << 20, "their tables are in the budget");
    // The last of the switches that share forwards as the first does.
    for switch in ["vale0", "vale63"] {
        let ends = ["x", "y"].map(|end| open(&netmapd, &format!("{switch}:{end}"), Register::default()));
        let [one, other] = ends.map(|port| port.expect("a port"));
        send(&one, &frame(2, 1, 0));
        one.tx()[0].sync().unwrap();
        assert_eq!(receive(&other, Duration::from_secs(60)).len(), 1);
    }
    // Another user has limits of its own, and this one the ports that it has.
    open(&netmapd, "vale0:b", Register::default()).expect("a port on a switch that is there");
    match open(&netmapd, "vale100:a", Register::default()).map(drop) {
        Err(Error::Refused { errno: Errno::NOSPC, why }) => assert!(why.contains("64 switches"), "{why}"),
        other => panic!("not refused: {other:?}"),
    }
    for number in 0..64 {
        client.ask(&Request::new(Kind::ValeDetach, &format!("vale{number}:p{number}"), &[])).expect("detached");
        client.ask(&Request::new(Kind::ValeDelif, &format!("p{number}"), &[])).expect("deleted");
    }
    wait_until("the ends of their workers", || threads(program) < 5);
    assert_eq!(used(&netmapd), 0);
    // Ports that stay without a switch count too.
    let made = (0..200).filter(|number| keep(&mut client, &format!("q{number}")).is_ok()).count();
    assert_eq!(made, 64);
    open(&netmapd, "vale1:b", Register::default()).expect("programs' ports are not among those that stay");
    netmapd.end();
}

fn refusal(result: Result<Port, Error>) -> String {
    match result.map(drop) {
        Err(Error::Refused { errno: Errno::NOMEM, why }) => why,
        other => panic!("not refused for want of memory: {other:?}"),
    }
}

#[test]
fn programs_have_shares_of_a_budget_of_memory() {
    let netmapd = Netmapd::new(&["--memory", "64M"]);
    let large = Register { slots: [16_384; 2], rings: [8; 2], extra_buffers: 65_536, ..Register::default() };
    let why = refusal(open(&netmapd, "vale0:large", large.clone()));
    assert!(why.contains("of 16 MiB for one program") && why.contains("--memory") && !why.contains('\n'), "{why}");
    let monitor = Register { slots: [16_384; 2], extra_buffers: 65_536, ..Register::default() };
    let small = open(&netmapd, "vale0:small", Register { slots: [64; 2], ..Register::default() });
    let before = used(&netmapd);
    refusal(open(&netmapd, "vale0:small/r", monitor));
    assert_eq!(used(&netmapd), before);
    drop(small);
    wait_until("the port's end", || used(&netmapd) == 0);
    // Queries take no memory.
    let mut client = Client::connect(&netmapd.socket).expect("a connection");
    let (reply, _) = client.ask(&Request::new(Kind::PortInfoGet, "vale0:a", &[])).expect("an answer");
    let info = PortInfo::parse(reply.body.first_chunk().unwrap());
    assert_eq!(used(&netmapd), 0);
    let port = open(&netmapd, "vale0:a", Register::default()).expect("a port");
    assert_eq!(used(&netmapd), info.memory_size + (1 << 20), "with the tables of the switch");
    assert_eq!((port.granted().memory_size, port.granted().memory_id), (info.memory_size, info.memory_id));
    let mut ports = vec![port];
    let why = loop {
        match open(&netmapd, &format!("vale0:p{}", ports.len()), Register::default()) {
            Ok(port) => ports.push(port),
            other => break refusal(other),
        }
        assert!(ports.len() < 20, "no budget");
    };
    assert!(why.contains("of 16 MiB for one program and 64 MiB for all"), "{why}");
    assert_eq!(ports.len(), 5);
    // Opening ports that exist costs no further memory, and memory that a program returned can go to another
    // one.
    ports.push(open(&netmapd, "vale0:a", Register::default()).expect("a second program"));
    ports.remove(1);
    wait_until("the memory", || open(&netmapd, "vale0:again", Register::default()).is_ok());
    drop(ports);
    wait_until("all memory", || used(&netmapd) == 0);
    // All persistent ports together have the share of one program.
    let new = |name: &str| netmapd.vale(&["new", name]);
    assert_eq!(new("vale1:a").0, Some(0));
    let (status, _, errors) = new("vale1:b");
    assert!(status == Some(1) && errors.contains("--memory"), "{errors}");
    assert_eq!(netmapd.vale(&["delete", "vale1:a"]).0, Some(0));
    wait_until("all memory", || used(&netmapd) == 0);
    netmapd.end();
}

/// About half a gigabyte, which takes a second or more to allocate.
fn large() -> Register {
    Register { slots: [16_384; 2], rings: [4; 2], ..Register::default() }
}

#[test]
fn a_large_port_keeps_nobody_waiting() {
    let netmapd = Netmapd::new(&["--memory", "4G"]);
    let [one, other] = ["vale0:one", "vale0:other"].map(|name| netmapd.open(name));
    let mut client = Client::connect(&netmapd.socket).expect("a connection");
    let (begun, done, answers) = (AtomicBool::new(false), AtomicBool::new(false), AtomicUsize::new(0));
    let socket = &netmapd.socket;
    std::thread::scope(|scope| {
        let opening = scope.spawn(|| {
            let _told = crate::common::Stop(&done);
            begun.store(true, Ordering::Relaxed);
            let name = "vale0:large".parse().expect("a name");
            Port::open(&name, socket, large()).expect("a large port").granted().memory_size
        });
        wait_until("the request", || begun.load(Ordering::Relaxed));
        let start = Instant::now();
        while !done.load(Ordering::Relaxed) {
            assert!(start.elapsed() < Duration::from_secs(60), "no answer");
            client.status().expect("a status");
            // Other programs connect, register and end meanwhile.
            drop(netmapd.open("vale0:small"));
            answers.fetch_add(1, Ordering::Relaxed);
        }
        assert!(opening.join().expect("the large port") > 500 << 20);
    });
    let answers = answers.into_inner();
    eprintln!("{answers} programs were served while half a gigabyte was made");
    assert!(answers >= 4, "{answers} programs were served meanwhile");
    send(&one, &frame(2, 1, 1));
    one.tx()[0].sync().unwrap();
    assert_eq!(receive(&other, Duration::from_secs(20)).len(), 1);
    drop((one, other));
    wait_until("all memory", || used(&netmapd) == 0);
    netmapd.end();
}

/// A program has tens of thousands wait for its port's eventfd, so that each signal takes milliseconds.
#[test]
fn a_program_whose_eventfd_is_slow_is_disconnected() {
    let netmapd = Netmapd::new(&[]);
    let [one, other, slow] = ["vale0:one", "vale0:other", "vale0:slow"].map(|name| netmapd.open(name));
    let _waiters = SlowEventfd::on(slow.call_event().try_clone_to_owned().unwrap());
    let mut sent = 0;
    wait_until("its end", || {
        slow.rx()[0].release_slots(slow.rx()[0].own());
        slow.rx()[0].sync().unwrap();
        slow.rx()[0].arm().unwrap();
        send(&one, &frame(9, 1, sent));
        one.tx()[0].sync().unwrap();
        sent += 1;
        assert_eq!(receive(&other, Duration::from_secs(20)).len(), 1, "the others go on");
        let mut server = [PollFd::from_borrowed_fd(slow.server(), PollFlags::IN)];
        poll(&mut server, Some(&Timespec::default())).unwrap();
        server[0].revents().contains(PollFlags::HUP)
    });
    assert!(sent < 1_000, "only after {sent} signals");
    send(&one, &frame(9, 1, sent));
    one.tx()[0].sync().unwrap();
    assert_eq!(receive(&other, Duration::from_secs(20)).len(), 1);
    // It is not let in again at once.
    let again = Client::connect(&netmapd.socket).and_then(|mut client| client.status());
    assert!(matches!(&again, Err(Error::Refused { errno: Errno::BUSY, .. })), "{again:?}");
    drop((one, other, slow));
    netmapd.end();
}

#[test]
fn who_hangs_up_gives_back_what_is_being_made() {
    use std::io::Write;
    let netmapd = Netmapd::new(&["--memory", "4G"]);
    for _ in 0..3 {
        let mut stream = std::os::unix::net::UnixStream::connect(&netmapd.socket).expect("a connection");
        stream.write_all(&Request::register("vale0:large", &large()).bytes()).unwrap();
        wait_until("the beginning", || used(&netmapd) > 0);
    }
    wait_until("all memory", || used(&netmapd) == 0);
    let status = netmapd.status();
    assert!(status["vale"].as_array().is_some_and(Vec::is_empty), "{status}");
    netmapd.end();
}

/// Starts a program as another user, with a folder for temporary files, and no other variable in its
/// environment that says where servers are.
fn spawn_as(user: &str, temporary: &Path, arguments: &[&str]) -> Program {
    let (user, temporary) = (format!("--reuid={user}"), format!("TMPDIR={}", text(temporary)));
    let command = ["setpriv", &user, "--regid=65534", "--clear-groups", "env", "-i", &temporary, RINGPASS];
    Program::spawn(&[&command[..], arguments].concat())
}

/// Waits for the end of a program; returns its status and its last line of errors.
fn end(program: Program) -> (Option<i32>, String) {
    let Ended { status, errors, .. } = program.wait(Duration::from_secs(60));
    (status, errors.last().cloned().unwrap_or_default())
}

/// Creates a folder with the mode of /tmp.
fn everybodys() -> tempfile::TempDir {
    let folder = folder();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o1777)).unwrap();
    folder
}

const VICTIM: &str = "65534";
const STRANGER: &str = "65533";

#[test]
fn programs_are_served_by_their_own_user_or_root() {
    let folder = everybodys();
    let socket = folder.path().join("ringpass-netmap.sock");
    let stranger = spawn_as(STRANGER, folder.path(), &["netmapd", "--socket", text(&socket)]);
    wait_until("the stranger's server", || stranger.line().starts_with("netmap ports at"));
    // The stranger lets every user connect.
    std::fs::set_permissions(&socket, PermissionsExt::from_mode(0o666)).unwrap();
    let (status, error) = end(spawn_as(VICTIM, folder.path(), &["vale"]));
    assert!(status == Some(1) && error.contains("nobody serves") && error.contains("ringpass-65534"), "{error}");
    for user in [VICTIM, "0"] {
        let (status, error) = end(spawn_as(user, folder.path(), &["vale", "--socket", text(&socket)]));
        assert!(status == Some(1) && error.contains("is served by user 65533"), "{error}");
    }
    assert_eq!(end(spawn_as(STRANGER, folder.path(), &["vale", "--socket", text(&socket)])), (Some(0), String::new()));
    // A server of the victim's own is found, and lets no other user connect.
    let own = spawn_as(VICTIM, folder.path(), &["netmapd"]);
    let line = own.line();
    assert!(line.ends_with("/ringpass-65534/netmap.sock"), "{line}");
    assert_eq!(end(spawn_as(VICTIM, folder.path(), &["vale"])), (Some(0), String::new()));
    let place = folder.path().join("ringpass-65534/netmap.sock");
    let (status, error) = end(spawn_as(STRANGER, folder.path(), &["vale", "--socket", text(&place)]));
    assert!(status == Some(1) && error.contains("ermission denied"), "{error}");
    for program in [own, stranger] {
        program.signal("TERM");
        assert_eq!(end(program).0, Some(0));
    }
}

#[test]
fn a_folder_that_others_could_enter_is_not_used() {
    let refused = |make: &dyn Fn(&Path), why: &str| {
        let folder = everybodys();
        make(&folder.path().join("ringpass-65534"));
        for command in ["vale", "netmapd"] {
            let (status, error) = end(spawn_as(VICTIM, folder.path(), &[command]));
            assert!(
                status == Some(1) && error.contains(why) && error.contains("XDG_RUNTIME_DIR"),
                "{command}: {error}"
            );
        }
    };
    let own = |path: &Path| std::os::unix::fs::chown(path, Some(65534), Some(65534)).unwrap();
    refused(&|path| std::fs::create_dir(path).unwrap(), "its owner is user 0");
    refused(
        &|path| {
            std::fs::create_dir(path).unwrap();
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
            own(path);
        },
        "its mode 755",
    );
    refused(&|path| std::os::unix::fs::symlink("/tmp", path).unwrap(), "it is not a folder of this user");
    refused(&|path| std::fs::write(path, "").unwrap(), "it is not a folder of this user");
    refused(
        &|path| {
            std::fs::create_dir(path).unwrap();
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o700)).unwrap();
            own(path);
            std::fs::set_permissions(path.parent().unwrap(), PermissionsExt::from_mode(0o777)).unwrap();
        },
        "others may rename",
    );
}

/// A socket that root has left behind is reported as what it is.
#[test]
fn a_socket_of_another_user_is_not_called_served() {
    let folder = everybodys();
    let socket = folder.path().join("left.sock");
    drop(UnixListener::bind(&socket).unwrap());
    std::fs::set_permissions(&socket, PermissionsExt::from_mode(0o600)).unwrap();
    let vhost = format!("vhost:{}", text(&socket));
    for arguments in [&["model", "82599", "--socket", text(&socket), "--wire", "null"][..], &["fwd", &vhost, "null"]] {
        let (status, error) = end(spawn_as(VICTIM, folder.path(), arguments));
        assert_eq!(status, Some(1), "{error}");
        assert!(error.contains("belongs to user 0") && error.contains("permission"), "{error}");
        assert!(!error.contains("another process"), "{error}");
    }
    // The victim cannot remove it there either, even if it could be connected to.
    std::fs::set_permissions(&socket, PermissionsExt::from_mode(0o666)).unwrap();
    let (_, error) = end(spawn_as(VICTIM, folder.path(), &["fwd", &vhost, "null"]));
    assert!(error.contains("belongs to user 0") && error.contains("permission"), "{error}");
}

/// Two programs move the positions of the same ring: the one that fails reports where, and which other program
/// uses it.
#[test]
fn a_second_program_at_one_end_of_a_pipe_is_told_of_the_first() {
    let netmapd = Netmapd::new(&[]);
    let echo = netmapd.spawn(&["echo", "netmap:x}1"]);
    wait_until("the receiver", || netmapd.status()["pipes"][0]["registrations"][1] == 1);
    let registered = || netmapd.status()["pipes"][0]["pids"][0].clone();
    let first = netmapd.spawn(&["pktgen", "netmap:x{1"]);
    wait_until("the sender", || registered() == serde_json::json!([first.id()]));
    let second = netmapd.spawn(&["bridge", "netmap:x{1", "vale0:elsewhere"]);
    // By now it has started or ended. Either program may be the one that finds the other's changes.
    second.line_or_eof();
    wait_until("the end of one of them", || netmapd.status()["pipes"][0]["registrations"][0] == 1);
    let (loser, winner, who) = if registered() == serde_json::json!([first.id()]) {
        let who = format!("'ringpass', pid {} has this end", first.id());
        (second, first, who)
    } else {
        (first, second, "'ringpass vale' tells".into())
    };
    let Ended { status, errors, .. } = loser.wait(Duration::from_secs(60));
    let error = errors.last().cloned().unwrap_or_default();
    assert_eq!(status, Some(1), "{errors:?}");
    assert!(error.contains("netmap:x{1: ") && error.contains("the program set") && error.contains(&who), "{error}");
    winner.signal("KILL");
    winner.wait(Duration::from_secs(20));
    // An exclusive request is refused, with the name of the holder.
    let Err(Error::Refused { errno: Errno::BUSY, why }) = open(&netmapd, "netmap:x}1/x", Register::default()) else {
        panic!("the end is not busy")
    };
    assert!(why.contains(&format!("'ringpass', pid {}", echo.id())), "{why}");
    echo.signal("KILL");
    echo.wait(Duration::from_secs(20));
    netmapd.end();
}

/// A pipe's programs may write to the memory for its monitors at any time, so each pipe is in the budget.
#[test]
fn pipes_take_their_part_of_the_budget() {
    let netmapd = Netmapd::new(&["--hugepages", "off", "--memory", "16M"]);
    let open = |pipe: usize| {
        // Not in memory of their own, which is in the budget, too.
        let name = format!("netmap:x{{{pipe}@1").parse().expect("a name");
        Port::open(&name, &netmapd.socket, Register::default())
    };
    let pipes: Vec<_> = (0..3).map(|pipe| open(pipe).unwrap_or_else(|error| panic!("{error}"))).collect();
    let refused = open(3).err().expect("no room").to_string();
    assert!(refused.contains("of memory are wanted"), "{refused}");
    drop(pipes);
    wait_until("their end", || netmapd.status()["memory"]["used"] == 0);
    open(3).unwrap_or_else(|error| panic!("{error}"));
    netmapd.end();
}

/// Native ports are attached by root, the user who runs the server and its group, and by nobody else.
#[test]
fn a_group_of_administrators() {
    for (group, refused) in [(&[][..], true), (&["--admin-group", "65534"], false)] {
        let folder = everybodys();
        let socket = folder.path().join("netmap.sock");
        let place = format!("{},mode=0666", text(&socket));
        let server =
            [&[RINGPASS, "netmapd", "--hugepages", "off", "--port", "x=null", "--socket", &place], group].concat();
        let server = Program::spawn(&server);
        wait_until("the serving process", || server.line().starts_with("netmap ports at"));
        let attach = ["vale", "attach", "vale0:x", "--socket", text(&socket)];
        let (status, error) = end(spawn_as(STRANGER, folder.path(), &attach));
        if refused {
            assert!(status == Some(1) && error.contains("--admin-group"), "{error}");
        } else {
            assert_eq!((status, error), (Some(0), String::new()));
        }
        server.signal("TERM");
        assert_eq!(end(server).0, Some(0));
    }
}
