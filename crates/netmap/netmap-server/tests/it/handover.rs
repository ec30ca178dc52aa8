//! A serving process that is followed by another one, while programs have ports.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use ringpass_ipc::Listener;
use ringpass_netmap::Pools;
use ringpass_netmap::client::{Client, Port};
use ringpass_netmap::request::{Register, register};
use ringpass_netmap_server::Server;
use serde_json::{Value, json};

use crate::server::{Left, Running, exchange};

/// Returns the server's status without what differs between runs.
fn status(server: &Running) -> Value {
    serde_json::from_str(&server.client().status().expect("a status")).expect("JSON")
}

#[test]
fn programs_at_pipes_do_not_notice() {
    let server = Running::new("left");
    // In the common memory, with extra buffers and exclusively, and in memory of its own.
    let asked = Register { extra_buffers: 3, flags: register::EXCLUSIVE, ..Register::default() };
    let (first, second) = (server.open_with("netmap:x{1@1", asked).expect("a port"), server.open("netmap:x}1@1"));
    let (a, b) = (server.open("netmap:y{2"), server.open("netmap:y}2"));
    let idle = server.client();
    exchange(&first, &first.tx()[0], &second, &second.rx()[0], 1500);
    exchange(&a, &a.tx()[0], &b, &b.rx()[0], 1500);
    let before = status(&server);
    let left = server.leave();
    // Nobody serves them, and nobody has to.
    assert!(![&first, &second, &a, &b].iter().any(|port| port.is_lost()));
    exchange(&second, &second.tx()[0], &first, &first.rx()[0], 1500);
    let server = Running::with("left", Value::Null, left);
    exchange(&first, &first.tx()[0], &second, &second.rx()[0], 1500);
    exchange(&b, &b.tx()[0], &a, &a.rx()[0], 1500);
    assert_eq!(status(&server), before);
    drop(idle);

    // The registrations are what they were: exclusive, adopted by who has the connection, ended with it.
    assert!(server.open_with("netmap:x{1@1", Register::default()).is_err(), "exclusive");
    let third = server.open("netmap:x}1");
    assert!(third.others().contains(&std::process::id().to_string()), "{}", third.others());
    drop(third);
    let (client, granted) = Client::adopt(&server.path, a.server().try_clone_to_owned().expect("a descriptor"))
        .unwrap_or_else(|error| panic!("{error}"));
    let adopted: Port = client.into_port(granted.expect("a registration")).unwrap_or_else(|error| panic!("{error}"));
    drop(a);
    exchange(&adopted, &adopted.tx()[0], &b, &b.rx()[0], 1500);
    let more = server.open("netmap:y{3");
    assert_eq!(more.granted().memory_id, b.granted().memory_id, "there is room in the memory of the other pipe");
    drop((first, second, adopted, b, more));
    server.free(8998);
    assert_eq!(status(&server)["pipes"], json!([]));
    // Large memory is freed by another thread.
    let start = Instant::now();
    while status(&server)["memory"]["used"] != 0 {
        assert!(start.elapsed() < Duration::from_secs(30), "{}", status(&server));
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn programs_that_end_between_two_servers_are_found_to_have_ended() {
    let server = Running::new("ended");
    let (first, second) = (server.open("netmap:x{1@1"), server.open("netmap:x}1@1"));
    let left = server.leave();
    drop(first);
    let server = Running::with("ended", Value::Null, left);
    let again = server.open("netmap:x{1@1");
    exchange(&again, &again.tx()[0], &second, &second.rx()[0], 10);
    drop((again, second));
    server.free(8998);
}

/// Twenty servers, one after the other, while frames pass.
#[test]
fn any_number_of_servers_follow_each_other() {
    let mut server = Running::new("many");
    let (first, second) = (server.open("netmap:x{1"), server.open("netmap:x}1"));
    std::thread::scope(|scope| {
        let load = scope.spawn(|| exchange(&first, &first.tx()[0], &second, &second.rx()[0], 3_000_000));
        for _ in 0..20 {
            let left = server.leave();
            server = Running::with("many", Value::Null, left);
            std::thread::sleep(Duration::from_millis(5));
        }
        load.join().expect("the frames");
    });
    drop((first, second));
}

fn state(left: &Left) -> Value {
    let (_, file) = left.iter().find(|(name, _)| name == "state").expect("a state");
    let mut file = File::from(file.try_clone().expect("a descriptor"));
    let mut text = String::new();
    file.rewind().and_then(|()| file.read_to_string(&mut text)).expect("a text");
    serde_json::from_str(&text).expect("JSON")
}

/// Ports of a kind that only its own server can serve.
#[test]
fn the_others_are_disconnected() {
    let server = Running::new("others");
    let (first, _second) = (server.open("netmap:x{1@1"), server.open("netmap:x}1@1"));
    let monitor = server.open("netmap:x{1/rt");
    let left = server.leave();
    assert!(monitor.is_lost() && !first.is_lost());
    assert_eq!(state(&left)["sessions"].as_array().map(Vec::len), Some(2));
    let server = Running::with("others", Value::Null, left);
    assert_eq!(status(&server)["pipes"][0]["monitors"], 0);
    let monitor = server.open("netmap:x{1/rt");
    assert!(!monitor.is_lost());
}

/// What is incomplete or of another version is refused as a whole, with the server as it was.
#[test]
fn what_does_not_fit_is_refused() {
    let server = Running::new("broken");
    let (first, second) = (server.open("netmap:x{1@1"), server.open("netmap:y{1"));
    let left = server.leave();
    let pools = Pools { interfaces: 8, ring_bytes: 1 << 20, buffers: 4096, ..Pools::default() };
    let path = std::env::temp_dir().join(format!("ringpass-test-{}-broken2.sock", std::process::id()));
    let mut server = Server::new(Listener::bind(&path).expect("a socket"), pools, Box::new(())).expect("a server");
    let before = server.status();
    let again = |left: &Left| -> Left {
        left.iter().map(|(name, fd)| (name.clone(), fd.try_clone().expect("a descriptor"))).collect()
    };
    let mut refused = |left: Left, why: &str| {
        let error = server.take_over(left).expect_err(why).to_string();
        assert!(error.contains(why) && !error.contains('\n'), "{error}");
        assert_eq!((server.programs(), server.status()), (0, before.clone()));
    };
    for missing in 0..left.len() {
        let mut some = again(&left);
        let why = if some.remove(missing).0 == "state" { "incomplete" } else { "a descriptor is missing" };
        refused(some, why);
    }
    let with_state = |text: &str| -> Left {
        let file = tempfile_of(text);
        again(&left).into_iter().filter(|(name, _)| name != "state").chain([("state".to_owned(), file)]).collect()
    };
    let whole = state(&left);
    let mut other = whole.clone();
    other["format"] = 99.into();
    refused(with_state(&other.to_string()), "format 99");
    let text = whole.to_string();
    refused(with_state(&text[..text.len() / 2]), "EOF");
    // A descriptor of another kind.
    let mut swapped = again(&left);
    let number = swapped.iter().position(|(name, _)| name == "0").expect("there are some");
    swapped[number].1 = tempfile_of("x");
    refused(swapped, "left");
    // All of it is still there, for a server of this version.
    assert_eq!(server.take_over(left).expect("what was left"), 2);
    assert!(!first.is_lost() && !second.is_lost());
}

/// Returns a file in memory with this text.
fn tempfile_of(text: &str) -> OwnedFd {
    use std::io::Write;
    let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
    let mut file = File::from(file);
    file.write_all(text.as_bytes()).expect("room");
    file.into()
}
