//! The page on which rings move: what it answers to whom, and how it looks in Chromium.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::common::browser::{Browser, Look};
use crate::common::{Ended, Namespace, Program, RINGPASS, ringpass, unique, wait_until};

/// A program with a page.
struct Served {
    program: Program,
    address: SocketAddr,
}

impl Served {
    fn start(arguments: &[&str]) -> Self {
        let program = Program::spawn(&[&[RINGPASS], arguments].concat());
        let line = program.wait_for_stderr("the page is at http://");
        let address = line.split("http://").nth(1).and_then(|rest| rest.trim_end_matches('/').parse().ok());
        Self { program, address: address.unwrap_or_else(|| panic!("no address: {line}")) }
    }

    fn demo() -> Self {
        Self::start(&["demo", "--hugepages", "off", "--json", "--web=127.0.0.1:0"])
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a limit");
        stream
    }

    /// Sends a request, and returns the whole answer.
    fn ask(&self, request: &str, headers: &[&str]) -> String {
        let mut stream = self.connect();
        let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
        write!(stream, "{request} HTTP/1.1\r\n{headers}\r\n").expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer in time");
        answer
    }

    fn status(&self, request: &str, headers: &[&str]) -> String {
        self.ask(request, headers).split(' ').nth(1).expect("a status").to_owned()
    }

    /// Begins to show the page; returns the connection, and whether there was room.
    fn watch(&self) -> (TcpStream, bool) {
        let mut stream = self.connect();
        write!(stream, "GET /events HTTP/1.1\r\nHost: {}\r\n\r\n", self.address).expect("it reads");
        let mut start = [0; 12];
        stream.read_exact(&mut start).expect("an answer");
        (stream, &start == b"HTTP/1.1 200")
    }
}

/// Returns the number of pictures that have arrived in this time.
fn pictures(stream: &mut TcpStream, time: Duration) -> usize {
    stream.set_read_timeout(Some(Duration::from_millis(100))).expect("a limit");
    let (start, mut text) = (std::time::Instant::now(), Vec::new());
    while start.elapsed() < time {
        let mut buffer = [0; 65536];
        match stream.read(&mut buffer) {
            Ok(0) => panic!("the stream has ended"),
            Ok(count) => text.extend_from_slice(&buffer[..count]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => panic!("{error}"),
        }
    }
    String::from_utf8(text).expect("text").matches("event: message").count()
}

#[test]
fn only_those_who_ask_for_it_from_here_get_the_page() {
    let served = Served::demo();
    let host = format!("Host: {}", served.address);
    let page = served.ask("GET /", &[&host]);
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("Content-Security-Policy: default-src 'none'"), "{page}");
    // Nothing comes from elsewhere: the one address is the name of SVG's elements.
    let addresses: Vec<_> = page.match_indices("http").map(|(at, _)| &page[at..at + 27]).collect();
    let elsewhere = addresses.iter().filter(|address| address.starts_with("http:") || address.starts_with("https:"));
    assert!(elsewhere.clone().all(|address| address.starts_with("http://www.w3.org/2000/svg")), "{addresses:?}");
    assert_eq!(served.status("GET /", &["Host: rebound.example"]), "421");
    assert_eq!(served.status("GET /", &[]), "421");
    assert_eq!(served.status("GET /events", &[&host, "Origin: http://evil.example"]), "403");
    assert_eq!(served.status("GET /etc/passwd", &[&host]), "404");
    assert_eq!(served.status("GET /metrics", &[&host]), "404");
    assert_eq!(served.status("DELETE /", &[&host]), "405");
    assert_eq!(served.status("POST /stop", &[&host]), "403");
    assert_eq!(served.status("POST /stop", &[&host, "Origin: http://evil.example"]), "403");
    assert_eq!(served.status("POST /stop", &[&host, "Content-Length: 9"]), "413");
    let own = format!("Origin: http://{}", served.address);
    let stopped = served.ask("POST /stop", &[&host, &own, "Content-Length: 0"]);
    assert!(stopped.ends_with("{\"cards\":\"stopped\",\"steps\":[]}"), "{stopped}");
    let running = served.ask("POST /run", &[&host, &own]);
    assert!(running.ends_with("{\"cards\":\"running\",\"steps\":[]}"), "{running}");
}

