//! Measures the speed of calls, and of frames through a pipe between two programs. To be run with `--release`:
//! `cargo test --release -p ringpass-netmap-preload --test it speed:: -- --ignored --nocapture`

use std::time::{Duration, Instant};

use crate::support::netmap::Port;
use crate::support::{Lab, Program};
use libc::{POLLIN, POLLOUT};

const TIME: Duration = Duration::from_secs(2);

#[test]
fn program() {
    let Some(words) = crate::support::part() else { return };
    match &words[0][..] {
        "calls" => calls(),
        "send" => send(&words[1], words[2].parse().unwrap()),
        "receive" => receive(&words[1]),
        other => panic!("no part {other}"),
    }
}

fn calls() {
    let port = Port::new("x{1");
    let rate = |what: &str, call: &dyn Fn()| {
        let (start, mut count) = (Instant::now(), 0_u32);
        while start.elapsed() < TIME / 4 {
            (0..1000).for_each(|_| call());
            count += 1000;
        }
        let nanos = start.elapsed().as_nanos() as f64 / f64::from(count);
        eprintln!("{what:34} {nanos:6.1} ns, {:6.2} M/s", 1000.0 / nanos);
    };
    rate("NIOCTXSYNC, nothing", &|| assert_eq!(port.tx_sync(), 0));
    rate("NIOCRXSYNC, nothing", &|| assert_eq!(port.rx_sync(), 0));
    rate("poll, ready to send", &|| assert_eq!(port.poll(POLLOUT, -1), POLLOUT));
    rate("poll, nothing, no time", &|| assert_eq!(port.poll(POLLIN, 0), 0));
    // SAFETY: with a count of 0 no descriptor is accessed.
    rate("poll of nothing", &|| assert_eq!(unsafe { libc::poll(std::ptr::null_mut(), 0, 0) }, 0));
    // SAFETY: -1 is no descriptor, so nothing is closed.
    rate("close of no descriptor", &|| assert_eq!(unsafe { libc::close(-1) }, -1));
}

/// Sends by `poll`, or by NIOCTXSYNC alone.
fn send(how: &str, batch: u32) {
    let (port, start) = (Port::new("x{1"), Instant::now());
    let (ring, mut sent) = (port.tx(), 0_u64);
    while start.elapsed() < TIME {
        for _ in 0..1000 {
            if how == "poll" {
                assert_eq!(port.poll(POLLOUT, 1000), POLLOUT);
            } else {
                assert_eq!(port.tx_sync(), 0);
            }
            let count = ring.space().min(batch);
            ring.give(count);
            sent += u64::from(count);
        }
    }
    eprintln!("{how:5} batch {batch:5}: {:7.2} Mpps", sent as f64 / start.elapsed().as_secs_f64() / 1e6);
}

fn receive(how: &str) {
    let port = Port::new("x}1");
    let ring = port.rx();
    loop {
        if how == "poll" {
            port.poll(POLLIN, 1000);
        } else {
            assert_eq!(port.rx_sync(), 0);
        }
        ring.give(ring.space());
    }
}

#[test]
#[ignore = "a measurement"]
fn speed() {
    let lab = Lab::new(module_path!());
    lab.play(&["calls"]);
    for how in ["poll", "sync"] {
        let _receiver = Program(lab.part(&format!("receive {how}")).spawn().unwrap());
        std::thread::sleep(Duration::from_millis(200));
        for batch in [1, 32, 256, 1024] {
            lab.play(&[&format!("send {how} {batch}")]);
        }
    }
}
