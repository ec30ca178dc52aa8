//! Our back-end with DPDK's front-end: `vhost:` ports against testpmd's `net_virtio_user`, which swaps the
//! addresses of the frames that it receives and sends them back, or answers pings.

use std::time::Duration;

use crate::common::dpdk::{Forwarded, RING_PATHS, Testpmd};
use crate::common::guest::answered;
use crate::common::{Namespace, Program, RINGPASS, folder, text, unique, wait_until};
use ringpass_lab::Ended;
use serde_json::Value;

/// Sends frames to a front-end that returns them, slowly enough for a busy machine: each frame that testpmd
/// sends must come back once, in order. While it starts, testpmd sets its port up more than once, and earlier
/// frames are lost.
fn all_return(testpmd_port: &str, address: &str, options: &[&str], testpmd_options: &[&str]) {
    const FRAMES: u64 = 4000;
    let folder = folder();
    let socket = folder.path().join("socket");
    let port = format!("{testpmd_port},queue_size=1024,path={}", text(&socket));
    let address = address.replace("SOCKET", text(&socket));
    let frames = FRAMES.to_string();
    let sender = [RINGPASS, "pktgen", &address, "--json", "--imix", "--rate", "4k", "--count", &frames];
    let sender = Program::spawn(&[&sender[..], options].concat());
    if testpmd_port.contains("server=1") {
        wait_until("the sender's first line", || !sender.line().is_empty());
    } else {
        wait_until("our socket", || socket.exists());
    }
    // It takes fewer frames at a time than there is room for on the way back, where it would drop them while
    // this side stands still.
    let mut testpmd = Testpmd::start(&port, "macswap", &[testpmd_options, &["--rxd=256"]].concat());
    testpmd.ready();
    let Ended { status, lines, errors } = sender.wait(Duration::from_secs(60));
    assert_eq!(status, Some(0), "{address}, {port}: {errors:?}");
    let summary: Value = serde_json::from_str(lines.last().expect("a summary")).unwrap();
    let forwarded = testpmd.end();
    let Forwarded { received, sent, dropped } = forwarded;
    // Its start-up time depends on the machine. It drops some frames if, after standing still, it has many to
    // send at once while this side stands still.
    assert!(sent > FRAMES / 2 && received <= FRAMES, "{address}, {port}: {forwarded:?} {summary}");
    assert_eq!(sent + dropped, received, "{address}, {port}: {summary}");
    for (what, count) in [("sent", FRAMES), ("returned", sent), ("reordered", 0), ("duplicate", 0)] {
        assert_eq!(summary[what], count, "{address}, {port}: {summary}");
    }
    let port = &summary["ports"][0];
    assert_eq!((&port["tx_packets"], &port["rx_packets"]), (&FRAMES.into(), &sent.into()), "{summary}");
    assert_eq!((&port["rx_drops"], &port["tx_drops"]), (&0.into(), &0.into()), "{summary}");
    assert_eq!((&port["extended"]["sessions"], &port["extended"]["guest_faults"]), (&1.into(), &0.into()));
}

#[test]
fn frames_pass_on_all_ring_paths() {
    for path in RING_PATHS {
        all_return(&format!("net_virtio_user0,{path}"), "vhost:SOCKET", &[], &[]);
    }
}

#[test]
fn frames_pass_on_two_pairs_of_queues() {
    let both = ["--rxq=2", "--txq=2", "--nb-cores=1"];
    for rings in ["", ",packed_vq=1"] {
        let port = format!("net_virtio_user0,queues=2{rings}");
        all_return(&port, "vhost:SOCKET", &["--queues", "2", "--flows", "64"], &both);
        // A front-end with fewer queues.
        all_return(&format!("net_virtio_user0{rings}"), "vhost:SOCKET,queues=2", &[], &[]);
    }
}

#[test]
fn our_end_may_be_the_one_that_connects() {
    // The user that we become in the sandbox may not write to the other end's socket.
    all_return("net_virtio_user0,server=1", "vhost:SOCKET,client", &["--no-sandbox"], &[]);
}

#[test]
fn a_back_end_offers_what_it_is_told_to() {
    for features in ["-mrg_rxbuf-event_idx", "-indirect_desc-in_order"] {
        all_return("net_virtio_user0", &format!("vhost:SOCKET,features={features}"), &[], &[]);
    }
}

#[test]
fn pings_are_answered_and_their_content_is_right() {
    for path in RING_PATHS {
        let (kernel, folder) = (Namespace::new(), folder());
        let (socket, tap) = (folder.path().join("socket"), unique("tv"));
        let forwarder = kernel.spawn(&[
            RINGPASS,
            "fwd",
            &format!("tap:{tap}"),
            &format!("vhost:{}", text(&socket)),
            "--json",
            "--offloads",
            "checksum",
        ]);
        wait_until("the forwarder's first line", || !forwarder.line().is_empty());
        kernel.run(&["ip", "address", "add", "198.18.0.1/24", "dev", &tap]);
        let port = format!("net_virtio_user0,{path},mac=02:00:00:00:00:05,path={}", text(&socket));
        let mut testpmd = Testpmd::start(&port, "icmpecho", &[]);
        testpmd.ready();
        kernel.neighbour(&tap, "198.18.0.2", "02:00:00:00:00:05");
        for size in ["56", "1400"] {
            // ping compares the bytes that come back.
            let command = ["ping", "-c", "30", "-i", "0.01", "-s", size, "-p", "c0ffee17", "-w", "40", "198.18.0.2"];
            let said = kernel.run(&command);
            assert!(answered(&said, 30) && !said.contains("wrong data"), "{path}: {said}");
        }
        assert!(testpmd.end().sent >= 60);
        let summary = forwarder.summary();
        assert_eq!(summary["ports"][1]["extended"]["guest_faults"], 0, "{summary}");
    }
}

#[test]
fn front_ends_come_and_go() {
    let folder = folder();
    let socket = folder.path().join("socket");
    let sender = Program::spawn(&[RINGPASS, "pktgen", &format!("vhost:{}", text(&socket)), "--json", "--rate", "4k"]);
    wait_until("our socket", || socket.exists());
    let returned = || {
        let line: Value = serde_json::from_str(&sender.line()).expect("statistics");
        line["returned"].as_u64().expect("a number")
    };
    let mut before = 0;
    for path in ["", ",packed_vq=1", ",in_order=1"] {
        let mut testpmd = Testpmd::start(&format!("net_virtio_user0{path},path={}", text(&socket)), "macswap", &[]);
        testpmd.ready();
        wait_until("frames of this session", || returned() > before + 1000);
        // Killed without closing the session properly.
        drop(testpmd);
        before = returned() + 1000;
    }
    let summary = sender.summary();
    let port = &summary["ports"][0];
    assert_eq!((&port["extended"]["sessions"], &port["extended"]["guest_faults"]), (&3.into(), &0.into()), "{summary}");
}