#[test]
fn a_page_for_looking_changes_nothing() {
    let served = Served::start(&["fwd", "--hugepages", "off", "--web=127.0.0.1:0", "model:null", "null"]);
    let (host, own) = (format!("Host: {}", served.address), format!("Origin: http://{}", served.address));
    let refused = served.ask("POST /stop", &[&host, &own]);
    assert!(refused.starts_with("HTTP/1.1 403") && refused.contains("for looking only"), "{refused}");
    let (_, _, errors) = ringpass(&["fwd", "--web=0.0.0.0:8080", "null", "null"]);
    assert!(errors.contains("0.0.0.0 is no loopback address"), "{errors}");
    let taken = format!("--web={}", served.address);
    let (status, _, errors) = ringpass(&["fwd", &taken, "null", "null"]);
    assert!(status == Some(1) && errors.contains("Address already in use"), "{errors}");
    served.program.signal("INT");
    let Ended { status, errors, .. } = served.program.wait(Duration::from_secs(30));
    assert_eq!(status, Some(0), "{errors:?}");
}

/// The driver of a card that is stopped must not take it for one that hangs, however many frames wait.
#[test]
fn a_card_that_is_stopped_for_long_comes_back() {
    let (middle, near, far) = (Namespace::new(), Namespace::new(), Namespace::new());
    let (card, tap) = (unique("tm"), unique("th"));
    middle.run(&["ip", "link", "set", "lo", "up"]);
    let ports = [format!("model:tap:{card}"), format!("tap:{tap}")];
    let mut forwarder = middle.spawn(&[
        RINGPASS,
        "fwd",
        "--json",
        "--web=127.0.0.1:0,step",
        "--hugepages",
        "off",
        &ports[0],
        &ports[1],
    ]);
    let line = forwarder.wait_for_stderr("the page is at ");
    let url = line.split_whitespace().last().expect("an address").to_owned();
    wait_until("the forwarder's first line", || !forwarder.line().is_empty());
    near.take(&middle, &card, "198.18.0.1/24");
    far.take(&middle, &tap, "198.18.0.2/24");
    let ping = |options: &[&str]| {
        let mut ping = Command::new("ip");
        let answered = ping.args(["netns", "exec", &far.0, "ping", "198.18.0.1"]).args(options).output();
        answered.is_ok_and(|output| output.status.success())
    };
    let pings = || ping(&["-c", "3", "-i", "0.2", "-w", "20"]);
    wait_until("the first pings", pings);
    let origin = format!("Origin: {}", url.trim_end_matches('/'));
    let order = |what: &str| middle.run(&["curl", "-sS", "-X", "POST", "-H", &origin, &format!("{url}{what}")]);
    assert!(order("stop").contains("stopped"));
    // More than the ring holds, for longer than a card may take.
    assert!(!ping(&["-f", "-c", "5000", "-w", "6"]), "nobody answers");
    assert!(forwarder.ended().is_none(), "{:?}", forwarder.said());
    assert!(order("step").contains("sent a frame"));
    assert!(order("run").contains("running"));
    wait_until("pings", pings);
    forwarder.summary();
}

#[test]
fn a_hundred_browsers_and_one_that_does_not_read() {
    let served = Served::demo();
    let watching: Vec<_> = (0..100).map(|_| served.watch()).collect();
    let room = watching.iter().filter(|(_, room)| *room).count();
    assert_eq!(room, 32, "browsers that were let in");
    drop(watching);
    // The last of them may not have been seen to be gone yet.
    let mut stream = None;
    wait_until("room", || {
        stream = Some(served.watch()).filter(|(_, room)| *room);
        stream.is_some()
    });
    let (mut reads, _) = stream.expect("a stream");
    let (deaf, _) = served.watch();
    // Some 20 a second; fewer where the machine is busy. The deaf one's buffers are full by then.
    let count = pictures(&mut reads, Duration::from_secs(3));
    assert!((5..=70).contains(&count), "{count} pictures in three seconds");
    drop(deaf);
    // The run goes on.
    served.program.lines();
    assert!(served.program.line().contains("\"event\":\"stats\""));
}

/// Where pictures of the page are left, for those who want to see them.
fn pictures_folder() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

#[test]
fn rings_move_in_chromium() {
    let served = Served::demo();
    let browser = Browser::start(&[]);
    browser.look(&Look { width: 1100, dark: false });
    browser.open(&format!("http://{}/", served.address));
    let rate = "return [...document.querySelectorAll('.lane .rate')].every(rate => /[1-9].*pps/.test(rate.textContent))
        && document.querySelectorAll('.lane').length === 4";
    browser.wait("rates", rate);
    // Heads move, and what is posted is drawn.
    let heads = "return [...document.querySelectorAll('.ring .number')].map(text => text.textContent).join()";
    let before = browser.run(heads);
    browser.wait("rings that move", &format!("return {before} !== (() => {{ {heads} }})()"));
    assert_eq!(browser.run("return document.querySelectorAll('.ring svg[role=img][aria-label*=head]').length"), 4);
    browser.wait("sparklines", "return [...document.querySelectorAll('.spark polyline')].every(line => line.getAttribute('points').split(' ').length > 3)");
    browser.wait("cycles", "return +document.querySelector('#workers tr').children[2].textContent > 0");
    browser.picture(&pictures_folder().join("page-light.png"));

    // In a narrow window and dark colours nothing is wider than the window.
    browser.look(&Look { width: 400, dark: true });
    let dark = "return getComputedStyle(document.body).backgroundColor === 'rgb(20, 23, 26)'";
    browser.wait("dark colours", dark);
    assert_eq!(browser.run("return document.documentElement.scrollWidth"), 400);

    // By keys alone: stop the cards, and follow a frame from wire to wire.
    assert_eq!(browser.run("return document.getElementById('step').disabled"), true);
    browser.press("p");
    browser.wait("stopped cards", "return !document.getElementById('step').disabled");
    let still = "return document.querySelector('#workers tr').children[1].textContent.trim() === '0'";
    browser.wait("a worker that has nothing to do", still);
    let log = "return document.getElementById('log').innerText";
    let mut steps = 0;
    while !browser.run(log).as_str().expect("text").contains("received a frame") {
        let now = browser.run("return document.querySelectorAll('#log > li').length");
        browser.press("s");
        browser
            .wait("a step", &format!("return document.querySelectorAll('#log > li').length > {now} || {now} === 50"));
        steps += 1;
        assert!(steps < 600, "the frames that were on their way have left");
    }
    let first = "return document.querySelector('#log > li').innerText";
    let received = browser.run(first);
    let received = received.as_str().expect("text");
    for part in ["Rx ring 0", "wrote 60 bytes", "length 60, DD, EOP", "RDH[0] = ", "Receive Descriptor Head, 8.2.3.8.4"]
    {
        assert!(received.contains(part), "no '{part}': {received}");
    }
    // The driver forwards it, which the next step shows.
    browser.press("s");
    browser.wait("what is sent", "return document.querySelector('#log > li').innerText.includes('sent a frame')");
    let sent = browser.run(first);
    let sent = sent.as_str().expect("text");
    for part in ["driver TDT[0] = ", "Transmit Descriptor Tail, 8.2.3.9.9", "60 bytes at 0x", "EOP", "TDH[0] = "] {
        assert!(sent.contains(part), "no '{part}': {sent}");
    }
    browser.run("document.querySelector('#log details').open = true");
    let fields = browser.run("return document.querySelector('#log details table').innerText");
    for part in ["destination MAC", "IPv4", "198.18.", "17 (UDP)", "UDP length"] {
        assert!(fields.as_str().expect("text").contains(part), "no '{part}': {fields}");
    }
    browser.picture(&pictures_folder().join("page-dark.png"));
    browser.press("p");
    browser.wait("rates", rate);

    // The program ends, and the page says so.
    assert_eq!(browser.console(), <[String; 0]>::default());
    served.program.summary();
    browser.wait("the end", "return document.getElementById('connection').textContent.startsWith('no connection')");
}
